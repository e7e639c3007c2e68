"""`RequestTable`: a client's requests on one connection, and those that may still be answered.

    (a number) --request--> requested --(all came, or an error)--> over
                               |
                             leave: cancelled; data under way are still counted, and thrown away

It is the protocol's half of one connection, without input or output: it sends frames through ``post``, takes
the headers that arrived, and returns memory for their data. Numbers and credit start anew in each table.

Rules
* A breach of the protocol while a channel is served is blamed on that channel (`BreachError`), and fails it
  after `MOST_PROTOCOL_ERRORS` in a row, whatever the others do. Any other breach is a `ProtocolError`.
* All methods are called under the link's lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from sortshuffle.errors import ProtocolError, ServiceUnavailableError
from sortshuffle.service.client.client_channel import ClientChannel
from sortshuffle.service.wire.protocol import (
    NO_CHANNEL,
    ErrorResponse,
    Header,
    Kind,
    pack_add_credit,
    pack_cancel,
)

SCRATCH_BYTES = 64 << 10  # memory to read data into that are thrown away
MOST_PROTOCOL_ERRORS = 3  # in a row: a peer that breaks the protocol so often will do it again


class BreachError(ProtocolError):
    """A breach of the protocol that is blamed on one channel."""


class RequestTable:
    """``service``: its name in errors. ``post``: queues a frame after those before it, without waiting."""

    def __init__(
        self, service: str, segment_bytes: int, post: Callable[[bytes], None], clock: Callable[[], float]
    ) -> None:
        self._service = service
        self._segment_bytes = segment_bytes
        self._post = post
        self._clock = clock
        self._numbers = itertools.count()
        self._requested: dict[int, ClientChannel] = {}
        self._abandoned: dict[int, int] = {}  # cancelled numbers that may still be answered: credit left
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    @property
    def is_expecting(self) -> bool:
        """Whether the service owes anything."""
        return any(channel.is_expecting for channel in self._requested.values())

    # Requests

    def request(self, channel: ClientChannel) -> bool:
        """Request the channel's data if that is due: it is not requested, has room, and was not refused a
        moment ago. Returns whether it did."""
        if channel.is_requested or not channel.is_wanted or channel.retry_in(self._clock()) is not None:
            return False
        number = next(self._numbers)
        frame = channel.request(number, self._segment_bytes)
        if frame is None:
            return False
        self._requested[number] = channel
        self._post(frame)
        return True

    def announce(self, channel: ClientChannel) -> None:
        """Announce the channel's new credit to the service, if that is worth a frame."""
        if channel.is_requested and channel.is_wanted:
            credit = channel.credit_due()
            if credit:
                self._post(pack_add_credit(channel.number, credit))

    def leave(self, channel: ClientChannel) -> None:
        """Cancel the channel's request."""
        if not channel.is_requested:
            return
        del self._requested[channel.number]
        self._abandoned[channel.number] = channel.credit
        if not channel.is_complete:
            self._post(pack_cancel(channel.number))
        channel.forget_request()

    def cut(self) -> None:
        """Forget all requests: the connection is gone, and its error must not keep channels alive."""
        self._requested.clear()
        self._abandoned.clear()

    # Responses

    def accept(self, header: Header) -> tuple[ClientChannel | None, list[memoryview]]:
        """Return the channel of the data that follow this header, None if it was cancelled, and memory for
        the data. Raises `ProtocolError`."""
        channel = self._channel(header)
        if channel is None:
            return None, self._scratch_for(header)
        try:
            return channel, channel.accept(header)
        except ProtocolError as error:
            raise self._breach(channel, error) from error

    def end(self, header: Header) -> bool:
        """Accept the end of a channel's data. Returns whether it was still wanted. Raises `ProtocolError`."""
        channel = self._channel(header)
        if channel is None:
            del self._abandoned[header.channel]
            return False
        try:
            channel.end(header)
        except ProtocolError as error:
            raise self._breach(channel, error) from error
        del self._requested[header.channel]
        channel.forget_request()
        return True

    def answer(self, header: Header, body: bytearray) -> bool:
        """Accept a frame other than data. Returns whether it answers a question that is still wanted. A
        question has one answer, so its number is free afterwards. Raises `ProtocolError`,
        `ServiceUnavailableError` if the service ends the connection."""
        if header.kind is Kind.ERROR_RESPONSE:
            self._refuse(ErrorResponse.unpack(header, bytes(body)))
            return False
        channel = self._channel(header)
        if channel is None:
            del self._abandoned[header.channel]
            return False
        try:
            channel.answer(header, body)
        except ProtocolError as error:
            raise self._breach(channel, error) from error
        del self._requested[header.channel]
        channel.forget_request()
        return True

    def _refuse(self, response: ErrorResponse) -> None:
        if response.channel == NO_CHANNEL:
            raise ServiceUnavailableError(f"the service ended the connection: {response.what}")
        channel = self._requested.pop(response.channel, None)
        if channel is not None:
            channel.refuse(response, self._clock(), self._service)
        elif self._abandoned.pop(response.channel, None) is None:
            raise ProtocolError(f"an error for channel {response.channel}, which is none: {response.what}")

    def _channel(self, header: Header) -> ClientChannel | None:
        """Return the channel that a frame is for; None if it was cancelled. Raises `ProtocolError`."""
        channel = self._requested.get(header.channel)
        if channel is None and header.channel not in self._abandoned:
            raise ProtocolError(f"a {header.kind.name} for channel {header.channel}, which is none")
        return channel

    def _scratch_for(self, header: Header) -> list[memoryview]:
        """Return memory for the data of a cancelled channel, and charge its credit."""
        left = self._abandoned[header.channel] - -(-header.length // self._segment_bytes)
        if left < 0:
            raise ProtocolError(f"more data than there was credit for, for channel {header.channel}")
        self._abandoned[header.channel] = left
        whole, rest = divmod(header.length, SCRATCH_BYTES)
        return [self._scratch] * whole + [self._scratch[:rest]]

    def _breach(self, channel: ClientChannel, error: ProtocolError) -> BreachError:
        channel.protocol_errors += 1
        told = f"{self._service} broke the protocol while it was asked for {channel.asked.what}: {error}"
        if channel.protocol_errors >= MOST_PROTOCOL_ERRORS:
            channel.fail(ProtocolError(told))
        return BreachError(told)
