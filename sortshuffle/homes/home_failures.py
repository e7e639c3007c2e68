"""Homes that failed lately: full in the middle of a map output, read-only, gone, or on a broken disk.

A home that failed is passed over for `SKIP_SECONDS` seconds. A full disk has room again as soon as the
unfinished file is deleted. So neither its free space nor the number of the attempt says that the next attempt
should go elsewhere: the failure must be remembered. Two places remember it:

* this process, in any case;
* a file in the home, for the executor's other workers, one of which may run the next attempt. If the home
  takes no file any more, each worker finds out at the first file that it creates there.

Used by `Homes`, and by the stage of a task that fails (`note_failure`). Single-threaded.
"""

from __future__ import annotations

import copy
import errno
import os
import time
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.errors import OUT_OF, OutOfDiskError

# seconds; Spark's next attempts follow within a few, and a disk that others have emptied is used again soon
SKIP_SECONDS = 60.0
MARKER_FILE = "passed-over"
_OF_THIS_PROCESS = (*OUT_OF, errno.EINTR, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Failure:
    """``at``: seconds since the epoch. ``error``: a copy, which is never raised: a traceback would keep alive
    the frames of the failed call, with their files and records."""

    at: float
    error: OSError


_failures: dict[str, Failure] = {}  # by home, the last of each
_known: set[str] = set()


def watch(homes: tuple[str, ...]) -> None:
    """Count errors that name a path below these homes as theirs (`note_failure`)."""
    _known.update(homes)


def is_homes_fault(error: OSError) -> bool:
    """Whether the home failed, so that another one may do. Not for a file that exists already, nor for errors
    about this process."""
    return error.errno not in _OF_THIS_PROCESS


def note_failure(error: OSError) -> None:
    """Remember a failed task's error, if it names a home or a file in one. The task's next attempt, in any of
    the executor's workers, then writes elsewhere if it can."""
    path = error.path if isinstance(error, OutOfDiskError) else error.filename
    if not isinstance(path, str) or not is_homes_fault(error):
        return
    for home in _known.intersection((path, os.path.dirname(path))):
        remember(home, error)


def remember(home: str, error: OSError) -> None:
    """Pass over this home for a while, in all workers. It has an owner, or is gone."""
    remember_in_process(home, error)
    try:
        with calls.open_file(os.path.join(home, MARKER_FILE), "w", encoding="utf-8") as opened:
            opened.write(f"{error}\n")
    except OSError:
        pass  # the other workers find out by themselves


def remember_in_process(home: str, error: OSError) -> None:
    """The same, only in this process: for a home that could not be made. A file in it would stay."""
    _failures[home] = Failure(time.time(), copy.copy(error))


def failed_at(home: str) -> float | None:
    """When this home failed last, if that was lately."""
    times = [_failures[home].at] if home in _failures else []
    try:
        times.append(calls.stat(os.path.join(home, MARKER_FILE)).st_mtime)
    except OSError:
        pass  # there is none, or the home cannot be read
    now = time.time()
    return max((at for at in times if 0 <= now - at < SKIP_SECONDS), default=None)


def last_error(home: str) -> OSError | None:
    """The home's last error in this process. The caller may raise it."""
    return copy.copy(_failures[home].error) if home in _failures else None
