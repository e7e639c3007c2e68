"""Spare files: which data files become spares, which writers get them, and when they are deleted. What is
read is always what was written last; what somebody else still has is never written over."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from engine import Pair, Region, names, read_pair, small_disk, write_pair, write_region
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle import calls
from sortshuffle.cli.main import main
from sortshuffle.errors import MissingDataError, OutOfDiskError
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.local_pair import LocalPair
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_locked
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.files.spare_files import UNUSED_FOR, SpareKeeper, reuse, trim
from sortshuffle.storage.writer import PartitionedFileWriter

OLD = b"old " * 5000
NEVER = float("inf")
FILE_SYSTEM_OF = spare_files._file_system_of
READING = """
import sys
opened = open(sys.argv[1], "rb")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True, scope="module")
def keeping_small_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare_files, "SMALLEST", 1)
        patch.setattr(spare_files, "_file_system_of", lambda directory: "ext4")
        yield


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def pair_of(payload: bytes, attempt: int = 0) -> Pair:
    return Pair(2, regions=[Region({1: [payload]})], file_id=attempt.to_bytes(16, "little"))


def kept(home: Path, attempt: int = 1, payload: bytes = OLD) -> int:
    """Keep the data file of a dead map output. Return its inode."""
    file = write_pair(home, pair_of(payload), attempt=attempt)
    inode = os.stat(file.data_path).st_ino
    SpareKeeper(str(home)).keep(file)
    return inode


def spares(home: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return names(home / "spares")
    return []


def name(attempt: int) -> str:
    return f"exchange-3-map-17-attempt-{attempt}.spare"


def expect_deleted(home: Path, file: PartitionedFile) -> None:
    SpareKeeper(str(home)).keep(file)
    assert spares(home) == []
    assert not [each for each in names(home) if each.startswith("exchange-")]


# Which files become spares


def test_the_data_file_of_a_dead_output_is_kept_and_the_output_is_gone(home: Path) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    before = os.stat(file.data_path)
    SpareKeeper(str(home)).keep(file)
    assert names(home) == ["spares"]
    assert spares(home) == [name(1)]
    found = os.stat(home / "spares" / name(1))
    assert (found.st_ino, found.st_size) == (before.st_ino, before.st_size)


def test_nobody_else_can_see_spares(home: Path) -> None:
    kept(home)
    assert (home / "spares").stat().st_mode & 0o777 == 0o700
    assert (home / "spares" / name(1)).stat().st_mode & 0o777 == 0o600


def test_a_small_file_is_deleted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    size = os.path.getsize(file.data_path)
    monkeypatch.setattr(spare_files, "SMALLEST", size + 1)
    expect_deleted(home, file)
    monkeypatch.setattr(spare_files, "SMALLEST", size)
    kept(home)
    assert spares(home) == [name(1)]


def test_half_a_pair_is_removed_too(home: Path) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    os.unlink(file.data_path)
    expect_deleted(home, file)
    expect_deleted(home, file)  # and what is gone already


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_a_file_that_this_process_has_open_is_deleted_and_goes_on_to_be_read(home: Path, flags: int) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    descriptor = os.open(file.data_path, flags)
    before = os.pread(descriptor, 1 << 20, 0)
    try:
        expect_deleted(home, file)
        write_pair(home, pair_of(b"new"), attempt=2)
        assert os.pread(descriptor, 1 << 20, 0) == before
    finally:
        os.close(descriptor)


def test_a_file_that_another_process_has_open_is_deleted(home: Path) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    process = subprocess.Popen(
        [sys.executable, "-c", READING, file.data_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        expect_deleted(home, file)
    kept(home, attempt=2)  # now it has ended
    assert spares(home) == [name(2)]


def test_a_file_with_another_name_is_deleted_and_the_other_name_stays(home: Path, tmp_path: Path) -> None:
    """A map output that a second attempt has adopted."""
    file = write_pair(home, pair_of(OLD), attempt=1)
    adopted = PartitionedFile(str(tmp_path / "exchange-3-map-17-attempt-9"))
    os.link(file.data_path, adopted.data_path)
    os.link(file.index_path, adopted.index_path)
    expect_deleted(home, file)
    write_pair(home, pair_of(b"new"), attempt=2)
    assert read_pair(adopted) == pair_of(OLD).everything()


def test_a_file_is_out_of_sight_before_it_is_looked_whether_somebody_has_it_open(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    seen = []

    def look(descriptor: int, command: int, argument: int) -> int:
        seen.append((os.path.exists(file.data_path), [each for each in spares(home) if each == name(1)]))
        return fcntl.fcntl(descriptor, command, argument)

    monkeypatch.setattr(calls, "fcntl", look)
    SpareKeeper(str(home)).keep(file)
    assert seen == [(False, [])] * 3
    assert spares(home) == [name(1)]


def test_a_reader_whose_file_is_removed_while_it_opens_it_does_not_read_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    index = read_index(file)

    def slow_open(path: str, *arguments: int) -> int:
        descriptor = os.open(path, *arguments)
        if path == file.data_path:
            os.rename(path, home / "moved")
        return descriptor

    monkeypatch.setattr(calls, "open", slow_open)
    with pytest.raises(MissingDataError, match="removed while it was opened"):
        PartitionedFileReader(file, index.header.file_id, "a task")


def test_on_a_file_system_where_it_was_not_tried_files_are_deleted(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare_files, "_file_system_of", FILE_SYSTEM_OF)
        assert FILE_SYSTEM_OF(str(disk)) == "tmpfs"
        expect_deleted(disk, write_pair(disk, pair_of(OLD), attempt=1))


def test_the_kind_of_a_file_system_is_that_of_its_mount() -> None:
    assert FILE_SYSTEM_OF("/proc/self") == "proc"
    with pytest.raises(FileNotFoundError):
        FILE_SYSTEM_OF("/no such directory")


def test_without_leases_files_are_deleted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lease(descriptor: int, command: int, argument: int) -> int:
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, "no leases on this file system")
        return fcntl.fcntl(descriptor, command, argument)

    monkeypatch.setattr(calls, "fcntl", no_lease)
    expect_deleted(home, write_pair(home, pair_of(OLD), attempt=1))


def test_spares_take_no_more_than_there_is_room_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(4)]
    size = os.path.getsize(files[0].data_path)
    monkeypatch.setattr(spare_files, "_most_bytes", lambda home: 2 * size)
    keeper = SpareKeeper(str(home))
    for file in files[:3]:
        keeper.keep(file)
    assert spares(home) == [name(0), name(1)]
    SpareKeeper(str(home)).keep(files[3])  # another sweep counts those that are there
    assert spares(home) == [name(0), name(1)]
    assert names(home) == ["spares"]


def test_a_home_has_only_so_many_spares(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_files, "MOST_SPARES", 2)
    files = [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(4)]
    keeper = SpareKeeper(str(home))
    for file in files:
        keeper.keep(file)
    assert spares(home) == [name(0), name(1)]
    assert names(home) == ["spares"]


def test_a_link_in_the_place_of_the_directory_is_not_followed(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / name(1)).touch()
    (home / "spares").symlink_to(elsewhere)
    assert not spare_files.delete_all(str(home))
    file = write_pair(home, pair_of(OLD), attempt=2)
    SpareKeeper(str(home)).keep(file)
    assert names(home) == ["spares"]
    assert names(elsewhere) == [name(1)]
    assert os.path.getsize(elsewhere / name(1)) == 0


def test_room_is_an_eighth_of_what_the_disk_has_free(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        assert spare_files._most_bytes(str(disk)) == (8 << 20) // 8


def test_room_is_never_more_than_an_eighth_of_the_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = SimpleNamespace(f_bavail=1 << 40, f_frsize=4096)
    monkeypatch.setattr(calls, "statvfs", lambda path: roomy)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert spare_files._most_bytes(str(home)) == memory // 8


def test_where_free_space_is_not_known_files_are_deleted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> os.statvfs_result:
        raise OSError(errno.EIO, "not now", path)

    file = write_pair(home, pair_of(OLD), attempt=1)
    monkeypatch.setattr(calls, "statvfs", fail)
    expect_deleted(home, file)


def test_a_pair_whose_index_cannot_be_removed_keeps_its_data_file_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)

    def fail(path: str) -> None:
        if path == file.index_path:
            raise OSError(errno.EIO, "not now", path)
        os.unlink(path)

    monkeypatch.setattr(calls, "unlink", fail)
    with pytest.raises(OSError, match="not now"):
        SpareKeeper(str(home)).keep(file)
    assert spares(home) == []


# Who gets them


def test_a_map_output_is_written_over_a_spare(home: Path) -> None:
    inode = kept(home)
    file = write_pair(home, pair_of(b"new"), attempt=2)
    assert os.stat(file.data_path).st_ino == inode
    assert read_pair(file) == pair_of(b"new").everything()
    with open(file.data_path, "rb") as opened:
        assert b"old" not in opened.read()
    assert spares(home) == []
    assert not is_locked(file.data_path)


@given(st.lists(st.integers(min_value=0, max_value=20_000), min_size=2, max_size=6))
def test_what_is_read_is_what_was_written_last_whatever_the_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    home = tmp_path_factory.mktemp("home")
    for attempt, size in enumerate(sizes):
        pair = pair_of(bytes([attempt + 1]) * size)
        file = write_pair(home, pair, attempt=attempt)
        assert read_pair(file) == pair.everything()
        assert os.path.getsize(file.data_path) == read_index(file).data_bytes
        SpareKeeper(str(home)).keep(file)
    assert len(spares(home)) == 1


def test_a_small_output_leaves_spares_to_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(home)
    monkeypatch.setattr(spare_files, "SMALLEST", 1000)
    write_pair(home, pair_of(b"new"), attempt=2)
    assert spares(home) == [name(1)]
    write_pair(home, pair_of(bytes(1000)), attempt=3)
    assert spares(home) == []


def test_what_follows_a_small_region_stays_in_the_new_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(2, regions=[Region({0: [b"first"]}), Region({0: [OLD * 2]})])
    kept(home)
    monkeypatch.setattr(spare_files, "SMALLEST", 1000)
    file = write_pair(home, pair, attempt=2)
    assert read_pair(file) == pair.everything()
    assert spares(home) == [name(1)]


def test_a_spare_that_the_header_cannot_be_written_to_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(home)
    monkeypatch.setattr(calls, "write", lambda descriptor, data: len(data) - 1)
    file = write_pair(home, pair_of(b"new"), attempt=2)
    assert read_pair(file) == pair_of(b"new").everything()
    assert spares(home) == [name(1)]


def test_a_pair_is_the_same_byte_for_byte_as_one_in_new_files(home: Path, tmp_path: Path) -> None:
    kept(home, payload=OLD * 3)
    over, new = (write_pair(each, pair_of(OLD), attempt=2) for each in (home, tmp_path))
    assert Path(over.data_path).read_bytes() == Path(new.data_path).read_bytes()
    assert Path(over.index_path).read_bytes() == Path(new.index_path).read_bytes()


def test_writers_side_by_side_get_one_spare_each(home: Path) -> None:
    files = [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(100, 108)]
    keeper = SpareKeeper(str(home))
    for file in files:
        keeper.keep(file)
    assert len(spares(home)) == 8

    def write(attempt: int) -> PartitionedFile:
        return write_pair(home, pair_of(b"%d" % attempt * attempt, attempt), attempt=attempt)

    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(write, range(200, 224)))
    for file, attempt in zip(written, range(200, 224), strict=True):
        assert read_pair(file) == pair_of(b"%d" % attempt * attempt).everything()
        assert read_index(file).header.file_id == attempt.to_bytes(16, "little")
        PartitionedFileReader(file, attempt.to_bytes(16, "little"), "a task").close()
    assert spares(home) == []


def test_a_writer_that_is_late_does_not_touch_what_another_one_finished(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened the spare, and another writer takes it, and is done, before it gets the lock."""
    kept(home)
    others: list[PartitionedFile] = []

    def slow_flock(descriptor: int, operation: int) -> None:
        is_spares = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".spare")
        if is_spares and not others:
            monkeypatch.setattr(calls, "flock", fcntl.flock)
            others.append(write_pair(home, pair_of(b"quick", 7), attempt=7))
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(calls, "flock", slow_flock)
    late = write_pair(home, pair_of(b"late", 8), attempt=8)
    (quick,) = others
    for file, payload, attempt in ((quick, b"quick", 7), (late, b"late", 8)):
        assert read_pair(file) == pair_of(payload).everything()
        assert read_index(file).header.file_id == attempt.to_bytes(16, "little")
    assert spares(home) == []


def test_a_spare_that_another_writer_holds_is_left_to_it(home: Path) -> None:
    kept(home)
    spare = home / "spares" / name(1)
    with open(spare, "rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert reuse(str(home), str(home / "new"), b"", turn=0) is None
    assert spares(home) == [name(1)]


def test_what_was_not_checked_to_be_unshared_is_not_used(home: Path) -> None:
    """A janitor was killed after it had moved the file."""
    kept(home)
    os.rename(home / "spares" / name(1), home / "spares" / "exchange-3-map-17-attempt-1.moved")
    assert reuse(str(home), str(home / "new"), b"", turn=0) is None


@pytest.mark.parametrize("turn", range(5))
def test_each_turn_finds_a_spare(home: Path, turn: int) -> None:
    files = [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(3)]
    for file in files:
        SpareKeeper(str(home)).keep(file)
    descriptor = reuse(str(home), str(home / "new"), b"head", turn)
    assert descriptor is not None
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 4
    os.close(descriptor)
    assert (home / "new").read_bytes()[:4] == b"head"
    assert len(spares(home)) == 2


def test_a_spare_that_got_a_second_name_is_not_used(home: Path) -> None:
    kept(home)
    os.link(home / "spares" / name(1), home / "a copy")
    before = (home / "a copy").read_bytes()
    write_pair(home, pair_of(b"new"), attempt=2)
    assert (home / "a copy").read_bytes() == before


def test_a_writer_that_begins_counts_as_young_however_old_the_spare_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(home)
    spare = home / "spares" / name(1)
    os.utime(spare, (1, 1))
    ages = []

    def rename(before: str, after: str) -> None:
        if before == str(spare):
            ages.append(time.time() - os.stat(before).st_mtime)
        os.rename(before, after)

    monkeypatch.setattr(calls, "rename", rename)
    write_pair(home, pair_of(b"new"), attempt=2)
    (age,) = ages
    assert age < 60


def test_spares_make_room_for_a_writer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(3)]:
        SpareKeeper(str(home)).keep(file)

    def writev(descriptor: int, pieces: list[memoryview]) -> int:
        if spares(home):
            raise OSError(errno.ENOSPC, "no space")
        return os.writev(descriptor, pieces)

    monkeypatch.setattr(calls, "writev", writev)
    file = write_pair(home, pair_of(b"new"), attempt=4)
    assert read_pair(file) == pair_of(b"new").everything()


@pytest.mark.parametrize("suffix", [".data.partial", ".index.partial"])
def test_spares_make_room_for_what_follows_the_header(
    home: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """In a file that is written over a spare, and in the index."""
    keeper = SpareKeeper(str(home))
    for file in [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(2)]:
        keeper.keep(file)
    full = []

    def writev(descriptor: int, pieces: list[memoryview]) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(suffix) and len(spares(home)) == 1:  # the writer has taken the other one
            full.append(path)
            raise OSError(errno.ENOSPC, "no space")
        return os.writev(descriptor, pieces)

    monkeypatch.setattr(calls, "writev", writev)
    file = write_pair(home, pair_of(b"new"), attempt=4)
    assert len(full) == 1
    assert spares(home) == []
    assert read_pair(file) == pair_of(b"new").everything()
    assert os.path.getsize(file.data_path) == read_index(file).data_bytes


def test_a_mounted_directory_has_no_spares_to_make_room(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def writev(descriptor: int, pieces: list[memoryview]) -> int:
        raise OSError(errno.ENOSPC, "no space")

    (home / "spares").mkdir()
    (home / "spares" / "precious.spare").touch()
    pair = LocalPair(PartitionedFile.named(str(home), 3, 17, 2), mounted=True)
    monkeypatch.setattr(calls, "writev", writev)
    with pytest.raises(OutOfDiskError):
        pair.append_data([bytes(5000)])
    pair.discard()
    assert spares(home) == ["precious.spare"]


def test_what_lies_behind_the_written_part_is_no_fault(home: Path) -> None:
    """`verify` may look at a file while it is written."""
    kept(home, payload=bytes(50_000))
    pair = pair_of(bytes(4))  # a frame without bytes
    with PartitionedFileWriter(PartitionedFile.named(str(home), 3, 17, 2), pair.header) as writer:
        write_region(writer, pair.regions[0], pair.order)
        assert os.path.getsize(writer.file.partial_data_path) > 50_000
        found = CliRunner().invoke(main, ["verify", writer.file.partial_data_path])
        assert (found.exit_code, "FAULT" in found.output) == (0, False), found.output


def test_a_link_among_the_spares_is_not_followed(home: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (home / "spares").mkdir()
    (home / "spares" / "link.spare").symlink_to(precious)
    write_pair(home, pair_of(OLD), attempt=2)
    assert precious.read_bytes() == b"precious"


def test_an_abandoned_output_leaves_nothing(home: Path) -> None:
    kept(home)
    pair = pair_of(b"new")
    with PartitionedFileWriter(PartitionedFile.named(str(home), 3, 17, 2), pair.header) as writer:
        assert spares(home) == [name(1)]
        write_region(writer, pair.regions[0], pair.order)
        assert spares(home) == []
        assert is_locked(str(home / "exchange-3-map-17-attempt-2.data.partial"))
    assert names(home) == ["spares"]


def test_a_spare_is_not_written_over_a_file_of_that_name(home: Path) -> None:
    kept(home)
    partial = home / "exchange-3-map-17-attempt-2.data.partial"
    partial.write_bytes(b"another writer's")
    with pytest.raises(FileExistsError):
        write_pair(home, pair_of(OLD), attempt=2)
    assert partial.read_bytes() == b"another writer's"
    assert spares(home) == [name(1)]


def test_old_bytes_that_cannot_be_cut_off_fail_the_output(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no room for the change")

    kept(home)
    monkeypatch.setattr(calls, "ftruncate", fail)
    with pytest.raises(OutOfDiskError):
        write_pair(home, pair_of(b"new"), attempt=2)
    assert names(home) == ["spares"]


# When they are deleted


def test_a_spare_goes_when_nobody_has_wanted_it_for_long(home: Path) -> None:
    kept(home)
    trim(str(home), time.time() + UNUSED_FOR - 5)
    assert spares(home) == [name(1)]
    trim(str(home), time.time() + UNUSED_FOR + 5)
    assert spares(home) == []


def test_its_time_begins_when_it_becomes_a_spare_however_old_the_file_is(home: Path) -> None:
    file = write_pair(home, pair_of(OLD), attempt=1)
    os.utime(file.data_path, (1, 1))
    SpareKeeper(str(home)).keep(file)
    trim(str(home), time.time())
    assert spares(home) == [name(1)]


def test_what_a_killed_janitor_has_moved_goes_too(home: Path) -> None:
    kept(home)
    os.rename(home / "spares" / name(1), home / "spares" / "exchange-3-map-17-attempt-1.moved")
    trim(str(home), NEVER)
    assert spares(home) == []


def test_the_oldest_go_when_room_becomes_short(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(3)]
    keeper = SpareKeeper(str(home))
    for file in files:
        keeper.keep(file)

    def lstat(path: str) -> SimpleNamespace:  # the clock of a file system may give all of them one time
        since = {name(0): 20.0, name(1): 10.0, name(2): 30.0}[os.path.basename(path)]
        return SimpleNamespace(st_size=100, st_ctime=since)

    monkeypatch.setattr(calls, "lstat", lstat)
    monkeypatch.setattr(spare_files, "_most_bytes", lambda home: 250)
    trim(str(home), 31.0)
    assert spares(home) == [name(0), name(2)]
    monkeypatch.setattr(spare_files, "_most_bytes", lambda home: 0)
    trim(str(home), 31.0)
    assert spares(home) == []


def test_one_that_cannot_be_deleted_keeps_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(3)]:
        SpareKeeper(str(home)).keep(file)

    def fail(path: str) -> None:
        if path.endswith(name(1)):
            raise OSError(errno.EIO, "not now", path)
        os.unlink(path)

    monkeypatch.setattr(calls, "unlink", fail)
    trim(str(home), NEVER)
    assert spares(home) == [name(1)]


def test_other_files_beside_the_spares_stay(home: Path) -> None:
    keeper = SpareKeeper(str(home))
    for file in [write_pair(home, pair_of(OLD), attempt=attempt) for attempt in range(2)]:
        keeper.keep(file)
    (home / "spares" / "precious").touch()
    assert spare_files.delete_all(str(home))
    assert spares(home) == ["precious"]
    assert not spare_files.delete_all(str(home))


def test_a_home_without_spares_has_nothing_to_trim(home: Path) -> None:
    trim(str(home), NEVER)
    trim(str(home / "gone"), NEVER)
    assert names(home) == []
