"""The protocol between a JVM and the engine of its host, as pure functions on bytes (docs/manager.md).

This is the engine's end; the other end is in Java. Nothing here does I/O. Both ends first send a `greeting`.

Rule: both ends are processes of one user and one application, but possibly of different releases. Anything
that is not as documented, even a padding byte that is not 0, is a `ProtocolError` and closes the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sortshuffle.errors import ProtocolError

REQUEST = struct.Struct("<B3sI")
"""Operation, three zero bytes, size of the body in bytes."""
REPLY = struct.Struct("<BxxxI")
"""Status, size of the body in bytes."""
FRAME = struct.Struct("<ii")
"""Number of records, their bytes."""
EVERYTHING = -1
"""Stands for a shuffle in a request to remove: all shuffles that the application has at its URL."""
STREAM_ERROR = b"\xff\xff\xff\xff"

MOST_SUBPARTITIONS = 1 << 24
"""The limit of Spark's own shuffle in its serialized form. An index has 48 bytes for each subpartition."""

_NOTHING = bytes(3)
_WRITE = struct.Struct("<iiqii")
_SHARE = struct.Struct("<q")
_SHARED_FRAME = struct.Struct("<iiiii")
_FINISHED = struct.Struct("<16sii")
_READ = struct.Struct("<iiii")
_REMOVE = struct.Struct("<ii")
_COUNT = struct.Struct("<I")
_CHUNK = struct.Struct("<Iqqqq")
_BLOCK = np.dtype(
    [
        ("map_id", "<i8"),
        ("map_index", "<i4"),
        ("first", "<i4"),
        ("end", "<i4"),
        ("service", "<i4"),
        ("file_id", "V16"),
    ]
)


class Operation(IntEnum):
    """The kinds of requests."""

    WRITE = 1
    FRAME = 2
    FINISH = 3
    READ = 4
    REMOVE = 5
    SHARE = 6
    SHARED_FRAME = 7


ID_AND_END_BYTES = 8  # of each record in a frame, in addition to the record's bytes
MOST_FRAME_BYTES = (1 << 31) + (1 << 10)  # one record of Java's largest array
MOST_READ_BYTES = 256 << 20  # some six million blocks
MOST_REMOVE_BYTES = 16 << 20
_BODY_BYTES = {
    Operation.WRITE: range(_WRITE.size, _WRITE.size + 1),
    Operation.FRAME: range(FRAME.size, MOST_FRAME_BYTES + 1),
    Operation.FINISH: range(1),
    Operation.READ: range(_READ.size, MOST_READ_BYTES + 1),
    Operation.REMOVE: range(_REMOVE.size, MOST_REMOVE_BYTES + 1),
    Operation.SHARE: range(_SHARE.size, _SHARE.size + 1),
    Operation.SHARED_FRAME: range(_SHARED_FRAME.size, _SHARED_FRAME.size + 1),
}
"""Allowed sizes of a request's body."""


class Status(IntEnum):
    """The outcomes of a request."""

    DONE = 0
    BAD_REQUEST = 1
    NO_SPACE = 2
    FAILED = 3
    LOST = 4


def pack_request(operation: Operation, size: int) -> bytes:
    """Return the header of a request whose body has ``size`` bytes."""
    return REQUEST.pack(operation, _NOTHING, size)


def unpack_request(data: bytes | bytearray) -> tuple[Operation, int]:
    """Return the operation and the size of its body in bytes. Raises `ProtocolError`."""
    operation, nothing, size = REQUEST.unpack(data)
    if operation not in Operation._value2member_map_:
        raise ProtocolError(f"operation {operation}, which this release does not know")
    known = Operation(operation)
    if nothing != _NOTHING:
        raise ProtocolError(f"{known.name} with {nothing.hex()} where zeros are expected")
    allowed = _BODY_BYTES[known]
    if size not in allowed:
        raise ProtocolError(f"{known.name} of {size} bytes, where {allowed[0]} to {allowed[-1]} are allowed")
    return known, size


def unpack_frame(data: bytes | bytearray, size: int) -> int:
    """Return the number of records in a frame. ``data``: the `FRAME` at its start; ``size``: the bytes after
    that. Raises `ProtocolError`."""
    records, record_bytes = FRAME.unpack(data)
    if records < 1 or record_bytes < 0 or size != ID_AND_END_BYTES * records + record_bytes:
        raise ProtocolError(f"a frame of {records} records and {record_bytes} bytes in {size} bytes")
    return int(records)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request to write a new map output."""

    shuffle: int
    map_index: int
    map_id: int
    subpartitions: int
    stage: int

    @staticmethod
    def unpack(body: bytes | bytearray) -> WriteRequest:
        """Unpack the body of a request. Raises `ProtocolError`."""
        shuffle, map_index, map_id, subpartitions, stage = _fixed(_WRITE, body)
        if min(shuffle, map_index, map_id, stage) < 0 or not 0 < subpartitions <= MOST_SUBPARTITIONS:
            raise ProtocolError(
                f"map {map_index} of shuffle {shuffle}, map id {map_id}, stage {stage}, with {subpartitions}"
                " subpartitions"
            )
        return WriteRequest(shuffle, map_index, map_id, subpartitions, stage)


@dataclass(frozen=True, slots=True)
class SharedFrame:
    """A frame of ``records`` records in shared memory, ``size`` bytes in all.

    ``ids``, ``ends``, ``data``: positions where the int32 ids, the int32 ends and the records begin.
    """

    records: int
    size: int
    ids: int
    ends: int
    data: int

    @staticmethod
    def unpack(body: bytes | bytearray) -> SharedFrame:
        """Unpack the body of a request. Raises `ProtocolError`."""
        frame = SharedFrame(*_fixed(_SHARED_FRAME, body))
        if frame.records < 1 or frame.size < 0:
            raise ProtocolError(f"a frame of {frame.records} records and {frame.size} bytes")
        return frame


def unpack_share(body: bytes | bytearray) -> int:
    """Return how many bytes the JVM wants to share. Raises `ProtocolError`."""
    (size,) = _fixed(_SHARE, body)
    return int(size)


class Block(NamedTuple):
    """The subpartitions ``first..end-1`` of one map output. ``service``: the index of its host's service in
    the request.

    A named tuple, because a request names thousands: making one takes a third of a dataclass's time.
    """

    map_id: int
    map_index: int
    first: int
    end: int
    service: int
    file_id: bytes


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request to read. ``services``: host:port of each service that has a block of the request.
    ``only_looks``: it wants no bytes, but to know which map outputs are lost."""

    shuffle: int
    services: tuple[str, ...]
    blocks: tuple[Block, ...]
    only_looks: bool = False

    @staticmethod
    def unpack(body: bytes | bytearray) -> ReadRequest:
        """Unpack the body of a request. Raises `ProtocolError`."""
        if len(body) < _READ.size:
            raise ProtocolError(f"a request to read of {len(body)} bytes")
        shuffle, service_count, block_count, only_looks = _READ.unpack_from(body)
        _expect_shuffle(shuffle)
        if only_looks not in (0, 1):
            raise ProtocolError(f"a request to read with {only_looks} where 0 or 1 is expected")
        services, position = _texts(body, _READ.size, service_count)
        if block_count < 0 or len(body) - position != block_count * _BLOCK.itemsize:
            raise ProtocolError(f"{block_count} blocks in {len(body) - position} bytes")
        rows = np.frombuffer(body, _BLOCK, block_count, position)
        if not _are_in_range(rows, len(services)):
            raise ProtocolError("a block that cannot be, or whose service is not named")
        return ReadRequest(shuffle, services, tuple(map(Block._make, rows.tolist())), bool(only_looks))


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """``services``: those to ask for the same. ``shuffle``: `EVERYTHING` if the application ends."""

    shuffle: int
    services: tuple[str, ...]

    @staticmethod
    def unpack(body: bytes | bytearray) -> RemoveRequest:
        """Unpack the body of a request. Raises `ProtocolError`."""
        if len(body) < _REMOVE.size:
            raise ProtocolError(f"a request to remove of {len(body)} bytes")
        shuffle, count = _REMOVE.unpack_from(body)
        if shuffle != EVERYTHING:
            _expect_shuffle(shuffle)
        services, position = _texts(body, _REMOVE.size, count)
        if position != len(body):
            raise ProtocolError(f"{len(body) - position} bytes behind a request to remove")
        return RemoveRequest(shuffle, services)


@dataclass(frozen=True, slots=True)
class ReadTotals:
    """What a request has read so far: bytes of files, and blocks that were begun. ``remote``: on other hosts,
    or at a URL. At the end all blocks of the request count as begun."""

    local_bytes: int = 0
    local_blocks: int = 0
    remote_bytes: int = 0
    remote_blocks: int = 0


def pack_text(text: str) -> bytes:
    """Encode as UTF-8. A lone surrogate, which Python makes of another byte in a file name, becomes
    ``\\udc80``."""
    return text.encode(errors="backslashreplace")


def pack_reply(status: Status, body: bytes = b"") -> bytes:
    return REPLY.pack(status, len(body)) + body


def pack_finished(file_id: bytes, spills: int, sizes: npt.NDArray[np.int64]) -> bytes:
    """Return the reply to FINISH. ``spills``: regions that were written before the records ended. ``sizes``:
    bytes by subpartition."""
    return pack_reply(Status.DONE, _FINISHED.pack(file_id, spills, 0) + sizes.astype("<i8").tobytes())


def pack_chunk(size: int, totals: ReadTotals) -> bytes:
    """Return the header of a chunk with ``size`` bytes of records. A header with size 0 ends the answer."""
    return _CHUNK.pack(
        size, totals.local_bytes, totals.local_blocks, totals.remote_bytes, totals.remote_blocks
    )


def pack_stream_error(status: Status, text: str) -> bytes:
    """Return the end of an answer to READ that fails."""
    return STREAM_ERROR + pack_reply(status, pack_text(text))


def pack_lost(text: str, blocks: Sequence[int], silent: Sequence[int]) -> bytes:
    """Return the end of an answer to READ of which ``blocks`` are lost. ``silent``: the numbers of services
    that did not answer."""
    body = _numbers(blocks) + _numbers(silent) + pack_text(text)
    return STREAM_ERROR + pack_reply(Status.LOST, body)


def _numbers(numbers: Sequence[int]) -> bytes:
    return _COUNT.pack(len(numbers)) + np.array(numbers, "<i4").tobytes()


def _fixed(layout: struct.Struct, body: bytes | bytearray) -> tuple[int, ...]:
    if len(body) != layout.size:
        raise ProtocolError(f"a body of {len(body)} bytes, where {layout.size} are expected")
    return layout.unpack(body)


def _expect_shuffle(shuffle: int) -> None:
    if shuffle < 0:
        raise ProtocolError(f"shuffle {shuffle}")


def _are_in_range(blocks: npt.NDArray[np.void], services: int) -> bool:
    can_be = (blocks["first"] >= 0) & (blocks["first"] < blocks["end"])
    can_be &= (blocks["map_id"] >= 0) & (blocks["map_index"] >= 0)
    can_be &= (blocks["service"] >= 0) & (blocks["service"] < services)
    return bool(can_be.all())


def _texts(body: bytes | bytearray, position: int, count: int) -> tuple[tuple[str, ...], int]:
    """Return ``count`` texts from ``position`` on, and the position after them."""
    texts: list[str] = []
    if count < 0:
        raise ProtocolError(f"{count} texts")
    for _ in range(count):
        if position + _COUNT.size > len(body):
            raise ProtocolError("a text is cut short")
        (size,) = _COUNT.unpack_from(body, position)
        position += _COUNT.size
        if position + size > len(body):
            raise ProtocolError("a text is cut short")
        try:
            texts.append(bytes(body[position : position + size]).decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a text is not UTF-8: {error}") from None
        position += size
    return tuple(texts), position
