"""`PartitionedFileReader` and `read_index`: every damage of either file is a typed error with its place and
never wrong data; whole extents and parts; memory that stays bounded; many threads at once."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine import (
    ID,
    OTHER_ID,
    SMALL,
    Pair,
    Region,
    arrow_memory,
    changed,
    open_files,
    printed,
    read_pair,
    read_subpartition,
    write_pair,
)

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, DataLossError, MissingDataError
from sortshuffle.options import KIB, MIB
from sortshuffle.storage.files.extents import Extent, extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, open_unlinked, read_index

MASKS = (*(1 << bit for bit in range(8)), 0xFF)


@pytest.fixture
def small(tmp_path: Path) -> PartitionedFile:
    return write_pair(tmp_path, SMALL)


def extents(file: PartitionedFile, subpartition: int = 0) -> list[Extent]:
    return extents_of(read_index(file), subpartition)


# Files of one process


@pytest.mark.parametrize("can_be_deleted", [True, False])
def test_an_unlinked_file_can_be_read_whether_or_not_its_names_can_be_deleted(
    small: PartitionedFile, can_be_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EACCES, "not here", path)

    wanted, size = extents(small), os.path.getsize(small.data_path)
    if not can_be_deleted:
        monkeypatch.setattr(calls, "unlink", fail)
    index, reader = open_unlinked(small, read_index(small).header.file_id, "a task", None)
    with closing(reader):
        assert extents_of(index, 0) == wanted
        assert os.fstat(reader.fileno()).st_size == size
        assert os.path.exists(small.data_path) is not can_be_deleted
        assert os.path.exists(small.index_path) is not can_be_deleted
    assert open_files(os.path.dirname(small.data_path)) == []


def test_an_unlinked_file_that_is_damaged_is_deleted_too(small: PartitionedFile) -> None:
    file_id = read_index(small).header.file_id
    with changed(small.data_path, 0, 1), pytest.raises(CorruptDataError):
        open_unlinked(small, file_id, "a task", None)
    assert not os.path.exists(small.data_path) and not os.path.exists(small.index_path)


# Damage


@pytest.mark.parametrize("part_bytes", [None, 64], ids=["whole extents", "parts"])
def test_a_change_of_any_byte_of_the_data_file_is_corrupt_data(
    small: PartitionedFile, part_bytes: int | None
) -> None:
    for offset in range(os.path.getsize(small.data_path)):
        for mask in MASKS:
            with changed(small.data_path, offset, mask), pytest.raises(CorruptDataError) as caught:
                read_pair(small, part_bytes)
            assert caught.value.place.file == small.data_path
    assert read_pair(small, part_bytes) == SMALL.everything()


def test_a_change_of_any_byte_of_the_index_file_is_corrupt_data(small: PartitionedFile) -> None:
    for offset in range(os.path.getsize(small.index_path)):
        for mask in MASKS:
            with changed(small.index_path, offset, mask), pytest.raises(CorruptDataError) as caught:
                read_pair(small)
            assert caught.value.place.file == small.index_path
    assert read_pair(small) == SMALL.everything()


@pytest.mark.parametrize("part_bytes", [None, 64], ids=["whole extents", "parts"])
def test_a_data_file_of_any_lesser_length_is_corrupt_data(
    small: PartitionedFile, part_bytes: int | None
) -> None:
    for size in reversed(range(os.path.getsize(small.data_path))):
        os.truncate(small.data_path, size)
        with pytest.raises(CorruptDataError, match="cut short"):
            read_pair(small, part_bytes)


def test_an_index_file_of_any_lesser_length_is_corrupt_data(small: PartitionedFile) -> None:
    for size in reversed(range(os.path.getsize(small.index_path))):
        os.truncate(small.index_path, size)
        with pytest.raises(CorruptDataError):
            read_index(small)


def test_bytes_behind_the_end_are_never_taken_for_data(small: PartitionedFile) -> None:
    with open(small.data_path, "ab") as data:
        data.write(bytes(100))
    assert read_pair(small) == SMALL.everything()
    with open(small.index_path, "ab") as index:
        index.write(b"\0")
    with pytest.raises(CorruptDataError):
        read_index(small)


def test_a_zeroed_page_in_the_middle_is_corrupt_data(tmp_path: Path) -> None:
    pair = Pair(2, 0, [Region({0: [os.urandom(20_000)], 1: [os.urandom(20_000)]})])
    file = write_pair(tmp_path, pair)
    with open(file.data_path, "r+b") as opened:
        opened.seek(8192)
        opened.write(bytes(4096))
    with PartitionedFileReader(file) as reader:
        with pytest.raises(CorruptDataError):
            reader.read_extent(extents(file, 0)[0])
        assert read_subpartition(reader, read_index(file), 1) == pair.payloads(1)


def test_damage_is_reported_with_file_region_subpartition_offset_and_writer(small: PartitionedFile) -> None:
    extent = extents(small, 1)[1]
    assert (extent.region, extent.subpartition) == (2, 1)
    with (
        changed(small.data_path, extent.offset + 20, 1),
        PartitionedFileReader(small, ID, "attempt 204 of map 17 on host") as reader,
        pytest.raises(CorruptDataError) as caught,
    ):
        reader.read_extent(extent)
    place = caught.value.place
    assert (place.file, place.region, place.subpartition) == (small.data_path, 2, 1)
    assert (place.offset, place.writer) == (extent.offset, "attempt 204 of map 17 on host")
    assert str(caught.value).startswith(
        f"a buffer fails its checksum ({small.data_path}, region 2, subpartition 1, offset {extent.offset},"
        " written by attempt 204 of map 17 on host): expected 0x"
    )
    assert str(caught.value).endswith("The task that wrote it must run again")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("part_bytes", [None, 64, 128], ids=["whole extents", "parts", "parts of two"])
def test_damage_in_a_later_buffer_is_reported_at_its_offset(tmp_path: Path, part_bytes: int | None) -> None:
    file = write_pair(tmp_path, Pair(1, 0, [Region({0: [b"a"] * 5})]))
    for number in range(5):
        with changed(file.data_path, 56 + 64 * number + 30, 4), pytest.raises(CorruptDataError) as caught:
            read_pair(file, part_bytes)
        assert caught.value.place.offset == 56 + 64 * number


def test_a_damaged_header_of_the_data_file_is_reported_at_its_offset(small: PartitionedFile) -> None:
    with changed(small.data_path, 8, 2), pytest.raises(CorruptDataError) as caught:
        PartitionedFileReader(small)
    assert (caught.value.place.file, caught.value.place.offset) == (small.data_path, 8)
    assert (caught.value.expected, caught.value.found) == ("1 or 2", 3)


# Lost, doubled, moved and foreign buffers: each of them whole and with a right checksum of its own


def _rewritten(file: PartitionedFile, order: list[int]) -> None:
    """Put the buffers of 64 bytes that the data file has at other places of it."""
    good = Path(file.data_path).read_bytes()
    blocks = [good[56 + 64 * n : 120 + 64 * n] for n in range((len(good) - 56) // 64)]
    Path(file.data_path).write_bytes(good[:56] + b"".join(blocks[n] for n in order))


@pytest.mark.parametrize("part_bytes", [None, 64, 128], ids=["whole extents", "parts", "parts of two"])
@pytest.mark.parametrize(
    "order", [[0, 2, 1, 3, 4, 5], [0, 1, 1, 3, 4, 5], [3, 1, 2, 0, 4, 5], [3, 4, 5, 0, 1, 2]]
)
def test_buffers_at_other_places_are_corrupt_data(
    tmp_path: Path, part_bytes: int | None, order: list[int]
) -> None:
    file = write_pair(tmp_path, Pair(2, 0, [Region({0: [b"a", b"b", b"c"], 1: [b"d", b"e", b"f"]})]))
    _rewritten(file, order)
    with pytest.raises(CorruptDataError, match="the extent fails its checksum"):
        read_pair(file, part_bytes)


@pytest.mark.parametrize("part_bytes", [64, 100, 128])
def test_the_last_part_of_an_extent_with_wrong_buffers_is_never_handed_out(
    tmp_path: Path, part_bytes: int
) -> None:
    file = write_pair(tmp_path, Pair(1, 0, [Region({0: [b"a", b"b", b"c"]})]))
    _rewritten(file, [0, 1, 1])
    extent = extents(file)[0]
    given_out = 0
    with PartitionedFileReader(file) as reader, pytest.raises(CorruptDataError) as caught:
        for part in reader.read_parts(extent, part_bytes):
            given_out += len(part.buffers)
    assert given_out < 3
    assert caught.value.place.offset == extent.offset


@pytest.mark.parametrize("change", [{"buffers": 2}, {"buffers": 4}, {"checksum": 1}])
def test_an_extent_must_be_the_promised_one(tmp_path: Path, change: dict[str, int]) -> None:
    file = write_pair(tmp_path, Pair(1, 0, [Region({0: [b"a", b"b", b"c"]})]))
    promised = replace(extents(file)[0], **change)
    with PartitionedFileReader(file) as reader:
        with pytest.raises(CorruptDataError):
            reader.read_extent(promised)
        with pytest.raises(CorruptDataError):
            list(reader.read_parts(promised, 64))


# Files that are gone or others


@pytest.mark.parametrize("lost", ["data_path", "index_path"])
def test_a_file_that_is_gone_is_missing_data(small: PartitionedFile, lost: str) -> None:
    path = getattr(small, lost)
    os.unlink(path)
    with pytest.raises(MissingDataError, match="cannot be opened: No such file or directory") as caught:
        read_pair(small)
    assert caught.value.place.file == path
    assert isinstance(caught.value, FileNotFoundError)


def test_a_directory_that_is_gone_is_missing_data(small: PartitionedFile, tmp_path: Path) -> None:
    lost = PartitionedFile.named(str(tmp_path / "small" / "lost"), 3, 17, 204)
    for directory in (None, tmp_path / "small"):
        if directory:
            directory.touch()  # a file where the directory was
        with pytest.raises(MissingDataError):
            PartitionedFileReader(lost)
        with pytest.raises(MissingDataError):
            read_index(lost)


def test_a_file_with_another_id_is_missing_data(small: PartitionedFile) -> None:
    for opened in (PartitionedFileReader, read_index):
        with pytest.raises(MissingDataError, match="file is another one") as caught:
            opened(small, OTHER_ID)
        assert (caught.value.expected, caught.value.found) == (OTHER_ID.hex(), ID.hex())


def test_halves_of_two_pairs_are_missing_data(small: PartitionedFile, tmp_path: Path) -> None:
    other = write_pair(tmp_path, replace(SMALL, file_id=OTHER_ID), attempt=205)
    os.replace(other.data_path, small.data_path)
    with pytest.raises(MissingDataError, match="the data file is another one"):
        read_pair(small)


@pytest.mark.parametrize("path", ["data_path", "index_path"])
def test_a_path_that_cannot_be_read_is_data_loss(small: PartitionedFile, path: str) -> None:
    os.unlink(getattr(small, path))
    os.mkdir(getattr(small, path))
    with pytest.raises(DataLossError, match="Is a directory") as caught:
        read_pair(small)
    assert caught.value.place.file == getattr(small, path)


def test_too_many_open_files_are_not_taken_for_lost_data(small: PartitionedFile) -> None:
    program = f"""
import os, resource
from sortshuffle.errors import DataLossError
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
file = PartitionedFile({small.base!r})
highest = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for attempt in (lambda: PartitionedFileReader(file), lambda: read_index(file)):
    try:
        attempt()
    except DataLossError:
        print("lost")
    except OSError as error:
        print(error.errno)
"""
    assert printed(program) == [str(errno.EMFILE)] * 2


def test_in_a_mounted_directory_only_what_is_not_there_is_lost(
    small: PartitionedFile, tmp_path: Path
) -> None:
    """A server that is away for a moment gives other errors."""
    for name in ("data", "index"):
        (tmp_path / f"loop.{name}").symlink_to(tmp_path / f"loop.{name}")
    (tmp_path / "directory.data").mkdir()
    gone, loop, directory = (PartitionedFile(str(tmp_path / name)) for name in ("gone", "loop", "directory"))
    for opens in (PartitionedFileReader, read_index):
        with pytest.raises(MissingDataError):
            opens(gone, mounted=True)
        with pytest.raises(MissingDataError):
            opens(loop)
        with pytest.raises(OSError, match="reading a map output failed: Too many levels") as caught:
            opens(loop, mounted=True)
        assert caught.value.errno == errno.ELOOP
    with pytest.raises(IsADirectoryError, match="reading a map output failed: Is a directory"):
        PartitionedFileReader(directory, mounted=True)
    with pytest.raises(CorruptDataError):
        PartitionedFileReader(directory)
    with pytest.raises(MissingDataError):
        PartitionedFileReader(small, OTHER_ID, mounted=True)


def test_a_reader_that_cannot_be_made_leaves_nothing_open(small: PartitionedFile, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        PartitionedFileReader(small, OTHER_ID)
    with changed(small.data_path, 0, 1), pytest.raises(CorruptDataError):
        PartitionedFileReader(small, ID)
    assert open_files(tmp_path) == []


def test_a_reader_is_closed_by_its_context_and_may_be_closed_again(
    small: PartitionedFile, tmp_path: Path
) -> None:
    with PartitionedFileReader(small, ID) as reader:
        assert open_files(tmp_path) == [small.data_path]
        reader.close()
        reused = os.open(small.index_path, os.O_RDONLY)
    reader.close()
    assert open_files(tmp_path) == [small.index_path]
    os.close(reused)


# Extents


def test_extents_of_a_subpartition_come_in_region_order_without_the_empty_ones(
    small: PartitionedFile,
) -> None:
    found = [[extent.region for extent in extents(small, subpartition)] for subpartition in range(3)]
    assert found == [[0, 1], [1, 2], [0, 1]]


def test_an_extent_tells_what_its_index_entry_tells(small: PartitionedFile) -> None:
    entry = read_index(small).entries[0, 0]
    assert extents(small, 0)[0] == Extent(
        region=0,
        subpartition=0,
        offset=56 + 128,  # behind subpartition 2
        bytes=128,
        raw_bytes=5,
        records=2,
        checksum=int(entry["checksum"]),
        buffers=2,
    )


def test_an_empty_partition_has_no_extents(tmp_path: Path) -> None:
    file = write_pair(tmp_path, Pair(3))
    assert [extents(file, subpartition) for subpartition in range(3)] == [[], [], []]


def test_payloads_stand_on_64_byte_boundaries_of_memory(tmp_path: Path) -> None:
    file = write_pair(tmp_path, Pair(2, 1, [Region({0: [b"a" * n for n in range(150)], 1: [b"b"]})]))
    with PartitionedFileReader(file) as reader:
        extent = extents(file)[0]
        parts = [reader.read_extent(extent), *reader.read_parts(extent, 1000)]
    addresses = [part.memory.address + buffer.start for part in parts for buffer in part.buffers]
    assert len(addresses) == 300
    assert {address % 64 for address in addresses} == {0}


def test_what_was_read_outlives_its_reader(small: PartitionedFile) -> None:
    with PartitionedFileReader(small) as reader:
        part = reader.read_extent(extents(small)[0])
    small.delete()
    first, second = part.buffers
    assert part.memory.slice(first.start, first.size).to_pybytes() == b"first"
    assert part.memory.slice(second.start, second.size).to_pybytes() == b""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PartitionedFile, list[bytes]]]:
    """One extent: a hundred buffers of 10 KiB, one of 1 MiB among them."""
    noise = np.random.default_rng(1)
    payloads = [noise.bytes(10 * KIB) for _ in range(100)]
    payloads.insert(20, noise.bytes(MIB))
    yield write_pair(tmp_path_factory.mktemp("mixed"), Pair(1, 0, [Region({0: payloads})])), payloads


@pytest.mark.parametrize("part_bytes", [0, 1, 63, 64, 10 * KIB, 100 * KIB, MIB, 100 * MIB])
def test_parts_of_any_size_give_every_buffer_once_and_in_order(
    mixed: tuple[PartitionedFile, list[bytes]], part_bytes: int
) -> None:
    file, payloads = mixed
    assert read_pair(file, part_bytes) == [payloads]


def test_parts_hold_what_was_asked_for_and_a_larger_buffer_alone(
    mixed: tuple[PartitionedFile, list[bytes]],
) -> None:
    file, _ = mixed
    with PartitionedFileReader(file) as reader:
        sizes = [
            (part.memory.size, len(part.buffers)) for part in reader.read_parts(extents(file)[0], 64 * KIB)
        ]
    large = [position for position, (size, _) in enumerate(sizes) if size > 64 * KIB]
    assert len(large) == 1
    assert sizes[large[0]] == (MIB + 64, 1)
    assert sum(buffers for _, buffers in sizes) == 101


def test_streaming_an_extent_holds_no_more_than_its_parts(mixed: tuple[PartitionedFile, list[bytes]]) -> None:
    file, _ = mixed
    with PartitionedFileReader(file) as reader, arrow_memory() as pool:
        for part in reader.read_parts(extents(file)[0], 64 * KIB):
            del part
    assert pool.max_memory() < MIB + 3 * 64 * KIB
    assert pool.bytes_allocated() == 0


@pytest.mark.parametrize("bit", range(32))
def test_a_damaged_size_does_not_make_streaming_read_beyond_the_extent(
    mixed: tuple[PartitionedFile, list[bytes]], bit: int
) -> None:
    file, _ = mixed
    extent = extents(file)[0]
    with (
        changed(file.data_path, extent.offset + 4 + bit // 8, 1 << bit % 8),
        PartitionedFileReader(file) as reader,
        arrow_memory() as pool,
        pytest.raises(CorruptDataError) as caught,
    ):
        list(reader.read_parts(extent, 64 * KIB))
    assert caught.value.place.offset == extent.offset
    assert pool.max_memory() <= 64 * KIB + max(64 * KIB, min(2 << bit, extent.bytes)) + KIB


def test_many_threads_read_one_file_through_one_reader(tmp_path: Path) -> None:
    noise = np.random.default_rng(2)
    regions = [Region({s: [noise.bytes(int(noise.integers(5000)))] for s in range(16)}) for _ in range(20)]
    pair = Pair(16, 5, regions)
    file = write_pair(tmp_path, pair)
    index = read_index(file)
    together = threading.Barrier(16)
    with PartitionedFileReader(file, ID) as reader, ThreadPoolExecutor(16) as pool:

        def consume(subpartition: int) -> list[list[bytes]]:
            together.wait()
            return [read_subpartition(reader, index, subpartition, part) for part in (None, 1000) * 5]

        found = list(pool.map(consume, range(16)))
    for subpartition in range(16):
        assert found[subpartition] == [pair.payloads(subpartition)] * 10


def test_many_threads_with_readers_of_their_own_read_one_file(small: PartitionedFile, tmp_path: Path) -> None:
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda _: read_pair(small), range(200)))
    assert found == [SMALL.everything()] * 200
    assert open_files(tmp_path) == []
