"""Two sorted streams side by side: the same pairs of groups as dicts of lists give, wherever either stream is
cut; no more is held than the rows of one key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import KEY_CASES, KeyCase

from sortshuffle.compute.groups.cogroup import Side, cogroup, comparable
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder

BY_KEY = RowOrder((0,))


def rows_of(keys: pa.Array, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch([keys, pa.array(range(first, first + len(keys)), pa.int64())], ["key", "row"])


def side(batch: pa.RecordBatch, borders: Sequence[int] = (), order: RowOrder = BY_KEY) -> Side:
    edges = [0, *sorted(borders), batch.num_rows]
    parts = [batch.slice(start, stop - start) for start, stop in pairwise(edges)]
    return Side(iter(parts), batch.schema, order)


def budget() -> MemoryBudget:
    return MemoryBudget(1 << 20)


def pairs(left: Side, right: Side) -> list[tuple[list[int], list[int]]]:
    """The row numbers of each pair of groups."""
    memory = budget()
    found = [(a["row"].to_pylist(), b["row"].to_pylist()) for a, b in cogroup(left, right, memory)]
    assert memory.used == 0
    return found


@pytest.mark.parametrize("case", KEY_CASES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_pairs_are_those_of_dicts_wherever_the_streams_are_cut(case: KeyCase, data: st.DataObject) -> None:
    both = data.draw(case.lists(max_size=40))  # of one pool of values, so that many are on both sides
    split = data.draw(st.integers(0, len(both)))
    sides = [sorted(part, key=case.key) for part in (both[:split], both[split:])]
    expected: dict[Any, tuple[list[int], list[int]]] = {}
    for number, values in enumerate(sides):
        for row, value in enumerate(values):
            expected.setdefault(case.key(value), ([], []))[number].append(row)
    borders = [data.draw(st.lists(st.integers(0, len(part)), max_size=5)) for part in sides]
    left, right = (side(rows_of(case.array(values)), cut) for values, cut in zip(sides, borders, strict=True))
    assert pairs(left, right) == [expected[key] for key in sorted(expected)]


@given(data=st.data())
def test_several_keys_may_be_other_columns_on_each_side(data: st.DataObject) -> None:
    key = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a", "b"]))
    sides = [
        sorted(data.draw(st.lists(key, max_size=15)), key=lambda each: [(v is not None, v) for v in each])
        for _ in range(2)
    ]
    expected: dict[Any, tuple[list[int], list[int]]] = {}
    for number, keys in enumerate(sides):
        for row, each in enumerate(keys):
            expected.setdefault(each, ([], []))[number].append(row)
    numbers, texts = zip(*(list(zip(*keys, strict=True)) or [(), ()] for keys in sides), strict=True)
    left = pa.record_batch(
        [pa.array(numbers[0], pa.int64()), pa.array(texts[0], pa.string()), list(range(len(sides[0])))],
        schema=pa.schema([("a", pa.int64()), ("b", pa.string()), ("row", pa.int64())]),
    )
    right = pa.record_batch(
        [list(range(len(sides[1]))), pa.array(texts[1], pa.string()), pa.array(numbers[1], pa.int64())],
        schema=pa.schema([("row", pa.int64()), ("b", pa.string()), ("a", pa.int64())]),
    )
    found = pairs(side(left, order=RowOrder((0, 1))), side(right, order=RowOrder((2, 1))))
    assert found == [
        expected[k] for k in sorted(expected, key=lambda each: [(v is not None, v) for v in each])
    ]


def test_a_side_without_the_key_is_an_empty_table_of_its_schema() -> None:
    left = rows_of(pa.array([1, 2]))
    schema = pa.schema([("k", pa.int64()), ("list", pa.list_(pa.string()))], metadata={"who": "me"})
    right = pa.record_batch([pa.array([2]), [["a"]]], schema=schema)
    (_, without), (_, there) = cogroup(side(left), side(right), budget())
    assert (without.num_rows, there.num_rows) == (0, 1)
    assert without.schema.equals(schema, check_metadata=True)
    assert without["list"].num_chunks == 1  # as PySpark's has, which some functions take
    assert there.to_pylist() == [{"k": 2, "list": ["a"]}]


def test_nulls_nans_and_zeros_of_either_sign_meet() -> None:
    left = pa.array([None, -0.0, math.nan], from_pandas=False)
    right = pa.array([None, 0.0, 0.0, -math.nan], from_pandas=False)
    assert pairs(side(rows_of(left)), side(rows_of(right))) == [([0], [0]), ([1], [1, 2]), ([2], [3])]


def test_without_keys_all_rows_of_both_sides_are_one_group() -> None:
    none = RowOrder(())
    some, nothing = rows_of(pa.array([3, 1])), rows_of(pa.array([], pa.int64()))
    assert pairs(side(some, order=none), side(some, [1], order=none)) == [([0, 1], [0, 1])]
    assert pairs(side(some, order=none), side(nothing, order=none)) == [([0, 1], [])]
    assert pairs(side(nothing, order=none), side(nothing, order=none)) == []


def test_held_is_one_key_and_the_waiting_side_is_not_collected() -> None:
    read: list[str] = []

    def stream(name: str, keys: list[int]) -> Iterator[pa.RecordBatch]:
        for key in keys:
            read.append(f"{name}{key}")
            yield rows_of(pa.array([key]))

    schema = rows_of(pa.array([1])).schema
    left = Side(stream("l", [1, 2, 3, 3]), schema, BY_KEY)
    right = Side(stream("r", [3, 3, 3, 4]), schema, BY_KEY)
    seen = []
    for a, b in cogroup(left, right, budget()):
        seen.append((a.num_rows, b.num_rows, " ".join(read)))
    assert seen == [
        (1, 0, "l1 r3 l2"),
        (1, 0, "l1 r3 l2 l3"),
        (2, 3, "l1 r3 l2 l3 l3 r3 r3 r4"),
        (0, 1, "l1 r3 l2 l3 l3 r3 r3 r4"),
    ]


def test_the_rows_of_a_key_are_charged_while_they_are_collected() -> None:
    batch = rows_of(pa.array(np.zeros(1000, np.int64)))
    memory = budget()
    groups = cogroup(side(batch, [300, 600]), side(batch), memory)
    next(groups)
    assert (memory.used, memory.peak) == (0, batch.slice(0, 600).nbytes)


def test_an_error_of_a_stream_releases_what_was_held() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows_of(pa.array([1, 1]))
        yield rows_of(pa.array([1]))
        raise OSError("lost")

    memory = budget()
    batch = rows_of(pa.array([1]))
    with pytest.raises(OSError, match="lost"):
        list(cogroup(side(batch), Side(broken(), batch.schema, BY_KEY), memory))
    assert memory.used == 0
    assert memory.peak > 0


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (pa.int64(), pa.int64(), True),
        (pa.int32(), pa.int64(), False),
        (pa.float32(), pa.float64(), False),
        (pa.string(), pa.binary(), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.decimal128(9, 2), pa.decimal128(18, 2), True),
        (pa.decimal128(19, 2), pa.decimal128(38, 2), True),
        (pa.decimal128(18, 2), pa.decimal128(19, 2), False),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())]), False),
    ],
)
def test_types_whose_equal_values_meet(left: pa.DataType, right: pa.DataType, expected: bool) -> None:
    assert comparable(left, right) is expected


@pytest.mark.parametrize("digits", [(9, 18), (19, 38)])
def test_decimals_of_other_precision_meet(digits: tuple[int, int]) -> None:
    values = [None, Decimal("-1.50"), Decimal("2.25")]
    left, right = (rows_of(pa.array(values, pa.decimal128(each, 2))) for each in digits)
    assert pairs(side(left), side(right)) == [([0], [0]), ([1], [1]), ([2], [2])]
