"""`Buffer`: a segment in use, shared by counting references; and its life as Arrow memory.

Used by what moves bytes in fixed pieces (frames, pickled chunks, the service's protocol, scheduled reads).

    made: 1 reference --retain, slice, to_arrow--> one more --recycle--> one less --> 0: the recycler's again

Ownership: who makes a buffer holds its first reference. `retain`, `slice` and `to_arrow` add one, which
whoever gets the result must recycle (Arrow does so by itself). At the last `recycle` the segment goes home,
and must not be touched any more: another owner may be writing to it.

Rules
* Any thread may retain and recycle. Filling a segment and setting the size are for one thread, before the
  buffer is handed on. What a slice shows never changes size.
* `recycle` never blocks and may come from a finalizer, at any point of any thread, even inside a pool's
  own code. A `Recycler` must stand that (the pools do, with `HandoverLock`).
* What user code keeps must block nobody. A recycler whose segments others wait for has `loans`: once that
  many are with Arrow, `to_arrow` copies instead, into memory that is freed when Arrow is done.

Lock order: no locks here. The count is a list of tokens, whose append and pop are atomic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sortshuffle.errors import StateError, UsageError
from sortshuffle.memory import leaks
from sortshuffle.memory.segment import MemorySegment

if TYPE_CHECKING:
    import pyarrow as pa

DATA = 0  # the data type of everything that is not an event


class Recycler(Protocol):
    """Where a segment goes when its last reference is gone."""

    def recycle(self, segment: MemorySegment) -> None:
        """Take the segment over. Must not block, nor take a lock that a finalizer could find taken by its
        own thread."""


class Loans:
    """How many buffers of one pool may be with Arrow at the same time, held for as long as user code likes.

    Counts what `Buffer.to_arrow` made, so two slices of one segment are two loans; the segments on loan are
    never more than that.
    """

    __slots__ = ("_ended", "_left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = [None] * limit
        self._ended = False

    @property
    def outstanding(self) -> int:
        """Loans that have not ended."""
        return self.limit - len(self._left)

    def begin(self) -> bool:
        """Count one more, if that is within the limit."""
        if self._ended:
            return False
        try:
            self._left.pop()
        except IndexError:
            return False
        return True

    def end(self) -> None:
        """Count one less."""
        self._left.append(None)

    def begin_no_more(self) -> int:
        """From now on `begin` refuses. Returns how many loans have not ended (one that begins in another
        thread at this moment may be missed)."""
        self._ended = True
        return self.outstanding


class _Freeing:
    """Recycles memory that belongs to no pool: it is unmapped when the last view of it is gone."""

    def recycle(self, segment: MemorySegment) -> None:
        if leaks.enabled():
            segment.fill(leaks.POISON)

    def __repr__(self) -> str:
        return "FREE"


FREE: Recycler = _Freeing()

_LAST, _MORE = True, False


class Buffer:
    """The first ``size`` bytes of a segment, with what they are: ``data_type`` (0: data, others are events;
    see `format.buffer.DataType`) and ``compressed``.

    Raises `StateError` when it is used after its last reference was recycled, or recycled once too often.
    """

    __slots__ = ("_references", "_size", "_start", "compressed", "data_type", "recycler", "segment")

    def __init__(
        self,
        segment: MemorySegment,
        recycler: Recycler,
        size: int = 0,
        data_type: int = DATA,
        compressed: bool = False,
    ) -> None:
        self.segment = segment
        self.recycler = recycler
        self.data_type = data_type
        self.compressed = compressed
        self._start = 0
        self._size = _within(size, segment.size)
        # As many tokens as references; the one at the bottom is the last to be popped, by one thread only
        self._references = [_LAST]

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = _within(size, self.segment.size)

    @property
    def is_data(self) -> bool:
        """Whether this is data and not an event."""
        return self.data_type == DATA

    @property
    def references(self) -> int:
        """How many recycles are still to come, of this buffer and all its slices."""
        return len(self._references)

    @property
    def view(self) -> memoryview:
        """The payload, read-only. Not to be used after the reference under which it was taken is recycled."""
        self._expect_alive()
        return self.segment.read_only[self._start : self._start + self._size]

    def retain(self) -> Buffer:
        """Add a reference. Only a holder of one may; the receiver of the result recycles it."""
        self._expect_alive()
        self._references.append(_MORE)
        return self

    def recycle(self) -> None:
        """Give back one reference; with the last one the segment goes to the recycler."""
        try:
            token = self._references.pop()
        except IndexError:
            raise StateError(f"{self} was recycled once too often") from None
        if token is _LAST:
            self.recycler.recycle(self.segment)

    def slice(self, start: int, stop: int) -> Buffer:
        """Bytes ``start..stop-1`` of the payload as a buffer of the same type. It holds a reference."""
        if not 0 <= start <= stop <= self._size:
            raise UsageError(f"bytes {start} to {stop} are not within {self}")
        self.retain()
        return _Slice(self, self._start + start, stop - start)

    def to_arrow(self) -> pa.Buffer:
        """The payload as Arrow memory, without a copy, holding a reference until the last of Arrow, NumPy and
        pandas lets go of it. The caller's own reference stays the caller's to recycle.

        Past the quota of the recycler's `loans`: a copy, which holds no reference.
        """
        self._expect_alive()
        loans: Loans | None = getattr(self.recycler, "loans", None)
        if loans is not None and not loans.begin():
            return _copied(self.view)
        return _lent(self.retain(), loans)

    def _expect_alive(self) -> None:
        if not self._references:
            raise StateError(f"{self} is used after its last reference was recycled")

    def __repr__(self) -> str:
        kind = "data" if self.is_data else f"type {self.data_type}"
        return f"Buffer({self._size} of {self.segment.size} bytes, {kind}, {self.references} references)"


class _Slice(Buffer):
    """Part of a buffer's payload, fixed, with the count of the whole."""

    __slots__ = ()

    def __init__(self, whole: Buffer, start: int, size: int) -> None:
        self.segment = whole.segment
        self.recycler = whole.recycler
        self.data_type = whole.data_type
        self.compressed = whole.compressed
        self._start = start
        self._size = size
        self._references = whole._references

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        raise StateError(f"a slice's size is fixed: {self}")


class _Lease:
    """The reference that Arrow owns: it lives as long as anything made of the memory."""

    __slots__ = ("_buffer", "_loans")

    def __init__(self, buffer: Buffer, loans: Loans | None) -> None:
        self._buffer = buffer
        self._loans = loans

    def __del__(self) -> None:
        if self._loans is not None:
            self._loans.end()
        self._buffer.recycle()


def _lent(buffer: Buffer, loans: Loans | None) -> pa.Buffer:
    import pyarrow as pa

    return pa.foreign_buffer(buffer.segment.address + buffer._start, buffer.size, _Lease(buffer, loans))


def _copied(view: memoryview) -> pa.Buffer:
    import pyarrow as pa

    copy = pa.allocate_buffer(len(view))
    memoryview(copy).cast("B")[:] = view
    return copy


def _within(size: int, most: int) -> int:
    if not 0 <= size <= most:
        raise UsageError(f"a buffer over {most} bytes cannot hold {size}")
    return size
