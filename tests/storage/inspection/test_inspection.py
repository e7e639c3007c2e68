"""What `storage.inspection.contents` says of pairs in every state, which the real writer built."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sortshuffle import calls
from sortshuffle.errors import Place, UsageError
from sortshuffle.format.buffer import DataType, SealedBuffer, StoredBuffer, seal
from sortshuffle.format.checksum import checksum
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, Codec, FileHeader, PayloadKind
from sortshuffle.format.index import ENTRY_BYTES, FOOTER_BYTES, RegionKind, WriterInfo
from sortshuffle.format.malformed import Malformed
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.inspection import data_check
from sortshuffle.storage.inspection.contents import FileFault, Inspection, PairState, Spread, inspect
from sortshuffle.storage.inspection.data_check import DataCheck, check_data
from sortshuffle.storage.inspection.finding import find_pairs
from sortshuffle.storage.writer import PartitionedFileWriter

R = 4
FIRST = 1
FILE_ID = b"0123456789abcdef"

# sizes of the payloads of each subpartition, by region; the third region is a broadcast region
UNICAST = ({0: [100, 200], 1: [50], 3: [1000]}, {1: [70, 1], 2: [300]})
BROADCAST = [40, 41]


def payload(size: int, seed: int) -> bytes:
    return bytes((seed * 31 + i) % 251 for i in range(size))


def buffers(sizes: list[int], seed: int) -> list[SealedBuffer]:
    return [seal(payload(size, seed + i), size, records=size) for i, size in enumerate(sizes)]


def open_writer(directory: Path, map_index: int = 0, file_id: bytes = FILE_ID) -> PartitionedFileWriter:
    header = FileHeader(file_id, R, FIRST, Codec.NONE, PayloadKind.FRAMES)
    return PartitionedFileWriter(PartitionedFile.named(str(directory), 7, map_index, 70 + map_index), header)


def write_unicast(writer: PartitionedFileWriter, region: int) -> None:
    writer.start_region()
    extents = UNICAST[region]
    writer.write_extents([(s, buffers(extents[s], s)) for s in writer.write_order if s in extents])
    writer.finish_region()


def write_broadcast(writer: PartitionedFileWriter) -> None:
    writer.start_region(RegionKind.BROADCAST)
    writer.write_extents([(0, buffers(BROADCAST, 9))])
    writer.finish_region()


def written(directory: Path, map_index: int = 0, file_id: bytes = FILE_ID) -> PartitionedFile:
    """A finished pair of two unicast regions and a broadcast region."""
    with open_writer(directory, map_index, file_id) as writer:
        write_unicast(writer, 0)
        write_unicast(writer, 1)
        write_broadcast(writer)
        return writer.finish(WriterInfo(application="app", exchange=7, map_index=map_index, attempt=70))


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return written(tmp_path)


@pytest.fixture
def unfinished(tmp_path: Path) -> Iterator[tuple[PartitionedFileWriter, PartitionedFile]]:
    """A writer after its second region, and a copy of its files that nobody holds: a killed task's."""
    writer = open_writer(tmp_path)
    write_unicast(writer, 0)
    write_broadcast(writer)
    copied = tmp_path / "copied"
    copied.mkdir()
    for path in (writer.file.partial_data_path, writer.file.partial_index_path):
        shutil.copy(path, copied)
    yield writer, PartitionedFile.named(str(copied), 7, 0, 70)
    writer.abandon()


def state(found: Inspection) -> PairState:
    return found.state(check_data(found).faults)


def all_faults(path: str) -> tuple[FileFault, ...]:
    found = inspect(path)
    return found.faults + check_data(found).faults


def flip(path: str, offset: int, bit: int = 1) -> None:
    with open(path, "r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ bit]))


def rewrite(path: str, change: Callable[[bytearray], None]) -> None:
    content = bytearray(Path(path).read_bytes())
    change(content)
    Path(path).write_bytes(content)


def sign_index(content: bytearray) -> None:
    """Make the checksum of a changed index right again."""
    content[-16:-8] = struct.pack("<Q", checksum(bytes(content[:-16])))


# ---- whole pairs ----------------------------------------------------------------------------------------


def test_a_finished_pair_is_complete_whichever_file_is_named(file: PartitionedFile) -> None:
    for path in (file.data_path, file.index_path):
        found = inspect(path)
        assert found.base == file.base
        assert found.faults == ()
        assert check_data(found) == DataCheck()
        assert state(found) is PairState.COMPLETE


def test_its_table_is_what_was_written(file: PartitionedFile) -> None:
    found = inspect(file.data_path)
    table = found.table
    assert table is not None and found.header is not None and found.writer is not None
    assert table.kinds == (RegionKind.UNICAST, RegionKind.UNICAST, RegionKind.BROADCAST)
    assert (found.header.subpartitions, found.header.first_subpartition) == (R, FIRST)
    assert (found.writer.application, found.writer.exchange) == ("app", 7)
    records = {(e.region, e.subpartition): e.records for e in table.extents() if e.bytes}
    expected = {(r, s): sum(sizes) for r, extents in enumerate(UNICAST) for s, sizes in extents.items()}
    assert records == {**expected, (2, 0): sum(BROADCAST)}
    assert table.end == os.path.getsize(file.data_path)


def test_a_consumer_gets_its_own_extents_and_the_broadcast_ones(file: PartitionedFile) -> None:
    table = inspect(file.data_path).table
    assert table is not None
    assert [e.records for e in table.extents(1)] == [50, 71, 81]
    assert table.per_subpartition("records").tolist() == [381, 202, 381, 1081]
    assert table.totals.records == 300 + 50 + 1000 + 71 + 300 + 81
    assert table.totals.buffers == 4 + 3 + 2
    assert table.totals.extents == 3 + 2 + 1
    assert table.totals.bytes == os.path.getsize(file.data_path) - HEADER_BYTES


def test_the_spread_over_subpartitions(file: PartitionedFile) -> None:
    table = inspect(file.data_path).table
    assert table is not None
    spread = Spread.of(table.per_subpartition("records"))
    assert spread == Spread(least=202, median=381.0, most=1081, largest=3, empty=0)


def test_progress_adds_up_to_the_data(file: PartitionedFile) -> None:
    done: list[int] = []
    check_data(inspect(file.data_path), advance=done.append)
    assert sum(done) == os.path.getsize(file.data_path) - HEADER_BYTES


def test_buffers_larger_than_a_part_are_walked(
    file: PartitionedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_check, "PART_BYTES", 64)
    found = inspect(file.data_path)
    assert check_data(found) == DataCheck()
    os.unlink(file.index_path)
    assert len(check_data(inspect(file.data_path)).loose) == 9


# ---- damage ---------------------------------------------------------------------------------------------


def test_every_flipped_byte_of_the_data_file_is_found_in_its_extent(file: PartitionedFile) -> None:
    table = inspect(file.data_path).table
    assert table is not None
    owner = {}
    for extent in table.extents():
        number = None if table.is_broadcast(extent.region) else extent.subpartition
        owner |= dict.fromkeys(range(extent.offset, extent.offset + extent.bytes), (extent.region, number))
    for offset in range(os.path.getsize(file.data_path)):
        flip(file.data_path, offset)
        found = inspect(file.data_path)
        check = check_data(found)
        faults = found.faults + check.faults
        assert len(faults) == 1, offset
        assert faults[0].place.file == file.data_path
        if offset >= HEADER_BYTES:
            assert check.faulty_extents() == {owner[offset]}, offset
        flip(file.data_path, offset)
    assert state(inspect(file.data_path)) is PairState.COMPLETE


def test_every_flipped_byte_of_the_index_is_found(file: PartitionedFile) -> None:
    for offset in range(os.path.getsize(file.index_path)):
        flip(file.index_path, offset, bit=1 << offset % 8)
        found = inspect(file.index_path)
        assert found.faults and found.faults[0].place.file == file.index_path, offset
        assert found.table is None, offset
        assert found.state() is PairState.DAMAGED
        flip(file.index_path, offset, bit=1 << offset % 8)


@pytest.mark.parametrize("which", ["data", "index"])
def test_every_shorter_file_is_damaged(file: PartitionedFile, which: str) -> None:
    path = file.data_path if which == "data" else file.index_path
    content = Path(path).read_bytes()
    for size in range(0, len(content), 13):
        Path(path).write_bytes(content[:size])
        assert any(fault.place.file == path for fault in all_faults(path)), size


def test_bytes_behind_the_last_extent_are_a_fault(file: PartitionedFile) -> None:
    with open(file.data_path, "ab") as opened:
        opened.write(bytes(64))
    faults = [fault.what for fault in all_faults(file.data_path)]
    assert faults == ["the data file is longer than its index says", "a buffer fails its checksum"]


def test_without_an_index_the_buffers_are_listed(file: PartitionedFile) -> None:
    os.unlink(file.index_path)
    found = inspect(file.data_path)
    assert [str(fault) for fault in found.faults] == ["the index file is missing"]
    assert found.faults[0].place == Place(file.index_path)
    assert found.table is None and found.header is not None
    loose = check_data(found).loose
    assert [each.raw_bytes for each in loose] == [50, 1000, 100, 200, 70, 1, 300, 40, 41]
    assert loose[0].offset == HEADER_BYTES
    assert {each.data_type for each in loose} == {"DATA"}


def test_without_an_index_the_walk_goes_on_past_a_bad_buffer(file: PartitionedFile) -> None:
    os.unlink(file.index_path)
    second = check_data(inspect(file.data_path)).loose[1]
    flip(file.data_path, second.offset + 500)
    check = check_data(inspect(file.data_path))
    assert [fault.place.offset for fault in check.faults] == [second.offset]
    assert [each.raw_bytes for each in check.loose] == [50, 100, 200, 70, 1, 300, 40, 41]
    assert check.stopped_at is None


def test_without_an_index_a_bad_size_ends_the_walk(file: PartitionedFile) -> None:
    os.unlink(file.index_path)
    second = check_data(inspect(file.data_path)).loose[1]
    flip(file.data_path, second.offset + 6)
    check = check_data(inspect(file.data_path))
    assert len(check.loose) == 1
    assert check.stopped_at == second.offset


def test_without_the_data_the_table_is_shown(file: PartitionedFile) -> None:
    os.unlink(file.data_path)
    found = inspect(file.index_path)
    assert [str(fault) for fault in found.faults] == ["the data file is missing"]
    assert found.table is not None and len(found.table.kinds) == 3
    assert check_data(found) == DataCheck()


def test_the_data_of_another_map_output_is_not_held_against_this_index(tmp_path: Path) -> None:
    file = written(tmp_path)
    other = written(tmp_path, 1, b"another id 16 by")
    shutil.copy(other.data_path, file.data_path)
    found = inspect(file.data_path)
    assert not found.is_pair
    assert found.faults[0].found == f"id {b'another id 16 by'.hex()}"
    check = check_data(found)
    assert check.faults == () and len(check.loose) == 9


def test_a_version_that_is_not_known_is_named_and_not_read(file: PartitionedFile) -> None:
    def make_version_3(content: bytearray) -> None:
        content[8:10] = struct.pack("<H", 3)
        content[48:56] = struct.pack("<Q", checksum(bytes(content[:48])))

    rewrite(file.data_path, make_version_3)
    os.unlink(file.index_path)
    found = inspect(file.data_path)
    assert not found.is_known_version
    assert any((fault.expected, fault.found) == ("1 or 2", 3) for fault in found.faults)
    assert check_data(found) == DataCheck()


def test_a_version_that_the_other_file_does_not_have_is_damage(file: PartitionedFile) -> None:
    flip(file.data_path, 8)
    flip(file.data_path, os.path.getsize(file.data_path) - 1)
    found = inspect(file.data_path)
    assert found.is_known_version
    assert [fault.place.offset for fault in found.faults] == [8]
    assert len(check_data(found).faults) == 1


def test_a_header_of_either_file_will_do(file: PartitionedFile) -> None:
    flip(file.data_path, 20)
    assert inspect(file.data_path).header is not None
    flip(file.data_path, 20)
    flip(file.index_path, 20)
    header = inspect(file.data_path).header
    assert header is not None and header.subpartitions == R


def test_extents_that_leave_a_gap_are_a_fault(file: PartitionedFile) -> None:
    def move_an_extent(content: bytearray) -> None:
        entry = HEADER_BYTES + ENTRY_BYTES * (R * 1 + 2)
        (offset,) = struct.unpack_from("<Q", content, entry)
        struct.pack_into("<Q", content, entry, offset + 64)
        sign_index(content)

    rewrite(file.index_path, move_an_extent)
    faults = inspect(file.index_path).faults
    places = [(fault.place.region, fault.place.subpartition) for fault in faults]
    assert places[0] == (1, 2)  # and then whatever comes behind it


@pytest.mark.parametrize("field", [0, 8])
@pytest.mark.parametrize("value", [2**62, 2**63, 2**64 - 64])
def test_extents_that_no_file_can_have_are_a_fault(file: PartitionedFile, field: int, value: int) -> None:
    def change_an_entry(content: bytearray) -> None:
        struct.pack_into("<Q", content, HEADER_BYTES + ENTRY_BYTES * 3 + field, value)
        sign_index(content)

    rewrite(file.index_path, change_an_entry)
    (fault,) = inspect(file.index_path).faults
    assert fault.what.startswith("the extent of region 0, subpartition 3 lies outside the data file")
    assert fault.place.offset == HEADER_BYTES + ENTRY_BYTES * 3


def test_a_broadcast_region_whose_entries_differ_is_a_fault(file: PartitionedFile) -> None:
    def change_an_entry(content: bytearray) -> None:
        content[HEADER_BYTES + ENTRY_BYTES * (R * 2 + 3) + 24] ^= 1
        sign_index(content)

    rewrite(file.index_path, change_an_entry)
    (fault,) = inspect(file.index_path).faults
    assert fault.what.startswith("the entries of region 2, a broadcast region, differ")


@pytest.mark.parametrize(("field", "what"), [(16, "raw bytes"), (32, "checksum"), (40, "buffers")])
def test_an_entry_that_disagrees_with_its_extent_is_a_fault(
    file: PartitionedFile, field: int, what: str
) -> None:
    def change_an_entry(content: bytearray) -> None:
        content[HEADER_BYTES + ENTRY_BYTES * 3 + field] ^= 2
        if what == "buffers":  # which the footer adds up
            content[len(content) - FOOTER_BYTES + 32] ^= 2
        sign_index(content)

    rewrite(file.index_path, change_an_entry)
    faults = all_faults(file.index_path)
    assert [(f.place.region, f.place.subpartition) for f in faults] == [(0, 3)]
    assert what in faults[0].what


def test_a_tail_that_only_a_broken_writer_makes_is_a_fault(file: PartitionedFile) -> None:
    def break_the_json(content: bytearray) -> None:
        content[content.index(b'{"application"')] = ord("[")
        sign_index(content)

    rewrite(file.index_path, break_the_json)
    found = inspect(file.index_path)
    assert found.table is None
    assert "JSON" in found.faults[0].what


class Counter:
    """Counts a payload's bytes as its records, and does it wrongly for some sizes."""

    def __init__(self) -> None:
        self.is_finished = False

    def of_extent(self) -> Counter:
        return self

    def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
        assert buffer.data_type is DataType.DATA
        if buffer.size == 300:
            raise Malformed("not a frame", 0)
        return buffer.size + (buffer.size == 1000)

    def count_loose(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
        return self.count(memory, buffer)

    def finish(self) -> None:
        self.is_finished = True


def test_records_are_counted_by_whoever_knows_them(file: PartitionedFile) -> None:
    check = check_data(inspect(file.data_path), Counter())
    assert [(f.place.region, f.place.subpartition, f.what) for f in check.faults] == [
        (0, 3, "the extent has other records"),
        (1, 2, "not a frame"),
    ]
    assert (check.faults[0].expected, check.faults[0].found) == (1000, 1001)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no room"), MemoryError("no room")], ids=repr)
def test_what_a_counter_lacks_is_no_fault_of_the_file_and_the_rest_is_checked(
    file: PartitionedFile, error: Exception
) -> None:
    class HinderedCounter(Counter):
        def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
            if buffer.size == 50:
                raise error
            return super().count(memory, buffer)

    check = check_data(inspect(file.data_path), HinderedCounter())
    assert check.unchecked == "no room"
    assert [(f.place.region, f.place.subpartition) for f in check.faults] == [(0, 3), (1, 2)]
    os.unlink(file.index_path)
    check = check_data(inspect(file.data_path), HinderedCounter())
    assert (check.unchecked, check.loose[0].records, check.loose[1].records) == ("no room", None, 1001)


def test_a_pair_whose_last_records_were_not_counted_may_have_a_sound_end(tmp_path: Path) -> None:
    class LackingCounter(Counter):
        def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
            raise OSError(errno.EMFILE, "too many")

        def finish(self) -> None:
            raise Malformed("no end was counted", 0)

    with open_writer(tmp_path) as writer:
        write_broadcast(writer)
        file = writer.finish(WriterInfo())
    assert check_data(inspect(file.data_path), LackingCounter()) == DataCheck(unchecked="too many")


def test_a_data_file_that_cannot_be_read_has_a_fault(
    file: PartitionedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    found = inspect(file.data_path)
    monkeypatch.setattr(calls, "preadv", refuse)
    (fault,) = check_data(found, Counter()).faults
    assert str(fault) == "the file cannot be read: Input/output error"


# ---- unfinished -----------------------------------------------------------------------------------------


def test_a_pair_that_is_being_written_shows_its_completed_regions(
    unfinished: tuple[PartitionedFileWriter, PartitionedFile],
) -> None:
    writer, _ = unfinished
    found = inspect(writer.file.partial_data_path)
    assert state(found) is PairState.BEING_WRITTEN
    assert found.table is not None
    assert found.table.kinds == (RegionKind.UNICAST, RegionKind.BROADCAST)
    assert found.writer is None and found.schema == b""


def test_a_pair_that_is_just_being_made_has_no_fault(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        index = Path(writer.file.partial_index_path)
        index.write_bytes(b"")
        assert state(inspect(writer.file.partial_data_path)) is PairState.BEING_WRITTEN
        index.unlink()
        assert state(inspect(writer.file.partial_data_path)) is PairState.BEING_WRITTEN


def test_a_pair_that_is_finished_meanwhile_is_still_read(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        write_unicast(writer, 0)
        found = inspect(writer.file.partial_data_path)
        writer.finish(WriterInfo())
    assert check_data(found) == DataCheck()


def test_a_killed_tasks_pair_is_unfinished(unfinished: tuple[PartitionedFileWriter, PartitionedFile]) -> None:
    _, file = unfinished
    found = inspect(file.partial_index_path)
    assert state(found) is PairState.UNFINISHED
    assert found.table is not None and found.table.totals.records == 300 + 50 + 1000 + 81


def test_where_no_locks_are_kept_an_unfinished_pair_may_be_being_written(
    unfinished: tuple[PartitionedFileWriter, PartitionedFile],
) -> None:
    writer, file = unfinished
    assert state(inspect(writer.file.partial_data_path, keeps_locks=False)) is PairState.BEING_WRITTEN
    found = inspect(file.partial_data_path, keeps_locks=False)
    assert state(found) is PairState.MAY_BE_WRITTEN
    assert found.table is not None and len(found.table.kinds) == 2
    index = Path(file.partial_index_path)
    index.write_bytes(b"")  # as while it is being made
    assert state(inspect(file.partial_data_path, keeps_locks=False)) is PairState.MAY_BE_WRITTEN
    index.unlink()
    Path(file.partial_data_path).write_bytes(b"")
    assert state(inspect(file.partial_data_path, keeps_locks=False)) is PairState.MAY_BE_WRITTEN


def test_a_task_that_is_killed_in_its_first_region_leaves_an_unfinished_pair(tmp_path: Path) -> None:
    """Its index is still empty."""
    copied = tmp_path / "copied"
    copied.mkdir()
    with open_writer(tmp_path) as writer:
        writer.start_region()
        writer.write_extents([(FIRST, buffers([100, 200], 1))])
        for path in (writer.file.partial_data_path, writer.file.partial_index_path):
            shutil.copy(path, copied)
    file = PartitionedFile.named(str(copied), 7, 0, 70)
    assert os.path.getsize(file.partial_index_path) == 0
    for path in (file.partial_data_path, file.partial_index_path):
        found = inspect(path)
        assert found.faults == ()
        assert state(found) is PairState.UNFINISHED
        assert found.header == writer.header
        assert found.table is not None and found.table.kinds == ()


def test_it_may_be_cut_anywhere(unfinished: tuple[PartitionedFileWriter, PartitionedFile]) -> None:
    _, file = unfinished
    index, data = Path(file.partial_index_path), Path(file.partial_data_path)
    whole_index = index.read_bytes()
    row = R * ENTRY_BYTES
    for size in range(HEADER_BYTES, len(whole_index), 11):
        index.write_bytes(whole_index[:size])
        found = inspect(str(index))
        assert found.table is not None
        assert len(found.table.kinds) == (size - HEADER_BYTES) // row
        assert state(found) is PairState.UNFINISHED
    with open(data, "ab") as opened:
        opened.write(bytes(buffers([500], 1)[0].header) + b"x" * 100)
    index.write_bytes(whole_index)
    check = check_data(inspect(str(index)))
    assert check.faults == ()
    assert check.stopped_at == os.path.getsize(data) - 108


def test_the_beginning_of_a_tail_is_not_taken_for_regions(tmp_path: Path) -> None:
    file = written(tmp_path)
    os.rename(file.data_path, file.partial_data_path)
    content = Path(file.index_path).read_bytes()
    os.unlink(file.index_path)
    for size in range(HEADER_BYTES + 3 * R * ENTRY_BYTES, len(content), 7):
        Path(file.partial_index_path).write_bytes(content[:size])
        found = inspect(file.partial_data_path)
        assert found.table is not None and len(found.table.kinds) == 3
        assert state(found) is PairState.UNFINISHED


def test_a_pair_whose_index_was_not_renamed_is_unfinished_but_whole(file: PartitionedFile) -> None:
    os.rename(file.index_path, file.partial_index_path)
    for path in (file.data_path, file.partial_index_path):
        found = inspect(path)
        assert state(found) is PairState.UNFINISHED
        assert found.writer is not None


# ---- what is ours ---------------------------------------------------------------------------------------


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    for name in ("notes.txt", "shuffle_0_1_0.data", "empty.index"):
        path = tmp_path / name
        path.write_bytes(b"" if name.startswith("empty") else b"something else")
        with pytest.raises(UsageError, match="not a file of sortshuffle"):
            inspect(str(path))
    with pytest.raises(UsageError, match="is not a file"):
        inspect(str(tmp_path))


def test_a_file_under_another_name_is_known_by_its_magic(file: PartitionedFile, tmp_path: Path) -> None:
    moved = tmp_path / "saved copy"
    shutil.copy(file.data_path, moved)
    found = inspect(str(moved))
    assert found.data is not None and found.index is None
    assert len(check_data(found).loose) == 9
    shutil.copy(file.index_path, moved)
    assert inspect(str(moved)).table is not None


def test_an_empty_file_with_our_name_is_damaged(file: PartitionedFile) -> None:
    Path(file.data_path).write_bytes(b"")
    faults = all_faults(file.data_path)
    assert "the file is empty" in {fault.what for fault in faults}


def test_pairs_below_a_directory(tmp_path: Path) -> None:
    home = tmp_path / "blockmgr-1" / "sortshuffle" / "app" / "host-1"
    home.mkdir(parents=True)
    for map_index in (10, 9, 2):
        written(home, map_index)
    (home / "owner.json").write_text("{}")
    (tmp_path / "blockmgr-1" / "shuffle_0_1_0.data").write_bytes(b"Spark's own")
    (tmp_path / "renamed.data").write_bytes(DATA_MAGIC)
    os.symlink(home, tmp_path / "link")
    os.symlink(home / "exchange-7-map-2-attempt-72.data", tmp_path / "exchange-1-map-1-attempt-1.data")
    found = [os.path.relpath(path, tmp_path) for path in find_pairs(str(tmp_path))]
    assert found == [
        "renamed.data",
        *(f"blockmgr-1/sortshuffle/app/host-1/exchange-7-map-{m}-attempt-{70 + m}.data" for m in (2, 9, 10)),
    ]
