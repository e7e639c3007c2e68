"""Real map outputs for the tests of the command line, written by the engine's own writer.

The rows are known: `expected_rows` says what each subpartition must hold. Of the default 8 subpartitions, 5
is empty in unicast regions and 2 has far more than the others.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
from engine import end_region

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.row_partition import RowResultPartition

SUBPARTITIONS = 8
FIRST = 3
EMPTY = 5
CROWDED = 2
ROWS = 600  # of each unicast region
BROADCAST_ROWS = 4
FILE_ID = bytes(range(16))

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("seen", pa.timestamp("us", "UTC")),
        pa.field("raw", pa.binary()),
    ]
)
_START = datetime.datetime(2013, 1, 1, tzinfo=datetime.timezone.utc)


@dataclass
class Modulo:
    """Subpartition of a row: its key modulo their number."""

    subpartitions: int

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        dtype = np.uint8 if self.subpartitions <= 256 else np.uint16
        return (np.asarray(batch.column(0)) % self.subpartitions).astype(dtype)


def rows(first: int, count: int, subpartitions: int = SUBPARTITIONS) -> pa.RecordBatch:
    """Rows number ``first`` and on, none of which goes to `EMPTY` and half of which go to `CROWDED`."""
    keys = [_key(number, subpartitions) for number in range(first, first + count)]
    columns = [
        pa.array(keys, pa.int64()),
        pa.array([None if key % 7 == 0 else f"name {key}" for key in keys], pa.string()),
        pa.array([Decimal(key) / 4 for key in keys], pa.decimal128(10, 2)),
        pa.array([_START + datetime.timedelta(seconds=key) for key in keys], pa.timestamp("us", "UTC")),
        pa.array([key.to_bytes(4, "big") for key in keys], pa.binary()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _key(number: int, subpartitions: int) -> int:
    own = number % subpartitions
    is_crowded = own == EMPTY or number // subpartitions % 2 == 1
    return number * subpartitions + (CROWDED % subpartitions if is_crowded else own)


def start(
    directory: str,
    *,
    exchange: int = 3,
    map_index: int = 0,
    attempt: int = 100,
    subpartitions: int = SUBPARTITIONS,
    codec: Codec = Codec.LZ4,
    key: EncryptionKey | None = None,
) -> RowResultPartition:
    """A result partition that has been begun."""
    file = PartitionedFile.named(str(directory), exchange, map_index, attempt)
    header = FileHeader(FILE_ID, subpartitions, FIRST % subpartitions, codec, PayloadKind.ARROW)
    layout = PartitionLayout(ArrowPayload(SCHEMA, codec), Modulo(subpartitions), 64 * KIB)
    writer = PartitionedFileWriter(file, header, key=key)
    return RowResultPartition(writer, layout, MemoryBudget(16 * MIB), TaskMetrics())


def fill(output: RowResultPartition, unicast_regions: int = 2, count: int = ROWS) -> None:
    """Unicast regions of ``count`` rows each."""
    subpartitions = output._writer.header.subpartitions
    for region in range(unicast_regions):
        output.write(rows(region * count, count, subpartitions))
        end_region(output)


def signature(exchange: int, map_index: int, attempt: int, application: str) -> WriterInfo:
    return WriterInfo(
        application=application,
        exchange=exchange,
        stage=4,
        map_index=map_index,
        attempt=attempt,
        host="host-a",
        time="2025-11-20T07:00:00.000+00:00",
        software="sortshuffle 0.1.0",
    )


def build(
    directory: str,
    *,
    exchange: int = 3,
    map_index: int = 0,
    attempt: int = 100,
    application: str = "app-1",
    unicast_regions: int = 2,
    broadcast: bool = True,
    count: int = ROWS,
    **shape: object,
) -> PartitionedFile:
    """A finished map output: unicast regions, then (if asked for) a broadcast region."""
    output = start(directory, exchange=exchange, map_index=map_index, attempt=attempt, **shape)
    with output:
        fill(output, unicast_regions, count)
        if broadcast:
            output.broadcast(rows(0, BROADCAST_ROWS))
        return output.finish(signature(exchange, map_index, attempt, application))


def expected_rows(
    subpartition: int, unicast_regions: int = 2, broadcast: bool = True, count: int = ROWS
) -> list[int]:
    """The keys that the consumer of a subpartition gets, in order."""
    keys = [_key(number, SUBPARTITIONS) for number in range(unicast_regions * count)]
    own = [key for key in keys if key % SUBPARTITIONS == subpartition]
    return own + (keys[:BROADCAST_ROWS] if broadcast else [])
