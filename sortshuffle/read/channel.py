"""`LocalInputChannel`: one consumer's view of one map output whose files this host can open.

"Local" means that the data file opens and carries the promised id, never that a host name matches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.format.buffer import StoredBuffer, sealed_size
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.reader import Extent, ExtentPart, PartitionedFileReader


@dataclass(frozen=True, slots=True)
class LocalInputChannel:
    """The extents of one subpartition in one map output, in region order.

    ``file_id``: what the data file must carry. ``writer``: who wrote it, for errors.
    """

    file: PartitionedFile
    file_id: bytes
    map_index: int
    writer: str
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Decoded batches of some extents, and what fetching them took."""

    batches: list[pa.RecordBatch]
    metrics: TaskMetrics


@dataclass(frozen=True, slots=True)
class Fetch:
    """Consecutive extents of one channel that are read in one go."""

    channel: LocalInputChannel
    extents: tuple[Extent, ...]

    @property
    def memory(self) -> int:
        """Bytes that the fetch holds at most: extents as stored, and all of their buffers decompressed."""
        return sum(extent.bytes + extent.raw_bytes for extent in self.extents)

    def run(self, payload: ArrowPayload) -> Fetched:
        """Open, read, verify, decompress, decode. Raises `DataLossError` with the place."""
        metrics = TaskMetrics()
        batches: list[pa.RecordBatch] = []
        with self._open() as reader:
            for extent in self.extents:
                with metrics.step("read"):
                    memory = reader.read_unverified(extent)
                with metrics.step("verify"):
                    part = reader.verified(memory, extent)
                decoder = _ExtentDecoder(self.channel, extent, payload, metrics)
                batches.extend(decoder.decode(part))
                decoder.finish()
        return Fetched(batches, metrics)

    def stream(
        self, payload: ArrowPayload, part_bytes: int, budget: MemoryBudget, metrics: TaskMetrics
    ) -> Generator[pa.RecordBatch, None, None]:
        """The same batch by batch, holding about ``part_bytes`` of an extent and one batch at a time.

        What is held is charged to ``budget``. That rows and bytes are as many as promised is known, and
        raised, only behind the last batch of an extent.
        """
        with self._open() as reader:
            for extent in self.extents:
                decoder = _ExtentDecoder(self.channel, extent, payload, metrics)
                for part in metrics.timed(reader.read_parts(extent, part_bytes), "read"):
                    assert isinstance(part, ExtentPart)
                    size = part.memory.size
                    budget.charge(size)
                    try:
                        yield from decoder.decode(part)
                    finally:
                        budget.release(size)
                decoder.finish()

    def _open(self) -> PartitionedFileReader:
        return PartitionedFileReader(self.channel.file, self.channel.file_id, self.channel.writer)


class _ExtentDecoder:
    """Decodes the buffers of one extent in their order, and compares their sums with what was promised."""

    def __init__(
        self, channel: LocalInputChannel, extent: Extent, payload: ArrowPayload, metrics: TaskMetrics
    ) -> None:
        self._channel = channel
        self._extent = extent
        self._payload = payload
        self._metrics = metrics
        self._offset = extent.offset
        self._records = 0
        self._raw_bytes = 0

    def decode(self, part: ExtentPart) -> Iterator[pa.RecordBatch]:
        """The batches of a part, each decoded when it is asked for."""
        for buffer in part.buffers:
            batch = self._decoded(part, buffer)
            self._offset += sealed_size(buffer.size)
            self._records += batch.num_rows
            self._raw_bytes += self._payload.raw_bytes(part.memory, buffer)
            yield batch

    def finish(self) -> None:
        """Raises `CorruptDataError` if rows or bytes are not as many as the extent's entry says."""
        extent = self._extent
        found = (self._records, self._raw_bytes)
        if found != (extent.records, extent.raw_bytes):
            raise CorruptDataError(
                self._place(extent.offset),
                "the extent holds another number of rows or raw bytes than its entry says",
                expected=f"{extent.records} rows in {extent.raw_bytes} bytes",
                found=f"{self._records} rows in {self._raw_bytes} bytes",
            )
        self._metrics.add(
            rows_read=extent.records,
            bytes_read=extent.bytes,
            raw_bytes_read=extent.raw_bytes,
            extents_read=1,
        )

    def _decoded(self, part: ExtentPart, buffer: StoredBuffer) -> pa.RecordBatch:
        try:
            return self._payload.decode(part.memory, buffer, self._metrics.seconds)
        except (ValueError, OSError) as error:  # Arrow's errors for malformed messages and blocks
            raise CorruptDataError(
                self._place(self._offset), f"a verified buffer cannot be decoded: {error}"
            ) from error

    def _place(self, offset: int) -> Place:
        extent = self._extent
        return Place(
            self._channel.file.data_path, extent.region, extent.subpartition, offset, self._channel.writer
        )
