"""`Buffer`: a segment in use, shared by counting references.

Used where bytes move in pieces of fixed size (frames, the service's protocol, scheduled reads).

    Buffer(segment): 1 reference     slice(): 1 more     recycle(): 1 less; at 0 the recycler gets the segment

Ownership: the maker of a buffer holds its first reference. `slice` adds a reference, which the holder of the
slice must recycle. The last `recycle` returns the segment to its recycler. After that no former holder may
touch the segment: its next owner may be writing to it.

Rules
* Any thread may slice and recycle. Only one thread fills a segment, before it hands the buffer on.
* `recycle` never blocks. A finalizer (of a generator that writes) may call it, at any point of any thread,
  even inside a pool's own code. A `Recycler` must allow for that (the pools do, with `HandoverLock`).

Lock order: no locks here. The count is a list of tokens, whose append and pop are atomic.
"""

from __future__ import annotations

from typing import Protocol

from sortshuffle.errors import StateError, UsageError
from sortshuffle.memory.segment import MemorySegment


class Recycler(Protocol):
    """Receives a segment when its last reference is gone."""

    def recycle(self, segment: MemorySegment) -> None:
        """Take the segment over. Must not block, nor take a lock that a finalizer's own thread may hold."""


_LAST, _MORE = True, False


class Buffer:
    """A whole segment, or ``size`` bytes of it (`slice`).

    Raises `StateError` if it is used after its last reference was recycled, or recycled once too often.
    """

    __slots__ = ("_references", "_start", "recycler", "segment", "size")

    def __init__(self, segment: MemorySegment, recycler: Recycler) -> None:
        self.segment = segment
        self.recycler = recycler
        self.size = segment.size
        self._start = 0
        # One token for each reference. `_LAST` is at the bottom, so only one thread pops it
        self._references = [_LAST]

    @property
    def references(self) -> int:
        """Number of references to the segment, counting this buffer and all its slices."""
        return len(self._references)

    @property
    def view(self) -> memoryview:
        """The bytes of the buffer, read-only. Valid until the caller's reference is recycled."""
        self._expect_alive()
        return self.segment.read_only[self._start : self._start + self.size]

    def recycle(self) -> None:
        """Give up one reference. The last one returns the segment to the recycler."""
        try:
            token = self._references.pop()
        except IndexError:
            raise StateError(f"{self} was recycled once too often") from None
        if token is _LAST:
            self.recycler.recycle(self.segment)

    def slice(self, start: int, stop: int) -> Buffer:
        """Return a buffer of the bytes ``start..stop-1``, which holds another reference to the segment."""
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
