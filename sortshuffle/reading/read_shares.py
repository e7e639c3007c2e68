"""`ReadShares`: how much of a pool the readers of one partition may hold, and how much of it is out.

    a batch --(a run ends)--> its segments that readers hold are out --recycle--> in the pool

Rules
* A reader may hold half of what is left of the partition's allowance: `BATCHES_AHEAD` batches, or its fair
  part of the pool if that is less. So while consumers keep up, a turn takes whole extents and a read a whole
  batch; consumers that keep what they have get less and less, and never all of it. (The dynamic thresholds of
  Choudhury and Hahne, 1998, for queues that share the memory of a switch.)
* When one batch more would go over the allowance, only readers that hold nothing are read for, whatever the
  others keep. So slow consumers, however many, stall nobody as long as the pool has a batch. At most 4
  batches, the run's own, and one segment per reader are out; more only while the pool has plenty.

Counting and arithmetic only: no files, no threads and no lock of its own. Segments may come back in any
thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.reading.sweep import ReadLimits

# Batches that the readers of a partition may hold between them: 16 MiB, as in the ancestor. In tools/bench
# readers, 64 readers with extents of 1 MiB are then read with 3.7 MB per call; equal shares gave 0.5 MB
BATCHES_AHEAD = 4
LEAST_SHARE = 1  # segments that each reader may hold whatever the others do
# And this part of what the pool has beyond that for all, up to half a batch: where memory is plenty, many
# readers of large extents are read in large pieces, too. 64 consumers of one map output were read with
# 0.46 MB a call without this, 0.95 MB with a sixteenth, 1.1 to 2 MB with an eighth and the tails
POOL_SHARES = 8
TAIL_SEGMENTS = 2  # that a reader gets then beyond its share if they end the extent: or a small read is left


class ReadShares:
    """Of one partition, in ``pool``. The `Recycler` of its batches."""

    def __init__(self, pool: ReadBufferPool) -> None:
        self._pool = pool
        # Segments of earlier runs that are not back in the pool, by identity. A dictionary, because a segment
        # may come back in any thread: its single operations cannot be interrupted
        self._out: dict[int, None] = {}

    @property
    def out(self) -> int:
        """Segments that readers hold of earlier runs."""
        return len(self._out)

    def limits(self, readers: int) -> ReadLimits:
        """What each of so many readers may hold now."""
        fair, batch = self._pool.average_per_requester, self._pool.segments_per_request
        out, allowance = self.out, min(BATCHES_AHEAD * batch, fair)
        spare = self._pool.available - LEAST_SHARE * readers
        least = max(LEAST_SHARE, min(batch // 2, spare // POOL_SHARES))
        return ReadLimits(
            share=max(least, (allowance - out) // 2),
            crowded=out + batch > allowance,
            tail=TAIL_SEGMENTS if spare >= POOL_SHARES * TAIL_SEGMENTS else 0,
        )

    def lend(self, segments: Iterable[MemorySegment]) -> None:
        """A run that had these ends: they are out until each is recycled. Called before the batch lets go of
        them: one that came back earlier would stay counted."""
        self._out.update(dict.fromkeys(map(id, segments)))

    def recycle(self, segment: MemorySegment) -> None:
        """Nobody uses the segment any more. Never blocks."""
        self._out.pop(id(segment), None)
        self._pool.recycle(segment)
