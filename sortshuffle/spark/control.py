"""Control rows: what a map task tells the reduce tasks, through Spark's own shuffle.

One row for each (map output, non-empty subpartition): ``partition int, subpartition int, map_index int,
output binary, exchange int``. Spark moves a row to its partition, keeps only the winning attempt's rows, and
drops them with the executor that wrote the files: that is the whole commit protocol. One shuffle may carry
the rows of several exchanges, in a range of partitions each: subpartition s of one of them is partition
``first + s``. A task that reads several exchanges tells their rows apart by ``exchange``, its number.

``output`` is little endian: file id (16 bytes), task attempt (8), number of regions (4), length of host (2)
and of base path (2), host, base path; then one index entry (48 bytes) for each region, or nothing where
there are more than `INLINE_REGIONS`: then the consumer reads the index file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sortshuffle.format.index import ENTRY, Index
from sortshuffle.read.channel import LocalInputChannel
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.reader import extent_of, extents_of, read_index

COLUMNS = "partition int, subpartition int, map_index int, output binary, exchange int"
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("subpartition", pa.int32()),
        ("map_index", pa.int32()),
        ("output", pa.binary()),
        ("exchange", pa.int32()),
    ]
)

# 64 entries are 3 KiB a row. A task with more regions than that has written some 16 GiB at the default
# memory, and one more open file per map output is no cost beside reading them.
INLINE_REGIONS = 64
ROWS_PER_BATCH = 4096

_HEAD = struct.Struct("<16sqIHH")


@dataclass(frozen=True, slots=True)
class MapOutput:
    """A finished map output, as its writer describes it."""

    file: PartitionedFile
    file_id: bytes
    map_index: int
    attempt: int
    host: str


def control_batches(
    output: MapOutput, index: Index, first: int = 0, exchange: int = 0
) -> Iterator[pa.RecordBatch]:
    """The control rows of a map output, in batches of `SCHEMA`. ``first``: the partition of Spark's shuffle
    that subpartition 0 goes to. ``exchange``: the number of the exchange."""
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


def channels(batches: Iterator[pa.RecordBatch]) -> list[LocalInputChannel]:
    """The channels of one consumer, from the control rows it received; those without a map output only say
    that there is a partition."""
    return [
        _channel(subpartition, map_index, output)
        for batch in batches
        for subpartition, map_index, output in zip(*(c.to_pylist() for c in batch.columns[1:4]), strict=True)
        if output is not None
    ]


def _pack_head(output: MapOutput, regions: int) -> bytes:
    host, base = output.host.encode(), output.file.base.encode()
    head = _HEAD.pack(output.file_id, output.attempt, regions, len(host), len(base))
    return head + host + base


def _channel(subpartition: int, map_index: int, packed: bytes) -> LocalInputChannel:
    file_id, attempt, regions, host_bytes, base_bytes = _HEAD.unpack_from(packed)
    base_start = _HEAD.size + host_bytes
    entries_start = base_start + base_bytes
    host = packed[_HEAD.size : base_start].decode()
    file = PartitionedFile(packed[base_start:entries_start].decode())
    if regions <= INLINE_REGIONS:
        entries = np.frombuffer(packed, ENTRY, offset=entries_start)
        extents = [extent_of(e, region, subpartition) for region, e in enumerate(entries) if e["bytes"]]
    else:
        extents = extents_of(read_index(file, file_id), subpartition)
    writer = f"attempt {attempt} of map {map_index} on {host}"
    return LocalInputChannel(file, file_id, map_index, writer, tuple(extents))
