"""`ControlShuffle`: a shuffle of Spark's that moves control rows, which Spark removes once nothing reads it.

Map outputs live as long as the shuffle of their control rows (`homes.lifetime`). By itself Spark removes a
shuffle after the JVM has collected the objects that refer to it, which may be half an hour later. Meanwhile
disks fill, and new files take new memory for the page cache. On a virtual machine that costs several times as
much as memory that was a deleted file's.

    ControlRows -> ControlShuffle    held by each exchange whose control rows go through the shuffle
    no exchange holds it any longer  its number is put on the list of its SparkContext
    `remove_unused`                  asks Spark's `ContextCleaner` to remove what is on the list; called when
                                     a map stage is planned

Rules
* Every reader is an object in Python, unless Spark keeps a plan that it may read later: a DataFrame for the
  user, a cache, an iterator. Such a shuffle must be left to Spark: `ControlShuffle.leave_to_spark`. Code that
  runs an action holds the action's frame until the end. `ShuffleRDD`s, and frames of Spark Connect, have no
  `ControlShuffle`.
* A shuffle is removed only if it has been unused for `UNUSED_FOR`, no job reads it at that moment, and the
  janitors have had time to start (`JANITORS_START`). An interrupted action leaves its job behind for a
  moment. A janitor that has never seen Spark's file of an attempt takes the attempt for a new one, and keeps
  its map outputs for the grace time.
* If a shuffle is removed while Spark reads it, Spark runs its map stage again, or the job fails. No row is
  lost or wrong.
* A finalizer only appends to a deque, because it may run at any moment in any thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary, finalize

from py4j.protocol import Py4JError

UNUSED_FOR = 1.0  # seconds: four looks of the janitor
# seconds from an application's first shuffle until one is removed, because the first map tasks start the
# janitors. On a busy machine one took more than a second: files of eight small jobs waited for the grace time
JANITORS_START = 5.0

_log = logging.getLogger(__name__)

# Shuffles that no exchange holds, by SparkContext: the number of each, and since when, the longest first
_unused: WeakKeyDictionary[Any, deque[tuple[int, float]]] = WeakKeyDictionary()
_first: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # when each SparkContext had its first shuffle


class ControlShuffle:
    """A shuffle of control rows. ``number``: Spark's, in the SparkContext ``context``."""

    __slots__ = ("__weakref__", "_finalizer", "number")

    def __init__(self, context: Any, number: int) -> None:
        self.number = number
        _first.setdefault(context, time.monotonic())
        self._finalizer = finalize(self, _add, _unused.setdefault(context, deque()), number)
        self._finalizer.atexit = False  # the application ends, and Spark removes everything

    def leave_to_spark(self) -> None:
        """Let Spark find out when the shuffle is unused: it has a plan that reads it."""
        self._finalizer.detach()


def _add(unused: deque[tuple[int, float]], number: int) -> None:
    unused.append((number, time.monotonic()))


def control_shuffle(context: Any, rdd: Any) -> ControlShuffle | None:
    """Return the last shuffle before ``rdd``, an RDD of the JVM; None if there is none."""
    number = shuffle_before(rdd)
    return None if number is None else ControlShuffle(context, number)


def shuffle_before(rdd: Any) -> int | None:
    """Return the number of the last shuffle before ``rdd``, an RDD of the JVM."""
    while True:
        dependencies = rdd.dependencies()
        if dependencies.isEmpty():
            return None
        dependency = dependencies.head()
        if str(dependency.getClass().getSimpleName()) == "ShuffleDependency":
            return int(dependency.shuffleId())
        rdd = dependency.rdd()


def shuffles_of_spark(context: Any) -> set[int]:
    """Return the numbers of the shuffles that Spark's driver has."""
    # not through SparkEnv: Py4J would load all classes that it mentions, and Spark lacks one of them
    tracker = context._jsc.sc().taskScheduler().mapOutputTracker()
    there = str(tracker.shuffleStatuses().keySet().mkString(","))  # one call for all of them
    return set(map(int, filter(None, there.split(","))))


def remove_unused(context: Any) -> None:
    """Ask Spark to remove the shuffles that have been unused for a while. Spark deletes their files in the
    background. If it cannot be asked, it finds them itself, at the JVM's next garbage collection."""
    unused, now = _unused.get(context), time.monotonic()
    if now < _first.get(context, now) + JANITORS_START:
        return
    latest = now - UNUSED_FOR
    try:
        while unused:
            number, since = unused.popleft()  # before it is looked at: another thread may do the same
            if since > latest:
                unused.appendleft((number, since))
                return
            if not _remove(context._jsc.sc(), number):
                _add(unused, number)
    except IndexError:
        return  # another thread has taken the last one
    except Py4JError as error:
        _log.warning("unused shuffles are left to Spark: %s", error)


def _remove(spark: Any, number: int) -> bool:
    """Ask Spark, the JVM's SparkContext, to remove a shuffle. Returns False if a running job reads it. The
    scheduler's map is read outside of its thread, so this is not certain."""
    scheduler, cleaner = spark.dagScheduler(), spark.cleaner()
    if scheduler is None or cleaner.isEmpty():
        return True  # the JVM's context was stopped, or removes nothing (``spark.cleaner.referenceTracking``)
    if scheduler.shuffleIdToMapStage().contains(number):
        return False
    cleaner.get().doCleanupShuffle(number, False)
    return True
