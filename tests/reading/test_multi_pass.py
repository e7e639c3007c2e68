"""Thousands of sorted runs: merged within the read budget and with few open files, in the same order whatever
the memory, with no more written than must be, and with nothing left behind wherever it ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import names, open_files, small_disk
from hypothesis import given
from hypothesis import strategies as st
from map_outputs import MIB, Consumer, MapOutput, consumer_of, files_in, reading_threads, write_map

from sortshuffle.errors import InsufficientBuffersError, MissingDataError, OutOfDiskError
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading import run_memory
from sortshuffle.reading.gate import InputGate

BY_KEY = RowOrder((0,))
SCHEMA = pa.schema([("key", pa.int64()), ("run", pa.int32()), ("position", pa.int32())])


def run_of(keys: Sequence[int], number: int) -> pa.RecordBatch:
    places = [np.full(len(keys), number, np.int32), np.arange(len(keys), dtype=np.int32)]
    return pa.record_batch([np.sort(np.asarray(keys, np.int64)), *places], schema=SCHEMA)


def outputs_of(
    directory: Path, runs: Sequence[pa.RecordBatch], *, per_file: int = 1, message: int = 10**6
) -> list[MapOutput]:
    """Map outputs with these runs as regions, cut into messages of so many rows."""
    regions = [{0: [run.slice(at, message) for at in range(0, run.num_rows, message)]} for run in runs]
    return [
        write_map(directory, SCHEMA, regions[start : start + per_file], map_index=start // per_file)
        for start in range(0, len(regions), per_file)
    ]


def random_runs(count: int, rows: int, distinct: int = 10**9) -> list[pa.RecordBatch]:
    random = np.random.default_rng(11)
    return [run_of(random.integers(0, distinct, rows), number) for number in range(count)]


def stable_sort(runs: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(runs)
    return table.take(pa.array(np.argsort(np.asarray(table["key"]), kind="stable")))


def merged(consumer: Consumer) -> pa.Table:
    return pa.Table.from_batches(consumer.gate.sorted_batches(BY_KEY), SCHEMA)


def assert_nothing_is_left(consumer: Consumer, directory: Path) -> None:
    assert consumer.budget.used == 0
    assert reading_threads() == []
    assert open_files(directory) == []
    assert [name for name in names(directory) if name.startswith("merge-")] == []


class CountingPayload(ArrowPayload):
    """Looks now and then how many descriptors the process has."""

    def __init__(self) -> None:
        super().__init__(SCHEMA, Codec.LZ4)
        self.most = 0
        self._calls = 0

    def decode(self, *arguments: Any) -> pa.RecordBatch:
        self._calls += 1
        if self._calls % 20 == 0:
            self.most = max(self.most, len(os.listdir("/proc/self/fd")))
        return super().decode(*arguments)


# --- bounded -----------------------------------------------------------------------------------------------


def test_five_thousand_runs_in_as_many_files_are_merged_in_16_mib(tmp_path: Path) -> None:
    runs = random_runs(5000, 5)
    payload = CountingPayload()
    consumer = consumer_of(outputs_of(tmp_path, runs), memory=16 * MIB, payload=payload)
    before = len(os.listdir("/proc/self/fd"))
    assert merged(consumer).equals(stable_sort(runs))
    assert consumer.budget.peak <= 16 * MIB
    assert payload.most - before < 20
    assert consumer.metrics.counts["merge_passes"] == 2
    assert consumer.metrics.counts["extents_read"] == 5000
    assert_nothing_is_left(consumer, tmp_path)


@pytest.mark.parametrize("memory", [MIB // 2, MIB, 4 * MIB, 16 * MIB])
def test_the_budget_is_kept_by_every_pass(tmp_path: Path, memory: int) -> None:
    runs = random_runs(500, 1000)
    consumer = consumer_of(outputs_of(tmp_path, runs, per_file=50, message=300), memory=memory)
    last = -1
    rows = 0
    for batch in consumer.gate.sorted_batches(BY_KEY):
        keys = np.asarray(batch.column(0))
        assert keys[0] >= last
        assert (np.diff(keys) >= 0).all()
        last = keys[-1]
        rows += batch.num_rows
        assert consumer.budget.used <= memory
    assert rows == 500_000
    assert memory // 4 < consumer.budget.peak <= memory
    assert consumer.metrics.counts["merge_passes"] > 1
    assert_nothing_is_left(consumer, tmp_path)


def test_no_more_files_are_open_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed runs with memory enough for all of them."""
    monkeypatch.setattr(run_memory, "MOST_OPEN_FILES", 10)
    runs = random_runs(60, 20_000)
    payload = CountingPayload()
    consumer = consumer_of(outputs_of(tmp_path, runs, message=200), memory=10 * MIB, payload=payload)
    before = len(os.listdir("/proc/self/fd"))
    assert merged(consumer).equals(stable_sort(runs))
    assert 10 <= payload.most - before <= 10 + 8
    assert consumer.metrics.counts["merge_passes"] > 1
    assert_nothing_is_left(consumer, tmp_path)


def test_the_file_of_a_pass_is_freed_when_the_next_has_read_it(tmp_path: Path) -> None:
    runs = random_runs(400, 500)
    consumer = consumer_of(outputs_of(tmp_path, runs, per_file=400), memory=MIB // 2)
    batches = consumer.gate.sorted_batches(BY_KEY)
    next(batches)
    assert consumer.metrics.counts["merge_passes"] > 3
    deleted = [name for name in open_files(tmp_path) if name.endswith("(deleted)")]
    assert 1 <= len(deleted) <= 2  # of the last pass, and of one whose runs it had no need to merge
    list(batches)
    assert_nothing_is_left(consumer, tmp_path)


# --- the same order whatever the memory --------------------------------------------------------------------


@given(data=st.data())
def test_the_order_is_that_of_a_stable_sort_whatever_the_memory(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = st.lists(st.integers(0, 9), min_size=1, max_size=8)
    runs = [run_of(each, n) for n, each in enumerate(data.draw(st.lists(keys, min_size=1, max_size=30)))]
    directory = tmp_path_factory.mktemp("runs")
    outputs = outputs_of(
        directory, runs, per_file=data.draw(st.integers(1, 5)), message=data.draw(st.integers(1, 8))
    )
    memory = data.draw(st.sampled_from([1, 20 * KIB, 50 * KIB, 100 * KIB, MIB]))
    consumer = consumer_of(outputs, memory=memory)
    assert merged(consumer).equals(stable_sort(runs))
    assert_nothing_is_left(consumer, directory)


def test_equal_keys_of_many_runs_come_by_run_and_position_through_several_passes(tmp_path: Path) -> None:
    runs = random_runs(300, 200, distinct=5)
    consumer = consumer_of(outputs_of(tmp_path, runs, per_file=30, message=70), memory=MIB // 4)
    assert merged(consumer).equals(stable_sort(runs))
    assert consumer.metrics.counts["merge_passes"] > 2


def test_with_memory_for_nothing_two_runs_are_merged_at_a_time(tmp_path: Path) -> None:
    runs = random_runs(9, 10)
    consumer = consumer_of(outputs_of(tmp_path, runs), memory=1)
    assert merged(consumer).equals(stable_sort(runs))
    assert consumer.metrics.counts["merge_passes"] == 4  # 9, 5, 3, 2 runs


def test_rows_without_columns_keep_their_number(tmp_path: Path) -> None:
    rows = run_of(range(7), 0).select([])
    outputs = [write_map(tmp_path, rows.schema, [{0: [rows]}], map_index=n) for n in range(20)]
    consumer = consumer_of(outputs, memory=1)
    assert sum(each.num_rows for each in consumer.gate.sorted_batches(RowOrder(()))) == 140
    assert consumer.metrics.counts["merge_passes"] > 1


# --- no more than must be ----------------------------------------------------------------------------------


def test_runs_that_fit_are_merged_in_one_pass_without_a_file(tmp_path: Path) -> None:
    runs = random_runs(100, 50)
    consumer = consumer_of(outputs_of(tmp_path, runs, per_file=20))
    assert merged(consumer).equals(stable_sort(runs))
    assert consumer.metrics.counts["merge_passes"] == 1
    assert "bytes_spilled" not in consumer.metrics.counts


def test_only_so_many_runs_are_put_aside_that_the_rest_fits(tmp_path: Path) -> None:
    runs = random_runs(100, 3000)
    outputs = outputs_of(tmp_path, runs, per_file=25)
    demands = run_memory.Demands.of(BY_KEY, SCHEMA)
    all_held = sum(
        demands.held(run_memory.RunSize.of([extent])) for o in outputs for extent in o.channel().extents
    )
    consumer = consumer_of(outputs, memory=all_held * 9 // 10)
    assert merged(consumer).equals(stable_sort(runs))
    counts = consumer.metrics.counts
    assert counts["merge_passes"] == 2
    assert 0 < counts["bytes_spilled"] < counts["bytes_read"] // 2


def test_every_row_is_written_at_most_once_in_each_pass_that_is_not_the_last(tmp_path: Path) -> None:
    runs = random_runs(1000, 100)
    written = 0

    class WitnessPayload(ArrowPayload):
        def encode(self, batch: pa.RecordBatch, seconds: Any) -> Any:
            nonlocal written
            written += batch.num_rows
            return super().encode(batch, seconds)

    consumer = consumer_of(
        outputs_of(tmp_path, runs, per_file=100), memory=MIB, payload=WitnessPayload(SCHEMA, Codec.LZ4)
    )
    assert merged(consumer).equals(stable_sort(runs))
    passes = consumer.metrics.counts["merge_passes"]
    assert 2 <= passes <= 4
    assert written <= (passes - 1) * 100_000
    assert consumer.metrics.counts["rows_read"] == 100_000


# --- without a place to put rows ---------------------------------------------------------------------------


def gate_without_files(outputs: Sequence[MapOutput], memory: int) -> InputGate:
    channels = [output.channel() for output in outputs]
    return InputGate(channels, outputs[0].payload, MemoryBudget(memory), 2, TaskMetrics())


def test_without_a_place_to_put_rows_a_merge_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    outputs = outputs_of(tmp_path, random_runs(40, 100), per_file=10)
    with pytest.raises(
        InsufficientBuffersError,
        match=r"merging 40 sorted runs takes .* [KM]iB and 0 open files, where there are 20\.0 KiB and 256"
        r".*spark\.sortshuffle\.read\.memory",
    ):
        list(gate_without_files(outputs, 20 * KIB).sorted_batches(BY_KEY))


def test_without_a_place_to_put_rows_what_fits_is_merged_and_so_are_two_runs_in_any_case(
    tmp_path: Path,
) -> None:
    runs = random_runs(40, 100)
    outputs = outputs_of(tmp_path, runs)
    whole = gate_without_files(outputs, 10 * MIB).sorted_batches(BY_KEY)
    assert pa.Table.from_batches(whole).equals(stable_sort(runs))
    two = gate_without_files(outputs[:2], 1).sorted_batches(BY_KEY)
    assert pa.Table.from_batches(two).equals(stable_sort(runs[:2]))


# --- how it ends -------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Not an error that anybody could handle."""


class FailingPayload(ArrowPayload):
    """Fails at one of its calls, encoding or decoding."""

    def __init__(self, fail_at: int) -> None:
        super().__init__(SCHEMA, Codec.LZ4)
        self.calls = 0
        self._fail_at = fail_at

    def decode(self, *arguments: Any) -> pa.RecordBatch:
        self._count()
        return super().decode(*arguments)

    def encode(self, *arguments: Any) -> Any:
        self._count()
        return super().encode(*arguments)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._fail_at:
            raise Stop


def test_a_failure_at_any_point_leaves_nothing_behind(tmp_path: Path) -> None:
    """Reading map outputs, writing and reading back, in each of three passes."""
    runs = random_runs(12, 40)
    outputs = outputs_of(tmp_path, runs, per_file=4, message=20)
    whole = consumer_of(outputs, memory=1, payload=(counting := FailingPayload(0)))
    assert merged(whole).equals(stable_sort(runs))
    assert whole.metrics.counts["merge_passes"] == 4
    for fail_at in range(1, counting.calls + 1):
        consumer = consumer_of(outputs, memory=1, payload=FailingPayload(fail_at))
        with pytest.raises(Stop):
            merged(consumer)
        assert_nothing_is_left(consumer, tmp_path)


@pytest.mark.parametrize("memory", [MIB, 4 * MIB, 64 * MIB])
@pytest.mark.parametrize("taken", [0, 1, 2, 9])
def test_closing_at_any_point_leaves_nothing_behind(tmp_path: Path, memory: int, taken: int) -> None:
    outputs = outputs_of(tmp_path, random_runs(200, 1000), per_file=20, message=100)
    consumer = consumer_of(outputs, memory=memory)
    batches = consumer.gate.sorted_batches(BY_KEY)
    for _ in range(taken):
        next(batches, None)
    batches.close()  # type: ignore[attr-defined]
    assert_nothing_is_left(consumer, tmp_path)


@pytest.mark.parametrize("lost", [0, 7, 19])
def test_a_lost_file_is_an_error_with_its_name_and_leaves_nothing_behind(tmp_path: Path, lost: int) -> None:
    outputs = outputs_of(tmp_path, random_runs(20, 1000))
    consumer = consumer_of(outputs, memory=MIB // 4)
    outputs[lost].file.delete()
    with pytest.raises(MissingDataError) as caught:
        merged(consumer)
    assert caught.value.place.file == outputs[lost].file.data_path
    assert_nothing_is_left(consumer, tmp_path)


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    outputs = outputs_of(tmp_path, random_runs(100, 3000), per_file=20)
    with small_disk(tmp_path / "small", "size=512k") as disk:
        budget = MemoryBudget(MIB)
        channels = [output.channel() for output in outputs]
        gate = InputGate(channels, outputs[0].payload, budget, 2, TaskMetrics(), files_in(disk))
        with pytest.raises(OutOfDiskError) as caught:
            list(gate.sorted_batches(BY_KEY))
        assert caught.value.path == str(disk)
        assert budget.used == 0
        assert names(disk) == open_files(tmp_path) == []


def test_a_place_that_cannot_be_had_is_the_owners_error(tmp_path: Path) -> None:
    def nowhere(header: Any) -> Any:
        raise OutOfDiskError("/nowhere", 1, 0)

    outputs = outputs_of(tmp_path, random_runs(40, 100), per_file=10)
    budget = MemoryBudget(20 * KIB)
    channels = [output.channel() for output in outputs]
    gate = InputGate(channels, outputs[0].payload, budget, 2, TaskMetrics(), nowhere)
    with pytest.raises(OutOfDiskError, match="/nowhere"):
        list(gate.sorted_batches(BY_KEY))
    assert budget.used == 0
