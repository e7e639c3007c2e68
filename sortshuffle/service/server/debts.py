"""`Debts`: what a connection owes its client: answers that wait to be sent, and errands that are to be done.

The parts of a connection that do no input and output leave here what follows from what the client said; the
`Connection` sends the answers and has the errands done.

Rules
* Answers (errors, verdicts, found outputs) go before data. A client that does not read them breaks the
  protocol.
* Errands are counted until they are done: who asks and cancels in turns leaves work behind.
* When the connection has ended, nothing is owed any more: errands that are still under way come back, and
  what they would say is dropped.
"""

from __future__ import annotations

import logging
from collections import deque

from sortshuffle.errors import BufferTimeoutError, DataLossError, MissingDataError, ProtocolError, UsageError
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.errands import Errand
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.wire.protocol import ErrorResponse, Fault

_log = logging.getLogger(__name__)


class Debts:
    """``answers``: frames that wait to be sent. ``errands``: those that nobody does yet; whoever does one
    takes it out. ``errands_open``: how many are not done."""

    def __init__(self, limits: Limits, counts: Counts) -> None:
        self.answers = bytearray()
        self.errands: deque[Errand] = deque()
        self.errands_open = 0
        self._limits = limits
        self._counts = counts
        self._is_ended = False

    def answer(self, frame: bytes) -> None:
        """Send it. Raises `ProtocolError` for a client that leaves too much unread."""
        if self._is_ended:
            return
        self.answers += frame
        if len(self.answers) > self._limits.answers:
            raise ProtocolError(f"it leaves {len(self.answers)} bytes of answers unread")

    def refuse(self, channel: int, what: str) -> None:
        """Tell the client that it asked for too much."""
        self._counts.errors += 1
        self.answer(ErrorResponse(channel, Fault.TOO_MUCH, what).pack())

    def fail(self, channel: int, error: BaseException) -> None:
        """Tell the client what its request failed with."""
        self._counts.errors += 1
        self.answer(_response_to(channel, error).pack())

    def add_errand(self, errand: Errand) -> None:
        """Have it done; whoever does it says so by `errand_done`."""
        self.errands_open += 1
        self.errands.append(errand)

    def errand_done(self) -> None:
        """One is not under way any more."""
        self.errands_open -= 1

    def take_answers(self) -> bytes:
        """All of them, to be sent now."""
        answers = bytes(self.answers)
        self.answers.clear()
        return answers

    def end(self) -> None:
        """The client is gone."""
        self._is_ended = True
        self.answers.clear()


def _response_to(channel: int, error: BaseException) -> ErrorResponse:
    if isinstance(error, DataLossError):
        fault = Fault.MISSING if isinstance(error, MissingDataError) else Fault.DAMAGED
        expected, found = (None if each is None else str(each) for each in (error.expected, error.found))
        return ErrorResponse(channel, fault, error.what, error.place, expected, found)
    if isinstance(error, UsageError):
        return ErrorResponse(channel, Fault.BAD_REQUEST, str(error))
    if isinstance(error, BufferTimeoutError):
        return ErrorResponse(channel, Fault.TIMEOUT, str(error))
    _log.error("a fault of the shuffle service", exc_info=error)
    return ErrorResponse(channel, Fault.INTERNAL, f"{type(error).__name__}: {error}")
