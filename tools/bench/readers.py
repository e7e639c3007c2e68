"""`readers`: 64 consumers of one partition, read by one `ReadScheduler`, against 64 left to themselves.

Left to themselves: each has a thread that reads its own extents in steps of 32 KiB. Scheduled: one thread
polls them all, as a connection's would. Both sides hash what they get, so that every byte is looked at.

Beside the time it counts the positioned reads, their size, and how often one does not begin where the last
one ended (a seek) or even lies before it (a backward seek). That is what a disk with a head pays for. From a
warm page cache small steps cost little, and stay in the processor's cache until they are hashed.

Extents of 32 KiB are what 2048 subpartitions leave of a region of 64 MiB, those of 1 MiB what 64 do.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import xxhash
from engine import scratch
from harness import MEGA, Side, compare, record

from sortshuffle.format.buffer import seal
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.options import KIB, MIB
from sortshuffle.reading.scheduler import ReadScheduler, sweep_threads
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.reading.swept_file import SweptFile
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import SubpartitionRange
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter

READERS = 64
STEP = 32 * KIB  # of a reader left to itself: the ancestor's buffer size
BUFFER = 32 * KIB - 64  # payload bytes; 32 KiB in the file
POOL = 64 * MIB
SEGMENT = 256 * KIB
CREDITS = 8  # that each consumer has at any time


@dataclass
class Reads:
    """The positioned reads of one run, in the order in which they were made."""

    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    passes: int = 0

    def note(self, offset: int, size: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)

    @property
    def facts(self) -> dict[str, int]:
        ends = [offset + size for offset, size in zip(self.offsets, self.sizes, strict=True)]
        return {
            "calls": len(self.sizes),
            "bytes per call": sum(self.sizes) // max(1, len(self.sizes)),
            "seeks": sum(offset != end for offset, end in zip(self.offsets[1:], ends, strict=False)),
            "backward seeks": sum(b < a for a, b in zip(self.offsets, self.offsets[1:], strict=False)),
            "passes": self.passes,
        }


def write(directory: str, size: int, extent: int) -> PartitionedFile:
    """A partition of about ``size`` bytes; each reader has an extent of ``extent`` bytes in every region."""
    buffers = [seal(secrets.token_bytes(BUFFER), BUFFER, records=1)] * max(1, extent // STEP)
    file = PartitionedFile.named(directory, 0, 0, 0)
    header = FileHeader(secrets.token_bytes(16), READERS, READERS // 3, Codec.NONE, PayloadKind.FRAMES)
    with PartitionedFileWriter(file, header) as writer:
        for _ in range(max(2, size // (READERS * extent))):
            writer.start_region()
            writer.write_extents([(subpartition, buffers) for subpartition in writer.write_order])
            writer.finish_region()
        return writer.finish(WriterInfo())


def drop_from_page_cache(file: PartitionedFile) -> None:
    descriptor = os.open(file.data_path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def scheduled_side(file: PartitionedFile, runs: list[Reads], *, cold: bool) -> Side:
    pool = ReadBufferPool(POOL, SEGMENT, option="POOL")

    def run() -> tuple[int, int]:
        if cold:
            drop_from_page_cache(file)
        runs.append(Reads())
        with noted(runs[-1]), ThreadPoolExecutor(sweep_threads(pool)) as threads:
            scheduler = ReadScheduler(file, read_index(file).header.file_id, pool, threads)
            total = consume(scheduler)
            runs[-1].passes = scheduler.passes
        return total, 0

    return Side("scheduled", run)


def consume(scheduler: ReadScheduler) -> int:
    """Everything, for 64 consumers in one thread; bytes."""
    ready: SimpleQueue[SubpartitionReader] = SimpleQueue()
    for subpartition in range(READERS):
        scheduler.create_reader(SubpartitionRange(subpartition, subpartition), ready.put)
    size = ended = 0
    while ended < READERS:
        reader = ready.get()
        while (delivery := reader.poll(CREDITS)) is not None:
            for view in delivery.views:
                xxhash.xxh3_64_intdigest(view)
            size += delivery.size
            ended += delivery.end_of_partition
            delivery.recycle()
        if reader.cause is not None:
            raise reader.cause
    return size


def alone_side(file: PartitionedFile, runs: list[Reads], *, cold: bool) -> Side:
    index = read_index(file)

    def read(subpartition: int) -> int:
        size = 0
        descriptor = os.open(file.data_path, os.O_RDONLY)
        for extent in extents_of(index, subpartition):
            for offset in range(extent.offset, extent.offset + extent.bytes, STEP):
                wanted = min(STEP, extent.offset + extent.bytes - offset)
                runs[-1].note(offset, wanted)
                xxhash.xxh3_64_intdigest(os.pread(descriptor, wanted, offset))
                size += wanted
        os.close(descriptor)
        return size

    def run() -> tuple[int, int]:
        if cold:
            drop_from_page_cache(file)
        runs.append(Reads())
        return in_threads(read), 0

    return Side("left to themselves", run)


def in_threads(read: Callable[[int], int]) -> int:
    """Call it for every subpartition, all at the same time; the sum of what it returns."""
    with ThreadPoolExecutor(READERS) as threads:
        return sum(threads.map(read, range(READERS)))


@contextmanager
def noted(reads: Reads) -> Iterator[None]:
    """Note every read of a scheduler while the block runs."""
    real = SweptFile.read_into

    def read_into(self: SweptFile, views: Sequence[memoryview], offset: int, extent: Any) -> None:
        reads.note(offset, sum(map(len, views)))
        real(self, views, offset, extent)

    SweptFile.read_into = read_into  # type: ignore[method-assign]
    try:
        yield
    finally:
        SweptFile.read_into = real  # type: ignore[method-assign]


def main(quick: bool) -> None:
    size = 32 * MIB if quick else 1024 * MIB
    for extent in (32 * KIB, MIB):
        with scratch() as directory:
            file = write(str(directory), size, extent)
            for cold in (False, True):
                compare_readers(file, extent, cold=cold, rounds=1 if quick else 3)


def compare_readers(file: PartitionedFile, extent: int, *, cold: bool, rounds: int) -> None:
    ours: list[Reads] = []
    theirs: list[Reads] = []
    cache = "dropped" if cold else "warm"
    compare(
        "readers",
        f"{READERS} readers of one partition of {os.path.getsize(file.data_path) / MEGA:.0f} MB, extents of"
        f" {extent // KIB} KiB, page cache {cache}",
        scheduled_side(file, ours, cold=cold),
        alone_side(file, theirs, cold=cold),
        rounds=rounds,
        extent=extent,
        page_cache=cache,
    )
    for name, reads in (("scheduled", ours[-1]), ("left to themselves", theirs[-1])):
        print(f"  {name:<22} " + ", ".join(f"{value} {key}" for key, value in reads.facts.items()))
    record("readers calls", extent=extent, page_cache=cache, scheduled=ours[-1].facts, alone=theirs[-1].facts)
