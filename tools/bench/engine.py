"""`engine`: the write and read path alone, on one core, against the bare minimum.

The bare minimum for the same bytes: order the rows by subpartition (argsort, take), `os.write` them,
`os.pread` them; no format, no checksums, nothing decoded. With a codec each column of a batch is compressed
before and decompressed after. Ours: `RowResultPartition`, then every subpartition through an
`InputGate` into record batches.

Before every run of either side a file of the same size is written and removed, so that both write into page
cache that was in use a moment ago: on a virtual machine whose host takes free memory back, writing into fresh
pages takes three to ten times as long, and whoever runs first would pay for it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import DATA, Side, compare, on_one_core, record
from rows import BATCH_ROWS, SCHEMA, batch

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.partitioner import id_dtype
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.row_partition import RowResultPartition

MEMORY = 256 * MIB
READ_MEMORY = 64 * MIB
CASES = ((64, Codec.NONE), (1000, Codec.NONE), (64, Codec.LZ4), (1000, Codec.LZ4))
ROUNDS = 5
DISTINCT_BATCHES = 16  # 71 MB: more than the caches hold, so every batch comes from memory


class KeyModulo:
    """The cheapest selector there is: what is measured is the engine."""

    def __init__(self, subpartitions: int) -> None:
        self.subpartitions = subpartitions

    def assign(self, rows: pa.RecordBatch) -> np.ndarray:
        return (np.asarray(rows.column(0)) % self.subpartitions).astype(id_dtype(self.subpartitions))


@contextmanager
def scratch() -> Iterator[Path]:
    DATA.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=DATA))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def stream(size: int) -> Iterator[pa.RecordBatch]:
    """About ``size`` bytes of rows."""
    distinct = distinct_batches()
    for number in range(max(1, size // distinct[0].nbytes)):
        yield distinct[number % DISTINCT_BATCHES]


@cache
def distinct_batches() -> list[pa.RecordBatch]:
    return [batch(BATCH_ROWS, seed) for seed in range(DISTINCT_BATCHES)]


def engine_side(name: str, batches: list[pa.RecordBatch], subpartitions: int, codec: Codec) -> Side:
    def run() -> tuple[int, int]:
        with scratch() as directory:
            return engine_run(directory, batches, subpartitions, codec, TaskMetrics())

    return Side(name, run)


def engine_run(
    directory: Path,
    batches: Iterable[pa.RecordBatch],
    subpartitions: int,
    codec: Codec,
    metrics: TaskMetrics,
) -> tuple[int, int]:
    """Write all batches and read them back; bytes and rows read."""
    file = PartitionedFile.named(str(directory), 0, 0, 0)
    header = FileHeader(secrets.token_bytes(16), subpartitions, 0, codec, PayloadKind.ARROW)
    payload = ArrowPayload(SCHEMA, codec)
    layout = PartitionLayout(payload, KeyModulo(subpartitions), 256 * 1024)
    budget = MemoryBudget(MEMORY)
    with RowResultPartition(PartitionedFileWriter(file, header), layout, budget, metrics) as partition:
        for rows in batches:
            partition.write(rows)
        partition.finish(WriterInfo())
    index = read_index(file, header.file_id)
    size = rows_read = 0
    for subpartition in range(subpartitions):
        extents = tuple(extents_of(index, subpartition))
        channel = LocalInputChannel(file, header.file_id, 0, "bench", extents)
        gate = InputGate([channel], payload, MemoryBudget(READ_MEMORY), 1, metrics)
        for read in gate.batches():
            size += read.nbytes
            rows_read += read.num_rows
    return size, rows_read


def bare_side(name: str, batches: list[pa.RecordBatch], subpartitions: int, codec: Codec) -> Side:
    def run() -> tuple[int, int]:
        with scratch() as directory:
            return bare_run(directory / "bare", batches, subpartitions, codec)

    return Side(name, run)


def bare_run(
    path: Path, batches: list[pa.RecordBatch], subpartitions: int, codec: Codec = Codec.NONE
) -> tuple[int, int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if codec is Codec.LZ4:
            return bare_compressed(descriptor, batches, KeyModulo(subpartitions))
        return bare_plain(descriptor, batches, KeyModulo(subpartitions))
    finally:
        os.close(descriptor)


def clustered_pieces(batches: list[pa.RecordBatch], selector: KeyModulo) -> Iterator[pa.Buffer]:
    for each in batches:
        order = np.argsort(selector.assign(each), kind="stable")
        for column in each.take(pa.array(order)).columns:
            yield from (piece for piece in column.buffers() if piece is not None)


def bare_plain(descriptor: int, batches: list[pa.RecordBatch], selector: KeyModulo) -> tuple[int, int]:
    size = sum(os.write(descriptor, piece) for piece in clustered_pieces(batches, selector))
    step = batches[0].nbytes
    for offset in range(0, size, step):
        os.pread(descriptor, step, offset)
    return size, sum(each.num_rows for each in batches)


def bare_compressed(descriptor: int, batches: list[pa.RecordBatch], selector: KeyModulo) -> tuple[int, int]:
    codec = pa.Codec("lz4_raw")
    blocks: list[tuple[int, int]] = []
    for piece in clustered_pieces(batches, selector):
        blocks.append((os.write(descriptor, codec.compress(piece)), piece.size))
    offset = size = 0
    for stored, raw in blocks:
        codec.decompress(os.pread(descriptor, stored, offset), raw)
        offset += stored
        size += raw
    return size, sum(each.num_rows for each in batches)


def recycle_page_cache(size: int) -> None:
    piece = bytes(8 * MIB)
    with scratch() as directory:
        descriptor = os.open(directory / "recycled", os.O_WRONLY | os.O_CREAT, 0o600)
        for _ in range(0, size, len(piece)):
            os.write(descriptor, piece)
        os.close(descriptor)


def main(quick: bool) -> None:
    size = 50_000_000 if quick else 1_000_000_000
    with on_one_core():
        batches = list(stream(size))
        for subpartitions, codec in CASES:
            compare(
                "engine",
                f"{size / 1e9:g} GB, {subpartitions} subpartitions, codec {codec.name.lower()}, one core,"
                " page cache recycled, against argsort + take + write + pread",
                engine_side("sortshuffle", batches, subpartitions, codec),
                bare_side("bare loop", batches, subpartitions, codec),
                rounds=1 if quick else ROUNDS,
                before=lambda: recycle_page_cache(size),
                watched=False,
                subpartitions=subpartitions,
                codec=codec.name,
                page_cache="recycled",
            )
        steps(batches)


def steps(batches: list[pa.RecordBatch]) -> None:
    """Where the time goes, for 64 subpartitions."""
    for codec in (Codec.NONE, Codec.LZ4):
        metrics = TaskMetrics()
        recycle_page_cache(sum(each.nbytes for each in batches))
        with scratch() as directory:
            size, _ = engine_run(directory, batches, 64, codec, metrics)
        shown = {step: round(seconds / size * 1e9, 3) for step, seconds in metrics.slowest()}
        print(f"  ns per byte, {codec.name.lower()}: " + ", ".join(f"{k} {v}" for k, v in shown.items()))
        record("engine steps", codec=codec.name, nanoseconds_per_byte=shown)
