"""The shuffle service's protocol as pure functions on bytes, byte for byte as in `docs/protocol.md`.

Both ends use it. Nothing here does I/O or knows of connections.

Rules
* Everything from a peer is checked here. Anything that is not as documented is a `ProtocolError`, and costs
  the peer its connection.
* Every field of a header is checked against one table (`_FORMS`). A field that a form does not name must be
  0. The functions that unpack bodies rely on these checks, and check the body.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sortshuffle.errors import Place, ProtocolError
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import ALL_REGIONS as ALL_REGIONS
from sortshuffle.storage.files.ranges import RegionRange as RegionRange
from sortshuffle.storage.files.ranges import SubpartitionRange as SubpartitionRange

VERSION = 1
MAGIC = b"\x89SSW\r\n\x1a\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
NO_CHANNEL = 0xFFFFFFFF
"""The channel number of a frame that concerns the whole connection."""
MOST_REQUEST_BYTES = 4 << 10
MOST_RESPONSE_BYTES = 8 << 20
MOST_JSON_BYTES = 256 << 10
"""Largest JSON body. An error with the longest texts takes 120 KiB, if nothing is ASCII."""
MOST_TEXT = 2000
"""Characters of each text of an error; the rest is not sent."""

_HELLO = struct.Struct("<8sHHI32s")
_HEADER = struct.Struct("<IBBBBIIQ")
_ADDRESS = struct.Struct("<16sQIIH")
_RANGE = struct.Struct("<IIII")

HELLO_BYTES = _HELLO.size
HEADER_BYTES = _HEADER.size
_PROOF_REQUIRED = 1
_ID_BYTES = 16
_MOST_PATH = 4096  # characters of a path; the system allows no more bytes
_ERROR_FIELDS = ("what", "file", "region", "subpartition", "offset", "writer", "expected", "found")


class Kind(IntEnum):
    """The kind of a frame."""

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


class Sender(IntEnum):
    """The end of a connection that sends a frame."""

    CLIENT = 0
    SERVER = 1


class Stream(IntEnum):
    """The content that a partition request asks for."""

    EXTENTS = 0
    INDEX = 1


class Data(IntEnum):
    """The content of a buffer response; the numbers are those of `format.buffer.DataType`."""

    BYTES = 0
    END_OF_PARTITION = 2


class Fault(IntEnum):
    """The kind of an error."""

    MISSING = 1
    DAMAGED = 2
    BAD_REQUEST = 3
    TOO_MUCH = 4
    TIMEOUT = 5
    INTERNAL = 6


class Verdict(IntEnum):
    """The server's finding on a report of damage."""

    SOUND = 0
    DAMAGED = 1
    MISSING = 2


# --- greeting ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of both sides. Only the server's has ``segment_bytes`` and ``proof_required``."""

    nonce: bytes
    version: int = VERSION
    segment_bytes: int = 0
    proof_required: bool = False

    def pack(self) -> bytes:
        flags = _PROOF_REQUIRED if self.proof_required else 0
        return _HELLO.pack(MAGIC, self.version, flags, self.segment_bytes, self.nonce)

    @staticmethod
    def unpack(data: bytes | memoryview, sender: Sender) -> Hello:
        """Unpack a hello. Raises `ProtocolError`."""
        if len(data) != HELLO_BYTES:
            raise ProtocolError(f"a hello of {len(data)} bytes, where {HELLO_BYTES} are expected")
        magic, version, flags, segment_bytes, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise ProtocolError(f"the peer does not speak sortshuffle's protocol: it begins with {magic!r}")
        if not version >= 1:
            raise ProtocolError(f"version {version} of the protocol does not exist")
        if sender is Sender.SERVER:
            _check_server_hello(version, flags, segment_bytes)
        elif version <= VERSION and (flags or segment_bytes):  # a later version may say more
            raise ProtocolError(
                f"a client's hello with flags {flags:#x} and segments of {segment_bytes} bytes"
            )
        return Hello(nonce, version, segment_bytes, bool(flags & _PROOF_REQUIRED))


def _check_server_hello(version: int, flags: int, segment_bytes: int) -> None:
    if version > VERSION:
        raise ProtocolError(f"the service answers with version {version}, not one up to {VERSION}")
    if flags & ~_PROOF_REQUIRED:
        raise ProtocolError(f"a service's hello with flags {flags:#x}")
    if not 0 < segment_bytes <= MOST_RESPONSE_BYTES:
        raise ProtocolError(f"the service has segments of {segment_bytes} bytes")


def proof(secret: bytes, role: str, client_hello: bytes, server_hello: bytes) -> bytes:
    """Return the proof that a peer in this ``role`` (client, server) knows the secret: HMAC-SHA256, RFC 2104.
    Compare proofs with `hmac.compare_digest`."""
    return hmac.digest(secret, f"sortshuffle {role}".encode() + client_hello + server_hello, "sha256")


# --- frames ------------------------------------------------------------------------------------------------


_NOTHING = range(1)
_ANY32 = range(1 << 32)
_ANY64 = range(1 << 64)


@dataclass(frozen=True, slots=True)
class _Form:
    """The allowed values of a header's fields, for one kind and data type."""

    sender: Sender
    length: range = _NOTHING
    flags: range = _NOTHING
    channel: range = range(NO_CHANNEL)
    credit: range = _NOTHING
    sequence: range = _NOTHING


_JSON = range(2, MOST_JSON_BYTES + 1)
_ADDRESSED = range(_ADDRESS.size + 1, MOST_REQUEST_BYTES + 1)
_FORMS: dict[tuple[int, int], _Form] = {
    (kind, data_type): form
    for kind, data_types, form in (
        (
            Kind.PARTITION_REQUEST,
            Stream,
            _Form(Sender.CLIENT, _ADDRESSED, credit=_ANY32, sequence=_ANY64),
        ),
        (Kind.ADD_CREDIT, (0,), _Form(Sender.CLIENT, credit=range(1, 1 << 32))),
        (
            Kind.BUFFER_RESPONSE,
            (Data.BYTES,),
            _Form(
                Sender.SERVER,
                range(1, MOST_RESPONSE_BYTES + 1),
                flags=range(2),
                credit=_ANY32,
                sequence=_ANY64,
            ),
        ),
        (Kind.BUFFER_RESPONSE, (Data.END_OF_PARTITION,), _Form(Sender.SERVER, sequence=_ANY64)),
        (Kind.ERROR_RESPONSE, Fault, _Form(Sender.SERVER, _JSON, channel=_ANY32)),
        (Kind.CANCEL, (0,), _Form(Sender.CLIENT)),
        (Kind.CLOSE, (0,), _Form(Sender.CLIENT, channel=range(NO_CHANNEL, NO_CHANNEL + 1))),
        (Kind.FIND_REQUEST, (0,), _Form(Sender.CLIENT, _ADDRESSED)),
        (Kind.FIND_RESPONSE, (0, 1), _Form(Sender.SERVER, _JSON)),
        (Kind.DAMAGE_REPORT, (0,), _Form(Sender.CLIENT, _ADDRESSED)),
        (Kind.DAMAGE_VERDICT, Verdict, _Form(Sender.SERVER)),
        (Kind.REMOVE_REQUEST, (0,), _Form(Sender.CLIENT, _ADDRESSED)),
        (Kind.REMOVE_RESPONSE, (0, 1), _Form(Sender.SERVER)),
    )
    for data_type in data_types
}


@dataclass(frozen=True, slots=True)
class Header:
    """The head of every frame. The meaning of the fields depends on the kind."""

    length: int
    kind: Kind
    channel: int = NO_CHANNEL
    data_type: int = 0
    flags: int = 0
    credit: int = 0
    sequence: int = 0

    def pack(self) -> bytes:
        return _HEADER.pack(
            self.length, self.kind, self.data_type, self.flags, 0, self.channel, self.credit, self.sequence
        )

    @staticmethod
    def unpack(data: bytes | bytearray | memoryview, sender: Sender) -> Header:
        """Unpack a frame's first `HEADER_BYTES`. ``sender``: the end that sent it. Raises `ProtocolError`."""
        length, kind, data_type, flags, reserved, channel, credit, sequence = _HEADER.unpack(data)
        form = _FORMS.get((kind, data_type))
        if (
            form is None
            or form.sender is not sender
            or reserved
            or length not in form.length
            or flags not in form.flags
            or channel not in form.channel
            or credit not in form.credit
            or sequence not in form.sequence
        ):
            raise ProtocolError(_wrong_with(data, form, sender))
        return Header(length, Kind(kind), channel, data_type, flags, credit, sequence)


def _wrong_with(data: bytes | bytearray | memoryview, form: _Form | None, sender: Sender) -> str:
    """Return a description of the first fault of a header."""
    length, kind, data_type, flags, reserved, channel, credit, sequence = _HEADER.unpack(data)
    if kind not in Kind._value2member_map_:
        return f"a frame of kind {kind}, which version {VERSION} does not know"
    name = Kind(kind).name
    if form is None:
        return f"a frame of kind {name} and data type {data_type}, which version {VERSION} does not know"
    if form.sender is not sender:
        return f"a frame of kind {name}, which only the {form.sender.name.lower()} sends"
    fields = (
        ("length", length, form.length),
        ("flags", flags, form.flags),
        ("reserved", reserved, _NOTHING),
        ("channel", channel, form.channel),
        ("credit", credit, form.credit),
        ("sequence", sequence, form.sequence),
    )
    field, found, allowed = next(each for each in fields if each[1] not in each[2])
    return f"a frame of kind {name} with {field} {found}, where {allowed[0]} to {allowed[-1]} are allowed"


@dataclass(frozen=True, slots=True)
class MapOutputAddress:
    """Identifies a map output by the names of its files and the id in them. In a find request, the attempt is
    0 and the id is the driver's. In a remove request, map index and attempt are 0, and the id is the
    application's token."""

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
    def unpack(body: bytes | bytearray | memoryview) -> tuple[MapOutputAddress, bytes]:
        """Unpack an address; return it and the bytes that follow it. Raises `ProtocolError`."""
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
        """Return the pair of files that the map output would have in this directory."""
        return PartitionedFile.named(home, self.exchange, self.map_index, self.attempt)

    def __str__(self) -> str:
        return f"exchange {self.exchange}, map {self.map_index}, attempt {self.attempt} of {self.application}"


def is_plain_name(text: str) -> bool:
    """Return whether the text may be one component of a path, as an application's id is."""
    return 0 < len(text) <= 255 and text.isprintable() and "/" not in text and text not in (".", "..")


FIRST_SUBPARTITION = SubpartitionRange(0, 0)


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Requests extents of a map output, or with `Stream.INDEX` its index file, without the first ``skip``
    bytes. ``credit``: segments that the client has room for."""

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
    def unpack(header: Header, body: bytes | bytearray | memoryview) -> PartitionRequest:
        """Unpack a request from its header and body. Raises `ProtocolError`."""
        output, subpartitions, regions = _unpack_range(body)
        stream = Stream(header.data_type)
        if stream is Stream.INDEX and (subpartitions, regions) != (FIRST_SUBPARTITION, ALL_REGIONS):
            raise ProtocolError("a request for the index with a range of subpartitions or regions")
        return PartitionRequest(
            header.channel, header.credit, output, subpartitions, regions, header.sequence, stream
        )


@dataclass(frozen=True, slots=True)
class DamageReport:
    """Reports that the extent of a region and a subpartition failed its checksum."""

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
    def unpack(header: Header, body: bytes | bytearray | memoryview) -> DamageReport:
        """Unpack a report from its header and body. Raises `ProtocolError`."""
        output, subpartitions, regions = _unpack_range(body)
        if len(subpartitions) != 1 or regions.count != 1:
            raise ProtocolError(
                f"a report of damage in subpartitions {subpartitions} of {regions.count} regions: one of each"
                " is expected"
            )
        return DamageReport(header.channel, output, subpartitions.first, regions.first)


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """A finished map output of an ended executor. ``base``: path without suffix, on ``host``."""

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
    """Pack the header of ``size`` bytes of extents. Using `Header` would take three times as long."""
    return _HEADER.pack(
        size,
        Kind.BUFFER_RESPONSE,
        Data.BYTES,
        int(compressed),
        0,
        channel,
        min(backlog, 0xFFFFFFFF),
        sequence,
    )


def pack_end_of_partition(channel: int, sequence: int) -> bytes:
    return _HEADER.pack(0, Kind.BUFFER_RESPONSE, Data.END_OF_PARTITION, 0, 0, channel, 0, sequence)


def pack_find_request(channel: int, output: MapOutputAddress) -> bytes:
    body = output.pack()
    return Header(len(body), Kind.FIND_REQUEST, channel).pack() + body


def unpack_find_request(body: bytes | bytearray | memoryview) -> MapOutputAddress:
    """Unpack the body of a find request. Raises `ProtocolError`."""
    output = _unpack_only_address(body)
    if output.attempt:
        raise ProtocolError(f"attempt {output.attempt} is looked for, where any is meant")
    return output


def pack_find_response(channel: int, found: FoundOutput | None) -> bytes:
    fields = (
        {"id": found.file_id.hex(), "attempt": found.attempt, "base": found.base, "host": found.host}
        if found
        else {}
    )
    body = json.dumps(fields).encode()
    return Header(len(body), Kind.FIND_RESPONSE, channel, data_type=int(bool(found))).pack() + body


def unpack_find_response(header: Header, body: bytes | bytearray | memoryview) -> FoundOutput | None:
    """Unpack a find response; None if nothing was found. Raises `ProtocolError`."""
    fields = _unpack_json(body, ("id", "attempt", "base", "host") if header.data_type else ())
    if not fields:
        return None
    text, attempt = fields["id"], fields["attempt"]
    if type(text) is not str or len(text) != 2 * _ID_BYTES or type(attempt) is not int:
        raise ProtocolError(f"a find response with id {text!r} and attempt {attempt!r}")
    try:
        file_id = bytes.fromhex(text)
    except ValueError as error:
        raise ProtocolError(f"a find response whose id is not hexadecimal: {error}") from None
    if len(file_id) != _ID_BYTES or attempt not in _ANY64:
        raise ProtocolError(f"a find response with id {text!r} and attempt {attempt}")
    return FoundOutput(file_id, attempt, _path(fields["base"]), _path(fields["host"]))


def pack_remove_request(channel: int, application: str, shuffle: int, token: bytes) -> bytes:
    """Pack a remove request. ``token``: the application's 16 bytes, in the place of a file id."""
    body = MapOutputAddress(application, shuffle, 0, 0, token).pack()
    return Header(len(body), Kind.REMOVE_REQUEST, channel).pack() + body


def unpack_remove_request(body: bytes | bytearray | memoryview) -> MapOutputAddress:
    """Unpack the body of a remove request. Raises `ProtocolError`."""
    output = _unpack_only_address(body)
    if output.map_index or output.attempt:
        raise ProtocolError(f"{output} is to be removed, where whole exchanges are")
    return output


def pack_remove_response(channel: int, known: bool) -> bytes:
    """Pack a remove response. ``known``: the service has an engine of that application."""
    return Header(0, Kind.REMOVE_RESPONSE, channel, data_type=int(known)).pack()


def pack_damage_verdict(channel: int, verdict: Verdict) -> bytes:
    return Header(0, Kind.DAMAGE_VERDICT, channel, data_type=verdict).pack()


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The error with which a server ends a channel, or the connection (`NO_CHANNEL`)."""

    channel: int
    fault: Fault
    what: str
    place: Place | None = None
    expected: str | None = None
    found: str | None = None

    def pack(self) -> bytes:
        place = self.place
        fields = {
            "what": _cut(self.what),
            "file": place and place.file[:_MOST_PATH],
            "region": place and place.region,
            "subpartition": place and place.subpartition,
            "offset": place and place.offset,
            "writer": place and _cut(place.writer),
            "expected": _cut(self.expected),
            "found": _cut(self.found),
        }
        body = json.dumps(fields).encode()
        return Header(len(body), Kind.ERROR_RESPONSE, self.channel, data_type=self.fault).pack() + body

    @staticmethod
    def unpack(header: Header, body: bytes | bytearray | memoryview) -> ErrorResponse:
        """Unpack a response from its header and body. Raises `ProtocolError`."""
        fault = Fault(header.data_type)
        fields = _unpack_json(body, _ERROR_FIELDS)
        what, file, writer, expected, found = (
            _text(fields[name]) for name in ("what", "file", "writer", "expected", "found")
        )
        region, subpartition, offset = (
            _number(fields[name]) for name in ("region", "subpartition", "offset")
        )
        place = None if file is None else Place(file, region, subpartition, offset, writer)
        return ErrorResponse(header.channel, fault, what or fault.name.lower(), place, expected, found)


class FrameParser:
    """Splits the bytes of a ``sender`` into frames. For servers, because clients send only small frames. (A
    client reads bodies straight into their place.)"""

    def __init__(self, sender: Sender = Sender.CLIENT) -> None:
        self._sender = sender
        self._pending = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Header, bytes]]:
        """Add received bytes and yield the frames that are complete now. Raises `ProtocolError`."""
        self._pending += data
        position = 0
        while len(self._pending) - position >= HEADER_BYTES:
            start = position + HEADER_BYTES
            header = Header.unpack(self._pending[position:start], self._sender)
            if len(self._pending) - start < header.length:
                break
            position = start + header.length
            yield header, bytes(self._pending[start:position])
        del self._pending[:position]


def _pack_range(subpartitions: SubpartitionRange, regions: RegionRange) -> bytes:
    return _RANGE.pack(subpartitions.first, subpartitions.last, regions.first, regions.count)


def _unpack_range(
    body: bytes | bytearray | memoryview,
) -> tuple[MapOutputAddress, SubpartitionRange, RegionRange]:
    output, rest = MapOutputAddress.unpack(body)
    if len(rest) != _RANGE.size:
        raise ProtocolError(f"a range of {len(rest)} bytes")
    first, last, first_region, count = _RANGE.unpack(rest)
    if first > last:
        raise ProtocolError(f"subpartitions {first}..{last} are not a range")
    return output, SubpartitionRange(first, last), RegionRange(first_region, count)


def _unpack_only_address(body: bytes | bytearray | memoryview) -> MapOutputAddress:
    output, rest = MapOutputAddress.unpack(body)
    if rest:
        raise ProtocolError(f"{len(rest)} bytes behind the address of a map output")
    return output


def _unpack_json(body: bytes | bytearray | memoryview, names: Sequence[str]) -> dict[str, Any]:
    """Parse a JSON object that has exactly these fields."""
    try:
        fields = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame whose body is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.keys() != set(names):
        raise ProtocolError(f"a frame whose body is not a JSON object of {', '.join(names) or 'nothing'}")
    return fields


def _cut(text: str | None) -> str | None:
    return text and text[:MOST_TEXT]


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    raise ProtocolError(f"{value!r} where a text is expected")


def _number(value: Any) -> int | None:
    if value is None or (type(value) is int and value in _ANY64):
        return value
    raise ProtocolError(f"{value!r} where a number is expected")


def _path(value: Any) -> str:
    """Return the value if it is a text that may be a path of this system, or a part of one."""
    try:
        if type(value) is str and value and b"\0" not in value.encode(errors="surrogateescape"):
            return value
    except UnicodeEncodeError:
        pass
    raise ProtocolError(f"{value!r} where a path or a host's name is expected")
