"""A buffer as it stands in a file: 8-byte header, payload, padding, checksum.

Invariants (`docs/format.md`, "Buffer"): a sealed buffer's length is a multiple of `ALIGNMENT`; an extent
starts `BUFFER_HEADER_BYTES` short of a boundary, so that every payload starts on one; the checksum covers
every byte of the buffer that precedes it.

`seal` never copies a payload: a sealed buffer is three pieces that one gathered write joins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from sortshuffle.format.checksum import (
    CHECKSUM_BYTES,
    BytesLike,
    checksum,
    checksum_of_checksums,
    checksum_of_parts,
)
from sortshuffle.format.malformed import CutShort, Malformed

ALIGNMENT = 64  # bytes; Arrow's recommended alignment, and a cache line
BUFFER_HEADER_BYTES = 8
_HEADER = struct.Struct("<BBHI")
_U64 = struct.Struct("<Q")
RAW_SIZE_BYTES = _U64.size
TAG_BYTES = 16  # after an encrypted payload: proves that the payload is unchanged
MAX_PAYLOAD_BYTES = 2**32 - 1 - TAG_BYTES  # the same with and without encryption, so no job fails for it
_COMPRESSED = 1
_ENCRYPTED = 2
_BROADCAST = 4  # encrypted for a broadcast region; only together with _ENCRYPTED
_KNOWN_FLAGS = frozenset(
    (0, _COMPRESSED, *(_ENCRYPTED | more for more in (0, _COMPRESSED, _BROADCAST, _BROADCAST | _COMPRESSED)))
)
_FRAME_BYTES = BUFFER_HEADER_BYTES + CHECKSUM_BYTES
_PADDING = tuple(bytes(n) for n in range(ALIGNMENT))

ENCRYPTED_DATA = _ENCRYPTED << 8
"""The lower 32 bits of the header of an encrypted, uncompressed data buffer."""


class DataType(IntEnum):
    """The content of a buffer: data, or one of the events."""

    DATA = 0
    END_OF_DATA = 1
    END_OF_PARTITION = 2
    SUPERSTEP = 3
    BARRIER = 4
    USER_EVENT = 5


_DATA_TYPES = {int(each): each for each in DataType}


@dataclass(frozen=True, slots=True)
class SealedBuffer:
    """A buffer ready to be written: ``header + payload + tail`` are its bytes in the file. ``raw_bytes``:
    size of the payload before compression. ``records``: rows in it."""

    header: bytes
    payload: BytesLike
    tail: bytes
    checksum: int
    bytes: int
    raw_bytes: int
    records: int


class StoredBuffer(NamedTuple):
    """A verified buffer in an extent. Its payload is ``extent[start : start + size]``. ``broadcast``:
    encrypted for all subpartitions. A named tuple: each buffer read makes one, and a dataclass takes twice
    the time."""

    start: int
    size: int
    data_type: DataType
    compressed: bool
    encrypted: bool = False
    broadcast: bool = False


def sealed_size(payload_bytes: int) -> int:
    """Return the bytes that a payload of this size takes in the file."""
    return -(-(payload_bytes + _FRAME_BYTES) // ALIGNMENT) * ALIGNMENT


def seal(
    payload: BytesLike,
    size: int,
    *,
    records: int,
    data_type: DataType = DataType.DATA,
) -> SealedBuffer:
    """Return a buffer of a raw payload of ``size`` bytes, which is not copied."""
    return _seal(_HEADER.pack(data_type, 0, 0, _expect_fits(size)), payload, size, size, records)


def seal_compressed(block: BytesLike, size: int, *, records: int, raw_bytes: int) -> SealedBuffer:
    """Return a buffer of one block of the file's codec, which decompresses to ``raw_bytes``."""
    size += _U64.size
    header = _HEADER.pack(DataType.DATA, _COMPRESSED, 0, _expect_fits(size)) + _U64.pack(raw_bytes)
    return _seal(header, block, size, raw_bytes, records)


def raw_size(extent: memoryview, buffer: StoredBuffer) -> int:
    """Return the size that a compressed buffer's block decompresses to, from the 8 bytes before the block."""
    return int(_U64.unpack_from(extent, buffer.start)[0])


def raw_bytes_of(extent: memoryview, buffer: StoredBuffer) -> int:
    """Return the bytes of a verified buffer's payload before compression and encryption, from its header."""
    if buffer.compressed:
        return raw_size(extent, buffer)
    return buffer.size - TAG_BYTES if buffer.encrypted else buffer.size


def encrypted_header(header: bytes, is_broadcast: bool) -> bytes:
    """Return the header of the same buffer encrypted, with the raw size if it is compressed."""
    data_type, flags, reserved, size = _HEADER.unpack_from(header)
    flags |= _ENCRYPTED | (_BROADCAST if is_broadcast else 0)
    return _HEADER.pack(data_type, flags, reserved, size + TAG_BYTES) + header[BUFFER_HEADER_BYTES:]


def seal_with_header(header: bytes, payload: BytesLike, raw_bytes: int, records: int) -> SealedBuffer:
    """Return a buffer of this complete header and this payload."""
    size = _HEADER.unpack_from(header)[3]
    return _seal(header, payload, size, raw_bytes, records)


def _expect_fits(size: int) -> int:
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a buffer holds at most {MAX_PAYLOAD_BYTES} bytes, not {size}")
    return size


def _seal(header: bytes, payload: BytesLike, size: int, raw_bytes: int, records: int) -> SealedBuffer:
    padding = _PADDING[-(size + _FRAME_BYTES) % ALIGNMENT]
    digest = checksum_of_parts(header, payload, padding)
    tail = padding + _U64.pack(digest)
    return SealedBuffer(header, payload, tail, digest, sealed_size(size), raw_bytes, records)


class BufferScan(NamedTuple):
    """One buffer, its end, and its checksum. A named tuple, as `StoredBuffer` is."""

    buffer: StoredBuffer
    end: int
    checksum: int


def scan_buffer(extent: memoryview, position: int) -> BufferScan:
    """Parse and verify the buffer that starts at ``position``. Raises `Malformed`. The size field must fit
    into the bytes; then the checksum proves it."""
    if position + BUFFER_HEADER_BYTES > len(extent):
        raise CutShort("a buffer header is cut short", position, BUFFER_HEADER_BYTES, len(extent) - position)
    kind, flags, reserved, size = _HEADER.unpack_from(extent, position)
    end = position + sealed_size(size)
    if end > len(extent):
        raise CutShort("a buffer is cut short", position, end - position, len(extent) - position)
    (stored,) = _U64.unpack_from(extent, end - CHECKSUM_BYTES)
    computed = checksum(extent[position : end - CHECKSUM_BYTES])
    if computed != stored:
        raise Malformed("a buffer fails its checksum", position, f"{stored:#018x}", f"{computed:#018x}")
    return BufferScan(_parsed_header(position, kind, flags, reserved, size), end, stored)


def expect_known(header: BytesLike) -> None:
    """Raise `Malformed` for a header that `scan_buffer` refuses. For buffers that are not scanned whole."""
    _parsed_header(0, *_HEADER.unpack_from(header))


def _parsed_header(position: int, kind: int, flags: int, reserved: int, size: int) -> StoredBuffer:
    """Return the buffer at ``position`` with this header. Raises `Malformed` for unknown values."""
    data_type = _DATA_TYPES.get(kind)
    if data_type is None or flags not in _KNOWN_FLAGS or reserved:
        raise Malformed("a buffer header has values this release does not know", position, 0, (kind, flags))
    start = position + BUFFER_HEADER_BYTES
    if flags <= _COMPRESSED:
        return StoredBuffer(start, size, data_type, bool(flags))
    least = TAG_BYTES + (RAW_SIZE_BYTES if flags & _COMPRESSED else 0)
    if size < least:
        raise Malformed("an encrypted buffer has no room for its tag", position, least, size)
    return StoredBuffer(
        start, size, data_type, bool(flags & _COMPRESSED), True, broadcast=bool(flags & _BROADCAST)
    )


def scan_extent(extent: memoryview, expected_checksum: int, expected_buffers: int) -> Iterator[StoredBuffer]:
    """Yield the buffers of a whole extent. Each is verified before it is yielded, the extent at its end.
    Raises `Malformed` at the first wrong buffer."""
    position = 0
    checksums: list[int] = []
    while position < len(extent):
        scan = scan_buffer(extent, position)
        checksums.append(scan.checksum)
        yield scan.buffer
        position = scan.end
    if len(checksums) != expected_buffers:
        raise Malformed(
            "the extent has another number of buffers", position, expected_buffers, len(checksums)
        )
    found = checksum_of_checksums(checksums)
    if found != expected_checksum:
        raise Malformed("the extent fails its checksum", 0, f"{expected_checksum:#018x}", f"{found:#018x}")
