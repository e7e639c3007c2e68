"""The gate of records: frames and objects in a fixed order, each stream to its two end events and no further;
large frames through a file that nobody finds; nothing stays open or charged."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
from engine import (
    ID,
    WRITER,
    FrameOutput,
    arrow_memory,
    changed,
    frame_channel,
    names,
    new_frame_output,
    noise,
    open_files,
    small_disk,
)
from failing import faults
from map_outputs import reading_threads

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, MissingDataError, OutOfDiskError, Place
from sortshuffle.format.buffer import SealedBuffer, scan_buffer, seal
from sortshuffle.format.checksum import checksum, checksum_of_checksums
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.events import (
    END_OF_DATA,
    END_OF_PARTITION,
    SUPERSTEP,
    Barrier,
    UserEvent,
    seal_event,
)
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.pickled import PickledPayload, pack_chunk
from sortshuffle.payload.spanning import SPILL_BYTES, SpanningDeserializer, pack_length
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.records import RecordGate
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

FRAMES, PICKLE = PayloadKind.FRAMES, PayloadKind.PICKLE
KINDS = pytest.mark.parametrize("kind", [FRAMES, PICKLE], ids=["frames", "chunks"])


def write_map(
    directory: Path, map_index: int, records: Sequence[bytes], kind: PayloadKind = FRAMES, **shape: Any
) -> FrameOutput:
    """A map output whose subpartition 1 of 2 has these records."""
    output = new_frame_output(directory, kind=kind, subpartitions=2, attempt=map_index, **shape)
    with output.partition as partition:
        for record in records:
            partition.emit(pack_chunk([record]) if kind is PICKLE else record, 1)
        partition.finish(WRITER)
    return output


def gate_of(
    channels: Sequence[LocalInputChannel],
    kind: PayloadKind = FRAMES,
    *,
    codec: Codec = Codec.NONE,
    memory: int = 64 * MIB,
    threads: int = 3,
    spill: Path | None = None,
    metrics: TaskMetrics | None = None,
    budget: MemoryBudget | None = None,
) -> RecordGate:
    payload = PickledPayload(codec) if kind is PICKLE else FramesPayload(codec)
    return RecordGate(
        channels,
        payload,
        budget or MemoryBudget(memory),
        threads,
        metrics or TaskMetrics(),
        str(spill) if spill else None,
    )


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    """Where large frames are put together."""
    (tmp_path / "spill").mkdir()
    return tmp_path / "spill"


def as_bytes(records: Any) -> list[bytes]:
    return [bytes(record) for record in records]


# What is read


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("memory", [20 * KIB, 64 * MIB], ids=["streamed", "read ahead"])
def test_records_come_by_map_index_region_and_position(
    tmp_path: Path, kind: PayloadKind, codec: Codec, threads: int, memory: int
) -> None:
    written = {index: noise(index, 200, 3000) for index in (4, 1, 9)}
    channels = []
    for index, records in written.items():
        output = write_map(tmp_path, index, records, kind, codec=codec, segments=12)
        channels.append(frame_channel(output.file, 1, index))
        assert len(channels[-1].extents) > 5
    budget = MemoryBudget(memory)
    gate = gate_of(channels, kind, codec=codec, threads=threads, budget=budget)
    assert as_bytes(gate.records()) == [*written[1], *written[4], *written[9]]
    assert budget.used == 0
    assert open_files(tmp_path) == []
    assert reading_threads() == []


def test_buffers_and_events_say_which_channel_they_came_through(tmp_path: Path) -> None:
    channels = []
    for index in (3, 2):
        output = new_frame_output(tmp_path, subpartitions=1, attempt=index)
        with output.partition as partition:
            partition.emit(b"one", 0)
            partition.emit(b"two", 0)
            partition.broadcast_event(UserEvent("of", b"%d" % index))
            partition.finish(WRITER)
        channels.append(frame_channel(output.file, 0, index))
    found = [
        (item.map_index, as_bytes([frame for chunk in item.chunks for frame in chunk]), item.event)
        for item in gate_of(channels).buffers()
    ]
    assert found == [
        item
        for index in (2, 3)
        for item in (
            (index, [b"one", b"two"], None),
            (index, [], UserEvent("of", b"%d" % index)),
            (index, [], END_OF_DATA),
            (index, [], END_OF_PARTITION),
        )
    ]


def test_a_gate_without_channels_has_nothing(tmp_path: Path) -> None:
    assert list(gate_of([]).buffers()) == []


def test_what_was_read_is_counted(tmp_path: Path) -> None:
    output = write_map(tmp_path, 0, noise(1, 300, 2000), PICKLE, segments=20, codec=Codec.LZ4)
    channel = frame_channel(output.file, 1)
    metrics = TaskMetrics()
    list(gate_of([channel], PICKLE, codec=Codec.LZ4, metrics=metrics).records())
    counts = metrics.counts
    assert counts["rows_read"] == 300
    assert counts["bytes_read"] == sum(extent.bytes for extent in channel.extents)
    assert counts["raw_bytes_read"] == sum(extent.raw_bytes for extent in channel.extents)
    assert counts["extents_read"] == len(channel.extents)
    assert {"read", "verify", "decode", "wait"} <= set(metrics.seconds)


def test_frames_are_views_that_outlive_the_gate_and_the_file(tmp_path: Path) -> None:
    records = noise(2, 100, 5000)
    output = write_map(tmp_path, 0, records)
    budget = MemoryBudget(MIB)
    frames = list(gate_of([frame_channel(output.file, 1)], budget=budget).records())
    output.file.delete()
    assert budget.used == 0
    assert as_bytes(frames) == records
    assert all(frame.readonly for frame in frames)


@KINDS
@pytest.mark.parametrize("taken", [0, 1, 30])
@pytest.mark.parametrize("memory", [20 * KIB, 64 * MIB], ids=["streamed", "read ahead"])
def test_a_consumer_that_gives_up_leaves_nothing_open_or_charged(
    tmp_path: Path, kind: PayloadKind, taken: int, memory: int
) -> None:
    channels = [
        frame_channel(write_map(tmp_path, index, noise(index, 50, 5000), kind, segments=9).file, 1, index)
        for index in range(3)
    ]
    budget = MemoryBudget(memory)
    records = gate_of(channels, kind, budget=budget).records()
    for _ in range(taken):
        next(records)
    records.close()
    assert (budget.used, open_files(tmp_path), reading_threads()) == (0, [], [])


# Large frames


@pytest.mark.parametrize("memory", [MIB, 256 * MIB], ids=["streamed", "read ahead"])
@pytest.mark.parametrize("kind", [FRAMES, PICKLE])
def test_a_large_frame_is_put_together_in_a_file_that_has_no_name(
    tmp_path: Path, spill: Path, memory: int, kind: PayloadKind
) -> None:
    records = [b"small", random.Random(3).randbytes(SPILL_BYTES + 12_345), b"last"]
    output = write_map(tmp_path, 0, records, kind, segments=4096)
    found = []
    for record in gate_of([frame_channel(output.file, 1)], kind, memory=memory, spill=spill).records():
        found.append(record)
        assert names(spill) == []
    if kind is FRAMES:
        assert len(open_files(spill)) == 1, "as long as the frame is there"
    assert as_bytes(found) == records
    del found, record
    gc.collect()
    assert (open_files(spill), open_files(tmp_path)) == ([], [])


def test_where_disks_must_not_have_it_a_large_frame_is_put_together_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file is made")

    monkeypatch.setattr(calls, "nameless_file", no_file)
    records = [b"small", random.Random(3).randbytes(SPILL_BYTES + 12_345), b"last"]
    output = write_map(tmp_path, 0, records, FRAMES, segments=4096)
    channels = [frame_channel(output.file, 1)]
    gate = RecordGate(
        channels, FramesPayload(Codec.NONE), MemoryBudget(MIB), 1, TaskMetrics(), str(tmp_path), off_disk=True
    )
    assert as_bytes(list(gate.records())) == records


def test_a_consumer_that_gives_up_within_a_large_frame_leaves_no_file(tmp_path: Path, spill: Path) -> None:
    output = write_map(tmp_path, 0, [b"small", bytes(2 * SPILL_BYTES)], segments=4096)
    extents = frame_channel(output.file, 1).extents
    at = extents[0].offset + extents[0].bytes - 1000
    with changed(output.file.data_path, at, 1), pytest.raises(CorruptDataError, match="checksum"):
        list(gate_of([frame_channel(output.file, 1)], memory=MIB, spill=spill).records())
    assert (names(spill), open_files(spill), open_files(tmp_path)) == ([], [], [])


@pytest.mark.parametrize("options", ["size=1m", "size=1m,nr_inodes=1"], ids=["its bytes", "its file"])
def test_no_room_for_a_large_frame_is_said_with_the_directory(tmp_path: Path, options: str) -> None:
    output = write_map(tmp_path, 0, [bytes(SPILL_BYTES + 1)], segments=4096)
    with small_disk(tmp_path / "disk", options) as disk:
        with pytest.raises(OutOfDiskError) as caught:
            list(gate_of([frame_channel(output.file, 1)], spill=disk).records())
        assert caught.value.path == str(disk)
        assert open_files(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_no_memory_for_a_large_frame_is_said_of_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(number, os.strerror(number))

    output = write_map(tmp_path, 0, [bytes(SPILL_BYTES + 1)], segments=4096)
    monkeypatch.setattr(calls, "write", full)
    channels = [frame_channel(output.file, 1)]
    gate = RecordGate(channels, FramesPayload(Codec.NONE), MemoryBudget(MIB), 1, TaskMetrics(), off_disk=True)
    with pytest.raises(MemoryError, match=rf"no \d+ bytes for a large record: .*{os.strerror(number)}"):
        list(gate.records())
    assert open_files(tmp_path) == []


# Memory


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.95, 1.4], ids=lambda share: f"{share} of a buffer")
def test_no_more_memory_is_taken_than_was_charged(tmp_path: Path, codec: Codec, share: float) -> None:
    """Whole frames keep alive what was decompressed, and cut ones are copied from it."""
    segment = 64 * KIB
    size = int(share * segment)
    record = random.Random(7).randbytes(size // 8) + bytes(size - size // 8)
    shape = {"codec": codec, "segments": 200, "segment_bytes": segment}
    output = write_map(tmp_path, 0, [record] * (8 * MIB // size), **shape)
    channel = frame_channel(output.file, 1)
    budget = MemoryBudget(256 * MIB)
    with arrow_memory() as decompressed:
        tracemalloc.start()
        try:
            buffers = gate_of([channel], codec=codec, budget=budget).buffers()
            next(buffers)
            taken = decompressed.max_memory() + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        buffers.close()
    assert 8 * MIB < taken < budget.peak + MIB


# Faults


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("memory", [3000, 64 * MIB], ids=["streamed", "at once"])
def test_a_failure_of_any_call_leaves_nothing_open_or_charged(
    tmp_path: Path, spill: Path, kind: PayloadKind, codec: Codec, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sortshuffle.payload.frames.SpanningDeserializer", partial(SpanningDeserializer, spill_bytes=2000)
    )
    records = [each + bytes(2000) for each in noise(6, 8, 1500)]
    output = write_map(tmp_path, 0, records, kind, codec=codec, segments=4, segment_bytes=1024)
    channel = frame_channel(output.file, 1)
    failed: Counter[str] = Counter()
    for fault in faults("reading", "payload", "format", "storage/files/reader.py"):
        budget = MemoryBudget(memory)
        found: list[Any] = []
        before = len(open_files(tmp_path))
        gate = gate_of([channel], kind, codec=codec, budget=budget, spill=spill)
        with fault, closing(gate.records()) as found_now:
            found.extend(found_now)
        failed[fault.where] += 1
        assert as_bytes(found) == records[: len(found)]
        assert budget.used == 0, fault.where
        found.clear()
        if fault.where not in ("__enter__", "__exit__", "close"):  # of which nobody can close what they hold
            assert len(open_files(tmp_path)) == before, fault.where
        assert names(spill) == [], fault.where
    close_descriptors(tmp_path)
    for often in ("_new_record", "write", "view", "_continue", "scan_buffer", "check_event", "payload"):
        assert failed[often] > 0, often


def close_descriptors(directory: Path) -> None:
    """Of the files below it."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{number}").startswith(str(directory)):
                os.close(number)


# Streams that are not whole


def sealed(*records: bytes) -> SealedBuffer:
    stream = b"".join(pack_length(len(record)) + record for record in records)
    return seal(stream, len(stream), records=len(records))


DATA, EOD, EOP = sealed(b"a", b"b"), seal_event(END_OF_DATA), seal_event(END_OF_PARTITION)
STEP = seal_event(SUPERSTEP)


def write_stream(
    directory: Path, regions: Sequence[Sequence[SealedBuffer]], kind: PayloadKind = FRAMES
) -> LocalInputChannel:
    """A map output of one subpartition with exactly these buffers."""
    file = PartitionedFile.named(str(directory), 1, 0, 0)
    with PartitionedFileWriter(file, FileHeader(ID, 1, 0, Codec.NONE, kind)) as writer:
        for buffers in regions:
            writer.start_region()
            writer.write_extents([(0, list(buffers))])
            writer.finish_region()
        writer.finish(WRITER)
    return frame_channel(file, 0)


def test_the_control_a_stream_that_ends_as_it_must_is_read(tmp_path: Path) -> None:
    channel = write_stream(tmp_path, [[DATA, STEP], [DATA, EOD, EOP]])
    assert as_bytes(gate_of([channel]).records()) == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize(
    ("regions", "what"),
    [
        ([[DATA]], "does not end as a complete one"),
        ([[DATA], [EOD]], "does not end as a complete one"),
        ([[DATA], [EOP]], "does not end as a complete one"),
        ([[DATA], [EOP, EOD]], "an event behind its end"),
        ([[DATA], [EOD, EOP, EOP]], "an event behind its end"),
        ([[DATA], [EOD, EOD]], "an event behind its end"),
        ([[DATA], [EOD, STEP, EOP]], "an event behind its end"),
        ([[EOD], [DATA, EOP]], "data behind its end"),
        ([[DATA], [EOD, EOP], [DATA]], "data behind its end"),
        ([[DATA], [EOD, EOP], [STEP]], "an event behind its end"),
    ],
)
@pytest.mark.parametrize("memory", [200, MIB])
def test_a_stream_that_does_not_end_as_it_must_is_corrupt(
    tmp_path: Path, regions: list[list[SealedBuffer]], what: str, memory: int
) -> None:
    channel = write_stream(tmp_path, regions)
    with pytest.raises(CorruptDataError, match=what) as caught:
        list(gate_of([channel], memory=memory).buffers())
    place = caught.value.place
    assert (place.file, place.subpartition, place.writer) == (channel.file.data_path, 0, channel.writer)
    assert (place.region, place.offset) == (len(regions) - 1, channel.extents[-1].offset)
    assert open_files(tmp_path) == []


def test_extents_that_were_not_asked_for_are_missed(tmp_path: Path) -> None:
    output = write_map(tmp_path, 0, noise(4, 100, 3000), segments=9)
    channel = frame_channel(output.file, 1)
    for extents in (channel.extents[:-1], channel.extents[:1]):
        with pytest.raises(CorruptDataError, match="does not end as a complete one") as caught:
            list(gate_of([replace(channel, extents=extents)]).records())
        assert caught.value.found == "neither"
    with pytest.raises(CorruptDataError, match="there are no extents") as caught:
        list(gate_of([replace(channel, extents=())]).records())
    assert caught.value.place.file == output.file.data_path


def test_a_stream_without_an_end_is_found_before_the_next_begins(tmp_path: Path) -> None:
    channels = []
    for index in range(2):
        output = write_map(tmp_path, index, [b"of %d" % index])
        channel = frame_channel(output.file, 1, index)
        channels.append(replace(channel, extents=channel.extents[:1]) if index == 0 else channel)
    delivered: list[bytes] = []
    with pytest.raises(CorruptDataError, match="does not end") as caught:
        for record in gate_of(channels).records():
            delivered.append(bytes(record))
    assert delivered == [b"of 0"]
    assert caught.value.place.file == channels[0].file.data_path


@pytest.mark.parametrize("memory", [200, MIB])
def test_a_record_that_is_cut_at_the_end_of_an_extent_is_placed(tmp_path: Path, memory: int) -> None:
    stream = pack_length(3) + b"abc" + pack_length(10) + b"cut"
    cut = seal(stream, len(stream), records=1)
    channel = write_stream(tmp_path, [[DATA], [cut], [EOD, EOP]])
    delivered: list[bytes] = []
    with pytest.raises(CorruptDataError, match="the last record is cut short") as caught:
        for record in gate_of([channel], memory=memory).records():
            delivered.append(bytes(record))
    assert (caught.value.expected, caught.value.found) == (10, 3)
    assert (caught.value.place.region, caught.value.place.subpartition) == (1, 0)
    assert caught.value.place.offset == channel.extents[1].offset + channel.extents[1].bytes
    assert delivered[:2] in ([], [b"a", b"b"])


def test_another_number_of_records_than_promised_is_placed(tmp_path: Path) -> None:
    stream = pack_length(1) + b"a"
    channel = write_stream(tmp_path, [[seal(stream, len(stream), records=2)], [EOD, EOP]])
    with pytest.raises(CorruptDataError, match="another number of rows") as caught:
        list(gate_of([channel]).records())
    assert (caught.value.expected, caught.value.found) == ("2 rows in 5 bytes", "1 rows in 5 bytes")


def test_a_chunk_that_is_none_is_placed(tmp_path: Path) -> None:
    channel = write_stream(tmp_path, [[sealed(b"\1\0\0\0no pickle")], [EOD, EOP]], PICKLE)
    with pytest.raises(CorruptDataError, match="no pickle") as caught:
        list(gate_of([channel], PICKLE).records())
    assert caught.value.place.region == 0


def test_a_chunk_of_another_number_of_objects_is_corrupt(tmp_path: Path) -> None:
    chunk = pack_chunk([1, 2, 3])
    chunk[0] = 2
    stream = bytes(pack_length(len(chunk)) + chunk)
    channel = write_stream(tmp_path, [[seal(stream, len(stream), records=2)], [EOD, EOP]], PICKLE)
    with pytest.raises(CorruptDataError, match="another number of objects") as caught:
        list(gate_of([channel], PICKLE).records())
    assert caught.value.place == Place(channel.file.data_path, subpartition=0, writer=channel.writer), (
        "which extent it came from is not known"
    )
    assert (caught.value.expected, caught.value.found) == (2, 3)


def test_a_bad_chunk_is_placed_in_its_own_file_where_map_indexes_are_equal(tmp_path: Path) -> None:
    chunk = pack_chunk([1, 2, 3])
    channels = []
    for number, said in enumerate((3, 2)):
        (directory := tmp_path / str(number)).mkdir()
        chunk[0] = said
        stream = bytes(pack_length(len(chunk)) + chunk)
        regions = [[seal(stream, len(stream), records=said)], [EOD, EOP]]
        channels.append(write_stream(directory, regions, PICKLE))
    assert channels[0].map_index == channels[1].map_index
    with pytest.raises(CorruptDataError, match="another number of objects") as caught:
        list(gate_of(channels, PICKLE).records())
    assert caught.value.place.file == channels[1].file.data_path


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail, ()


def _fail() -> None:
    raise LookupError("no such thing here")


def test_an_error_of_the_users_unpickling_comes_as_it_is(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=1)
    with output.partition as partition:
        partition.emit(pack_chunk([Unreadable()]), 0)
        partition.finish(WRITER)
    with pytest.raises(LookupError, match="no such thing here"):
        list(output.gate(0).records())
    assert open_files(tmp_path) == []


# Damage

DAMAGE: dict[str, tuple[Callable[[FrameOutput], object], type[Exception]]] = {
    "gone": (lambda output: output.file.delete(), MissingDataError),
    "short": (lambda output: os.truncate(output.file.data_path, 5000), CorruptDataError),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("memory", [20 * KIB, 64 * MIB], ids=["streamed", "read ahead"])
def test_a_file_that_is_gone_or_short_is_placed(tmp_path: Path, how: str, memory: int) -> None:
    output = write_map(tmp_path, 0, noise(5, 100, 3000), segments=9)
    channel = frame_channel(output.file, 1)
    damage, error = DAMAGE[how]
    damage(output)
    budget = MemoryBudget(memory)
    with pytest.raises(error) as caught:
        list(gate_of([channel], budget=budget).records())
    assert caught.value.place.file == output.file.data_path  # type: ignore[attr-defined]
    assert (budget.used, open_files(tmp_path)) == (0, [])


@KINDS
def test_every_changed_byte_of_an_extent_is_found(tmp_path: Path, kind: PayloadKind) -> None:
    output = write_map(tmp_path, 0, [b"abc", b"d" * 100], kind)
    channel = frame_channel(output.file, 1)
    for extent in channel.extents:
        for offset in range(extent.offset, extent.offset + extent.bytes, 7):
            with changed(output.file.data_path, offset, 0x20), pytest.raises(CorruptDataError):
                list(gate_of([channel], kind).records())
    assert as_bytes(gate_of([channel], kind).records()) == [b"abc", b"d" * 100]


def damaged(data: bytearray, extents: Sequence[Extent], at: int, mask: int) -> list[Extent]:
    """One byte of these extents xor ``mask``, and all checksums as if it had always been so."""
    changed: list[Extent] = []
    for extent in extents:
        end = extent.offset + extent.bytes
        bounds = [extent.offset]
        while bounds[-1] < end:  # before the change, which may be to a size
            bounds.append(scan_buffer(memoryview(data), bounds[-1]).end)
        if extent.offset <= at < end:
            data[at] ^= mask
        checksums = []
        for start, stop in itertools.pairwise(bounds):
            checksums.append(checksum(bytes(data[start : stop - 8])))
            data[stop - 8 : stop] = checksums[-1].to_bytes(8, "little")
        changed.append(replace(extent, checksum=checksum_of_checksums(checksums)))
    return changed


@KINDS
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("memory", [400, MIB], ids=["streamed", "read ahead"])
def test_damage_that_the_checksums_do_not_show_is_placed_or_harmless(
    tmp_path: Path, kind: PayloadKind, codec: Codec, memory: int
) -> None:
    """A faulty or hostile writer: no byte of it makes anything but records or a placed error, nor takes
    memory. What unpickling does with a damaged pickle is its own affair, and is not done here."""
    output = new_frame_output(tmp_path, kind=kind, codec=codec, subpartitions=1, buffer_size=100)
    with output.partition as partition:
        for record in (b"abc", b"x" * 150, random.Random(8).randbytes(60)):
            partition.emit(pack_chunk([record]) if kind is PICKLE else record, 0)
        partition.broadcast_event(Barrier(1, 2, b"options"))
        partition.broadcast_event(UserEvent("name", b"data"))
        partition.finish(WRITER)
    path = output.file.data_path
    whole = Path(path).read_bytes()
    channel = frame_channel(output.file, 0)
    outcomes: Counter[str] = Counter()
    with arrow_memory() as pool:
        for number, at in enumerate(range(channel.extents[0].offset, len(whole))):
            data = bytearray(whole)
            extents = damaged(data, channel.extents, at, (0x01, 0x80, 0xFF, 0x02)[number % 4])
            Path(path).write_bytes(data)
            budget = MemoryBudget(memory)
            gate = gate_of([replace(channel, extents=tuple(extents))], kind, codec=codec, budget=budget)
            try:
                for _, item in gate._items():  # damaged pickles are not to be run
                    outcomes["frames"] += isinstance(item, list) and len(item)
                outcomes["read"] += 1
            except CorruptDataError as error:
                assert error.place.file == path
                outcomes["placed"] += 1
            assert budget.used == 0
        assert pool.max_memory() < 64 * KIB
    assert open_files(tmp_path) == []
    assert min(outcomes.values()) > 50, outcomes


def test_large_records_are_not_in_memory_together(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=1, segments=4000, buffer_size=1000)
    with output.partition as partition:
        for number in range(3):  # in one buffer, decoded they are large
            partition.emit(pack_chunk([LargeObject(number)]), 0)
        partition.finish(WRITER)
    alive: list[int] = []
    for record in output.gate(0).records():
        alive.append(len(LargeObject.alive))
        del record
    assert alive == [1, 1, 1]


class LargeObject:
    """Something of which it is known how many there are."""

    alive: ClassVar[WeakSet[LargeObject]] = WeakSet()

    def __init__(self, number: int) -> None:
        self.number = number
        LargeObject.alive.add(self)

    def __reduce__(self) -> Any:
        return LargeObject, (self.number,)
