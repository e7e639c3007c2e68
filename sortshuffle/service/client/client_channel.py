"""`ClientChannel`: one request of a client to a shuffle service, what comes for it, and who waits for it.

    ClientChannel
      Question       one answer: find a map output, report damage
      IndexChannel   an index file, whose size is not known before
      ExtentStream   extents of one subpartition or region                (`service.client.extent_streams`)

    new --(sent)--> requested --(all came)--> complete
     ^                 |
     +-----(cut, or refused for now)          any --fail--> failed          any --close--> closed

Two threads meet here: the consumer's, which waits, and the client's receiving one, which fills memory. All
methods are called under the client's lock, but for the filling itself, so memory that was given out to be
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
from sortshuffle.format.header import HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.index import ENTRY_BYTES
from sortshuffle.format.malformed import Malformed
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client_connection import LEAST_BYTES
from sortshuffle.service.wire.protocol import (
    NO_CHANNEL,
    DamageReport,
    ErrorResponse,
    Fault,
    FoundOutput,
    Header,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Stream,
    Verdict,
    pack_find_request,
    pack_remove_request,
    unpack_find_response,
)

# Of an index, whatever its header says: that of one region and of as many subpartitions as the shuffle
# manager's protocol allows takes 768 MiB
MOST_INDEX_BYTES = 1 << 30
MOST_TAIL_BYTES = 16 << 20  # of an index, behind the regions: the schema of 10,000 columns takes 1 MiB
INDEX_CREDIT = 16  # segments; an index file seldom has more than one
# Of an index, before it must wait for its turn. One of 1,000 subpartitions and 300 regions takes 14 MiB. So
# those of most jobs come side by side. Of those that a peer makes as large as it can one begins at a time:
# the next when that is here, or has had its time-out
LARGE_INDEX_BYTES = 16 << 20
MOST_PROTOCOL_ERRORS = 3  # in a row: a peer that breaks the protocol so often will do it again


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


class Question(ClientChannel):
    """A request with one answer, of ``kind``. ``result``: what the answer says, when it is complete."""

    def __init__(
        self,
        asked: Asked,
        pack: Callable[[int], bytes],
        kind: Kind,
        unpack: Callable[[Header, bytearray], object],
    ) -> None:
        super().__init__(asked)
        self._pack = pack
        self._kind = kind
        self._unpack = unpack
        self._is_answered = False
        self.result: object = None

    @property
    def is_complete(self) -> bool:
        return self._is_answered

    @property
    def is_expecting(self) -> bool:
        return self.is_requested and not self._is_answered

    def answer(self, header: Header, body: bytearray) -> None:
        if header.kind is not self._kind or self._is_answered:
            raise ProtocolError(f"a frame of kind {header.kind.name} that was not asked for")
        self.result = self._unpack(header, body)
        self._is_answered = True
        self._got_on()
        self.changed.notify_all()

    def _request(self, number: int) -> bytes:
        return self._pack(number)


def find_question(asked: Asked, output: MapOutputAddress) -> Question:
    """Answered by a `FoundOutput` or None."""

    def unpack(header: Header, body: bytearray) -> FoundOutput | None:
        return unpack_find_response(header, body)

    return Question(asked, lambda number: pack_find_request(number, output), Kind.FIND_RESPONSE, unpack)


def remove_question(asked: Asked, application: str, shuffle: int, token: bytes) -> Question:
    """Answered by whether the service's engine is of that application."""

    def unpack(header: Header, body: bytearray) -> bool:
        return bool(header.data_type)

    return Question(
        asked,
        lambda number: pack_remove_request(number, application, shuffle, token),
        Kind.REMOVE_RESPONSE,
        unpack,
    )


def damage_question(asked: Asked, output: MapOutputAddress, subpartition: int, region: int) -> Question:
    """Answered by a `Verdict`."""

    def pack(number: int) -> bytes:
        return DamageReport(number, output, subpartition, region).pack()

    def unpack(header: Header, body: bytearray) -> Verdict:
        return Verdict(header.data_type)

    return Question(asked, pack, Kind.DAMAGE_VERDICT, unpack)


class IndexChannel(ClientChannel):
    """An index file, piece by piece as it comes. ``regions``: how many the map output has, None if that is
    not known.

    No place is given out for more than an index of so many regions, and of as many subpartitions as its
    header says, can have, nor for more than `MOST_INDEX_BYTES`; nor for more than `LARGE_INDEX_BYTES` or one
    segment before it has its turn. The header is believed only if it carries the id that was asked for.
    """

    def __init__(self, asked: Asked, output: MapOutputAddress, regions: int | None = None) -> None:
        super().__init__(asked)
        self._output = output
        self._regions = regions
        self._received = bytearray()
        self._piece = bytearray()
        self._ended = False
        self._has_turn = False

    @property
    def is_complete(self) -> bool:
        return self._ended

    @property
    def needs_turn(self) -> bool:
        """Whether it is large, and nothing more of it may come for now."""
        return not (self._most_credit() or self.credit or self._ended)

    @property
    def data(self) -> memoryview:
        """The whole file, when it is complete: read-only, and not a copy."""
        return memoryview(self._received).toreadonly()

    def take_turn(self) -> None:
        """Room for all of it: others wait for theirs now."""
        self._has_turn = True

    def credit_due(self) -> int:
        most = self._most_credit()
        due = most - self.credit
        if due <= 0 or 2 * due < most:
            return 0
        self.credit += due
        return due

    def _most_credit(self) -> int:
        """For what is not here yet."""
        if self._has_turn:
            return INDEX_CREDIT
        here = len(self._received) + len(self._piece)
        allowed = (LARGE_INDEX_BYTES - here) // max(1, self.segment_bytes)
        return max(0 if here else 1, min(INDEX_CREDIT, allowed))

    def _request(self, number: int) -> bytes | None:
        self.credit = self._most_credit()
        if not self.credit:
            self.changed.notify_all()  # it needs its turn, if segments are larger than before
            return None
        return PartitionRequest(
            number, self.credit, self._output, skip=len(self._received), stream=Stream.INDEX
        ).pack()

    def _place(self, size: int) -> list[memoryview]:
        most = self._most_bytes()
        if len(self._received) + size > most:
            raise ProtocolError(f"an index of more than {most} bytes")
        self._piece = bytearray(size)
        return [memoryview(self._piece)]

    def _filled(self, count: int) -> bool:
        self._received += memoryview(self._piece)[:count]
        self._piece = bytearray()
        if isinstance(self._header(), Malformed):
            self._gained = 0  # what is no index is no progress
        if self.needs_turn:
            self.changed.notify_all()
        return False

    def _header(self) -> FileHeader | Malformed | None:
        """Of what came; None before it is here."""
        if len(self._received) < HEADER_BYTES:
            return None
        try:
            header = FileHeader.unpack(bytes(self._received[:HEADER_BYTES]), INDEX_MAGIC)
        except Malformed as problem:
            return problem
        wanted = self._output.file_id
        if header.file_id != wanted:
            return Malformed("the id is another map output's", 16, wanted.hex(), header.file_id.hex())
        return header

    def _most_bytes(self) -> int:
        header = self._header()
        if isinstance(header, Malformed):
            self._received.clear()  # what is asked for again begins anew
            raise ProtocolError(f"what came does not begin as the index does: {header.what}")
        if header is None or self._regions is None:
            return MOST_INDEX_BYTES
        region_bytes = header.subpartitions * ENTRY_BYTES + 1
        return min(HEADER_BYTES + self._regions * region_bytes + MOST_TAIL_BYTES, MOST_INDEX_BYTES)

    def _check_end(self) -> None:
        self._ended = True
        self.changed.notify_all()
