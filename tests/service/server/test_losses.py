"""What is done about map outputs that are damaged or gone: judged by reading, and told once."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import ID, OTHER_ID, Pair, Region, arrow_memory, changed
from serving import OUTPUT, Disk, Shelf, ended_owner, make_disk, make_home

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.options import KIB, MIB
from sortshuffle.service.server import losses
from sortshuffle.service.server.losses import Losses
from sortshuffle.service.wire.protocol import DamageReport, MapOutputAddress, Verdict
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return make_disk(tmp_path / "one")


@pytest.fixture
def shelf(tmp_path: Path, disk: Disk) -> Iterator[Shelf]:
    (tmp_path / "two").mkdir()
    made = Shelf(tmp_path / "one", tmp_path / "two")
    yield made
    made.close()


def test_a_loss_is_told_once(tmp_path: Path, shelf: Shelf) -> None:
    control = tmp_path / "blockmgr" / "0a" / "shuffle_5_204_0.index"
    control.parent.mkdir(parents=True)
    other = control.with_name("shuffle_5_205_0.index")
    home = make_home(tmp_path / "two", "ended", ended_owner([str(tmp_path / "blockmgr")]))
    _, output = Disk(tmp_path / "two", home).write_random()
    judge = Losses(shelf.catalog)
    control.touch()
    other.touch()
    judge.report(output)
    assert not control.exists()
    assert other.exists()
    control.touch()
    judge.report(output)
    assert control.exists()


@pytest.mark.parametrize(
    ("call", "name", "number"),
    [
        ("open_file", "owner.json", errno.EMFILE),
        ("open_file", "owner.json", errno.EIO),
        ("listdir", "blockmgr", errno.EMFILE),
        ("listdir", "0a", errno.EIO),
        ("unlink", "shuffle_5_204_0.index", errno.EIO),
    ],
)
def test_a_loss_that_the_system_kept_from_being_told_is_told_by_the_next_report(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, call: str, name: str, number: int
) -> None:
    """For lack of descriptors the report fails, and the client asks again; a broken disk may stay broken."""
    control, output = lost_output(tmp_path)
    judge = Losses(shelf.catalog)
    with monkeypatch.context() as hindered:
        hindered.setattr(calls, call, refusing(getattr(calls, call), name, number))
        if number == errno.EMFILE:
            with pytest.raises(OSError) as caught:
                judge.report(output)
            assert (caught.value.errno, os.path.basename(caught.value.filename)) == (number, name)
        else:
            judge.report(output)
    assert control.exists()
    judge.report(output)
    assert not control.exists()


def lost_output(directory: Path) -> tuple[Path, MapOutputAddress]:
    """Spark's own file of an ended executor's map output, and the map output, whose files are gone."""
    control = directory / "blockmgr" / "0a" / "shuffle_5_204_0.index"
    control.parent.mkdir(parents=True)
    control.touch()
    home = make_home(directory / "two", "ended", ended_owner([str(directory / "blockmgr")]))
    file, output = Disk(directory / "two", home).write_random()
    file.delete()
    return control, output


def refusing(real: Callable[..., Any], name: str, number: int) -> Callable[..., Any]:
    """The same call, which fails on files and directories of this name."""

    def call(path: str, *arguments: Any, **named: Any) -> Any:
        if os.path.basename(path) == name:
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **named)

    return call


def test_a_home_that_cannot_be_read_keeps_nothing_from_the_rest(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on a broken disk. The application's directories are looked into, as where a home is gone."""
    control, output = lost_output(tmp_path)
    monkeypatch.setattr(calls, "open_file", refusing(calls.open_file, "owner.json", errno.EIO))
    Losses(shelf.catalog, lambda _: [str(tmp_path / "blockmgr")]).report(output)
    assert not control.exists()


def test_where_homes_are_gone_control_files_of_the_application_alone_are_looked_for(
    tmp_path: Path, shelf: Shelf
) -> None:
    """The roots may be directories in which Spark has files of other applications, too, with attempts of the
    same numbers."""
    roots = (tmp_path / "two", tmp_path / "own")
    places = [place for root in roots for place in (root, root / "blockmgr-7")]
    for place in places:
        (place / "0a").mkdir(parents=True)
        for attempt in (204, 205):
            (place / "0a" / f"shuffle_5_{attempt}_0.index").touch()
    Losses(shelf.catalog).report(OUTPUT)
    own = {OUTPUT.application: [str(tmp_path / "own")]}
    losses = Losses(shelf.catalog, lambda application: own.get(application, []))
    losses.report(replace(OUTPUT, application="another"))
    left = [len(os.listdir(place / "0a")) for place in places]
    assert left == [2, 2, 2, 2]
    losses.report(OUTPUT)
    left = [len(os.listdir(place / "0a")) for place in places]
    assert left == [2, 2, 1, 1]


@pytest.mark.parametrize("is_adoptable", [False, True])
def test_a_map_output_that_is_named_with_another_id_is_left_alone(
    tmp_path: Path, shelf: Shelf, is_adoptable: bool
) -> None:
    """Any process that reaches the service can name one; only those that read it know its id."""
    control = tmp_path / "blockmgr" / "0a" / "shuffle_5_204_0.index"
    control.parent.mkdir(parents=True)
    control.touch()
    owner = replace(ended_owner([str(tmp_path / "blockmgr")]), outlived=is_adoptable)
    file, output = Disk(tmp_path / "two", make_home(tmp_path / "two", "ended", owner)).write_random()
    Losses(shelf.catalog).report(replace(output, file_id=bytes(16)))
    assert control.exists() and os.path.exists(file.data_path) and os.path.exists(file.index_path)
    with changed(file.data_path, 8, 0xFF):  # in the header: what it was is not known any more
        Losses(shelf.catalog).report(replace(output, file_id=bytes(16)))
    assert not control.exists()


def test_a_loss_is_told_where_another_executor_has_a_map_output_of_that_name(
    tmp_path: Path, shelf: Shelf
) -> None:
    """A driver that YARN starts again counts exchanges and attempts from 0, as the one before."""
    controls = []
    for number in (1, 2):
        control = tmp_path / f"blockmgr-{number}" / "0a" / "shuffle_5_204_0.index"
        control.parent.mkdir(parents=True)
        control.touch()
        controls.append(control)
        home = make_home(tmp_path / "two", f"ended-{number}", ended_owner([str(control.parents[1])]))
        file, output = Disk(tmp_path / "two", home).write_random()
    file.delete()
    Losses(shelf.catalog).report(replace(output, file_id=OTHER_ID))
    assert [control.exists() for control in controls] == [True, False]


def test_outputs_of_the_attempt_on_other_disks_are_not_dropped_at_once(tmp_path: Path, shelf: Shelf) -> None:
    """Its executor has a home in each of two directories of ``spark.sortshuffle.dir``."""
    owner = ended_owner([str(tmp_path / "blockmgr")])
    roots = [tmp_path / name for name in ("one", "two")]
    disks = [Disk(root, make_home(root, owner.home_name, owner)) for root in roots]
    lost, output = disks[0].write_random()
    lost.delete()
    written, _ = disks[1].write_random()
    sound = PartitionedFile.named(str(disks[1].home), 4, output.map_index, output.attempt)
    os.rename(written.data_path, sound.data_path)
    os.rename(written.index_path, sound.index_path)
    os.utime(sound.data_path, (0, 0))
    Losses(shelf.catalog).report(output)
    assert os.stat(sound.data_path).st_mtime > 0


def test_reports_are_judged_extent_by_extent(disk: Disk, shelf: Shelf) -> None:
    file, output = disk.write_random(subpartitions=2, regions=2, payload=1000)
    losses = Losses(shelf.catalog)
    size = os.path.getsize(file.data_path)
    with changed(file.data_path, size - 200, 1):
        verdicts = {
            (region, subpartition): losses.judge(DamageReport(1, output, subpartition, region))
            for region in range(2)
            for subpartition in range(2)
        }
    assert sorted(verdicts.values()) == [Verdict.SOUND] * 3 + [Verdict.DAMAGED]
    assert verdicts[1, 0] is Verdict.DAMAGED  # the rotation puts subpartition 0 last
    missing = replace(output, file_id=ID)
    assert losses.judge(DamageReport(1, missing, 0, 0)) is Verdict.MISSING


def test_an_extent_that_there_is_not_cannot_be_judged(disk: Disk, shelf: Shelf) -> None:
    _, output = disk.write_random(subpartitions=2, regions=2)
    for subpartition, region in [(2, 0), (0, 2)]:
        with pytest.raises(UsageError, match="2 regions and 2 subpartitions"):
            Losses(shelf.catalog).judge(DamageReport(1, output, subpartition, region))


@pytest.mark.parametrize(
    ("payloads", "offset", "mask", "verdict"),
    [
        ([8 * MIB, 100], None, 0, Verdict.SOUND),
        ([8 * MIB, 100], 5 * MIB, 1, Verdict.DAMAGED),
        ([8 * MIB, 100], 8 * MIB + 60, 1, Verdict.DAMAGED),
        ([20_000] * 400, None, 0, Verdict.SOUND),
        ([20_000] * 400, 6, 0x40, Verdict.DAMAGED),
        ([20_000] * 400, 5 * MIB, 1, Verdict.DAMAGED),
    ],
    ids=["large", "changed", "other checksum", "many", "says that it is large", "changed one"],
)
def test_a_report_costs_little_memory_however_large_a_buffer_is(
    disk: Disk,
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    payloads: list[int],
    offset: int | None,
    mask: int,
    verdict: Verdict,
) -> None:
    """``offset``: in the extent, of which one byte is changed."""
    monkeypatch.setattr(losses, "VERIFIED_BYTES", 256 * KIB)
    chosen = random.Random(1)
    region = Region({0: [chosen.randbytes(size) for size in payloads]})
    file, output = disk.write(Pair(1, 0, [region]))
    start = int(read_index(file).entries[0, 0]["offset"])
    with changed(file.data_path, start + (offset or 0), mask), arrow_memory() as memory:
        assert Losses(shelf.catalog).judge(DamageReport(1, output, 0, 0)) is verdict
    assert 0 < (memory.max_memory() or 0) < MIB
