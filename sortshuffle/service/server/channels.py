"""`Channels`: all channels of one connection, and the order in which they send. No I/O and no locks.

                          waiting                       in the queue (`due`)

    request --> opening --> open  --data and credit-->  open  --turn: end sent--> over
                   ^         |    <--turn: no more now--  |
                   |       (park)                       (park)
                   |         v                            v
                   |       parked -------credit-------> parked
                   +---------------------turn: reopen-----+

**Turns.** Each channel that can send stands in a queue, once. A turn takes at most `TURN_BYTES` from
one channel after another, until it has that much in all. A channel with more to send goes to the tail of the
queue, so channels share a connection evenly.

Rules
* Nothing is read for a channel without credit. A channel without credit for `Limits.stall` seconds is parked,
  so that it keeps no file open; one that holds memory is parked when the client stalls. With credit a parked
  channel continues at the byte where it stopped.
* Views are opened and losses reported in the background (`PendingWork.add_disk_job`). A channel may be over
  before its disk job is done.
* Any failure, or a cancel, ends a channel in any state. It releases its view, or the one still being opened
  as soon as that arrives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sortshuffle.errors import DataLossError, ProtocolError
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.disk_jobs import OpenView, ReportLoss
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.pending_work import PendingWork
from sortshuffle.service.server.server_channel import ChannelState, ServerChannel, View
from sortshuffle.service.wire.protocol import PartitionRequest

# Bytes that a channel sends before the next one, and that one call sends. Two segments of the default size: a
# call then costs little beside copying its bytes, and 256 channels each get a turn within 0.2 s at 1.5 GB/s
TURN_BYTES = 1 << 20


class Channels:
    """The channels of one connection. ``due``: the queue for turns, the next channel first."""

    def __init__(
        self, pending: PendingWork, limits: Limits, counts: Counts, clock: Callable[[], float]
    ) -> None:
        self.due: OrderedDict[ServerChannel, None] = OrderedDict()
        self._pending = pending
        self._limits = limits
        self._counts = counts
        self._clock = clock
        self._by_number: dict[int, ServerChannel] = {}
        self._without_credit: dict[ServerChannel, float] = {}  # since when; the oldest first

    def __len__(self) -> int:
        return len(self._by_number)

    def expect_new(self, number: int) -> None:
        """Raise `ProtocolError` if a channel has that number."""
        if number in self._by_number:
            raise ProtocolError(f"channel {number:#x} cannot be opened")

    # Requests of the client

    def request(self, request: PartitionRequest) -> None:
        """Start a channel, or refuse it if it exceeds a limit."""
        limits = self._limits
        self._counts.requests += 1
        self.expect_new(request.channel)
        # a client that opens and cancels channels in a loop leaves disk jobs behind, so they are bounded too
        if len(self) >= limits.channels or self._pending.open_disk_jobs >= 2 * limits.channels:
            self._pending.refuse(request.channel, f"more than {limits.channels} channels")
        elif request.credit > limits.credit:
            self._pending.refuse(request.channel, f"more than {limits.credit} credits")
        else:
            channel = self._by_number[request.channel] = ServerChannel(request)
            self._pending.add_disk_job(OpenView(channel))

    def add_credit(self, number: int, credit: int) -> None:
        """Add ``credit`` segments to a channel's credit."""
        channel = self._by_number.get(number)
        if channel is None:
            return  # the channel ended while the credit was on its way
        self._without_credit.pop(channel, None)
        channel.add_credit(credit)
        if channel.credit > self._limits.credit:
            self._forget(channel)
            self._pending.refuse(number, f"more than {self._limits.credit} credits")
        else:
            self._consider(channel)

    def cancel(self, number: int) -> None:
        """End a channel at its consumer's request."""
        channel = self._by_number.get(number)
        if channel is not None:
            self._forget(channel)

    # Results from the background

    def opened(self, channel: ServerChannel, view: View | None) -> None:
        """Give a channel its view. If the channel is over, the view is released."""
        if view is not None:
            channel.opened(view)
            self.available(channel)

    def not_opened(self, channel: ServerChannel, error: BaseException) -> None:
        """End a channel whose view could not be opened, and tell the client, unless the channel is over."""
        if channel.state is not ChannelState.ENDED:
            self._forget(channel)
            self._pending.fail(channel.number, error)

    def available(self, channel: ServerChannel) -> None:
        """Queue a channel whose view may have something to send."""
        if channel.state is ChannelState.OPEN:
            self._consider(channel)

    # Turns

    def fill(self, sending: GatheredSend) -> None:
        """Add one turn of the queued channels to ``sending``."""
        while self.due and sending.size < TURN_BYTES:
            self._take_from(self.due.popitem(last=False)[0], sending)

    def _take_from(self, channel: ServerChannel, sending: GatheredSend) -> None:
        if channel.state is ChannelState.PARKED:
            channel.open_again()
            self._pending.add_disk_job(OpenView(channel))
            return
        before = channel.sequence
        taken = channel.take(TURN_BYTES)
        if taken is not None:
            sending.add(*taken)
            self._counts.buffers_sent += channel.sequence - before
        elif channel.cause is not None:
            self._fail(channel, channel.cause)
        if channel.state is ChannelState.ENDED:
            self._forget(channel)
        elif taken is not None:
            self._consider(channel)

    def _consider(self, channel: ServerChannel) -> None:
        """Queue the channel if it can send. If it lacks credit, note since when."""
        if channel.is_available:
            self.due[channel] = None  # a queued channel keeps its position
        elif not channel.credit:
            self._without_credit.setdefault(channel, self._clock())

    def _fail(self, channel: ServerChannel, cause: BaseException) -> None:
        """End a channel whose view failed in mid-stream. A loss is reported before the client
        learns of it."""
        self._forget(channel)
        if isinstance(cause, DataLossError):
            self._pending.add_disk_job(ReportLoss(channel, cause))
        else:
            self._pending.fail(channel.number, cause)

    # Giving memory and files back

    def park_holders(self) -> None:
        """Park the channels that hold read memory, because the client takes no bytes."""
        for channel in self._by_number.values():
            if channel.holds_memory:
                channel.park()
                self._consider(channel)  # any later notification from its view about these bytes is ignored

    def park_without_credit(self, now: float) -> None:
        """Park the channels that have been without credit for too long."""
        while self._without_credit:
            channel, since = next(iter(self._without_credit.items()))
            if now - since <= self._limits.stall:
                return
            del self._without_credit[channel]
            channel.park()

    def end(self) -> None:
        """End all channels."""
        for channel in list(self._by_number.values()):
            self._forget(channel)

    def _forget(self, channel: ServerChannel) -> None:
        channel.end()
        self.due.pop(channel, None)
        self._without_credit.pop(channel, None)
        if self._by_number.get(channel.number) is channel:
            del self._by_number[channel.number]
