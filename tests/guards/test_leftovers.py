"""Files of tests that leave something behind, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import leftovers
import psutil
import pytest
from engine import eventually

LEAVES = """
    import os, subprocess, threading

    def test_leaves():
        {}

    def test_is_the_last():
        pass
"""
ENDS = """
    import subprocess, threading
    import pytest

    @pytest.fixture(scope="module")
    def something():
        event = threading.Event()
        thread = threading.Thread(target=event.wait)
        thread.start()
        with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE) as process:
            yield
            process.kill()
        event.set()
        thread.join()

    def test_uses_it(something): pass
"""


@pytest.fixture(autouse=True)
def guards(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(leftovers.__file__).parent))
    pytester.makeconftest("import leftovers; leftovers.GONE_S = 0.3")


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ('os.open("kept", os.O_CREAT)', "descriptor *: */kept"),
        ("os.pipe()", "descriptor *: pipe:*"),
        (
            'threading.Thread(target=threading.Event().wait, name="waits", daemon=True).start()',
            "*Thread(waits*",
        ),
        ('subprocess.Popen("setsid sleep 2 &", shell=True).wait()', "process *: *sleep 2"),
    ],
    ids=["file", "pipe", "thread", "process"],
)
def test_what_is_left_fails_the_last_test(pytester: pytest.Pytester, code: str, named: str) -> None:
    pytester.makepyfile(LEAVES.format(code))
    result = pytester.runpytest_subprocess("-p", "leftovers")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_is_the_last*", f"*{named}"])


def test_a_python_process_that_is_left_says_where_it_is(pytester: pytest.Pytester) -> None:
    program = pytester.makepyfile(left="import time\ndef lingers():\n    time.sleep(5)\nlingers()")
    command = f"subprocess.Popen('setsid {sys.executable} {program} &', shell=True).wait()"
    pytester.makepyfile(LEAVES.format(command))
    result = pytester.runpytest_subprocess("-p", "leftovers")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines([f"*process *: *{program}", "*lingers (*left.py:3)"])


def test_what_ends_with_the_files_fixtures_is_not_left(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ENDS)
    pytester.runpytest_subprocess("-p", "leftovers").assert_outcomes(passed=1)


def test_what_ends_by_itself_is_waited_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import leftovers; leftovers.GONE_S = 30.0")
    pytester.makepyfile(LEAVES.format('subprocess.Popen("setsid sleep 0.3 &", shell=True).wait()'))
    pytester.runpytest_subprocess("-p", "leftovers").assert_outcomes(passed=2)


ENDED_DAEMON = """
import os, sys
path, module = sys.argv[1:]
os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"] = path
read = [sys.executable, "-c", "import sys; sys.stdin.read()"]
if os.fork() == 0:  # the daemon
    os.spawnv(os.P_NOWAIT, sys.executable, [*read, "-m", module, "pyspark.worker"])
    os._exit(0)
os.wait()
os.execv(sys.executable, [*read, "pyspark-shell"])  # the JVM
"""


@pytest.fixture
def own_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The environment of processes that the guard's functions see, and the guard of this run does not. Each
    test has another: what the one before has ended may take a moment to go."""
    mark = f"{leftovers.MARK}_{tmp_path.name}"
    environment = {**os.environ, mark: str(os.getpid())}
    del environment[leftovers.MARK]
    monkeypatch.setattr(leftovers, "MARK", mark)
    return environment


@pytest.mark.parametrize("module", ["pyspark.daemon", "sortshuffle.spark.worker.daemon"])
def test_a_python_worker_without_a_daemon_is_of_the_jvm_that_its_environment_is_from(
    module: str, tmp_path: Path, own_run: dict[str, str]
) -> None:
    paths = [str(tmp_path / name) for name in ("shared", "other")]
    jvms = [
        subprocess.Popen([sys.executable, "-c", ENDED_DAEMON, path, module], stdin=PIPE, env=own_run)
        for path in paths
    ]
    try:
        eventually(lambda: all(map(is_jvm, jvms)), "processes that look like JVMs")
        workers = [worker_of(path).pid for path in paths]
        shared = leftovers.SharedSpark(jvms[0].pid, "")
        assert pids(leftovers.processes(None)) == {*workers, *(jvm.pid for jvm in jvms)}
        assert pids(leftovers.processes(shared)) == {workers[1], jvms[1].pid}

        jvms[0].kill()
        jvms[0].wait()
        assert pids(leftovers.processes(shared)) == {*workers, jvms[1].pid}
    finally:
        for jvm in jvms:
            jvm.kill()
            jvm.communicate()  # closes what the workers read, too


@pytest.mark.parametrize("variables", [{}, {leftovers.EXECUTOR: "/somewhere"}], ids=["driver", "executor"])
def test_a_worker_of_an_executor_is_not_its_drivers(
    variables: dict[str, str], tmp_path: Path, own_run: dict[str, str]
) -> None:
    path = str(tmp_path / "driver")
    command = [sys.executable, "-c", ENDED_DAEMON, path, "pyspark.daemon"]
    with subprocess.Popen(command, stdin=PIPE, env=own_run | variables) as jvm:
        eventually(lambda: is_jvm(jvm), "a process that looks like a JVM")
        worker = worker_of(path)
        found = leftovers.jvm_of_orphan(worker, leftovers.WORKER)
        jvm.communicate()
    assert (found is not None and found.pid == jvm.pid) == (variables == {})


def test_a_process_stays_left_if_another_ends_while_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, own_run: dict[str, str]
) -> None:
    def ended(_: psutil.Process) -> list[psutil.Process]:
        raise psutil.NoSuchProcess(1)

    command = [sys.executable, "-c", "input('started')"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=own_run) as left:
        assert left.stdout is not None
        assert left.stdout.read(7) == b"started"  # before that it may have this process's environment
        monkeypatch.setattr(psutil.Process, "parents", ended)
        found = leftovers.processes(leftovers.SharedSpark(os.getpid(), ""))
        monkeypatch.undo()
        left.communicate(b"\n")
    assert pids(found) == {left.pid}


def pids(found: dict[tuple[int, float], str]) -> set[int]:
    return {pid for pid, _ in found}


def is_jvm(process: subprocess.Popen[bytes]) -> bool:
    return leftovers.command_of(psutil.Process(process.pid)).endswith(leftovers.JVM)


def worker_of(path: str) -> psutil.Process:
    found: list[psutil.Process] = []

    def is_there() -> bool:
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # of a process that has ended meanwhile
                is_worker = leftovers.command_of(process).endswith(leftovers.WORKER)
                if is_worker and process.environ().get(leftovers.STARTED_AS) == path:
                    found.append(process)
        return bool(found)

    eventually(is_there, f"a worker that was started as {path}")
    return found[0]
