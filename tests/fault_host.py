"""A small process that forks: each child runs one scenario with one fault, so that a kill takes nothing else
along, and descriptors, threads and memory are counted in a process of which nothing else is known.

    with FaultHost() as host:
        report = host.run("write", directory, fault)

The host has loaded everything, has one thread, and makes no call that a fault is put at. What it is told and
answers is pickled, through its standard input and output.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import IO, Any

from engine import ROOT, short_directory
from faults import Fault, Faults, Site

HANGS = 20.0  # seconds; the slowest child takes less than two
ENDS = 2.0  # seconds, within which a thread ends that has nothing left to do


@dataclass(frozen=True, slots=True)
class Report:
    """Of one child. ``error``: the names of its classes, the innermost first; empty if the scenario ended.
    ``left``: descriptors, threads, children and memory that were not given back. ``output``: what it wrote to
    standard error, if it died otherwise than by a fault."""

    result: Any = None
    error: tuple[str, ...] = ()
    text: str = ""
    place: str = ""
    left: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()
    happened: bool = False
    killed: bool = False
    output: str = ""


class FaultHost:
    """The host as tests see it."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        # children that are killed leave files, sockets among them, whose paths must be short
        self._temporary = tempfile.TemporaryDirectory(prefix="faults-", dir=short_directory())
        own = {"PYTHONPATH": path, "TMPDIR": self._temporary.name}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import fault_host; fault_host.main()"],
            env={**os.environ, **own, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def prepare(self, scenario: str, prepared: str) -> None:
        """Make what a scenario needs."""
        report = self._ask(("prepare", scenario, prepared, "", None))
        assert not report.error, report.output

    def run(self, scenario: str, directory: str, prepared: str, fault: Fault | None = None) -> Report:
        """One child."""
        return self._ask(("run", scenario, directory, prepared, fault))

    def _ask(self, request: tuple[str, str, str, str, Fault | None]) -> Report:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        report: Report = pickle.load(self._process.stdout)
        return report

    def __enter__(self) -> FaultHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._temporary, self._process:  # which closes what is still open, and waits
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            try:
                self._process.wait(HANGS)
            finally:
                self._process.kill()


# ---- the host's own half -----------------------------------------------------------------------------------


def main() -> None:
    import fault_scenarios
    import numpy.random  # noqa: F401 - these would be loaded by each child anew
    import pandas  # noqa: F401 - loaded by pyarrow when it is first given a list
    import s3fs  # noqa: F401

    gc.freeze()  # what is loaded is no child's garbage
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets between the answers
    with contextlib.suppress(EOFError):
        while True:
            what, name, directory, prepared, fault = pickle.load(requests)
            if what == "prepare":
                run = partial(fault_scenarios.PREPARED.get(name, _nothing), directory)
            else:
                run = partial(fault_scenarios.SCENARIOS[name], directory, prepared)
            open_first = fault_scenarios.OPENED.get(name, _nothing)
            pickle.dump(_forked(open_first, run, fault), answers)
            answers.flush()


def _nothing(directory: str = "") -> None:
    """For what needs nothing."""


def _forked(open_first: Callable[[], object], run: Callable[[], Any], fault: Fault | None) -> Report:
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            _child(open_first, run, fault, answer, output)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        written = output.read().decode(errors="replace")
        if os.WIFSIGNALED(status):
            by_fault = os.WTERMSIG(status) == 9
            return Report(killed=by_fault, happened=by_fault, output="" if by_fault else written)
        answer.seek(0)
        try:
            report: Report = pickle.load(answer)
        except EOFError:
            return Report(output=f"status {status}: {written}")
        return report


def _child(
    open_first: Callable[[], object],
    run: Callable[[], Any],
    fault: Fault | None,
    answer: IO[bytes],
    output: IO[bytes],
) -> None:
    status = 1
    try:
        os.dup2(output.fileno(), 2)
        faulthandler.dump_traceback_later(HANGS, exit=True, file=output)
        pickle.dump(_reported(open_first, run, fault), answer)
        answer.flush()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _reported(open_first: Callable[[], object], run: Callable[[], Any], fault: Fault | None) -> Report:
    from sortshuffle.memory import leaks

    open_first()
    before, threads = _descriptors(), set(threading.enumerate())
    result, error = None, None
    with Faults(fault) as faults:
        try:
            result = run()
        except Exception as raised:
            error = raised
    names = tuple(kind.__name__ for kind in type(error).__mro__) if error is not None else ()
    text, place = str(error), str(getattr(error, "filename", "") or "")
    trace = _trace(error) if error is not None else ""
    error = None
    started = [each for each in threading.enumerate() if each not in threads and not _waits(each)]
    for each in started:
        each.join(ENDS)  # one that is about to end is not left over
    gc.collect()
    left = [f"thread {each.name}" for each in started if each.is_alive()]
    left += [f"descriptor of {target}" for number, target in _descriptors().items() if number not in before]
    left += [str(leak) for leak in leaks.forget()]
    return Report(result, names, text, place, tuple(left), tuple(faults.sites), faults.happened, output=trace)


def _waits(thread: threading.Thread) -> bool:
    """Whether it only waits for its time, as a daemon: the engine's sweep of its homes."""
    return isinstance(thread, threading.Timer) and thread.daemon


def _trace(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found
