"""What an external service deletes: homes of applications that have ended, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from engine import DRIVER, Pair, names, running, write_pair

from sortshuffle import calls
from sortshuffle.homes import janitor
from sortshuffle.homes.forgotten_exchanges import record_exchanges
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.service.server.ended_homes import EndedHomes
from sortshuffle.service.server.linger import LingeringSweep
from sortshuffle.storage.files.partitioned_file import PartitionedFile

LINGER = 100.0
NOBODY = 2**22 + 1  # above every pid


@dataclass
class Host:
    """A host with one directory that a service serves, a clock, and Spark's directories."""

    place: Path
    now: float = 0.0
    sweeper: LingeringSweep = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.place / "served"
        self.spark = self.place / "spark"
        self.root.mkdir()
        self.sweeper = LingeringSweep(lambda: (str(self.root),), LINGER, lambda: self.now)

    def home(self, pid: int, application: str = "app-1", **changes: object) -> str:
        """A home with a map output in it, of an executor whose own directories are there."""
        blocks = self.spark / application / f"executor-{pid}" / "blockmgr"
        blocks.mkdir(parents=True, exist_ok=True)
        owner = Owner(
            application=application,
            host=socket.gethostname(),
            boot=boot_id(),
            pid=pid,
            started=process_start(pid) or 1,
            local_directories=(str(blocks),),
            grace=600.0,
            keep=False,
            outlived=True,
        )
        home = self.root / "sortshuffle" / application / f"{owner.host}-{pid}"
        home.mkdir(parents=True)
        replace(owner, **changes).write(str(home))  # type: ignore[arg-type]
        write_pair(home, Pair(2))
        return str(home)

    def after(self, seconds: float) -> list[str]:
        """What is swept when so much more time has passed."""
        self.now += seconds
        return self.sweeper.sweep()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def outputs(home: str) -> list[str]:
    return [name for name in names(home) if name.startswith("exchange-")]


@contextmanager
def executor() -> Iterator[int]:
    with running("sleep", "600") as process:
        yield process.pid


def test_an_executor_in_another_container_lives_as_long_as_its_janitor(host: Host) -> None:
    home = host.home(NOBODY, namespace="pid:[1]", local_directories=("/not/of/this/container",))
    with open(Path(home, janitor.LOCK_FILE), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [host.after(LINGER), host.after(LINGER)] == [[], []]
    assert [host.after(0), host.after(LINGER)] == [[], [home]]


def test_an_application_lingers_after_its_last_executor_and_then_goes(host: Host) -> None:
    with executor() as pid:
        home, ended_before = host.home(pid), host.home(NOBODY)
        assert host.after(10 * LINGER) == []
    assert host.after(0) == []
    assert host.after(LINGER - 1) == []
    assert sorted(host.after(1)) == sorted([home, ended_before])
    assert names(host.root) == []


def test_an_executor_that_comes_meanwhile_keeps_it(host: Host) -> None:
    host.home(NOBODY)
    assert host.after(0) == []
    with executor() as pid:
        host.home(pid)
        assert host.after(2 * LINGER) == []
    assert host.after(LINGER - 1) == []
    assert host.after(LINGER - 1) == []
    assert len(host.after(1)) == 2


def test_what_ended_executors_left_of_forgotten_exchanges_goes_while_the_application_lives(
    host: Host,
) -> None:
    with executor() as pid:
        home = host.home(pid)
        ended, other = host.home(NOBODY), host.home(NOBODY + 1)
        Path(PartitionedFile.named(other, 3, 17, 205).index_path).touch()  # damaged: it says of no driver
        record_exchanges(home, DRIVER.hex(), [2, 4])
        record_exchanges(ended, "another driver's", [3])
        assert host.after(10 * LINGER) == []
        assert [len(outputs(each)) for each in (home, ended, other)] == [2, 2, 3]
        record_exchanges(home, DRIVER.hex(), [3])
        assert host.after(0) == [ended]
        assert outputs(other) == ["exchange-3-map-17-attempt-205.index"]
        assert len(outputs(home)) == 2, "its janitor sees to what a live executor has"


def test_what_went_is_not_given_to_adopt_any_more(host: Host) -> None:
    homes = EndedHomes()

    def left() -> list[str]:
        return [file.base for file, _ in homes.outputs([str(host.root)], "app-1", 3, 17)]

    with executor() as pid:
        home, ended = host.home(pid), host.home(NOBODY)
        for directory in (ended, os.path.dirname(ended)):
            os.utime(directory, (1, 1))  # so that the listing is kept
        assert left() == [PartitionedFile.named(ended, 3, 17, 204).base]
        record_exchanges(home, DRIVER.hex(), [3])
        assert host.after(0) == [ended]
        assert left() == []


def test_an_ended_executors_home_without_a_map_output_goes(host: Host) -> None:
    with executor() as pid:
        host.home(pid)
        ended = host.home(NOBODY)
        for name in names(ended):
            if name.startswith("exchange-"):
                os.unlink(os.path.join(ended, name))
        assert host.after(0) == [ended]


def test_a_home_in_another_container_outlives_a_moment_without_a_janitor(host: Host) -> None:
    """Its executor may live, and write: only what is forgotten goes."""
    with executor() as pid:
        home = host.home(pid)
        other = host.home(NOBODY, namespace="pid:[1]")
        record_exchanges(home, DRIVER.hex(), [3])
        assert host.after(0) == []
        assert names(other) == ["owner.json"]


def test_a_home_that_cannot_be_removed_does_not_keep_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, *others = sorted(host.home(NOBODY + number) for number in range(3))
    listdir = calls.listdir

    def failing(directory: str) -> list[str]:
        if directory == stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO), directory)
        return listdir(directory)

    assert host.after(0) == []
    with monkeypatch.context() as patched:
        patched.setattr(calls, "listdir", failing)
        assert host.after(LINGER) == others
    assert host.after(0) == [stuck]


def test_it_goes_at_once_when_spark_has_removed_what_goes_with_the_application(host: Host) -> None:
    home, other = host.home(NOBODY), host.home(NOBODY + 1)
    (host.spark / "app-1" / f"executor-{NOBODY}" / "blockmgr").rmdir()  # as an executor does at its end
    assert host.after(0) == []
    (host.spark / "app-1" / f"executor-{NOBODY}").rmdir()
    assert host.after(0) == []  # the other's is there
    (host.spark / "app-1" / f"executor-{NOBODY + 1}" / "blockmgr").rmdir()
    (host.spark / "app-1" / f"executor-{NOBODY + 1}").rmdir()
    assert sorted(host.after(0)) == sorted([home, other])


def test_where_spark_s_directories_are_not_known_only_time_tells(host: Host) -> None:
    home = host.home(NOBODY, local_directories=())
    assert host.after(LINGER - 1) == []
    assert host.after(LINGER) == [home]


def test_applications_linger_each_for_itself(host: Host) -> None:
    first = host.home(NOBODY)
    assert host.after(0) == []
    second = host.home(NOBODY, "app-2")
    assert host.after(LINGER) == [first]
    assert host.after(LINGER) == [second]


@pytest.mark.parametrize(
    "changes",
    [{"outlived": False}, {"keep": True}, {"host": "elsewhere"}, {"boot": "an earlier one"}],
    ids=lambda changes: next(iter(changes)),
)
def test_homes_that_are_not_its_to_judge_stay(host: Host, changes: dict[str, object]) -> None:
    home = host.home(NOBODY, **changes)
    host.after(0)
    assert host.after(2 * LINGER) == []
    assert len(names(home)) == 3


def test_a_home_whose_janitor_holds_its_lock_is_live(host: Host) -> None:
    home = host.home(NOBODY)
    lock = janitor._lock(home)
    assert lock is not None
    host.after(0)
    assert host.after(2 * LINGER) == []
    os.close(lock)
    assert host.after(0) == []
    assert host.after(LINGER) == [home]


def test_what_stands_elsewhere_below_a_root_is_not_touched(host: Host) -> None:
    (host.root / "other").mkdir()
    (host.root / "sortshuffle" / "app-1" / "not-a-home").mkdir(parents=True)
    (host.root / "sortshuffle" / "app-9").symlink_to(host.spark.parent)
    host.after(0)
    assert host.after(2 * LINGER) == []
    assert names(host.root) == ["other", "sortshuffle"]
    assert names(host.root / "sortshuffle") == ["app-1", "app-9"]
