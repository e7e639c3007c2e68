"""What lies on the disks: which map output is found, which may be adopted, and what is not served."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from consumers import one, stored
from engine import DRIVER, OTHER_ID, changed
from faults import Fault, Faults
from serving import (
    APPLICATION,
    OUTPUT,
    Disk,
    Shelf,
    ended_owner,
    id_of,
    make_disk,
    make_home,
    no_descriptor_left,
    owner,
    until,
)

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, MissingDataError
from sortshuffle.homes.owner import HOME_ROOT, OWNER_FILE
from sortshuffle.service.server import catalog, ended_homes
from sortshuffle.service.wire.protocol import FoundOutput, PartitionRequest, Stream
from sortshuffle.storage.files.partitioned_file import PartitionedFile

SEGMENT = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return make_disk(tmp_path / "one")


@pytest.fixture
def shelf(tmp_path: Path, disk: Disk) -> Iterator[Shelf]:
    (tmp_path / "two").mkdir()
    made = Shelf(tmp_path / "one", tmp_path / "two")
    yield made
    made.close()


# Finding


def test_an_output_is_found_in_any_home_of_any_root(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    other = Disk(tmp_path / "two", make_home(tmp_path / "two", "host-2"))
    here, first = disk.write_random(attempt=1)
    there, second = other.write_random(attempt=2)
    assert shelf.catalog.find(first) == here
    assert shelf.catalog.find(second) == there
    assert shelf.catalog.homes(APPLICATION) == [str(disk.home), str(other.home)]


def test_the_id_decides_not_the_name(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    _, output = disk.write_random(attempt=1)
    with pytest.raises(MissingDataError, match=OTHER_ID.hex()):
        shelf.catalog.find(replace(output, file_id=OTHER_ID))
    other = Disk(tmp_path / "two", make_home(tmp_path / "two", "host-2"))
    file, _ = other.write_random(attempt=1, subpartitions=2)
    assert shelf.catalog.find(output).base != file.base


@pytest.mark.parametrize("gone", ["index", "data"])
def test_half_a_pair_is_missing(disk: Disk, shelf: Shelf, gone: str) -> None:
    file, output = disk.write_random()
    os.unlink(file.index_path if gone == "index" else file.data_path)
    with pytest.raises(MissingDataError):
        shelf.catalog.find(output)


def test_an_output_whose_header_is_damaged_is_damaged(disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    with changed(file.data_path, 30, 1), pytest.raises(CorruptDataError):
        shelf.catalog.find(output)
    assert shelf.catalog.find(output) == file


def test_links_that_lead_out_of_the_roots_are_not_followed(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    outside = make_disk(tmp_path / "three")
    file, output = outside.write_random()
    for path in (file.data_path, file.index_path):
        os.symlink(path, disk.home / Path(path).name)
    with pytest.raises(MissingDataError):
        shelf.catalog.find(output)
    os.symlink(outside.home, disk.home.parent / "linked")
    with pytest.raises(MissingDataError):
        shelf.catalog.find(output)
    shelf.roots.append(str(outside.root))  # now it is inside
    assert shelf.catalog.find(output).attempt == file.attempt


def test_links_within_the_roots_are_followed(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    moved = tmp_path / "two" / "moved"
    shutil.move(disk.home, moved)
    os.symlink(moved, disk.home)
    assert shelf.catalog.find(output) == file


def test_a_service_that_can_open_nothing_does_not_take_outputs_for_lost(disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    with no_descriptor_left(), pytest.raises(OSError) as failed:
        shelf.catalog.find(output)
    assert failed.value.errno == errno.EMFILE
    assert shelf.catalog.find(output) == file


def test_a_directory_that_cannot_be_listed_for_a_moment_loses_nothing(
    tmp_path: Path, disk: Disk, shelf: Shelf
) -> None:
    here, first = disk.write_random(attempt=1)
    there, second = Disk(tmp_path / "two", make_home(tmp_path / "two", "host-2")).write_random(attempt=2)
    with Faults() as seen:
        shelf.catalog.find(first)
    listed = next(site for site in seen.sites if site.name == "listdir")
    with Faults(Fault(listed, "EIO")) as made, pytest.raises(OSError) as failed:
        shelf.catalog.find(first)
    assert (made.happened, failed.value.errno) == (True, errno.EIO)
    assert not isinstance(failed.value, MissingDataError)
    assert shelf.catalog.find(first) == here
    with Faults(Fault(listed, "EIO")) as made:
        assert shelf.catalog.find(second) == there
    assert made.happened


def unlisted(monkeypatch: pytest.MonkeyPatch, number: int) -> SimpleNamespace:
    """From now on no directory can be listed; the catalog's clock, which stands at ``now``."""

    def broken(directory: str) -> list[str]:
        raise OSError(number, os.strerror(number), directory)

    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(catalog, "time", clock)
    monkeypatch.setattr(catalog.calls, "listdir", broken)
    return clock


def test_a_directory_that_can_never_be_listed_is_lost(
    disk: Disk, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the producers run again."""
    file, output = disk.write_random()

    clock = unlisted(monkeypatch, errno.EIO)
    for passed in (0.0, catalog.LISTED_WITHIN - 1):
        clock.now += passed
        with pytest.raises(OSError) as failed:
            shelf.catalog.find(output)
        assert failed.value.errno == errno.EIO
    clock.now += 1
    with pytest.raises(MissingDataError, match="no directory that this service serves"):
        shelf.catalog.find(output)
    monkeypatch.undo()
    assert shelf.catalog.find(output) == file


def test_failures_that_are_long_apart_lose_nothing(
    disk: Disk, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked between them: whether it could be listed then is not known."""
    _, output = disk.write_random()

    clock = unlisted(monkeypatch, errno.ESTALE)
    for passed in (0.0, 3600.0, 7200.0, catalog.LISTED_WITHIN - 1):
        clock.now += passed
        with pytest.raises(OSError) as failed:
            shelf.catalog.find(output)
        assert failed.value.errno == errno.ESTALE
    clock.now += 1
    with pytest.raises(MissingDataError, match="no directory that this service serves"):
        shelf.catalog.find(output)


def test_without_any_directory_everything_is_missing() -> None:
    empty = Shelf()
    with pytest.raises(MissingDataError, match="no directory that this service serves"):
        empty.catalog.find(OUTPUT)
    assert empty.catalog.applications() == []
    empty.close()


@pytest.mark.parametrize("change", [-1, 1], ids=["shorter", "longer"])
def test_an_index_is_given_only_beside_a_data_file_of_its_size(disk: Disk, shelf: Shelf, change: int) -> None:
    file, output = disk.write_random()
    request = PartitionRequest(1, 1, output, one(0), stream=Stream.INDEX)
    size = os.path.getsize(file.data_path)
    os.truncate(file.data_path, size + change)
    with pytest.raises(CorruptDataError, match="cut short" if change < 0 else "longer than its index says"):
        shelf.catalog.index_view(request)
    os.truncate(file.data_path, size)
    shelf.catalog.index_view(request).release()


# Views


def test_views_are_registered_on_demand_and_once(disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    assert output.file_id not in shelf.manager
    for subpartition in range(3):
        request = PartitionRequest(1, 1, output, one(subpartition))
        assert shelf.read(request) == stored(file, one(subpartition))
    assert len(shelf.manager) == 1


def test_an_output_that_came_to_another_home_is_found_again(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    request = PartitionRequest(1, 1, output, one(1))
    expected = stored(file, one(1))
    assert shelf.read(request) == expected
    home = make_home(tmp_path / "two", "host-2")
    for path in (file.data_path, file.index_path):
        shutil.move(path, home)
    assert shelf.read(request) == expected


def test_an_output_whose_files_are_gone_is_forgotten(disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    request = PartitionRequest(1, 1, output, one(1))
    shelf.read(request)
    until(lambda: shelf.manager.figures().partitions_open == 0)
    file.delete()
    with pytest.raises(MissingDataError, match="no directory that this service serves"):
        shelf.read(request)
    assert output.file_id not in shelf.manager


def test_an_output_under_two_names_is_read_under_either(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random()
    adopted = replace(output, attempt=205)
    other = PartitionedFile.named(
        str(make_home(tmp_path / "two", "host-2")), output.exchange, output.map_index, adopted.attempt
    )
    for path, link in ((file.data_path, other.data_path), (file.index_path, other.index_path)):
        os.link(path, link)
    assert shelf.manager.register(output.file_id, file) is shelf.manager.register(output.file_id, other)
    expected = stored(file, one(1))
    assert shelf.read(PartitionRequest(1, 1, adopted, one(1))) == expected
    until(lambda: shelf.manager.figures().partitions_open == 0)
    file.delete()
    assert shelf.read(PartitionRequest(1, 1, adopted, one(1))) == expected


# Adoption


WANTED = replace(OUTPUT, attempt=0, file_id=DRIVER)


def adoptable(shelf: Shelf) -> FoundOutput | None:
    return shelf.catalog.adoptable(WANTED)


def test_the_first_finished_attempt_of_an_ended_executor_is_adopted(tmp_path: Path, shelf: Shelf) -> None:
    for name, attempts in (("ended-1", [30, 12]), ("ended-2", [9, 100])):
        home = make_home(tmp_path / "two", name, ended_owner())
        for attempt in attempts:
            Disk(tmp_path / "two", home).write_random(attempt=attempt)
    found = adoptable(shelf)
    assert found is not None
    base = str(tmp_path / "two" / HOME_ROOT / APPLICATION / "ended-2" / "exchange-3-map-17-attempt-9")
    assert found == FoundOutput(id_of(9), 9, base, owner().host)


def test_what_a_live_executor_wrote_is_not_adopted(disk: Disk, shelf: Shelf) -> None:
    disk.write_random()
    assert adoptable(shelf) is None


def test_what_nobody_owns_or_another_host_does_is_not_adopted(disk: Disk, shelf: Shelf) -> None:
    disk.write_random()
    os.unlink(disk.home / OWNER_FILE)
    assert adoptable(shelf) is None
    replace(ended_owner(), boot="another").write(str(disk.home))
    assert adoptable(shelf) is None
    ended_owner().write(str(disk.home))
    assert adoptable(shelf) is not None


def test_other_exchanges_and_maps_and_applications_are_not_adopted(tmp_path: Path, shelf: Shelf) -> None:
    home = make_home(tmp_path / "two", "ended", ended_owner())
    Disk(tmp_path / "two", home).write_random()
    assert adoptable(shelf) is not None
    assert shelf.catalog.adoptable(replace(WANTED, map_index=1)) is None
    assert shelf.catalog.adoptable(replace(WANTED, exchange=OUTPUT.exchange + 1)) is None
    assert shelf.catalog.adoptable(replace(WANTED, application="app-2")) is None
    assert shelf.catalog.adoptable(replace(WANTED, file_id=bytes(16))) is None, "another driver counts alike"


def test_a_disk_that_stands_still_does_not_keep_what_is_on_another(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks first stays there; all who come later pass it over, in the threads that are left."""
    monkeypatch.setattr(ended_homes, "HELD_AT_MOST", 0.01)
    for at, root in enumerate(("one", "two")):
        home = make_home(tmp_path / root, f"ended-{root}", ended_owner())
        Disk(tmp_path / root, home).write_random(attempt=at)
    reached, gets_on = threading.Event(), threading.Event()

    def standing(call: Callable[..., object]) -> Callable[..., object]:
        def stands(path: str, *arguments: object) -> object:
            if path.startswith(str(tmp_path / "one")):
                reached.set()
                assert gets_on.wait(60)
            return call(path, *arguments)

        return stands

    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patch:
        for name in ("stat", "lstat", "listdir", "realpath", "open"):
            patch.setattr(calls, name, standing(getattr(calls, name)))
        waiting = threads.submit(adoptable, shelf)
        try:
            assert reached.wait(60)
            for _ in range(3):
                found = adoptable(shelf)
                assert found is not None
                assert (found.file_id, found.attempt) == (id_of(1), 1)
        finally:
            gets_on.set()
        first = waiting.result(60)
        assert first is not None
        assert first.attempt == 0
    again = adoptable(shelf)
    assert again is not None
    assert again.attempt == 0, "it is asked again when it gets on"


@pytest.mark.parametrize("fault", ["index", "no data", "short", "other data", "partial"])
def test_what_is_not_whole_is_passed_over(tmp_path: Path, shelf: Shelf, fault: str) -> None:
    home = make_home(tmp_path / "two", "ended", ended_owner())
    there = Disk(tmp_path / "two", home)
    bad, _ = there.write_random(attempt=1)
    good, _ = there.write_random(attempt=2)
    match fault:
        case "index":
            Path(bad.index_path).write_bytes(b"not an index")
        case "no data":
            os.unlink(bad.data_path)
        case "short":
            os.truncate(bad.data_path, os.path.getsize(bad.data_path) - 1)
        case "other data":
            shutil.copy(good.data_path, bad.data_path)
        case "partial":
            os.rename(bad.index_path, bad.partial_index_path)
    found = adoptable(shelf)
    assert found is not None
    assert (found.base, found.attempt) == (good.base, 2)


# What there is


def test_applications_are_counted(tmp_path: Path, disk: Disk, shelf: Shelf) -> None:
    sizes = [os.path.getsize(disk.write_random(attempt=n)[0].data_path) for n in range(3)]
    make_home(tmp_path / "two", "host-2")
    empty = tmp_path / "two" / HOME_ROOT / "app-0" / "host-3"
    empty.mkdir(parents=True)
    (disk.home / "unfinished.data.partial").touch()
    zero, first = shelf.catalog.applications()
    assert (zero.application, zero.homes, zero.map_outputs, zero.bytes) == ("app-0", 1, 0, 0)
    assert (first.application, first.homes, first.map_outputs) == (APPLICATION, 2, 3)
    assert first.bytes == sum(sizes)


# Names


def test_a_file_that_is_another_attempts_is_not_found_by_a_similar_name(disk: Disk, shelf: Shelf) -> None:
    _, output = disk.write_random(attempt=2040)
    with pytest.raises(MissingDataError):
        shelf.catalog.find(replace(output, attempt=204))
    assert isinstance(shelf.catalog.find(output), PartitionedFile)
