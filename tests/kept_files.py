"""Writes small files of every payload kind and codec, plain and encrypted, as this release does.

    python tests/kept_files.py        into tests/written_by/VERSION/files, which is not there yet

What it wrote when a release was made stays in git: later releases must read it. The same release writes the
same bytes again, if Arrow is of the same release, too. `test_kept_files.py` says what is in the files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from engine import Modulo, end_region

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.events import SUPERSTEP, Barrier, UserEvent
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.pickled import Pairs, PickledPayload, pack_chunk, pack_content
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.version import __version__
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.frame_encoder import FrameLayout, frame_layout
from sortshuffle.writing.frame_partition import FrameResultPartition
from sortshuffle.writing.placed_partition import PlacedResultPartition
from sortshuffle.writing.placed_records import PlacedRecords, RecordBytesLayout
from sortshuffle.writing.row_partition import RowResultPartition

KEPT = Path(__file__).parent / "written_by"
KEY = EncryptionKey(bytes(range(32)))
SUBPARTITIONS = 3
FIRST = 1
BUFFER_BYTES = 1024  # of frames: those of 2,560 bytes lie in several buffers
MEMORY = MIB
APPLICATION, EXCHANGE, MAP_INDEX, ATTEMPT = "app-1", 3, 17, 204
DRIVER = bytes(range(32, 48))

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("list", pa.list_(pa.int32())),
        pa.field("half", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Variant:
    """What distinguishes one kept file from the others."""

    kind: PayloadKind
    codec: Codec
    is_encrypted: bool

    @property
    def name(self) -> str:
        names = [self.kind.name, self.codec.name, *["encrypted"] * self.is_encrypted]
        return "-".join(names).lower().replace("_", "-")

    @property
    def file_id(self) -> bytes:
        return bytes([self.kind, self.codec, self.is_encrypted]).ljust(16, b"\xaa")


VARIANTS = [Variant(*each) for each in product(PayloadKind, Codec, (False, True))]


def write_files(directory: Path) -> None:
    for variant in VARIANTS:
        write_file(directory / variant.name, variant)


def write_file(directory: Path, variant: Variant) -> PartitionedFile:
    directory.mkdir(parents=True)
    file = PartitionedFile.named(str(directory), EXCHANGE, MAP_INDEX, ATTEMPT)
    header = FileHeader(variant.file_id, SUBPARTITIONS, FIRST, variant.codec, variant.kind)
    writer = PartitionedFileWriter(file, header, key=KEY if variant.is_encrypted else None)
    WRITE_CONTENT[variant.kind](writer, variant.codec)
    return file


def written_by(ordering: tuple[str, ...] = ()) -> WriterInfo:
    software = f"sortshuffle {__version__}"
    time = "2026-01-02T03:04:05.678+00:00"
    return WriterInfo(
        APPLICATION, EXCHANGE, 5, MAP_INDEX, ATTEMPT, "host", time, software, ordering, DRIVER.hex()
    )


def write_rows(writer: PartitionedFileWriter, codec: Codec) -> None:
    layout = PartitionLayout(ArrowPayload(SCHEMA, codec), Modulo(SUBPARTITIONS), BUFFER_BYTES)
    with RowResultPartition(writer, layout, MemoryBudget(MEMORY), TaskMetrics()) as partition:
        partition.write(rows(0, 1, 3, 4))
        end_region(partition)
        partition.write(rows(6, 7))
        partition.broadcast(rows(100))
        partition.finish(written_by(ordering=("k",)))


def rows(*keys: int) -> pa.RecordBatch:
    """Row 4 has nulls."""
    every = [row(key) if key != 4 else {"k": key} for key in keys]
    return pa.RecordBatch.from_pylist(every, SCHEMA)


def row(key: int) -> dict[str, object]:
    return {
        "k": key,
        "text": f"text {key} " * 20,
        "price": Decimal(key) / 4,
        "at": datetime.fromtimestamp(key, timezone.utc),
        "list": [key, -key],
        "half": key / 2,
    }


def write_objects(writer: PartitionedFileWriter, codec: Codec) -> None:
    grouped = Pairs(["x", "y"], [1, 2, 3], counts=[2, 1])
    with ExitStack() as opened:
        partition = opened.enter_context(frame_partition(writer, PickledPayload(codec), opened))
        partition.emit(pack_chunk([("a", 1), {"b": [2, None]}, "word " * 500]), 0)
        partition.emit(pack_chunk([3.5]), 1)
        partition.broadcast_event(SUPERSTEP)
        for pairs in (Pairs(["x", "y"], [1, 2]), Pairs(["x"], [3], combined=True), grouped):
            partition.emit(pack_content(len(pairs), pairs.content), 0)
        partition.broadcast_event(Barrier(7, 1_700_000_000_000_000, b"options"))
        partition.broadcast_event(UserEvent("name", b"data"))
        partition.broadcast_frame(pack_chunk(["to all"]))
        partition.finish(written_by())


def write_frames(writer: PartitionedFileWriter, codec: Codec) -> None:
    with ExitStack() as opened:
        partition = opened.enter_context(frame_partition(writer, FramesPayload(codec), opened))
        partition.emit(b"short", 0)
        partition.emit(bytes(range(256)) * 10, 0)
        partition.emit(b"", 1)
        partition.broadcast_event(SUPERSTEP)
        partition.broadcast_frame(b"to all")
        partition.finish(written_by())


def frame_partition(
    writer: PartitionedFileWriter, payload: FramesPayload, opened: ExitStack
) -> FrameResultPartition:
    segments = frame_layout(payload, SUBPARTITIONS, MEMORY, opened)
    layout = FrameLayout(payload, segments.pool, BUFFER_BYTES)
    return FrameResultPartition(writer, layout, MemoryBudget(MEMORY), TaskMetrics())


def write_record_bytes(writer: PartitionedFileWriter, codec: Codec) -> None:
    layout = RecordBytesLayout(RecordBytesPayload(codec), SUBPARTITIONS)
    with PlacedResultPartition(writer, layout, MemoryBudget(MEMORY), TaskMetrics()) as partition:
        partition.write(unsafe_rows(range(80)))
        end_region(partition)
        partition.write(unsafe_rows(range(80, 86)))
        partition.finish(written_by())


def unsafe_rows(numbers: range) -> PlacedRecords:
    """Spark's rows of a long and half of it, as its serializer writes them. Odd ones go to subpartition 1."""
    records = [struct.pack(">i", 24) + struct.pack("<qqd", 0, number, number / 2) for number in numbers]
    ends = np.cumsum([len(record) for record in records], dtype=np.int32)
    return PlacedRecords(np.array([number % 2 for number in numbers], np.int32), ends, b"".join(records))


WRITE_CONTENT: dict[PayloadKind, Callable[[PartitionedFileWriter, Codec], None]] = {
    PayloadKind.ARROW: write_rows,
    PayloadKind.PICKLE: write_objects,
    PayloadKind.FRAMES: write_frames,
    PayloadKind.RECORD_BYTES: write_record_bytes,
}


if __name__ == "__main__":
    write_files(KEPT / __version__ / "files")
