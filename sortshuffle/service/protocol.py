"""The shuffle service's protocol as pure functions on bytes, byte for byte as in `docs/protocol.md`.

Used by both ends. Nothing here does I/O or knows of connections.

Rule: what comes from a peer is believed only as far as it was checked here; whatever is not as documented is
a `ProtocolError`, and costs the peer its connection.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sortshuffle.errors import Place, ProtocolError
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.ranges import ALL_REGIONS as ALL_REGIONS
from sortshuffle.storage.ranges import RegionRange as RegionRange
from sortshuffle.storage.ranges import SubpartitionRange as SubpartitionRange

VERSION = 1
MAGIC = b"\x89SSW\r\n\x1a\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
NO_CHANNEL = 0xFFFFFFFF
"""The channel of a frame that is about the connection."""
MOST_REQUEST_BYTES = 4 << 10
MOST_RESPONSE_BYTES = 8 << 20
MOST_TEXT = 2000
"""Characters of an error's text that are sent."""

_HELLO = struct.Struct("<8sHHI32s")
_HEADER = struct.Struct("<IBBBxIIQ")
_ADDRESS = struct.Struct("<16sQIIH")
_RANGE = struct.Struct("<IIII")

HELLO_BYTES = _HELLO.size
HEADER_BYTES = _HEADER.size
_PROOF_REQUIRED = 1


class Kind(IntEnum):
    """What a frame is."""

    PARTITION_REQUEST = 1
    ADD_CREDIT = 2
    BUFFER_RESPONSE = 3
    ERROR_RESPONSE = 4
    CANCEL = 5
    CLOSE = 6
    FIND_REQUEST = 7
    FIND_RESPONSE = 8
    DAMAGE_REPORT = 9
    DAMAGE_VERDICT = 10
    REMOVE_REQUEST = 11
    REMOVE_RESPONSE = 12


_WITHOUT_BODY = frozenset((Kind.ADD_CREDIT, Kind.CANCEL, Kind.CLOSE))


class Stream(IntEnum):
    """What a partition request asks for."""

    EXTENTS = 0
    INDEX = 1


class Data(IntEnum):
    """What a buffer response holds; the numbers are those of `format.buffer.DataType`."""

    BYTES = 0
    END_OF_PARTITION = 2


class Fault(IntEnum):
    """What kind of error a response tells."""

    MISSING = 1
    DAMAGED = 2
    BAD_REQUEST = 3
    TOO_MUCH = 4
    TIMEOUT = 5
    INTERNAL = 6


class Verdict(IntEnum):
    """What a server found where damage was reported."""

    SOUND = 0
    DAMAGED = 1
    MISSING = 2


# --- greeting ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """How both sides begin. ``segment_bytes`` and ``proof_required``: the server's."""

    nonce: bytes
    version: int = VERSION
    segment_bytes: int = 0
    proof_required: bool = False

    def pack(self) -> bytes:
        flags = _PROOF_REQUIRED if self.proof_required else 0
        return _HELLO.pack(MAGIC, self.version, flags, self.segment_bytes, self.nonce)

    @staticmethod
    def unpack(data: bytes | memoryview) -> Hello:
        """Raises `ProtocolError`."""
        magic, version, flags, segment_bytes, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise ProtocolError(f"the peer does not speak sortshuffle's protocol: it begins with {magic!r}")
        if not version >= 1:
            raise ProtocolError(f"version {version} of the protocol does not exist")
        return Hello(nonce, version, segment_bytes, bool(flags & _PROOF_REQUIRED))


def proof(secret: bytes, role: str, client_hello: bytes, server_hello: bytes) -> bytes:
    """What shows that a peer in this ``role`` (client, server) knows the secret. Compare with
    `hmac.compare_digest`. HMAC-SHA256, RFC 2104."""
    return hmac.digest(secret, f"sortshuffle {role}".encode() + client_hello + server_hello, "sha256")


# --- frames ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """What every frame begins with; which fields mean what depends on the kind."""

    length: int
    kind: Kind
    channel: int = NO_CHANNEL
    data_type: int = 0
    flags: int = 0
    credit: int = 0
    sequence: int = 0

    def pack(self) -> bytes:
        return _HEADER.pack(
            self.length, self.kind, self.data_type, self.flags, self.channel, self.credit, self.sequence
        )

    @staticmethod
    def unpack(data: bytes | bytearray | memoryview, most: int) -> Header:
        """``most``: bytes that a body may have. Raises `ProtocolError`."""
        length, kind, data_type, flags, channel, credit, sequence = _HEADER.unpack(data)
        if length > most:
            raise ProtocolError(f"a frame of {length} bytes, where {most} are allowed")
        try:
            known = Kind(kind)
        except ValueError:
            raise ProtocolError(f"a frame of kind {kind}, which version {VERSION} does not know") from None
        if length and known in _WITHOUT_BODY:
            raise ProtocolError(f"a frame of kind {known.name} with a body of {length} bytes")
        return Header(length, known, channel, data_type, flags, credit, sequence)


@dataclass(frozen=True, slots=True)
class MapOutputAddress:
    """Which map output: by what its files are called and the id that they carry. In a `find`, the attempt is
    0 and the id is the driver's name. Where a shuffle is removed, map index and attempt are 0, and the id is
    the application's token."""

    application: str
    exchange: int
    map_index: int
    attempt: int = 0
    file_id: bytes = bytes(16)

    def pack(self) -> bytes:
        application = self.application.encode()
        head = _ADDRESS.pack(self.file_id, self.attempt, self.exchange, self.map_index, len(application))
        return head + application

    @staticmethod
    def unpack(body: bytes | memoryview) -> tuple[MapOutputAddress, bytes]:
        """The address, and what follows it. Raises `ProtocolError`."""
        data = bytes(body)
        try:
            file_id, attempt, exchange, map_index, length = _ADDRESS.unpack_from(data)
            end = _ADDRESS.size + length
            if len(data) < end:
                raise ProtocolError("a request ends within the application's id")
            application = data[_ADDRESS.size : end].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"a request without the address of a map output: {error}") from None
        if not is_plain_name(application):
            raise ProtocolError(f"{application!r} is not the id of an application")
        return MapOutputAddress(application, exchange, map_index, attempt, file_id), data[end:]

    def file_in(self, home: str) -> PartitionedFile:
        """The files that it would have in this directory."""
        return PartitionedFile.named(home, self.exchange, self.map_index, self.attempt)

    def __str__(self) -> str:
        return f"exchange {self.exchange}, map {self.map_index}, attempt {self.attempt} of {self.application}"


def is_plain_name(text: str) -> bool:
    """Whether that may be one step of a path: an application's id goes into one."""
    return 0 < len(text) <= 255 and text.isprintable() and "/" not in text and text not in (".", "..")


FIRST_SUBPARTITION = SubpartitionRange(0, 0)


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """A client wants these extents of a map output, from byte ``skip`` of them all on; or, with
    `Stream.INDEX`, its index file. ``credit``: segments that it has room for."""

    channel: int
    credit: int
    output: MapOutputAddress
    subpartitions: SubpartitionRange = FIRST_SUBPARTITION
    regions: RegionRange = ALL_REGIONS
    skip: int = 0
    stream: Stream = Stream.EXTENTS

    def pack(self) -> bytes:
        body = self.output.pack() + _pack_range(self.subpartitions, self.regions)
        header = Header(
            len(body),
            Kind.PARTITION_REQUEST,
            self.channel,
            self.stream,
            credit=self.credit,
            sequence=self.skip,
        )
        return header.pack() + body

    @staticmethod
    def unpack(header: Header, body: bytes | memoryview) -> PartitionRequest:
        """Raises `ProtocolError`."""
        output, subpartitions, regions = _unpack_range(body)
        try:
            stream = Stream(header.data_type)
        except ValueError:
            raise ProtocolError(f"a partition request of type {header.data_type}") from None
        return PartitionRequest(
            header.channel, header.credit, output, subpartitions, regions, header.sequence, stream
        )


@dataclass(frozen=True, slots=True)
class DamageReport:
    """Bytes of the first region and subpartition failed their checksum."""

    channel: int
    output: MapOutputAddress
    subpartition: int
    region: int

    def pack(self) -> bytes:
        body = self.output.pack() + _pack_range(
            SubpartitionRange(self.subpartition, self.subpartition), RegionRange(self.region, 1)
        )
        return Header(len(body), Kind.DAMAGE_REPORT, self.channel).pack() + body

    @staticmethod
    def unpack(header: Header, body: bytes | memoryview) -> DamageReport:
        """Raises `ProtocolError`."""
        output, subpartitions, regions = _unpack_range(body)
        return DamageReport(header.channel, output, subpartitions.first, regions.first)


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """A finished map output of an executor that has ended. ``base``: path without suffix, on ``host``."""

    file_id: bytes
    attempt: int
    base: str
    host: str


def pack_add_credit(channel: int, credit: int) -> bytes:
    return Header(0, Kind.ADD_CREDIT, channel, credit=credit).pack()


def pack_cancel(channel: int) -> bytes:
    return Header(0, Kind.CANCEL, channel).pack()


def pack_close() -> bytes:
    return Header(0, Kind.CLOSE).pack()


def pack_buffer_header(channel: int, sequence: int, backlog: int, size: int, compressed: bool) -> bytes:
    """What goes before ``size`` bytes of extents."""
    return _HEADER.pack(
        size, Kind.BUFFER_RESPONSE, Data.BYTES, int(compressed), channel, min(backlog, 0xFFFFFFFF), sequence
    )


def pack_end_of_partition(channel: int, sequence: int) -> bytes:
    return _HEADER.pack(0, Kind.BUFFER_RESPONSE, Data.END_OF_PARTITION, 0, channel, 0, sequence)


def pack_find_request(channel: int, output: MapOutputAddress) -> bytes:
    body = output.pack()
    return Header(len(body), Kind.FIND_REQUEST, channel).pack() + body


def unpack_find_request(body: bytes | memoryview) -> MapOutputAddress:
    """Raises `ProtocolError`."""
    output, rest = MapOutputAddress.unpack(body)
    if rest:
        raise ProtocolError(f"{len(rest)} bytes behind the address of a map output")
    return output


def pack_find_response(channel: int, found: FoundOutput | None) -> bytes:
    fields = (
        {"id": found.file_id.hex(), "attempt": found.attempt, "base": found.base, "host": found.host}
        if found
        else {}
    )
    body = json.dumps(fields).encode()
    return Header(len(body), Kind.FIND_RESPONSE, channel, data_type=int(bool(found))).pack() + body


def unpack_find_response(body: bytes | memoryview) -> FoundOutput | None:
    """Raises `ProtocolError`."""
    fields = _unpack_json(body)
    if not fields:
        return None
    try:
        file_id, attempt = bytes.fromhex(fields["id"]), int(fields["attempt"])
        found = FoundOutput(file_id, attempt, str(fields["base"]), str(fields["host"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a find response without what it must have: {error!r}") from None
    if len(file_id) != 16:
        raise ProtocolError(f"an id of {len(file_id)} bytes")
    return found


def pack_remove_request(channel: int, application: str, shuffle: int, token: bytes) -> bytes:
    """``token``: of the application, 16 bytes; it stands where the id of a map output would."""
    body = MapOutputAddress(application, shuffle, 0, 0, token).pack()
    return Header(len(body), Kind.REMOVE_REQUEST, channel).pack() + body


def pack_remove_response(channel: int, known: bool) -> bytes:
    """``known``: the service has an engine, of that application."""
    return Header(0, Kind.REMOVE_RESPONSE, channel, data_type=int(known)).pack()


def pack_damage_verdict(channel: int, verdict: Verdict) -> bytes:
    return Header(0, Kind.DAMAGE_VERDICT, channel, data_type=verdict).pack()


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """What a server says of a channel, or of the connection (`NO_CHANNEL`), that it ends."""

    channel: int
    fault: Fault
    what: str
    place: Place | None = None
    expected: str | None = None
    found: str | None = None

    def pack(self) -> bytes:
        place = self.place
        fields = {
            "what": self.what[:MOST_TEXT],
            "file": place and place.file,
            "region": place and place.region,
            "subpartition": place and place.subpartition,
            "offset": place and place.offset,
            "writer": place and place.writer,
            "expected": self.expected and self.expected[:MOST_TEXT],
            "found": self.found and self.found[:MOST_TEXT],
        }
        body = json.dumps(fields).encode()
        return Header(len(body), Kind.ERROR_RESPONSE, self.channel, data_type=self.fault).pack() + body

    @staticmethod
    def unpack(header: Header, body: bytes | memoryview) -> ErrorResponse:
        """Raises `ProtocolError`."""
        fields = _unpack_json(body)
        try:
            fault = Fault(header.data_type)
        except ValueError:
            raise ProtocolError(f"an error response of kind {header.data_type}") from None
        file = _text(fields.get("file"))
        region, subpartition, offset = map(_number, map(fields.get, ("region", "subpartition", "offset")))
        place = (
            None if file is None else Place(file, region, subpartition, offset, _text(fields.get("writer")))
        )
        what = _text(fields.get("what")) or fault.name.lower()
        expected, found = _text(fields.get("expected")), _text(fields.get("found"))
        return ErrorResponse(header.channel, fault, what, place, expected, found)


class FrameParser:
    """Cuts what comes from a peer into frames. ``most``: bytes that a body may have.

    For a server, whose clients send small frames only. (A client reads bodies straight into place.)
    """

    def __init__(self, most: int = MOST_REQUEST_BYTES) -> None:
        self._most = most
        self._pending = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Header, bytes]]:
        """The frames that are complete now. Raises `ProtocolError`."""
        self._pending += data
        position = 0
        while len(self._pending) - position >= HEADER_BYTES:
            start = position + HEADER_BYTES
            header = Header.unpack(self._pending[position:start], self._most)
            if len(self._pending) - start < header.length:
                break
            position = start + header.length
            yield header, bytes(self._pending[start:position])
        del self._pending[:position]


def _pack_range(subpartitions: SubpartitionRange, regions: RegionRange) -> bytes:
    return _RANGE.pack(subpartitions.first, subpartitions.last, regions.first, regions.count)


def _unpack_range(body: bytes | memoryview) -> tuple[MapOutputAddress, SubpartitionRange, RegionRange]:
    output, rest = MapOutputAddress.unpack(body)
    if len(rest) != _RANGE.size:
        raise ProtocolError(f"a range of {len(rest)} bytes")
    first, last, first_region, count = _RANGE.unpack(rest)
    if first > last:
        raise ProtocolError(f"subpartitions {first}..{last} are not a range")
    return output, SubpartitionRange(first, last), RegionRange(first_region, count)


def _unpack_json(body: bytes | memoryview) -> dict[str, Any]:
    try:
        fields = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame whose body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError("a frame whose body is not a JSON object")
    return fields


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
