"""Range placement and the order under it, against comparing Python values one by one."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import INT64, KEY_CASES, STRING, KeyCase, directed, sort_keys

from sortshuffle.errors import UsageError
from sortshuffle.partitioner import RangeSelector, SortKey
from sortshuffle.partitioner.ranges import CHUNK_ROWS, FEW_BOUNDS

each_type = pytest.mark.parametrize("case", KEY_CASES, ids=str)
few_each = settings(max_examples=25)  # of some twenty types


def batch_of(cases: list[KeyCase], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [case.sliced_array([row[at] for row in rows]) for at, case in enumerate(cases)]
    return pa.RecordBatch.from_arrays(columns, [str(at) for at in range(len(cases))])


def distinct(rows: list[tuple[Any, ...]], order: Any) -> list[tuple[Any, ...]]:
    """Sorted, and without rows that compare as equal to another."""
    ordered = sorted(rows, key=order)
    return ordered[:1] + [row for before, row in pairwise(ordered) if order(before) < order(row)]


def check(cases: list[KeyCase], keys: tuple[SortKey, ...], rows: list[Any], bounds: list[Any]) -> None:
    order = directed(keys, cases)
    bounds = distinct(bounds, order)
    selector = RangeSelector(keys, batch_of(cases, bounds), len(bounds) + 1)
    ids = selector.assign(batch_of(cases, rows))
    ordered = [order(bound) for bound in bounds]
    assert ids.tolist() == [bisect_left(ordered, order(row)) for row in rows]


@each_type
@few_each
@given(data=st.data())
def test_rows_of_every_type_are_placed_by_the_first_bound_that_is_not_below(
    case: KeyCase, data: st.DataObject
) -> None:
    values = [(value,) for value in data.draw(case.lists(min_size=1, max_size=40))]
    others = [(value,) for value in data.draw(st.lists(st.none() | case.values, max_size=20))]
    check([case], data.draw(sort_keys(1)), values + others, values)


@settings(max_examples=150)
@given(data=st.data())
def test_rows_are_placed_by_several_keys_each_with_its_direction(data: st.DataObject) -> None:
    cases = data.draw(st.lists(st.sampled_from(KEY_CASES), min_size=2, max_size=3))
    keys = data.draw(sort_keys(len(cases)))
    row = st.tuples(*(st.none() | case.values for case in cases))
    few = data.draw(st.lists(row, min_size=1, max_size=4))
    # values mixed anew, so that rows share their first columns with bounds and differ in the next
    mixed = st.tuples(*(st.sampled_from([each[at] for each in few]) for at in range(len(cases))))
    check(cases, keys, data.draw(st.lists(mixed | row, max_size=30)), data.draw(st.lists(mixed, min_size=1)))


@pytest.mark.parametrize("bounds", [1, FEW_BOUNDS, FEW_BOUNDS + 1, 200, 3000])
@pytest.mark.parametrize("rows", [1, 100, CHUNK_ROWS + 1, 3 * CHUNK_ROWS])
def test_any_number_of_bounds_and_rows_gives_what_numpy_finds(bounds: int, rows: int) -> None:
    random = np.random.default_rng(bounds + rows)
    limits = np.unique(random.integers(-(2**62), 2**62, bounds))
    values = random.integers(-(2**63), 2**63, rows)
    values[: min(rows, 50)] = random.choice(limits, min(rows, 50))
    selector = RangeSelector((SortKey(0),), pa.record_batch([pa.array(limits)], names=["k"]), 5000)
    ids = selector.assign(pa.record_batch([pa.array(values)], names=["k"]))
    assert ids.dtype == np.uint16
    np.testing.assert_array_equal(ids, np.searchsorted(limits, values))


def test_long_texts_with_a_common_prefix_are_told_apart_behind_it() -> None:
    prefix = "https://example.org/" * 5000
    rows = [(prefix + str(number),) for number in range(300)] + [(prefix,), (prefix[:-1],), ("",), ("i",)]
    check([STRING], (SortKey(0),), rows, rows[50:300:40])
    check([STRING], (SortKey(0, True),), rows, rows[50:300:40])


def test_zeros_behind_a_text_count() -> None:
    rows = [("a" * length + "\0" * zeros,) for length in (0, 7, 8, 9) for zeros in (0, 1, 2, 9)]
    check([STRING], (SortKey(0),), rows, rows)


def test_with_fewer_bounds_the_last_subpartitions_stay_empty() -> None:
    batch = batch_of([INT64], [(value,) for value in range(10)])
    bounds = batch_of([INT64], [(4,)])
    assert RangeSelector((SortKey(0),), bounds, 7).assign(batch).tolist() == [0] * 5 + [1] * 5
    assert RangeSelector((SortKey(0),), bounds.slice(0, 0), 7).assign(batch).tolist() == [0] * 10


def test_keys_may_be_anywhere_in_the_batch() -> None:
    batch = pa.record_batch([["x"] * 4, [3, 1, 2, 0], [1.0, None, 0.5, -1.0]], names=["a", "b", "c"])
    bounds = pa.record_batch([[0.5], [2]], names=["c", "b"])
    selector = RangeSelector((SortKey(2, True, True), SortKey(1)), bounds, 2)
    assert selector.assign(batch).tolist() == [0, 1, 0, 1]


def test_a_pickled_selector_places_the_same_rows_alike() -> None:
    rows = [(f"text {number * 7919 % 1000}",) for number in range(1000)]
    selector = RangeSelector((SortKey(0),), batch_of([STRING], sorted(rows[:20])), 64)
    batch = batch_of([STRING], rows)
    ids = selector.assign(batch).tolist()
    copy = pickle.loads(pickle.dumps(selector))
    assert copy == selector
    assert copy.assign(batch).tolist() == ids
    assert (
        pickle.loads(pickle.dumps(RangeSelector((SortKey(0),), selector.bounds, 64))).assign(batch).tolist()
        == ids
    )


@pytest.mark.parametrize(
    ("bounds", "subpartitions", "wrong"),
    [
        ([2, 1], 5, "strictly ascending"),
        ([1, 1], 5, "strictly ascending"),
        ([1, None], 5, "strictly ascending"),
        ([1, 2, 3], 3, "3 bounds make more ranges than 3 subpartitions"),
        ([1], 0, "number of subpartitions"),
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds: list[Any], subpartitions: int, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        RangeSelector((SortKey(0),), batch_of([INT64], [(bound,) for bound in bounds]), subpartitions)


@pytest.mark.parametrize("keys", [(), (SortKey(0), SortKey(1))])
def test_bounds_need_a_column_for_each_key(keys: tuple[SortKey, ...]) -> None:
    with pytest.raises(UsageError, match="one column for each key"):
        RangeSelector(keys, batch_of([INT64], [(1,)]), 5)
