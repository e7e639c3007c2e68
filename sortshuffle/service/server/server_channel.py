"""`ServerChannel`: the server's side of one partition request.

    opening --(view is open)--> open --(end or error sent, cancel)--> ended
       ^                         |
       |                       (park: releases the view, remembers its position)
       |                         v
       +---(turn, with credit)-- parked

A channel holds read memory only through its view. If its consumer takes nothing for a while, the connection
parks the channel, so that others get the memory. Later a new view begins at the byte where the old one
stopped, and the consumer notices nothing.

Rules
* A data response costs its bytes in segments, rounded up, and is sent only for credit; the end is free.
* Sequence numbers count responses without gaps, over all views of the channel.

Only the loop's thread uses a channel. No I/O and no locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Protocol

from sortshuffle.service.wire.protocol import PartitionRequest, pack_buffer_header, pack_end_of_partition


class Portion(Protocol):
    """The result of one poll of a view. The poller recycles it when it is sent."""

    @property
    def runs(self) -> Iterator[list[memoryview]]:
        """The bytes, extent by extent: each run becomes one response."""

    @property
    def credits(self) -> int:
        """The cost of these bytes."""

    @property
    def backlog(self) -> int:
        """Credits needed for all bytes that follow these."""

    @property
    def end_of_partition(self) -> bool:
        """Whether nothing follows these bytes."""

    def recycle(self) -> None:
        """Give the memory back."""


class View(Protocol):
    """The source of a channel's bytes: a `SubpartitionReader` or an `IndexView`."""

    @property
    def compressed(self) -> bool:
        """Whether the file has a codec."""

    @property
    def cause(self) -> BaseException | None:
        """The error that the view failed with; None if it has not failed."""

    @property
    def is_queued(self) -> bool:
        """Whether it holds memory for bytes that were read and not polled."""

    def is_available(self, credits: int) -> bool:
        """Return whether to poll now."""

    def grant(self, credits: int) -> None:
        """Set the consumer's credits."""

    def poll(self, credits: int, most: int) -> Portion | None:
        """Return the bytes to send now, of about ``most`` bytes and at most ``credits``; None if none."""

    def release(self) -> None:
        """End the view for its consumer."""


class ChannelState(Enum):
    """The state of a `ServerChannel`."""

    OPENING = "opening"
    OPEN = "open"
    PARKED = "parked"
    ENDED = "ended"


class ServerChannel:
    """One request of one connection. ``credit``: segments that the consumer has room for now. ``sequence``:
    number of responses so far."""

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
        """The request, from the next byte to send on and with the current credit."""
        return replace(self.request, skip=self._position, credit=self.credit)

    @property
    def cause(self) -> BaseException | None:
        """The error that the view failed with; None if it has not failed."""
        return self._view.cause if self._view else None

    @property
    def is_available(self) -> bool:
        """Whether to give the channel a turn: it has something to send, or is parked and has credit."""
        if self.state is ChannelState.PARKED:
            return self.credit > 0
        return self._view is not None and self._view.is_available(self.credit)

    @property
    def holds_memory(self) -> bool:
        """Whether memory is held for bytes that were read and not taken."""
        return self._view is not None and self._view.is_queued

    def opened(self, view: View) -> None:
        """Take over the open view. If the channel has ended meanwhile, release the view at once."""
        if self.state is ChannelState.OPENING:
            self.state = ChannelState.OPEN
            self._view = view
            view.grant(self.credit)  # more may have come while it was being opened
        else:
            view.release()

    def add_credit(self, credit: int) -> None:
        """Add room for ``credit`` more segments at the consumer."""
        self.credit += credit
        if self._view is not None:
            self._view.grant(self.credit)

    def park(self) -> None:
        """Release the view, and its memory, until the consumer takes bytes again."""
        if self.state is ChannelState.OPEN:
            self.state = ChannelState.PARKED
            self._release()

    def open_again(self) -> None:
        """Note that a new view is being opened."""
        self.state = ChannelState.OPENING

    def end(self) -> None:
        """End the channel and release its view. May be called again."""
        self.state = ChannelState.ENDED
        self._release()

    def take(self, most: int) -> tuple[list[bytes | memoryview], Portion] | None:
        """Return the responses to send now, some ``most`` bytes as pieces for a gathered send, and the
        portion to recycle after sending them. None if there is nothing to send: then look at `cause`."""
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
