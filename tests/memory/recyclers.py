"""What the tests of this package take memory from."""

from __future__ import annotations

from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.segment import MemorySegment

OPTION = "spark.sortshuffle.test.memory"


class Collecting:
    """A recycler that remembers what it got, in order."""

    def __init__(self) -> None:
        self.segments: list[MemorySegment] = []

    def recycle(self, segment: MemorySegment) -> None:
        self.segments.append(segment)


def new_buffer(content: bytes, recycler: Collecting | None = None) -> Buffer:
    """A buffer with this content."""
    segment = MemorySegment(len(content))
    segment.view[:] = content
    return Buffer(segment, recycler or Collecting())
