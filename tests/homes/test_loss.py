"""A lost map output: Spark's own files of its task attempt go, so that Spark runs the task again, and with
services that outlive executors the pair itself, so that the task does not find it."""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from engine import Pair, names, write_pair

from sortshuffle import calls
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.lifetime import MISSING, dropped_outputs
from sortshuffle.homes.loss import make_producer_run_again
from sortshuffle.homes.owner import Owner
from sortshuffle.storage.files.partitioned_file import PartitionedFile


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """An executor's directory, with control files of the attempts 204 and 205."""
    for attempt in (204, 205):
        for suffix in ("index", "data"):
            file = tmp_path / "blocks" / "0c" / f"shuffle_3_{attempt}_0.{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return tmp_path / "blocks"


def home(place: Path, blocks: Path, name: str = "host-1", *, outlived: bool = False) -> Path:
    made = place / "sortshuffle" / "app" / name
    made.mkdir(parents=True)
    Owner("app", "host", "", 1, 1, (str(blocks),), 600.0, False, outlived).write(str(made))
    return made


def control_files(blocks: Path) -> list[str]:
    return names(blocks / "0c")


LEFT = ["shuffle_3_205_0.data", "shuffle_3_205_0.index"]


def test_the_control_files_of_its_attempt_go_and_nothing_else(tmp_path: Path, blocks: Path) -> None:
    lost = write_pair(home(tmp_path, blocks), Pair(2), 204)
    make_producer_run_again(lost)
    assert control_files(blocks) == LEFT
    assert len(names(os.path.dirname(lost.base))) == 3


def test_it_does_not_matter_whether_the_pair_is_there(tmp_path: Path, blocks: Path) -> None:
    make_producer_run_again(PartitionedFile.named(str(home(tmp_path, blocks)), 3, 17, 204))
    assert control_files(blocks) == LEFT


def test_what_is_in_no_home_or_has_no_attempt_is_left_alone(tmp_path: Path, blocks: Path) -> None:
    make_producer_run_again(PartitionedFile.named(str(tmp_path), 3, 17, 204))
    make_producer_run_again(PartitionedFile(str(home(tmp_path, blocks) / "anything")))
    assert len(control_files(blocks)) == 4


@pytest.mark.parametrize("place", ["s3://bucket/app", "/gone/sortshuffle/app/host-1"], ids=["store", "gone"])
def test_where_no_home_says_whose_it_is_it_is_looked_for_in_the_executors_own_directories(
    place: str, blocks: Path
) -> None:
    make_producer_run_again(PartitionedFile.named(place, 3, 17, 204), (str(blocks),))
    assert control_files(blocks) == LEFT


def test_an_executor_that_has_ended_is_found_below_the_directory_of_the_application(
    tmp_path: Path, blocks: Path
) -> None:
    """Where Spark's service serves what ended executors left, they are beside the own one's."""
    blocks = blocks.rename(tmp_path / "blockmgr-1")
    make_producer_run_again(PartitionedFile.named("/gone/sortshuffle/app/h", 3, 17, 204), (str(tmp_path),))
    assert control_files(blocks) == LEFT


def test_a_home_knows_better(tmp_path: Path, blocks: Path) -> None:
    (tmp_path / "none").mkdir()
    lost = PartitionedFile.named(str(home(tmp_path, tmp_path / "none")), 3, 17, 204)
    make_producer_run_again(lost, (str(blocks),))
    assert len(control_files(blocks)) == 4


def test_a_pair_that_could_be_adopted_goes_under_all_its_names(tmp_path: Path, blocks: Path) -> None:
    first = write_pair(home(tmp_path, blocks, outlived=True), Pair(2), 150)
    adopter = home(tmp_path, blocks, "host-2", outlived=True)
    adopted = PartitionedFile.named(str(adopter), 3, 17, 204)
    os.link(first.data_path, adopted.data_path)
    os.link(first.index_path, adopted.index_path)
    other = write_pair(adopter, Pair(2), 160)  # of another attempt, and sound
    make_producer_run_again(adopted)
    assert control_files(blocks) == LEFT
    assert names(os.path.dirname(first.base)) == ["owner.json"]
    assert names(adopter) == sorted(
        [os.path.basename(other.data_path), os.path.basename(other.index_path), "owner.json"]
    )


@pytest.mark.parametrize("where", ["spark.sortshuffle.dir", "Spark's directories", "Spark's service"])
@pytest.mark.parametrize("is_home_gone", [False, True], ids=["its home is there", "its home is gone"])
def test_outputs_of_the_attempt_in_other_homes_of_its_executor_are_not_dropped_at_once(
    tmp_path: Path, blocks: Path, where: str, is_home_gone: bool
) -> None:
    """A task that writes two exchanges may have them on two disks."""
    second = tmp_path / "disk" / "blocks-2"
    second.mkdir(parents=True)
    roots = {
        "spark.sortshuffle.dir": (tmp_path / "one", tmp_path / "two"),
        "Spark's directories": (blocks, second),
        "Spark's service": (blocks.parent, second.parent),
    }[where]
    local = (str(blocks), str(second))
    is_sparks = where == "Spark's service"
    owner = Owner("app", "host", "", 1, 1, local, 600.0, False, served_by_spark=is_sparks)
    homes = [root / "sortshuffle" / "app" / owner.home_name for root in roots]
    for made in homes:
        made.mkdir(parents=True)
        owner.write(str(made))
    lost, _ = (write_pair(made, Pair(2), 204) for made in homes)
    now = 0.0
    listings = HomeListings(lambda: now)
    listings.look(str(homes[1]), local)  # as the janitor does, which so sees Spark's file
    if is_home_gone:
        shutil.rmtree(homes[0])
    given = tuple(map(str, roots)) if where == "spark.sortshuffle.dir" else ()
    make_producer_run_again(lost, local, roots=given)
    assert control_files(blocks) == LEFT
    listings.look(str(homes[1]), local)
    now = MISSING
    assert list(dropped_outputs(str(homes[1]), owner, time.time(), listings)) == []


@pytest.mark.parametrize("is_sparks", [False, True], ids=["Spark's directories", "Spark's service"])
def test_what_lies_where_the_owner_has_no_homes_is_no_concern(
    tmp_path: Path, blocks: Path, monkeypatch: pytest.MonkeyPatch, is_sparks: bool
) -> None:
    """Above Spark's directory there may be another user's, which may not be listed."""
    foreign = str((blocks if is_sparks else tmp_path) / "sortshuffle")
    made = home(tmp_path / "disk", blocks)
    owner = Owner.read(str(made))
    assert owner is not None
    replace(owner, served_by_spark=is_sparks).write(str(made))
    listdir = calls.listdir

    def refuse(path: str) -> list[str]:
        if path.startswith(foreign):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listdir(path)

    monkeypatch.setattr(calls, "listdir", refuse)
    errors: list[OSError] = []
    make_producer_run_again(write_pair(made, Pair(2), 204), on_error=errors.append)
    assert errors == []
    assert control_files(blocks) == LEFT


@pytest.mark.parametrize("broken", ["blocks-2/0c", "blocks-2", "sortshuffle/app/host-2"])
def test_a_directory_that_cannot_be_listed_is_told_and_keeps_nothing_from_the_rest(
    tmp_path: Path, blocks: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (tmp_path / "blocks-2" / "0c").mkdir(parents=True)
    made = home(tmp_path, blocks, outlived=True)
    owner = Owner.read(str(made))
    assert owner is not None
    replace(owner, local_directories=(str(tmp_path / "blocks-2"), str(blocks))).write(str(made))
    home(tmp_path, blocks, "host-2", outlived=True)
    lost = write_pair(made, Pair(2), 204)
    listdir = calls.listdir

    def refuse(path: str) -> list[str]:
        if path == str(tmp_path / broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return listdir(path)

    monkeypatch.setattr(calls, "listdir", refuse)
    errors: list[OSError] = []
    make_producer_run_again(lost, on_error=errors.append)
    assert {(error.errno, error.filename) for error in errors} == {(errno.EIO, str(tmp_path / broken))}
    assert control_files(blocks) == LEFT
    assert names(made) == ["owner.json"]


def test_what_has_gone_already_is_no_error(
    tmp_path: Path, blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes each control file first."""

    def remove_first(path: str) -> None:
        os.unlink(path)
        os.unlink(path)

    monkeypatch.setattr(calls, "unlink", remove_first)
    errors: list[OSError] = []
    lost = PartitionedFile.named(str(home(tmp_path, blocks)), 3, 17, 204)
    make_producer_run_again(lost, on_error=errors.append)
    assert errors == []
    assert control_files(blocks) == LEFT


def test_a_task_has_its_own_error_to_raise(
    tmp_path: Path, blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    lost = PartitionedFile.named(str(home(tmp_path, blocks)), 3, 17, 204)
    monkeypatch.setattr(calls, "listdir", refuse)
    make_producer_run_again(lost)
    monkeypatch.undo()
    assert len(control_files(blocks)) == 4
