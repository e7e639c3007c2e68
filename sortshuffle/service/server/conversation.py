"""`Conversation`: the protocol state of one client of the shuffle service, without I/O.

    greeting --(both know the secret)--> open --(Close)--> over

Received bytes go in (`receive`). Answers and disk jobs come out as `PendingWork`, data as turns of
`Channels`. The `Connection` has the socket, the loop and the threads, so tests need none of them.

Rules
* A breach of the protocol raises `ProtocolError` or `AuthenticationError`. After that call only `end`, and
  the methods that take the results of disk jobs.
* Frames after a Close are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sortshuffle.service.server.channels import Channels
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.disk_jobs import FindOutput, Question, RemoveShuffle
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.pending_work import PendingWork
from sortshuffle.service.wire.handshake import ServerGreeting
from sortshuffle.service.wire.protocol import (
    DamageReport,
    FrameParser,
    Header,
    Kind,
    PartitionRequest,
    unpack_find_request,
    unpack_remove_request,
)


class Conversation:
    """One client. ``greeting``: the server's half, not begun. ``is_over``: whether the client sent Close."""

    def __init__(
        self,
        greeting: ServerGreeting,
        limits: Limits,
        counts: Counts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_over = False
        self.pending = PendingWork(limits, counts)
        self.channels = Channels(self.pending, limits, counts, clock)
        self._limits = limits
        self._counts = counts
        self._greeting: ServerGreeting | None = greeting
        self._frames = FrameParser()
        self._questions = 0  # not answered yet

    @property
    def is_stranger(self) -> bool:
        """Whether the greeting is not complete yet."""
        return self._greeting is not None

    @property
    def has_turn(self) -> bool:
        """Whether there is something to send."""
        return bool(self.channels.due or self.pending.answers)

    @property
    def is_idle(self) -> bool:
        """Whether the client has no channel and no open disk job."""
        return not (self.channels or self.pending.open_disk_jobs)

    def receive(self, data: bytes) -> None:
        """Process received bytes. Raises `ProtocolError` or `AuthenticationError`."""
        if self._greeting is not None:
            self.pending.answer(self._greeting.feed(data))
            if not self._greeting.is_done:
                return
            data, self._greeting = self._greeting.rest, None
        for header, body in self._frames.feed(data):
            self._obey(header, body)
            if self.is_over:
                return

    def fill(self, sending: GatheredSend) -> None:
        """Add the next turn to ``sending``: answers first, then channels in the order of the queue."""
        if self.pending.answers:
            sending.add([self.pending.take_answers()])
        self.channels.fill(sending)

    def answered(self, frame: bytes) -> None:
        """Send the answer to a question."""
        self._questions -= 1
        self.pending.answer(frame)

    def not_answered(self, question: Question, error: BaseException) -> None:
        """Send the error that a question failed with."""
        self._questions -= 1
        self.pending.fail(question.channel, error)

    def end(self) -> None:
        """End all channels and drop all answers: the connection is over."""
        self.pending.end()
        self.channels.end()

    def _obey(self, header: Header, body: bytes) -> None:
        match header.kind:
            case Kind.PARTITION_REQUEST:
                self.channels.request(PartitionRequest.unpack(header, body))
            case Kind.ADD_CREDIT:
                self.channels.add_credit(header.channel, header.credit)
            case Kind.CANCEL:
                self.channels.cancel(header.channel)
            case Kind.CLOSE:
                self.is_over = True
            case Kind.FIND_REQUEST:
                self._ask(FindOutput(header.channel, unpack_find_request(body)))
            case Kind.DAMAGE_REPORT:
                self._ask(DamageReport.unpack(header, body))
            case Kind.REMOVE_REQUEST:
                self._ask(RemoveShuffle(header.channel, unpack_remove_request(body)))

    def _ask(self, question: Question) -> None:
        self._counts.requests += 1
        self.channels.expect_new(question.channel)
        if self._questions >= self._limits.questions:
            what = f"more than {self._limits.questions} questions at a time"
            self.pending.refuse(question.channel, what)
            return
        self._questions += 1
        self.pending.add_disk_job(question)
