"""`SegmentBatch`: the segments of one scheduled run, used as one piece of memory, from the front.

Used by `BatchReader` and its `Sweep`. They reserve places in the batch; each reader gets slices of the
segments that its place covers.
"""

from __future__ import annotations

from collections.abc import Sequence

from sortshuffle.memory.buffer import Buffer, Recycler
from sortshuffle.memory.segment import MemorySegment


class SegmentBatch:
    """Holds one reference to each segment until `release`; slices hold their own.

    ``end``: bytes in all. ``used``: bytes that are reserved; the sweep moves it.
    """

    def __init__(self, segments: Sequence[MemorySegment], recycler: Recycler) -> None:
        self.buffers = [Buffer(segment, recycler) for segment in segments]
        self.segment_bytes = segments[0].size
        self.end = self.segment_bytes * len(segments)
        self.used = 0

    def views(self, start: int, size: int) -> list[memoryview]:
        """The memory of these bytes, to be filled."""
        return [self.buffers[n].segment.view[a:b] for n, a, b in self._parts(start, size)]

    def slices(self, start: int, size: int) -> list[Buffer]:
        """The same as buffers, one per segment. The caller recycles them."""
        return [self.buffers[n].slice(a, b) for n, a, b in self._parts(start, size)]

    def place_for(self, size: int) -> int:
        """Where the next ``size`` bytes begin: behind the last ones, or in a new segment if they would cover
        more segments than their size needs."""
        within = self.used % self.segment_bytes
        needed = -(-size // self.segment_bytes) * self.segment_bytes
        return self.used if within + size <= needed else self.used - within + self.segment_bytes

    def release(self) -> None:
        """Give up the batch's own references: segments without slices go back to the pool."""
        for buffer in self.buffers:
            buffer.recycle()

    def _parts(self, start: int, size: int) -> list[tuple[int, int, int]]:
        parts = []
        stop = start + size
        while start < stop:
            number, within = divmod(start, self.segment_bytes)
            length = min(self.segment_bytes - within, stop - start)
            parts.append((number, within, within + length))
            start += length
        return parts
