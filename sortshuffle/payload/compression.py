"""Compression of single buffers with the file's codec. A buffer that would save too little stays raw.

Used by all payloads. Thread-safe: the only state is the codec, and pyarrow's codecs keep none.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sortshuffle.format.buffer import RAW_SIZE_BYTES, StoredBuffer, raw_size
from sortshuffle.format.header import Codec
from sortshuffle.format.malformed import Malformed

# "lz4_raw" is LZ4's block format: a buffer already has a size and a checksum; an LZ4 frame would repeat both
_ARROW_CODECS = {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd"}
MOST_COMPRESSED = 0x7E000000  # bytes; LZ4_MAX_INPUT_SIZE. Only a single huge record can be larger
# Fraction of the payload's size; to decompress a larger block costs more time than the saved bytes are worth
WORTH_DECOMPRESSING = 0.95
# Upper bounds of the bytes that one byte of a block decompresses to: each byte lengthens an LZ4 match by 255
# at most, and a ZSTD block of 4 bytes gives at most 128 KiB. A damaged size thus cannot allocate gigabytes
_MOST_PER_BYTE = {Codec.LZ4: 255, Codec.ZSTD: 2**15}


class Compression:
    """One codec at one level. ``level``: ZSTD's level, or None for its default; LZ4 ignores it."""

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        self.codec = codec
        self._codec = None
        if codec is not Codec.NONE:
            self._codec = pa.Codec(_ARROW_CODECS[codec], level if codec is Codec.ZSTD else None)

    def block(self, payload: Any) -> pa.Buffer | None:
        """Compress ``payload`` (any buffer) into one block, or return None if that saves too little. The
        block's memory has the payload's size: to keep a block, copy it (`copy_to_fit`)."""
        if self._codec is None or not 0 < len(payload) <= MOST_COMPRESSED:
            return None
        block = self._codec.compress(payload)
        if block.size + RAW_SIZE_BYTES >= len(payload) * WORTH_DECOMPRESSING:
            return None
        return block

    def payload(self, extent: pa.Buffer, buffer: StoredBuffer) -> pa.Buffer:
        """Return a verified buffer's payload: decompressed, or a slice of ``extent``. Raises `Malformed`."""
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
        except (ValueError, OSError, OverflowError) as error:  # not MemoryError: the buffer may be sound
            raise Malformed(f"a buffer cannot be decompressed ({error})", 0) from None


def copy_to_fit(block: pa.Buffer) -> pa.Buffer:
    """Copy a block into memory of exactly its size."""
    copy = pa.allocate_buffer(block.size)
    memoryview(copy).cast("B")[:] = memoryview(block).cast("B")
    return copy
