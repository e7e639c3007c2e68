"""From sorted batches to one table per key, or one iterator of batches: the same groups as
`itertools.groupby` finds, wherever the batches are cut, and no more of the stream read, or held, than the
group needs."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import DOUBLE, INT64, KEY_CASES, STRING, KeyCase

from sortshuffle.compute.groups.groups import Groups, group_batches, group_tables
from sortshuffle.payload.ordering import RowOrder

BY_KEY = RowOrder((0,))


def keyed(keys: Any) -> pa.RecordBatch:
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys)
    return pa.record_batch([keys, pa.array(range(len(keys)), pa.int32())], ["key", "row"])


def cut(batch: pa.RecordBatch, borders: Sequence[int]) -> list[pa.RecordBatch]:
    edges = [0, *sorted(borders), batch.num_rows]
    return [batch.slice(start, stop - start) for start, stop in itertools.pairwise(edges)]


def groups_of(batches: Sequence[pa.RecordBatch], order: RowOrder = BY_KEY) -> list[list[int]]:
    """The row numbers of each group, which are the same as a table and as an iterator."""
    as_tables = [table["row"].to_pylist() for table in group_tables(iter(batches), order)]
    as_batches = [
        [row for part in group for row in part["row"].to_pylist()]
        for group in group_batches(iter(batches), order)
    ]
    assert as_batches == as_tables
    return as_tables


def expected_groups(keys: Sequence[Any]) -> list[list[int]]:
    return [list(rows) for _, rows in itertools.groupby(range(len(keys)), key=keys.__getitem__)]


@pytest.mark.parametrize("case", KEY_CASES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_groups_are_those_of_groupby_wherever_batches_are_cut(case: KeyCase, data: st.DataObject) -> None:
    values = sorted(data.draw(case.lists(max_size=30)), key=case.key)
    borders = data.draw(st.lists(st.integers(0, len(values)), max_size=8))
    batches = cut(keyed(case.array(values)), borders)
    assert groups_of(batches) == expected_groups([case.key(value) for value in values])


@given(data=st.data())
def test_groups_of_several_keys_are_those_of_groupby(data: st.DataObject) -> None:
    cases = data.draw(st.permutations([INT64, STRING, DOUBLE]))
    rows = data.draw(st.integers(0, 30))
    columns = [data.draw(case.lists(min_size=rows, max_size=rows)) for case in cases]
    table = sorted(
        (
            (tuple(case.key(v) for case, v in zip(cases, row, strict=True)), row)
            for row in zip(*columns, strict=True)
        ),
        key=lambda each: each[0],
    )
    arrays = [case.array([row[number] for _, row in table]) for number, case in enumerate(cases)]
    batch = pa.record_batch([*arrays, list(range(rows))], ["a", "b", "c", "row"])
    borders = data.draw(st.lists(st.integers(0, rows), max_size=5))
    assert groups_of(cut(batch, borders), RowOrder((0, 1, 2))) == expected_groups([key for key, _ in table])


def test_a_group_may_fill_many_batches_and_end_at_the_border_of_one() -> None:
    keys = [1, *[2] * 1000, 3, 3, 4]
    for borders in ([1, 1001, 1003], [*range(0, 1001, 7)], [500], []):
        found = groups_of(cut(keyed(keys), borders))
        assert found == [[0], list(range(1, 1001)), [1001, 1002], [1003]]


def test_every_row_a_group_of_its_own() -> None:
    assert groups_of(cut(keyed(list(range(5000))), [1, 2, 2500])) == [[row] for row in range(5000)]


@pytest.mark.parametrize("batches", [[], [keyed([]).slice(0)], [keyed([]), keyed([])]])
@pytest.mark.parametrize("order", [BY_KEY, RowOrder(())])
def test_without_rows_there_are_no_groups(batches: list[pa.RecordBatch], order: RowOrder) -> None:
    assert list(group_tables(iter(batches), order)) == []
    assert list(group_batches(iter(batches), order)) == []


def test_empty_batches_neither_end_nor_begin_a_group() -> None:
    empty = keyed(pa.array([], pa.int64()))
    parts = cut(keyed([1, 1, 2]), [1, 2])
    assert groups_of([empty, parts[0], empty, empty, parts[1], parts[2], empty]) == [[0, 1], [2]]


def test_without_keys_all_rows_are_one_group() -> None:
    assert groups_of(cut(keyed([3, 1, 2]), [1]), RowOrder(())) == [[0, 1, 2]]


def test_rows_without_columns_are_one_group_without_keys() -> None:
    (table,) = group_tables(iter([keyed([1, 2, 3]).select([])] * 4), RowOrder(()))
    assert (table.num_rows, table.num_columns) == (12, 0)


def test_nulls_are_a_group_and_so_are_nans_and_zeros_of_either_sign() -> None:
    values = pa.array([None, None, -0.0, 0.0, -0.0, math.inf, math.nan, -math.nan], from_pandas=False)
    for borders in ([], [1, 3, 7], list(range(9))):
        assert groups_of(cut(keyed(values), borders)) == [[0, 1], [2, 3, 4], [5], [6, 7]]


def test_a_null_struct_is_another_group_than_a_struct_of_nulls() -> None:
    kind = pa.struct([("a", pa.int64())])
    values = pa.array([None, None, {"a": None}, {"a": None}, {"a": 1}], kind)
    for borders in ([], [1, 2, 3]):
        assert groups_of(cut(keyed(values), borders)) == [[0, 1], [2, 3], [4]]


def test_tables_have_the_schema_of_the_batches_and_all_of_their_columns() -> None:
    schema = pa.schema([("key", pa.int64()), ("list", pa.list_(pa.string()))], metadata={"who": "me"})
    batch = pa.record_batch([[1, 1, 2], [["a"], None, ["b", "c"]]], schema=schema)
    first, second = group_tables(iter([batch]), BY_KEY)
    assert first.schema.equals(schema, check_metadata=True)
    assert first.to_pylist() == [{"key": 1, "list": ["a"]}, {"key": 1, "list": None}]
    assert second.to_pylist() == [{"key": 2, "list": ["b", "c"]}]


def test_a_key_may_be_any_column() -> None:
    batch = pa.record_batch({"row": [0, 1, 2], "key": ["x", "x", "y"]})
    assert groups_of([batch], RowOrder((1,))) == [[0, 1], [2]]


def test_rows_of_a_group_are_not_copied() -> None:
    batch = pa.record_batch([np.repeat(np.arange(10), 100)], ["key"])
    _, values = batch.column(0).buffers()
    for table in group_tables(iter([batch]), BY_KEY):
        (chunk,) = table["key"].chunks
        assert chunk.buffers()[1].address == values.address


def test_the_stream_is_read_no_further_than_to_the_next_key() -> None:
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(cut(keyed([1, 1, 1, 2, 2, 3]), [1, 2, 4, 5])):
            read.append(number)
            yield batch

    tables = group_tables(batches(), BY_KEY)
    assert read == []
    seen = [(table["row"].to_pylist(), list(read)) for table in tables]
    assert seen == [([0, 1, 2], [0, 1, 2]), ([3, 4], [0, 1, 2, 3, 4]), ([5], [0, 1, 2, 3, 4])]


def test_an_error_of_the_stream_comes_behind_the_groups_that_were_complete() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield keyed([1, 2, 2])
        raise OSError("lost")

    tables = group_tables(batches(), BY_KEY)
    assert next(tables)["row"].to_pylist() == [0]
    with pytest.raises(OSError, match="lost"):
        next(tables)


# --- iterators of a group's batches -------------------------------------------------------------------


@given(data=st.data())
def test_what_is_not_taken_of_a_group_is_skipped(data: st.DataObject) -> None:
    keys = sorted(data.draw(st.lists(st.sampled_from([None, 1, 2, 3]), max_size=30)), key=INT64.key)
    batches = cut(
        keyed(pa.array(keys, pa.int64())), data.draw(st.lists(st.integers(0, len(keys)), max_size=8))
    )
    whole = expected_groups(keys)
    groups = group_batches(iter(batches), BY_KEY)
    for expected in whole:
        group = next(groups)
        taken = [part["row"].to_pylist() for part in itertools.islice(group, data.draw(st.integers(0, 3)))]
        assert expected[: sum(map(len, taken))] == [row for part in taken for row in part]
    assert next(groups, None) is None


def test_batches_of_a_group_are_those_of_the_stream() -> None:
    batches = cut(keyed([1, 1, 1, 2, 2, 3]), [1, 2, 4, 5])
    found = [[part["row"].to_pylist() for part in group] for group in group_batches(iter(batches), BY_KEY)]
    assert found == [[[0], [1], [2]], [[3], [4]], [[5]]]


def test_an_iterator_is_at_its_end_when_the_next_group_is_asked_for() -> None:
    groups = group_batches(iter(cut(keyed([1, 1, 2, 2]), [1, 3])), BY_KEY)
    first = next(groups)
    assert next(first)["row"].to_pylist() == [0]
    second = next(groups)
    assert list(first) == []
    assert [part["row"].to_pylist() for part in second] == [[2], [3]]
    last = next(groups, None)
    assert last is None
    assert list(second) == []


def test_an_untouched_last_group_is_at_its_end_when_the_stream_is() -> None:
    groups = group_batches(iter([keyed([1])]), BY_KEY)
    only = next(groups)
    assert next(groups, None) is None
    assert list(only) == []


def test_no_more_of_a_group_is_read_than_was_asked_for() -> None:
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(cut(keyed([1, 1, 1, 2]), [1, 2])):
            read.append(number)
            yield batch

    group = next(group_batches(batches(), BY_KEY))
    assert read == [0]
    next(group)
    assert read == [0]
    next(group)
    assert read == [0, 1]


def test_a_group_of_any_length_is_held_by_the_batch() -> None:
    alive: list[weakref.ref[pa.Buffer]] = []
    most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            keys = np.zeros(100, np.int64)
            alive.append(weakref.ref(keys))
            yield pa.record_batch([pa.array(keys)], ["key"])

    for group in group_batches(batches(), BY_KEY):
        rows = 0
        for part in group:
            rows += part.num_rows
            del part
            most = max(most, sum(each() is not None for each in alive))
    assert (rows, len(alive)) == (2000, 20)
    assert most <= 2


def test_the_parts_of_a_table_are_let_go_with_it() -> None:
    alive: list[weakref.ref[Any]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for key in (1, 1, 1, 2, 2):
            keys = np.full(100, key)
            alive.append(weakref.ref(keys))
            yield pa.record_batch([pa.array(keys)], ["key"])

    held = []
    for table in group_tables(batches(), BY_KEY):
        del table
        held.append(sum(each() is not None for each in alive))
    assert held[0] <= 1  # the batch in which the next group begins
    assert held[1] == 0


def test_keys_and_rows_of_one_group_after_the_other() -> None:
    groups = Groups(iter(cut(keyed(pa.array([None, None, 5, 6], pa.int64())), [1])), BY_KEY)
    found = []
    while groups.next():
        found.append((groups.key(), sum(part.num_rows for part in groups.rows())))
    assert [rows for _, rows in found] == [2, 1, 1]
    assert sorted(key for key, _ in found) == [key for key, _ in found]
    assert not groups.next()
