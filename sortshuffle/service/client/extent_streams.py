"""`ExtentStream`: extents of one subpartition, or of one region, as they come from a shuffle service, in
memory of their reader.

    WholeStream   each extent in one piece of memory; its reader has charged them all, so all are asked for
    PartStream    as much as its reader waits for, and some ahead

Used by `RemoteReader` in the consumer's thread and by `Receiver` in the link's; see
`ClientChannel` for what is done under which lock.

A part stream's room, in bytes. What it has credit for, and what it holds ahead, together never exceed

    what its reader waits for and has not got  +  one segment  +  what it has borrowed (`FloatingCredits`)

The first is filled straight into the memory that is handed out. What comes ahead lies in pieces of its own
and is copied when it is asked for. Without a loan a stream gets on all the same: whoever waits for something
holds nothing ahead, so there is always room for a segment.
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
from sortshuffle.service.client.client_channel import Asked, ClientChannel
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.wire.protocol import MapOutputAddress, PartitionRequest
from sortshuffle.storage.files.extents import Extent, aligned_memory
from sortshuffle.storage.files.ranges import RegionRange, SubpartitionRange

# Credits that a channel has at a time. What it holds is bounded otherwise; but a service refuses absurd sums
MOST_CREDIT = 1024


class ExtentStream(ClientChannel):
    """``extents``: at least one, in the order of the file, all of one subpartition or all of one region; none
    that lies between them may be left out. ``subpartitions``: where the one extent stands for those of
    several. ``received``: bytes of them, from the first one on, that are here."""

    def __init__(
        self,
        asked: Asked,
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
        """Credits that there is room for beside those that are announced."""

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
        # those of a region lie one behind the other in the file, and may come together
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
        """Memory for the next ``size`` bytes, which begin in the extent of this number."""

    def _check_end(self) -> None:
        if not self.is_complete:
            raise ProtocolError(
                f"the end was told after {self.received} bytes, where {self.total} are expected"
            )

    def _credits_left(self) -> int:
        """Credits that all that is missing costs, if only ends of extents make small pieces."""
        left = self.total - self.received
        extents = len(self._starts) - bisect_right(self._starts, self.received)
        return -(-left // self.segment_bytes) + extents


class WholeStream(ExtentStream):
    """Credit for everything is given at once."""

    def __init__(
        self,
        asked: Asked,
        output: MapOutputAddress,
        extents: Sequence[Extent],
        subpartitions: SubpartitionRange | None = None,
    ) -> None:
        super().__init__(asked, output, extents, subpartitions=subpartitions)
        self._filling: dict[int, tuple[pa.Buffer, memoryview]] = {}
        self._complete = 0  # extents, of which the first ones may have been taken
        self._whole: dict[int, pa.Buffer] = {}
        self._taken = 0

    @property
    def next(self) -> Extent | None:
        """The extent that `take` gives next."""
        return self._extents[self._taken] if self._taken < len(self._extents) else None

    @property
    def is_next_here(self) -> bool:
        """Whether all of it has come."""
        return self._taken in self._whole

    def take(self) -> pa.Buffer:
        """The next extent, which is the caller's from now on. Only when it is here."""
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
    """Bytes of the stream from ``start`` on, in memory of their own. ``held``: what that takes."""

    start: int
    view: memoryview
    held: int

    @property
    def end(self) -> int:
        return self.start + len(self.view)


class PartStream(ExtentStream):
    """``start``: bytes of the extents that are not asked for. ``on_lent``: called when the stream has been
    lent something, under no lock, with how many bytes."""

    def __init__(
        self,
        asked: Asked,
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
        self._placed = start  # up to where places have been given out
        self._pieces: deque[_ExtentPiece] = deque()
        self._ahead = 0  # bytes of memory of the pieces
        self._wanted: _ExtentPiece | None = None
        self._last: _ExtentPiece | None = None

    @property
    def position(self) -> int:
        """Where the earliest byte stands that can still be asked for."""
        if self._last is not None:
            return self._last.start
        return self._pieces[0].start if self._pieces else self._placed

    def start_of(self, extent: Extent) -> int:
        """Where it begins in the stream."""
        return self._starts[self._extents.index(extent)]

    def can_give(self, extent: Extent, position: int) -> bool:
        """Whether this position of an extent can still be asked for."""
        return extent in self._extents and self.start_of(extent) + position >= self.position

    # By the consumer, one part after the other

    def want(self, start: int, view: memoryview) -> None:
        """The consumer waits for these bytes, from `position` or behind it on."""
        self._wanted = _ExtentPiece(start, view, len(view))
        if self._last is not None:
            _copy(self._last, self._wanted)
            self._last = None
        self._settle()

    @property
    def is_wanted_here(self) -> bool:
        """Whether all that is waited for has come."""
        return self._wanted is not None and self.received >= self._wanted.end

    def taken(self) -> None:
        """The consumer has what it waited for. The stream keeps it until `forget_up_to`: the end of it may be
        asked for again."""
        self._last, self._wanted = self._wanted, None

    def forget_up_to(self, position: int) -> None:
        """What lies before that is not asked for again."""
        if self._last is not None and self._last.start <= position:
            left = self._last.view[position - self._last.start :]
            self._last = _ExtentPiece(position, memoryview(bytes(left)), len(left)) if left else None

    def spare(self) -> int:
        """Bytes of its loan that it does not need now, and gives back."""
        spare = min(self._borrowed, self._spare_bytes())
        spare -= spare % self.segment_bytes if self.segment_bytes else 0
        self._borrowed -= max(0, spare)
        return max(0, spare)

    def lent(self, size: int) -> None:
        self._on_lent(self, size)

    def add_loan(self, size: int) -> None:
        """It was lent so many bytes."""
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
        """Bytes that the consumer waits for, and that no place was given out for."""
        return 0 if self._wanted is None else max(0, self._wanted.end - self._placed)

    def _spare_bytes(self) -> int:
        room = self._missing + self.segment_bytes + self._borrowed
        return room - self._ahead - self.credit * self.segment_bytes

    def _room(self) -> int:
        most = min(self._credits_left(), MOST_CREDIT) - self.credit
        return min(self._spare_bytes() // self.segment_bytes, most)

    def _borrow(self) -> None:
        """As much as the service has ready beyond what there is room for."""
        wanted = min(self.backlog, self._credits_left()) - self.credit - max(0, self._room())
        if wanted > 0 or self._borrows:
            self._borrows = wanted > 0
            self._borrowed += self._floating.borrow(self, max(0, wanted))

    # By the receiving thread

    def _views(self, extent: int, size: int) -> list[memoryview]:
        views = []
        start, self._placed = self.received, self.received + size
        wanted = self._wanted
        if wanted is not None and wanted.start <= start < wanted.end:
            stop = min(self._placed, wanted.end)
            views.append(wanted.view[start - wanted.start : stop - wanted.start])
            start = stop
        if start < self._placed:
            views.append(self._ahead_from(start))
        return views

    def _ahead_from(self, start: int) -> memoryview:
        size = self._placed - start
        view = memoryview(pa.allocate_buffer(size)).cast("B")
        self._pieces.append(_ExtentPiece(start, view, size))
        self._ahead += size
        return view

    def _filled(self, count: int) -> bool:
        before = self.received
        self.received += count
        if self.received < self._placed:  # cut: what did not come is asked for again
            self._placed = self.received
            while self._pieces and self._pieces[-1].end > self.received:
                self._trim_last_piece()
        self._settle()
        if self.is_wanted_here:
            self.changed.notify_all()
        return bisect_right(self._starts, self.received) > bisect_right(self._starts, before)

    def _trim_last_piece(self) -> None:
        piece = self._pieces[-1]
        piece.view = piece.view[: max(0, self.received - piece.start)]
        if not piece.view:
            self._ahead -= self._pieces.pop().held

    def _settle(self) -> None:
        """Copy what has come ahead to where it is waited for."""
        wanted = self._wanted
        while wanted is not None and self._pieces and self._pieces[0].end <= self.received:
            piece = self._pieces[0]
            _copy(piece, wanted)
            if piece.end > wanted.end:
                return
            self._ahead -= self._pieces.popleft().held


def _copy(source: _ExtentPiece, target: _ExtentPiece) -> None:
    """The bytes that both stand for."""
    start, end = max(source.start, target.start), min(source.end, target.end)
    if start < end:
        target.view[start - target.start : end - target.start] = source.view[
            start - source.start : end - source.start
        ]
