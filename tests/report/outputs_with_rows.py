"""Map outputs with given rows, for the tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from engine import end_region

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.report.exchanges import ExchangeFiles, ExchangeSums
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.inspection.contents import inspect
from sortshuffle.storage.inspection.finding import find_pairs
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.row_partition import RowResultPartition

SUBPARTITIONS = 4


class Places:
    """The subpartitions of the rows that are written, in their order."""

    def __init__(self, places: Sequence[int], subpartitions: int) -> None:
        self._places = np.asarray(places, np.uint16)
        self.subpartitions = subpartitions

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        own, self._places = self._places[: batch.num_rows], self._places[batch.num_rows :]
        return own


def write(
    directory: Path,
    rows: pa.Table,
    places: Sequence[int],
    *,
    subpartitions: int = SUBPARTITIONS,
    exchange: int = 3,
    map_index: int = 0,
    attempt: int | None = None,
    codec: Codec = Codec.LZ4,
    regions: int = 1,
) -> PartitionedFile:
    """Write a map output. Row ``n`` goes to subpartition ``places[n]``."""
    attempt = 100 + map_index if attempt is None else attempt
    file = PartitionedFile.named(str(directory), exchange, map_index, attempt)
    header = FileHeader(bytes(16), subpartitions, 0, codec, PayloadKind.ARROW)
    layout = PartitionLayout(ArrowPayload(rows.schema, codec), Places(places, subpartitions), 64 * KIB)
    writer = PartitionedFileWriter(file, header)
    with RowResultPartition(writer, layout, MemoryBudget(64 * MIB), TaskMetrics()) as output:
        for part in np.array_split(np.arange(len(rows)), regions) if len(rows) else ():
            for batch in rows.slice(part[0], len(part)).combine_chunks().to_batches():
                output.write(batch)
            end_region(output)
        return output.finish(
            WriterInfo("app-1", exchange, 4, map_index, attempt, "host-a", "2025-11-20", "sortshuffle")
        )


def exchanges_in(directory: Path) -> list[ExchangeFiles]:
    sums = ExchangeSums()
    for path in find_pairs(str(directory), lambda error: None):
        sums.add(inspect(path))
    return sums.exchanges


def exchange_of(directory: Path) -> ExchangeFiles:
    (found,) = exchanges_in(directory)
    return found
