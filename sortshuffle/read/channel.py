"""`LocalInputChannel`: one consumer's view of one map output whose files this host can open.

"Local" means that the data file opens and carries the promised id, never that a host name matches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

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
        """Bytes that the fetch holds: extents as stored, and decompressed where they are compressed."""
        return sum(extent.bytes + extent.raw_bytes for extent in self.extents)

    def run(self, payload: ArrowPayload) -> Fetched:
        """Open, read, verify, decompress, decode. Raises `DataLossError` with the place."""
        metrics = TaskMetrics()
        batches: list[pa.RecordBatch] = []
        with self._open() as reader:
            for extent in self.extents:
                started = time.perf_counter()
                part = reader.read_extent(extent)
                metrics.seconds["read"] += time.perf_counter() - started
                batches.extend(decoded(part, payload, metrics))
                count(extent, metrics)
        return Fetched(batches, metrics)

    def stream(self, payload: ArrowPayload, part_bytes: int, metrics: TaskMetrics) -> Iterator[pa.RecordBatch]:
        """The same batch by batch, holding about ``part_bytes`` at a time."""
        with self._open() as reader:
            for extent in self.extents:
                count(extent, metrics)
                for part in reader.read_parts(extent, part_bytes):
                    yield from decoded(part, payload, metrics)

    def _open(self) -> PartitionedFileReader:
        return PartitionedFileReader(self.channel.file, self.channel.file_id, self.channel.writer)


def decoded(part: ExtentPart, payload: ArrowPayload, metrics: TaskMetrics) -> list[pa.RecordBatch]:
    return [payload.decode(part.memory, buffer, metrics.seconds) for buffer in part.buffers]


def count(extent: Extent, metrics: TaskMetrics) -> None:
    metrics.add(
        rows_read=extent.records,
        bytes_read=extent.bytes,
        raw_bytes_read=extent.raw_bytes,
        extents_read=1,
    )
