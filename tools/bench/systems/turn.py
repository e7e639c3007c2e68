"""`take_turn`: one system does one work once, after its warm-ups, in a control group of its own.

Nothing else runs meanwhile. The system is started for the turn and ended after it, so that no idle process of
one system takes cores, memory or page cache from another. What is counted is the run alone, between two looks
of the control group; the peak of memory and the most files are those of the whole turn, warm-ups included.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_group import ControlGroup, Usage, control_group, kill_left
from harness import DATA
from watching import watching

from systems.environments import CONTESTANTS, python_of
from systems.work import Work, input_files

CORES = 2
FILES_INTERVAL = 0.25  # seconds between counts of files
ANSWER_SECONDS = 900.0  # for start and warm-ups, and again for the run; then the system is ended as failed
READ_BYTES = 16 << 20  # at a time, of an input file
DIRECTORY = "turn-"  # how the names of turns' directories begin
LOG_LINES = 40  # of a system that has failed


class TurnError(Exception):
    """A system did not do its work; the text says what it printed last."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn took. ``start``, ``warm_ups``, ``seconds``: wall time of the system's start and of the
    runs. ``usage``: of the timed run. ``peak``: bytes of memory. ``files``: the most that there were at once.
    ``lines``: of the user's code. ``answer``: what must be equal among systems."""

    start: float
    warm_ups: list[float]
    seconds: float
    usage: Usage
    peak: int
    files: int
    lines: int
    versions: dict[str, str]
    answer: Any


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """Keep other comparisons off this checkout's data for the time of the block. End and delete what one that
    was killed has left: its processes would take cores from ours. (Ray's sockets in /tmp stay.) Ends the
    program if another one runs."""
    with (data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another comparison runs in this checkout")
        try:
            kill_left(_owner(data))
        except OSError as error:
            sys.exit(f"what a killed comparison has left cannot be ended: {error}")
        for directory in data.glob(f"{DIRECTORY}*"):
            shutil.rmtree(directory, ignore_errors=True)
        yield


def _owner(data: Path) -> str:
    """Return by what the control groups of comparisons with this data are known."""
    place = f"{os.uname().nodename} {data.resolve()}"  # containers may have one path, and share the groups
    return f"compare-{zlib.crc32(place.encode()):08x}"


def take_turn(system: str, work: Work, fewer: int, warm_ups: int) -> Turn:
    """Let a system do the work. ``fewer``: what the number of rows is divided by. Raises `TurnError`, and
    `OSError` where control groups cannot be made."""
    with tempfile.TemporaryDirectory(prefix=DIRECTORY, dir=DATA) as name:
        directory = Path(name)
        arguments = work.arguments(fewer)
        for path in input_files(arguments):
            read_outside(path)
        with control_group(work.memory, _owner(DATA)) as group:
            program = _Program(system, work, arguments, directory, warm_ups, group)
            try:
                return program.turn()
            finally:
                program.end()


class _Program:
    """The contestant's process."""

    def __init__(
        self,
        system: str,
        work: Work,
        arguments: dict[str, Any],
        directory: Path,
        warm_ups: int,
        group: ControlGroup,
    ) -> None:
        self._system, self._work = system, work
        self._directory, self._group = directory, group
        self._log = directory / "log"
        config = {
            "case": work.case,
            "arguments": arguments,
            "cores": CORES,
            "memory": work.memory,
            "directory": str(directory),
            "warm_ups": warm_ups,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python_of(system), str(CONTESTANTS / f"on_{system}.py"), json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=directory,
                start_new_session=True,  # Ctrl-C is for this program, which ends the other
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )
        # it has started nothing yet: it waits for a line
        group.add(self._process.pid)
        os.sched_setaffinity(self._process.pid, set(sorted(os.sched_getaffinity(0))[:CORES]))

    def turn(self) -> Turn:
        with self._group.watched(), _counted(self._directory) as files:
            self._go_on()
            ready = self._answer()
            before = self._group.usage(self._directory)
            self._go_on()
            run = self._answer()
            usage = self._group.usage(self._directory).since(before)
        try:
            answer = self._work.check(run["answer"])
        except ValueError as error:
            raise TurnError(f"{self._system}: a wrong answer to {self._work.name}: {error}") from error
        return Turn(
            ready["start"],
            ready["warm_ups"],
            run["seconds"],
            usage,
            self._group.peak,
            files[0],
            ready["lines"],
            ready["versions"],
            answer,
        )

    def end(self) -> None:
        """Let it end itself, and then whatever is left of it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        killed = self._group.wait_until_empty()
        self._process.wait()
        if killed:
            print(f"{self._system}: {len(killed)} processes did not end by themselves", file=sys.stderr)

    def _go_on(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TurnError(self._last_words("has ended")) from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        patience = threading.Timer(ANSWER_SECONDS, self._process.kill)
        patience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            patience.cancel()
        if not line:
            raise TurnError(self._last_words("failed, or gave no answer in time"))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"{self._system} {what}, at {self._work.name}:\n" + "\n".join(f"    {line}" for line in lines)


def read_outside(path: str) -> None:
    """Read a file, so that its pages are in the page cache and this program's group is charged for them. A
    control group pays for the pages that it is the first to read: otherwise the first system would."""
    with open(path, "rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass


@contextmanager
def _counted(directory: Path) -> Iterator[list[int]]:
    """Count the files below a directory now and then while the block runs. Gives the largest count."""
    most = [0]

    def count() -> None:
        most[0] = max(most[0], sum(len(files) for _, _, files in os.walk(directory)) - 1)  # the log

    with watching(count, FILES_INTERVAL):
        yield most
