"""Map outputs on storage that every host sees, through `StoredInputChannel`: the rows of local files,
whichever way they are read; every loss an error with its place; many requests at a time."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from map_outputs import MIB, MapOutput, files_in, reading_threads, rows_of, write_map
from stores import Store, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.errors import CorruptDataError, DecryptionError, MissingDataError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.channel import Fetch, InputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.reading.stored_channel import CONCURRENT_FETCHES, StoredInputChannel
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.stored.stored_reader import read_stored_index

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def batch(start: int, rows: int) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch([list(numbers), [f"row {n}" for n in numbers]], schema=SCHEMA)


REGIONS = [{0: [batch(0, 1000), batch(1000, 7)], 1: [batch(5000, 3)]}, {0: [batch(2000, 500)]}]
NUMBERS = [*range(1007), *range(2000, 2500)]


def channel_of(output: MapOutput, subpartition: int = 0) -> StoredInputChannel:
    extents = tuple(extents_of(read_stored_index(output.file, output.file_id), subpartition))
    return StoredInputChannel(
        output.file, output.file_id, output.map_index, output.writer, extents, output.key
    )


def written(
    store: Store, map_index: int = 0, codec: Codec = Codec.LZ4, key: EncryptionKey | None = None
) -> MapOutput:
    return write_map(
        f"{store.root}/app-1", SCHEMA, REGIONS, map_index=map_index, codec=codec, subpartitions=2, key=key
    )


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [row["number"] for row in rows_of(batches)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_fetch_gives_the_rows_that_were_written(store: Store, codec: Codec) -> None:
    output = written(store, codec=codec)
    channel = channel_of(output)
    fetched = Fetch(channel, channel.extents).run(output.payload)
    assert numbers(fetched.batches) == NUMBERS
    assert fetched.metrics.counts["rows_read"] == len(NUMBERS)
    assert fetched.metrics.counts["extents_read"] == 2


@pytest.mark.parametrize("part_bytes", [64, 5000, MIB])
def test_a_stream_gives_them_in_parts(store: Store, part_bytes: int) -> None:
    output = written(store)
    channel = channel_of(output)
    budget = MemoryBudget(MIB)
    stream = Fetch(channel, channel.extents).stream(output.payload, part_bytes, budget, TaskMetrics())
    assert numbers(list(stream)) == NUMBERS
    assert budget.used == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("part_bytes", [None, 64, MIB])
def test_what_is_encrypted_is_decrypted_by_the_reader(
    store: Store, codec: Codec, part_bytes: int | None
) -> None:
    output = written(store, codec=codec, key=EncryptionKey(bytes(32)))
    assert b"row 7" not in store.get(output.file.data_path)
    for key, why in ((output.key, ""), (None, "there is no key"), (EncryptionKey(bytes(16)), "another")):
        channel = channel_of(replace(output, key=key))
        fetch = Fetch(channel, channel.extents)
        try:
            if part_bytes is None:
                found = fetch.run(output.payload).batches
            else:
                found = list(fetch.stream(output.payload, part_bytes, MemoryBudget(MIB), TaskMetrics()))
        except DecryptionError as error:
            assert why, "the right key opens it"
            assert why in str(error)
        else:
            assert not why
            assert numbers(found) == NUMBERS


def test_it_is_an_input_channel_that_travels(store: Store) -> None:
    channel: InputChannel = channel_of(written(store, map_index=7))
    again: InputChannel = pickle.loads(pickle.dumps(channel))
    assert again == channel
    assert (again.map_index, again.path) == (7, f"{store.root}/app-1/exchange-1-map-7-attempt-7.data")


def gate_of(
    channels: list[StoredInputChannel], output: MapOutput, memory: int = 64 * MIB, spill: str = "/nowhere"
) -> InputGate:
    return InputGate(channels, output.payload, MemoryBudget(memory), 4, TaskMetrics(), files_in(spill))


def test_a_gate_reads_many_in_order(store: Store) -> None:
    outputs = [written(store, map_index) for map_index in range(20)]
    gate = gate_of([channel_of(output) for output in outputs], outputs[0])
    assert numbers(list(gate.batches())) == NUMBERS * 20


@pytest.mark.parametrize("memory", [64 * MIB, MIB], ids=["held", "in passes"])
def test_a_gate_merges_sorted_runs(store: Store, tmp_path: Path, memory: int) -> None:
    regions = [{0: [batch(start + at, 500) for at in range(0, 20_000, 500)]} for start in (0, 7, 100)]
    outputs = [
        write_map(f"{store.root}/app-1", SCHEMA, regions, map_index=index, codec=Codec.NONE)
        for index in range(2)
    ]
    gate = gate_of([channel_of(output) for output in outputs], outputs[0], memory, str(tmp_path))
    expected = sorted([*range(20_000), *range(7, 20_007), *range(100, 20_100)] * 2)
    assert numbers(list(gate.sorted_batches(RowOrder((0,))))) == expected


class CountedFileSystem(MemoryFileSystem):
    """fsspec's memory, which notes the ranges that are asked for."""

    protocol = "counted"
    ranges: list[tuple[int, int]] = []  # noqa: RUF012  (of the class: fsspec makes the objects)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: object) -> bytes:
        if end is not None:  # an index has none
            self.ranges.append((start or 0, end))
        data: bytes = super().cat_file(path, start, end)
        return data


fsspec.register_implementation("counted", CountedFileSystem, clobber=True)


def test_a_merge_asks_for_each_byte_once_and_for_a_buffer_at_least(tmp_path: Path) -> None:
    """A request costs as much as some hundred KiB: none is made to learn how large a buffer is."""
    regions = [{0: [batch(start + at, 2000) for at in range(0, 40_000, 2000)]} for start in range(6)]
    output = write_map(f"counted://{tmp_path}/app-1", SCHEMA, regions, codec=Codec.NONE)
    channel = channel_of(output)
    CountedFileSystem.ranges.clear()
    gate = gate_of([channel], output, 2 * MIB, str(tmp_path))
    assert len(numbers(list(gate.sorted_batches(RowOrder((0,)))))) == 240_000
    sizes = [end - start for start, end in CountedFileSystem.ranges]
    assert sum(sizes) == sum(extent.bytes for extent in channel.extents) > 4 * MIB
    assert len(sizes) <= sum(extent.buffers for extent in channel.extents)


def test_the_first_parts_of_many_runs_of_a_merge_are_asked_for_together(
    meeting: type[MeetingFileSystem], tmp_path: Path
) -> None:
    """A merge that asked for one after the other would wait for as many answers as there are runs. Here the
    first answer comes when eight are asked for."""
    regions = [{0: [batch(start + at, 2000) for at in range(0, 40_000, 2000)]} for start in range(24)]
    output = write_map("meeting://bucket/app-1", SCHEMA, regions, codec=Codec.NONE)
    channel = channel_of(output)
    meeting.meeting = Meeting(8)
    gate = gate_of([channel], output, 8 * MIB, str(tmp_path))
    assert numbers(list(gate.sorted_batches(RowOrder((0,))))) == sorted(
        start + at for start in range(24) for at in range(40_000)
    )


@pytest.mark.parametrize("key", [None, EncryptionKey(bytes(32))], ids=["plain", "encrypted"])
def test_a_merge_that_is_abandoned_leaves_nothing(
    store: Store, tmp_path: Path, key: EncryptionKey | None
) -> None:
    regions = [{0: [batch(start + at, 2000) for at in range(0, 40_000, 2000)]} for start in range(24)]
    output = write_map(f"{store.root}/app-1", SCHEMA, regions, codec=Codec.NONE, key=key)
    budget = MemoryBudget(8 * MIB)
    channel = channel_of(output)
    gate = InputGate([channel], output.payload, budget, 4, TaskMetrics(), files_in(str(tmp_path)))
    merged = gate.sorted_batches(RowOrder((0,)))
    assert isinstance(merged, Generator)
    with closing(merged):
        assert numbers([next(merged)])[:3] == [0, 1, 1]
        is_ahead = any(name.startswith("sortshuffle-ahead") for name in reading_threads())
        assert is_ahead == (channel.held_parts > 1)
    assert budget.used == 0
    assert reading_threads() == []


def test_streams_of_a_store_take_more_memory_than_those_of_a_mounted_directory(tmp_path: Path) -> None:
    file = PartitionedFile.named("s3://bucket/app-1", 1, 0, 0)
    channel = StoredInputChannel(file, bytes(16), 0, "", ())
    assert channel.held_parts == 2
    assert replace(channel, key=EncryptionKey(bytes(32))).held_parts == 3
    mounted = PartitionedFile.named(f"file://{tmp_path}/app-1", 1, 0, 0)
    assert replace(channel, file=mounted, key=EncryptionKey(bytes(32))).held_parts == 1


def test_what_is_gone_or_damaged_says_where(store: Store) -> None:
    output = written(store)
    channel = channel_of(output)
    data = store.get(output.file.data_path)
    store.put(output.file.data_path, data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    fetch = Fetch(channel, channel.extents)
    with pytest.raises(CorruptDataError) as caught:
        fetch.run(output.payload)
    assert caught.value.place.region == 1
    assert caught.value.place.writer == "attempt 0 of map 0"
    store.remove(output.file.data_path)
    with pytest.raises(MissingDataError):
        fetch.run(output.payload)


class Meeting:
    """Those who come wait until there are ``enough``; later ones do not wait."""

    def __init__(self, enough: int) -> None:
        self.came = 0
        self._enough = enough
        self._changed = threading.Condition()

    def wait(self, timeout: float) -> None:
        with self._changed:
            self.came += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.came >= self._enough, timeout)


class MeetingFileSystem(MemoryFileSystem):
    """fsspec's memory, in which requests wait until there are enough of them at a time."""

    protocol = "meeting"
    store: dict[str, object] = {}  # noqa: RUF012  (of the class, as MemoryFileSystem has it)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    meeting: threading.Barrier | Meeting | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("meeting://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: object) -> bytes:
        if (meeting := self.meeting) is not None:
            meeting.wait(timeout=30)
        data: bytes = super().cat_file(path, start, end)
        return data


fsspec.register_implementation("meeting", MeetingFileSystem, clobber=True)


@pytest.fixture
def meeting() -> Iterator[type[MeetingFileSystem]]:
    yield MeetingFileSystem
    MeetingFileSystem.meeting = None
    MeetingFileSystem.store.clear()


def test_more_map_outputs_are_read_at_a_time_than_there_are_threads_for_local_ones(
    meeting: type[MeetingFileSystem],
) -> None:
    store = Store("meeting://bucket")
    outputs = [written(store, map_index) for map_index in range(CONCURRENT_FETCHES)]
    channels = [channel_of(output, 1) for output in outputs]
    meeting.meeting = threading.Barrier(CONCURRENT_FETCHES)
    gate = gate_of(channels, outputs[0])
    assert numbers(list(gate.batches())) == [5000, 5001, 5002] * CONCURRENT_FETCHES


def test_a_data_file_is_expected_to_be_there_and_not_cut_short(store: Store) -> None:
    output = written(store)
    channel, data = channel_of(output), store.get(output.file.data_path)
    channel.expect_data(len(data))
    store.put(channel.path, data[:-1])
    with pytest.raises(CorruptDataError, match=f"cut short.*expected {len(data)} bytes") as caught:
        channel.expect_data(len(data))
    place = caught.value.place
    assert (place.file.endswith(channel.path.removeprefix("file://")), place.region) == (True, None)
    store.remove(channel.path)
    with pytest.raises(MissingDataError):
        channel.expect_data(len(data))
