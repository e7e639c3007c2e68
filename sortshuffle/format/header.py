"""The 56 bytes that open both files (`docs/format.md`, "File header").

Data and index file have the same header except for the magic. So one file of a pair, by itself, still tells
which pair it belongs to, how many subpartitions there are, and which codec the payloads use.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from sortshuffle.format.checksum import BytesLike, checksum
from sortshuffle.format.malformed import Malformed

DATA_MAGIC = b"\x89SSD\r\n\x1a\n"
INDEX_MAGIC = b"\x89SSI\r\n\x1a\n"
VERSION = 1
ENCRYPTED_VERSION = 2  # for encrypted payloads: a release that cannot decrypt refuses the file
HEADER_BYTES = 56
ID_BYTES = 16

CHECK_BYTES = 8  # of a key check
_AES_256_GCM = 1  # the only cipher
_LAYOUT = struct.Struct("<8sHHBBH16sII8sQ")
_KNOWN = f"{VERSION} or {ENCRYPTED_VERSION}"
_NO_CHECK = bytes(CHECK_BYTES)
_CHECKED_BYTES = HEADER_BYTES - 8


class Codec(IntEnum):
    """The codec of compressed payloads."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class PayloadKind(IntEnum):
    """The content of the payloads of data buffers."""

    ARROW = 1
    PICKLE = 2
    FRAMES = 3
    RECORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The facts that every reader needs first.

    ``file_id``: 16 bytes shared by the pair. ``first_subpartition``: the one whose extent is written first in
    each region, less than ``subpartitions``. ``key_check``: identifies the key of the payloads
    (`format.encryption`); empty if they are not encrypted.
    """

    file_id: bytes
    subpartitions: int
    first_subpartition: int
    codec: Codec
    payload_kind: PayloadKind
    key_check: bytes = b""

    @property
    def is_encrypted(self) -> bool:
        return bool(self.key_check)

    @property
    def version(self) -> int:
        """The version of the file's format."""
        return ENCRYPTED_VERSION if self.is_encrypted else VERSION

    def pack(self, magic: bytes) -> bytes:
        """Return the header's bytes. ``magic``: `DATA_MAGIC` or `INDEX_MAGIC`."""
        if len(self.file_id) != ID_BYTES:
            raise ValueError(f"a file id has {ID_BYTES} bytes, not {len(self.file_id)}")
        packed = _LAYOUT.pack(
            magic,
            self.version,
            HEADER_BYTES,
            self.codec,
            self.payload_kind,
            _AES_256_GCM if self.is_encrypted else 0,
            self.file_id,
            self.subpartitions,
            self.first_subpartition,
            self.key_check,
            0,
        )
        return packed[:_CHECKED_BYTES] + checksum(packed[:_CHECKED_BYTES]).to_bytes(8, "little")

    @staticmethod
    def unpack(data: BytesLike, magic: bytes) -> FileHeader:
        """Parse and verify a header. Raises `Malformed`."""
        if len(data) < HEADER_BYTES:
            raise Malformed("the file header is cut short", len(data), HEADER_BYTES, len(data))
        found = _LAYOUT.unpack_from(data)
        found_magic, version, size, codec, kind, cipher, file_id, subpartitions, first, check, crc = found
        if found_magic != magic:
            raise Malformed("the magic is wrong", 0, magic, found_magic)
        # before the checksum, which another version may compute or place differently
        if version not in (VERSION, ENCRYPTED_VERSION):
            raise Malformed("the format version is not known to this release", 8, _KNOWN, version)
        if crc != checksum(data[:_CHECKED_BYTES]):
            raise Malformed(
                "the file header fails its checksum", 48, hex(checksum(data[:_CHECKED_BYTES])), hex(crc)
            )
        is_plain = version == VERSION
        if size != HEADER_BYTES or (is_plain and (cipher or check != _NO_CHECK)):
            raise Malformed("reserved bytes of the file header are set", 10, 0, (size, cipher, check.hex()))
        if not is_plain and cipher != _AES_256_GCM:
            raise Malformed("the cipher is not known to this release", 14, _AES_256_GCM, cipher)
        if codec not in Codec._value2member_map_ or kind not in PayloadKind._value2member_map_:
            raise Malformed("codec or payload kind is not known", 12, "a known one", (codec, kind))
        if not first < subpartitions:
            raise Malformed("the first subpartition is out of range", 36, f"< {subpartitions}", first)
        key_check = b"" if is_plain else check
        return FileHeader(file_id, subpartitions, first, Codec(codec), PayloadKind(kind), key_check)
