"""`ServerChannel`: what one consumer asked for on a connection, as the server sees it.

    opening --(view there)--> open --(end or error told, cancel)--> ended
                ^              |
                |            park: the view is released, its position remembered
                +--(turn)--- parked

A channel holds read memory only through its view. Where its consumer takes nothing for a while the connection
parks it, so that the memory goes to others; when it goes on, a new view begins at the byte where it stopped,
and the consumer notices nothing.

Rules
* A data response costs its bytes in segments, rounded up, and is sent only for credit; the end is free.
* Sequence numbers count responses without gaps, over all views of the channel.

Only the loop's thread touches a channel. No input or output here, and no locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Protocol

from sortshuffle.service.wire.protocol import PartitionRequest, pack_buffer_header, pack_end_of_partition


class Portion(Protocol):
    """What one poll of a view gave. Whoever polled it recycles it when it is sent."""

    @property
    def runs(self) -> Iterator[list[memoryview]]:
        """The bytes of each extent, which become one response each."""

    @property
    def credits(self) -> int:
        """What they cost."""

    @property
    def backlog(self) -> int:
        """Credits that would be needed for what is queued behind them."""

    @property
    def end_of_partition(self) -> bool:
        """Whether nothing comes behind them."""

    def recycle(self) -> None:
        """Give the memory back."""


class View(Protocol):
    """What a channel sends from: a `SubpartitionReader`, or an `IndexView`."""

    @property
    def compressed(self) -> bool:
        """Whether the file has a codec."""

    @property
    def cause(self) -> BaseException | None:
        """Why it failed, None if it did not."""

    @property
    def is_queued(self) -> bool:
        """Whether it holds memory for bytes that were read and not polled."""

    def is_available(self, credits: int) -> bool:
        """Whether a poll makes sense."""

    def grant(self, credits: int) -> None:
        """So many credits the consumer has now."""

    def poll(self, credits: int, most: int) -> Portion | None:
        """What may be sent now."""

    def release(self) -> None:
        """The consumer wants no more of it."""


class ChannelState(Enum):
    """Where a channel stands."""

    OPENING = "opening"
    OPEN = "open"
    PARKED = "parked"
    ENDED = "ended"


class ServerChannel:
    """One request of one connection. ``credit``: segments that the consumer has room for now. ``sequence``:
    responses so far."""

    __slots__ = ("_position", "_view", "credit", "request", "sequence", "state")

    def __init__(self, request: PartitionRequest) -> None:
        self.request = request
        self.credit = request.credit
        self.state = ChannelState.OPENING
        self._view: View | None = None
        self._position = request.skip
        self.sequence = 0

    @property
    def number(self) -> int:
        return self.request.channel

    @property
    def request_from_here(self) -> PartitionRequest:
        """The request for what has not been taken yet."""
        return replace(self.request, skip=self._position, credit=self.credit)

    @property
    def cause(self) -> BaseException | None:
        """Why its view failed, None if it did not."""
        return self._view.cause if self._view else None

    @property
    def is_available(self) -> bool:
        """Whether it makes sense that it gets a turn: there is something to send, or to open again."""
        if self.state is ChannelState.PARKED:
            return self.credit > 0
        return self._view is not None and self._view.is_available(self.credit)

    @property
    def holds_memory(self) -> bool:
        """Whether bytes that were read for it wait to be taken."""
        return self._view is not None and self._view.is_queued

    def opened(self, view: View) -> None:
        """The view is there; the channel releases it. Where it has ended meanwhile, at once."""
        if self.state is ChannelState.OPENING:
            self.state = ChannelState.OPEN
            self._view = view
            view.grant(self.credit)  # more may have come while it was being opened
        else:
            view.release()

    def add_credit(self, credit: int) -> None:
        """The consumer has room for so many segments more."""
        self.credit += credit
        if self._view is not None:
            self._view.grant(self.credit)

    def park(self) -> None:
        """Give the read memory back until the consumer goes on."""
        if self.state is ChannelState.OPEN:
            self.state = ChannelState.PARKED
            self._release()

    def open_again(self) -> None:
        """A new view is being made."""
        self.state = ChannelState.OPENING

    def end(self) -> None:
        """Nothing comes any more. May be called again."""
        self.state = ChannelState.ENDED
        self._release()

    def take(self, most: int) -> tuple[list[bytes | memoryview], Portion] | None:
        """The responses that may be sent now, of some ``most`` bytes, as pieces for a gathered send, and what
        to recycle behind it. None if there is nothing; then look at `cause`."""
        portion = self._view.poll(self.credit, most) if self._view else None
        if portion is None:
            return None
        pieces: list[bytes | memoryview] = []
        for run in portion.runs:
            size = sum(map(len, run))
            pieces.append(self._header(size, portion.backlog))
            pieces += run
            self._position += size
        self.credit -= portion.credits
        if portion.end_of_partition:
            pieces.append(pack_end_of_partition(self.number, self._next()))
            self.end()
        return pieces, portion

    def _header(self, size: int, backlog: int) -> bytes:
        compressed = self._view is not None and self._view.compressed
        return pack_buffer_header(self.number, self._next(), backlog, size, compressed)

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence - 1

    def _release(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.release()
