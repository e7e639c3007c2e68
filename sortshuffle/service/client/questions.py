"""`Question`: a request with one answer; and functions that make each kind of question."""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.errors import ProtocolError
from sortshuffle.service.client.client_channel import ClientChannel, RequestSubject
from sortshuffle.service.wire.protocol import (
    DamageReport,
    Header,
    Kind,
    MapOutputAddress,
    Verdict,
    pack_find_request,
    pack_remove_request,
    unpack_find_response,
)


class Question(ClientChannel):
    """A request with one answer, of ``kind``. ``result``: the content of the answer, once complete."""

    def __init__(
        self,
        asked: RequestSubject,
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


def find_question(asked: RequestSubject, output: MapOutputAddress) -> Question:
    """Ask for a finished map output; the answer is a `FoundOutput` or None."""
    return Question(
        asked, lambda number: pack_find_request(number, output), Kind.FIND_RESPONSE, unpack_find_response
    )


def remove_question(asked: RequestSubject, application: str, shuffle: int, token: bytes) -> Question:
    """Ask to remove a shuffle; the answer is whether the service's engine belongs to that application."""

    def unpack(header: Header, body: bytearray) -> bool:
        return bool(header.data_type)

    return Question(
        asked,
        lambda number: pack_remove_request(number, application, shuffle, token),
        Kind.REMOVE_RESPONSE,
        unpack,
    )


def damage_question(
    asked: RequestSubject, output: MapOutputAddress, subpartition: int, region: int
) -> Question:
    """Ask to check bytes that failed their checksum; the answer is a `Verdict`."""

    def pack(number: int) -> bytes:
        return DamageReport(number, output, subpartition, region).pack()

    def unpack(header: Header, body: bytearray) -> Verdict:
        return Verdict(header.data_type)

    return Question(asked, pack, Kind.DAMAGE_VERDICT, unpack)
