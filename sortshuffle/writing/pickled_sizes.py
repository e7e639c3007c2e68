"""`PickledSizes`: estimates how many objects to hold, and to put in a chunk, from their pickled size.

Used by `RecordWriter`. It measures the chunks that were sent, and pickles one object in `PROBE_EVERY` alone.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.options import KIB, MIB

# Approximate size of a pickled chunk. From 4 to 256 KiB no size was faster than another (a million pairs for
# 64 subpartitions: 0.34 us each to write, 0.11 to read); smaller chunks compress worse, larger ones hold more
CHUNK_BYTES = 64 * KIB
MOST_OBJECTS = 4096  # in a chunk, however small they are
# Memory of objects that wait for their chunks: if it is larger, they leave the processor's caches before they
# are pickled. Pairs of an int and a short string into 64 subpartitions, us of a task's time each: 0.57 with
# 16 MiB, 0.54 with 8, 0.40 with 4, 0.38 with 2; into 1000, where chunks get small: 0.83, 0.87, 0.73, 0.82
COLLECTED_BYTES = 4 * MIB
# Heap bytes of an object for each byte of its pickle: a pair of an int and a string of ten letters takes 143
# bytes, and 18 pickled; larger objects take less
HEAP_BYTES_PER_PICKLED = 8
# One object in PROBE_EVERY is pickled alone, for 3 % of the time. If it is more than SURPRISE times as large
# as the probes before it, the chunks are closed, and all later objects are assumed to be that much larger
PROBE_EVERY = 128
SURPRISE = 4
NEWEST_SHARE = 0.5  # weight of the newest chunk, or probe, in the mean size of objects: data changes


class PickledSizes:
    """Limits on the objects in a chunk (``most_in_chunk``) and in memory (``most_held``). Both are 1 at
    first, because the size of objects is not known yet.

    ``memory``: bytes that objects may take while they wait.
    """

    __slots__ = (
        "_mean",
        "_memory",
        "_probe_mean",
        "_unprobed",
        "most_held",
        "most_in_chunk",
    )

    def __init__(self, memory: int) -> None:
        self.most_in_chunk = self.most_held = 1
        self._memory = memory
        self._unprobed = 0  # number of objects since the last probe, less than PROBE_EVERY
        self._probe_mean = 0.0  # mean bytes of an object pickled alone
        self._mean = 0.0  # mean bytes of an object in a chunk, where objects share what they have in common

    def due(self, count: int) -> range:
        """Return the positions of the objects to probe among the next ``count``."""
        first = PROBE_EVERY - 1 - self._unprobed
        self._unprobed = (self._unprobed + count) % PROBE_EVERY
        return range(first, count, PROBE_EVERY)

    def probed(self, size: int, flush: Callable[[], None]) -> None:
        """Record that an object pickled alone took ``size`` bytes. If that is surprisingly large, call
        ``flush`` to send what is held, and assume that later objects are as large."""
        usual = self._probe_mean
        if usual and size > SURPRISE * usual:
            expected = self._mean * size / usual if self._mean else float(size)  # nothing was sent yet
            flush()
            self._expect(expected)
            self._probe_mean = size
        else:
            self._probe_mean += (NEWEST_SHARE if usual else 1) * (size - usual)

    def sent(self, size: int, objects: int) -> None:
        """Record that ``objects`` objects pickled together took ``size`` bytes."""
        mean = size / objects
        self._expect(mean if not self._mean else self._mean + NEWEST_SHARE * (mean - self._mean))

    def _expect(self, mean: float) -> None:
        """Set the limits for objects of ``mean`` bytes each."""
        self._mean = mean
        self.most_in_chunk = max(1, min(MOST_OBJECTS, int(CHUNK_BYTES / mean)))
        self.most_held = max(1, int(self._memory / (HEAP_BYTES_PER_PICKLED * mean)))
