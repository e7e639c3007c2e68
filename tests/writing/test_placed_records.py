"""`PlacedResultPartition` on placed records: whatever is written is read back, by subpartition and in its
order, in regions; memory within the budget and all of it given back; what is refused changes nothing; what
fails leaves no file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from engine import (
    ID,
    WRITER,
    arrow_memory,
    changed,
    end_region,
    names,
    open_files,
    small_disk,
)
from failing import faults
from hypothesis import given, settings
from hypothesis import strategies as st

from sortshuffle.errors import CorruptDataError, OutOfDiskError, StateError, UsageError
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.shared_budget import SharedBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.record_bytes import LEAST_COMPRESSED, RecordBytesPayload
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.placed_partition import PlacedResultPartition
from sortshuffle.writing.placed_records import MESSAGE_BYTES, PlacedRecords, RecordBytesLayout

Record = tuple[int, bytes]
Frames = Sequence[Sequence[Record]]


@dataclass
class PlacedOutput:
    """A result partition to write placed records into, with all that it is made of."""

    partition: PlacedResultPartition
    payload: RecordBytesPayload
    budget: MemoryBudget
    file: PartitionedFile

    def write(self, frames: Frames) -> PlacedOutput:
        with self.partition as partition:
            for records in frames:
                partition.write(placed(records))
            partition.finish(WRITER)
        return self

    def messages(self) -> list[list[bytes]]:
        """The bytes of every buffer of each subpartition, verified."""
        index = read_index(self.file, ID)
        found: list[list[bytes]] = [[] for _ in range(index.header.subpartitions)]
        with PartitionedFileReader(self.file, ID) as reader:
            for subpartition in np.flatnonzero(index.entries["bytes"].any(axis=0)).tolist():
                for extent in extents_of(index, subpartition):
                    part = reader.read_extent(extent)
                    raw = (self.payload.raw(part.memory, each) for each in part.buffers)
                    found[subpartition] += [each.to_pybytes() for each in raw]
        return found

    def bytes(self) -> list[bytes]:
        """All bytes of each subpartition."""
        return [b"".join(messages) for messages in self.messages()]


def new_placed_output(
    directory: Path | str,
    *,
    memory: int | MemoryBudget,
    subpartitions: int = 4,
    codec: Codec = Codec.NONE,
    first: int = 0,
    region_bytes: int | None = None,
) -> PlacedOutput:
    file = PartitionedFile.named(str(directory), 3, 17, 204)
    payload = RecordBytesPayload(codec)
    budget = MemoryBudget(memory) if isinstance(memory, int) else memory
    header = FileHeader(ID, subpartitions, first, codec, PayloadKind.RECORD_BYTES)
    writer = PartitionedFileWriter(file, header)
    layout = RecordBytesLayout(payload, subpartitions, region_bytes)
    return PlacedOutput(PlacedResultPartition(writer, layout, budget, TaskMetrics()), payload, budget, file)


def placed(records: Sequence[Record]) -> PlacedRecords:
    data = [record for _, record in records]
    return PlacedRecords(
        np.array([subpartition for subpartition, _ in records], np.int32),
        np.cumsum([len(record) for record in data], dtype=np.int32),
        b"".join(data),
    )


def wanted(frames: Frames, subpartitions: int) -> list[bytes]:
    found = [bytearray() for _ in range(subpartitions)]
    for records in frames:
        for subpartition, record in records:
            found[subpartition] += record
    return [bytes(each) for each in found]


def noise(seed: int, count: int, most: int, subpartitions: int = 4) -> list[Record]:
    """Records that are all different, of up to ``most`` bytes."""
    chosen = random.Random(seed)
    return [
        (
            chosen.randrange(subpartitions),
            b"%d-%d " % (seed, number) + chosen.randbytes(chosen.randrange(most)),
        )
        for number in range(count)
    ]


def kinds(output: PlacedOutput) -> list[RegionKind]:
    return list(read_index(output.file).kinds)


def check_sums(output: PlacedOutput, frames: Frames) -> None:
    """What the partition says of itself is what the index says, and what was written."""
    index, partition = read_index(output.file), output.partition
    count = index.header.subpartitions
    assert partition.subpartition_bytes.tolist() == index.entries["bytes"].sum(axis=0).tolist()
    assert partition.subpartition_records.tolist() == index.entries["records"].sum(axis=0).tolist()
    counted = Counter(subpartition for records in frames for subpartition, _ in records)
    assert partition.subpartition_records.tolist() == [counted[each] for each in range(count)]
    raw = index.entries["raw_bytes"].sum(axis=0).tolist()
    assert raw == [len(each) for each in wanted(frames, count)]
    counts = partition.metrics.counts
    assert (counts["rows_written"], counts["raw_bytes_written"]) == (sum(map(len, frames)), sum(raw))
    assert (counts["regions"], counts["files"]) == (index.regions, 2)
    assert counts["bytes_written"] == index.data_bytes == os.path.getsize(output.file.data_path)


# What is written is read back

RECORD = st.one_of(
    st.binary(max_size=20),
    st.just(b""),
    st.builds(bytes.__mul__, st.binary(min_size=1, max_size=3), st.integers(0, 3000)),
)


@settings(max_examples=50)
@given(
    st.sampled_from(Codec),
    st.one_of(st.integers(1, 5), st.sampled_from([256, 257, 1000, 3000])),
    st.lists(st.lists(st.tuples(st.integers(0, 10**6), RECORD), min_size=1, max_size=40), max_size=6),
    st.sampled_from([4 * KIB, 64 * KIB, 64 * MIB]),
)
def test_any_records_come_back_in_their_order(
    tmp_path: Path, codec: Codec, subpartitions: int, drawn: Frames, memory: int
) -> None:
    frames = [[(target % subpartitions, record) for target, record in records] for records in drawn]
    output = new_placed_output(tmp_path, memory=memory, subpartitions=subpartitions, codec=codec)
    try:
        assert output.write(frames).bytes() == wanted(frames, subpartitions)
        check_sums(output, frames)
        assert output.budget.used == 0
    finally:
        output.file.delete()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(("subpartitions", "first"), [(1, 0), (7, 3), (300, 299), (3000, 0)])
@pytest.mark.parametrize("memory", [64 * KIB, 64 * MIB], ids=["many regions", "one region"])
def test_records_of_many_frames_come_back_in_the_order_of_arrival(
    tmp_path: Path, codec: Codec, subpartitions: int, first: int, memory: int
) -> None:
    frames = [noise(seed, 500, 60, subpartitions) for seed in range(10)]
    output = new_placed_output(tmp_path, memory=memory, subpartitions=subpartitions, first=first, codec=codec)
    assert output.write(frames).bytes() == wanted(frames, subpartitions)
    check_sums(output, frames)
    assert set(kinds(output)) == {RegionKind.UNICAST}
    regions = len(kinds(output))
    assert regions == 1 if memory == 64 * MIB else regions >= 3
    assert output.partition.metrics.counts["spills"] == regions - 1


SIZE = st.sampled_from([None, 0, 1, 47, 48, 49, LEAST_COMPRESSED - 1, LEAST_COMPRESSED, 300])


@pytest.mark.parametrize("codec", Codec)
@given(st.lists(SIZE, min_size=1, max_size=60), st.integers(0, 59), st.integers(0, 59))
def test_many_small_extents_at_once_are_what_they_would_be_one_by_one(
    tmp_path: Path, codec: Codec, sizes: list[int | None], first: int, cut: int
) -> None:
    """A region of one frame is written in runs of small neighbours, one of several frames extent by extent:
    the same files."""
    count, chosen = len(sizes), random.Random(1)
    records = [(at, chosen.randbytes(size)) for at, size in enumerate(sizes) if size is not None]
    chosen.shuffle(records)
    cut = min(cut, len(records))
    frames = [each for each in (records[:cut], records[cut:]) if each]
    files = []
    for each in ([records] if records else [], frames):
        output = new_placed_output(
            tmp_path, memory=MIB, subpartitions=count, codec=codec, first=first % count
        )
        try:
            assert output.write(each).bytes() == wanted([records], count)
            check_sums(output, [records] if records else [])
            assert output.budget.used == 0
            files.append(
                [Path(path).read_bytes() for path in (output.file.data_path, output.file.index_path)]
            )
        finally:
            output.file.delete()
    assert files[0] == files[1]


def test_a_partition_without_records_is_two_readable_files(tmp_path: Path) -> None:
    output = new_placed_output(tmp_path, memory=MIB).write([])
    assert (output.messages(), kinds(output), len(names(tmp_path))) == ([[]] * 4, [], 2)
    check_sums(output, [])


def test_records_of_no_bytes_are_counted_where_they_went(tmp_path: Path) -> None:
    frames = [[(2, b"")], [(0, b""), (2, b""), (1, b"x"), (2, b"")]]
    output = new_placed_output(tmp_path, memory=MIB).write(frames)
    assert output.messages() == [[b""], [b"x"], [b""], []]
    assert output.partition.subpartition_records.tolist() == [1, 1, 3, 0]
    check_sums(output, frames)


@pytest.mark.parametrize("codec", Codec)
def test_all_records_may_go_to_one_subpartition(tmp_path: Path, codec: Codec) -> None:
    frames = [[(7, record) for _, record in noise(seed, 500, 200)] for seed in range(10)]
    output = new_placed_output(tmp_path, memory=256 * KIB, subpartitions=16, codec=codec).write(frames)
    assert output.bytes() == wanted(frames, 16)
    check_sums(output, frames)


def test_the_memory_of_a_frame_may_be_used_again(tmp_path: Path) -> None:
    """A frame with one record, and one whose records are in order already, are copied as well."""
    cases = [[(0, b"one record alone")], [(0, b"in "), (1, b"order "), (2, b"already")], noise(1, 100, 50)]
    output = new_placed_output(tmp_path, memory=MIB)
    with output.partition as partition:
        for records in cases:
            given_records = placed(records)
            data = bytearray(given_records.data)
            partition.write(PlacedRecords(given_records.ids, given_records.ends, memoryview(data)))
            given_records.ids[:] = 0
            given_records.ends[:] = 0
            data[:] = b"\xff" * len(data)
        partition.finish(WRITER)
    assert output.bytes() == wanted(cases, 4)


# Records and messages of any size


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_record_larger_than_the_memory_has_a_region_of_its_own(tmp_path: Path, codec: Codec) -> None:
    large = random.Random(8).randbytes(3 * MIB)
    frames = [noise(1, 100, 100), [(1, large)], noise(2, 100, 100), noise(3, 100, 100), [(2, large)]]
    output = new_placed_output(tmp_path, memory=MIB, codec=codec).write(frames)
    assert output.bytes() == wanted(frames, 4)
    records = read_index(output.file).entries["records"].sum(axis=1).tolist()
    assert records == [100, 1, 200, 1]
    check_sums(output, frames)
    assert output.budget.used == 0


@pytest.mark.parametrize("size", [MESSAGE_BYTES - 1, MESSAGE_BYTES, MESSAGE_BYTES + 1, 3 * MESSAGE_BYTES])
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_an_extent_is_cut_into_messages_of_a_size(tmp_path: Path, size: int, pieces: int) -> None:
    """Its bytes come from several frames, and are cut wherever a message is full."""
    data = random.Random(9).randbytes(size)
    cuts = [round(at * size / pieces) for at in range(pieces + 1)]
    frames = [[(1, data[cuts[at] : cuts[at + 1]])] for at in range(pieces)]
    output = new_placed_output(tmp_path, memory=64 * MIB).write(frames)
    messages = output.messages()[1]
    assert b"".join(messages) == data
    full, rest = divmod(size, MESSAGE_BYTES)
    assert list(map(len, messages)) == [MESSAGE_BYTES] * full + [rest] * bool(rest)
    assert output.partition.subpartition_records.tolist() == [0, pieces, 0, 0]
    check_sums(output, frames)


def test_with_little_memory_messages_are_small(tmp_path: Path) -> None:
    frames = [[(1, random.Random(10).randbytes(100 * KIB))]]
    output = new_placed_output(tmp_path, memory=256 * KIB).write(frames)
    assert list(map(len, output.messages()[1])) == [16 * KIB] * 6 + [4 * KIB]


# Memory


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize("subpartitions", [1, 16, 1000])
@pytest.mark.parametrize("most", [200, 80, 2], ids=["noise", "3.5 times smaller", "compressible"])
def test_memory_stays_within_the_budget_whatever_the_amount_of_data(
    tmp_path: Path, codec: Codec, times: int, subpartitions: int, most: int
) -> None:
    memory = 2 * MIB
    frame = placed([(at, record + bytes(120)) for at, record in noise(1, 1500, most, subpartitions)])
    with arrow_memory() as pool:
        output = new_placed_output(tmp_path, memory=memory, subpartitions=subpartitions, codec=codec)
        written = 0
        with output.partition as partition:
            while written < times * memory:
                partition.write(frame)
                written += len(frame.data)
            partition.finish(WRITER)
    assert (output.budget.used, pool.bytes_allocated()) == (0, 0)
    assert output.budget.peak <= memory
    assert pool.max_memory() <= memory
    assert times <= len(kinds(output)) <= 3 * times


def test_many_frames_of_few_records_stay_within_the_budget(tmp_path: Path) -> None:
    """Each holds bounds for all subpartitions, 24 KiB here, beside its record."""
    memory = MIB
    frames = [[(number % 3000, b"%d" % number)] for number in range(300)]
    output = new_placed_output(tmp_path, memory=memory, subpartitions=3000).write(frames)
    assert output.bytes() == wanted(frames, 3000)
    assert output.budget.peak <= memory


@pytest.mark.parametrize("size, regions", [(None, 1), (1, 40), (MIB, 4), (10 * MIB, 1)])
def test_a_region_that_is_large_enough_takes_no_more(tmp_path: Path, size: int | None, regions: int) -> None:
    frames = [noise(at, 50, 4000) for at in range(40)]
    output = new_placed_output(tmp_path, memory=64 * MIB, region_bytes=size).write(frames)
    assert len(kinds(output)) == regions
    assert output.partition.metrics.counts["spills"] == regions - 1
    assert output.bytes() == wanted(frames, 4)


@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_abandoning_lets_go_of_all_memory_and_leaves_no_file(tmp_path: Path, count: int) -> None:
    with arrow_memory() as pool:
        output = new_placed_output(tmp_path, memory=MIB, codec=Codec.LZ4)
        for seed in range(count):
            output.partition.write(placed(noise(seed, 500, 100)))
        assert (output.budget.used > 0) == bool(count)
        output.partition.abandon()
        assert (output.budget.used, pool.bytes_allocated()) == (0, 0)
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])
    output.partition.abandon()
    with pytest.raises(StateError, match="is abandoned, which does not allow this call"):
        output.partition.write(placed([(0, b"late")]))


def test_writers_that_share_the_memory_keep_to_it_and_give_it_back(tmp_path: Path) -> None:
    shared = SharedBudget(8 * MIB, MIB)
    frames = [[noise(100 * at + seed, 100, 3000) for seed in range(40)] for at in range(4)]
    outputs = []
    for at in range(4):
        (tmp_path / str(at)).mkdir()
        outputs.append(new_placed_output(tmp_path / str(at), memory=shared.open(f"map {at}")))
    for round_ in range(40):
        for output, each in zip(outputs, frames, strict=True):
            output.partition.write(placed(each[round_]))
        assert shared.used == sum(output.budget.used for output in outputs) <= shared.limit
    outputs[0].partition.abandon()
    for output, each in zip(outputs[1:], frames[1:], strict=True):
        output.partition.finish(WRITER)
        assert output.bytes() == wanted(each, 4)
    assert shared.peak <= shared.limit
    assert shared.used == 0


# What is refused

IDS, ENDS = [0, 3, 1], [1, 1, 5]
REFUSED: dict[str, tuple[list[int], list[int], bytes, str]] = {
    "an id above": ([0, 4, 1], ENDS, b"abcde", "a record for subpartition 4 of 4"),
    "an id below": ([0, -1, 1], ENDS, b"abcde", "a record for subpartition -1 of 4"),
    "both": ([0, -(2**31), 2**31 - 1], ENDS, b"abcde", "a record for subpartition -2147483648 of 4"),
    "too few ids": ([0, 3], ENDS, b"abcde", "2 ids for 3 records"),
    "too few ends": (IDS, [1, 5], b"abcde", "3 ids for 2 records"),
    "nothing": ([], [], b"", "0 ids for 0 records"),
    "ends that go back": (IDS, [3, 1, 5], b"abcde", "do not cut their 5 bytes"),
    "an end below": (IDS, [-1, 1, 5], b"abcde", "do not cut their 5 bytes"),
    "bytes behind": (IDS, ENDS, b"abcdef", "do not cut their 6 bytes"),
    "bytes missing": (IDS, ENDS, b"abcd", "do not cut their 4 bytes"),
    "an end beyond": (IDS, [1, 2**31 - 1, 5], b"abcde", "do not cut their 5 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path, case: str) -> None:
    ids, ends, data, message = REFUSED[case]
    output = new_placed_output(tmp_path, memory=MIB)
    with output.partition as partition:
        partition.write(placed([(3, b"before")]))
        held = output.budget.used
        with pytest.raises(UsageError, match=message):
            partition.write(PlacedRecords(np.array(ids, np.int32), np.array(ends, np.int32), data))
        assert output.budget.used == held
        partition.write(placed([(3, b", after")]))
        partition.finish(WRITER)
    assert output.bytes() == [b"", b"", b"", b"before, after"]
    check_sums(output, [[(3, b"before")], [(3, b", after")]])


@given(
    st.lists(st.integers(-3, 7), max_size=5), st.lists(st.integers(-3, 12), max_size=5), st.binary(max_size=9)
)
def test_what_is_not_refused_is_written_as_it_stands(
    tmp_path: Path, ids: list[int], ends: list[int], data: bytes
) -> None:
    output = new_placed_output(tmp_path, memory=MIB)
    is_sound = (
        len(ids) == len(ends) > 0
        and all(0 <= each < 4 for each in ids)
        and ends == sorted(ends)
        and ends[0] >= 0
        and ends[-1] == len(data)
    )
    try:
        with output.partition as partition:
            try:
                partition.write(PlacedRecords(np.array(ids, np.int32), np.array(ends, np.int32), data))
                accepted = True
            except UsageError:
                accepted = False
            partition.finish(WRITER)
        assert accepted == is_sound
        starts = [0, *ends[:-1]]
        records = [(id_, data[a:b]) for id_, a, b in zip(ids, starts, ends, strict=True)] if is_sound else []
        assert output.bytes() == wanted([records], 4)
    finally:
        output.file.delete()


@pytest.mark.parametrize(
    ("kind", "codec"), [(PayloadKind.RECORD_BYTES, Codec.LZ4), (PayloadKind.FRAMES, Codec.NONE)]
)
def test_a_header_that_says_something_else_than_the_layout_is_refused(
    tmp_path: Path, kind: PayloadKind, codec: Codec
) -> None:
    file = PartitionedFile.named(str(tmp_path), 1, 2, 3)
    writer = PartitionedFileWriter(file, FileHeader(ID, 4, 0, codec, kind))
    layout = RecordBytesLayout(RecordBytesPayload(Codec.NONE), 4)
    with pytest.raises(UsageError, match=f"the file's header says {kind.name} with codec {codec.name}"):
        PlacedResultPartition(writer, layout, MemoryBudget(MIB), TaskMetrics())
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])


# Failures


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_failure_of_any_call_leaves_no_memory_and_no_file(tmp_path: Path, codec: Codec) -> None:
    """Every call of a function that writes fails once: for each frame, region, message, and for the end."""
    frames = [[(at, b"%d" % at) for at in range(20)], [(1, bytes(4000))], noise(2, 8, 400, 3), [(2, b"x")]]
    failed: Counter[str] = Counter()
    for fault in faults("writing", "payload/record_bytes.py", "format/extent_run.py", "storage/writer.py"):
        output = new_placed_output(tmp_path, memory=16 * KIB, subpartitions=20, codec=codec)
        with fault:
            output.partition.write(placed(frames[0]))
            end_region(output.partition)
            for records in frames[1:]:
                output.partition.write(placed(records))
            output.partition.finish(WRITER)
        failed[fault.where] += 1
        if not fault.where:
            assert output.bytes() == wanted(frames, 20)
        output.partition.abandon()
        assert output.budget.used == 0, fault.where
        assert open_files(tmp_path) == [], fault.where
        if os.path.exists(output.file.index_path):
            output.file.delete()  # the pair was complete: there was no fault, or one behind its end
        assert names(tmp_path) == [], fault.where
    for often in (
        "_clustered",
        "_messages",
        "drain",
        "add",
        "room_for",
        "finish",
        "check",
        "seal",
        "seal_run",
    ):
        assert failed[often] > 0, often


@pytest.mark.parametrize("large", [False, True], ids=["regions", "a large record"])
def test_a_full_disk_leaves_no_file_and_no_memory(tmp_path: Path, large: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        output = new_placed_output(disk, memory=512 * KIB)
        with pytest.raises(OutOfDiskError) as caught, output.partition as partition:
            if large:
                partition.write(placed([(0, bytes(3 * MIB))]))
            for seed in range(100):
                partition.write(placed(noise(seed, 500, 200)))
            partition.finish(WRITER)
        assert (caught.value.path, caught.value.free) == (str(disk), 0)
        assert (names(disk), open_files(disk), output.budget.used) == ([], [], 0)


def test_a_changed_byte_is_corrupt_data(tmp_path: Path) -> None:
    output = new_placed_output(tmp_path, memory=64 * KIB, codec=Codec.LZ4)
    frames = [noise(seed, 200, 60) for seed in range(5)]
    output.write(frames)
    for offset in range(0, os.path.getsize(output.file.data_path), 97):
        with changed(output.file.data_path, offset, 0xFF), pytest.raises(CorruptDataError):
            output.bytes()
    assert output.bytes() == wanted(frames, 4)


CALLS: dict[str, Callable[[PlacedResultPartition], object]] = {
    "write": lambda partition: partition.write(placed([(0, b"lost")])),
    "finish": lambda partition: partition.finish(WRITER),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_after_finish_is_a_state_error_and_changes_nothing(tmp_path: Path, call: str) -> None:
    output = new_placed_output(tmp_path, memory=MIB).write([[(1, b"kept")]])
    with pytest.raises(StateError, match="is finished, which does not allow this call"):
        CALLS[call](output.partition)
    assert output.bytes() == [b"", b"kept", b"", b""]
    assert output.budget.used == 0


@pytest.mark.parametrize("call", CALLS)
def test_there_is_no_way_on_after_a_failure(tmp_path: Path, call: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        output = new_placed_output(disk, memory=MIB)
        with pytest.raises(OutOfDiskError):
            output.partition.write(placed([(0, bytes(3 * MIB))]))
            output.partition.finish(WRITER)
        with pytest.raises(StateError, match="is failed, which does not allow this call"):
            CALLS[call](output.partition)
        output.partition.abandon()
        assert (names(disk), output.budget.used) == ([], 0)


def test_writing_does_not_import_pandas(tmp_path: Path) -> None:
    """It takes 0.2 s, and memory for the life of the engine."""
    script = """
import sys
import numpy as np
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.placed_records import PlacedRecords, RecordBytesLayout
from sortshuffle.writing.placed_partition import PlacedResultPartition

header = FileHeader(bytes(range(16)), 2, 0, Codec.LZ4, PayloadKind.RECORD_BYTES)
writer = PartitionedFileWriter(PartitionedFile.named(sys.argv[1], 1, 2, 3), header)
layout = RecordBytesLayout(RecordBytesPayload(Codec.LZ4), 2)
partition = PlacedResultPartition(writer, layout, MemoryBudget(1 << 20), TaskMetrics())
partition.write(PlacedRecords(np.array([1, 0], np.int32), np.array([1, 3], np.int32), b"abc"))
partition.finish(WriterInfo())
print("pandas" in sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "False\n"
