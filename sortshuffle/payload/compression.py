"""Compression of single buffers with the file's codec, kept only where it saves.

Used by all payloads. Thread-safe: holds no state but the codec, and pyarrow's codecs keep none.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sortshuffle.format.buffer import RAW_SIZE_BYTES, StoredBuffer, raw_size
from sortshuffle.format.header import Codec
from sortshuffle.format.malformed import Malformed

# "lz4_raw" is the block format: a frame's own header and checksum would double what a buffer has
_ARROW_CODECS = {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd"}
MOST_COMPRESSED = 0x7E000000  # bytes; LZ4_MAX_INPUT_SIZE. Only a single huge record can be larger
# a block that saves less than a twentieth costs its reader more time than the bytes are worth
WORTH_DECOMPRESSING = 0.95
# More than this many bytes no byte of a block decompresses to: LZ4 lengthens a match by 255 for each, ZSTD
# has no block of less than 4 bytes for its most, 128 KiB. So a size that claims gigabytes allocates none
_MOST_PER_BYTE = {Codec.LZ4: 255, Codec.ZSTD: 2**15}


class Compression:
    """One codec at one level. ``level``: of ZSTD; None for its default."""

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        self.codec = codec
        self._codec = None
        if codec is not Codec.NONE:
            self._codec = pa.Codec(_ARROW_CODECS[codec], level if codec is Codec.ZSTD else None)

    def block(self, payload: Any) -> pa.Buffer | None:
        """The payload (anything with the buffer protocol) as one compressed block; None where that is not
        worth it. The block has memory of the payload's size: who keeps it, copies it (`copy_to_fit`)."""
        if self._codec is None or not 0 < len(payload) <= MOST_COMPRESSED:
            return None
        block = self._codec.compress(payload)
        if block.size + RAW_SIZE_BYTES >= len(payload) * WORTH_DECOMPRESSING:
            return None
        return block

    def payload(self, extent: pa.Buffer, buffer: StoredBuffer) -> pa.Buffer:
        """The payload of a verified buffer as it was before compression; of an uncompressed one a slice of
        ``extent``. Raises `Malformed`."""
        if not buffer.compressed:
            return extent.slice(buffer.start, buffer.size)
        if self._codec is None:
            raise Malformed("a compressed buffer in a file without a codec", 0)
        if buffer.size < RAW_SIZE_BYTES:
            raise Malformed("a compressed buffer has no size", 0, RAW_SIZE_BYTES, buffer.size)
        size = raw_size(memoryview(extent), buffer)
        most = (buffer.size - RAW_SIZE_BYTES) * _MOST_PER_BYTE[self.codec]
        if size > most:
            raise Malformed("a buffer says that it decompresses to more than it can", 0, most, size)
        block = extent.slice(buffer.start + RAW_SIZE_BYTES, buffer.size - RAW_SIZE_BYTES)
        try:
            return self._codec.decompress(block, size)
        except (ValueError, OSError, OverflowError) as error:  # too little memory is no damage
            raise Malformed(f"a buffer cannot be decompressed ({error})", 0) from None


def copy_to_fit(block: pa.Buffer) -> pa.Buffer:
    """A copy of a block in memory of its own size."""
    copy = pa.allocate_buffer(block.size)
    memoryview(copy).cast("B")[:] = memoryview(block).cast("B")
    return copy
