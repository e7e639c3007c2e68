"""`SegmentBatch`: the segments of one scheduled run, used like one piece of memory, from the front.

Used by `BatchReader` and its `Sweep`, which reserve places in the batch. Each reader gets slices of the
segments that its place covers.
"""

from __future__ import annotations

from collections.abc import Sequence

from sortshuffle.memory.buffer import Buffer, Recycler
from sortshuffle.memory.segment import MemorySegment


class SegmentBatch:
    """Holds one reference to each segment until `release`; each slice holds another reference.

    ``end``: bytes in all. ``used``: bytes reserved so far; the sweep sets it.
    """

    def __init__(self, segments: Sequence[MemorySegment], recycler: Recycler) -> None:
        self.buffers = [Buffer(segment, recycler) for segment in segments]
        self.segment_bytes = segments[0].size
        self.end = self.segment_bytes * len(segments)
        self.used = 0

    def views(self, start: int, size: int) -> list[memoryview]:
        """Return the memory of these bytes, for filling it."""
        return [self.buffers[n].segment.view[a:b] for n, a, b in self._parts(start, size)]

    def slices(self, start: int, size: int) -> list[Buffer]:
        """Return these bytes as buffers, one per segment. The caller recycles them."""
        return [self.buffers[n].slice(a, b) for n, a, b in self._parts(start, size)]

    def place_for(self, size: int) -> int:
        """Return where to place the next ``size`` bytes: after the last place, or in a new segment if they
        would otherwise cover more segments than necessary."""
        within = self.used % self.segment_bytes
        needed = -(-size // self.segment_bytes) * self.segment_bytes
        return self.used if within + size <= needed else self.used - within + self.segment_bytes

    def release(self) -> None:
        """Give up the batch's references, so that segments without slices return to the pool."""
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
