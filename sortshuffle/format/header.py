"""The 56 bytes that open both files (`docs/format.md`, "File header").

One struct for the data and the index file: only the magic differs, so a stray file of a pair still says
what it belongs to, how many subpartitions it has and which codec its payloads use.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from sortshuffle.format.checksum import checksum
from sortshuffle.format.malformed import Malformed

DATA_MAGIC = b"\x89SSD\r\n\x1a\n"
INDEX_MAGIC = b"\x89SSI\r\n\x1a\n"
VERSION = 1
HEADER_BYTES = 56
ID_BYTES = 16

_LAYOUT = struct.Struct("<8sHHBBH16sIIQQ")
_CHECKED_BYTES = HEADER_BYTES - 8


class Codec(IntEnum):
    """How compressed payloads are compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class PayloadKind(IntEnum):
    """What the payloads of data buffers hold."""

    ARROW = 1
    PICKLE = 2
    FRAMES = 3
    RECORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What every reader must know first.

    ``file_id``: 16 bytes shared by the pair. ``first_subpartition``: the one whose extent is written
    first in each region, less than ``subpartitions``.
    """

    file_id: bytes
    subpartitions: int
    first_subpartition: int
    codec: Codec
    payload_kind: PayloadKind

    def pack(self, magic: bytes) -> bytes:
        """The header's bytes, for the file that ``magic`` names."""
        if len(self.file_id) != ID_BYTES:
            raise ValueError(f"a file id has {ID_BYTES} bytes, not {len(self.file_id)}")
        packed = _LAYOUT.pack(
            magic,
            VERSION,
            HEADER_BYTES,
            self.codec,
            self.payload_kind,
            0,
            self.file_id,
            self.subpartitions,
            self.first_subpartition,
            0,
            0,
        )
        return packed[:_CHECKED_BYTES] + checksum(packed[:_CHECKED_BYTES]).to_bytes(8, "little")

    @staticmethod
    def unpack(data: bytes, magic: bytes) -> FileHeader:
        """Read a header back. Raises `Malformed`."""
        if len(data) < HEADER_BYTES:
            raise Malformed("the file header is cut short", len(data), HEADER_BYTES, len(data))
        found = _LAYOUT.unpack_from(data)
        found_magic, version, size, codec, kind, reserved, file_id, subpartitions, first, spare, crc = found
        if found_magic != magic:
            raise Malformed("the magic is wrong", 0, magic, found_magic)
        # before the checksum: another version may compute or place that differently
        if version != VERSION:
            raise Malformed("the format version is not known to this release", 8, VERSION, version)
        if crc != checksum(data[:_CHECKED_BYTES]):
            raise Malformed(
                "the file header fails its checksum", 48, hex(checksum(data[:_CHECKED_BYTES])), hex(crc)
            )
        if size != HEADER_BYTES or reserved or spare:
            raise Malformed("reserved bytes of the file header are set", 10, 0, (size, reserved, spare))
        if codec not in Codec._value2member_map_ or kind not in PayloadKind._value2member_map_:
            raise Malformed("codec or payload kind is not known", 12, "a known one", (codec, kind))
        if not first < subpartitions:
            raise Malformed("the first subpartition is out of range", 36, f"< {subpartitions}", first)
        return FileHeader(file_id, subpartitions, first, Codec(codec), PayloadKind(kind))
