"""All map outputs of one consumer: rows come in a fixed order whatever the order in which fetches finish and
however little memory there is, every error says where, and neither threads, descriptors nor charges stay
behind. With the writing side at the other end: rows of every type go through whole partitions."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import AllTo, Modulo, changed, names, new_output, open_files
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import KEY_CASES, KeyCase
from map_outputs import (
    ALL_CODECS,
    MIB,
    Consumer,
    MapOutput,
    consumer_of,
    files_in,
    reading_threads,
    rows_of,
    write_map,
)
from random_tables import batches

from sortshuffle.errors import CorruptDataError, MissingDataError
from sortshuffle.format.buffer import StoredBuffer
from sortshuffle.format.header import Codec
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading import fetcher
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.gate import BATCH_BYTES, BATCH_ROWS, InputGate, join_small
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.reader import read_index

PATIENCE = 30.0  # seconds until a test that would wait for ever fails instead
BY_NUMBER = RowOrder((0,))
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])

Deliver = Callable[[InputGate], Iterator[pa.RecordBatch]]


def as_written(gate: InputGate) -> Iterator[pa.RecordBatch]:
    return gate.batches()


def in_order(gate: InputGate) -> Iterator[pa.RecordBatch]:
    return gate.sorted_batches(BY_NUMBER)


BOTH_WAYS = pytest.mark.parametrize("deliver", [as_written, in_order])
MEMORIES = pytest.mark.parametrize("memory", [MIB // 8, MIB, 64 * MIB])


def batch(start: int, rows: int, wide: int = 0) -> pa.RecordBatch:
    """Rows that tell their place, with ``wide`` more bytes each."""
    numbers = range(start, start + rows)
    return pa.record_batch([list(numbers), [f"{n} {'x' * wide}" for n in numbers]], schema=SCHEMA)


def numbers_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for found in batches for number in found.column(0).to_pylist()]


def maps(
    directory: Path,
    count: int,
    *,
    regions: int = 2,
    messages: int = 3,
    rows: int = 20,
    wide: int = 0,
    codec: Codec = Codec.LZ4,
) -> list[MapOutput]:
    """Map outputs whose rows are numbered in the order in which they must be delivered."""
    outputs = []
    start = 0
    for map_index in range(count):
        written = []
        for _ in range(regions):
            written.append({0: [batch(start + n * rows, rows, wide) for n in range(messages)]})
            start += messages * rows
        outputs.append(write_map(directory, SCHEMA, written, map_index=map_index, codec=codec))
    return outputs


def assert_nothing_is_left(consumer: Consumer, directory: Path) -> None:
    assert consumer.budget.used == 0
    assert reading_threads() == []
    assert open_files(directory) == []
    assert [name for name in names(directory) if name.startswith("merge-")] == []


# --- the order ---------------------------------------------------------------------------------------------


class HoldingPayload(ArrowPayload):
    """Lets no map output be decoded before those behind it are: they finish in reverse."""

    def __init__(self, schema: pa.Schema, codec: Codec, maps: int, rows: int) -> None:
        super().__init__(schema, codec)
        self._done = [threading.Event() for _ in range(maps)]
        self._rows = rows
        self.finished: list[int] = []

    def decode(self, extent: pa.Buffer, buffer: StoredBuffer, seconds: Counter[str]) -> pa.RecordBatch:
        found = super().decode(extent, buffer, seconds)
        number = found.column(0)[0].as_py() // self._rows
        if number + 1 < len(self._done):
            assert self._done[number + 1].wait(PATIENCE)
        self.finished.append(number)
        self._done[number].set()
        return found


@BOTH_WAYS
def test_rows_come_in_the_order_of_the_maps_when_fetches_finish_in_reverse(
    tmp_path: Path, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "GROUP_BYTES", 1)  # each fetch in a thread of its own
    outputs = maps(tmp_path, 6, regions=1, messages=1)
    payload = HoldingPayload(SCHEMA, Codec.LZ4, 6, rows=20)
    consumer = consumer_of(outputs, payload=payload, threads=6)
    assert numbers_of(deliver(consumer.gate)) == list(range(120))
    assert payload.finished == [5, 4, 3, 2, 1, 0]
    assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
@MEMORIES
@pytest.mark.parametrize("codec", ALL_CODECS)
def test_rows_come_by_map_index_region_and_position_whatever_the_memory(
    tmp_path: Path, deliver: Deliver, memory: int, codec: Codec
) -> None:
    outputs = maps(tmp_path, 5, regions=3, messages=4, rows=50, wide=200, codec=codec)
    shuffled = [outputs[number] for number in (3, 0, 4, 2, 1)]
    consumer = consumer_of(shuffled, memory=memory)
    assert numbers_of(deliver(consumer.gate)) == list(range(3000))
    assert_nothing_is_left(consumer, tmp_path)


@MEMORIES
def test_equal_keys_come_by_map_index_region_and_position_whatever_the_memory(
    tmp_path: Path, memory: int
) -> None:
    random = np.random.default_rng(6)
    outputs, everything = [], []
    for map_index in range(4):
        regions = []
        for _ in range(3):
            keys = np.sort(random.integers(0, 30, 2000))
            place = range(len(everything), len(everything) + len(keys))
            run = pa.record_batch([keys, [f"{n} {'x' * 40}" for n in place]], schema=SCHEMA)
            everything += run.to_pylist()
            regions.append({0: [run.slice(at, 300) for at in range(0, 2000, 300)]})
        outputs.append(write_map(tmp_path, SCHEMA, regions, map_index=map_index))
    consumer = consumer_of(outputs, memory=memory)
    assert consumer.sorted_rows(BY_NUMBER) == sorted(everything, key=lambda row: row["number"])
    assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
def test_many_map_outputs_are_read(tmp_path: Path, deliver: Deliver) -> None:
    consumer = consumer_of(maps(tmp_path, 200, regions=1, messages=1, rows=3))
    assert numbers_of(deliver(consumer.gate)) == list(range(600))
    assert consumer.metrics.counts["extents_read"] == 200
    assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
def test_a_consumer_gets_its_subpartition_only(tmp_path: Path, deliver: Deliver) -> None:
    outputs = [
        write_map(tmp_path, SCHEMA, [{0: [batch(0, 5)], 2: [batch(5, 5)]}], map_index=0, subpartitions=3),
        write_map(tmp_path, SCHEMA, [{2: [batch(10, 5)]}, {1: [batch(15, 5)]}], map_index=1, subpartitions=3),
    ]
    found = [numbers_of(deliver(consumer_of(outputs, subpartition=s).gate)) for s in range(3)]
    assert found == [list(range(5)), list(range(15, 20)), list(range(5, 15))]


@BOTH_WAYS
def test_without_extents_there_are_no_batches(tmp_path: Path, deliver: Deliver) -> None:
    payload = ArrowPayload(SCHEMA, Codec.LZ4)
    assert list(deliver(InputGate([], payload, MemoryBudget(MIB), 4, TaskMetrics()))) == []
    empty = write_map(tmp_path, SCHEMA, [])
    assert list(deliver(consumer_of([empty, empty]).gate)) == []


@MEMORIES
def test_rows_without_columns_keep_their_number(tmp_path: Path, memory: int) -> None:
    schema = pa.schema([])
    outputs = [
        write_map(tmp_path, schema, [{0: [batch(0, 70).select([])] * 3}], map_index=n) for n in range(4)
    ]
    for found in (
        consumer_of(outputs, memory=memory).gate.batches(),
        consumer_of(outputs, memory=memory).gate.sorted_batches(RowOrder(())),
    ):
        assert sum(each.num_rows for each in found) == 4 * 3 * 70


# --- batches that are worth a call -------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2 * BATCH_ROWS), max_size=12), st.integers(0, 100))
def test_small_batches_are_joined_and_large_ones_pass(sizes: list[int], width: int) -> None:
    whole = pa.record_batch(
        [np.arange(sum(sizes), dtype=np.int32)] * (1 + width), [*map(str, range(width + 1))]
    )
    starts = np.cumsum([0, *sizes])
    slices = [whole.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
    pieces = [pa.ipc.read_record_batch(each.serialize(), whole.schema) for each in slices]  # as decoded
    found = list(join_small(pieces))
    assert numbers_of(iter(found)) == list(range(sum(sizes)))
    worth = [each.num_rows >= BATCH_ROWS or each.nbytes >= BATCH_BYTES for each in found]
    for here, behind in itertools.pairwise(worth):
        assert here or behind  # what is smaller stands before one that passed as it was
    large = [each for each in pieces if each.num_rows >= BATCH_ROWS or each.nbytes >= BATCH_BYTES]
    assert [each for each in found if any(each is one for one in large)] == large


def test_batches_of_a_gate_are_worth_a_call(tmp_path: Path) -> None:
    outputs = maps(tmp_path, 10, regions=2, messages=10, rows=500)
    for deliver in (as_written, in_order):
        *sizes, _ = [found.num_rows for found in deliver(consumer_of(outputs).gate)]
        assert len(sizes) == 4
        assert min(sizes) >= BATCH_ROWS


# --- memory ------------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("codec", ALL_CODECS)
def test_extents_larger_than_the_budget_are_streamed_within_it(
    tmp_path: Path, deliver: Deliver, codec: Codec
) -> None:
    """Three extents of 3.6 MB and three small ones, in one MiB."""
    outputs = []
    for map_index in range(3):
        start = map_index * 11_000
        large = [batch(start + n * 100, 100, wide=350) for n in range(100)]
        regions = [{0: large}, {0: [batch(start + 10_000, 1000)]}]
        outputs.append(write_map(tmp_path, SCHEMA, regions, map_index=map_index, codec=codec))
    consumer = consumer_of(outputs, memory=MIB)
    assert min(channel.extents[0].raw_bytes for channel in map(MapOutput.channel, outputs)) > 3 * MIB
    assert numbers_of(deliver(consumer.gate)) == list(range(33_000))
    assert 0 < consumer.budget.peak <= MIB
    assert_nothing_is_left(consumer, tmp_path)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_extents_that_grow_a_hundredfold_are_streamed_within_the_budget(tmp_path: Path, codec: Codec) -> None:
    """Stored they are a few KB, so they would fit it whole."""
    zeros = pa.record_batch([np.zeros(5000, np.int64), [""] * 5000], schema=SCHEMA)
    outputs = [write_map(tmp_path, SCHEMA, [{0: [zeros] * 40}], map_index=n, codec=codec) for n in range(3)]
    assert max(output.channel().extents[0].bytes for output in outputs) < MIB // 10
    for deliver in (as_written, in_order):
        consumer = consumer_of(outputs, memory=MIB)
        assert sum(found.num_rows for found in deliver(consumer.gate)) == 600_000
        assert 0 < consumer.budget.peak <= MIB
        assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
@pytest.mark.parametrize("memory", [MIB, 64 * MIB])
@pytest.mark.parametrize("codec", ALL_CODECS)
def test_the_budget_is_kept_whether_all_rows_fit_it_or_not(
    tmp_path: Path, deliver: Deliver, memory: int, codec: Codec
) -> None:
    """12 extents of 80 KB: merged they need 2 MB, or one message of each."""
    outputs = maps(tmp_path, 6, regions=2, messages=12, rows=10, wide=640, codec=codec)
    consumer = consumer_of(outputs, memory=memory)
    for _ in deliver(consumer.gate):
        assert consumer.budget.used <= memory
    assert 0 < consumer.budget.peak <= memory
    assert consumer.metrics.counts["memory_peak"] == consumer.budget.peak


class WitnessPayload(ArrowPayload):
    """Remembers in which threads it decoded."""

    def __init__(self, schema: pa.Schema, codec: Codec) -> None:
        super().__init__(schema, codec)
        self.threads: set[str] = set()

    def decode(self, extent: pa.Buffer, buffer: StoredBuffer, seconds: Counter[str]) -> pa.RecordBatch:
        self.threads.add(threading.current_thread().name)
        return super().decode(extent, buffer, seconds)


def test_small_extents_of_one_file_are_read_ahead_in_threads_also_within_a_small_budget(
    tmp_path: Path,
) -> None:
    (output,) = maps(tmp_path, 1, regions=40, messages=1, rows=100, wide=300)
    payload = WitnessPayload(SCHEMA, Codec.LZ4)
    consumer = consumer_of([output], memory=MIB, payload=payload)
    assert numbers_of(consumer.gate.batches()) == list(range(4000))
    assert {name.rsplit("_", 1)[0] for name in payload.threads} == {"sortshuffle-read"}


def test_reading_ahead_stays_within_what_is_left_of_the_budget(tmp_path: Path) -> None:
    """A single thread that is held back must not keep the others from waiting for room."""
    outputs = maps(tmp_path, 30, regions=1, messages=1, rows=100, wide=100)
    one = outputs[0].channel().extents[0]
    memory = 8 * (one.bytes + one.raw_bytes)
    consumer = consumer_of(outputs, memory=memory, threads=16)
    assert consumer.rows() == rows_of([batch(0, 3000, wide=100)])
    assert one.raw_bytes < consumer.budget.peak <= memory


@BOTH_WAYS
def test_a_share_of_the_tasks_budget_is_charged_in_both(tmp_path: Path, deliver: Deliver) -> None:
    outputs = maps(tmp_path, 4)
    task = MemoryBudget(10 * MIB)
    share = task.share(MIB, "read")
    gate = InputGate([output.channel() for output in outputs], outputs[0].payload, share, 4, TaskMetrics())
    assert numbers_of(deliver(gate)) == list(range(480))
    assert task.peak == share.peak > 0
    assert task.used == share.used == 0


@BOTH_WAYS
@MEMORIES
def test_batches_that_are_kept_outlive_the_gate_and_the_files(
    tmp_path: Path, deliver: Deliver, memory: int
) -> None:
    for codec in ALL_CODECS:
        outputs = maps(tmp_path, 3, rows=200, wide=300, codec=codec)
        consumer = consumer_of(outputs, memory=memory)
        kept = list(deliver(consumer.gate))
        for output in outputs:
            output.file.delete()
        del consumer
        assert rows_of(kept) == rows_of([batch(0, 3600, wide=300)])


# --- how it ends -------------------------------------------------------------------------------------------


@BOTH_WAYS
@MEMORIES
@pytest.mark.parametrize("taken", [0, 1, 2, 3, 100])
def test_it_may_be_closed_at_any_point(tmp_path: Path, deliver: Deliver, memory: int, taken: int) -> None:
    """Before the first batch, behind any of four, and behind the last."""
    consumer = consumer_of(maps(tmp_path, 8, messages=40, rows=100, wide=100), memory=memory)
    found = deliver(consumer.gate)
    rows = sum(each.num_rows for each in itertools.islice(found, taken))
    assert (rows == 64_000) == (taken == 100)
    found.close()  # type: ignore[attr-defined]
    found.close()  # type: ignore[attr-defined]
    assert_nothing_is_left(consumer, tmp_path)


class Stop(BaseException):
    """Not an error that anybody could handle."""


class FailingPayload(ArrowPayload):
    """Fails at one of the buffers that it decodes, in whichever thread, and at those behind it."""

    def __init__(self, fail_at: int) -> None:
        super().__init__(SCHEMA, Codec.LZ4)
        self._calls = itertools.count(1)
        self._fail_at = fail_at

    def decode(self, extent: pa.Buffer, buffer: StoredBuffer, seconds: Counter[str]) -> pa.RecordBatch:
        if next(self._calls) >= self._fail_at:
            raise Stop("here")
        return super().decode(extent, buffer, seconds)


@BOTH_WAYS
@pytest.mark.parametrize("memory", [MIB // 64, 64 * MIB])
def test_a_failure_at_any_buffer_reaches_the_consumer_and_leaves_nothing_behind(
    tmp_path: Path, deliver: Deliver, memory: int
) -> None:
    outputs = maps(tmp_path, 3, regions=2, messages=4, wide=100)
    for fail_at in range(1, 25):
        consumer = consumer_of(outputs, memory=memory, payload=FailingPayload(fail_at), threads=3)
        with pytest.raises(Stop, match="here"):
            list(deliver(consumer.gate))
        assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
def test_nothing_is_read_before_the_first_batch_is_asked_for(tmp_path: Path, deliver: Deliver) -> None:
    """The task must be inside its error handling when a file turns out to be lost."""
    outputs = maps(tmp_path, 2)
    consumer = consumer_of(outputs)
    for output in outputs:
        output.file.delete()
    found = deliver(consumer.gate)
    with pytest.raises(MissingDataError):
        next(found)
    assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
@MEMORIES
def test_damage_is_an_error_with_its_place_and_leaves_nothing_behind(
    tmp_path: Path, deliver: Deliver, memory: int
) -> None:
    outputs = maps(tmp_path, 6, messages=10, rows=100, wide=100)
    damaged = outputs[3]
    extent = damaged.channel().extents[1]
    consumer = consumer_of(outputs, memory=memory)
    at = extent.offset + extent.bytes // 2
    with changed(damaged.file.data_path, at, 0x40), pytest.raises(CorruptDataError) as caught:
        list(deliver(consumer.gate))
    place = caught.value.place
    assert (place.file, place.region, place.subpartition) == (damaged.file.data_path, 1, 0)
    assert place.offset is not None
    assert extent.offset <= place.offset <= at
    assert place.writer == "attempt 3 of map 3"
    assert_nothing_is_left(consumer, tmp_path)


@BOTH_WAYS
@MEMORIES
def test_a_lost_file_is_an_error_with_its_name_and_leaves_nothing_behind(
    tmp_path: Path, deliver: Deliver, memory: int
) -> None:
    outputs = maps(tmp_path, 6, messages=10, rows=100, wide=100)
    consumer = consumer_of(outputs, memory=memory)
    outputs[4].file.delete()
    with pytest.raises(MissingDataError) as caught:
        list(deliver(consumer.gate))
    assert caught.value.place.file == outputs[4].file.data_path
    assert_nothing_is_left(consumer, tmp_path)


def test_what_stands_before_the_damage_is_delivered(tmp_path: Path) -> None:
    outputs = maps(tmp_path, 4, rows=BATCH_ROWS, regions=1, messages=1)
    consumer = consumer_of(outputs)
    delivered: list[int] = []
    with (
        changed(outputs[2].file.data_path, outputs[2].channel().extents[0].offset + 20, 1),
        pytest.raises(CorruptDataError),
    ):
        for found in consumer.gate.batches():
            delivered += found.column(0).to_pylist()
    assert delivered == list(range(2 * BATCH_ROWS))


@BOTH_WAYS
@MEMORIES
def test_what_was_read_is_counted(tmp_path: Path, deliver: Deliver, memory: int) -> None:
    outputs = maps(tmp_path, 3, rows=100, wide=500)
    extents = [extent for output in outputs for extent in output.channel().extents]
    consumer = consumer_of(outputs, memory=memory)
    list(deliver(consumer.gate))
    counts = consumer.metrics.counts
    assert counts["rows_read"] == 1800
    assert counts["extents_read"] == 6
    assert counts["bytes_read"] == sum(extent.bytes for extent in extents)
    assert counts["raw_bytes_read"] == sum(extent.raw_bytes for extent in extents)


# --- with the writing side at the other end ----------------------------------------------------------------


def consumers(outputs: Sequence[Any], payload: ArrowPayload, memory: int) -> Iterator[InputGate]:
    """A gate for each subpartition of what `engine.new_output` wrote."""
    indexes = [read_index(output.file) for output in outputs]
    for subpartition in range(indexes[0].header.subpartitions):
        channels = [
            LocalInputChannel(
                output.file, index.header.file_id, number, "", tuple(extents_of(index, subpartition))
            )
            for number, (output, index) in enumerate(zip(outputs, indexes, strict=True))
        ]
        new_file = files_in(os.path.dirname(outputs[0].file.base))
        yield InputGate(channels, payload, MemoryBudget(memory), 2, TaskMetrics(), new_file)


@settings(max_examples=40)
@given(data=st.data())
def test_rows_of_any_types_go_through_whole_partitions(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Memory for a few rows, so that there are several regions, to be read with as little."""
    directory = tmp_path_factory.mktemp("partition")
    written = data.draw(batches(max_rows=40, max_columns=3))
    rows = written.num_rows
    targets = pa.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), pa.int64())
    written = pa.RecordBatch.from_arrays([targets, *written.columns], ["target", *written.schema.names])
    codec = data.draw(st.sampled_from(ALL_CODECS))
    memory = data.draw(st.sampled_from([1, 500, 5000]))
    borders = sorted(data.draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    outputs = []
    for number, (start, stop) in enumerate(zip([0, *borders], [*borders, rows], strict=True)):
        output = new_output(
            directory, written.schema, memory=memory, subpartitions=3, codec=codec, attempt=number
        )
        with output.partition as partition:
            half = (start + stop) // 2
            partition.write(written.slice(start, half - start))
            partition.write(written.slice(half, stop - half))
            partition.finish(WriterInfo())
        outputs.append(output)
    for target, gate in enumerate(consumers(outputs, ArrowPayload(written.schema, codec), memory)):
        kept = pa.array([row for row, to in enumerate(targets.to_pylist()) if to == target], pa.int64())
        found = pa.Table.from_batches(gate.batches(), written.schema)
        found.validate(full=True)
        assert found.equals(pa.Table.from_batches([written]).take(kept))


@settings(max_examples=40)
@given(data=st.data())
def test_rows_sorted_by_any_key_go_through_whole_partitions(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("partition")
    case: KeyCase = data.draw(st.sampled_from(KEY_CASES))
    values = data.draw(case.lists(max_size=80))
    places = pa.array(range(len(values)), pa.int32())
    written = pa.record_batch([case.array(values), places], ["key", "place"])
    memory = data.draw(st.sampled_from([1, 300, 3000, MIB]))
    border = data.draw(st.integers(0, len(values)))
    outputs = []
    for number, part in enumerate((written.slice(0, border), written.slice(border))):
        output = new_output(
            directory,
            written.schema,
            memory=memory,
            subpartitions=1,
            order=BY_NUMBER,
            buffer_size=100,
            selector=AllTo(1, 0),
            attempt=number,
        )
        with output.partition as partition:
            partition.write(part)
            partition.finish(WriterInfo())
        outputs.append(output)
    (gate,) = consumers(outputs, ArrowPayload(written.schema, Codec.NONE), memory)
    found = [place for each in gate.sorted_batches(BY_NUMBER) for place in each.column(1).to_pylist()]
    assert found == sorted(range(len(values)), key=lambda place: case.key(values[place]))


def test_several_regions_and_messages_go_through_a_whole_partition(tmp_path: Path) -> None:
    numbers = np.random.default_rng(9).integers(0, 10**6, 50_000)
    written = pa.record_batch([numbers, [f"row {n}" for n in range(50_000)]], schema=SCHEMA)
    for order in (None, BY_NUMBER):
        output = new_output(
            tmp_path, SCHEMA, memory=MIB // 4, order=order, buffer_size=4096, selector=Modulo(4), first=2
        )
        with output.partition as partition:
            partition.write(written)
            partition.finish(WriterInfo())
        assert read_index(output.file).regions > 3
        for memory in (MIB // 4, 64 * MIB):
            payload = ArrowPayload(SCHEMA, Codec.NONE)
            for target, gate in enumerate(consumers([output], payload, memory)):
                mine = numbers[numbers % 4 == target]
                if order is None:
                    assert numbers_of(gate.batches()) == mine.tolist()
                else:
                    assert numbers_of(gate.sorted_batches(order)) == sorted(mine.tolist())
        output.file.delete()


def test_an_extent_moved_to_another_subpartition_is_found_out(tmp_path: Path) -> None:
    """The control rows are believed for the place of an extent, but not for what it holds."""
    region = {0: [batch(10, 10)], 1: [batch(20, 10)]}
    output = write_map(tmp_path, SCHEMA, [region], subpartitions=2, codec=Codec.NONE)
    mine, other = output.channel(0), output.channel(1)
    moved = replace(mine.extents[0], offset=other.extents[0].offset)
    gate = InputGate([replace(mine, extents=(moved,))], output.payload, MemoryBudget(MIB), 1, TaskMetrics())
    with pytest.raises(CorruptDataError, match="the extent fails its checksum"):
        list(gate.batches())
