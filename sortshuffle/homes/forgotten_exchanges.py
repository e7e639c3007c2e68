"""Exchanges that Spark has forgotten: nobody will read or adopt their map outputs any more.

With external services the map outputs of ended executors stay for tasks that run again. Whether any may still
run, only the driver knows. It gives what it knows to its tasks, and a task that writes leaves it in the home
that it writes to. The host's service reads it there, and deletes what ended executors have of these exchanges
(`service.server.linger`). So a host on which executors come and go hears of it without a message of its own.

    <home>/forgotten-<driver>.json      a list of exchange numbers

Exchange numbers are a driver's own (`format.index.Writer.driver`). Tasks that leave word at once do so one
after another, by a lock on the home's directory. So what is said once is never taken back.
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
# Seconds for the lock, and between looks at it. Whoever has it writes some hundred bytes. Where that takes
# longer, because the holder was stopped, a later task leaves the word
LOCK_PATIENCE = 0.2
LOOK = 0.01


def record_exchanges(home: str, driver: str, exchanges: Collection[int]) -> None:
    """Leave word of these exchanges in a home, beside what is said there. Waits for others that do so, but
    not for long: TimeoutError where the turn does not come. Raises OSError."""
    path = os.path.join(home, f"{PREFIX}{driver}{SUFFIX}")
    with _locked(home):
        said = _read(path)
        if not said.issuperset(exchanges):
            replace_json(path, sorted(said.union(exchanges)))


def read_exchanges(home: str) -> set[tuple[str, int]]:
    """What tasks have left word of: drivers and their exchanges. Raises OSError."""
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
        lock_until(descriptor, home, time.monotonic() + LOCK_PATIENCE, LOOK)
        try:
            yield
        finally:
            # not by closing it alone: a process that was forked meanwhile has the descriptor, too
            calls.flock(descriptor, fcntl.LOCK_UN)
    finally:
        close_after_reading(descriptor)


def _read(path: str) -> set[int]:
    try:
        with calls.open_file(path, encoding="utf-8") as opened:
            return {int(each) for each in json.load(opened)}
    except (FileNotFoundError, ValueError, TypeError):
        return set()
