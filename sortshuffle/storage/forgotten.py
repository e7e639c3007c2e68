"""Exchanges that Spark has forgotten: nobody will read or adopt their map outputs any more.

With external services the map outputs of ended executors stay for tasks that run again. Whether any may still
run, only the driver knows. It gives what it knows to its tasks, and a task that writes leaves it in the home
that it writes to. The host's service reads it there, and deletes what ended executors have of these exchanges
(`service.linger`). So a host on which executors come and go hears of it without a message of its own.

    <home>/forgotten-<driver>.json      a list of exchange numbers

Exchange numbers are a driver's own (`format.index.Writer.driver`). What is said once is never taken back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection

from sortshuffle import calls

PREFIX = "forgotten-"
SUFFIX = ".json"


def tell(home: str, driver: str, exchanges: Collection[int]) -> None:
    """Leave word of these exchanges in a home, beside what is said there. Raises OSError."""
    path = os.path.join(home, f"{PREFIX}{driver}{SUFFIX}")
    said = _read(path)
    if said.issuperset(exchanges):
        return
    partial = f"{path}.{os.getpid()}"
    with calls.open_file(partial, "w", encoding="utf-8") as opened:
        json.dump(sorted(said.union(exchanges)), opened)
    calls.replace(partial, path)  # of two tasks that tell at once one is heard, and the other tells it again


def told(home: str) -> set[tuple[str, int]]:
    """What tasks have left word of: drivers and their exchanges. Raises OSError."""
    names = [name for name in calls.listdir(home) if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    return {
        (name.removeprefix(PREFIX).removesuffix(SUFFIX), exchange)
        for name in names
        for exchange in _read(os.path.join(home, name))
    }


def _read(path: str) -> set[int]:
    try:
        with calls.open_file(path, encoding="utf-8") as opened:
            return {int(each) for each in json.load(opened)}
    except (FileNotFoundError, ValueError, TypeError):
        return set()
