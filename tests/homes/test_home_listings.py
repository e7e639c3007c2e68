"""What a sweep costs, counted in calls to the system: what has changed since the last one, and no more."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sortshuffle import calls
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.host import host_name
from sortshuffle.homes.lifetime import sweep, sweep_ended
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id
from sortshuffle.storage.files.partitioned_file import PartitionedFile

OUTPUTS = 300
EVERYTHING = 1 + 2 + 16  # directories: the home, two local ones, and 16 of blocks, each below one of the two
NOBODY = 2**22 + 1  # above every pid
LONG_AGO = time.time() - 10_000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls to the system, by name."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        call = getattr(calls, name)

        def counting(*arguments: object, **named: object) -> object:
            counts[name] += 1
            return call(*arguments, **named)

        monkeypatch.setattr(calls, name, counting)

    for name in ("listdir", "scandir", "glob", "lstat", "stat", "open", "unlink"):
        count(name)
    return counts


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    directories = (str(tmp_path / "blockmgr-1"), str(tmp_path / "blockmgr-2"))
    return Owner("app", "host", boot_id(), 1, 1, directories, grace=600.0, keep=False)


def control_file(owner: Owner, attempt: int) -> Path:
    below = Path(owner.local_directories[attempt % 2]) / f"{attempt % 16:02x}"
    return below / f"shuffle_3_{attempt}_0.index"


def put_output(home: Path, attempt: int, when: float = LONG_AGO) -> PartitionedFile:
    file = PartitionedFile.named(str(home), 3, attempt, attempt)
    for path in (file.data_path, file.index_path):
        Path(path).touch()
        os.utime(path, (when, when))
    return file


def settle(tmp_path: Path) -> None:
    """All that has changed so far has changed long ago."""
    for directory, _, _ in os.walk(tmp_path):
        os.utime(directory, (LONG_AGO, LONG_AGO))


@pytest.fixture
def home(tmp_path: Path, owner: Owner) -> Path:
    """With old map outputs, all of which Spark knows."""
    made = tmp_path / "sortshuffle" / "app" / "host-1"
    made.mkdir(parents=True)
    for attempt in range(OUTPUTS):
        put_output(made, attempt)
        control_file(owner, attempt).parent.mkdir(parents=True, exist_ok=True)
        control_file(owner, attempt).touch()
    settle(tmp_path)
    return made


def test_where_nothing_changed_a_sweep_looks_at_directories_alone(
    home: Path, owner: Owner, counted: Counter[str]
) -> None:
    listings = HomeListings()
    assert sweep(str(home), owner, listings) == []
    assert counted == {"listdir": EVERYTHING, "stat": 1 + EVERYTHING}
    counted.clear()
    assert sweep(str(home), owner, listings) == []
    assert counted == {"stat": 1 + EVERYTHING}


def test_what_spark_forgets_goes_and_nothing_else_is_looked_at(
    home: Path, owner: Owner, counted: Counter[str]
) -> None:
    listings = HomeListings()
    sweep(str(home), owner, listings)
    control_file(owner, 7).unlink()
    counted.clear()
    assert sweep(str(home), owner, listings) == [PartitionedFile.named(str(home), 3, 7, 7).base]
    assert counted["listdir"] == 1 + EVERYTHING  # all afresh before it is deleted
    assert counted["lstat"] <= 4  # of the one pair
    counted.clear()
    assert sweep(str(home), owner, listings) == []
    assert counted["listdir"] <= 3  # what has just changed
    assert len(os.listdir(home)) == 2 * (OUTPUTS - 1)


def test_what_comes_in_the_same_tick_as_a_look_is_seen_by_the_next(home: Path, owner: Owner) -> None:
    """Spark's file of a map output: for a tick its directory changes without another time of change."""
    listings, control = HomeListings(), control_file(owner, 7)
    control.unlink()
    now = time.time()
    os.utime(control.parent, (now, now))
    assert [file.attempt for file in listings.forgotten(str(home), owner.local_directories)] == [7]
    control.touch()
    os.utime(control.parent, (now, now))
    assert listings.forgotten(str(home), owner.local_directories) == []


def test_nothing_is_deleted_by_what_is_kept_alone(home: Path, owner: Owner, tmp_path: Path) -> None:
    """A file system that notes a change late, or never: what Spark has is listed once more before."""
    listings, control = HomeListings(), control_file(owner, 7)
    control.unlink()
    settle(tmp_path)
    assert [file.attempt for file in listings.forgotten(str(home), owner.local_directories)] == [7]
    control.touch()
    settle(tmp_path)
    assert sweep(str(home), owner, listings) == []
    assert len(os.listdir(home)) == 2 * OUTPUTS


def test_what_is_new_is_swept_when_it_is_old(home: Path, owner: Owner, tmp_path: Path) -> None:
    listings = HomeListings()
    sweep(str(home), owner, listings)
    file = put_output(home, OUTPUTS + 1, when=time.time())
    assert sweep(str(home), owner, listings) == []
    for path in (file.data_path, file.index_path):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert sweep(str(home), owner, listings) == [file.base]


def test_partial_files_are_found_when_they_come(home: Path, owner: Owner) -> None:
    listings = HomeListings()
    sweep(str(home), owner, listings)
    file = PartitionedFile.named(str(home), 3, 17, 5000)
    Path(file.partial_data_path).touch()
    os.utime(file.partial_data_path, (LONG_AGO, LONG_AGO))
    assert listings.partial(str(home)) == [file]
    assert sweep(str(home), owner, listings) == [file.base]
    assert listings.partial(str(home)) == []


def test_directories_that_go_take_what_they_held_with_them(home: Path, owner: Owner) -> None:
    listings = HomeListings()
    sweep(str(home), owner, listings)
    shutil.rmtree(owner.local_directories[1])
    assert len(sweep(str(home), owner, listings)) == OUTPUTS // 2
    shutil.rmtree(home)
    assert sweep(str(home), owner, listings) == []


def test_executors_that_came_and_went_are_forgotten(tmp_path: Path, owner: Owner) -> None:
    listings = HomeListings()
    place = tmp_path / "sortshuffle" / "app"
    for number in range(30):
        blocks = tmp_path / f"blockmgr-{number}"
        local = (str(blocks),)
        whose = replace(owner, pid=NOBODY, host=host_name(), local_directories=local, served_by_spark=True)
        home = place / f"host-{number}"
        home.mkdir(parents=True)
        whose.write(str(home))
        put_output(home, number)
        (blocks / "0c").mkdir(parents=True)
        control = blocks / "0c" / f"shuffle_3_{number}_0.index"
        control.touch()
        assert sweep_ended(str(place), listings)
        assert listings.has_finished(str(home))
        control.unlink()
        assert not sweep_ended(str(place), listings)
        assert not home.exists()
    sweep_ended(str(place), listings)
    assert [list(each) for each in (listings._homes, listings._local, listings._blocks)] == [[], [], []]


def test_where_sparks_directories_cannot_be_read_nothing_is_known_to_be_dead(
    home: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = calls.listdir

    def failing(path: str) -> list[str]:
        if path.startswith(owner.local_directories[0]):
            raise OSError(5, "Input/output error", path)
        return listdir(path)

    monkeypatch.setattr(calls, "listdir", failing)
    with pytest.raises(OSError, match="Input/output error"):
        sweep(str(home), owner, HomeListings())
    assert len(os.listdir(home)) == 2 * OUTPUTS
