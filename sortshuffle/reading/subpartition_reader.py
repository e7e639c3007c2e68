"""`SubpartitionReader`: the queue between the sweep that reads for a consumer and the connection that sends.

Used by the shuffle service, a long-lived process with many consumers of each map output. A channel of a
connection has one reader, polls it when it has credit, sends a `Delivery` in one write, and recycles it.

**Extent bytes, not buffers.** A delivery is bytes of extents as stored, cut only where a segment of memory
ends. Flink instead walks the buffers of an extent, and delivers them one by one. That costs Python work, a
header and a number per buffer. It trusts sizes that only the consumer verifies. And a buffer that crosses the
end of a segment must be assembled or read twice. Raw bytes cost one step per extent and segment, however many
buffers there are. The consumer has the index entries anyway, verifies the checksums of whole buffers, and
finds the events between them. The drawback: events inside an extent travel with its data, and so cost credit.
The end, the only event that must not depend on credit, is not in the file: the index says what is complete.

    open --(all bytes queued)--> complete --(polled)--> ended
    open | complete --fail--> failed            any --release--> released

Rules
* Pieces come in the order of the extents, region by region. No piece crosses the end of an extent
  or of a segment.
* One credit is room for one segment's bytes at the consumer. The pieces of a delivery from one extent are a
  *run*. A run is sent as one response, and costs one credit for each segment's bytes, rounded up. The end
  costs none.
* Nothing is read without credit: slow consumers keep no memory here, and no read for them is wasted. (A
  consumer that sets no number of credits takes anything.)
* ``on_available`` is called when there is something to poll after there was nothing, and when the reader
  fails; in any thread, under no lock. It must not block. If it raises an error, this reader fails.
* The caller of `poll` recycles the delivery. `release` and `fail` recycle pieces that were not polled.
* ``held`` counts pieces that are queued or delivered and not recycled; each keeps at most one segment.

Lock order: `_lock` is a leaf; nothing is called under it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from sortshuffle.errors import StateError
from sortshuffle.memory.buffer import Buffer
from sortshuffle.storage.files.ranges import ExtentCursor, RangeExtent


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Bytes ``position..position + size - 1`` of an extent, in (part of) one segment.

    The holder of the piece owns one reference to ``buffer``.
    """

    extent: RangeExtent
    position: int
    buffer: Buffer

    @property
    def size(self) -> int:
        return self.buffer.size


class Sweeper(Protocol):
    """The `ReadScheduler` as its readers see it. Called under no lock."""

    def memory_returned(self, reader: SubpartitionReader) -> None:
        """Read for this reader if possible: its consumer has recycled memory, or has more credit."""

    def leave(self, reader: SubpartitionReader) -> None:
        """Stop reading for this reader."""


@dataclass(slots=True)
class Delivery:
    """The result of one poll. The caller of `poll` calls `recycle` when the delivery has been sent.

    ``credits``: the cost of the pieces. ``backlog``: the least credits that all bytes after them cost.
    ``end_of_partition``: whether nothing comes after them.
    """

    reader: SubpartitionReader
    pieces: tuple[ReadPiece, ...]
    credits: int
    backlog: int
    end_of_partition: bool

    @property
    def size(self) -> int:
        """Total bytes of the pieces."""
        return sum(piece.size for piece in self.pieces)

    @property
    def runs(self) -> Iterator[list[memoryview]]:
        """The bytes, extent by extent. Must not be used after `recycle`."""
        for _, run in groupby(self.pieces, _identity):
            yield [piece.buffer.view for piece in run]

    @property
    def views(self) -> list[memoryview]:
        """The bytes, for one gathered write. Must not be used after `recycle`."""
        return [piece.buffer.view for piece in self.pieces]

    def recycle(self) -> None:
        """Release the pieces' memory. May be called again, but not by two threads at once."""
        pieces, self.pieces = self.pieces, ()
        if pieces:
            self.reader.recycle(pieces)


class SubpartitionReader:
    """One consumer's view of some subpartitions of one result partition.

    ``cursor``: the sweep's position in the extents; only the sweep uses it. ``segment_bytes``: the bytes for
    one credit. ``compressed``: whether the file has a codec. ``credits``: the consumer's credits at the
    beginning; None if it takes anything. Made by `ReadScheduler.create_reader`.
    """

    def __init__(
        self,
        cursor: ExtentCursor,
        segment_bytes: int,
        sweeper: Sweeper,
        on_available: Callable[[SubpartitionReader], None],
        compressed: bool = False,
        credits: int | None = None,
    ) -> None:
        self.cursor = cursor
        self.compressed = compressed
        self._segment_bytes = segment_bytes
        self._sweeper = sweeper
        self._on_available = on_available
        self._lock = threading.Lock()
        self._credits = sys.maxsize if credits is None else credits
        self._has_credits = credits is not None
        self._left = cursor.left  # bytes not polled yet
        self._queue: deque[ReadPiece] = deque()
        self._held = 0
        self._complete = False
        self._ended = False
        self._released = False
        self._cause: BaseException | None = None

    @property
    def wanted(self) -> int:
        """Number of segments that the consumer has credit for, beyond the queued pieces."""
        return self._credits - len(self._queue)  # a piece costs one credit at most

    @property
    def held(self) -> int:
        """Number of pieces that are queued or delivered and have not been recycled."""
        return self._held

    @property
    def cause(self) -> BaseException | None:
        """The cause of the reader's failure; None if it has not failed."""
        return self._cause

    def poll(self, credits: int, most: int = sys.maxsize) -> Delivery | None:
        """Take queued pieces for at most ``credits``, and the end if it is reached. The caller recycles the
        delivery. ``most``: bytes after which no further piece is taken.

        Returns None if there is nothing to take: then check `cause`, or wait for ``on_available``.
        """
        with self._lock:
            pieces, cost = self._take(credits, most)
            ends = self._is_at_end()
            if not pieces and not ends:
                return None
            self._ended |= ends
            if self._has_credits:
                self._credits = credits - cost
            return Delivery(self, pieces, cost, self._in_credits(self._left), ends)

    def grant(self, credits: int) -> None:
        """Set the consumer's credits, so that more may be read for it."""
        with self._lock:
            if not self._has_credits:
                return
            self._credits = credits
        self._sweeper.memory_returned(self)

    def is_available(self, credits: int) -> bool:
        """Return whether to poll now: there is data and credit, or the end, or a failure or release."""
        with self._lock:
            return bool(self._queue and credits) or self._is_at_end() or self._released

    @property
    def is_queued(self) -> bool:
        """Whether data waits for credit or a poll."""
        return bool(self._queue)

    def recycle(self, pieces: Sequence[ReadPiece]) -> None:
        """Release the memory of delivered pieces."""
        with self._lock:  # before recycling: the next user of the memory must see that this reader has room
            self._held -= len(pieces)
        _recycle_all(pieces)
        self._sweeper.memory_returned(self)

    def release(self) -> None:
        """End the view for the consumer. May be called again, in any state and from any thread."""
        self._stop(None)

    # Called by the sweep

    def add(self, pieces: Sequence[ReadPiece], *, complete: bool) -> None:
        """Queue pieces, taking over their references. ``complete``: whether nothing comes after them.

        Raises `StateError` if the reader was released, after recycling the pieces.
        """
        with self._lock:
            released = self._released
            if not released:
                notify = not self._queue
                self._queue += pieces
                self._held += len(pieces)
                self._complete = complete
        if released:
            _recycle_all(pieces)
            raise StateError("the subpartition reader was released while its data was being read")
        if notify:
            self._on_available(self)

    def fail(self, cause: BaseException) -> None:
        """Release queued pieces, and notify the consumer. Does nothing after a release or failure."""
        if self._stop(cause):
            self._on_available(self)

    def _stop(self, cause: BaseException | None) -> bool:
        with self._lock:
            if self._released:
                return False
            self._released = True
            self._cause = cause
            queued, self._queue = list(self._queue), deque()
            self._held -= len(queued)
        _recycle_all(queued)
        self._sweeper.leave(self)
        return True

    def _take(self, credits: int, most: int) -> tuple[tuple[ReadPiece, ...], int]:
        """Take pieces out of the queue. Returns them and their cost."""
        taken: list[ReadPiece] = []
        size = run = cost = 0
        while self._queue and size < most:
            piece = self._queue[0]
            if not taken or taken[-1].extent is not piece.extent:
                run = 0
            more = self._in_credits(run + piece.size) - self._in_credits(run)
            if cost + more > credits:
                break
            taken.append(self._queue.popleft())
            size, run, cost = size + piece.size, run + piece.size, cost + more
        self._left -= size
        return tuple(taken), cost

    def _is_at_end(self) -> bool:
        """Return whether the end comes next and has not been polled."""
        return self._complete and not (self._queue or self._ended or self._released)

    def _in_credits(self, size: int) -> int:
        return -(-size // self._segment_bytes)


def _identity(piece: ReadPiece) -> int:
    """Return the identity of the piece's extent: each extent of a view is one object."""
    return id(piece.extent)


def _recycle_all(pieces: Sequence[ReadPiece]) -> None:
    for piece in pieces:
        piece.buffer.recycle()
