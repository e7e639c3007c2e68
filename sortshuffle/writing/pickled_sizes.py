"""`PickledSizes`: how many objects to hold, and to put in a chunk, reckoned from how large they are pickled.

Used by `RecordWriter`. How large objects are is known of the chunks that were sent, and of one object in
`PROBE_EVERY` that is pickled alone for the purpose.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.options import KIB, MIB

# Of a pickled chunk, about. From 4 to 256 KiB none was quicker than another (a million pairs for 64
# subpartitions: 0.34 us each to write, 0.11 to read); smaller ones compress worse, larger ones hold more
CHUNK_BYTES = 64 * KIB
MOST_OBJECTS = 4096  # in a chunk, however small they are
# Of objects that wait for their chunks: more leave the processor's caches before they are pickled. Pairs of
# an int and a short string into 64 subpartitions, us of a task's time each: 0.57 with 16 MiB, 0.54 with 8,
# 0.40 with 4, 0.38 with 2; into 1000, where chunks get small: 0.83, 0.87, 0.73, 0.82
COLLECTED_BYTES = 4 * MIB
# What an object takes in the heap for each byte of its pickle: a pair of an int and a string of ten letters
# takes 143 bytes, and 18 pickled; larger ones less
HEAP_BYTES_PER_PICKLED = 8
# Of so many objects one is pickled alone, for 3 % of the time. If it is so many times as large as those
# before it, the chunks are closed, and all objects to come are taken to be
PROBE_EVERY = 128
SURPRISE = 4
NEWEST_SHARE = 0.5  # of the newest chunk, or probe, in the mean size of objects: data changes


class PickledSizes:
    """``memory``: bytes that objects may take while they wait. ``chunk_bytes``: about what a chunk should be.

    ``most_in_chunk``, ``most_held``: objects; one at first, because their size is not known yet.
    """

    __slots__ = (
        "_chunk_bytes",
        "_mean",
        "_memory",
        "_probed",
        "_unprobed",
        "most_held",
        "most_in_chunk",
    )

    def __init__(self, memory: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.most_in_chunk = self.most_held = 1
        self._memory = memory
        self._chunk_bytes = chunk_bytes
        self._unprobed = 0  # objects since the last probe, less than PROBE_EVERY
        self._probed = 0.0  # bytes that an object is pickled to alone
        self._mean = 0.0  # and with others, which shares what they have in common

    def due(self, count: int) -> range:
        """Which of the next ``count`` objects are to be probed."""
        first = PROBE_EVERY - 1 - self._unprobed
        self._unprobed = (self._unprobed + count) % PROBE_EVERY
        return range(first, count, PROBE_EVERY)

    def probed(self, size: int, flush: Callable[[], None]) -> None:
        """An object was pickled alone, to so many bytes. If that is a surprise, ``flush`` is called for what
        is held, and all objects to come are taken to be as large."""
        usual = self._probed
        if usual and size > SURPRISE * usual:
            expected = self._mean * size / usual
            flush()
            self._expect(expected)
            self._probed = size
        else:
            self._probed += (NEWEST_SHARE if usual else 1) * (size - usual)

    def sent(self, size: int, objects: int) -> None:
        """So many objects were pickled together, to so many bytes."""
        mean = size / objects
        self._expect(mean if not self._mean else self._mean + NEWEST_SHARE * (mean - self._mean))

    def _expect(self, mean: float) -> None:
        """Objects are pickled to so many bytes each."""
        self._mean = mean
        self.most_in_chunk = max(1, min(MOST_OBJECTS, int(self._chunk_bytes / mean)))
        self.most_held = max(1, int(self._memory / (HEAP_BYTES_PER_PICKLED * mean)))
