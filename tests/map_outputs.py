"""Map outputs for tests of the reading side: real files, with as many regions, extents and messages as a
test asks for, and gates that read them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.reading.spill import NewFile
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.writer import PartitionedFileWriter

MIB = 1 << 20
ALL_CODECS = [Codec.NONE, Codec.LZ4, Codec.ZSTD]
Region = Mapping[int, Sequence[pa.RecordBatch]]
"""Batches of each subpartition; each becomes one message."""


@dataclass(frozen=True)
class MapOutput:
    """A finished pair, and what a consumer is told of it."""

    file: PartitionedFile
    file_id: bytes
    map_index: int
    payload: ArrowPayload
    key: EncryptionKey | None = None

    def channel(self, subpartition: int = 0) -> LocalInputChannel:
        extents = tuple(extents_of(read_index(self.file, self.file_id), subpartition))
        return LocalInputChannel(self.file, self.file_id, self.map_index, self.writer, extents, self.key)

    def reader(self) -> PartitionedFileReader:
        return PartitionedFileReader(self.file, self.file_id, self.writer, key=self.key)

    @property
    def writer(self) -> str:
        return f"attempt {self.map_index} of map {self.map_index}"


def write_map(
    directory: Path | str,
    schema: pa.Schema,
    regions: Sequence[Region],
    *,
    map_index: int = 0,
    codec: Codec = Codec.LZ4,
    subpartitions: int = 1,
    key: EncryptionKey | None = None,
) -> MapOutput:
    """A map output with exactly these messages, in extents of exactly these regions."""
    payload = ArrowPayload(schema, codec)
    seconds = TaskMetrics().seconds
    sealed = [
        {target: [payload.encode(batch, seconds) for batch in batches] for target, batches in region.items()}
        for region in regions
    ]
    return write_sealed(directory, payload, sealed, map_index=map_index, subpartitions=subpartitions, key=key)


def write_sealed(
    directory: Path | str,
    payload: ArrowPayload,
    regions: Sequence[Mapping[int, Sequence[SealedBuffer]]],
    *,
    map_index: int = 0,
    subpartitions: int = 1,
    key: EncryptionKey | None = None,
) -> MapOutput:
    """The same of buffers that are sealed already, whatever they hold."""
    file = PartitionedFile.named(os.fspath(directory), 1, map_index, map_index)
    file_id = map_index.to_bytes(16, "little")
    header = FileHeader(file_id, subpartitions, map_index % subpartitions, payload.codec, PayloadKind.ARROW)
    with PartitionedFileWriter(file, header, key=key) as writer:
        for region in regions:
            writer.start_region()
            order = [target for target in writer.write_order if region.get(target)]
            writer.write_extents([(target, list(region[target])) for target in order])
            writer.finish_region()
        writer.finish(WriterInfo(), payload.schema.serialize().to_pybytes())
    return MapOutput(file, file_id, map_index, payload, key)


@dataclass
class Consumer:
    """A gate over one subpartition of some map outputs, and what it reports to."""

    gate: InputGate
    budget: MemoryBudget
    metrics: TaskMetrics

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(self.gate.batches())

    def sorted_rows(self, order: RowOrder) -> list[dict[str, Any]]:
        return rows_of(self.gate.sorted_batches(order))


def consumer_of(
    outputs: Iterable[MapOutput],
    *,
    memory: int = 64 * MIB,
    threads: int = 4,
    subpartition: int = 0,
    payload: ArrowPayload | None = None,
) -> Consumer:
    outputs = list(outputs)
    budget, metrics = MemoryBudget(memory), TaskMetrics()
    channels = [output.channel(subpartition) for output in outputs]
    new_file = files_in(os.path.dirname(outputs[0].file.base))
    gate = InputGate(channels, payload or outputs[0].payload, budget, threads, metrics, new_file)
    return Consumer(gate, budget, metrics)


def files_in(directory: Path | str, key: EncryptionKey | None = None) -> NewFile:
    """Makes the files of a merge in several passes."""
    numbers = itertools.count()
    return lambda header: PartitionedFileWriter(
        PartitionedFile(os.path.join(directory, f"merge-{next(numbers)}")), header, key=key
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


READERS = ("sortshuffle-read", "sortshuffle-ahead")
"""How the names of threads begin that read map outputs."""


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(READERS)]
