"""What the driver knows of exchanges that are over (`homes.forgotten`).

Spark forgets a shuffle when nothing on the driver refers to it any more, no frame, no RDD and no running job
(its `ContextCleaner`). Then no task reads its control rows, and none that wrote them runs again. That has
happened to an exchange if Spark had its shuffle of control rows once, and has it no longer. One that Spark
has not had yet may still be run.

Only for external services, and not over Spark Connect, where nobody adopts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

MOST_TOLD = 4096  # exchanges, the last ones: a few KiB in every stage

_lock = threading.Lock()
_shuffles: dict[str, dict[int, int]] = {}  # by application: Spark's shuffle of each exchange that is not over
_seen: dict[str, set[int]] = {}  # shuffles that Spark has had
_over: dict[str, list[int]] = {}  # exchanges, in the order in which that was noticed


def remember(context: Any, exchange: int, rdd: Any) -> None:
    """Spark moves the control rows of this exchange by the last shuffle before ``rdd``, the JVM's."""
    shuffle = _shuffle_before(rdd)
    if shuffle is not None:
        with _lock:
            _shuffles.setdefault(context.applicationId, {})[exchange] = shuffle


def forgotten(context: Any) -> tuple[int, ...]:
    """The exchanges of this application that Spark has forgotten, at most `MOST_TOLD`."""
    application = context.applicationId
    with _lock:
        known, seen = _shuffles.get(application, {}), _seen.setdefault(application, set())
        over = _over.setdefault(application, [])
        if known:
            there = _shuffles_of_spark(context, set(known.values()))
            gone = [each for each, shuffle in known.items() if shuffle in seen and shuffle not in there]
            seen.intersection_update(known.values())
            seen.update(there)
            over += gone
            del over[:-MOST_TOLD]
            for exchange in gone:
                del known[exchange]
        return tuple(over)


def _shuffles_of_spark(context: Any, shuffles: Iterable[int]) -> set[int]:
    """Those of these that Spark's driver has."""
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
