"""Arrow record batches as payloads: one batch, one IPC message, one buffer.

A message does not carry its schema: the index does, once. A batch decoded from an uncompressed message
points into the memory that was read, and keeps it alive; a compressed one into memory of its own.

Thread-safe: holds no state but the codec, and pyarrow's codecs keep none.
"""

from __future__ import annotations

import time

import pyarrow as pa

from sortshuffle.format.buffer import (
    RAW_SIZE_BYTES,
    SealedBuffer,
    StoredBuffer,
    raw_size,
    seal,
    seal_compressed,
)
from sortshuffle.format.header import Codec
from sortshuffle.metrics import Seconds
from sortshuffle.options import Options

# "lz4_raw" is the block format: a frame's own header and checksum would double what a buffer has
_ARROW_CODECS = {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd"}
MOST_COMPRESSED = 0x7E000000  # bytes; LZ4_MAX_INPUT_SIZE. Only a single huge row can be larger

# a block that saves less than a twentieth costs its reader more time than the bytes are worth
WORTH_DECOMPRESSING = 0.95


class ArrowPayload:
    """Encodes batches of one schema into buffers, and decodes them."""

    def __init__(self, schema: pa.Schema, codec: Codec, level: int | None = None) -> None:
        self.schema = schema
        self.codec = codec
        self._codec = None
        if codec is not Codec.NONE:
            self._codec = pa.Codec(_ARROW_CODECS[codec], level if codec is Codec.ZSTD else None)

    @staticmethod
    def of(schema: pa.Schema, options: Options) -> ArrowPayload:
        """The payload that these options choose."""
        return ArrowPayload(schema, Codec[options.codec.upper()], options.codec_level)

    def encode(self, batch: pa.RecordBatch, seconds: Seconds) -> SealedBuffer:
        """One buffer that holds ``batch``; adds to the steps encode, compress and checksum."""
        started = time.perf_counter()
        message = batch.serialize()
        serialized = time.perf_counter()
        seconds["encode"] += serialized - started
        if self._codec is not None and message.size <= MOST_COMPRESSED:
            block = self._codec.compress(message)
            compressed = time.perf_counter()
            seconds["compress"] += compressed - serialized
            if block.size + RAW_SIZE_BYTES < message.size * WORTH_DECOMPRESSING:
                sealed = seal_compressed(
                    _fitted(block), block.size, records=batch.num_rows, raw_bytes=message.size
                )
                seconds["checksum"] += time.perf_counter() - compressed
                return sealed
            serialized = compressed
        sealed = seal(message, message.size, records=batch.num_rows)
        seconds["checksum"] += time.perf_counter() - serialized
        return sealed

    def decode(self, extent: pa.Buffer, buffer: StoredBuffer, seconds: Seconds) -> pa.RecordBatch:
        """The batch in a verified data buffer; adds to the steps decompress and decode."""
        started = time.perf_counter()
        message = self._message(extent, buffer)
        decompressed = time.perf_counter()
        batch = pa.ipc.read_record_batch(message, self.schema)
        seconds["decompress"] += decompressed - started
        seconds["decode"] += time.perf_counter() - decompressed
        return batch

    @staticmethod
    def raw_bytes(extent: pa.Buffer, buffer: StoredBuffer) -> int:
        """Size of a verified buffer's message, decompressed."""
        return raw_size(memoryview(extent), buffer) if buffer.compressed else buffer.size

    def _message(self, extent: pa.Buffer, buffer: StoredBuffer) -> pa.Buffer:
        if not buffer.compressed:
            return extent.slice(buffer.start, buffer.size)
        if self._codec is None:
            raise ValueError("a compressed buffer in a file without a codec")
        size = self.raw_bytes(extent, buffer)
        block = extent.slice(buffer.start + RAW_SIZE_BYTES, buffer.size - RAW_SIZE_BYTES)
        return self._codec.decompress(block, size)


def _fitted(block: pa.Buffer) -> pa.Buffer:
    """A copy in memory of its own size: pyarrow leaves a block in memory of the uncompressed size."""
    fitted = pa.allocate_buffer(block.size)
    memoryview(fitted).cast("B")[:] = memoryview(block).cast("B")
    return fitted
