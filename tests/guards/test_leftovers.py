"""Files of tests that leave something behind, in a pytest of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import leftovers
import psutil
import pytest

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


def test_who_is_connected_is_known_by_the_port() -> None:
    """So a Python worker whose daemon has ended is the JVM's that still has a connection to it."""
    program = "import socket, sys; kept = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); input()"
    own = psutil.Process()
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", program, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            accepted, _ = server.accept()
            with accepted:
                connected = psutil.Process(process.pid)
                assert leftovers.are_connected(connected, own)
                assert not leftovers.are_connected(own, psutil.Process(os.getppid()))
            process.communicate(b"\n")
