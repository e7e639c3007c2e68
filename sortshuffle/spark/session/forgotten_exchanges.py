"""The driver's record of exchanges that Spark has forgotten (`homes.forgotten_exchanges`).

Spark's `ContextCleaner` forgets a shuffle when no frame, RDD or running job on the driver refers to it, or
when `control_shuffles` asks it to. Then no task reads its control rows, and no task that wrote them runs
again. An exchange is forgotten if Spark once had its shuffle of control rows, and no longer has it. An
exchange whose shuffle Spark has not had yet may still run.

This is used only with external services, and not over Spark Connect, where there is no adoption.
"""

from __future__ import annotations

import threading
from typing import Any

from sortshuffle.spark.session.control_shuffles import shuffles_of_spark

MOST_FORGOTTEN = 4096  # exchanges to keep, the last ones: they add a few KiB to every stage

_lock = threading.Lock()  # guards the dicts below, all by application
_shuffles: dict[str, dict[int, int]] = {}  # Spark's shuffle of each exchange that is not forgotten
_seen: dict[str, set[int]] = {}  # their shuffles that Spark has had
_forgotten: dict[str, list[int]] = {}  # exchanges, in the order in which they were found to be forgotten


def remember(context: Any, exchange: int, shuffle: int) -> None:
    """Note that Spark's shuffle of this number moves this exchange's control rows."""
    with _lock:
        _shuffles.setdefault(context.applicationId, {})[exchange] = shuffle


def forgotten(context: Any) -> tuple[int, ...]:
    """Return the exchanges of this application that Spark has forgotten, at most `MOST_FORGOTTEN`."""
    application = context.applicationId
    with _lock:
        known, seen = _shuffles.get(application, {}), _seen.setdefault(application, set())
        result = _forgotten.setdefault(application, [])
        if known:
            there = shuffles_of_spark(context).intersection(known.values())
            gone = [each for each, shuffle in known.items() if shuffle in seen and shuffle not in there]
            seen.intersection_update(known.values())
            seen.update(there)
            result += gone
            del result[:-MOST_FORGOTTEN]
            for exchange in gone:
                del known[exchange]
        return tuple(result)
