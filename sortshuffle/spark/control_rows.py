"""Control rows, which tell reduce tasks where map outputs are. Spark's own shuffle moves them.

There is one row, with `COLUMNS`, for each non-empty subpartition of each map output. Spark moves a row to the
partition in its first column, keeps only the rows of the winning attempt, and drops them with the executor
that wrote the files: that is the whole commit protocol. One shuffle may carry the rows of several exchanges,
each in its own range of partitions: subpartition s of an exchange is partition ``first + s``. A task that
reads several exchanges tells their rows apart by the number in ``exchange``.

The first column is named `MARK`, as is the RDD that is shuffled for the control rows of RDDs. By this name
the shuffle manager recognises these shuffles, and leaves them to Spark, because the lifetime of map outputs
follows Spark's own shuffle files (`homes.lifetime`). Nothing else may have this name.

``output`` is little endian: file id (16 bytes), task attempt (8), attempt that adopted it (8; -1: none),
number of regions (4), length of host (2), of base path (2), of service (2) and of the adopter's service (2),
host, base path, service, adopter's service; then one index entry (48 bytes) for each region, or nothing if
there are more than `INLINE_REGIONS`, when the consumer reads the index file instead. ``service``: host:port
of the shuffle service that serves the files, empty if there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.index import ENTRY, Index
from sortshuffle.reading.channel import InputChannel, LocalInputChannel
from sortshuffle.storage.files.extents import Extent, extent_of, extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

MARK = "sortshuffle_control_rows"  # as in ControlRows.java
COLUMNS = f"{MARK} int, subpartition int, map_index int, output binary, exchange int"
SCHEMA = pa.schema(
    [
        (MARK, pa.int32()),
        ("subpartition", pa.int32()),
        ("map_index", pa.int32()),
        ("output", pa.binary()),
        ("exchange", pa.int32()),
    ]
)

# 64 entries take 3 KiB a row. A task with more regions has written some 16 GiB at the default memory: beside
# reading that, opening one more file per map output costs nothing.
INLINE_REGIONS = 64
ROWS_PER_BATCH = 4096

_HEAD = struct.Struct("<16sqqIHHHH")
_NOBODY = -1  # the adopter's attempt of an output that was not adopted


@dataclass(frozen=True, slots=True)
class Adopter:
    """The task attempt whose control rows name a map output that another attempt wrote
    (`spark.worker.adoption`). ``service``: of the adopter's host."""

    attempt: int
    service: str


@dataclass(frozen=True, slots=True)
class SparkMapOutput:
    """A finished map output. ``host``: where it was written. ``service``: host:port of the service that
    serves it, empty if there is none. ``exchange``: number of the exchange. ``regions``: number of regions,
    None if unknown. ``adopter``: the attempt that adopted it, unless its files were linked."""

    file: PartitionedFile
    file_id: bytes
    map_index: int
    attempt: int
    host: str
    service: str = ""
    exchange: int = 0
    regions: int | None = None
    adopter: Adopter | None = None

    def __str__(self) -> str:
        return f"attempt {self.attempt} of map {self.map_index} on {self.host}"


class Reach(Protocol):
    """A task's access to map outputs: by their files, or by the service that has them."""

    def index(self, output: SparkMapOutput) -> Index:
        """Return the whole, verified index. Raises `DataLossError`."""

    def channel(self, output: SparkMapOutput, extents: tuple[Extent, ...]) -> InputChannel:
        """Return the channel to these extents, without opening anything yet."""

    def close(self) -> None:
        """Close the connections to services. No channel is used afterwards."""

    def rerun_adopters(self, error: BaseException) -> None:
        """If the task's ``error`` means that adopted map outputs are lost, make Spark run their adopters
        again. Raises nothing."""


class LocalReach:
    """The `Reach` to map outputs whose files this process can open. ``key``: the application's, if they are
    encrypted."""

    def __init__(self, key: EncryptionKey | None = None) -> None:
        self._key = key

    def index(self, output: SparkMapOutput) -> Index:
        return read_index(output.file, output.file_id)

    def channel(self, output: SparkMapOutput, extents: tuple[Extent, ...]) -> InputChannel:
        return LocalInputChannel(
            output.file, output.file_id, output.map_index, str(output), extents, self._key
        )

    def close(self) -> None:
        pass

    def rerun_adopters(self, error: BaseException) -> None:
        pass


def control_batches(
    output: SparkMapOutput, index: Index, first: int = 0, exchange: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the control rows of a map output, in batches of `SCHEMA`. ``first``: the partition of Spark's
    shuffle that subpartition 0 goes to. ``exchange``: the number of the exchange."""
    head = _pack_head(output, index.regions)
    inline = index.regions <= INLINE_REGIONS
    filled = np.flatnonzero(index.entries["bytes"].any(axis=0)) if index.regions else np.empty(0, np.int64)
    for start in range(0, len(filled), ROWS_PER_BATCH):
        part = filled[start : start + ROWS_PER_BATCH]
        rows = [head + index.entries[:, s].tobytes() if inline else head for s in part.tolist()]
        yield pa.record_batch(
            [
                pa.array((part + first).astype(np.int32)),
                pa.array(part.astype(np.int32)),
                pa.array(np.full(len(part), output.map_index, np.int32)),
                pa.array(rows, pa.binary()),
                pa.array(np.full(len(part), exchange, np.int32)),
            ],
            schema=SCHEMA,
        )


def channels(batches: Iterator[pa.RecordBatch], reach: Reach) -> list[InputChannel]:
    """Return the channels for the control rows that a consumer received. Rows without a map output only show
    that there is a partition, and are skipped."""
    return [
        _channel(subpartition, map_index, output, exchange, reach)
        for batch in batches
        for subpartition, map_index, output, exchange in zip(
            *(column.to_pylist() for column in batch.columns[1:5]), strict=True
        )
        if output is not None
    ]


def _pack_head(output: SparkMapOutput, regions: int) -> bytes:
    adopter = output.adopter or Adopter(_NOBODY, "")
    texts = [text.encode() for text in (output.host, output.file.base, output.service, adopter.service)]
    head = _HEAD.pack(output.file_id, output.attempt, adopter.attempt, regions, *map(len, texts))
    return head + b"".join(texts)


def _channel(subpartition: int, map_index: int, packed: bytes, exchange: int, reach: Reach) -> InputChannel:
    file_id, attempt, adopter_attempt, regions, *lengths = _HEAD.unpack_from(packed)
    ends = list(accumulate(lengths, initial=_HEAD.size))
    host, base, service, adopter_service = (packed[start:end].decode() for start, end in pairwise(ends))
    adopter = None if adopter_attempt == _NOBODY else Adopter(adopter_attempt, adopter_service)
    file = PartitionedFile(base)
    output = SparkMapOutput(file, file_id, map_index, attempt, host, service, exchange, regions, adopter)
    if regions <= INLINE_REGIONS:
        entries = np.frombuffer(packed, ENTRY, offset=ends[-1])
        extents = [extent_of(e, region, subpartition) for region, e in enumerate(entries) if e["bytes"]]
    else:
        extents = extents_of(reach.index(output), subpartition)
    return reach.channel(output, tuple(extents))
