"""`ClientChannel`: one request of a client to a shuffle service, its data, and its consumer's wait for them.

    ClientChannel
      Question       one answer: find a map output, report damage         (`service.client.questions`)
      IndexChannel   an index file, whose size is not known in advance    (`service.client.index_channel`)
      ExtentStream   extents of one subpartition or region                (`service.client.extent_streams`)

    new --(sent)--> requested --(all came)--> complete
     ^                 |
     +-----(cut, or refused for now)          any --fail--> failed          any --close--> closed

Two threads use a channel: the consumer's, which waits, and the link's receiving thread, which fills memory.
All methods are called under the link's lock. Memory is filled without it, so memory that was given out to be
filled stays as it is until `count_filled`.

A channel outlives its connection: it is requested again under another number, and the service skips exactly
the bytes that have arrived. Sequence numbers and credit start anew with each request.
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
class RequestSubject:
    """What a channel asks for, as errors name it: ``what``, in words; the ``place``; the ``host`` asked."""

    what: str
    place: Place
    host: str


class ClientChannel(ABC):
    """A request and what has arrived for it. ``failure``: why the channel failed, None if it has not.
    ``protocol_errors``: protocol errors in a row that concerned this channel."""

    def __init__(self, asked: RequestSubject) -> None:
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
        self._gained = 0  # bytes since the last progress
        self._backoff: Backoff | None = None
        self._changed: threading.Condition | None = None

    @property
    def changed(self) -> threading.Condition:
        """Condition that is notified when what the consumer waits for has arrived, or never will."""
        assert self._changed is not None, "the channel was not opened"
        return self._changed

    @property
    def is_requested(self) -> bool:
        """Whether the service has the request, on the present connection."""
        return self.number != NO_CHANNEL

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether everything requested has arrived."""

    @property
    def is_wanted(self) -> bool:
        """Whether something is missing and may still arrive."""
        return not (self.is_complete or self.is_closed or self.failure)

    @property
    def is_expecting(self) -> bool:
        """Whether the service may send something that has not arrived."""
        return self.is_requested and not self.is_complete and self.credit > 0

    def retry_in(self, now: float) -> float | None:
        """Return the seconds until a refused request may be repeated; None if it may be repeated now, or was
        not refused."""
        if self.retry_at is None or self.retry_at <= now:
            return None
        return self.retry_at - now

    def attach(self, lock: threading.Lock, backoff: Backoff) -> None:
        """Prepare for use in a link. ``lock``: the link's; ``backoff``: for when the service refuses."""
        self._changed = threading.Condition(lock)
        self._backoff = backoff

    def request(self, number: int, segment_bytes: int) -> bytes | None:
        """Return the frame that requests what is missing; None if there is no room for any of it."""
        self.segment_bytes = segment_bytes
        self.credit = 0
        self._sequence = 0
        self.backlog = 0
        frame = self._request(number)
        if frame is not None:
            self.number = number
            self.retry_at = None
        return frame

    def forget_request(self) -> None:
        """Forget the request's number and credit: the request, or its connection, has ended."""
        self.number = NO_CHANNEL
        self.credit = 0

    def accept(self, header: Header) -> list[memoryview]:
        """Return the memory for the data that follow this header. Raises `ProtocolError`."""
        self._expect_sequence(header)
        cost = -(-header.length // self.segment_bytes)
        if cost > self.credit:
            raise ProtocolError(f"data that cost {cost} credits, where {self.credit} are left")
        self.credit -= cost
        self.backlog = header.credit
        return self._place(header.length)

    def count_filled(self, count: int) -> bool:
        """Count the bytes that were filled; fewer than `accept` gave memory for if the connection broke.
        Returns whether that is progress: an extent ended, or `LEAST_BYTES` came since the last progress."""
        self._gained += count
        is_end = self._filled(count)
        if not is_end and self._gained < LEAST_BYTES:
            return False
        self._got_on()
        return True

    def end(self, header: Header) -> None:
        """Accept the end of the data. Raises `ProtocolError` if some are missing."""
        self._expect_sequence(header)
        self._check_end()
        self._got_on()

    def answer(self, header: Header, body: bytearray) -> None:
        """Accept an answer other than data. Raises `ProtocolError`."""
        raise ProtocolError(f"a frame of kind {header.kind.name} for a channel that asked for data")

    def credit_due(self) -> int:
        """Return the credit to announce now, 0 if that is not worth a frame; it counts as announced."""
        return 0

    def refuse(self, response: ErrorResponse, now: float, who: str) -> None:
        """Set `retry_at` if the refusal is temporary, else fail. ``who``: the service's name in errors."""
        self.forget_request()
        if response.fault in (Fault.TOO_MUCH, Fault.TIMEOUT, Fault.INTERNAL):
            assert self._backoff is not None
            delay = self._backoff.failed()
            if delay is not None:
                self.retry_at = now + delay
                self.changed.notify_all()
                return
        self.fail(self._error(response, who))

    def fail(self, error: BaseException) -> None:
        """Fail the channel, and wake its consumer."""
        if self.failure is None:
            self.failure = error
        self.changed.notify_all()

    def close(self) -> None:
        """Close the channel, which is no longer wanted, and wake its consumer. A reader that is given up may
        close it before it is opened: then nobody waits yet."""
        self.is_closed = True
        if self._changed is not None:
            self._changed.notify_all()

    @abstractmethod
    def _request(self, number: int) -> bytes | None: ...

    def _place(self, size: int) -> list[memoryview]:
        raise ProtocolError("data where an answer was asked for")

    def _filled(self, count: int) -> bool:
        """Count the bytes, and return whether an extent ended."""
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
        if response.fault is Fault.INTERNAL:  # the other faults mean a lack of room or time, for any request
            error.refused = asked.place
        return error

    def _loss(self, kind: Callable[..., DataLossError], response: ErrorResponse) -> DataLossError:
        what = f"{response.what}, says the shuffle service of {self.asked.host}"
        place = response.place or self.asked.place
        return kind(place, what, expected=response.expected, found=response.found)
