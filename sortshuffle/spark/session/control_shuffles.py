"""`ControlShuffle`: a shuffle of Spark's that moves control rows, which Spark removes once nothing reads it.

Map outputs live as long as the shuffle of their control rows (`homes.lifetime`). By itself Spark removes a
shuffle after the JVM has collected the objects that refer to it, which may be half an hour later. Meanwhile
disks fill, and new files take new memory for the page cache. On a virtual machine that costs several times as
much as memory that deleted files have left.

    ControlRows -> ControlShuffle    held by each exchange whose control rows go through the shuffle
    no exchange holds it any longer  its number is put on the list of its SparkContext
    `remove_unused`                  asks Spark's `ContextCleaner` to remove what is on the list; called when
                                     the next map stage is planned

Rules
* Python knows all readers, except where Spark keeps a plan after the call: a DataFrame for the user, a cache,
  an iterator. Such a shuffle must be left to Spark: `ControlShuffle.leave_to_spark`.
* A shuffle that a running job reads is not removed: an interrupted action may leave its job behind for a
  moment.
* If a shuffle is removed too early, Spark runs its map stage again. Nothing is lost or wrong.
* A finalizer only appends to a deque, because it may run at any moment in any thread.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary, finalize

from py4j.protocol import Py4JError

_log = logging.getLogger(__name__)

# Numbers of shuffles that no exchange holds, by SparkContext
_unused: WeakKeyDictionary[Any, deque[int]] = WeakKeyDictionary()


class ControlShuffle:
    """A shuffle of control rows. ``number``: Spark's number of it, in the SparkContext ``context``."""

    __slots__ = ("__weakref__", "_finalizer")

    def __init__(self, context: Any, number: int) -> None:
        self._finalizer = finalize(self, _unused.setdefault(context, deque()).append, number)
        self._finalizer.atexit = False  # the application ends, and Spark removes everything

    def leave_to_spark(self) -> None:
        """Let Spark find out when the shuffle is unused: it has a plan that reads it."""
        self._finalizer.detach()


def control_shuffle(context: Any, rdd: Any) -> ControlShuffle | None:
    """Return the last shuffle before ``rdd``, an RDD of the JVM; None if there is none, or if the application
    wants nothing removed (``spark.cleaner.referenceTracking``)."""
    if context._jsc.sc().cleaner().isEmpty():
        return None
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


def remove_unused(context: Any) -> None:
    """Ask Spark to remove the shuffles that nothing reads. Spark does it in the background."""
    unused = _unused.get(context)
    if not unused:
        return
    spark = context._jsc.sc()
    running = spark.dagScheduler().shuffleIdToMapStage()
    for _ in range(len(unused)):
        try:
            number = unused.popleft()
        except IndexError:
            return  # another thread has come first
        if running.contains(number):
            unused.append(number)
            continue
        try:
            spark.cleaner().get().doCleanupShuffle(number, False)
        except Py4JError as error:
            # Spark will find the shuffle itself
            _log.warning("shuffle %d was not removed: %s", number, error)
