"""Exchanges that Spark has forgotten, as the driver knows (`homes.forgotten_exchanges`).

Spark forgets a shuffle when nothing on the driver refers to it any more: no frame, no RDD, no running job
(its `ContextCleaner`). Then no task reads its control rows, and no task that wrote them runs again. An
exchange is forgotten if Spark once had its shuffle of control rows, and has it no longer. One that Spark has
not had yet may still run.

Used only with external services, and not over Spark Connect, where there is no adoption.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

MOST_FORGOTTEN = 4096  # exchanges, the last ones: a few KiB in every stage

_lock = threading.Lock()  # of what follows
_shuffles: dict[str, dict[int, int]] = {}  # by application: Spark's shuffle of each exchange not forgotten
_seen: dict[str, set[int]] = {}  # shuffles that Spark has had
_forgotten: dict[str, list[int]] = {}  # exchanges, in the order in which this was noticed


def remember(context: Any, exchange: int, rdd: Any) -> None:
    """Note that the last shuffle before ``rdd``, an RDD of the JVM, moves the control rows of this
    exchange."""
    shuffle = _shuffle_before(rdd)
    if shuffle is not None:
        with _lock:
            _shuffles.setdefault(context.applicationId, {})[exchange] = shuffle


def forgotten(context: Any) -> tuple[int, ...]:
    """The exchanges of this application that Spark has forgotten, at most `MOST_FORGOTTEN`."""
    application = context.applicationId
    with _lock:
        known, seen = _shuffles.get(application, {}), _seen.setdefault(application, set())
        result = _forgotten.setdefault(application, [])
        if known:
            there = _shuffles_of_spark(context, set(known.values()))
            gone = [each for each, shuffle in known.items() if shuffle in seen and shuffle not in there]
            seen.intersection_update(known.values())
            seen.update(there)
            result += gone
            del result[:-MOST_FORGOTTEN]
            for exchange in gone:
                del known[exchange]
        return tuple(result)


def _shuffles_of_spark(context: Any, shuffles: Iterable[int]) -> set[int]:
    """The shuffles among these that Spark's driver has."""
    # not by way of SparkEnv: Py4J would have to load all classes that it mentions, and Spark lacks one
    tracker = context._jsc.sc().taskScheduler().mapOutputTracker()
    there = str(tracker.shuffleStatuses().keySet().mkString(","))  # one call for all of them
    return set(shuffles).intersection(map(int, filter(None, there.split(","))))


def _shuffle_before(rdd: Any) -> int | None:
    while True:
        dependencies = rdd.dependencies()
        if dependencies.isEmpty():
            return None
        dependency = dependencies.head()
        if str(dependency.getClass().getSimpleName()) == "ShuffleDependency":
            return int(dependency.shuffleId())
        rdd = dependency.rdd()
