"""Where a task writes: homes in every usable local directory, private, owned by the executor, attended by a
janitor; used in turn while they have room."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import Pair, eventually, fill, names, small_disk, write_pair

from sortshuffle import calls
from sortshuffle.errors import OutOfDiskError, UsageError
from sortshuffle.homes import home_failures, janitor
from sortshuffle.homes.directories import LEAST_FREE, LOCAL_DIRS_VARIABLE, Directories, Homes
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, executor_pid, process_namespace, process_start
from sortshuffle.options import Options


def homes_in(homes: Homes, *roots: Path) -> tuple[str, ...]:
    """The homes of the same owner below these directories."""
    return tuple(str(root / "sortshuffle" / "app-1" / homes.owner.home_name) for root in roots)


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    home_failures._failures.clear()
    yield
    home_failures._failures.clear()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two local directories of Spark's; the janitors of their homes end with the test."""
    made = [tmp_path / "one", tmp_path / "two"]
    for each in made:
        each.mkdir()
    monkeypatch.setenv(LOCAL_DIRS_VARIABLE, ",".join(map(str, made)))
    janitor._janitors.clear()
    yield made
    for process in janitor._janitors:
        process.kill()
        process.wait()
    janitor._janitors.clear()


def test_there_is_a_home_in_each_of_sparks_local_directories(local: list[Path]) -> None:
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == homes_in(homes, *local)
    assert homes.owner.home_name.startswith(f"{socket.gethostname()}-{executor_pid()}-")
    for home in homes.paths:
        assert os.path.isdir(home)
        assert stat.S_IMODE(os.stat(home).st_mode) == 0o700


def test_every_home_says_whose_it_is(local: list[Path]) -> None:
    homes = Homes.of(Options(grace=5.0), "app-1")
    executor = executor_pid()
    assert homes.owner == Owner(
        application="app-1",
        host=socket.gethostname(),
        boot=boot_id(),
        pid=executor,
        started=process_start(executor) or 0,
        local_directories=tuple(map(str, local)),
        grace=5.0,
        keep=False,
        namespace=process_namespace(),
    )
    assert homes.owner.is_live()
    assert [Owner.read(home) for home in homes.paths] == [homes.owner] * 2


def test_with_external_services_homes_say_that_they_outlive_the_executor(local: list[Path]) -> None:
    roots = tuple(map(str, local))
    homes = Homes.of(Options(directories=roots, service="external"), "app-1")
    assert [owner and owner.outlived for owner in map(Owner.read, homes.paths)] == [True, True]
    assert not Homes.of(Options(directories=roots), "app-1").owner.outlived


def test_where_sparks_service_serves_its_files_homes_are_the_applications(
    local: list[Path], tmp_path: Path
) -> None:
    """Spark deletes what is not its own from directories of executors that have ended."""
    homes = Homes.of(Options(), "app-1", served_by_spark=True)
    above = list(dict.fromkeys(each.parent for each in local))
    assert homes.paths == homes_in(homes, *above)
    assert homes.owner.served_by_spark
    assert homes.owner.local_directories == tuple(map(str, local))
    named = Homes.of(Options(directories=(str(tmp_path / "own"),)), "app-1", served_by_spark=True)
    assert named.paths == homes_in(named, tmp_path / "own")


def test_frames_with_other_settings_have_other_homes(local: list[Path]) -> None:
    """What becomes of a file is what the frame wants that has written it, not the frame that wrote last."""
    directories = (str(local[0]),)
    kept = Homes.of(Options(directories=directories, keep=True), "app-1")
    other = Homes.of(Options(directories=directories), "app-1")
    again = Homes.of(Options(directories=directories, keep=True), "app-1")
    assert kept.paths == again.paths != other.paths
    assert [owner and owner.keep for owner in map(Owner.read, (*kept.paths, *other.paths))] == [True, False]


def test_homes_carry_the_name_that_spark_was_told(local: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
    homes = Homes.of(Options(), "app-1")
    assert {os.path.basename(home) for home in homes.paths} == {homes.owner.home_name}
    assert homes.owner.home_name.startswith(f"127.0.0.2-{executor_pid()}-")
    assert homes.owner.host == "127.0.0.2"
    assert homes.owner.on_this_host()


def test_every_home_is_attended(local: list[Path]) -> None:
    homes = Homes.of(Options(), "app-1")
    eventually(lambda: all(map(janitor.is_running, homes.paths)), "the janitor takes its locks")
    assert len(janitor._janitors) == 1


def test_another_task_of_the_executor_finds_the_same_homes(local: list[Path]) -> None:
    first = Homes.of(Options(), "app-1")
    eventually(lambda: all(map(janitor.is_running, first.paths)), "the janitor takes its locks")
    before = [os.stat(os.path.join(home, "owner.json")).st_ino for home in first.paths]
    assert Homes.of(Options(), "app-1") == first
    assert [os.stat(os.path.join(home, "owner.json")).st_ino for home in first.paths] == before
    assert len(janitor._janitors) == 1


def test_other_settings_are_recorded(local: list[Path]) -> None:
    Homes.of(Options(grace=5.0), "app-1")
    homes = Homes.of(Options(grace=6.0), "app-1")
    assert [Owner.read(home) for home in homes.paths] == [homes.owner] * 2
    assert homes.owner.grace == 6.0


def test_applications_have_homes_of_their_own(local: list[Path]) -> None:
    one, two = Homes.of(Options(), "app-1"), Homes.of(Options(), "app-2")
    assert not set(one.paths) & set(two.paths)
    assert names(local[0] / "sortshuffle") == ["app-1", "app-2"]


def test_directories_that_the_user_names_are_used_instead(local: list[Path], tmp_path: Path) -> None:
    own = tmp_path / "own" / "deep"
    homes = Homes.of(Options(directories=(str(own),), keep=True), "app-1")
    assert homes.paths == homes_in(homes, own)
    assert (homes.owner.keep, homes.owner.local_directories) == (True, tuple(map(str, local)))
    assert [names(each) for each in local] == [[], []]


def test_a_directory_that_cannot_be_used_is_passed_over(local: list[Path]) -> None:
    local[0].rmdir()
    local[0].touch()  # no directory
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == homes_in(homes, local[1])


def test_if_no_directory_can_be_used_the_reason_is_raised(local: list[Path]) -> None:
    for each in local:
        each.rmdir()
        each.touch()
    with pytest.raises(NotADirectoryError):
        Homes.of(Options(), "app-1")
    assert janitor._janitors == []


def test_a_directory_that_could_not_be_used_lately_is_not_tried_again(local: list[Path]) -> None:
    local[0].rmdir()
    local[0].touch()
    Homes.of(Options(), "app-1")
    local[0].unlink()
    local[0].mkdir()  # mended, which is found out later
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == homes_in(homes, local[1])
    home_failures._failures.clear()  # as after a while
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == homes_in(homes, *local)


def test_if_no_other_is_left_it_is_tried_again(local: list[Path]) -> None:
    for each in local:
        each.rmdir()
        each.touch()
    with pytest.raises(NotADirectoryError):
        Homes.of(Options(), "app-1")
    local[1].unlink()
    local[1].mkdir()
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == homes_in(homes, local[1])


def test_of_a_home_that_a_full_disk_has_no_room_for_nothing_is_left(
    local: list[Path], tmp_path: Path
) -> None:
    """No janitor knows of it."""
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        fill(disk)
        homes = Homes.of(Options(directories=(str(disk), str(local[0]))), "app-1")
        assert homes.paths == homes_in(homes, local[0])
        assert names(disk) == ["filled"]
        home_failures._failures.clear()  # as in another worker
        assert Homes.of(Options(directories=(str(disk), str(local[0]))), "app-1").paths == homes.paths
        assert names(disk) == ["filled"]


def test_of_a_home_that_cannot_be_made_no_directory_above_is_left(
    local: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home, other) = homes_in(Homes.of(Options(), "app-1"), *local)
    shutil.rmtree(local[0] / "sortshuffle")
    mkdir = calls.mkdir

    def making(path: str, mode: int) -> None:
        if path == home:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        mkdir(path, mode)

    monkeypatch.setattr(calls, "mkdir", making)
    assert Homes.of(Options(), "app-1").paths == (other,)
    assert names(local[0]) == []


def test_a_home_that_another_worker_gives_up_meanwhile_is_made_again(
    local: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = calls.replace
    left = 1

    def replacing(partial: str, path: str) -> None:
        nonlocal left
        if left:
            left -= 1
            shutil.rmtree(os.path.dirname(path))
        replace(partial, path)

    monkeypatch.setattr(calls, "replace", replacing)
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == homes_in(homes, *local)
    assert [Owner.read(home) for home in homes.paths] == [homes.owner] * 2


def test_a_home_that_is_there_is_used_although_it_failed(local: list[Path]) -> None:
    """Which of the homes to write to is for `pick`, and it may have no other."""
    homes = Homes.of(Options(), "app-1")
    home_failures.remember(homes.paths[0], OSError(errno.EIO, "broken"))
    assert Homes.of(Options(), "app-1").paths == homes.paths


@pytest.mark.parametrize("value", [None, "", ","])
def test_without_any_directory_the_call_names_the_option(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(LOCAL_DIRS_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(LOCAL_DIRS_VARIABLE, value)
    with pytest.raises(UsageError, match=r"SPARK_LOCAL_DIRS is not set .* set spark\.sortshuffle\.dir"):
        Homes.of(Options(), "app-1")


# Picking one


def homes_at(*paths: Path) -> Homes:
    owner = Owner("app-1", "host", "boot", 1, 1, (), 0.0, keep=False)
    return Homes(tuple(map(str, paths)), owner)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small") as disk:
        yield disk


def test_homes_are_used_in_turn(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    homes = homes_at(*paths)
    assert [homes.pick(turn) for turn in range(7)] == [str(paths[turn % 3]) for turn in range(7)]


def test_directories_of_no_executor_are_used_in_turn_likewise(tmp_path: Path) -> None:
    paths = tuple(str(tmp_path / name) for name in "abc")
    for path in paths:
        os.mkdir(path)
    directories = Directories(paths)
    assert [directories.pick(turn) for turn in range(7)] == [paths[turn % 3] for turn in range(7)]
    assert [directories.create(turn, lambda home: home) for turn in range(3)] == list(paths)
    home_failures.remember(paths[1], OSError(errno.EIO, "broken"))
    assert [directories.pick(turn) for turn in range(4)] == [paths[0], paths[2]] * 2


def test_a_home_without_room_is_passed_over(tmp_path: Path, small: Path) -> None:
    roomy = tmp_path / "roomy"
    roomy.mkdir()
    homes = homes_at(small, roomy, tmp_path / "lost")
    assert [homes.pick(turn) for turn in range(3)] == [str(roomy)] * 3


def test_a_home_with_just_enough_room_is_used(tmp_path: Path) -> None:
    with small_disk(tmp_path / "enough", f"size={LEAST_FREE}") as disk:
        assert homes_at(disk).pick(0) == str(disk)
        (disk / "file").write_bytes(b"x")
        with pytest.raises(OutOfDiskError):
            homes_at(disk).pick(0)


def test_if_no_home_has_room_the_roomiest_is_named(tmp_path: Path, small: Path) -> None:
    with small_disk(tmp_path / "smaller", "size=512k") as smaller:
        for paths in ((small, smaller), (smaller, small), (tmp_path / "lost", small)):
            with pytest.raises(OutOfDiskError) as caught:
                homes_at(*paths).pick(5)
            assert (caught.value.path, caught.value.wanted) == (str(small), LEAST_FREE)
            assert caught.value.free == 1 << 20


# Passing over those that fail


@pytest.fixture
def homes(tmp_path: Path) -> Homes:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    made = homes_at(*paths)
    home_failures.watch(made.paths)
    return made


def test_the_next_attempt_goes_elsewhere_when_one_ran_out_of_space(homes: Homes) -> None:
    """Whatever its number, and in another worker process as well. The space is free again by then."""
    full = homes.pick(0)
    home_failures.note_failure(OutOfDiskError(full, 10, 0))
    for _ in ("in this process", "in another"):
        picked = [homes.pick(turn) for turn in range(6)]
        assert picked == [*homes.paths[1:]] * 3
        home_failures._failures.clear()


def test_a_home_is_used_again_after_a_while(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    home_failures.note_failure(OutOfDiskError(homes.paths[0], 10, 0))
    later = home_failures.time.time() + home_failures.SKIP_SECONDS + 1
    monkeypatch.setattr(home_failures.time, "time", lambda: later)
    assert homes.pick(0) == homes.paths[0]


def test_if_all_failed_lately_the_one_that_did_so_first_is_better_than_none(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = home_failures.time.time()
    for seconds, home in zip((20, 10, 30), homes.paths, strict=True):
        home_failures.remember(home, OSError(errno.EIO, "broken"))
        os.utime(os.path.join(home, home_failures.MARKER_FILE), (now - seconds, now - seconds))
    home_failures._failures.clear()
    assert [homes.pick(turn) for turn in range(3)] == [homes.paths[2]] * 3


def test_a_home_that_is_gone_is_passed_over(homes: Homes) -> None:
    os.rmdir(homes.paths[1])
    assert [homes.pick(turn) for turn in range(4)] == [homes.paths[0], homes.paths[2]] * 2
    assert isinstance(home_failures.last_error(homes.paths[1]), FileNotFoundError)


def test_a_read_only_home_is_passed_over(tmp_path: Path) -> None:
    writable = tmp_path / "writable"
    writable.mkdir()
    with small_disk(tmp_path / "sealed", f"size={2 * LEAST_FREE},ro") as sealed:
        assert homes_at(sealed, writable).pick(0) == str(writable)
        with pytest.raises(OSError, match=r"no local directory can be written to \(.*Read-only") as caught:
            homes_at(sealed, tmp_path / "lost").pick(0)
        assert not isinstance(caught.value, OutOfDiskError)
        assert str(tmp_path / "lost") in str(caught.value)


def test_if_none_is_left_there_is_a_reason_for_each(tmp_path: Path, small: Path) -> None:
    with pytest.raises(OutOfDiskError) as caught:
        homes_at(tmp_path / "lost", small).pick(0)
    reasons = str(caught.value.__cause__)
    assert f"{tmp_path / 'lost'}: [Errno 2] No such file or directory" in reasons
    assert f"{small}: 1.0 MiB free" in reasons


def test_a_disk_without_a_single_byte_is_out_of_space_not_broken(small: Path) -> None:
    fill(small)
    with pytest.raises(OutOfDiskError) as caught:
        homes_at(small).pick(0)
    assert caught.value.free == 0


# Creating files


def test_a_file_is_created_in_the_next_home_when_the_first_fails(homes: Homes) -> None:
    obstacle = Path(homes.paths[1])
    obstacle.rmdir()
    tried: list[str] = []

    def make(home: str) -> str:
        tried.append(home)
        if home == homes.paths[0]:
            raise OSError(errno.EIO, "Input/output error")
        return home

    assert homes.create(0, make) == homes.paths[2]
    assert homes.create(0, make) == homes.paths[2]
    assert tried == [homes.paths[0], homes.paths[2], homes.paths[2]]


def test_if_no_home_takes_a_file_there_is_a_reason_for_each(homes: Homes) -> None:
    def make(home: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{home}/file")

    with pytest.raises(PermissionError) as caught:
        homes.create(1, make)
    for home in homes.paths:
        assert f"{home}: [Errno 13] Permission denied: '{home}/file'" in str(caught.value)
    assert "spark.sortshuffle.dir" in str(caught.value)


def test_if_every_home_runs_out_of_space_that_is_the_error(homes: Homes) -> None:
    def make(home: str) -> None:
        raise OutOfDiskError(home, 10, 0)

    with pytest.raises(OutOfDiskError):
        homes.create(1, make)


def test_a_file_that_exists_is_the_callers_error(homes: Homes) -> None:
    with pytest.raises(FileExistsError):
        homes.create(0, lambda home: write_pair(home, Pair(1)) and write_pair(home, Pair(1)))
    assert home_failures.failed_at(homes.paths[0]) is None
