"""The janitor: one small process beside each executor that deletes what is dead in its homes.

Why a process: Spark kills the worker of a cancelled task with SIGKILL, so the task itself cannot remove its
unfinished files; and an executor that dies by SIGKILL leaves everything behind. The janitor outlives both.

    python -m sortshuffle.storage.janitor HOME [HOME ...]

* One per executor: it holds a lock on ``janitor.lock`` in the first home, and a second one ends at once.
* Every second it removes unfinished files without a writer; every half minute, finished ones that Spark has
  forgotten (`storage.lifetime` says which).
* When the executor ends it deletes the homes (unless files are to be kept) and ends itself, within two
  seconds. It ends as well when its homes are gone.

Started by the first producer task of an executor (`ensure`). Standard library only: about 10 MB.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import sortshuffle
from sortshuffle.storage.lifetime import Owner, dead_partials, remove_home, sweep

LOCK_FILE = "janitor.lock"
TICK = 1.0  # seconds between looks at the executor and its unfinished files
TICKS_PER_SWEEP = 30
LOCK_TRIES = 10

_started: list[subprocess.Popen[bytes]] = []  # keeps them from being reported as forgotten


def ensure(homes: Sequence[str]) -> None:
    """Start the janitor of these homes unless it is there already. The caller has made the homes."""
    if _is_running(homes[0]):
        return
    package_root = os.path.dirname(os.path.dirname(sortshuffle.__file__))
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    _started.append(
        subprocess.Popen(
            [sys.executable, "-m", __name__, *homes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Spark's daemon hangs up its own process group when it ends
            cwd="/",
        )
    )


def main(homes: Sequence[str]) -> None:
    """Run until the executor ends."""
    owner = Owner.read(homes[0])
    if owner is None or not _take_over(homes[0]):
        return
    tick = 0
    while owner.is_live() and any(map(os.path.isdir, homes)):
        for home in homes:
            _tidy(home, owner, whole=tick % TICKS_PER_SWEEP == 0)
        tick += 1
        time.sleep(TICK)
    for home in homes:
        _clear(home, owner)


def _tidy(home: str, owner: Owner, whole: bool) -> None:
    if whole:
        sweep(home, owner)
        return
    for file in dead_partials(home, time.time()):
        file.delete()


def _clear(home: str, owner: Owner) -> None:
    if not owner.keep:
        remove_home(home)
        return
    for file in dead_partials(home, float("inf")):
        file.delete()


def _take_over(home: str) -> bool:
    """Take the janitor's lock for the life of this process. Tries for a while: a task that looks whether
    there is a janitor holds the lock for a moment."""
    for _ in range(LOCK_TRIES):
        if _lock(home, fcntl.LOCK_EX) is not None:
            return True
        time.sleep(TICK / LOCK_TRIES)
    return False


def _is_running(home: str) -> bool:
    lock = _lock(home, fcntl.LOCK_SH)
    if lock is None:
        return True
    os.close(lock)
    return False


def _lock(home: str, kind: int) -> int | None:
    """A descriptor that holds the lock, None if another process has it."""
    try:
        descriptor = os.open(os.path.join(home, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


if __name__ == "__main__":
    main(sys.argv[1:])
