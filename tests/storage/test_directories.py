"""Where a task writes: homes in every usable local directory, private, owned by the executor, attended by a
janitor; used in turn while they have room."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import eventually, names, small_disk

from sortshuffle.errors import OutOfDiskError, UsageError
from sortshuffle.options import Options
from sortshuffle.storage import janitor
from sortshuffle.storage.directories import LEAST_FREE, LOCAL_DIRS_VARIABLE, Homes
from sortshuffle.storage.lifetime import Owner, boot_id, executor_pid, process_start

HOME = f"sortshuffle/app-1/{socket.gethostname()}-{executor_pid()}"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two local directories of Spark's; the janitors of their homes end with the test."""
    made = [tmp_path / "one", tmp_path / "two"]
    for each in made:
        each.mkdir()
    monkeypatch.setenv(LOCAL_DIRS_VARIABLE, ",".join(map(str, made)))
    janitor._started.clear()
    yield made
    for process in janitor._started:
        process.kill()
        process.wait()
    janitor._started.clear()


def test_there_is_a_home_in_each_of_sparks_local_directories(local: list[Path]) -> None:
    homes = Homes.of(Options(), "app-1")
    assert homes.paths == tuple(str(each / HOME) for each in local)
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
    )
    assert homes.owner.is_live()
    assert [Owner.read(home) for home in homes.paths] == [homes.owner] * 2


def test_every_home_is_attended(local: list[Path]) -> None:
    homes = Homes.of(Options(), "app-1")
    eventually(lambda: all(map(janitor._is_running, homes.paths)), "the janitor takes its locks")
    assert len(janitor._started) == 1


def test_another_task_of_the_executor_finds_the_same_homes(local: list[Path]) -> None:
    first = Homes.of(Options(), "app-1")
    eventually(lambda: all(map(janitor._is_running, first.paths)), "the janitor takes its locks")
    before = [os.stat(os.path.join(home, "owner.json")).st_ino for home in first.paths]
    assert Homes.of(Options(), "app-1") == first
    assert [os.stat(os.path.join(home, "owner.json")).st_ino for home in first.paths] == before
    assert len(janitor._started) == 1


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
    assert homes.paths == (str(own / HOME),)
    assert (homes.owner.keep, homes.owner.local_directories) == (True, tuple(map(str, local)))
    assert [names(each) for each in local] == [[], []]


def test_a_directory_that_cannot_be_used_is_passed_over(local: list[Path]) -> None:
    local[0].rmdir()
    local[0].touch()  # no directory
    assert Homes.of(Options(), "app-1").paths == (str(local[1] / HOME),)


def test_if_no_directory_can_be_used_the_reason_is_raised(local: list[Path]) -> None:
    for each in local:
        each.rmdir()
        each.touch()
    with pytest.raises(NotADirectoryError):
        Homes.of(Options(), "app-1")
    assert janitor._started == []


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
