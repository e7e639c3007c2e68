"""What the tests of this package take memory from."""

from __future__ import annotations

from sortshuffle.memory.buffer import Buffer, Loans
from sortshuffle.memory.segment import MemorySegment

OPTION = "spark.sortshuffle.test.memory"


class Collecting:
    """A recycler that remembers what it got, in order."""

    def __init__(self) -> None:
        self.segments: list[MemorySegment] = []

    def recycle(self, segment: MemorySegment) -> None:
        self.segments.append(segment)


class Lending(Collecting):
    """One with a quota of loans."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.loans = Loans(limit)


def new_buffer(content: bytes = b"", room: int = 64, recycler: Collecting | None = None) -> Buffer:
    """A data buffer with this content."""
    segment = MemorySegment(max(room, len(content)))
    segment.view[: len(content)] = content
    return Buffer(segment, recycler or Collecting(), len(content))
