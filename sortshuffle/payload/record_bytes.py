"""Record bytes as payloads: records that a foreign serializer made, without separators.

Only the serializer that wrote the records can tell where one ends. This package moves the bytes; the writer
says how many records they hold. A buffer may end within a record; an extent holds whole records.

Used by the shuffle manager's engine (`service.jvm`), whose records are Spark's. Thread-safe.
"""

from __future__ import annotations

import time
from typing import ClassVar

import pyarrow as pa

from sortshuffle.format.buffer import DataType, SealedBuffer, StoredBuffer, seal, seal_compressed
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.metrics import Seconds
from sortshuffle.payload.compression import Compression, copy_to_fit

# Bytes; smaller payloads are not compressed. There is little to save, and sealing small extents one by one,
# with compression, takes seven times as long as sealing many at once (`format.extent_run`)
LEAST_COMPRESSED = 512
# A block lies in memory of its payload's size. If that is more than this many times the block's size, the
# block is copied, so a kept block pins no more than that. To copy all blocks took 0.2 ns for each byte of
# payload, out of 2.5 ns for writing it
MOST_PINNED = 2


class RecordBytesPayload:
    """Seals bytes of records into buffers, and reads them back."""

    kind: ClassVar[PayloadKind] = PayloadKind.RECORD_BYTES

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        self.codec = codec
        self._compression = Compression(codec, level)

    def seal(self, data: BytesLike, records: int, seconds: Seconds) -> SealedBuffer:
        """Seal the bytes of ``records`` records into a buffer. Adds to the steps compress and checksum.
        An uncompressed buffer points to ``data``. A compressed buffer pins memory of up to `MOST_PINNED`
        times its size, and lives only until the next gathered write.
        """
        size = len(data)
        started = time.perf_counter()
        block = self._compression.block(data) if size >= LEAST_COMPRESSED else None
        if block is not None and size > MOST_PINNED * block.size:
            block = copy_to_fit(block)
        compressed = time.perf_counter()
        seconds["compress"] += compressed - started
        if block is None:
            sealed = seal(data, size, records=records)
        else:
            sealed = seal_compressed(block, block.size, records=records, raw_bytes=size)
        seconds["checksum"] += time.perf_counter() - compressed
        return sealed

    def raw(self, memory: pa.Buffer, buffer: StoredBuffer) -> pa.Buffer:
        """Return a verified buffer's bytes: decompressed, or a slice of ``memory``. Raises `Malformed`."""
        return self._compression.payload(memory, buffer)

    def decoder(self, seconds: Seconds) -> RecordBytesDecoder:
        """Return a decoder for one extent. It adds to the step decompress."""
        return RecordBytesDecoder(self, seconds)

    def copied(self, raw_bytes: int) -> int:
        """Return 0: decoding copies nothing."""
        return 0


class RecordBytesDecoder:
    """Returns the record bytes of each buffer. ``records``: None, because records cannot be counted here."""

    records = None

    def __init__(self, payload: RecordBytesPayload, seconds: Seconds) -> None:
        self._payload = payload
        self._seconds = seconds

    def decode(self, memory: pa.Buffer, buffer: StoredBuffer) -> pa.Buffer:
        """Return the record bytes of a verified buffer. Raises `Malformed`."""
        if buffer.data_type is not DataType.DATA:
            raise Malformed("an event among record bytes", 0, DataType.DATA, buffer.data_type)
        started = time.perf_counter()
        raw = self._payload.raw(memory, buffer)
        self._seconds["decompress"] += time.perf_counter() - started
        return raw

    def finish(self) -> None:
        """Do nothing: any buffer may be the last, so there is nothing to check."""

    def close(self) -> None:
        """Do nothing: the decoder holds no resources."""
