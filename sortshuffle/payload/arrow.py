"""Arrow record batches as payloads: one batch, one IPC message, one buffer.

A message carries no schema: the index stores the schema once. A batch decoded from an uncompressed message
points into the memory that was read and keeps it alive. A compressed message is decoded into new memory.

Used by `ShuffleFrame`, and by `engine` for batches. The payload is thread-safe; a decoder serves one thread.
"""

from __future__ import annotations

import time
from typing import ClassVar

import pyarrow as pa

from sortshuffle.format.buffer import SealedBuffer, StoredBuffer, seal, seal_compressed
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.metrics import Seconds
from sortshuffle.options import MIB, Options
from sortshuffle.payload.compression import Compression, copy_to_fit

# A batch of this size is worth a call of a user's function: it has twice the rows of Spark's own Arrow
# batches. Writers make messages of up to this size; readers join smaller ones until they reach it
BATCH_ROWS = 20_000
BATCH_BYTES = 4 * MIB


class ArrowPayload:
    """Encodes batches of one schema into buffers, and decodes them."""

    kind: ClassVar[PayloadKind] = PayloadKind.ARROW

    def __init__(self, schema: pa.Schema, codec: Codec, level: int | None = None) -> None:
        self.schema = schema
        self.codec = codec
        self._compression = Compression(codec, level)

    @staticmethod
    def of(schema: pa.Schema, options: Options) -> ArrowPayload:
        """Return the payload that ``options`` choose for batches of ``schema``."""
        return ArrowPayload(schema, Codec[options.codec.upper()], options.codec_level)

    def encode(self, batch: pa.RecordBatch, seconds: Seconds) -> SealedBuffer:
        """Encode ``batch`` into one buffer. Adds to the steps encode, compress and checksum."""
        started = time.perf_counter()
        message = batch.serialize()
        serialized = time.perf_counter()
        seconds["encode"] += serialized - started
        block = self._compression.block(message)
        if block is not None:
            block = copy_to_fit(block)
        compressed = time.perf_counter()
        if self.codec is not Codec.NONE:
            seconds["compress"] += compressed - serialized
        if block is None:
            sealed = seal(message, message.size, records=batch.num_rows)
        else:
            sealed = seal_compressed(block, block.size, records=batch.num_rows, raw_bytes=message.size)
        seconds["checksum"] += time.perf_counter() - compressed
        return sealed

    def decoder(self, seconds: Seconds) -> MessageDecoder:
        """Return a decoder for one extent. It adds to the steps decompress and decode."""
        return MessageDecoder(self, seconds)

    def decode(self, extent: pa.Buffer, buffer: StoredBuffer, seconds: Seconds) -> pa.RecordBatch:
        """Decode a verified buffer. Adds to the steps decompress and decode. Raises `Malformed`."""
        started = time.perf_counter()
        message = self._compression.payload(extent, buffer)
        decompressed = time.perf_counter()
        try:
            batch = pa.ipc.read_record_batch(message, self.schema)
        except (ValueError, OSError) as error:
            raise Malformed(f"a verified buffer cannot be decoded: {error}", 0) from error
        seconds["decompress"] += decompressed - started
        seconds["decode"] += time.perf_counter() - decompressed
        return batch

    def copied(self, raw_bytes: int) -> int:
        """Return 0: a batch points into its message, so decoding copies nothing."""
        return 0


class MessageDecoder:
    """Decodes the buffers of one extent in order, each into a batch. ``records``: rows decoded so far."""

    def __init__(self, payload: ArrowPayload, seconds: Seconds) -> None:
        self.records = 0
        self._payload = payload
        self._seconds = seconds

    def decode(self, memory: pa.Buffer, buffer: StoredBuffer) -> pa.RecordBatch:
        """Decode a verified buffer. Raises `Malformed`."""
        batch = self._payload.decode(memory, buffer, self._seconds)
        self.records += batch.num_rows
        return batch

    def finish(self) -> None:
        """Do nothing: each buffer is a whole message, so there is nothing to check."""

    def close(self) -> None:
        """Do nothing: the decoder holds no resources."""
