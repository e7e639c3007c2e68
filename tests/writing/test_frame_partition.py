"""`FrameResultPartition`, on frames and chunks: whatever is emitted is read back, unicast, broadcast,
large and small, with its events in their place; every segment comes back; what is given up leaves no file."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from engine import (
    ID,
    WRITER,
    FrameOutput,
    Modulo,
    arrow_memory,
    frame_channel,
    names,
    new_frame_output,
    noise,
    open_files,
    small_disk,
)
from failing import faults
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import (
    InsufficientBuffersError,
    OutOfDiskError,
    StateError,
    UsageError,
)
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, SUPERSTEP, Barrier, UserEvent
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.pickled import pack_chunk
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.frame_encoder import FrameLayout
from sortshuffle.writing.frame_partition import FrameResultPartition
from sortshuffle.writing.row_partition import RowResultPartition

FRAMES, PICKLE = PayloadKind.FRAMES, PayloadKind.PICKLE
KINDS = pytest.mark.parametrize("kind", [FRAMES, PICKLE], ids=["frames", "chunks"])
UNICAST, BROADCAST = RegionKind.UNICAST, RegionKind.BROADCAST
END_BYTES = 2 * 64  # of the two events that end a subpartition


def frame(kind: PayloadKind, data: bytes) -> bytes | bytearray:
    """What is emitted so that ``data`` is the record that is read."""
    return pack_chunk([data]) if kind is PICKLE else data


def emit_all(output: FrameOutput, records: list[bytes]) -> list[list[bytes]]:
    """Emit each record to the next subpartition; what each of them must get."""
    kind, count = output.payload.kind, output.partition.subpartitions
    for number, record in enumerate(records):
        output.partition.emit(frame(kind, record), number % count)
    return [records[s::count] for s in range(count)]


def kinds(output: FrameOutput) -> list[RegionKind]:
    return list(read_index(output.file).kinds)


# What is emitted is read back


@KINDS
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(("subpartitions", "first"), [(1, 0), (10, 0), (10, 7), (300, 299)])
@pytest.mark.parametrize("segments", [15, 2000], ids=["many regions", "one region"])
def test_records_come_back_in_the_order_in_which_they_were_emitted(
    tmp_path: Path, kind: PayloadKind, codec: Codec, subpartitions: int, first: int, segments: int
) -> None:
    output = new_frame_output(
        tmp_path, kind=kind, codec=codec, subpartitions=subpartitions, first=first, segments=segments
    )
    with output.partition as partition:
        wanted = emit_all(output, noise(1, 700, 8192))
        partition.finish(WRITER)
    assert output.records() == wanted
    assert output.is_whole()
    assert kinds(output)[-1] is BROADCAST
    assert len(kinds(output)) == 2 if segments == 2000 else len(kinds(output)) > 10


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("segments", [15, 1000])
def test_unicast_and_broadcast_records_keep_their_order_among_themselves(
    tmp_path: Path, kind: PayloadKind, codec: Codec, segments: int
) -> None:
    output = new_frame_output(tmp_path, kind=kind, codec=codec, subpartitions=10, first=4, segments=segments)
    chosen = random.Random(2)
    unicast: list[list[bytes]] = [[] for _ in range(10)]
    broadcast: list[bytes] = []
    with output.partition as partition:
        for number, record in enumerate(noise(3, 1000, 8192)):
            record = b"%d " % number + record
            if chosen.random() < 0.2:
                broadcast.append(record)
                partition.broadcast_frame(frame(kind, record))
            else:
                target = chosen.randrange(10)
                unicast[target].append(record)
                partition.emit(frame(kind, record), target)
        partition.finish(WRITER)
    sent_to_all = set(broadcast)
    for subpartition, found in enumerate(output.records()):
        assert [record for record in found if record in sent_to_all] == broadcast
        assert [record for record in found if record not in sent_to_all] == unicast[subpartition]
    assert output.is_whole()


SENDING = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 10**6)), st.binary(max_size=300)), max_size=40
)
"""Where each record goes (None: to all), and the record."""


@KINDS
@pytest.mark.parametrize("usable", [1, 31, 64, 127, 4096])
@given(
    SENDING,
    st.integers(1, 5).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))),
    st.sampled_from([1, 2, 3, 40]),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_any_records_come_back(
    tmp_path: Path,
    kind: PayloadKind,
    usable: int,
    sending: list[tuple[int | None, bytes]],
    rotation: tuple[int, int],
    segments: int,
    codec: Codec,
) -> None:
    count, first = rotation
    output = new_frame_output(
        tmp_path,
        kind=kind,
        codec=codec,
        subpartitions=count,
        first=first,
        segments=segments,
        buffer_size=usable,
    )
    try:
        with output.partition as partition:
            for target, record in sending:
                if target is None:
                    partition.broadcast_frame(frame(kind, record))
                else:
                    partition.emit(frame(kind, record), target % count)
            partition.finish(WRITER)
        to_all = [record for target, record in sending if target is None]
        for subpartition, found in enumerate(output.records()):
            own = [r for target, r in sending if target is not None and target % count == subpartition]
            assert sorted(found) == sorted(own + to_all)
            if not to_all or not own:
                assert found == own + to_all
        assert output.is_whole()
    finally:
        output.file.delete()


@KINDS
def test_no_record_spans_regions(tmp_path: Path, kind: PayloadKind) -> None:
    """Each extent is decoded alone, and holds as many records as its entry says."""
    output = new_frame_output(tmp_path, kind=kind, segments=5, buffer_size=127)
    with output.partition as partition:
        emit_all(output, noise(4, 500, 400))
        partition.finish(WRITER)
    index = read_index(output.file)
    assert index.regions > 50
    assert int(index.entries[:, 2]["records"].sum()) == 125
    assert len(list(output.gate(2, memory=1 << 12).records())) == 125


@KINDS
def test_a_partition_without_records_is_one_region_of_two_events(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, subpartitions=3)
    with output.partition as partition:
        partition.finish(WRITER)
    assert kinds(output) == [BROADCAST]
    for subpartition in range(3):
        (data, end) = output.gate(subpartition).buffers()
        assert (data.event, end.event) == (END_OF_DATA, END_OF_PARTITION)
    assert os.path.getsize(output.file.data_path) == 56 + END_BYTES


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("way", ["unicast", "broadcast"])
def test_a_record_larger_than_the_memory_has_a_region_of_its_own(
    tmp_path: Path, kind: PayloadKind, codec: Codec, way: str
) -> None:
    output = new_frame_output(tmp_path, kind=kind, codec=codec, segments=20)
    chosen = random.Random(5)
    large = [chosen.randbytes(3 * MIB) + bytes(MIB), bytes(20 * 4096)]
    records = [b"first", large[0], b"second", b"third", large[1], b"last"]
    with output.partition as partition:
        for record in records:
            data = frame(kind, record)
            if way == "broadcast":
                partition.broadcast_frame(data)
            else:
                partition.emit(data, 2)
        partition.finish(WRITER)
    assert output.records()[2] == records
    index = read_index(output.file)
    assert [int(region[2]["records"]) for region in index.entries][:5] == [1, 1, 2, 1, 1]
    assert output.is_whole()


@KINDS
def test_a_record_of_exactly_the_memory_is_held(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, segments=20)
    overhead = 4 + len(frame(kind, bytes(70_000))) - 70_000
    with output.partition as partition:
        partition.emit(frame(kind, bytes(20 * 4096 - overhead)), 1)
        assert names(tmp_path) and output.segments.available == 0
        assert read_partial_size(output) == 56
        partition.finish(WRITER)
    assert list(map(len, output.records()[1])) == [20 * 4096 - overhead]


def read_partial_size(output: FrameOutput) -> int:
    return os.path.getsize(output.file.partial_data_path)


def test_the_callers_memory_may_be_used_again(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, segments=8)
    memory = bytearray(40 * 4096)
    with output.partition as partition:
        for number in range(1, 10):
            size = 40 * 4096 if number == 5 else 1000
            memory[:size] = bytes([number]) * size
            partition.emit(memoryview(memory)[:size], 0)
        memory[:] = bytes(len(memory))
        partition.finish(WRITER)
    assert [set(record) for record in output.records()[0]] == [{number} for number in range(1, 10)]


@pytest.mark.parametrize("data", [b"bytes", bytearray(b"array"), memoryview(b"a view")[2:], memoryview(b"")])
def test_frames_may_be_any_bytes(tmp_path: Path, data: Any) -> None:
    output = new_frame_output(tmp_path)
    with output.partition as partition:
        partition.emit(data, 1)
        partition.finish(WRITER)
    assert output.records() == [[], [bytes(data)], [], []]


# Broadcast


@KINDS
def test_broadcast_records_are_stored_once(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, subpartitions=10, segments=200)
    records = noise(6, 10_000, 100)
    with output.partition as partition:
        for record in records:
            partition.broadcast_frame(frame(kind, record))
        partition.finish(WRITER)
    assert output.records() == [records] * 10
    assert len(names(tmp_path)) == 2
    stored = sum(len(frame(kind, record)) + 4 for record in records)
    assert os.path.getsize(output.file.data_path) < 1.1 * stored
    assert int(output.partition.subpartition_bytes.sum()) > 10 * stored


def test_broadcast_records_take_the_segments_of_one_subpartition(tmp_path: Path) -> None:
    taken = []
    for to_all in (True, False):
        output = new_frame_output(tmp_path, subpartitions=10, segments=200, attempt=int(to_all))
        with output.partition as partition:
            for _ in range(8):
                for subpartition in range(1 if to_all else 10):
                    if to_all:
                        partition.broadcast_frame(bytes(4092))
                    else:
                        partition.emit(bytes(4092), subpartition)
            taken.append(output.budget.used // 4160)
            partition.finish(WRITER)
    assert taken == [8, 80]


@KINDS
def test_consumers_of_a_broadcast_read_it_each_at_their_own_pace(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, subpartitions=3)
    records = noise(15, 200, 3000)
    with output.partition as partition:
        for record in records:
            partition.broadcast_frame(frame(kind, record))
        partition.finish(WRITER)
    readers = [output.gate(s, memory=memory).records() for s, memory in ((0, 1 << 12), (1, MIB), (2, MIB))]
    found: list[list[bytes]] = [[], [], []]
    chosen = random.Random(16)
    while any(len(each) < len(records) for each in found):
        reader = chosen.choice([number for number, each in enumerate(found) if len(each) < len(records)])
        for _ in range(chosen.randint(1, 30)):
            for record in islice(readers[reader], 1):
                found[reader].append(bytes(record))
    assert found == [records] * 3
    assert [list(reader) for reader in readers] == [[], [], []]


@KINDS
def test_alternating_unicast_and_broadcast_makes_no_tiny_regions(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, segments=300)
    with output.partition as partition:
        for number in range(2000):
            partition.emit(frame(kind, b"one"), number % 4)
            partition.broadcast_frame(frame(kind, b"all"))
        partition.finish(WRITER)
    assert kinds(output) == [UNICAST, BROADCAST]


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_regions_are_large_however_unicast_and_broadcast_share_the_segments(
    tmp_path: Path, share: float
) -> None:
    """Also where the budget leaves all of them to either."""
    output = new_frame_output(tmp_path, segments=64)
    chosen = random.Random(7)
    with output.partition as partition:
        for record in noise(8, 3000, 2000):
            if chosen.random() < share:
                partition.broadcast_frame(record)
            else:
                partition.emit(record, chosen.randrange(4))
        partition.finish(WRITER)
    index = read_index(output.file)
    sizes = [
        int(row[:1]["bytes"].sum() if kind is BROADCAST else row["bytes"].sum())
        for kind, row in zip(index.kinds, index.entries, strict=True)
    ]
    spilled = sizes[:-2]
    assert len(spilled) > 5
    assert min(spilled) > 64 * 4096 // 4


# Events


@KINDS
def test_events_keep_their_place_among_the_records(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, subpartitions=2)
    barrier, told = Barrier(1, 2, b"3"), UserEvent("told", b"data")
    with output.partition as partition:
        partition.emit(frame(kind, b"a"), 0)
        partition.broadcast_event(barrier)
        partition.broadcast_event(told)
        partition.emit(frame(kind, b"b"), 0)
        partition.broadcast_frame(frame(kind, b"c"))
        partition.broadcast_event(SUPERSTEP)
        partition.emit(frame(kind, b"d"), 1)
        partition.finish(WRITER)
    wanted: list[list[object]] = [
        [b"a", barrier, told, b"b", b"c", SUPERSTEP, END_OF_DATA, END_OF_PARTITION],
        [barrier, told, b"c", SUPERSTEP, b"d", END_OF_DATA, END_OF_PARTITION],
    ]
    for subpartition in range(2):
        found: list[object] = []
        for item in output.gate(subpartition).buffers():
            found += [item.event] if item.event else []
            found += [bytes(record) for chunk in item.chunks for record in chunk]
        assert found == wanted[subpartition]
    assert output.is_whole()


@KINDS
def test_an_event_of_any_size_may_be_sent(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, segments=2)
    event = UserEvent("large", bytes(100_000))
    with output.partition as partition:
        partition.broadcast_event(event)
        partition.finish(WRITER)
    assert next(iter(output.gate(3).buffers())).event == event


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("size", [100, 4096 - 4, 4096, 10_000], ids=["less", "just", "a bit more", "more"])
def test_an_event_is_the_last_behind_records_of_any_size(
    tmp_path: Path, kind: PayloadKind, codec: Codec, size: int
) -> None:
    """Also where a record fills its buffer exactly, or goes on in others, or was sent to one only."""
    output = new_frame_output(tmp_path, kind=kind, codec=codec, subpartitions=3, first=2)
    overhead = len(frame(kind, bytes(size))) - size
    records = [number.to_bytes(2, "big") * ((size - overhead) // 2) for number in range(4)]
    with output.partition as partition:
        for record in records[:3]:
            partition.emit(frame(kind, record), 1)
        partition.broadcast_frame(frame(kind, records[3]))
        partition.broadcast_event(SUPERSTEP)
        partition.finish(WRITER)
    for subpartition, wanted in enumerate(([records[3]], records, [records[3]])):
        items = list(output.gate(subpartition).buffers())
        assert [item.event for item in items if item.event] == [SUPERSTEP, END_OF_DATA, END_OF_PARTITION]
        assert [item.event for item in items[-3:]] == [SUPERSTEP, END_OF_DATA, END_OF_PARTITION]
        found = [bytes(record) for item in items for chunk in item.chunks for record in chunk]
        assert found == wanted


def test_an_event_is_stored_once_and_takes_no_segment(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, subpartitions=50, segments=2)
    with output.partition as partition:
        taken = output.segments.available
        partition.broadcast_event(UserEvent("told", bytes(1000)))
        assert output.segments.available == taken
        partition.finish(WRITER)
    assert os.path.getsize(output.file.data_path) == 56 + 1088 + END_BYTES
    assert partition.subpartition_bytes.tolist() == [1088 + END_BYTES] * 50


@pytest.mark.parametrize("event", ["no event", 3])
def test_an_event_that_cannot_be_packed_changes_nothing(tmp_path: Path, event: Any) -> None:
    output = new_frame_output(tmp_path)
    with output.partition as partition:
        partition.emit(b"before", 0)
        with pytest.raises((AttributeError, TypeError, struct.error)):
            partition.broadcast_event(event)
        partition.emit(b"after", 0)
        partition.finish(WRITER)
    assert output.records()[0] == [b"before", b"after"]
    assert kinds(output) == [UNICAST, BROADCAST]


@pytest.mark.parametrize("event", [END_OF_DATA, END_OF_PARTITION])
def test_the_ends_are_sent_by_finish_alone(tmp_path: Path, event: Any) -> None:
    output = new_frame_output(tmp_path)
    with output.partition as partition:
        with pytest.raises(UsageError, match="is what finish"):
            partition.broadcast_event(event)
        partition.finish(WRITER)
    assert [len(list(output.gate(s).buffers())) for s in range(4)] == [2] * 4


# Counters


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_bytes_and_records_of_each_subpartition_are_those_of_the_index(
    tmp_path: Path, kind: PayloadKind, codec: Codec
) -> None:
    output = new_frame_output(tmp_path, kind=kind, codec=codec, segments=9)
    with output.partition as partition:
        wanted = emit_all(output, [bytes(len(record)) for record in noise(9, 300, 5000)])
        for _ in range(20):
            partition.broadcast_frame(frame(kind, bytes(500)))
        partition.finish(WRITER)
    index = read_index(output.file)
    assert partition.subpartition_bytes.tolist() == index.entries["bytes"].sum(axis=0).tolist()
    assert partition.subpartition_records.tolist() == [len(own) + 20 for own in wanted]
    assert partition.subpartition_records.tolist() == index.entries["records"].sum(axis=0).tolist()
    counts = partition.metrics.counts
    assert counts["rows_written"] == int(index.once()["records"].sum()) == 320
    assert counts["buffers_written"] == int(index.once()["buffers"].sum())
    assert counts["raw_bytes_written"] == int(index.once()["raw_bytes"].sum())
    assert (counts["regions"], counts["files"]) == (index.regions, 2)
    assert counts["bytes_written"] == os.path.getsize(output.file.data_path)


def test_bytes_count_the_end_events_and_what_is_broadcast_for_each(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, subpartitions=2)
    with output.partition as partition:
        partition.emit(b"12345678", 0)
        partition.broadcast_frame(b"x" * 100)
        partition.finish(WRITER)
    assert partition.subpartition_bytes.tolist() == [64 + 128 + END_BYTES, 128 + END_BYTES]
    assert partition.subpartition_records.tolist() == [2, 1]


def test_regions_written_for_lack_of_memory_are_counted_apart(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, segments=2)
    with output.partition as partition:
        partition.emit(bytes(8000), 0)
        partition.emit(bytes(8000), 0)
        partition.emit(bytes(90_000), 0)
        partition.finish(WRITER)
    assert (partition.metrics.counts["spills"], partition.metrics.counts["regions"]) == (3, 4)


# Memory and release


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("times", [1, 4, 20])
def test_memory_stays_within_the_budget_whatever_the_amount_of_data(
    tmp_path: Path, kind: PayloadKind, codec: Codec, times: int
) -> None:
    memory = MIB
    output = new_frame_output(tmp_path, kind=kind, codec=codec, segments=1000, memory=memory)
    half = [record + bytes(len(record)) for record in noise(10, times * memory // 2000, 1000)]
    with output.partition as partition:
        wanted = emit_all(output, half * 2)
        partition.finish(WRITER)
    assert output.budget.peak <= memory
    assert output.records() == wanted
    assert len(kinds(output)) <= 2 * times + 3


def test_no_memory_is_taken_beside_the_segments_when_data_begins_to_compress(tmp_path: Path) -> None:
    """All segments were in use before: blocks beside them would double what the task holds."""
    output = new_frame_output(tmp_path, codec=Codec.LZ4, segments=256, memory=MIB)
    half = [record + bytes(len(record)) for record in noise(18, 4000, 3000)]
    with output.partition as partition:
        emit_all(output, noise(19, 2000, 3000))
        with arrow_memory() as blocks:
            emit_all(output, half)
            assert 0 < blocks.max_memory() <= 16 * KIB, "of the one that is being made"
        partition.finish(WRITER)
    assert output.is_whole()


def test_guaranteed_segments_are_taken_at_set_up_and_given_back_at_the_end(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, segments=10)
    assert output.segments.available == 0
    output.partition.finish(WRITER)
    assert output.segments.available == 10


def test_too_few_segments_for_the_guarantee_leave_no_file(tmp_path: Path) -> None:
    segments = NetworkBufferPool(4, 4096, option="a test's segments", request_timeout=0.01)
    with pytest.raises(InsufficientBuffersError):
        segments.create_pool(5)
    first = segments.create_pool(4)
    taken = [first.request_blocking() for _ in range(4)]
    first.close()
    file = PartitionedFile.named(str(tmp_path), 1, 2, 3)
    writer = PartitionedFileWriter(file, FileHeader(ID, 1, 0, Codec.NONE, FRAMES))
    layout = FrameLayout(FramesPayload(Codec.NONE), segments.create_pool(3), 4096)
    with pytest.raises(TimeoutError):
        FrameResultPartition(writer, layout, MemoryBudget(MIB), TaskMetrics())
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])
    for buffer in taken:
        buffer.recycle()
    assert segments.available == 4


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("emitted", [0, 1, 30, 300])
def test_abandoning_at_any_point_gives_back_all_segments_and_leaves_no_file(
    tmp_path: Path, kind: PayloadKind, codec: Codec, emitted: int
) -> None:
    output = new_frame_output(tmp_path, kind=kind, codec=codec, segments=20)
    emit_all(output, noise(11, emitted, 9000))
    output.partition.broadcast_frame(frame(kind, b"to all"))
    assert len(names(tmp_path)) == 2
    output.partition.abandon()
    assert output.is_whole()
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])
    output.partition.abandon()
    for subpartition in (0, 1 << 20):  # the second is also wrong in itself
        with pytest.raises(StateError, match="is abandoned"):
            output.partition.emit(frame(kind, b"late"), subpartition)


@pytest.mark.parametrize("codec", Codec)
def test_a_failure_of_any_call_leaves_every_segment_and_no_file(tmp_path: Path, codec: Codec) -> None:
    """Every call of a function that writes fails once: for each record, region, event, and for the end."""
    chosen = random.Random(17)
    records = [chosen.randbytes(1500) if number % 3 else bytes(3000) for number in range(12)]
    large = chosen.randbytes(30_000)
    failed: Counter[str] = Counter()
    for fault in faults("writing", "payload", "format", "storage/writer.py"):
        output = new_frame_output(tmp_path, codec=codec, subpartitions=3, segments=6, memory=MIB)
        partition = output.partition
        with fault:
            for number, record in enumerate(records):
                partition.emit(record, number % 3)
                if number % 4 == 0:
                    partition.broadcast_frame(record)
            partition.emit(large, 1)
            partition.broadcast_event(Barrier(1, 2, b"x"))
            partition.finish(WRITER)
        failed[fault.where] += 1
        if not fault.where:
            assert output.records()[1][-1] == large
        partition.abandon()
        assert output.is_whole(), fault.where
        assert open_files(tmp_path) == [], fault.where
        if os.path.exists(output.file.index_path):
            output.file.delete()  # the pair was complete: there was no fault, or one behind its end
        assert names(tmp_path) == [], fault.where
    for often in ("_begin", "_seal", "_append", "written", "_parts", "add_event", "drain", "finish"):
        assert failed[often] > 0, often
    assert (failed["_keep"] > 3) == (codec is not Codec.NONE)


@KINDS
def test_an_interrupt_abandons(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind)
    with pytest.raises(KeyboardInterrupt), output.partition:
        emit_all(output, noise(12, 50, 3000))
        raise KeyboardInterrupt
    assert output.is_whole()
    assert names(tmp_path) == []


@pytest.mark.parametrize("large", [False, True], ids=["regions", "a large frame"])
def test_a_full_disk_leaves_no_file_and_all_segments(tmp_path: Path, large: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        output = new_frame_output(disk, segments=50)
        with pytest.raises(OutOfDiskError) as caught, output.partition as partition:
            if large:
                partition.emit(bytes(3 * MIB), 0)
            emit_all(output, noise(13, 1000, 9000))
        assert caught.value.free == 0
        assert (names(disk), open_files(disk)) == ([], [])
        assert output.is_whole()


# The order of calls, and what is refused

CALLS: dict[str, Callable[[FrameOutput], object]] = {
    "emit": lambda output: output.partition.emit(b"lost", 0),
    "broadcast a frame": lambda output: output.partition.broadcast_frame(b"lost"),
    "broadcast an event": lambda output: output.partition.broadcast_event(SUPERSTEP),
    "finish": lambda output: output.partition.finish(WRITER),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_after_finish_is_a_state_error_and_changes_nothing(tmp_path: Path, call: str) -> None:
    output = new_frame_output(tmp_path)
    output.partition.emit(b"kept", 1)
    output.partition.finish(WRITER)
    with pytest.raises(StateError, match="is finished, which does not allow this call"):
        CALLS[call](output)
    assert output.records() == [[], [b"kept"], [], []]
    assert output.is_whole()


@pytest.mark.parametrize("call", CALLS)
def test_there_is_no_way_on_after_a_failure(tmp_path: Path, call: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        output = new_frame_output(disk)
        with pytest.raises(OutOfDiskError):
            output.partition.emit(bytes(3 * MIB), 0)
        with pytest.raises(StateError, match="is failed, which does not allow this call"):
            CALLS[call](output)
        output.partition.abandon()
        assert output.is_whole()


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path)
    with output.partition as partition:
        partition.emit(b"before", 3)
        for subpartition in (4, -1):
            with pytest.raises(UsageError):
                partition.emit(b"x", subpartition)
        with pytest.raises(TypeError):
            partition.emit("text", 0)
        partition.emit(b"after", 3)
        partition.finish(WRITER)
    assert output.records() == [[], [], [], [b"before", b"after"]]


@pytest.mark.parametrize(
    ("kind", "codec"), [(FRAMES, Codec.LZ4), (PICKLE, Codec.NONE), (PayloadKind.ARROW, Codec.NONE)]
)
def test_a_header_that_says_something_else_than_the_layout_is_refused(
    tmp_path: Path, kind: PayloadKind, codec: Codec
) -> None:
    segments = NetworkBufferPool(4, 4096, option="a test's segments")
    writer = PartitionedFileWriter(
        PartitionedFile.named(str(tmp_path), 1, 2, 3), FileHeader(ID, 1, 0, codec, kind)
    )
    layout = FrameLayout(FramesPayload(Codec.NONE), segments.create_pool(2), 4096)
    with pytest.raises(
        UsageError, match=f"header says {kind.name} with codec {codec.name}, its layout FRAMES"
    ):
        FrameResultPartition(writer, layout, MemoryBudget(MIB), TaskMetrics())
    assert (names(tmp_path), segments.available, segments.guaranteed) == ([], 4, 0)


def test_a_layout_of_rows_is_held_against_the_header_too(tmp_path: Path) -> None:
    import pyarrow as pa

    from sortshuffle.payload.arrow import ArrowPayload

    file = PartitionedFile.named(str(tmp_path), 1, 2, 3)
    writer = PartitionedFileWriter(file, FileHeader(ID, 4, 0, Codec.NONE, FRAMES))
    layout = PartitionLayout(ArrowPayload(pa.schema([]), Codec.NONE), Modulo(4), 4096)
    with pytest.raises(UsageError, match="header says FRAMES"):
        RowResultPartition(writer, layout, MemoryBudget(MIB), TaskMetrics())
    assert names(tmp_path) == []


@KINDS
def test_two_tasks_that_read_what_they_write_need_no_more_than_their_guarantee(
    tmp_path: Path, kind: PayloadKind
) -> None:
    """Each consumer emits again what it reads, out of one pool that just has their guaranteed segments."""
    source = new_frame_output(tmp_path, kind=kind, subpartitions=2, segments=50)
    with source.partition as partition:
        wanted = emit_all(source, noise(14, 400, 3000))
        partition.finish(WRITER)
    segments = NetworkBufferPool(4, 4096, option="a test's segments")
    outputs: list[FrameOutput] = []
    for attempt in range(2):
        pool = segments.create_pool(2)
        file = PartitionedFile.named(str(tmp_path), 4, attempt, attempt)
        writer = PartitionedFileWriter(file, FileHeader(ID, 1, 0, Codec.NONE, kind))
        budget = MemoryBudget(MIB)
        layout = FrameLayout(source.payload, pool, 4096)
        part = FrameResultPartition(writer, layout, budget, TaskMetrics())
        outputs.append(FrameOutput(part, source.payload, segments, budget, file))
    readers = [source.gate(s).records() for s in range(2)]
    for pair in zip(*readers, strict=True):
        for output, record in zip(outputs, pair, strict=True):
            output.partition.emit(frame(kind, bytes(record)), 0)
    for output in outputs:
        output.partition.finish(WRITER)
    assert [output.records() for output in outputs] == [[wanted[0]], [wanted[1]]]
    assert segments.available == 4
    assert frame_channel(outputs[0].file, 0).extents
