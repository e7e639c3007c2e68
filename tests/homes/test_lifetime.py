"""Who owns map outputs and when they may be deleted: every rule with real files, locks held by real
processes, and processes that have really ended. What is alive, or lies outside a home, is never touched."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import WRITER, Pair, fill, names, printed, read_pair, running, small_disk, write_pair
from failing import not_told
from faults import Fault, Faults
from serving import no_descriptor_left

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.homes import lifetime, loss, processes
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.host import host_name
from sortshuffle.homes.lifetime import (
    PARTIAL_SETTLES,
    control_files,
    dead_outputs,
    dead_partials,
    remove_home,
    sweep,
    sweep_dropped,
    sweep_ended,
    sweep_partials,
)
from sortshuffle.homes.loss import make_producer_run_again
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, executor_pid, is_running, process_namespace, process_start
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.local_pair import LocalPair
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.writer import PartitionedFileWriter

NAME = "exchange-3-map-17-attempt-204"
OWNER = Owner("app-1", "host", "boot", 4711, 12345, ("/local",), 600.0, keep=False)
WRITING = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from engine import Pair
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
writer = PartitionedFileWriter(PartitionedFile(sys.argv[1]), Pair(2).header)
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """One of Spark's local directories, with two of the directories that Spark makes in it."""
    for each in ("0a", "3f"):
        (tmp_path / "local" / each).mkdir(parents=True)
    return tmp_path / "local"


@pytest.fixture
def home(local: Path) -> Path:
    made = local / "sortshuffle" / "app-1" / "host-4711"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def owner(local: Path) -> Owner:
    return replace(OWNER, local_directories=(str(local),))


def aged(file: PartitionedFile, seconds: float) -> PartitionedFile:
    """Make it so that the pair's files were last written to that long ago."""
    then = time.time() - seconds
    for path in (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path):
        if os.path.exists(path):
            os.utime(path, (then, then))
    return file


def partial(home: Path) -> PartitionedFile:
    """An unfinished pair without a writer, untouched for a minute."""
    file = PartitionedFile(str(home / NAME))
    Path(file.partial_data_path).touch()
    Path(file.partial_index_path).touch()
    return aged(file, 60)


def found_dead(home: Path) -> list[str]:
    return [os.path.basename(file.base) for file in dead_partials(str(home), time.time())]


# Owners


def test_an_owner_is_read_back_as_it_was_and_leaves_nothing_else(tmp_path: Path) -> None:
    OWNER.write(str(tmp_path))
    assert Owner.read(str(tmp_path)) == OWNER
    replace(OWNER, keep=True).write(str(tmp_path))
    assert Owner.read(str(tmp_path)) == replace(OWNER, keep=True)
    assert names(tmp_path) == ["owner.json"]


def test_an_owner_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        OWNER.write(str(disk))
        fill(disk)
        with pytest.raises(OSError, match="No space left on device"):
            replace(OWNER, keep=True).write(str(disk))
        assert names(disk) == ["filled", "owner.json"]
        assert Owner.read(str(disk)) == OWNER


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "5", "{}", '{"local_directories": []}', '{"local_directories": 5}', "\xff"],
)
def test_what_is_not_an_owner_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "owner.json").write_text(text, encoding="latin-1")
    assert Owner.read(str(tmp_path)) is None


def test_a_missing_or_unreadable_owner_is_none(tmp_path: Path) -> None:
    assert Owner.read(str(tmp_path)) is None
    (tmp_path / "owner.json").mkdir()
    assert Owner.read(str(tmp_path)) is None


def test_an_owner_with_a_field_that_is_not_known_is_none(tmp_path: Path) -> None:
    OWNER.write(str(tmp_path))
    text = (tmp_path / "owner.json").read_text()
    (tmp_path / "owner.json").write_text(text.replace("{", '{"later": 1, ', 1))
    assert Owner.read(str(tmp_path)) is None


@pytest.mark.parametrize(
    "other",
    [
        {"started": 12346},
        {"boot": "another"},
        {"namespace": "pid:[2]"},
        {"local_directories": ("/other",)},
        {"grace": 5.0},
        {"keep": True},
        {"outlived": True},
    ],
    ids=lambda other: next(iter(other)),
)
def test_owners_that_differ_have_homes_of_other_names(other: dict[str, Any]) -> None:
    """Executors in two containers may have one host name and one process number."""
    assert OWNER.home_name == replace(OWNER).home_name
    assert OWNER.home_name.startswith("host-4711-")
    assert replace(OWNER, **other).home_name != OWNER.home_name


def test_an_owner_whose_process_cannot_be_seen_counts_as_live() -> None:
    """In a container with process numbers of its own, another process has that number, or none."""
    ended = replace(OWNER, host=host_name(), boot=boot_id(), namespace=process_namespace())
    assert ended.on_this_host() and ended.is_visible and not ended.is_live()
    elsewhere = replace(ended, namespace="pid:[1]")
    assert elsewhere.on_this_host() and not elsewhere.is_visible and elsewhere.is_live()


def test_an_owner_is_on_this_host_if_host_and_boot_are_its_own() -> None:
    here = replace(OWNER, host=socket.gethostname(), boot=boot_id())
    assert here.on_this_host()
    assert not replace(here, host="elsewhere").on_this_host()
    assert not replace(here, boot="an earlier one").on_this_host()


def test_a_host_may_go_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(OWNER, host="127.0.0.7", boot=boot_id())
    assert here.on_this_host()
    assert not replace(here, host="192.0.2.7").on_this_host()
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "worker-3")
    assert replace(here, host="worker-3").on_this_host()
    assert replace(here, host=socket.gethostname()).on_this_host()  # written before the name was given


def test_what_is_above_an_executors_directories_shows_whether_the_application_goes_on(tmp_path: Path) -> None:
    above = [tmp_path / name for name in ("one", "two")]
    blocks = [each / "blockmgr" for each in above]
    owner = replace(OWNER, local_directories=tuple(map(str, blocks)))
    for each in blocks:
        each.mkdir(parents=True)
    assert not owner.application_has_ended()
    for each in blocks:
        each.rmdir()  # as an executor does at its end
    assert not owner.application_has_ended()
    above[0].rmdir()
    assert not owner.application_has_ended()
    above[1].rmdir()
    assert owner.application_has_ended()
    assert not replace(owner, local_directories=()).application_has_ended()


def test_the_boot_id_is_that_of_the_kernel() -> None:
    assert len(boot_id()) == 36
    assert printed("from sortshuffle.homes.processes import boot_id; print(boot_id())") == [boot_id()]


def living(local: Path, pid: int) -> Owner:
    started = process_start(pid)
    assert started is not None
    return replace(OWNER, pid=pid, started=started, local_directories=(str(local),))


def test_an_executor_is_live_while_its_process_runs(local: Path) -> None:
    with running("sleep", "600") as process:
        owner = living(local, process.pid)
        assert owner.is_live()
        process.kill()
        process.wait()
        assert not owner.is_live()
        assert process_start(process.pid) is None


def test_an_executor_that_ended_is_not_live_even_if_its_parent_has_not_noticed(local: Path) -> None:
    with running("sleep", "600") as process:
        owner = living(local, process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
        assert os.path.exists(f"/proc/{process.pid}/stat")
        assert not owner.is_live()


def test_a_recycled_pid_is_not_taken_for_the_executor(local: Path) -> None:
    owner = living(local, os.getpid())
    assert owner.is_live()
    assert not replace(owner, started=owner.started - 1).is_live()
    assert not replace(owner, started=0).is_live()


def test_an_executor_is_live_while_any_of_its_local_directories_is_there(local: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    owner = replace(living(local, os.getpid()), local_directories=(str(tmp_path / "lost"), str(other)))
    assert owner.is_live()
    other.rmdir()
    assert not owner.is_live()
    assert replace(owner, local_directories=()).is_live(), "unknown directories say nothing"


def test_what_the_system_does_not_tell_counts_as_running(local: Path) -> None:
    """What is deleted cannot be had back, and a process that is out of files is no sign of anything."""
    with running("sleep", "600") as process:
        owner = living(local, process.pid)
        assert is_running(owner.pid, owner.started)
        with no_descriptor_left():
            with pytest.raises(OSError, match="Too many open files"):
                process_start(owner.pid)
            assert is_running(owner.pid, owner.started)
            assert is_running(owner.pid, owner.started - 1)
            assert owner.is_live()
    assert not is_running(owner.pid, owner.started)
    assert not owner.is_live()


def test_a_process_that_began_at_another_time_is_another_one() -> None:
    started = process_start(os.getpid())
    assert started is not None
    assert is_running(os.getpid(), started)
    assert not is_running(os.getpid(), started - 1)
    assert not is_running(2**22 + 1, started)  # above the largest number that there is


def test_only_what_has_no_name_any_more_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert not is_gone(str(tmp_path))
    assert not is_gone(str(tmp_path / "file"))
    assert not is_gone(str(tmp_path / "link"))
    assert is_gone(str(tmp_path / "nowhere"))
    assert is_gone(str(tmp_path / "file" / "below"))


def test_directories_of_which_the_system_tells_nothing_count_as_there(tmp_path: Path) -> None:
    unknown = str(tmp_path / ("x" * 300) / "blockmgr")  # its name is too long
    assert not is_gone(unknown)
    owner = replace(living(tmp_path, os.getpid()), local_directories=(unknown,))
    assert owner.is_live()
    assert not owner.application_has_ended()
    gone = replace(owner, local_directories=(str(tmp_path / "a" / "blockmgr"),))
    assert not gone.is_live()
    assert gone.application_has_ended()


def test_start_times_are_found_whatever_a_program_is_called(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with running("sleep", "600") as plain, running(str(odd), "600") as process:
        started = process_start(process.pid)
        assert started is not None
        assert 0 <= started - process_start(plain.pid) < 6000
    assert process_start(process.pid) is None


@pytest.mark.parametrize("between", ["", "sh -c '", "sh -c 'sh -c \""])
def test_the_executor_is_the_nearest_ancestor_that_is_java(tmp_path: Path, between: str) -> None:
    java = tmp_path / "java"
    java.symlink_to("/bin/sh")
    program = tmp_path / "program.py"
    program.write_text("from sortshuffle.homes.processes import executor_pid; print(executor_pid())")
    ends = between.replace("sh -c ", "")[::-1].replace("'", "; true'").replace('"', '; true"')
    with running(str(java), "-c", f"{between}{sys.executable} {program}{ends}; true") as process:
        assert process.communicate()[0].split() == [str(process.pid)]


def test_the_executor_may_be_process_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose shell has replaced itself by Spark's JVM."""
    parents = {os.getppid(): "1", 1: "0"}
    monkeypatch.setattr(processes, "_stat_fields", lambda pid: ["S", parents[pid]])
    monkeypatch.setattr(processes, "_command", lambda pid: "java" if pid == 1 else "python")
    assert executor_pid() == 1


def test_without_java_the_executor_is_the_parent() -> None:
    assert executor_pid() == os.getppid()


# Unfinished pairs


def test_a_pair_that_is_being_written_is_not_dead_however_long_it_takes(home: Path) -> None:
    with PartitionedFileWriter(PartitionedFile(str(home / NAME)), Pair(2).header) as writer:
        aged(writer.file, 1e6)
        assert found_dead(home) == []
        assert sweep_partials(str(home), float("inf")) == []
        writer.finish(WRITER)
    assert found_dead(home) == []
    assert read_pair(PartitionedFile(str(home / NAME))) == [[], []]


@pytest.mark.parametrize("now", [float("inf"), None])
def test_a_pair_whose_writer_takes_a_spare_at_that_moment_is_not_dead(
    home: Path, monkeypatch: pytest.MonkeyPatch, now: float | None
) -> None:
    """Its first file, which is old, was opened to look for the lock, and is not the writer's any more."""
    monkeypatch.setattr(spare_files, "SMALLEST", 1)
    (home / "spares").mkdir()
    (home / "spares" / "old.spare").write_bytes(b"old" * 1000)
    pair = LocalPair(PartitionedFile(str(home / NAME)))
    pair.append_data([b"header"])
    aged(PartitionedFile(str(home / NAME)), 60)

    def slow_flock(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH:
            monkeypatch.setattr(calls, "flock", fcntl.flock)
            pair.append_data([b"new" * 1000])
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(calls, "flock", slow_flock)
    assert list(dead_partials(str(home), time.time() if now is None else now)) == []
    assert names(home / "spares") == []
    pair.discard()


def test_a_pair_is_dead_once_its_writing_process_was_killed(home: Path) -> None:
    file = PartitionedFile(str(home / NAME))
    with running(sys.executable, "-c", WRITING, file.base) as process:
        assert process.stdout.readline() == "writing\n"
        aged(file, 60)
        assert found_dead(home) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert found_dead(home) == [NAME]
    assert sweep_partials(str(home), time.time()) == [file.base]
    assert names(home) == []


@pytest.mark.parametrize("lost", ["partial_data_path", "partial_index_path"])
def test_half_an_unfinished_pair_is_dead(home: Path, lost: str) -> None:
    file = partial(home)
    os.unlink(getattr(file, lost))
    assert found_dead(home) == [NAME]


def test_a_pair_without_a_lock_is_left_alone_until_it_has_settled(home: Path) -> None:
    file = partial(home)
    os.utime(file.partial_data_path, (1000.0, 1000.0))
    os.utime(file.partial_index_path, (1003.0, 1003.0))
    assert list(dead_partials(str(home), 1003.0 + PARTIAL_SETTLES)) == []
    assert list(dead_partials(str(home), 1003.1 + PARTIAL_SETTLES)) == [file]


def test_a_writer_between_its_two_renames_is_not_dead(home: Path) -> None:
    file = partial(home)
    os.rename(file.partial_data_path, file.data_path)
    with open(file.data_path, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert found_dead(home) == []
        assert list(dead_partials(str(home), float("inf"))) == []
    assert found_dead(home) == [NAME]
    assert sweep_partials(str(home), time.time()) == [file.base]
    assert names(home) == []


def test_deleting_what_is_unfinished_leaves_a_finished_pair_of_that_name(home: Path) -> None:
    file = write_pair(home, Pair(2))
    partial(home)
    file.delete_unfinished()
    assert names(home) == [f"{NAME}.data", f"{NAME}.index"]
    file.delete_unfinished()
    assert read_pair(file) == [[], []]


def test_a_finished_pair_stays_where_the_system_does_not_tell_whether_it_is_there(home: Path) -> None:
    file = write_pair(home, Pair(1))
    with Faults() as seen:
        file.delete_unfinished()
    (asked,) = (site for site in seen.sites if site.name in ("lstat", "lexists"))
    with Faults(Fault(asked, "EIO")) as made:
        file.delete_unfinished()
    assert made.happened
    assert read_pair(file) == [[]]


def test_sweeping_while_pairs_are_finished_never_loses_one(home: Path) -> None:
    stop = threading.Event()

    def keep_sweeping() -> None:
        while not stop.is_set():
            sweep_partials(str(home), time.time())

    sweeper = threading.Thread(target=keep_sweeping)
    sweeper.start()
    try:
        for attempt in range(300):
            file = PartitionedFile.named(str(home), 3, 17, attempt)
            with PartitionedFileWriter(file, Pair(2).header) as writer:
                aged(file, 60)
                writer.finish(WRITER)
            aged(file, 60)
    finally:
        stop.set()
        sweeper.join()
    for attempt in range(300):
        assert read_pair(PartitionedFile.named(str(home), 3, 17, attempt)) == [[], []]


def test_other_files_in_a_home_are_not_unfinished_pairs(home: Path) -> None:
    for name in (
        "owner.json",
        "janitor.lock",
        "x.partial",
        f"{NAME}.data",
        f"{NAME}.index",
        "x.data.partial.1",
    ):
        (home / name).touch()
        os.utime(home / name, (1000.0, 1000.0))
    assert found_dead(home) == []


def test_a_home_that_is_gone_has_nothing_dead(home: Path, owner: Owner) -> None:
    home.rmdir()
    assert found_dead(home) == []
    assert list(dead_outputs(str(home), owner, time.time())) == []
    assert sweep(str(home), owner) == []


# Finished pairs


def dead_attempts(home: Path, owner: Owner) -> list[int | None]:
    return [file.attempt for file in dead_outputs(str(home), owner, time.time())]


def test_a_finished_pair_is_dead_when_it_is_old_and_spark_has_forgotten_it(home: Path, owner: Owner) -> None:
    file = write_pair(home, Pair(2))
    assert dead_attempts(home, owner) == []
    aged(file, owner.grace - 60)
    assert dead_attempts(home, owner) == []
    aged(file, owner.grace + 1)
    assert dead_attempts(home, owner) == [204]


class Clock:
    """Listings of a home, and the time for them."""

    def __init__(self, home: Path, owner: Owner) -> None:
        self.home, self.owner, self.now = str(home), owner, 1000.0
        self.listings = HomeListings(lambda: self.now)

    def later(self, seconds: float = lifetime.MISSING) -> list[str]:
        """What a look deletes so many seconds after the last one."""
        self.now += seconds
        return sweep_dropped(self.home, self.owner, self.listings)


def missing_pairs(clock: Clock, local: Path, *attempts: int) -> list[PartitionedFile]:
    """Pairs whose index file Spark has had, and whose first look without it is over."""
    files = [write_pair(Path(clock.home), Pair(2), attempt=attempt) for attempt in attempts]
    controls = [local / "0a" / f"shuffle_0_{attempt}_0.index" for attempt in attempts]
    for each in controls:
        each.touch()
    clock.later()
    for each in controls:
        each.unlink()
    clock.later()
    return files


@pytest.fixture
def clock(home: Path, owner: Owner) -> Clock:
    return Clock(home, owner)


@pytest.fixture
def control(local: Path) -> Path:
    """Spark's index file of `write_pair`'s attempt."""
    return local / "0a" / "shuffle_0_204_0.index"


def test_a_finished_pair_that_spark_has_known_and_dropped_goes_at_the_second_look(
    home: Path, owner: Owner, clock: Clock, control: Path
) -> None:
    file = write_pair(home, Pair(2))
    assert clock.later() == []  # Spark does not know it yet
    control.touch()
    assert clock.later() == []
    control.unlink()
    assert list(dead_outputs(str(home), owner, time.time())) == []  # whoever has not seen it waits
    assert clock.later() == []  # one look does not decide
    assert clock.later(0.0) == []  # nor does another one at the same moment
    assert clock.later() == [file.base]
    assert os.listdir(home) == []


@pytest.mark.parametrize("is_live", [True, False])
def test_where_outputs_outlive_executors_spark_must_miss_them_for_longer(
    home: Path, owner: Owner, control: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    """And the executor must not have ended meanwhile: then it removed Spark's files, and ours go on."""
    monkeypatch.setattr(Owner, "is_live", lambda owner: is_live)
    clock = Clock(home, replace(owner, outlived=True))
    file = write_pair(home, Pair(2))
    control.touch()
    clock.later()
    control.unlink()
    assert [clock.later(1.0) for _ in range(5)] == [[]] * 5
    assert clock.later(1.0) == ([file.base] if is_live else [])


def test_outputs_that_are_kept_are_never_dropped(home: Path, owner: Owner, control: Path) -> None:
    clock = Clock(home, replace(owner, keep=True))
    write_pair(home, Pair(2))
    control.touch()
    clock.later()
    clock.listings.look(clock.home, owner.local_directories)
    control.unlink()
    clock.listings.look(clock.home, owner.local_directories)
    assert [clock.later() for _ in range(3)] == [[]] * 3


def test_the_output_of_an_executor_that_removes_its_directories_stays(
    home: Path, clock: Clock, control: Path, local: Path
) -> None:
    """It may outlive the executor, which removes its directories while its process still runs."""
    write_pair(home, Pair(2))
    control.touch()
    clock.later()
    control.unlink()
    assert clock.later() == []
    shutil.rmtree(local / "0a")
    assert [clock.later() for _ in range(3)] == [[]] * 3
    (local / "0a").mkdir()
    assert [clock.later() for _ in range(3)] == [[]] * 3


def test_a_pair_that_is_seen_again_is_missing_for_the_first_time_again(
    home: Path, clock: Clock, control: Path
) -> None:
    file = write_pair(home, Pair(2))
    for _ in range(3):
        control.touch()
        assert clock.later() == []
        control.unlink()
        assert clock.later() == []
    assert clock.later() == [file.base]


def test_a_pair_whose_index_file_kept_listings_have_missed_stays(
    home: Path, clock: Clock, control: Path, local: Path
) -> None:
    """A system may record late that a directory has changed."""
    write_pair(home, Pair(2))
    control.touch()
    clock.later()
    control.unlink()
    os.utime(control.parent, (2000.0, 2000.0))
    clock.later()
    control.touch()
    os.utime(control.parent, (2000.0, 2000.0))
    assert [clock.later() for _ in range(3)] == [[]] * 3


def test_a_pair_that_cannot_be_deleted_keeps_no_other_and_is_tried_once(
    home: Path, owner: Owner, clock: Clock, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = missing_pairs(clock, local, 1, 2, 3)
    unlink, tried = calls.unlink, []

    def failing(path: str, *args: Any, **kwargs: Any) -> None:
        if "attempt-1." in path:
            tried.append(path)
            raise OSError(errno.EROFS, "read-only", path)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(calls, "unlink", failing)
    with pytest.raises(OSError, match="read-only"):
        clock.later()
    assert [os.path.exists(file.data_path) for file in files] == [True, False, False]
    tries = len(tried)
    assert [clock.later() for _ in range(5)] == [[]] * 5
    assert len(tried) == tries
    monkeypatch.undo()
    aged(files[0], owner.grace + 1)  # it waits for the grace time, as one that Spark has never known
    assert sweep(str(home), owner, clock.listings) == [files[0].base]


@pytest.mark.parametrize("failing", ["home", "block directory"])
def test_a_directory_that_cannot_be_listed_once_keeps_nothing_for_long(
    home: Path, clock: Clock, control: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    file = write_pair(home, Pair(2))
    control.touch()
    clock.later()
    control.unlink()
    clock.later()
    directory, calls_so_far = str(home if failing == "home" else control.parent), []
    later = time.time() + 3600
    for changed in (home, control.parent):  # so that it is listed at each look
        os.utime(changed, (later, later))
    listdir = calls.listdir

    def failing_when_the_pair_is_due(path: str) -> list[str]:
        calls_so_far.append(path)
        # `look` makes the first, `dropped` the second
        if path == directory and calls_so_far.count(path) == 2:
            raise OSError(errno.EMFILE, "too many open files", path)
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(calls, "listdir", failing_when_the_pair_is_due)
        with pytest.raises(OSError, match="too many"):
            clock.later()
    assert clock.later() == [file.base]


def test_a_pair_whose_age_cannot_be_told_once_keeps_no_other(
    home: Path, owner: Owner, clock: Clock, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = missing_pairs(clock, local, 1, 2)
    lstat = calls.lstat

    def failing(path: str) -> os.stat_result:
        if "attempt-1." in path:
            raise OSError(errno.EIO, "input or output", path)
        return lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(calls, "lstat", failing)
        assert clock.later() == [files[1].base]
        aged(files[0], owner.grace + 1)
        old = aged(write_pair(home, Pair(2), attempt=3), owner.grace + 1)
        assert sweep(str(home), owner, clock.listings) == [old.base]
    assert sweep(str(home), owner, clock.listings) == [files[0].base]


def test_what_is_unfinished_and_cannot_be_deleted_keeps_no_other(home: Path, owner: Owner) -> None:
    bad = home / "exchange-1-map-1-attempt-1.data.partial"
    bad.mkdir()
    os.utime(bad, (1000.0, 1000.0))
    dead = aged(write_pair(home, Pair(2)), owner.grace + 1)
    with pytest.raises(OSError, match="directory"):
        sweep(str(home), owner)
    assert not os.path.exists(dead.data_path)


@pytest.mark.parametrize("are_whole", [False, True], ids=["", "whole seconds"])
def test_a_lost_output_that_is_to_be_written_again_has_the_grace_time(
    home: Path, clock: Clock, control: Path, local: Path, monkeypatch: pytest.MonkeyPatch, are_whole: bool
) -> None:
    utime = calls.utime
    if are_whole:  # as some file systems keep them
        monkeypatch.setattr(calls, "utime", lambda path, times: utime(path, tuple(map(int, times))))
    lost = write_pair(home, Pair(2))
    control.touch()
    clock.later()
    make_producer_run_again(lost, (str(local),))
    assert [clock.later() for _ in range(4)] == [[]] * 4
    assert os.path.exists(lost.data_path)


def test_a_look_while_an_output_is_reported_as_lost_does_not_matter(
    home: Path, clock: Clock, control: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, remove = write_pair(home, Pair(2)), loss.remove_control_files

    def looked_before(*args: Any) -> None:
        clock.later()
        remove(*args)

    control.touch()
    monkeypatch.setattr(loss, "remove_control_files", looked_before)
    make_producer_run_again(lost, (str(local),))
    assert [clock.later() for _ in range(4)] == [[]] * 4
    assert os.path.exists(lost.data_path)


def test_other_outputs_of_an_attempt_that_is_to_run_again_have_the_grace_time(
    home: Path, clock: Clock, control: Path, local: Path
) -> None:
    lost = aged(write_pair(home, Pair(2)), 60)
    other = re.sub(r"exchange-\d+", "exchange-99", lost.data_path)
    shutil.copy2(lost.data_path, other)
    control.touch()
    clock.later()
    make_producer_run_again(lost, (str(local),))
    assert not control.exists()
    assert [clock.later() for _ in range(3)] == [[], [], []]
    assert os.path.exists(other)


def test_a_look_at_what_has_not_changed_takes_no_look_at_each_pair(
    home: Path, owner: Owner, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings, directories = HomeListings(), owner.local_directories
    write_pair(home, Pair(2))
    (local / "0a" / "shuffle_0_204_0.index").touch()
    for directory in (local, local / "0a", local / "3f", home):
        os.utime(directory, (1000.0, 1000.0))  # settled
    listings.look(str(home), directories)
    monkeypatch.setattr(HomeListings, "_note", None)  # would fail
    listings.look(str(home), directories)


def test_what_is_known_of_a_pair_goes_with_it(home: Path, clock: Clock, control: Path, local: Path) -> None:
    file, other = write_pair(home, Pair(2)), write_pair(home, Pair(2), attempt=7)
    control.touch()
    (local / "0a" / "shuffle_0_7_0.index").touch()
    clock.later()
    file.delete()
    clock.later()
    control.unlink()
    write_pair(home, Pair(2))
    assert [clock.later() for _ in range(3)] == [[], [], []]
    other.delete()
    file.delete()
    clock.later()
    write_pair(home, Pair(2), attempt=7)
    (local / "0a" / "shuffle_0_7_0.index").unlink()
    assert [clock.later() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("newest", ["data_path", "index_path"])
def test_the_newest_file_of_a_pair_tells_its_age(home: Path, owner: Owner, newest: str) -> None:
    file = aged(write_pair(home, Pair(2)), 10_000)
    os.utime(getattr(file, newest))
    assert dead_attempts(home, owner) == []


@pytest.mark.parametrize("directory", ["0a", "3f", "3e7"])  # the last by spark.diskStore.subDirectories=1000
@pytest.mark.parametrize("name", ["shuffle_0_204_0.index", "shuffle_99_204_0.index"])
def test_a_finished_pair_lives_as_long_as_sparks_own_shuffle_file(
    home: Path, owner: Owner, local: Path, directory: str, name: str
) -> None:
    aged(write_pair(home, Pair(2)), 10_000)
    (local / directory).mkdir(exist_ok=True)
    control = local / directory / name
    control.touch()
    assert dead_attempts(home, owner) == []
    assert list(control_files([str(local)], 204)) == [str(control)]
    control.unlink()
    assert dead_attempts(home, owner) == [204]


@pytest.mark.parametrize(
    "name",
    [
        "0a/shuffle_204_1_0.index",
        "0a/shuffle_1_20_0.index",
        "0a/shuffle_1_2040_0.index",
        "0a/shuffle_1_204_1.index",
        "0a/rdd_1_204_0.index",
        "shuffle_1_204_0.index",
        "0a/shuffle_1_204_0",
        "0a/shuffle_1_204_0.data",
        "0a/shuffle_1_204_0.checksum.ADLER32",
        "0a/shuffle_1_204_0.index.tmp",
    ],
)
def test_other_files_of_spark_do_not_keep_a_pair(home: Path, owner: Owner, local: Path, name: str) -> None:
    aged(write_pair(home, Pair(2)), 10_000)
    (local / name).touch()
    assert dead_attempts(home, owner) == [204]


def test_a_directory_of_spark_that_cannot_be_read_makes_no_pair_dead(home: Path, owner: Owner) -> None:
    """An error of the system is no sign that Spark has forgotten anything."""
    pair = aged(write_pair(home, Pair(2)), 601)
    unreadable = replace(owner, local_directories=(*owner.local_directories, "/" + "x" * 300))
    with pytest.raises(OSError, match="too long"):
        sweep(str(home), unreadable)
    assert os.path.exists(pair.data_path)


def served_by_spark(owner: Owner) -> Owner:
    """An executor of this host that has ended, whose shuffle files Spark's service serves."""
    return replace(owner, host=socket.gethostname(), boot=boot_id(), served_by_spark=True)


def test_what_an_ended_executor_left_lives_as_long_as_sparks_own_shuffle_file(
    home: Path, owner: Owner, local: Path
) -> None:
    """And then goes without a grace time: nobody is still to tell Spark of it."""
    owner = served_by_spark(owner)
    owner.write(str(home))
    control = local / "3f" / "shuffle_5_204_0.index"
    control.touch()
    write_pair(home, Pair(2), attempt=204)
    write_pair(home, Pair(2), attempt=205)  # whose task had not ended
    (home / f"{NAME}.data.partial").touch()
    place = str(home.parent)
    assert sweep_ended(place)
    assert {name for name in names(home) if "partial" not in name} == {
        f"{NAME}.data",
        f"{NAME}.index",
        "owner.json",
    }
    control.unlink()
    assert not sweep_ended(place)
    assert names(local) == ["0a", "3f"]


def test_a_home_is_not_removed_by_what_was_known_of_it(home: Path, owner: Owner, local: Path) -> None:
    """A file system that notes a change late, or never: the home is listed once more before."""
    owner = served_by_spark(owner)
    owner.write(str(home))
    long_ago = time.time() - 10_000
    os.utime(home, (long_ago, long_ago))
    listings = HomeListings()
    assert listings.finished(str(home)) == []
    (local / "3f" / "shuffle_5_204_0.index").touch()
    pair = write_pair(home, Pair(2), attempt=204)
    os.utime(home, (long_ago, long_ago))
    assert sweep_ended(str(home.parent), listings)
    assert os.path.exists(pair.data_path)


@pytest.mark.parametrize("what", ["owner.json", "boot_id", "ns/pid"])
def test_what_the_system_does_not_tell_for_once_ends_no_sweeping(
    home: Path, owner: Owner, local: Path, what: str
) -> None:
    owner = replace(served_by_spark(owner), namespace=process_namespace())
    owner.write(str(home))
    (local / "3f" / "shuffle_5_204_0.index").touch()
    pair = write_pair(home, Pair(2), attempt=204)
    with not_told(what):
        assert sweep_ended(str(home.parent))
    assert os.path.exists(pair.data_path)
    (local / "3f" / "shuffle_5_204_0.index").unlink()
    assert not sweep_ended(str(home.parent))
    assert not home.exists()


def test_what_the_system_has_told_once_need_not_be_asked_again() -> None:
    with not_told():
        told = boot_id(), process_namespace()
        assert all(told)
        with no_descriptor_left():
            assert (boot_id(), process_namespace()) == told


def test_a_home_whose_owner_is_none_is_not_waited_for(home: Path) -> None:
    (home / "owner.json").write_text("{")
    assert not sweep_ended(str(home.parent))
    assert home.exists()


def test_homes_of_others_are_not_swept_with_those_of_ended_executors(
    home: Path, owner: Owner, local: Path
) -> None:
    live = living(local, os.getpid())
    for name, other in {
        "live": replace(live, served_by_spark=True),
        "elsewhere": replace(served_by_spark(owner), host="elsewhere"),
        "unseen": replace(served_by_spark(owner), namespace="pid:[1]"),
        "kept": replace(served_by_spark(owner), keep=True),
        "outlived": replace(served_by_spark(owner), outlived=True),
        "not served": replace(served_by_spark(owner), served_by_spark=False),
    }.items():
        (home.parent / name).mkdir()
        other.write(str(home.parent / name))
        write_pair(home.parent / name, Pair(2))
    assert not sweep_ended(str(home.parent))
    assert [len(names(each)) for each in sorted(home.parent.iterdir()) if each != home] == [3] * 6


def test_every_local_directory_is_looked_at(home: Path, owner: Owner, tmp_path: Path) -> None:
    odd = tmp_path / "a [0-9] *"
    (odd / "3f").mkdir(parents=True)
    for attempt in (1, 2, 3):
        aged(write_pair(home, Pair(2), attempt), 10_000)
    (odd / "3f" / "shuffle_0_2_0.index").touch()
    lost = str(tmp_path / "lost")
    everywhere = replace(owner, local_directories=(lost, *owner.local_directories, str(odd)))
    assert dead_attempts(home, everywhere) == [1, 3]
    assert dead_attempts(home, owner) == [1, 2, 3]
    assert list(control_files(everywhere.local_directories, 2)) == [str(odd / "3f" / "shuffle_0_2_0.index")]
    assert list(control_files(everywhere.local_directories, 1)) == []


def test_pairs_to_be_kept_are_never_dead(home: Path, owner: Owner) -> None:
    aged(write_pair(home, Pair(2)), 1e6)
    assert dead_attempts(home, replace(owner, keep=True)) == []


def test_without_known_local_directories_no_finished_pair_is_dead(home: Path, owner: Owner) -> None:
    aged(write_pair(home, Pair(2)), 1e6)
    assert dead_attempts(home, replace(owner, local_directories=())) == []


def test_a_pair_whose_name_has_no_attempt_is_never_dead(home: Path, owner: Owner) -> None:
    (home / "mine.data").touch()
    (home / "mine.index").touch()
    aged(PartitionedFile(str(home / "mine")), 1e6)
    assert dead_attempts(home, owner) == []


def test_half_a_finished_pair_is_dead_like_a_whole_one(home: Path, owner: Owner) -> None:
    file = aged(write_pair(home, Pair(2)), 10_000)
    os.unlink(file.data_path)
    assert dead_attempts(home, owner) == [204]


def test_a_sweep_deletes_what_is_dead_and_nothing_else(home: Path, owner: Owner, local: Path) -> None:
    owner.write(str(home))
    forgotten = aged(write_pair(home, Pair(2), attempt=1), 10_000)
    aged(write_pair(home, Pair(2), attempt=2), 10_000)
    (local / "0a" / "shuffle_7_2_0.index").touch()
    write_pair(home, Pair(2), attempt=3)
    killed = partial(home)
    with PartitionedFileWriter(PartitionedFile.named(str(home), 3, 17, 5), Pair(2).header) as writer:
        aged(writer.file, 10_000)
        assert sweep(str(home), owner) == [killed.base, forgotten.base]
        assert names(home) == [
            "exchange-3-map-17-attempt-2.data",
            "exchange-3-map-17-attempt-2.index",
            "exchange-3-map-17-attempt-3.data",
            "exchange-3-map-17-attempt-3.index",
            "exchange-3-map-17-attempt-5.data.partial",
            "exchange-3-map-17-attempt-5.index.partial",
            "owner.json",
        ]


# Whole homes


def test_removing_a_home_removes_what_it_leaves_empty_above(home: Path, owner: Owner, local: Path) -> None:
    owner.write(str(home))
    write_pair(home, Pair(2))
    (home / "directory").mkdir()
    (home / "directory" / "file").touch()
    remove_home(str(home))
    assert names(local) == ["0a", "3f"]


def test_what_a_process_left_that_was_killed_while_it_wrote_an_owner_goes_with_the_home(
    home: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is nobody's."""
    owner.write(str(home))
    monkeypatch.setattr(calls, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        replace(owner, application="app-2").write(str(home))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = f"owner.json.{child}"
    assert names(home) == ["owner.json", left]
    assert Owner.read(str(home)) == owner
    assert sweep(str(home), owner) == []
    assert names(home) == ["owner.json", left]
    remove_home(str(home))
    assert not home.exists()


@pytest.mark.parametrize(
    ("sibling", "left"), [("app-1/host-1", ["host-1"]), ("app-2/host-4711", ["host-4711"])]
)
def test_removing_a_home_leaves_other_homes(home: Path, local: Path, sibling: str, left: list[str]) -> None:
    (local / "sortshuffle" / sibling).mkdir(parents=True)
    remove_home(str(home))
    assert names(local / "sortshuffle") == [sibling.split("/")[0]]
    assert names((local / "sortshuffle" / sibling).parent) == left


def test_removing_a_home_follows_no_link(home: Path, local: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (home / "directory").symlink_to(outside)
    (home / "file").symlink_to(outside / "precious")
    remove_home(str(home))
    assert not home.exists()
    assert names(outside) == ["precious"]


def test_what_is_not_named_like_a_home_is_not_removed(tmp_path: Path, home: Path, local: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    OWNER.write(str(mine))
    linked = local / "sortshuffle" / "app-1" / "host-1"
    linked.symlink_to(mine)
    (local / "sortshuffle" / "app-2").symlink_to(tmp_path)
    for path in (mine, linked, local / "sortshuffle" / "app-2" / "mine", home.parent, tmp_path / "lost"):
        with pytest.raises(UsageError, match="not deleted"):
            remove_home(str(path))
    assert names(mine) == ["owner.json"]
    assert home.exists()


def test_a_home_that_cannot_be_emptied_keeps_its_owner_so_that_it_is_found_again(
    home: Path, owner: Owner, local: Path
) -> None:
    owner.write(str(home))
    write_pair(home, Pair(2))
    with small_disk(home / "busy"):
        remove_home(str(home))
        assert names(home) == ["busy", "owner.json"]
    remove_home(str(home))
    assert not home.exists()
