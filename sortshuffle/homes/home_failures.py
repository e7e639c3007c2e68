"""Homes that failed lately: full in the middle of a map output, read-only, gone, or on a broken disk.

A home that failed is passed over for `SKIP_SECONDS` seconds. A full disk has room again as soon as the
unfinished file is deleted. So neither its free space nor the number of the attempt says that the next attempt
should go elsewhere: the failure must be remembered. It is remembered in two places:

* this process, in any case;
* a file in the home, for the executor's other workers, one of which may run the next attempt. If no file can
  be written there, each worker finds out when it creates its first file in the home.

Used by `Homes`, by the stage of a task that fails (`note_failure`), and by the engine. Any thread may call:
each change is one operation on a dict or set.
"""

from __future__ import annotations

import copy
import errno
import os
import time
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.errors import OUT_OF, OutOfDiskError

# seconds; Spark's next attempts follow within a few, and a disk that has been emptied is used again soon
SKIP_SECONDS = 60.0
MARKER_FILE = "passed-over"
_OF_THIS_PROCESS = (*OUT_OF, errno.EINTR, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a home. ``at``: seconds since 1970. ``error``: a copy, which is never raised, because a
    traceback would keep alive the frames of the failed call, with their files and records."""

    at: float
    error: OSError


_failures: dict[str, Failure] = {}  # by home, the last of each
_known: set[str] = set()


def watch(homes: tuple[str, ...]) -> None:
    """Let `note_failure` remember errors that name these homes, or files in them."""
    _known.update(homes)


def is_homes_fault(error: OSError) -> bool:
    """Return whether the home is at fault, so that another one may work. False for a file that exists already
    and for errors about this process."""
    return error.errno not in _OF_THIS_PROCESS


def note_failure(error: OSError) -> None:
    """Remember a failed task's error if it names a home, or a file in one. Then the task's next attempt, in
    any of the executor's workers, writes elsewhere if it can."""
    path = error.path if isinstance(error, OutOfDiskError) else error.filename
    if not isinstance(path, str) or not is_homes_fault(error):
        return
    for home in _known.intersection((path, os.path.dirname(path))):
        remember(home, error)


def remember(home: str, error: OSError) -> None:
    """Pass over this home for a while, in all workers. This writes a file into the home, so call it only for
    one that has an owner file, or is gone."""
    remember_in_process(home, error)
    try:
        with calls.open_file(os.path.join(home, MARKER_FILE), "w", encoding="utf-8") as opened:
            opened.write(f"{error}\n")
    except OSError:
        pass  # the other workers find out by themselves


def remember_in_process(home: str, error: OSError) -> None:
    """Do the same in this process only, for a home that could not be made: a file in it would stay."""
    _failures[home] = Failure(time.time(), copy.copy(error))


def failed_at(home: str) -> float | None:
    """Return when this home last failed, in seconds since 1970; None if it did not fail lately."""
    times = [_failures[home].at] if home in _failures else []
    try:
        times.append(calls.stat(os.path.join(home, MARKER_FILE)).st_mtime)
    except OSError:
        pass  # there is none, or the home cannot be read
    now = time.time()
    return max((at for at in times if 0 <= now - at < SKIP_SECONDS), default=None)


def last_error(home: str) -> OSError | None:
    """Return the home's last error in this process, which the caller may raise; None without one."""
    return copy.copy(_failures[home].error) if home in _failures else None
