"""Sorting a stream within a budget: the order of a stable sort whatever the memory, files only where they are
needed, nothing held or left behind wherever it ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import names, open_files, small_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import KEY_CASES, directed, sort_keys
from map_outputs import MIB, files_in
from random_tables import batches

from sortshuffle.compute.external_sort import PIECES_IN_BUDGET, ExternalSort
from sortshuffle.errors import OutOfDiskError
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.arrow import BATCH_ROWS, ArrowPayload
from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.reading.spill import NewFile

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), ("position", pa.int64())])
BY_KEY = RowOrder((0,))


def no_file(header: Any) -> Any:
    raise AssertionError("a file for rows that fit into memory")


def sort_of(
    memory: int, new_file: NewFile, order: RowOrder = BY_KEY, schema: pa.Schema = SCHEMA
) -> ExternalSort:
    return ExternalSort(order, ArrowPayload(schema, Codec.LZ4), MemoryBudget(memory), TaskMetrics(), new_file)


def random_rows(rows: int, distinct: int = 1000, seed: int = 5) -> pa.RecordBatch:
    """About 50 bytes each in Arrow."""
    keys = np.random.default_rng(seed).integers(0, distinct, rows)
    texts = [f"some text of row {position:12d}" for position in range(rows)]
    return pa.record_batch([pa.array(keys), pa.array(texts), pa.array(range(rows))], schema=SCHEMA)


def cut(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def stably_sorted(batch: pa.RecordBatch, descending: bool = False) -> pa.RecordBatch:
    keys = np.asarray(batch["key"])
    return batch.take(pa.array(np.argsort(-keys if descending else keys, kind="stable")))


def result(found: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_batches(found, schema)


# --- the order ----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data())
def test_any_rows_come_in_the_order_of_a_stable_sort_whatever_the_memory(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases = data.draw(st.lists(st.sampled_from(KEY_CASES), min_size=1, max_size=2))
    keys = data.draw(sort_keys(len(cases)))
    count = data.draw(st.integers(0, 60))
    columns = [data.draw(case.lists(min_size=count, max_size=count)) for case in cases]
    arrays = [case.array(column) for case, column in zip(cases, columns, strict=True)]
    whole = pa.RecordBatch.from_arrays(
        [*arrays, pa.array(range(count), pa.int64())], [*"ab"[: len(cases)], "n"]
    )
    borders = [0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=8))), count]
    pieces = [whole.slice(a, b - a) for a, b in itertools.pairwise(borders)]
    memory = data.draw(st.sampled_from([1, 2 * KIB, 16 * KIB, MIB]))
    directory = tmp_path_factory.mktemp("sort")
    sort = sort_of(memory, files_in(directory), RowOrder(keys), whole.schema)
    found = result(sort.sorted(pieces), whole.schema)
    place = directed(keys, cases)
    rows = list(zip(*columns, strict=True))
    assert found["n"].to_pylist() == sorted(range(count), key=lambda n: place(rows[n]))
    assert sort.memory.used == 0
    assert names(directory) == open_files(directory) == []


@given(data=st.data())
def test_rows_of_any_types_are_carried_along(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = data.draw(batches(max_rows=30))
    keys = data.draw(st.lists(st.integers(0, 3), min_size=rows.num_rows, max_size=rows.num_rows))
    whole = rows.append_column("key", pa.array(keys, pa.int64()))
    memory = data.draw(st.sampled_from([1, MIB]))
    order = RowOrder((whole.num_columns - 1,))
    sort = sort_of(memory, files_in(tmp_path_factory.mktemp("sort")), order, whole.schema)
    found = result(sort.sorted(cut(whole, 7)), whole.schema)
    found.validate(full=True)
    by_hand = sorted(range(len(keys)), key=keys.__getitem__)
    assert found.equals(pa.Table.from_batches([whole.take(pa.array(by_hand, pa.int64()))]))


@pytest.mark.parametrize("given_", [[], [random_rows(0)], [random_rows(0)] * 3])
def test_without_rows_there_are_no_batches(given_: list[pa.RecordBatch]) -> None:
    assert list(sort_of(MIB, no_file).sorted(given_)) == []


# --- memory and files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [100, 30_000, 10**6])
def test_rows_that_fit_are_sorted_without_a_file_and_come_in_batches_worth_a_call(pieces: int) -> None:
    whole = random_rows(50_000)
    sort = sort_of(32 * MIB, no_file)
    found = list(sort.sorted(cut(whole, pieces)))
    assert [batch.num_rows for batch in found] == [BATCH_ROWS, BATCH_ROWS, 10_000]
    assert result(found).equals(pa.Table.from_batches([stably_sorted(whole)]))
    assert sort.memory.used == 0
    assert sort.memory.peak <= sort.memory.limit
    assert sort.metrics.counts["bytes_spilled"] == sort.metrics.counts["merge_passes"] == 0
    assert {"gather", "sort", "take"} == set(sort.metrics.seconds)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("pieces", [50, 20_000, 10**6])
def test_more_rows_than_fit_go_through_one_file_within_the_budget(
    tmp_path: Path, pieces: int, descending: bool
) -> None:
    whole = random_rows(200_000)  # 10 MB
    sort = sort_of(3 * MIB, files_in(tmp_path), RowOrder([SortKey(0, descending)]))
    running = sort.sorted(cut(whole, pieces))
    found = [next(running)]
    assert len(open_files(tmp_path)) == 1
    found += running
    assert result(found).equals(pa.Table.from_batches([stably_sorted(whole, descending)]))
    assert sort.memory.used == 0
    assert sort.memory.peak <= 1.05 * sort.memory.limit
    assert sort.metrics.counts["bytes_spilled"] > MIB
    assert sort.metrics.counts["merge_passes"] == 1
    assert names(tmp_path) == open_files(tmp_path) == []


def test_more_runs_than_can_be_merged_at_once_take_several_passes(tmp_path: Path) -> None:
    whole = random_rows(60_000)
    sort = sort_of(128 * KIB, files_in(tmp_path))
    assert result(sort.sorted(cut(whole, 1000))).equals(pa.Table.from_batches([stably_sorted(whole)]))
    assert sort.metrics.counts["merge_passes"] > 1
    assert sort.memory.used == 0


def test_a_run_is_as_long_as_memory_allows(tmp_path: Path) -> None:
    """What can be sorted at once is not cut into more runs than that."""
    whole = random_rows(100_000)
    sort = sort_of(4 * MIB, files_in(tmp_path))
    runs: list[int] = []

    class Counting(ExternalSort):
        def _in_order(self, held: Any, *limits: int) -> Any:
            runs.append(held.rows)
            return ExternalSort._in_order(self, held, *limits)

    counting = Counting(sort.order, sort.payload, sort.memory, sort.metrics, sort.new_file)
    assert result(counting.sorted(cut(whole, 1000))).num_rows == 100_000
    size = whole.nbytes / whole.num_rows
    # twice the rows and what finding their order takes, and a piece that did not fit any more
    longest = 4 * MIB / (2 * size + 84)
    assert all(0.9 * longest - 1000 <= rows <= longest for rows in runs[:-1])
    assert sum(runs) == 100_000


def test_a_large_batch_is_taken_over_in_pieces(tmp_path: Path) -> None:
    whole = random_rows(100_000)
    sort = sort_of(MIB, files_in(tmp_path))
    assert result(sort.sorted([whole])).equals(pa.Table.from_batches([stably_sorted(whole)]))
    assert sort.memory.peak <= (1 + 1 / PIECES_IN_BUDGET) * MIB


def test_rows_larger_than_the_budget_are_sorted_one_by_one(tmp_path: Path) -> None:
    keys = [3, 1, 2, 1]
    texts = [str(number) * 50_000 for number in range(4)]
    whole = pa.record_batch([pa.array(keys), pa.array(texts), pa.array(range(4))], schema=SCHEMA)
    sort = sort_of(8 * KIB, files_in(tmp_path))
    assert result(sort.sorted([whole])).equals(pa.Table.from_batches([stably_sorted(whole)]))
    assert sort.memory.used == 0


# --- how it ends --------------------------------------------------------------------------------------------


def test_closing_it_early_lets_go_of_everything(tmp_path: Path) -> None:
    whole = random_rows(100_000)
    for memory in (MIB, 64 * MIB):
        sort = sort_of(memory, files_in(tmp_path))
        running = sort.sorted(cut(whole, 5000))
        assert next(running).num_rows
        assert sort.memory.used > 0
        running.close()
        assert sort.memory.used == 0
        assert names(tmp_path) == open_files(tmp_path) == []


@pytest.mark.parametrize("good", [1, 90])
def test_an_input_that_fails_leaves_nothing_behind(tmp_path: Path, good: int) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from itertools.islice(cut(random_rows(100_000), 1000), good)
        raise ValueError("no more rows")

    sort = sort_of(MIB, files_in(tmp_path))
    with pytest.raises(ValueError, match="no more rows"):
        list(sort.sorted(failing()))
    assert sort.memory.used == 0
    assert names(tmp_path) == open_files(tmp_path) == []


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "size=512k") as disk:
        sort = sort_of(MIB, files_in(disk))
        with pytest.raises(OutOfDiskError) as caught:
            list(sort.sorted(cut(random_rows(100_000), 1000)))
        assert caught.value.path == str(disk)
        assert sort.memory.used == 0
        assert names(disk) == open_files(tmp_path) == []
