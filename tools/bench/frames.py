"""`frames`: records that are bytes already, on one core, against the bare minimum.

A producer pushes 64 KiB at a time, each for one of 64 subpartitions, filled with records of 100 bytes: what
the shuffle manager gets from a Spark task. The bare minimum for the same bytes: `os.writev` of the
pushes, one after the other, and `os.pread` of them; no subpartitions, no format, no checksums. Ours:
`FrameResultPartition.emit`, then every subpartition through a `RecordGate`.

Writing and reading are two figures, because they happen in different tasks. Each run of a writing side
includes the deletion of its files, and meets recycled page cache (see `engine`).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from engine import ROUNDS, recycle_page_cache, scratch
from harness import Side, compare, on_one_core, record

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.records import RecordGate
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.frame_encoder import FrameLayout, segment_bytes
from sortshuffle.writing.frame_partition import FrameResultPartition

PUSH = 64 * KIB
RECORD = 100
SUBPARTITIONS = 64
MEMORY = 256 * MIB
READ_MEMORY = 64 * MIB
DISTINCT_PUSHES = 1024  # 64 MiB: more than the caches hold, so every push comes from memory
FILE_ID = bytes(16)
RECORDS_PER_PUSH = PUSH // RECORD


def stream() -> list[memoryview]:
    """Pushes of random bytes, which do not compress."""
    random = np.random.default_rng(11)
    return [memoryview(random.bytes(PUSH)) for _ in range(DISTINCT_PUSHES)]


def write(directory: Path, pushes: list[memoryview], count: int, metrics: TaskMetrics) -> PartitionedFile:
    """A map output of ``count`` pushes."""
    size = segment_bytes(SUBPARTITIONS, MEMORY)
    buffers = NetworkBufferPool(MEMORY // size, size, option="tools/bench")
    layout = FrameLayout(FramesPayload(Codec.NONE), buffers.create_pool(buffers.total), size)
    file = PartitionedFile.named(str(directory), 0, 0, 0)
    header = FileHeader(FILE_ID, SUBPARTITIONS, 0, Codec.NONE, PayloadKind.FRAMES)
    writer = PartitionedFileWriter(file, header)
    with FrameResultPartition(writer, layout, MemoryBudget(MEMORY), metrics) as partition:
        for number in range(count):
            partition.emit(pushes[number % DISTINCT_PUSHES], number % SUBPARTITIONS)
        partition.finish(WriterInfo())
    buffers.destroy()
    return file


def read(file: PartitionedFile, metrics: TaskMetrics) -> tuple[int, int]:
    """Every subpartition, one after the other; bytes and records read."""
    index = read_index(file, FILE_ID)
    size = frames = 0
    for subpartition in range(SUBPARTITIONS):
        channel = LocalInputChannel(file, FILE_ID, 0, "bench", tuple(extents_of(index, subpartition)))
        gate = RecordGate([channel], FramesPayload(Codec.NONE), MemoryBudget(READ_MEMORY), 1, metrics)
        for frame in gate.records():
            size += len(frame)
            frames += 1
    return size, frames * RECORDS_PER_PUSH


def bare_write(path: Path, pushes: list[memoryview], count: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for number in range(count):
        os.writev(descriptor, [pushes[number % DISTINCT_PUSHES]])
    os.close(descriptor)


def bare_read(path: Path, count: int) -> tuple[int, int]:
    descriptor = os.open(path, os.O_RDONLY)
    size = sum(len(os.pread(descriptor, PUSH, number * PUSH)) for number in range(count))
    os.close(descriptor)
    return size, count * RECORDS_PER_PUSH


def main(quick: bool) -> None:
    size = 50_000_000 if quick else 1_000_000_000
    count = size // PUSH
    pushes = stream()
    about = (
        f"{count * PUSH / 1e9:.1f} GB of {RECORD}-byte records in pushes of 64 KiB for {SUBPARTITIONS}"
        " subpartitions, one core, page cache recycled, checksums, no codec"
    )
    facts = {"subpartitions": SUBPARTITIONS, "codec": "NONE", "page_cache": "recycled"}
    rounds = 1 if quick else ROUNDS
    metrics = TaskMetrics()

    def write_ours() -> tuple[int, int]:
        with scratch() as directory:
            write(directory, pushes, count, metrics)
        return count * PUSH, count * RECORDS_PER_PUSH

    def write_bare() -> tuple[int, int]:
        with scratch() as directory:
            bare_write(directory / "bare", pushes, count)
        return count * PUSH, count * RECORDS_PER_PUSH

    with on_one_core():
        ours, bare = Side("sortshuffle", write_ours), Side("bare loop", write_bare)
        compare(
            "frames write",
            f"{about}, against writev",
            ours,
            bare,
            rounds=rounds,
            before=lambda: recycle_page_cache(size),
            watched=False,
            **facts,
        )
        with scratch() as directory:
            file = write(directory, pushes, count, TaskMetrics())
            bare_write(directory / "bare", pushes, count)
            ours = Side("sortshuffle", lambda: read(file, metrics))
            bare = Side("bare loop", lambda: bare_read(directory / "bare", count))
            compare(
                "frames read", f"{about}, against pread", ours, bare, rounds=rounds, watched=False, **facts
            )
    steps(metrics, (rounds if quick else rounds + 1) * count * PUSH)  # the warm-up counts


def steps(metrics: TaskMetrics, size: int) -> None:
    """Where the time goes, beside copying into segments and what Python takes."""
    shown = {step: round(seconds / size * 1e9, 3) for step, seconds in metrics.slowest()}
    print("  ns per byte: " + ", ".join(f"{step} {seconds}" for step, seconds in shown.items()))
    record("frames steps", nanoseconds_per_byte=shown)
