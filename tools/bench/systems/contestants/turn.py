"""One turn of a contestant: start, warm up, run once, end. The program that `systems.turn` drives.

    python on_dask.py CONFIGURATION

The configuration is JSON: `case`, `arguments` of the case, `cores`, `memory` (bytes for all processes
together), `directory` (for files that it makes), `warm_ups`.

    standard input      standard output
    a line              (it starts its system, and runs the case to warm up)
                        {"versions": ..., "start": seconds, "warm_ups": [...], "lines": of the case}
    a line              (it runs the case)
                        {"seconds": ..., "answer": ...}
    the end             (it ends, also in place of a line)

A case is a function that gets what `start` gave, and the case's arguments. If it writes files, it also has
a parameter `output`: an empty directory, a new one for each run. The directory is made before the clock
starts, and deleted after it stops. So no run overwrites the files of another, and none deletes its own while
the clock is on. The files of the timed run stay until the turn is over: `systems.turn` reads them.

The source of a case is the user's code: what somebody writes to do the work with this system. Modules here
run in the contestant's own environment, and need nothing but the standard library, pyarrow, NumPy and pandas
beside it.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

Case: TypeAlias = Callable[..., Any]
DECORATION = ("#", "@")  # how lines begin that are no code of the user's


@dataclass(frozen=True, slots=True)
class Limits:
    """``memory``: bytes for all processes together, with their page cache. ``directory``: for temporary
    files. ``case``: the name of what is run; all exchanges have one."""

    cores: int
    memory: int
    directory: str
    case: str


def take_part(
    start: Callable[[Limits], AbstractContextManager[Any]],
    cases: Mapping[str, Case],
    packages: tuple[str, ...],
) -> None:
    """Do what the first argument of the program says. ``start``: the system, for the block's time."""
    config = json.loads(sys.argv[1])
    answers = _own_output()
    case, arguments = cases[config["case"]], config["arguments"]
    limits = Limits(config["cores"], config["memory"], config["directory"], config["case"])
    os.environ["TMPDIR"] = limits.directory
    if not _is_asked():
        return
    started = time.perf_counter()
    with start(limits) as system:
        seconds = time.perf_counter() - started
        warm_ups = [_warm_up(case, system, arguments, limits.directory) for _ in range(config["warm_ups"])]
        about = {name: version(name) for name in packages}
        output = tempfile.mkdtemp(dir=limits.directory)
        _tell(answers, versions=about, start=seconds, warm_ups=warm_ups, lines=_lines_of(case))
        if not _is_asked():
            return
        seconds, answer = _timed(case, system, arguments, output)
        _tell(answers, seconds=seconds, answer=answer)
        sys.stdin.read()


def _is_asked() -> bool:
    """Wait for a line, and return whether there is one: the one who asks may have ended, or given up."""
    return bool(sys.stdin.readline())


def _own_output() -> int:
    """Return what leads to the standard output. What systems print goes to the standard error from now on."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _warm_up(case: Case, system: Any, arguments: Mapping[str, Any], directory: str) -> float:
    """Run the case, delete what it wrote, and return the seconds of the run."""
    with tempfile.TemporaryDirectory(dir=directory) as output:
        return _timed(case, system, arguments, output)[0]


def _timed(case: Case, system: Any, arguments: Mapping[str, Any], output: str) -> tuple[float, Any]:
    writes = "output" in inspect.signature(case).parameters
    given = {**arguments, "output": output} if writes else arguments
    started = time.perf_counter()
    answer = case(system, **given)
    return time.perf_counter() - started, answer


def _tell(answers: int, **values: Any) -> None:
    os.write(answers, (json.dumps(values) + "\n").encode())


def _lines_of(case: Case) -> int:
    """Return how many lines of code a user writes: the function, without comments."""
    return sum(1 for _ in _code(inspect.getsource(case).splitlines()))


def _code(lines: list[str]) -> Iterator[str]:
    return (line for line in map(str.strip, lines) if line and not line.startswith(DECORATION))
