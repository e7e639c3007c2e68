"""Exchanges that Spark has forgotten: no task will read or adopt their map outputs.

With external services the map outputs of ended executors stay, for tasks that run again. Only the driver
knows whether such a task may still run. It passes the forgotten exchanges to its tasks, and a task that
writes records them in its home. The host's service reads them there, and deletes the map outputs that ended
executors have of these exchanges (`service.server.linger`). So the driver need not send hosts any messages.

    <home>/forgotten-<driver>.json      a list of exchange numbers

Exchange numbers are unique within a driver (`format.index.WriterInfo.driver`). Tasks only add numbers, one
task at a time, under a lock on the home's directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sortshuffle import calls
from sortshuffle.homes.small_files import replace_json
from sortshuffle.storage.files.descriptors import close_after_reading, lock_until

PREFIX = "forgotten-"
SUFFIX = ".json"
# Seconds to wait for the lock, and between attempts. Its holder writes some hundred bytes. If that takes
# longer, because the holder was stopped, a later task records the exchanges
LOCK_PATIENCE = 0.2
POLL_SECONDS = 0.01


def record_exchanges(home: str, driver: str, exchanges: Collection[int]) -> None:
    """Add these exchanges to a home's record. Raises TimeoutError if the lock stays taken, and OSError."""
    path = os.path.join(home, f"{PREFIX}{driver}{SUFFIX}")
    with _locked(home):
        known = _read(path)
        if not known.issuperset(exchanges):
            replace_json(path, sorted(known.union(exchanges)))


def read_exchanges(home: str) -> set[tuple[str, int]]:
    """Return the drivers and exchanges that tasks have recorded in a home. Raises OSError."""
    names = [name for name in calls.listdir(home) if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    return {
        (name.removeprefix(PREFIX).removesuffix(SUFFIX), exchange)
        for name in names
        for exchange in _read(os.path.join(home, name))
    }


@contextmanager
def _locked(home: str) -> Iterator[None]:
    descriptor = calls.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_until(descriptor, home, time.monotonic() + LOCK_PATIENCE, POLL_SECONDS)
        try:
            yield
        finally:
            # closing is not enough: a process that was forked meanwhile has the descriptor too
            calls.flock(descriptor, fcntl.LOCK_UN)
    finally:
        close_after_reading(descriptor)


def _read(path: str) -> set[int]:
    try:
        with calls.open_file(path, encoding="utf-8") as opened:
            return {int(each) for each in json.load(opened)}
    except (FileNotFoundError, ValueError, TypeError):
        return set()
