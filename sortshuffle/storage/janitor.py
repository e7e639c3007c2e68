"""The janitor: one small process beside each executor that deletes what is dead in its homes.

Why a process: Spark kills the worker of a cancelled task with SIGKILL, so the task itself cannot remove its
unfinished files; and an executor that dies by SIGKILL leaves everything behind. The janitor outlives both.

    python -m sortshuffle.storage.janitor HOME [HOME ...]

* One per home: it holds a lock on ``janitor.lock`` there, and one that finds all its homes taken ends within
  a second. An executor has one janitor, or more if its tasks came to use further
  directories later, or if its frames have different settings.
* Every second it removes unfinished files without a writer; every five, finished ones that Spark has
  forgotten (`storage.lifetime` says which).
* When the executor ends it deletes the homes and ends itself, within two seconds. Where files are to be kept,
  or outlive the executor, it deletes only the unfinished ones. It ends as well when its homes are gone.

Started by the first producer task of an executor (`ensure`). Standard library only: about 10 MB.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from sortshuffle.storage.environment import environment
from sortshuffle.storage.lifetime import Owner, remove_home, sweep, sweep_partials
from sortshuffle.storage.partitioned_file import PARTIAL_SUFFIX

LOCK_FILE = "janitor.lock"
TICK = 1.0  # seconds between looks at the executor and its unfinished files
TICKS_PER_SWEEP = 5
TRIES = 10

_started: list[subprocess.Popen[bytes]] = []  # keeps them from being reported as forgotten


def ensure(homes: Sequence[str]) -> None:
    """Start a janitor for those of these homes that have none. The caller has made the homes."""
    unattended = [home for home in homes if not is_running(home)]
    if not unattended:
        return
    _started[:] = [process for process in _started if process.poll() is None]
    _started.append(
        subprocess.Popen(
            [sys.executable, "-m", __name__, *unattended],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,  # Spark's daemon hangs up its own process group when it ends
            cwd="/",
        )
    )


def main(homes: Sequence[str]) -> None:
    """Run until the executor ends."""
    owners = {home: owner for home in _take_over(homes) if (owner := Owner.read(home)) is not None}
    tick = 0
    while any(os.path.isdir(home) and owner.is_live() for home, owner in owners.items()):
        for home, owner in owners.items():
            _tidy(home, owner, whole=tick % TICKS_PER_SWEEP == 0)
        tick += 1
        time.sleep(TICK)
    for home, owner in owners.items():
        _clear(home, owner)


def _tidy(home: str, owner: Owner, whole: bool) -> None:
    try:
        if whole:
            sweep(home, owner)
        else:
            sweep_partials(home, time.time())
    except OSError:
        pass  # the next look tries again; a janitor that ended here would leave everything behind


def _clear(home: str, owner: Owner) -> None:
    for _ in range(TRIES):  # the executor's last workers may still be writing
        try:
            if owner.keep or owner.outlived:
                sweep_partials(home, float("inf"))
                if not any(name.endswith(PARTIAL_SUFFIX) for name in os.listdir(home)):
                    return
            else:
                remove_home(home)
                if not os.path.lexists(home):
                    return
        except OSError:
            pass
        time.sleep(TICK / TRIES)


def _take_over(homes: Sequence[str]) -> list[str]:
    """The homes whose locks this process gets, and holds for its life. Tries for a while: a task that looks
    whether there is a janitor holds a lock for a moment."""
    taken: list[str] = []
    for _ in range(TRIES):
        taken += [home for home in homes if home not in taken and _lock(home, fcntl.LOCK_EX) is not None]
        if len(taken) == len(homes):
            break
        time.sleep(TICK / TRIES)
    return taken


def is_running(home: str) -> bool:
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
