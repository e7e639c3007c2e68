"""The janitor as a real process beside a real "executor" (a `sleep`): it deletes what is dead while that one
lives, and everything once it has ended; there is one for each home; it stays small."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engine import WRITER, Pair, eventually, names, open_files, printed, running, write_pair

from sortshuffle import calls
from sortshuffle.homes import janitor
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_locked
from sortshuffle.storage.writer import PartitionedFileWriter

SOON = 20.0  # seconds; more than any machine needs, for what must happen at all


@dataclass
class Executor:
    """A process, and the homes that say it is their owner."""

    process: subprocess.Popen[str]
    owner: Owner
    local: list[Path]

    @property
    def homes(self) -> list[str]:
        return [str(local / "sortshuffle" / "app-1" / f"host-{self.process.pid}") for local in self.local]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    local = [tmp_path / "one", tmp_path / "two"]
    with running("sleep", "600") as process:
        started = process_start(process.pid)
        assert started is not None
        owner = Owner(
            application="app-1",
            host=socket.gethostname(),
            boot=boot_id(),
            pid=process.pid,
            started=started,
            local_directories=tuple(map(str, local)),
            grace=600.0,
            keep=False,
        )
        executor = Executor(process, owner, local)
        for home in executor.homes:
            os.makedirs(home)
            owner.write(home)
        yield executor


@contextmanager
def janitor_of(*homes: str) -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-m", "sortshuffle.homes.janitor", *homes) as process:
        yield process


def is_attended(home: str) -> bool:
    """Whether somebody holds the lock of a home's janitor."""
    try:
        with open(os.path.join(home, janitor.LOCK_FILE), "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def aged(file: PartitionedFile) -> PartitionedFile:
    for path in (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path):
        if os.path.exists(path):
            os.utime(path, (1000.0, 1000.0))
    return file


def partial(home: str, attempt: int) -> PartitionedFile:
    """What a killed task left long ago."""
    file = PartitionedFile.named(home, 3, 17, attempt)
    Path(file.partial_data_path).touch()
    Path(file.partial_index_path).touch()
    return aged(file)


def pairs(home: str) -> list[str]:
    return [name for name in names(home) if name.startswith("exchange-")]


def test_it_deletes_every_home_and_ends_when_the_executor_ends(executor: Executor, tmp_path: Path) -> None:
    for home in executor.homes:
        write_pair(home, Pair(2))
        Path(home, "owner.json.77").touch()  # of a process that was killed while it wrote
    with janitor_of(*executor.homes) as process:
        for home in executor.homes:
            eventually(lambda home=home: is_attended(home), "the janitor takes its locks")
        assert all(len(pairs(home)) == 2 for home in executor.homes)
        executor.end()
        assert process.wait(SOON) == 0
    assert [names(local) for local in executor.local] == [[], []]


def test_it_deletes_homes_whose_executor_had_ended_before_it_started(executor: Executor) -> None:
    write_pair(executor.homes[0], Pair(2))
    executor.end()
    with janitor_of(*executor.homes) as process:
        assert process.wait(SOON) == 0
    assert [names(local) for local in executor.local] == [[], []]


def test_it_ends_when_its_homes_are_gone(executor: Executor) -> None:
    with janitor_of(*executor.homes) as process:
        eventually(lambda: all(map(is_attended, executor.homes)), "the janitor takes its locks")
        for local in executor.local:
            subprocess.run(["rm", "-r", str(local)], check=True)  # as Spark does at its end
        assert process.wait(SOON) == 0
    assert executor.process.poll() is None


def test_it_goes_on_while_one_of_its_homes_is_left(executor: Executor) -> None:
    with janitor_of(*executor.homes) as process:
        eventually(lambda: all(map(is_attended, executor.homes)), "the janitor takes its locks")
        subprocess.run(["rm", "-r", str(executor.local[0])], check=True)
        killed = partial(executor.homes[1], 1)
        eventually(lambda: pairs(executor.homes[1]) == [], f"{killed.base} is deleted")
        assert process.poll() is None
        executor.end()
        assert process.wait(SOON) == 0
    assert names(executor.local[1]) == []


def test_while_the_executor_lives_it_deletes_what_is_dead_and_nothing_else(executor: Executor) -> None:
    first, second = executor.homes
    control = executor.local[1] / "0c" / "shuffle_5_3_0.index"
    control.parent.mkdir(parents=True)
    control.touch()
    aged(write_pair(first, Pair(2), attempt=1))  # old, and forgotten by Spark
    write_pair(first, Pair(2), attempt=2)  # young
    aged(write_pair(second, Pair(2), attempt=3))  # old, and known to Spark
    partial(second, 4)
    with PartitionedFileWriter(PartitionedFile.named(second, 3, 17, 5), Pair(2).header) as writer:
        aged(writer.file)
        with janitor_of(*executor.homes) as process:
            eventually(lambda: not pairs(first)[2:] and not pairs(second)[4:], "what is dead is deleted")
            later = partial(second, 6)  # at a later look, and so behind everything the first one did
            eventually(lambda: not os.path.exists(later.partial_data_path), "a later partial is deleted")
            assert process.poll() is None
        assert pairs(first) == ["exchange-3-map-17-attempt-2.data", "exchange-3-map-17-attempt-2.index"]
        assert pairs(second) == [
            "exchange-3-map-17-attempt-3.data",
            "exchange-3-map-17-attempt-3.index",
            "exchange-3-map-17-attempt-5.data.partial",
            "exchange-3-map-17-attempt-5.index.partial",
        ]
        writer.finish(WRITER)


def test_what_spark_drops_becomes_a_spare_that_later_goes(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_files, "_file_system_of", lambda directory: "ext4")
    home = executor.homes[0]
    control = executor.local[0] / "0c" / "shuffle_5_1_0.index"
    control.parent.mkdir(parents=True)
    control.touch()
    file = write_pair(home, Pair(2), attempt=1)
    os.truncate(file.data_path, spare_files.SMALLEST)
    spare = os.path.join(home, "spares", "exchange-3-map-17-attempt-1.spare")
    clock = iter(range(1000))
    listings = HomeListings(lambda: float(next(clock)))
    janitor._look(home, executor.owner, listings)
    control.unlink()
    for _ in range(3):
        janitor._look(home, executor.owner, listings)
    assert pairs(home) == []
    assert os.path.getsize(spare) == spare_files.SMALLEST
    too_large = os.path.join(home, "spares", "exchange-3-map-17-attempt-2.spare")
    Path(too_large).touch()
    os.truncate(too_large, 1 << 42)  # more than there is memory
    with janitor_of(home):
        eventually(lambda: not os.path.exists(too_large), "the janitor deletes what is too much")


@pytest.mark.parametrize("how", ["keep", "outlived", "served_by_spark"])
def test_an_executor_that_ends_leaves_no_spares(executor: Executor, how: str) -> None:
    home = executor.homes[0]
    replace(executor.owner, **{how: True}).write(home)
    control = executor.local[0] / "0c" / "shuffle_5_1_0.index"
    control.parent.mkdir(parents=True)
    control.touch()
    write_pair(home, Pair(2), attempt=1)
    spares = Path(home) / "spares"
    spares.mkdir()
    (spares / "exchange-3-map-17-attempt-2.spare").touch()
    with janitor_of(home):
        eventually(lambda: is_attended(home), "the janitor takes its lock")
        assert len(names(spares)) == 1
        executor.end()
        eventually(lambda: not names(spares), "the spare goes")
    assert len(pairs(home)) == 2


def test_between_two_looks_that_decide_there_is_time(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes a quarter of a second after the first, at whatever tick Spark drops its file."""
    home = executor.homes[0]
    control = executor.local[1] / "0c" / "shuffle_5_3_0.index"
    control.parent.mkdir(parents=True)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now >= dropped_at:
            control.unlink(missing_ok=True)
        if now >= dropped_at + 0.2 and pairs(home):
            left_at.append(now)

    monkeypatch.setattr(janitor.time, "sleep", sleep)
    monkeypatch.setattr(janitor, "HomeListings", lambda: HomeListings(lambda: now))
    monkeypatch.setattr(Owner, "is_live", lambda owner: now < dropped_at + 2.0)
    for step in range(1, 21):
        left_at: list[float] = []
        now, dropped_at = 0.0, step / 4
        control.touch()
        write_pair(home, Pair(2), attempt=3)
        janitor._until_the_end({home: None})
        assert left_at == [dropped_at + 0.25]
        assert pairs(home) == []


def test_a_look_that_fails_does_not_end_it(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pair(executor.homes[0], Pair(2))

    def failing(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many open files", path)

    monkeypatch.setattr(calls, "listdir", failing)
    janitor._look(executor.homes[0], executor.owner, HomeListings())


def test_a_second_one_ends_soon_and_touches_nothing(executor: Executor) -> None:
    with janitor_of(*executor.homes) as first:
        eventually(lambda: all(map(is_attended, executor.homes)), "the janitor takes its locks")
        executor_files = [names(home) for home in executor.homes]
        with janitor_of(*executor.homes) as second:
            assert second.wait(SOON) == 0
        assert first.poll() is None
        assert [names(home) for home in executor.homes] == executor_files


def test_it_does_nothing_in_a_home_that_another_attends_even_if_the_executor_has_ended(
    executor: Executor,
) -> None:
    write_pair(executor.homes[0], Pair(2))
    executor.end()
    with open(os.path.join(executor.homes[0], janitor.LOCK_FILE), "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with janitor_of(*executor.homes) as process:
            assert process.wait(SOON) == 0
    assert len(pairs(executor.homes[0])) == 2
    assert names(executor.local[1]) == []


def test_one_that_finds_the_lock_held_for_a_moment_still_takes_over(executor: Executor) -> None:
    with open(os.path.join(executor.homes[0], janitor.LOCK_FILE), "wb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with janitor_of(*executor.homes) as process:
            eventually(lambda: is_attended(executor.homes[1]), "the janitor has tried")
            fcntl.flock(held, fcntl.LOCK_UN)
            eventually(lambda: is_attended(executor.homes[0]), "the janitor has tried again")
            executor.end()
            assert process.wait(SOON) == 0
    assert [names(local) for local in executor.local] == [[], []]


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_home_without_an_owner_is_not_touched(executor: Executor, text: str | None) -> None:
    home = Path(executor.homes[0])
    (home / "owner.json").unlink()
    if text is not None:
        (home / "owner.json").write_text(text)
    write_pair(home, Pair(2))
    executor.end()
    with janitor_of(str(home)) as process:
        assert process.wait(SOON) == 0
    assert len(pairs(str(home))) == 2


@pytest.mark.parametrize("why", ["keep", "outlived"])
def test_finished_files_may_outlive_the_executor_and_unfinished_ones_do_not(
    executor: Executor, why: str
) -> None:
    home = executor.homes[0]
    owner = replace(executor.owner, **{why: True})
    owner.write(home)
    finished = write_pair(home, Pair(2), attempt=1)
    if why == "keep":
        aged(finished)
    Path(PartitionedFile.named(home, 3, 17, 2).partial_data_path).touch()  # has not settled, and need not
    with janitor_of(home) as process:
        eventually(lambda: is_attended(home), "the janitor takes its lock")
        executor.end()
        assert process.wait(SOON) == 0
    assert pairs(home) == ["exchange-3-map-17-attempt-1.data", "exchange-3-map-17-attempt-1.index"]
    assert Owner.read(home) == owner


def test_an_unfinished_file_whose_writer_ends_after_the_executor_goes_too(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = executor.homes[0]
    left = PartitionedFile.named(home, 3, 17, 2).partial_data_path
    with open(left, "wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        monkeypatch.setattr(janitor.time, "sleep", lambda seconds: writer.close())
        janitor._clear(home, replace(executor.owner, outlived=True))
    assert not os.path.exists(left)


def served_by_spark(executor: Executor, place: Path) -> tuple[str, Path]:
    """A home in ``place`` of an executor whose shuffle files Spark's service serves, with a map output, and
    the control file of that."""
    owner = replace(executor.owner, served_by_spark=True)
    home = place / "sortshuffle" / "app-1" / f"host-{owner.pid}"
    home.mkdir(parents=True)
    owner.write(str(home))
    write_pair(home, Pair(2), attempt=owner.pid)
    control = executor.local[0] / "0c" / f"shuffle_5_{owner.pid}_0.index"
    control.parent.mkdir(parents=True, exist_ok=True)
    control.touch()
    return str(home), control


def test_where_spark_serves_what_executors_left_one_janitor_is_left_for_all_of_them(
    executor: Executor, tmp_path: Path
) -> None:
    """And goes with the last map output."""
    place = tmp_path / "application"
    with running("sleep", "600") as process:
        started = process_start(process.pid)
        assert started is not None
        other = Executor(process, replace(executor.owner, pid=process.pid, started=started), executor.local)
        (home, control), (home_2, control_2) = (served_by_spark(each, place) for each in (executor, other))
        with janitor_of(home) as first, janitor_of(home_2) as second:
            eventually(lambda: is_attended(home) and is_attended(home_2), "the janitors take their locks")
            executor.end()
            eventually(lambda: is_locked(os.path.dirname(home)), "the first looks after what is left")
            other.end()
            assert second.wait(SOON) == 0
            assert len(pairs(home)) == len(pairs(home_2)) == 2
            control_2.unlink()
            eventually(lambda: not os.path.exists(home_2), "what Spark has forgotten goes")
            assert len(pairs(home)) == 2
            assert first.poll() is None
            control.unlink()
            assert first.wait(SOON) == 0
    assert names(place) == []


def test_a_janitor_that_comes_when_another_looks_after_ended_executors_is_not_missed(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder looks once more when it has let go of the lock."""
    place = tmp_path / "application"
    home, control = served_by_spark(executor, place)
    executor.end()
    looks = iter([False, True, True, False, False])
    control.unlink()
    held = []

    def look(where: str, listings: HomeListings) -> bool:
        held.append(is_locked(where))
        return next(looks)

    monkeypatch.setattr(janitor, "sweep_ended", look)
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    janitor._look_after_ended([os.path.dirname(home)])
    assert held == [True, False, True, True, False]
    assert next(looks, None) is None


def test_a_killed_janitor_of_ended_executors_is_replaced_by_a_task_of_another(
    executor: Executor,
    tmp_path: Path,
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "application"
    home, control = served_by_spark(executor, place)
    executor.end()
    other = place / "sortshuffle" / "app-1" / "of a live one"
    other.mkdir()
    replace(executor.owner, pid=os.getpid(), started=process_start(os.getpid()) or 0).write(str(other))
    janitor.ensure([str(other)])
    eventually(lambda: is_attended(str(other)) and is_locked(os.path.dirname(home)), "a janitor for each")
    assert len(started) == 2
    started[1].kill()
    started[1].wait()
    janitor.ensure([str(other)])
    assert len(started) == 2, "it was looked at a moment ago"
    monkeypatch.setattr(janitor, "LOOKS_AFTER", 0.0)
    janitor.ensure([str(other)])
    eventually(lambda: is_locked(os.path.dirname(home)), "the next one takes its place")
    janitor.ensure([str(other)])
    assert len(started) == 2
    control.unlink()
    eventually(lambda: not os.path.exists(home), "what Spark has forgotten goes")
    assert started[1].wait(SOON) == 0


class Untold:
    """A call that fails for a path, so many times: by default the host is out of files."""

    def __init__(
        self, name: str, path: str, times: int, monkeypatch: pytest.MonkeyPatch, error: int = errno.ENFILE
    ) -> None:
        self._error = error
        self._real: Callable[..., Any] = getattr(calls, name)
        self._path = path
        self.left = times
        monkeypatch.setattr(calls, name, self)

    def __call__(self, path: str, *arguments: Any, **how: Any) -> Any:
        if path == self._path and self.left:
            self.left -= 1
            raise OSError(self._error, os.strerror(self._error), path)
        return self._real(path, *arguments, **how)


LONG = 3 * janitor.TRIES
"""Times that a call fails: longer than a task would wait."""


def test_what_ended_executors_left_is_looked_after_however_long_the_host_is_out_of_files(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "application"
    home, control = served_by_spark(executor, place)
    executor.end()
    control.unlink()
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    untold = Untold("open", os.path.dirname(home), LONG, monkeypatch)
    janitor._look_after_ended([os.path.dirname(home)])
    assert untold.left == 0
    assert names(place) == []


def test_a_task_is_not_kept_while_the_host_is_out_of_files(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = served_by_spark(executor, tmp_path / "application")
    executor.end()
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(janitor, "_last_looks", {})
    untold = Untold("open", os.path.dirname(home), LONG, monkeypatch)
    assert janitor._unattended_ended(os.path.dirname(home)) is None
    assert untold.left == LONG - janitor.TRIES


ALWAYS = 10**9


def test_a_directory_that_is_never_told_of_is_given_up(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = served_by_spark(executor, tmp_path / "application")
    executor.end()
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    untold = Untold("open", os.path.dirname(home), ALWAYS, monkeypatch)
    janitor._look_after_ended([os.path.dirname(home)])
    assert ALWAYS - untold.left == janitor.RETRY_FOR / janitor.TICK / janitor.TICKS_PER_SWEEP


def test_a_home_whose_owner_is_never_told_keeps_no_other(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = executor.homes
    executor.end()
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    Untold("open_file", os.path.join(first, "owner.json"), ALWAYS, monkeypatch)
    janitor.main(executor.homes)
    assert [os.path.exists(home) for home in (first, second)] == [True, False]
    assert not is_attended(first)


def test_a_home_that_takes_no_lock_file_keeps_no_other(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was remounted, and is read-only."""
    first, second = executor.homes
    executor.end()
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    path = os.path.join(first, janitor.LOCK_FILE)
    refused = Untold("open", path, ALWAYS, monkeypatch, errno.EROFS)
    janitor.main(executor.homes)
    assert ALWAYS - refused.left == janitor.TRIES
    assert [os.path.exists(home) for home in (first, second)] == [True, False]


@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_janitor_that_cannot_ask_for_its_locks_at_once_gets_them(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A task that comes later might be long in coming."""
    executor.end()
    monkeypatch.setattr(janitor.time, "sleep", lambda seconds: None)
    real = getattr(calls, call)
    left = LONG

    def untold(*arguments: Any, **how: Any) -> Any:
        nonlocal left
        is_meant = call == "flock" or str(arguments[0]).endswith(janitor.LOCK_FILE)
        if is_meant and left:
            left -= 1
            raise OSError(errno.ENFILE if call == "open" else errno.ENOLCK, "not for now")
        return real(*arguments, **how)

    monkeypatch.setattr(calls, call, untold)
    janitor.main(executor.homes)
    assert [names(local) for local in executor.local] == [[], []]


def test_a_link_is_no_directory_of_an_application(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    janitor._look_after_ended([str(tmp_path / "link"), str(tmp_path / "gone")])


def test_homes_whose_owner_is_not_told_for_long_are_cleared_when_it_is(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beside them do not wait."""
    first, second = executor.homes
    executor.end()
    there: list[bool] = []
    untold = Untold("open_file", os.path.join(first, "owner.json"), LONG, monkeypatch)

    def sleep(seconds: float) -> None:
        if untold.left:
            there.append(os.path.exists(second))

    monkeypatch.setattr(janitor.time, "sleep", sleep)
    janitor.main(executor.homes)
    assert there == [False] * (LONG - 1)
    assert [names(local) for local in executor.local] == [[], []]


def test_a_home_whose_owner_is_told_later_is_kept_tidy_from_then_on(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = executor.homes
    killed = partial(first, 1)
    untold = Untold("open_file", os.path.join(first, "owner.json"), LONG, monkeypatch)
    left: list[tuple[int, bool]] = []

    def sleep(seconds: float) -> None:
        left.append((untold.left, os.path.exists(killed.partial_data_path)))
        if not left[-1][1] or len(left) > LONG * janitor.LOOKS_PER_TICK:
            executor.end()

    monkeypatch.setattr(janitor.time, "sleep", sleep)
    janitor.main([second, first])
    # it looks several times a tick at what Spark knows
    assert list(dict.fromkeys(left)) == [*((number, True) for number in reversed(range(LONG))), (0, False)]
    assert [names(local) for local in executor.local] == [[], []]


def test_what_ended_executors_left_to_spark_is_held_by_nobody(executor: Executor, tmp_path: Path) -> None:
    """So a person can have it removed where Spark never removes its own files."""
    home, _ = served_by_spark(executor, tmp_path / "application")
    with janitor_of(home) as process:
        eventually(lambda: is_attended(home), "the janitor takes its lock")
        executor.end()
        eventually(lambda: is_locked(os.path.dirname(home)), "it looks after what is left")
        assert not is_attended(home)
        shutil.rmtree(home)
        assert process.wait(SOON) == 0


def test_what_it_cannot_delete_does_not_end_it(executor: Executor) -> None:
    home = executor.homes[0]
    obstacle = PartitionedFile.named(home, 3, 17, 1)
    os.mkdir(obstacle.partial_index_path)  # no file, so it cannot be unlinked
    aged(obstacle)
    with janitor_of(*executor.homes) as process:
        for attempt in (2, 3):
            killed = partial(executor.homes[1], attempt)
            eventually(lambda killed=killed: not os.path.exists(killed.partial_data_path), "its other work")
        assert process.poll() is None
        executor.end()
        assert process.wait(SOON) == 0
    assert [names(local) for local in executor.local] == [[], []]


# Starting it


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The janitors that this process has started; they end with the test at the latest."""
    janitor._janitors.clear()
    janitor._last_looks.clear()
    yield janitor._janitors
    for process in janitor._janitors:
        process.kill()
        process.wait()
    janitor._janitors.clear()


def test_a_home_gets_a_janitor_once(executor: Executor, started: list[subprocess.Popen[bytes]]) -> None:
    janitor.ensure(executor.homes)
    eventually(lambda: all(map(is_attended, executor.homes)), "the janitor takes its locks")
    janitor.ensure(executor.homes)
    janitor.ensure(executor.homes[1:])
    assert len(started) == 1
    executor.end()
    assert started[0].wait(SOON) == 0
    assert [names(local) for local in executor.local] == [[], []]


def test_homes_that_come_later_get_a_janitor_too(
    executor: Executor, started: list[subprocess.Popen[bytes]]
) -> None:
    janitor.ensure(executor.homes[:1])
    eventually(lambda: is_attended(executor.homes[0]), "the first janitor takes its lock")
    janitor.ensure(executor.homes)
    eventually(lambda: is_attended(executor.homes[1]), "the second janitor takes its lock")
    assert len(started) == 2
    executor.end()
    for process in started:
        assert process.wait(SOON) == 0
    assert [names(local) for local in executor.local] == [[], []]


def test_it_is_in_a_session_of_its_own_and_holds_no_file_of_its_starter(
    executor: Executor, started: list[subprocess.Popen[bytes]]
) -> None:
    file = PartitionedFile.named(executor.homes[0], 3, 17, 1)
    with PartitionedFileWriter(file, Pair(2).header) as writer:
        janitor.ensure(executor.homes)
        pid = started[0].pid
        eventually(lambda: all(map(is_attended, executor.homes)), "the janitor takes its locks")
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert len(open_files(executor.homes[0])) == 2
        assert not set(open_files(executor.homes[0], pid)) & set(open_files(executor.homes[0]))
        writer.abandon()
    executor.end()


def test_looking_for_a_janitor_leaves_nothing(executor: Executor) -> None:
    home = executor.homes[0]
    assert not janitor.is_running(home)
    assert names(home) == ["owner.json"]
    with open(os.path.join(home, janitor.LOCK_FILE), "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert janitor.is_running(home)
    assert not janitor.is_running(home)


@pytest.mark.parametrize("fault", ["open", "flock"])
def test_a_janitor_that_the_system_does_not_tell_of_counts_as_there(
    executor: Executor, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(executor.homes[0], janitor.LOCK_FILE).touch()

    def failing(*arguments: object) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(calls, fault, failing)
    assert janitor.is_running(executor.homes[0])


def test_janitors_that_have_ended_are_not_left_as_zombies(
    executor: Executor, started: list[subprocess.Popen[bytes]]
) -> None:
    janitor.ensure(executor.homes[:1])
    eventually(lambda: is_attended(executor.homes[0]), "the janitor takes its lock")
    first = started[0]
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    janitor.ensure(executor.homes[:1])
    assert process_start(first.pid) is None
    assert not os.path.exists(f"/proc/{first.pid}")
    assert len(started) == 1
    executor.end()


def test_it_stays_small() -> None:
    program = "import sys, sortshuffle.homes.janitor; print(*sys.modules)"
    loaded = printed(program)
    assert "sortshuffle.homes.lifetime" in loaded
    packages = {name.partition(".")[0] for name in loaded}
    plain = {name.partition(".")[0] for name in printed("import sys; print(*sys.modules)")}
    assert packages - plain - set(sys.stdlib_module_names) == {"sortshuffle"}
    assert not {"asyncio", "unittest", "concurrent"} & (packages - plain)
