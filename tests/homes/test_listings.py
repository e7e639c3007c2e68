"""When a directory is listed again: whenever it may have changed, however coarse and slow the system is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sortshuffle import calls
from sortshuffle.homes.listings import SETTLES, Listings

CHANGED = 1_000_000.0  # seconds since 1970


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(CHANGED)


@pytest.fixture
def listings(clock: Clock) -> Listings[list[str]]:
    return Listings(lambda names, before: sorted(names), clock)


def put(directory: Path, name: str) -> None:
    """A file, with which the directory's time of change becomes `CHANGED`, as in one tick of its clock."""
    (directory / name).touch()
    os.utime(directory, (CHANGED, CHANGED))


def test_one_that_may_change_within_the_same_tick_is_listed_again(
    tmp_path: Path, listings: Listings[list[str]], clock: Clock
) -> None:
    put(tmp_path, "a")
    clock.now = CHANGED + SETTLES - 0.1
    assert listings.list_if_changed(str(tmp_path)) == ["a"]
    put(tmp_path, "b")
    assert listings.list_if_changed(str(tmp_path)) == ["a", "b"]


def test_one_that_changed_long_ago_is_listed_once(
    tmp_path: Path, listings: Listings[list[str]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a")
    clock.now = CHANGED + SETTLES + 0.1
    assert listings.list_if_changed(str(tmp_path)) == ["a"]
    monkeypatch.setattr(calls, "listdir", None)
    assert listings.list_if_changed(str(tmp_path)) == ["a"]


@pytest.mark.parametrize("slow", ["stat", "listdir"])
def test_however_long_a_look_takes_what_comes_in_its_first_tick_is_seen(
    tmp_path: Path, listings: Listings[list[str]], clock: Clock, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """A file comes in the tick in which the look begins; the look itself ends a minute later."""
    call = getattr(calls, slow)

    def minute(path: str) -> object:
        found = call(path)
        clock.now += 60.0
        return found

    put(tmp_path, "a")
    with monkeypatch.context() as patched:
        patched.setattr(calls, slow, minute)
        assert listings.list_if_changed(str(tmp_path)) == ["a"]
    put(tmp_path, "b")
    assert listings.list_if_changed(str(tmp_path)) == ["a", "b"]


def test_the_version_grows_when_a_forgotten_directory_goes(tmp_path: Path) -> None:
    directory, listings = tmp_path / "directory", Listings(lambda names, before: names)
    directory.mkdir()
    listings.list_if_changed(str(directory))
    version = listings.version
    listings.forget([str(directory)])
    directory.rmdir()
    assert listings.list_if_changed(str(directory)) is None
    assert listings.version > version
