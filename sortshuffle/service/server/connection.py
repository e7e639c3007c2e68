"""`Connection`: one client of the shuffle service: its greeting, its frames, its channels and their turns.

    greeting --(both know the secret)--> open --(Close, a fault, silence, the peer is gone)--> closed

**Turns.** Channels with something to send stand in a queue, each once. A turn takes them one after the
other, `TURN_BYTES` at most from each, until it has that much in all, and sends it with one call; who has more
goes to the tail. So the many channels of a connection share it evenly, and connections share the loop: each
gets one turn per round. A turn that the system does not take whole is finished before the next one.

**Slow and silent consumers delay nobody.** Nothing is read for a channel without credit. What was read is
given back when the connection takes no bytes for `Limits.stall` seconds: its views are parked, and what the
system did not take of the last turn is copied; where too much is kept like that, the connection ends, and the
client asks again for what it has not got. A channel without credit is parked after that time as well, so
that it keeps no file open. When the consumer goes on, so does the channel, at the byte where it stopped.

Rules
* Whatever a peer sends costs at most its own connection. Faults of the peer are counted and logged in a line.
* Answers (errors, verdicts, found outputs) go before data. A client that does not read them is cut off.
* What touches disks is done in the background; until its answer comes the connection may have ended.
* Closing gives everything back: what was being sent, views, and views that are still being opened, when they
  come.

Only the loop's thread touches a connection. No locks.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TypeVar

from sortshuffle.errors import (
    AuthenticationError,
    BufferTimeoutError,
    DataLossError,
    MissingDataError,
    ProtocolError,
    UsageError,
)
from sortshuffle.service.pages.status import ConnectionStatus
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.loop import EventLoop
from sortshuffle.service.server.losses import Losses
from sortshuffle.service.server.server_channel import ChannelState, ServerChannel, View
from sortshuffle.service.server.transport import Transport
from sortshuffle.service.wire.handshake import ServerGreeting
from sortshuffle.service.wire.protocol import (
    DamageReport,
    ErrorResponse,
    Fault,
    FrameParser,
    Header,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Stream,
    pack_damage_verdict,
    pack_find_response,
    pack_remove_response,
    unpack_find_request,
    unpack_remove_request,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

# What a channel may send before others have their turn, and what one call sends. Four segments: a call then
# costs little beside copying its bytes, and 256 channels have each had a turn within 0.2 s at 1.5 GB/s
TURN_BYTES = 1 << 20
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


Remove = Callable[[MapOutputAddress], bool]
"""Deletes the map outputs of an exchange of the engine; whether it is of the application that asks."""


@dataclass(slots=True)
class Counts:
    """What a service has done since it started. Only the loop's thread counts."""

    connections: int = 0
    refused: int = 0
    requests: int = 0
    errors: int = 0
    bytes_sent: int = 0
    buffers_sent: int = 0


@dataclass(slots=True)
class Surroundings:
    """What all connections of a server share. ``remove``: deletes a shuffle; None where no engine writes any.
    ``ready``: those that may have something to send. ``kept``: bytes that wait for silent clients."""

    loop: EventLoop
    limits: Limits
    secret: bytes | None
    segment_bytes: int
    catalog: Catalog
    losses: Losses
    remove: Remove | None = None
    clock: Callable[[], float] = time.monotonic
    counts: Counts = field(default_factory=Counts)
    ready: dict[Connection, None] = field(default_factory=dict)
    connections: dict[Connection, None] = field(default_factory=dict)
    kept: int = 0


class Connection:
    """One client at the other end of ``transport``, which the connection closes. ``peer``: for people."""

    def __init__(self, transport: Transport, peer: str, surroundings: Surroundings) -> None:
        self.peer = peer
        self._transport = transport
        self._shared = surroundings
        self._limits = surroundings.limits
        self._greeting: ServerGreeting | None = ServerGreeting(
            surroundings.secret, surroundings.segment_bytes
        )
        self._frames = FrameParser()
        self._channels: dict[int, ServerChannel] = {}
        self._due: OrderedDict[ServerChannel, None] = OrderedDict()  # the queue for turns
        self._without_credit: dict[ServerChannel, float] = {}  # since when; the longest first
        self._questions = 0  # of the client's that are being answered
        self._errands = 0  # that are done for it in the background
        self._answers = bytearray()
        self._sending = GatheredSend()
        self._blocked_since: float | None = None
        self._kept = 0  # bytes copied of a turn that is not taken
        self._watched = 0
        self._bytes_sent = 0
        self._began = self._last_heard = surroundings.clock()
        self._is_closed = False
        self._watch(_READ)

    @property
    def is_stranger(self) -> bool:
        """Whether it has not shown yet who it is."""
        return self._greeting is not None

    def fileno(self) -> int:
        return self._transport.fileno()

    def status(self) -> ConnectionStatus:
        """What it is doing."""
        now, since = self._shared.clock(), self._blocked_since
        return ConnectionStatus(
            peer=self.peer,
            channels=len(self._channels),
            seconds=now - self._began,
            bytes_sent=self._bytes_sent,
            backlog=self._sending.size + len(self._answers),
            stalled=0.0 if since is None else now - since,
        )

    def on_ready(self, events: int) -> None:
        """The peer has sent something, or takes something again."""
        with _Costs(self):
            if events & _READ or self._transport.needs_write:
                self._receive()
            if events & _WRITE and not self._is_closed:
                self._shared.ready[self] = None

    def turn(self) -> bool:
        """Send one turn. Whether there may be more to send at once."""
        with _Costs(self):
            self._take_turn()
            return bool(self._due or self._answers) and not self._is_blocked
        return False

    def tick(self, now: float) -> None:
        """Look at the time: give back what a silent consumer keeps, and end what has ended."""
        with _Costs(self):
            if self._greeting is not None:
                if now - self._began > self._limits.greeting:
                    raise AuthenticationError("it did not say who it is in time")
                return
            self._look_at_stall(now)
            self._look_at_credit(now)
            is_idle = not (self._channels or self._errands or self._sending.size)
            if is_idle and now - self._last_heard > self._limits.idle:
                self.close()

    def close(self) -> None:
        """End the connection and give everything back. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._shared.connections.pop(self, None)
        self._shared.ready.pop(self, None)
        self._watch(0)
        try:
            self._transport.close()
        except OSError:
            pass  # the peer's end is gone already
        for channel in list(self._channels.values()):
            self._forget(channel)
        self._sending.abandon()
        self._keep(0)

    def refuse(self, error: Exception) -> None:
        """Close it for a fault of the peer."""
        if self._is_closed:
            return
        if self._greeting is not None:
            self._shared.counts.refused += 1
        self._shared.counts.errors += 1
        _log.info("closed the connection of %s: %s", self.peer, error)
        self.close()

    # What the client sends

    def _receive(self) -> None:
        while not self._is_closed:
            data = self._transport.receive()
            if data is None:
                break
            if not data:
                self.close()
                return
            self._last_heard = self._shared.clock()
            self._hear(data)
            if not self._transport.has_pending:
                break
        self._watch_for(self._is_blocked)

    def _hear(self, data: bytes) -> None:
        if self._greeting is not None:
            self._answer(self._greeting.feed(data))
            if not self._greeting.is_done:
                return
            data, self._greeting = self._greeting.rest, None
        for header, body in self._frames.feed(data):
            self._obey(header, body)
            if self._is_closed:
                return

    def _obey(self, header: Header, body: bytes) -> None:
        match header.kind:
            case Kind.PARTITION_REQUEST:
                self._on_request(PartitionRequest.unpack(header, body))
            case Kind.ADD_CREDIT:
                self._on_credit(header)
            case Kind.CANCEL:
                self._on_cancel(header)
            case Kind.CLOSE:
                self.close()
            case Kind.FIND_REQUEST:
                self._on_find(header, unpack_find_request(body))
            case Kind.DAMAGE_REPORT:
                self._on_damage(DamageReport.unpack(header, body))
            case Kind.REMOVE_REQUEST:
                self._on_remove(header, unpack_remove_request(body))

    def _on_request(self, request: PartitionRequest) -> None:
        self._shared.counts.requests += 1
        self._expect_new(request.channel)
        # who asks and cancels in turns leaves work behind: that is bounded too
        if len(self._channels) >= self._limits.channels or self._errands >= 2 * self._limits.channels:
            self._fail(request.channel, Fault.TOO_MUCH, f"more than {self._limits.channels} channels")
        elif request.credit > self._limits.credit:
            self._fail(request.channel, Fault.TOO_MUCH, f"more than {self._limits.credit} credits")
        else:
            channel = self._channels[request.channel] = ServerChannel(request)
            self._open(channel)

    def _on_credit(self, header: Header) -> None:
        channel = self._channels.get(header.channel)
        if channel is None:
            return  # it ended while this was under way
        self._without_credit.pop(channel, None)
        channel.add_credit(header.credit)
        if channel.credit > self._limits.credit:
            self._forget(channel)
            self._fail(channel.number, Fault.TOO_MUCH, f"more than {self._limits.credit} credits")
        else:
            self._consider(channel)

    def _on_cancel(self, header: Header) -> None:
        channel = self._channels.get(header.channel)
        if channel is not None:
            self._forget(channel)

    def _on_find(self, header: Header, output: MapOutputAddress) -> None:
        self._ask(header.channel, partial(self._shared.catalog.adoptable, output), pack_find_response)

    def _on_damage(self, report: DamageReport) -> None:
        self._ask(report.channel, partial(self._shared.losses.judge, report), pack_damage_verdict)

    def _on_remove(self, header: Header, shuffle: MapOutputAddress) -> None:
        remove = self._shared.remove or (lambda _: False)
        self._ask(header.channel, partial(remove, shuffle), pack_remove_response)

    def _expect_new(self, number: int) -> None:
        if number in self._channels:
            raise ProtocolError(f"channel {number:#x} cannot be opened")

    # What is done in the background

    def _send_for(
        self,
        work: Callable[[], T],
        use: Callable[[T], None],
        fail: Callable[[BaseException], None],
        takes_long: bool = False,
    ) -> None:
        """Have ``work`` done, then use what came of it, or what it raised. What came is used also when the
        connection was closed meanwhile: a view must be released."""

        def back(done: Future[T]) -> None:
            self._errands -= 1
            with _Costs(self):
                error = done.exception()
                if error is None:
                    use(done.result())
                elif not self._is_closed:
                    fail(error)

        self._errands += 1
        self._shared.loop.in_background(work, back, takes_long)

    def _open(self, channel: ServerChannel) -> None:
        loop = self._shared.loop

        def on_available(_: object) -> None:
            loop.call_soon(partial(self._on_available, channel))

        self._send_for(
            partial(_open_view, self._shared, channel, on_available),
            partial(self._on_opened, channel),
            partial(self._on_not_opened, channel),
        )

    def _on_opened(self, channel: ServerChannel, view: View | None) -> None:
        if view is not None:
            channel.opened(view)
            self._on_available(channel)

    def _on_not_opened(self, channel: ServerChannel, error: BaseException) -> None:
        if channel.state is not ChannelState.ENDED:
            self._forget(channel)
            self._fail_with(channel.number, error)

    def _ask(self, number: int, work: Callable[[], T], pack: Callable[[int, T], bytes]) -> None:
        """Answer the client's question ``number``."""
        self._shared.counts.requests += 1
        self._expect_new(number)
        if self._questions >= self._limits.questions:
            self._fail(number, Fault.TOO_MUCH, f"more than {self._limits.questions} questions at a time")
            return
        self._questions += 1

        def use(answer: T) -> None:
            self._questions -= 1
            self._answer(pack(number, answer))

        def fail(error: BaseException) -> None:
            self._questions -= 1
            self._fail_with(number, error)

        self._send_for(work, use, fail, takes_long=True)

    # Channels

    def _on_available(self, channel: ServerChannel) -> None:
        if channel.state is ChannelState.OPEN:
            self._consider(channel)

    def _consider(self, channel: ServerChannel) -> None:
        """Give it a turn, if there is anything to give; who has no credit keeps nothing open for long."""
        if channel.is_available:
            self._due[channel] = None  # where it stands in the queue already, it stays
            self._wants_turn()
        elif not channel.credit:
            self._without_credit.setdefault(channel, self._shared.clock())

    def _forget(self, channel: ServerChannel) -> None:
        """The channel is over."""
        channel.end()
        self._due.pop(channel, None)
        self._without_credit.pop(channel, None)
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    def _fail_view(self, channel: ServerChannel, cause: BaseException) -> None:
        """Its view failed in mid-stream. Data that were found lost are told of before the client hears it."""
        self._forget(channel)

        def say_so(_: object) -> None:
            self._fail_with(channel.number, cause)

        if isinstance(cause, DataLossError):
            self._send_for(partial(self._shared.losses.tell, channel.request.output), say_so, say_so)
        else:
            say_so(None)

    # What the client is sent

    def _take_turn(self) -> None:
        if not self._sending.size:
            self._gather()
        size = self._sending.size
        sent = self._sending.send(self._transport)
        self._bytes_sent += sent
        self._shared.counts.bytes_sent += sent
        if sent == size:
            self._blocked_since = None
            self._keep(0)
        elif sent or self._blocked_since is None:
            self._blocked_since = self._shared.clock()
        self._watch_for(self._is_blocked)

    def _gather(self) -> None:
        """The next turn: answers first, then channels in the order of the queue."""
        if self._answers:
            self._sending.add([bytes(self._answers)])
            self._answers.clear()
        while self._due and self._sending.size < TURN_BYTES:
            self._take_from(self._due.popitem(last=False)[0])

    def _take_from(self, channel: ServerChannel) -> None:
        if channel.state is ChannelState.PARKED:
            channel.open_again()
            self._open(channel)
            return
        before = channel.sequence
        taken = channel.take(TURN_BYTES)
        if taken is not None:
            self._sending.add(*taken)
            self._shared.counts.buffers_sent += channel.sequence - before
        elif channel.cause is not None:
            self._fail_view(channel, channel.cause)
        if channel.state is ChannelState.ENDED:
            self._forget(channel)
        elif taken is not None:
            self._consider(channel)

    def _answer(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._answers += data
        if len(self._answers) > self._limits.answers:
            raise ProtocolError(f"it leaves {len(self._answers)} bytes of answers unread")
        self._wants_turn()

    def _fail(self, number: int, fault: Fault, what: str) -> None:
        self._shared.counts.errors += 1
        self._answer(ErrorResponse(number, fault, what).pack())

    def _fail_with(self, number: int, error: BaseException) -> None:
        self._shared.counts.errors += 1
        self._answer(_response_to(number, error).pack())

    @property
    def _is_blocked(self) -> bool:
        """Whether the system takes nothing at the moment; the selector says when it does."""
        return self._blocked_since is not None

    def _wants_turn(self) -> None:
        if not (self._is_closed or self._is_blocked):
            self._shared.ready[self] = None

    # Time

    def _look_at_stall(self, now: float) -> None:
        since = self._blocked_since
        if since is None:
            return
        if now - since > self._limits.gone:
            raise ProtocolError(f"it took nothing for {now - since:.0f} s")
        if now - since > self._limits.stall:
            if not self._kept:
                self._keep(self._sending.size)
                self._sending.keep_copy()
            for channel in self._channels.values():
                if channel.holds_memory:
                    channel.park()
                    self._consider(channel)  # what its view would say of these bytes is not heard any more

    def _keep(self, size: int) -> None:
        kept = self._shared.kept - self._kept + size
        if kept > self._limits.kept:
            raise ProtocolError(f"it takes nothing, and {self._shared.kept} bytes are kept for such clients")
        self._kept, self._shared.kept = size, kept

    def _look_at_credit(self, now: float) -> None:
        while self._without_credit:
            channel, since = next(iter(self._without_credit.items()))
            if now - since <= self._limits.stall:
                return
            del self._without_credit[channel]
            channel.park()

    # The selector

    def _watch_for(self, is_blocked: bool) -> None:
        if not self._is_closed:
            self._watch(_READ | _WRITE if is_blocked or self._transport.needs_write else _READ)

    def _watch(self, events: int) -> None:
        if events != self._watched:
            self._shared.loop.watch(self, events)
            self._watched = events


class _Costs:
    """A block whose failure costs this connection, and nothing else."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if not isinstance(error, Exception):
            return False
        connection = self._connection
        is_peers = isinstance(error, AuthenticationError | ProtocolError | UsageError)
        if is_peers or (isinstance(error, OSError) and connection.is_stranger):
            connection.refuse(error)
        elif isinstance(error, OSError):
            connection.close()  # it broke, or the peer is gone
        else:
            _log.error("a fault of the shuffle service with %s", connection.peer, exc_info=error)
            connection.refuse(error)
        return True


def _open_view(
    shared: Surroundings, channel: ServerChannel, on_available: Callable[[object], None]
) -> View | None:
    """The view that the channel waits for; None if it waits no more. By a thread that may block.

    Raises what the client is to be told. Of data that are lost, Spark's next look is seen to before.
    """
    if channel.state is ChannelState.ENDED:
        return None
    request = channel.request_from_here
    try:
        if request.stream is Stream.INDEX:
            return shared.catalog.index_view(request)
        return shared.catalog.create_view(request, on_available)
    except DataLossError:
        shared.losses.tell(request.output)
        raise


def _response_to(number: int, error: BaseException) -> ErrorResponse:
    if isinstance(error, DataLossError):
        fault = Fault.MISSING if isinstance(error, MissingDataError) else Fault.DAMAGED
        expected, found = (None if each is None else str(each) for each in (error.expected, error.found))
        return ErrorResponse(number, fault, error.what, error.place, expected, found)
    if isinstance(error, UsageError):
        return ErrorResponse(number, Fault.BAD_REQUEST, str(error))
    if isinstance(error, BufferTimeoutError):
        return ErrorResponse(number, Fault.TIMEOUT, str(error))
    _log.error("a fault of the shuffle service", exc_info=error)
    return ErrorResponse(number, Fault.INTERNAL, f"{type(error).__name__}: {error}")
