"""`RequestTable`: what a client has asked for on one connection, and what may still be answered.

    (a number) --request--> requested --(all came, or an error)--> over
                               |
                             leave: cancelled; what is under way is still counted, and thrown away

The protocol's half of a connection, without input or output: frames go out through ``post``, headers that
came go in, and what comes out is where their bytes go. One table per connection: numbers and credit begin
anew with the next one.

Rules
* A breach of the protocol while a channel is served is that channel's (`BreachError`). One that is repeated
  `MOST_PROTOCOL_ERRORS` times fails the channel, whatever the others do. Any other breach is a
  `ProtocolError`.
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

SCRATCH_BYTES = 64 << 10  # what comes for channels that nobody wants any more is read into that
MOST_PROTOCOL_ERRORS = 3  # in a row: a peer that breaks the protocol so often will do it again


class BreachError(ProtocolError):
    """Of the protocol, for which one channel was blamed."""


class RequestTable:
    """``service``: for errors. ``post``: sends a frame behind those before it, without waiting."""

    def __init__(
        self, service: str, segment_bytes: int, post: Callable[[bytes], None], clock: Callable[[], float]
    ) -> None:
        self._service = service
        self._segment_bytes = segment_bytes
        self._post = post
        self._clock = clock
        self._numbers = itertools.count()
        self._requested: dict[int, ClientChannel] = {}
        self._abandoned: dict[int, int] = {}  # numbers that may still be answered, and with how much credit
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    @property
    def is_expecting(self) -> bool:
        """Whether the service owes anything."""
        return any(channel.is_expecting for channel in self._requested.values())

    # What is asked

    def request(self, channel: ClientChannel) -> bool:
        """Ask for it if that is due: it is not asked for, has room, and the service did not refuse it a
        moment ago."""
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
        """Tell the service what the channel has room for, as far as that is worth it."""
        if channel.is_requested and channel.is_wanted:
            credit = channel.credit_due()
            if credit:
                self._post(pack_add_credit(channel.number, credit))

    def leave(self, channel: ClientChannel) -> None:
        """The channel is not wanted any more."""
        if not channel.is_requested:
            return
        del self._requested[channel.number]
        self._abandoned[channel.number] = channel.credit
        if not channel.is_complete:
            self._post(pack_cancel(channel.number))
        channel.lost()

    def cut(self) -> None:
        """The connection is gone: nothing comes any more. Who keeps its error keeps no channel by it."""
        self._requested.clear()
        self._abandoned.clear()

    # What comes

    def accept(self, header: Header) -> tuple[ClientChannel | None, list[memoryview]]:
        """Where the data behind this header go, and whose they are: nobody's if nobody wants them any more.
        Raises `ProtocolError`."""
        channel = self._channel(header)
        if channel is None:
            return None, self._unwanted(header)
        try:
            return channel, channel.accept(header)
        except ProtocolError as error:
            raise self._breach(channel, error) from error

    def end(self, header: Header) -> bool:
        """There is no more of a channel. Whether somebody wanted to know. Raises `ProtocolError`."""
        channel = self._channel(header)
        if channel is None:
            del self._abandoned[header.channel]
            return False
        try:
            channel.end(header)
        except ProtocolError as error:
            raise self._breach(channel, error) from error
        del self._requested[header.channel]
        channel.lost()
        return True

    def answer(self, header: Header, body: bytearray) -> bool:
        """Something else than data came. Whether it answers what is wanted. Raises `ProtocolError`,
        `ServiceUnavailableError` where the service ends the connection."""
        if header.kind is Kind.ERROR_RESPONSE:
            self._refuse(ErrorResponse.unpack(header, bytes(body)))
            return False
        channel = self._channel(header)
        if channel is None:
            return False
        try:
            channel.answer(header, body)
        except ProtocolError as error:
            raise self._breach(channel, error) from error
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
        """The channel that a frame is for; None if nobody wants it any more. Raises `ProtocolError`."""
        channel = self._requested.get(header.channel)
        if channel is None and header.channel not in self._abandoned:
            raise ProtocolError(f"a {header.kind.name} for channel {header.channel}, which is none")
        return channel

    def _unwanted(self, header: Header) -> list[memoryview]:
        """Where data go that nobody wants any more."""
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
