"""The supervisor as a real process: it keeps a service running on one port, and all is gone soon after the
application's last executor, and at once when somebody ends the supervisor itself."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from engine import ENVIRONMENT, end, eventually, kill, printed, processes_of, running

from sortshuffle.errors import UsageError
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.homes.small_files import replace_json
from sortshuffle.service.host import rendezvous, rendezvous_directory, supervisor
from sortshuffle.service.host.registration import ApplicationPhase, Registration
from sortshuffle.service.host.rendezvous import ServiceRecord
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.service.host.supervisor import (
    FIRST_DELAY,
    LAST_DELAY,
    QUIET,
    STEADY,
    RestartDelay,
    ServiceProcess,
)
from sortshuffle.service.pages.http import fetch_status

HOST = "127.0.0.1"
CONFIG = ServiceConfig(b"s" * 32, 8 << 20)
LONGEST_NAME = 255  # bytes, of a file
BOUND = 30.0  # seconds within which all must be gone after the application's end


class Started:
    """A supervised service of one executor, which is a `sleep`."""

    def __init__(self, directory: str, executor: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.executor = executor
        owner = Owner(
            "app", HOST, boot_id(), executor.pid, process_start(executor.pid) or 0, (), 600.0, False
        )
        rendezvous.ensure(directory, HOST, CONFIG, Registration(owner, ("/nowhere",)))
        found = rendezvous._recorded(directory)
        assert found is not None
        self.supervised: ServiceRecord = found

    @property
    def services(self) -> list[int]:
        return processes("process", self.directory)

    @property
    def log(self) -> str:
        return Path(self.directory, rendezvous.LOG_FILE).read_text()

    def service(self) -> int:
        """The process of the service, which takes a moment to start."""
        eventually(lambda: len(self.services) == 1, "the service runs")
        return self.services[0]

    def accepts(self) -> bool:
        with socket.socket() as client:
            client.settimeout(5)
            return client.connect_ex((HOST, self.supervised.port)) == 0

    def accepts_jvms(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            return client.connect_ex(rendezvous_directory.socket_path(self.directory)) == 0

    def is_gone(self) -> bool:
        alive = process_start(self.supervised.pid) is not None or self.services
        there = os.path.exists(self.directory) or self.accepts() or self.accepts_jvms()
        return not alive and not there


@pytest.fixture
def started(short_path: Path) -> Iterator[Started]:
    (short_path / "own").mkdir(mode=0o700)
    directory = str(short_path / "own" / "app")
    with running("sleep", "600") as executor:
        made = Started(directory, executor)
        try:
            yield made
        finally:
            kill(made.supervised.pid)
            eventually(lambda: not made.services, "the service ends with its supervisor")
            rendezvous._found.pop(directory, None)


def processes(module: str, directory: str) -> list[int]:
    return [pid for pid, words in processes_of(f"service.host.{module}").items() if directory in words]


def test_its_status_can_be_looked_at(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_directory, "own_directory", lambda: os.path.dirname(started.directory))
    eventually(rendezvous.status_pages, "the page is there")
    (page,) = rendezvous.status_pages()
    status = fetch_status(page)
    assert status.address == started.supervised.address
    assert (status.authenticated, status.roots, status.pid) == (True, ("/nowhere",), started.service())


def test_a_service_that_dies_is_started_again_on_the_same_port(started: Started) -> None:
    first = started.service()
    kill(first)
    eventually(lambda: started.services not in ([], [first]), "another service runs")
    assert started.accepts()
    assert started.accepts_jvms()
    assert process_start(started.supervised.pid) == started.supervised.started
    eventually(lambda: "starting it again" in started.log, "the log says so")
    assert "signal 9" in started.log


def test_all_is_gone_soon_after_the_last_executor(started: Started) -> None:
    started.service()
    end(started.executor)
    eventually(started.is_gone, "supervisor, service and rendezvous are gone", BOUND)
    assert not os.path.exists(os.path.dirname(started.directory))  # nobody else's was there


def test_it_ends_although_its_rendezvous_cannot_be_renamed(short_path: Path) -> None:
    """Its socket is gone by then, so no JVM can reach it."""
    (short_path / "own").mkdir(mode=0o700)
    directory = str(short_path / "own" / ("a" * LONGEST_NAME))
    with running("sleep", "600") as executor:
        started = Started(directory, executor)
    try:
        eventually(lambda: process_start(started.supervised.pid) is None, "the supervisor ends", BOUND)
        eventually(lambda: not started.services, "its service ends")
        assert not os.path.exists(rendezvous_directory.socket_path(directory))
        assert os.path.exists(directory), "the next task of the application uses it"
        assert "File name too long" in started.log
    finally:
        kill(started.supervised.pid)
        rendezvous._found.pop(directory, None)


def test_another_executor_keeps_it(started: Started) -> None:
    with running("sleep", "600") as other:
        Started(started.directory, other)
        end(started.executor)
        eventually(
            lambda: len(rendezvous.registrations(started.directory)) == 1, "it sees that one has ended"
        )
        assert process_start(started.supervised.pid) == started.supervised.started
        assert started.accepts()


def test_it_stays_while_its_rendezvous_is_open_to_others(started: Started) -> None:
    """Then no lock can be had, to drop the executor that has ended. The other one runs."""
    started.service()
    with running("sleep", "600") as other:
        Started(started.directory, other)
        os.chmod(started.directory, 0o755)
        end(started.executor)
        eventually(lambda: "is not a directory of user" in started.log, "the log says so")
        os.chmod(started.directory, 0o700)
        eventually(lambda: len(rendezvous.registrations(started.directory)) == 1, "it is dropped")
        assert process_start(started.supervised.pid) == started.supervised.started
        assert started.accepts()


@pytest.mark.parametrize("error", [OSError("no descriptor"), UsageError("open to others")], ids=repr)
def test_it_goes_on_where_the_rendezvous_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(rendezvous, "forget_ended", fail)
    monkeypatch.setattr(rendezvous, "dissolve", fail)
    assert supervisor._phase("/nowhere") is ApplicationPhase.LIVE
    assert supervisor._is_dissolved("/nowhere", ApplicationPhase.OVER) is False


def test_a_problem_of_every_tick_is_logged_when_it_begins_and_when_it_is_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems: list[Exception | None] = [
        *[UsageError("open to others")] * 3,
        *[OSError("a full disk")] * 2,
        None,
        *[OSError("a full disk")] * 2,
    ]
    left = iter(problems)

    def dissolve(*_: object) -> bool:
        problem = next(left)
        if problem is not None:
            raise problem
        return True

    monkeypatch.setattr(rendezvous, "dissolve", dissolve)
    problem = supervisor.RecurringProblem("the rendezvous cannot be removed")
    monkeypatch.setattr(supervisor, "_undissolved", problem)  # the process may have had one in another test
    results = [supervisor._is_dissolved("/nowhere", ApplicationPhase.OVER) for _ in problems]
    assert results == [problem is None for problem in problems]
    logged = [line.partition("cannot be removed: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert logged == ["open to others", "a full disk", "a full disk"]


@contextmanager
def unwritable_log(is_closed: bool) -> Iterator[None]:
    """This process's standard error, as a supervisor's on a full disk, or closed."""
    with open("/dev/full", "wb", buffering=0) as full, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        if is_closed:
            sys.stderr.close()
        yield


@pytest.mark.parametrize("is_closed", [False, True], ids=["full disk", "closed"])
def test_a_problem_that_cannot_be_logged_is_suppressed_all_the_same(is_closed: bool) -> None:
    problem = supervisor.RecurringProblem("the rendezvous cannot be read")
    with unwritable_log(is_closed):
        for _ in range(2):
            with problem.logged():
                raise OSError("no descriptor")
        supervisor.log("the service ended")


def test_a_service_is_started_again_although_the_log_cannot_be_written(short_path: Path) -> None:
    """The log is on the temporary disk, which may be full."""
    directory = short_path / "own" / "app"
    for each in (directory.parent, directory):
        each.mkdir(mode=0o700)
    (directory / rendezvous.LOG_FILE).symlink_to("/dev/full")
    with running("sleep", "600") as executor:
        started = Started(str(directory), executor)
        try:
            first = started.service()
            kill(first)
            eventually(lambda: started.services not in ([], [first]), "another service runs")
            assert process_start(started.supervised.pid) == started.supervised.started
            assert started.accepts()
        finally:
            kill(started.supervised.pid)
            eventually(lambda: not started.services, "the service ends with its supervisor")
            rendezvous._found.pop(str(directory), None)


def test_it_ends_when_its_rendezvous_was_removed(started: Started) -> None:
    started.service()
    subprocess.run(["rm", "-r", started.directory], check=True)
    eventually(started.is_gone, "supervisor and service are gone")
    assert started.executor.poll() is None


def test_it_ends_when_another_has_taken_its_place(started: Started) -> None:
    """A task that comes while a rendezvous is dissolved makes a new one under the same name."""
    started.service()
    other = replace(started.supervised, pid=os.getpid())
    replace_json(os.path.join(started.directory, rendezvous.SERVICE_FILE), asdict(other))
    eventually(lambda: process_start(started.supervised.pid) is None, "the supervisor ends")
    eventually(lambda: not started.services, "its service ends")
    assert rendezvous.roots_of(started.directory) == ("/nowhere",)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_service_ends_with_its_supervisor(started: Started, number: signal.Signals) -> None:
    started.service()
    os.kill(started.supervised.pid, number)
    eventually(
        lambda: not started.services and not started.accepts() and not started.accepts_jvms(),
        "the service is gone",
    )


ENSURE = """
import sys
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.registration import Registration
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import process_start
pid = int(sys.argv[2])
owner = Owner("app", "127.0.0.1", "", pid, process_start(pid) or 0, (), 600.0, False)
rendezvous.ensure(sys.argv[1], "127.0.0.1", ServiceConfig(b"s", 8 << 20), Registration(owner, ()))
"""


def test_its_parent_waits_for_nothing(short_path: Path) -> None:
    """The pipes of whoever started it end with him, and not with the supervisor."""
    (short_path / "own").mkdir(mode=0o700)
    directory = str(short_path / "own" / "app")
    with running("sleep", "600") as executor:
        command = [sys.executable, "-c", ENSURE, directory, str(executor.pid)]
        subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=60, check=True)
        supervisors = processes("supervisor", directory)
        assert len(supervisors) == 1
        kill(supervisors[0])
    eventually(lambda: not processes("process", directory), "its service is gone")


@pytest.mark.parametrize("told", [b"", CONFIG.pack()], ids=["nothing", "everything"])
def test_one_whose_starter_was_killed_before_he_told_of_it_ends(tmp_path: Path, told: bytes) -> None:
    """Nobody else would find it, and the next task starts another."""
    (tmp_path / "own").mkdir(mode=0o700)
    directory = str(tmp_path / "own" / "app")
    with (
        running("sleep", "600") as executor,
        socket.create_server((HOST, 0)) as listening,
        socket.socket(socket.AF_UNIX) as local,
    ):
        owner = Owner(
            "app", HOST, boot_id(), executor.pid, process_start(executor.pid) or 0, (), 600.0, False
        )
        with rendezvous_directory.directory_lock(directory):
            rendezvous._register(directory, Registration(owner, ("/nowhere",)))
        descriptors = (listening.fileno(), local.fileno())
        module = "sortshuffle.service.host.supervisor"
        command = [sys.executable, "-m", module, directory, *map(str, descriptors)]
        subprocess.run(command, input=told, env=ENVIRONMENT, pass_fds=descriptors, timeout=20, check=False)
    assert processes("process", directory) == []


def test_it_takes_little_memory(started: Started) -> None:
    started.service()
    lines = Path(f"/proc/{started.supervised.pid}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    assert resident < 20 << 10  # KiB; a bare interpreter takes about 11 MiB
    loaded = printed("import sys, sortshuffle.service.host.supervisor; print(*sys.modules)")
    assert not {"numpy", "pyarrow", "pyspark", "xxhash"} & set(loaded)


def test_one_that_dies_of_being_started_is_tried_less_and_less_often() -> None:
    back_off = RestartDelay()
    delays = [back_off.after(0.01) for _ in range(9)]
    assert delays[0] == FIRST_DELAY
    assert all(later == min(LAST_DELAY, 2 * earlier) for earlier, later in pairwise(delays))
    assert delays[-1] == LAST_DELAY
    assert back_off.after(STEADY) == 0
    assert back_off.after(0.01) == FIRST_DELAY


def test_one_that_cannot_be_started_for_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as listening, socket.socket(socket.AF_UNIX) as local:
        descriptors = (listening.fileno(), local.fileno())
        service = ServiceProcess(str(tmp_path), descriptors, b"\n")  # no configuration: it ends
        try:
            with monkeypatch.context() as out_of_processes:
                out_of_processes.setattr(sys, "executable", "/nowhere")
                service.keep_up(BOUND)
            first = service._process
            service.keep_up(BOUND)
            assert service._process is not first
        finally:
            service.stop()


def test_the_application_is_looked_at_while_a_service_is_not_started_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits an hour here, which would be past the time limit of a test."""
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 3600.0)
    monkeypatch.setattr(supervisor, "LAST_DELAY", 3600.0)
    with socket.create_server((HOST, 0)) as listening, socket.socket(socket.AF_UNIX) as local:
        service = ServiceProcess(str(tmp_path), (listening.fileno(), local.fileno()), b"\n")
        try:
            first = service._process
            first.wait(BOUND)  # no configuration: it ends
            service.keep_up(0.01)  # sees that
            service.keep_up(0.01)
            assert service._process is first
            monkeypatch.setattr(service, "_due", time.monotonic())
            service.keep_up(0.01)
            assert service._process is not first
        finally:
            service.stop()


def test_the_stated_bound_is_kept_with_room_to_spare() -> None:
    assert QUIET < BOUND / 2
