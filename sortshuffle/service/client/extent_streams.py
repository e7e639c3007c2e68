"""`ExtentStream`: extents of one subpartition, or of one region, received from a shuffle service.

    WholeStream   each extent in one buffer; the reader has charged them all, so all are requested at once
    PartStream    as much as the reader waits for, and some data ahead of it

Used by `RemoteReader` in the consumer's thread and `Receiver` in the link's; `ClientChannel` has the locking.

A part stream limits what the service may send, in bytes:

    credit + data held ahead  <=  what the reader still waits for + one segment + loans (`FloatingCredits`)

Data that the reader waits for are received straight into the reader's memory. Data ahead lie in separate
pieces, and are copied when the reader wants them. A stream without a loan still makes progress: while its
reader waits it holds nothing ahead, so there is always room for a segment.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from sortshuffle.errors import ProtocolError
from sortshuffle.service.client.client_channel import ClientChannel, RequestSubject
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.wire.protocol import MapOutputAddress, PartitionRequest
from sortshuffle.storage.files.extents import Extent, aligned_memory
from sortshuffle.storage.files.ranges import RegionRange, SubpartitionRange

# Credits that a channel has at a time. Its memory is bounded otherwise; but a service refuses absurd sums
MOST_CREDIT = 1024


class ExtentStream(ClientChannel):
    """Extents, received in their order. ``extents``: at least one, in the order of the file, all of one
    subpartition or all of one region, with none between them left out. ``subpartitions``: given if a single
    extent stands for those of several. ``received``: bytes of the extents that have arrived."""

    def __init__(
        self,
        asked: RequestSubject,
        output: MapOutputAddress,
        extents: Sequence[Extent],
        start: int = 0,
        subpartitions: SubpartitionRange | None = None,
    ) -> None:
        super().__init__(asked)
        self._output = output
        self._extents = tuple(extents)
        first, last = self._extents[0], self._extents[-1]
        self._subpartitions = subpartitions or SubpartitionRange(first.subpartition, last.subpartition)
        self._starts = list(accumulate((extent.bytes for extent in extents), initial=0))
        self.received = start

    @property
    def total(self) -> int:
        """Bytes of all extents."""
        return self._starts[-1]

    @property
    def is_complete(self) -> bool:
        return self.received == self.total

    @abstractmethod
    def _room(self) -> int:
        """Return the credits that there is room for, beside those already announced."""

    def _request(self, number: int) -> bytes | None:
        credit = self._room()
        if credit < 1:
            return None
        self.credit = credit
        first, last = self._extents[0], self._extents[-1]
        return PartitionRequest(
            number,
            credit,
            self._output,
            self._subpartitions,
            RegionRange(first.region, last.region - first.region + 1),
            skip=self.received,
        ).pack()

    def _place(self, size: int) -> list[memoryview]:
        extent = bisect_right(self._starts, self.received) - 1
        # extents of one region are contiguous in the file, and may share a frame
        is_of_region = self._extents[0].region == self._extents[-1].region
        last = len(self._extents) if is_of_region else min(extent + 1, len(self._extents))
        if self.received + size > self._starts[last]:
            raise ProtocolError(
                f"{size} bytes at position {self.received}, which go beyond the end of an extent:"
                f" {self.total} bytes are expected in all"
            )
        return self._views(extent, size)

    @abstractmethod
    def _views(self, extent: int, size: int) -> list[memoryview]:
        """Return memory for the next ``size`` bytes, which begin in the extent with this number."""

    def _check_end(self) -> None:
        if not self.is_complete:
            raise ProtocolError(
                f"the stream ended after {self.received} bytes, where {self.total} are expected"
            )

    def _credits_left(self) -> int:
        """Return the most credits that the missing bytes can cost: one more for the end of each extent."""
        left = self.total - self.received
        extents = len(self._starts) - bisect_right(self._starts, self.received)
        return -(-left // self.segment_bytes) + extents


class WholeStream(ExtentStream):
    """Receives whole extents, with credit for all of them at once."""

    def __init__(
        self,
        asked: RequestSubject,
        output: MapOutputAddress,
        extents: Sequence[Extent],
        subpartitions: SubpartitionRange | None = None,
    ) -> None:
        super().__init__(asked, output, extents, subpartitions=subpartitions)
        self._filling: dict[int, tuple[pa.Buffer, memoryview]] = {}
        self._complete = 0  # number of complete extents, including those taken
        self._whole: dict[int, pa.Buffer] = {}
        self._taken = 0

    @property
    def next(self) -> Extent | None:
        """The extent that `take` returns next."""
        return self._extents[self._taken] if self._taken < len(self._extents) else None

    @property
    def has_next(self) -> bool:
        """Whether all of the next extent has arrived."""
        return self._taken in self._whole

    def take(self) -> pa.Buffer:
        """Return the next extent, which must have arrived; it then belongs to the caller."""
        memory = self._whole.pop(self._taken)
        self._taken += 1
        return memory

    def credit_due(self) -> int:
        if self.credit * self.segment_bytes >= self.total - self.received or 2 * self.credit > MOST_CREDIT:
            return 0
        due = self._room()
        self.credit += due
        return due

    def _room(self) -> int:
        return min(self._credits_left(), MOST_CREDIT) - self.credit

    def _views(self, extent: int, size: int) -> list[memoryview]:
        views = []
        position, end = self.received, self.received + size
        while position < end:
            if extent not in self._filling:
                self._filling[extent] = aligned_memory(self._extents[extent].bytes)
            start, stop = self._starts[extent], min(end, self._starts[extent + 1])
            views.append(self._filling[extent][1][position - start : stop - start])
            position = stop
            extent += 1
        return views

    def _filled(self, count: int) -> bool:
        self.received += count
        before = self._complete
        while self._complete < len(self._extents) and self._starts[self._complete + 1] <= self.received:
            self._whole[self._complete] = self._filling.pop(self._complete)[0]
            self._complete += 1
        if self._complete > before:
            self.changed.notify_all()
        return self._complete > before


@dataclass(slots=True)
class _ExtentPiece:
    """Bytes of the stream from ``start`` on, in memory. ``held``: bytes that the memory takes."""

    start: int
    view: memoryview
    held: int

    @property
    def end(self) -> int:
        return self.start + len(self.view)


class PartStream(ExtentStream):
    """Receives what its reader waits for, and some data ahead. ``start``: bytes of the extents to skip.
    ``on_lent``: called under no lock when the stream was lent something, with the number of bytes."""

    def __init__(
        self,
        asked: RequestSubject,
        output: MapOutputAddress,
        extents: Sequence[Extent],
        floating: FloatingCredits,
        on_lent: Callable[[PartStream, int], None],
        start: int = 0,
    ) -> None:
        super().__init__(asked, output, extents, start)
        self._floating = floating
        self._on_lent = on_lent
        self._borrowed = 0
        self._borrows = False
        self._placed = start  # position up to which memory has been given out
        self._pieces: deque[_ExtentPiece] = deque()
        self._ahead = 0  # bytes of memory that the pieces take
        self._wanted: _ExtentPiece | None = None
        self._last: _ExtentPiece | None = None

    @property
    def position(self) -> int:
        """Position in the stream of the earliest byte that can still be wanted."""
        if self._last is not None:
            return self._last.start
        return self._pieces[0].start if self._pieces else self._placed

    def start_of(self, extent: Extent) -> int:
        """Return the position in the stream where an extent begins."""
        return self._starts[self._extents.index(extent)]

    def can_give(self, extent: Extent, position: int) -> bool:
        """Return whether this position of an extent can still be wanted."""
        return extent in self._extents and self.start_of(extent) + position >= self.position

    # Called for the consumer, part by part

    def want(self, start: int, view: memoryview) -> None:
        """Fill the view with the bytes from ``start`` on, as they arrive. ``start``: `position` or later."""
        self._wanted = _ExtentPiece(start, view, len(view))
        if self._last is not None:
            _copy(self._last, self._wanted)
            self._last = None
        self._copy_pieces()

    @property
    def has_wanted(self) -> bool:
        """Whether everything that the consumer waits for has arrived."""
        return self._wanted is not None and self.received >= self._wanted.end

    def taken(self) -> None:
        """Record that the consumer has what it waited for. The stream keeps that part until `forget_up_to`,
        because the end of the part may be wanted again."""
        self._last, self._wanted = self._wanted, None

    def forget_up_to(self, position: int) -> None:
        """Forget the part before ``position``, which will not be wanted again."""
        if self._last is not None and self._last.start <= position:
            left = self._last.view[position - self._last.start :]
            self._last = _ExtentPiece(position, memoryview(bytes(left)), len(left)) if left else None

    def spare(self) -> int:
        """Deduct what the stream does not need now from its loan, and return the bytes to give back."""
        spare = min(self._borrowed, self._spare_bytes())
        spare -= spare % self.segment_bytes if self.segment_bytes else 0
        self._borrowed -= max(0, spare)
        return max(0, spare)

    def lent(self, size: int) -> None:
        self._on_lent(self, size)

    def add_loan(self, size: int) -> None:
        """Record that the stream was lent ``size`` bytes."""
        self._borrowed += size

    # Credit

    def credit_due(self) -> int:
        self._borrow()
        due = self._room()
        if due < 1 or (self.credit > due and self.credit * self.segment_bytes >= self._missing):
            return 0
        self.credit += due
        return due

    @property
    def _missing(self) -> int:
        """Bytes that the consumer waits for, without those that memory was given out for."""
        return 0 if self._wanted is None else max(0, self._wanted.end - self._placed)

    def _spare_bytes(self) -> int:
        room = self._missing + self.segment_bytes + self._borrowed
        return room - self._ahead - self.credit * self.segment_bytes

    def _room(self) -> int:
        most = min(self._credits_left(), MOST_CREDIT) - self.credit
        return min(self._spare_bytes() // self.segment_bytes, most)

    def _borrow(self) -> None:
        """Borrow room for what the service has ready, as far as the stream lacks it."""
        wanted = min(self.backlog, self._credits_left()) - self.credit - max(0, self._room())
        if wanted > 0 or self._borrows:
            self._borrows = wanted > 0
            self._borrowed += self._floating.borrow(self, max(0, wanted))

    # Called by the receiving thread

    def _views(self, extent: int, size: int) -> list[memoryview]:
        views = []
        start, self._placed = self.received, self.received + size
        wanted = self._wanted
        if wanted is not None and wanted.start <= start < wanted.end:
            stop = min(self._placed, wanted.end)
            views.append(wanted.view[start - wanted.start : stop - wanted.start])
            start = stop
        if start < self._placed:
            views.append(self._new_piece(start))
        return views

    def _new_piece(self, start: int) -> memoryview:
        size = self._placed - start
        view = memoryview(pa.allocate_buffer(size)).cast("B")
        self._pieces.append(_ExtentPiece(start, view, size))
        self._ahead += size
        return view

    def _filled(self, count: int) -> bool:
        before = self.received
        self.received += count
        if self.received < self._placed:  # the connection was cut: the rest is requested again
            self._placed = self.received
            while self._pieces and self._pieces[-1].end > self.received:
                self._trim_last_piece()
        self._copy_pieces()
        if self.has_wanted:
            self.changed.notify_all()
        return bisect_right(self._starts, self.received) > bisect_right(self._starts, before)

    def _trim_last_piece(self) -> None:
        piece = self._pieces[-1]
        piece.view = piece.view[: max(0, self.received - piece.start)]
        if not piece.view:
            self._ahead -= self._pieces.pop().held

    def _copy_pieces(self) -> None:
        """Copy data that arrived ahead to the memory that the consumer waits for."""
        wanted = self._wanted
        while wanted is not None and self._pieces and self._pieces[0].end <= self.received:
            piece = self._pieces[0]
            _copy(piece, wanted)
            if piece.end > wanted.end:
                return
            self._ahead -= self._pieces.popleft().held


def _copy(source: _ExtentPiece, target: _ExtentPiece) -> None:
    """Copy the bytes that both pieces stand for."""
    start, end = max(source.start, target.start), min(source.end, target.end)
    if start < end:
        target.view[start - target.start : end - target.start] = source.view[
            start - source.start : end - source.start
        ]
