"""`ClientChannel`: one request of a client to a shuffle service, what comes for it, and who waits for it.

    ClientChannel
      Question       one answer: find a map output, report damage         (`service.client.questions`)
      IndexChannel   an index file, whose size is not known before        (`service.client.index_channel`)
      ExtentStream   extents of one subpartition or region                (`service.client.extent_streams`)

    new --(sent)--> requested --(all came)--> complete
     ^                 |
     +-----(cut, or refused for now)          any --fail--> failed          any --close--> closed

Two threads meet here: the consumer's, which waits, and the client's receiving one, which fills memory. All
methods are called under the link's lock, but for the filling itself, so memory that was given out to be
filled stays as it is until `filled`.

A channel outlives its connection: when it is requested anew, under another number, what it has is skipped, to
the byte. Sequence numbers and credit begin anew with each request.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from sortshuffle.errors import (
    CorruptDataError,
    DataLossError,
    MissingDataError,
    Place,
    ProtocolError,
    ServiceUnavailableError,
)
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.liveness import LEAST_BYTES
from sortshuffle.service.wire.protocol import (
    NO_CHANNEL,
    ErrorResponse,
    Fault,
    Header,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a channel asks for, for errors. ``what``: in words; ``place``: in which file; ``host``: whose."""

    what: str
    place: Place
    host: str


class ClientChannel(ABC):
    """``failure``: why it failed, None if it has not. ``protocol_errors``: in a row, that were about this
    channel."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.number = NO_CHANNEL
        self.failure: BaseException | None = None
        self.is_closed = False
        self.protocol_errors = 0
        self.retry_at: float | None = None
        self.segment_bytes = 0
        self.credit = 0
        self.backlog = 0
        self._sequence = 0
        self._gained = 0  # bytes since the service last got on with it
        self._backoff: Backoff | None = None
        self._changed: threading.Condition | None = None

    @property
    def changed(self) -> threading.Condition:
        """Notified when what its consumer waits for has come, or never will."""
        assert self._changed is not None, "the channel was not opened"
        return self._changed

    @property
    def is_requested(self) -> bool:
        """Whether the service knows of it, on the present connection."""
        return self.number != NO_CHANNEL

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether all that was asked for is here."""

    @property
    def is_wanted(self) -> bool:
        """Whether what is missing is still to come."""
        return not (self.is_complete or self.is_closed or self.failure)

    @property
    def is_expecting(self) -> bool:
        """Whether the service may send something, and has not."""
        return self.is_requested and not self.is_complete and self.credit > 0

    def retry_in(self, now: float) -> float | None:
        """Seconds until it is to be asked for again, after the service refused it; None if that is now or it
        was not refused."""
        if self.retry_at is None or self.retry_at <= now:
            return None
        return self.retry_at - now

    def attach(self, lock: threading.Lock, backoff: Backoff) -> None:
        """It is opened. ``backoff``: for when the service refuses it."""
        self._changed = threading.Condition(lock)
        self._backoff = backoff

    def request(self, number: int, segment_bytes: int) -> bytes | None:
        """The frame that asks for what is missing; None if there is no room for any of it."""
        self.segment_bytes = segment_bytes
        self.credit = 0
        self._sequence = 0
        self.backlog = 0
        frame = self._request(number)
        if frame is not None:
            self.number = number
            self.retry_at = None
        return frame

    def lost(self) -> None:
        """The connection is gone."""
        self.number = NO_CHANNEL
        self.credit = 0

    def accept(self, header: Header) -> list[memoryview]:
        """Where the data behind this header go. Raises `ProtocolError`."""
        self._expect_sequence(header)
        cost = -(-header.length // self.segment_bytes)
        if cost > self.credit:
            raise ProtocolError(f"data that cost {cost} credits, where {self.credit} are left")
        self.credit -= cost
        self.backlog = header.credit
        return self._place(header.length)

    def filled(self, count: int) -> bool:
        """So many bytes are in place. If that is less than there was place for, the connection broke. Returns
        whether that counts as progress: an extent ended, or `LEAST_BYTES` came since the last progress."""
        self._gained += count
        is_end = self._filled(count)
        if not is_end and self._gained < LEAST_BYTES:
            return False
        self._got_on()
        return True

    def end(self, header: Header) -> None:
        """The service says that there is no more. Raises `ProtocolError` if there must be."""
        self._expect_sequence(header)
        self._check_end()
        self._got_on()

    def answer(self, header: Header, body: bytearray) -> None:
        """Something else than data came. Raises `ProtocolError`."""
        raise ProtocolError(f"a frame of kind {header.kind.name} for a channel that asked for data")

    def credit_due(self) -> int:
        """Credit that is worth being announced now."""
        return 0

    def refuse(self, response: ErrorResponse, now: float, who: str) -> None:
        """The service does not serve it: for now, then `retry_at` says when to ask again, or for good.
        ``who``: the service, for errors."""
        self.lost()
        if response.fault in (Fault.TOO_MUCH, Fault.TIMEOUT, Fault.INTERNAL):
            assert self._backoff is not None
            delay = self._backoff.failed()
            if delay is not None:
                self.retry_at = now + delay
                self.changed.notify_all()
                return
        self.fail(self._error(response, who))

    def fail(self, error: BaseException) -> None:
        """It will never be complete: who waits is told."""
        if self.failure is None:
            self.failure = error
        self.changed.notify_all()

    def close(self) -> None:
        """Nobody wants it any more; who waits is woken."""
        self.is_closed = True
        self.changed.notify_all()

    @abstractmethod
    def _request(self, number: int) -> bytes | None: ...

    def _place(self, size: int) -> list[memoryview]:
        raise ProtocolError("data where an answer was asked for")

    def _filled(self, count: int) -> bool:
        """Whether an extent ended."""
        raise NotImplementedError

    def _check_end(self) -> None:
        raise ProtocolError("an end of data where an answer was asked for")

    def _got_on(self) -> None:
        self._gained = 0
        self.protocol_errors = 0
        assert self._backoff is not None
        self._backoff.progress()

    def _expect_sequence(self, header: Header) -> None:
        if header.sequence != self._sequence:
            raise ProtocolError(f"buffer {header.sequence} came where {self._sequence} is next")
        self._sequence += 1

    def _error(self, response: ErrorResponse, who: str) -> BaseException:
        asked = self.asked
        if response.fault is Fault.MISSING:
            return self._loss(MissingDataError, response)
        if response.fault is Fault.DAMAGED:
            return self._loss(CorruptDataError, response)
        if response.fault is Fault.BAD_REQUEST:
            return ProtocolError(f"{who} does not understand what was asked, {asked.what}: {response.what}")
        error = ServiceUnavailableError(f"{who} cannot serve {asked.what}: {response.what}")
        if response.fault is Fault.INTERNAL:  # the others would be refused for want of room or time, too
            error.refused = asked.place
        return error

    def _loss(self, kind: Callable[..., DataLossError], response: ErrorResponse) -> DataLossError:
        what = f"{response.what}, says the shuffle service of {self.asked.host}"
        place = response.place or self.asked.place
        return kind(place, what, expected=response.expected, found=response.found)
