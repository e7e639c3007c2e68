"""`Connection`: the I/O of one client of the shuffle service, at its socket.

    open --(Close, a fault, silence, the peer is gone)--> closed

The protocol state is a `Conversation`. A connection links it with the transport and the loop: it receives
bytes, sends one turn at a time in one call, has disk jobs done in the background, and enforces time limits.
Connections share the loop: each gets one turn per round. If the system does not take a whole turn, the rest
is sent before the next turn.

Rules
* A peer's bytes cost at most its own connection. Faults of the peer are counted, and logged in one line.
* A client that takes no bytes keeps no read memory (`Stall`): its channels are parked, and the rest of the
  last turn is copied. When it takes bytes again, its channels continue.
* Disks are used only in the background; the connection may be closed before the result arrives.
* Closing gives everything back: the turn being sent, views, and views still being opened, when they arrive.

Only the loop's thread uses a connection. No locks.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TypeVar

from sortshuffle.errors import AuthenticationError, ProtocolError, UsageError
from sortshuffle.service.pages.status import ConnectionStatus
from sortshuffle.service.server.conversation import Conversation
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.disk_jobs import DiskJob, DiskJobs, OpenView, ReportLoss
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.loop import EventLoop
from sortshuffle.service.server.server_channel import ServerChannel
from sortshuffle.service.server.stall import Copies, Stall
from sortshuffle.service.server.transport import Transport
from sortshuffle.service.wire.handshake import ServerGreeting

T = TypeVar("T")
_log = logging.getLogger(__name__)

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(slots=True)
class ServerContext:
    """State that all connections of a server share. ``ready``: connections that may have something to send.
    ``copies``: memory used for stalled clients."""

    loop: EventLoop
    limits: Limits
    secret: bytes | None
    segment_bytes: int
    disk_jobs: DiskJobs
    clock: Callable[[], float] = time.monotonic
    counts: Counts = field(default_factory=Counts)
    copies: Copies = field(default_factory=Copies)
    ready: dict[Connection, None] = field(default_factory=dict)
    connections: dict[Connection, None] = field(default_factory=dict)


class Connection:
    """One client. Owns ``transport``, and closes it. ``peer``: the client's address, for logs and pages."""

    def __init__(self, transport: Transport, peer: str, context: ServerContext) -> None:
        shared = context
        self.peer = peer
        self._transport = transport
        self._shared = shared
        greeting = ServerGreeting(shared.secret, shared.segment_bytes)
        self._conversation = Conversation(greeting, shared.limits, shared.counts, shared.clock)
        self._sending = GatheredSend()
        self._stall = Stall(shared.limits, shared.copies)
        self._watched = 0
        self._bytes_sent = 0
        self._began = self._last_received = shared.clock()
        self._is_closed = False
        self._watch(_READ)

    @property
    def is_stranger(self) -> bool:
        """Whether the greeting is not complete yet."""
        return self._conversation.is_stranger

    def fileno(self) -> int:
        return self._transport.fileno()

    def status(self) -> ConnectionStatus:
        """Return the connection's figures."""
        now, since = self._shared.clock(), self._stall.since
        return ConnectionStatus(
            peer=self.peer,
            channels=len(self._conversation.channels),
            seconds=now - self._began,
            bytes_sent=self._bytes_sent,
            backlog=self._sending.size + len(self._conversation.pending.answers),
            stalled=0.0 if since is None else now - since,
        )

    def on_ready(self, events: int) -> None:
        """Receive, or get a turn soon: the socket is readable or writable."""
        with _Costs(self):
            if events & _READ or self._transport.needs_write:
                self._on_readable()
            if events & _WRITE and not self._is_closed:
                self._shared.ready[self] = None

    def turn(self) -> bool:
        """Send one turn. Return whether there may be more to send at once."""
        with _Costs(self):
            self._take_turn()
            return self._follow_up()
        return False

    def tick(self, now: float) -> None:
        """Enforce the time limits: give memory and files back, or close the connection."""
        limits, conversation = self._shared.limits, self._conversation
        with _Costs(self):
            if conversation.is_stranger:
                if now - self._began > limits.greeting:
                    raise AuthenticationError("it did not say who it is in time")
                return
            if self._stall.is_long(now):
                self._stall.copy(self._sending)
                conversation.channels.park_holders()
            conversation.channels.park_without_credit(now)
            is_idle = conversation.is_idle and not self._sending.size
            if is_idle and now - self._last_received > limits.idle:
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
        self._conversation.end()
        self._sending.abandon()
        self._stall.end()

    def refuse(self, error: Exception) -> None:
        """Close the connection for a fault: count it, and log it in one line."""
        if self._is_closed:
            return
        if self.is_stranger:
            self._shared.counts.refused += 1
        self._shared.counts.errors += 1
        _log.info("closed the connection of %s: %s", self.peer, error)
        self.close()

    # Bytes in and out

    def _on_readable(self) -> None:
        try:
            is_over = self._receive()
        finally:
            self._begin_disk_jobs()  # also those requested before a breach or a Close
        if is_over:
            self.close()
            return
        self._follow_up()
        self._watch_as_needed()

    def _receive(self) -> bool:
        """Process received bytes. Return whether the client is gone, or sent Close."""
        while (data := self._transport.receive()) is not None:
            if not data:
                return True
            self._last_received = self._shared.clock()
            self._conversation.receive(data)
            if self._conversation.is_over:
                return True
            if not self._transport.has_pending:
                break
        return False

    def _take_turn(self) -> None:
        sending = self._sending
        if not sending.size:
            try:
                self._conversation.fill(sending)
            finally:
                self._begin_disk_jobs()  # a loss is reported to Spark even if the connection fails
        size = sending.size
        sent = sending.send(self._transport)
        self._bytes_sent += sent
        self._shared.counts.bytes_sent += sent
        if sent == size:
            self._stall.all_sent()
        else:
            self._stall.some_sent(sent, self._shared.clock())
        self._watch_as_needed()

    def _follow_up(self) -> bool:
        """Start new disk jobs, and get a turn if one is due. Return whether there is data to send now."""
        if self._is_closed:
            return False
        self._begin_disk_jobs()
        if self._stall.since is not None or not self._conversation.has_turn:
            return False
        self._shared.ready[self] = None
        return True

    # Work in the background

    def _begin_disk_jobs(self) -> None:
        disk_jobs = self._conversation.pending.disk_jobs
        while disk_jobs:
            self._begin(disk_jobs.popleft())

    def _begin(self, disk_job: DiskJob) -> None:
        conversation, disk_jobs = self._conversation, self._shared.disk_jobs
        match disk_job:
            case OpenView(channel):
                work = partial(disk_jobs.open_view, channel, self._waker(channel))
                opened = partial(conversation.channels.opened, channel)
                self._in_background(work, opened, partial(conversation.channels.not_opened, channel))
            case ReportLoss(channel, cause):
                tell = partial(disk_jobs.report_loss, channel.request.output)

                def say_so(_: object) -> None:
                    conversation.pending.fail(channel.number, cause)

                # if the report fails, the client is told that error, and asks again
                self._in_background(tell, say_so, partial(conversation.pending.fail, channel.number))
            case question:
                answer = partial(disk_jobs.answer, question)
                not_answered = partial(conversation.not_answered, question)
                self._in_background(answer, conversation.answered, not_answered, takes_long=True)

    def _in_background(
        self,
        work: Callable[[], T],
        use: Callable[[T], None],
        fail: Callable[[BaseException], None],
        takes_long: bool = False,
    ) -> None:
        """Run ``work`` in the background, then ``use`` its result or ``fail`` with its error, in the loop.
        If the connection is closed, errors are dropped, but results are used: a view must be released."""

        def back(done: Future[T]) -> None:
            self._conversation.pending.disk_job_done()
            with _Costs(self):
                error = done.exception()
                if error is None:
                    use(done.result())
                elif not self._is_closed:
                    fail(error)
                self._follow_up()

        self._shared.loop.in_background(work, back, takes_long)

    def _waker(self, channel: ServerChannel) -> Callable[[object], None]:
        """Return the callback that the channel's view calls, in any thread, when it has something to send."""

        def on_available(_: object) -> None:
            self._shared.loop.call_soon(partial(self._on_available, channel))

        return on_available

    def _on_available(self, channel: ServerChannel) -> None:
        self._conversation.channels.available(channel)
        self._follow_up()

    # The selector

    def _watch_as_needed(self) -> None:
        if not self._is_closed:
            wants_write = self._stall.since is not None or self._transport.needs_write
            self._watch(_READ | _WRITE if wants_write else _READ)

    def _watch(self, events: int) -> None:
        if events != self._watched:
            self._shared.loop.watch(self, events)
            self._watched = events


class _Costs:
    """Context manager: a failure of its block closes this connection, and goes no further."""

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
