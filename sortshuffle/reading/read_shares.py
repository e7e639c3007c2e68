"""`ReadShares`: limits how much of a pool the readers of one partition may hold, and counts what they hold.

When a run ends, the segments of its batch that readers still hold are *out*, until they are recycled.

Rules
* The partition's allowance is `BATCHES_AHEAD` batches, or its fair share of the pool if that is less. A
  reader may hold half of what is left of the allowance. So while consumers keep up, a reader gets whole
  extents and a read fills a whole batch. Consumers that do not recycle get less and less, and never use up
  the allowance. (The dynamic thresholds of Choudhury and Hahne, 1998, for queues that share a switch's
  memory.)
* When one more batch would exceed the allowance, only readers that hold nothing get data. So slow consumers,
  however many, stall no other consumer as long as the pool has a batch. At most 4 batches, the batch of the
  run, and one segment per reader are out; more only while the pool has plenty.

This module only counts and computes: it has no files, threads or locks. Any thread may recycle segments.
"""

from __future__ import annotations

from collections.abc import Iterable

from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.reading.sweep import ReadLimits

# Batches that the readers of a partition may hold together: 16 MiB, as in Flink. In tools/bench readers, with
# 64 readers of extents of 1 MiB, a call then reads 3.7 MB; with equal shares it read 0.5 MB
BATCHES_AHEAD = 4
LEAST_SHARE = 1  # segments that each reader may always hold
# If the pool has more for all readers, each may hold this part of the rest, up to half a batch: then many
# readers of large extents are served in large pieces, too. 64 consumers of one map output were read with 0.46
# MB a call without this, 0.95 MB with a sixteenth, 1.1 to 2 MB with an eighth and tails
POOL_SHARES = 8
TAIL_SEGMENTS = 2  # a reader may get so much more to complete an extent, so that no small read is left


class ReadShares:
    """The shares of one partition's readers in ``pool``. The `Recycler` of the partition's batches."""

    def __init__(self, pool: ReadBufferPool) -> None:
        self._pool = pool
        # Identities of the segments of earlier runs that are not back in the pool. A dictionary, because any
        # thread may recycle a segment, and a dictionary's single operations are atomic
        self._out: dict[int, None] = {}

    @property
    def out(self) -> int:
        """Number of segments of earlier runs that readers hold."""
        return len(self._out)

    def limits(self, readers: int) -> ReadLimits:
        """Return what each reader may hold now, if there are ``readers`` of them."""
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
        """Count the segments of a run that ends as out, until each is recycled. Must be called before the
        batch releases them: a segment recycled earlier would be counted for ever."""
        self._out.update(dict.fromkeys(map(id, segments)))

    def recycle(self, segment: MemorySegment) -> None:
        """Return a segment to the pool. Never blocks."""
        self._out.pop(id(segment), None)
        self._pool.recycle(segment)
