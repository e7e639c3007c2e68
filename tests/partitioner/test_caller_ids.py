"""Ids that come from a column or a user's function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner import FunctionSelector, IdSelector

ROWS = pa.record_batch([pa.array([5, 6, 7])], names=["n"])


@given(
    ids=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=30),
    subpartitions=st.integers(1, 2**31 - 1) | st.integers(1, 9),
)
def test_ids_count_modulo_and_nulls_as_zero(ids: list[int | None], subpartitions: int) -> None:
    column = pa.array([1, *ids], pa.int32()).slice(1)
    batch = pa.record_batch([column], names=["id"])

    found = IdSelector(0, subpartitions).assign(batch)

    assert found.tolist() == [0 if each is None else each % subpartitions for each in ids]


def test_a_column_of_nulls_sends_everything_to_the_first() -> None:
    assert IdSelector(0, 4).assign(pa.record_batch([pa.nulls(3)], names=["id"])).tolist() == [0, 0, 0]


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(ColumnError, match="int64: cast them to int32"):
        IdSelector(0, 4).assign(ROWS)
    with pytest.raises(UsageError, match="position"):
        IdSelector(-1, 4)


def modulo_three(batch: pa.RecordBatch) -> Any:
    return np.asarray(batch["n"]) % 3


def test_a_function_places_a_batch() -> None:
    selector = FunctionSelector(modulo_three, 3)

    assert selector.assign(ROWS).tolist() == [2, 0, 1]
    assert selector.assign(ROWS).dtype == np.uint8
    assert selector.assign(ROWS.slice(0, 0)).tolist() == []


@pytest.mark.parametrize(
    "ids",
    [
        [2, 0, 1],
        pa.array([2, 0, 1], pa.int8()),
        pa.chunked_array([[2], [0, 1]]),
        np.array([2, 0, 1], np.uint64),
    ],
)
def test_a_function_may_return_ids_in_any_array_of_integers(ids: Any) -> None:
    assert FunctionSelector(lambda batch: ids, 3).assign(ROWS).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [
        ([0, 1, 3], "from 0 to 2, found 3 for row 2"),
        ([0, -1, 9], "from 0 to 2, found -1 for row 1"),
        (np.array([0, 1, 2**63], np.uint64), "found 9223372036854775808 for row 2"),
        ([0, 1], r"3 rows need ids of shape \(3,\), found \(2,\)"),
        ([[0], [1], [2]], r"found \(3, 1\)"),
        (0, r"found \(\)"),
        ([0.0, 1.0, 2.0], "must be integers, found float64"),
        ([True, False, True], "must be integers, found bool"),
        (None, "must be integers, found object"),
        (pa.array([0, None, 2]), "1 nulls among the ids"),
    ],
)
def test_what_a_function_returns_is_checked_and_the_error_names_it(ids: Any, wrong: str) -> None:
    def place(batch: pa.RecordBatch) -> Any:
        return ids

    with pytest.raises(UsageError, match=f"partition function .*place: .*{wrong}"):
        FunctionSelector(place, 3).assign(ROWS)
