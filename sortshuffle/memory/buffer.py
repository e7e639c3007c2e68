"""`Buffer`: a segment in use, shared by counting references.

Used by what moves bytes in fixed pieces (frames, the service's protocol, scheduled reads).

    made: 1 reference --slice--> one more --recycle--> one less --> 0: the recycler's again

Ownership: the maker of a buffer holds its first reference. `slice` adds one, which the holder of the slice
must recycle. At the last `recycle` the segment goes back to its recycler. Nobody may touch it then: another
owner may be writing to it.

Rules
* Any thread may slice and recycle. Filling a segment is for one thread, before the buffer is handed on.
* `recycle` never blocks and may come from a finalizer (of a generator that writes), at any point of any
  thread, even inside a pool's own code. A `Recycler` must stand that (the pools do, with `HandoverLock`).

Lock order: no locks here. The count is a list of tokens, whose append and pop are atomic.
"""

from __future__ import annotations

from typing import Protocol

from sortshuffle.errors import StateError, UsageError
from sortshuffle.memory.segment import MemorySegment


class Recycler(Protocol):
    """Where a segment goes when its last reference is gone."""

    def recycle(self, segment: MemorySegment) -> None:
        """Take the segment over. Must not block, nor take a lock that a finalizer could find taken by its
        own thread."""


_LAST, _MORE = True, False


class Buffer:
    """A whole segment, or ``size`` bytes of it (`slice`).

    Raises `StateError` when it is used after its last reference was recycled, or recycled once too often.
    """

    __slots__ = ("_references", "_start", "recycler", "segment", "size")

    def __init__(self, segment: MemorySegment, recycler: Recycler) -> None:
        self.segment = segment
        self.recycler = recycler
        self.size = segment.size
        self._start = 0
        # One token for each reference. One thread alone pops the lowest, which is the last
        self._references = [_LAST]

    @property
    def references(self) -> int:
        """References to the segment: of this buffer and all its slices."""
        return len(self._references)

    @property
    def view(self) -> memoryview:
        """The bytes, read-only. Valid until the caller's reference is recycled."""
        self._expect_alive()
        return self.segment.read_only[self._start : self._start + self.size]

    def recycle(self) -> None:
        """Give one reference up. With the last one the segment goes to the recycler."""
        try:
            token = self._references.pop()
        except IndexError:
            raise StateError(f"{self} was recycled once too often") from None
        if token is _LAST:
            self.recycler.recycle(self.segment)

    def slice(self, start: int, stop: int) -> Buffer:
        """Bytes ``start..stop-1``, with a reference of its own."""
        if not 0 <= start <= stop <= self.size:
            raise UsageError(f"bytes {start} to {stop} are not within {self}")
        self._expect_alive()
        self._references.append(_MORE)
        part = Buffer(self.segment, self.recycler)
        part.size = stop - start
        part._start = self._start + start
        part._references = self._references
        return part

    def _expect_alive(self) -> None:
        if not self._references:
            raise StateError(f"{self} is used after its last reference was recycled")

    def __repr__(self) -> str:
        return f"Buffer({self.size} of {self.segment.size} bytes, {self.references} references)"
