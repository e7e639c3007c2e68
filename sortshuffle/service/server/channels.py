"""`Channels`: all channels of one connection, and whose turn it is. No input or output, and no locks.

    request --> opening --(its view is there)--> in the queue for turns <--> without credit --> over
                                                                      credit <-- parked <--(too long)

**Turns.** Channels with something to send stand in a queue, each once. A turn takes them one after the
other, `TURN_BYTES` at most from each, until it has that much in all; who has more goes to the tail. So the
many channels of a connection share it evenly.

Rules
* Nothing is read for a channel without credit. One that stays without is parked after `Limits.stall`
  seconds, so that it keeps no file open. When its consumer goes on, so does the channel, at the byte where it
  stopped.
* A view is opened, and a loss told of, in the background (`Debts.add_errand`). The channel may be over before
  that is done.
* A channel that is over gives back its view; one that is still being opened, when it comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sortshuffle.errors import DataLossError, ProtocolError
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.debts import Debts
from sortshuffle.service.server.errands import OpenView, TellLoss
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.server_channel import ChannelState, ServerChannel, View
from sortshuffle.service.wire.protocol import PartitionRequest

# What a channel may send before others have their turn, and what one call sends. Four segments: a call then
# costs little beside copying its bytes, and 256 channels have each had a turn within 0.2 s at 1.5 GB/s
TURN_BYTES = 1 << 20


class Channels:
    """``due``: those that stand in the queue for turns, the next one first."""

    def __init__(self, debts: Debts, limits: Limits, counts: Counts, clock: Callable[[], float]) -> None:
        self.due: OrderedDict[ServerChannel, None] = OrderedDict()
        self._debts = debts
        self._limits = limits
        self._counts = counts
        self._clock = clock
        self._by_number: dict[int, ServerChannel] = {}
        self._without_credit: dict[ServerChannel, float] = {}  # since when; the longest first

    def __len__(self) -> int:
        return len(self._by_number)

    def expect_new(self, number: int) -> None:
        """Raises `ProtocolError` if a channel has that number."""
        if number in self._by_number:
            raise ProtocolError(f"channel {number:#x} cannot be opened")

    # What the client wants

    def request(self, request: PartitionRequest) -> None:
        """Begin a channel."""
        limits = self._limits
        self._counts.requests += 1
        self.expect_new(request.channel)
        # who asks and cancels in turns leaves work behind: that is bounded too
        if len(self) >= limits.channels or self._debts.errands_open >= 2 * limits.channels:
            self._debts.refuse(request.channel, f"more than {limits.channels} channels")
        elif request.credit > limits.credit:
            self._debts.refuse(request.channel, f"more than {limits.credit} credits")
        else:
            channel = self._by_number[request.channel] = ServerChannel(request)
            self._debts.add_errand(OpenView(channel))

    def add_credit(self, number: int, credit: int) -> None:
        """The consumer has room for more."""
        channel = self._by_number.get(number)
        if channel is None:
            return  # it ended while this was under way
        self._without_credit.pop(channel, None)
        channel.add_credit(credit)
        if channel.credit > self._limits.credit:
            self._forget(channel)
            self._debts.refuse(number, f"more than {self._limits.credit} credits")
        else:
            self._consider(channel)

    def cancel(self, number: int) -> None:
        """The consumer wants no more of it."""
        channel = self._by_number.get(number)
        if channel is not None:
            self._forget(channel)

    # What came of it in the background

    def opened(self, channel: ServerChannel, view: View | None) -> None:
        """The view of a channel is there, also where the channel is over: it is released then."""
        if view is not None:
            channel.opened(view)
            self.available(channel)

    def not_opened(self, channel: ServerChannel, error: BaseException) -> None:
        """Its view cannot be had."""
        if channel.state is not ChannelState.ENDED:
            self._forget(channel)
            self._debts.fail(channel.number, error)

    def available(self, channel: ServerChannel) -> None:
        """Its view may have something to send."""
        if channel.state is ChannelState.OPEN:
            self._consider(channel)

    # Turns

    def fill(self, sending: GatheredSend) -> None:
        """Add what the channels send in the next turn."""
        while self.due and sending.size < TURN_BYTES:
            self._take_from(self.due.popitem(last=False)[0], sending)

    def _take_from(self, channel: ServerChannel, sending: GatheredSend) -> None:
        if channel.state is ChannelState.PARKED:
            channel.open_again()
            self._debts.add_errand(OpenView(channel))
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
        """Give it a turn, if there is anything to give; who has no credit keeps nothing open for long."""
        if channel.is_available:
            self.due[channel] = None  # where it stands in the queue already, it stays
        elif not channel.credit:
            self._without_credit.setdefault(channel, self._clock())

    def _fail(self, channel: ServerChannel, cause: BaseException) -> None:
        """Its view failed in mid-stream. Data that were found lost are told of before the client hears it."""
        self._forget(channel)
        if isinstance(cause, DataLossError):
            self._debts.add_errand(TellLoss(channel, cause))
        else:
            self._debts.fail(channel.number, cause)

    # Memory comes back

    def park_holders(self) -> None:
        """Give back what was read for consumers of a connection that takes nothing."""
        for channel in self._by_number.values():
            if channel.holds_memory:
                channel.park()
                self._consider(channel)  # what its view would say of these bytes is not heard any more

    def park_without_credit(self, now: float) -> None:
        """Those that had none for too long."""
        while self._without_credit:
            channel, since = next(iter(self._without_credit.items()))
            if now - since <= self._limits.stall:
                return
            del self._without_credit[channel]
            channel.park()

    def end(self) -> None:
        """All of them are over."""
        for channel in list(self._by_number.values()):
            self._forget(channel)

    def _forget(self, channel: ServerChannel) -> None:
        """The channel is over."""
        channel.end()
        self.due.pop(channel, None)
        self._without_credit.pop(channel, None)
        if self._by_number.get(channel.number) is channel:
            del self._by_number[channel.number]
