"""What the tests of the engine share: pairs of files built by the package, the same pairs built by hand from
`docs/format.md`, and ways to look at directories, descriptors and processes."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from sortshuffle.format.buffer import seal
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import Index, RegionKind, WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.payload.pickled import PickledPayload
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.records import RecordGate
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.frame_encoder import FrameLayout
from sortshuffle.writing.frame_partition import FrameResultPartition
from sortshuffle.writing.result_partition import SortMergeResultPartition
from sortshuffle.writing.row_partition import RowResultPartition

ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))
DRIVER = bytes(range(32, 48))
WRITER = WriterInfo(
    "app-1", 3, 5, 17, 204, "host", "2026-01-02T03:04:05.678+00:00", "sortshuffle 0.1.0", driver=DRIVER.hex()
)
WRITER_JSON = (
    b'{"application":"app-1","exchange":3,"stage":5,"map_index":17,"attempt":204,"host":"host",'
    b'"time":"2026-01-02T03:04:05.678+00:00","software":"sortshuffle 0.1.0","ordering":[],'
    b'"driver":"202122232425262728292a2b2c2d2e2f"}'
)


@dataclass(frozen=True)
class Region:
    """Payloads per subpartition. In a broadcast region they stand under subpartition 0."""

    extents: Mapping[int, Sequence[bytes]]
    kind: RegionKind = RegionKind.UNICAST

    def payloads(self, subpartition: int) -> list[bytes]:
        return list(self.extents.get(0 if self.kind is RegionKind.BROADCAST else subpartition, ()))


@dataclass(frozen=True)
class Pair:
    """A result partition to be written: opaque frames, one record each."""

    subpartitions: int
    first: int = 0
    regions: Sequence[Region] = ()
    schema: bytes = b""
    file_id: bytes = ID

    @property
    def header(self) -> FileHeader:
        return FileHeader(self.file_id, self.subpartitions, self.first, Codec.NONE, PayloadKind.FRAMES)

    @property
    def order(self) -> list[int]:
        return [*range(self.first, self.subpartitions), *range(self.first)]

    def payloads(self, subpartition: int) -> list[bytes]:
        """What a consumer of this subpartition must get."""
        return [payload for region in self.regions for payload in region.payloads(subpartition)]

    def everything(self) -> list[list[bytes]]:
        return [self.payloads(subpartition) for subpartition in range(self.subpartitions)]


SMALL = Pair(
    subpartitions=3,
    first=2,
    regions=(
        Region({0: [b"first", b""], 2: [bytes(range(50))]}),
        Region({0: [b"to all"]}, RegionKind.BROADCAST),
        Region({1: [b"second"]}),
    ),
    schema=b"schema",
)
"""A pair with all that a pair may have."""


def write_pair(
    directory: Path | str, pair: Pair, attempt: int = 204, key: EncryptionKey | None = None
) -> PartitionedFile:
    """The pair as the package writes it."""
    file = PartitionedFile.named(str(directory), 3, 17, attempt)
    with PartitionedFileWriter(file, pair.header, key=key) as writer:
        for region in pair.regions:
            write_region(writer, region, pair.order)
        return writer.finish(WRITER, pair.schema)


def write_region(writer: PartitionedFileWriter, region: Region, order: Sequence[int]) -> None:
    writer.start_region(region.kind)
    extents = [(s, region.extents[s]) for s in order if region.extents.get(s)]
    writer.write_extents([(s, [seal(p, len(p), records=1) for p in payloads]) for s, payloads in extents])
    writer.finish_region()


def read_pair(
    file: PartitionedFile, part_bytes: int | None = None, key: EncryptionKey | None = None
) -> list[list[bytes]]:
    """The payloads of every subpartition as a consumer gets them, whole extents or parts at a time."""
    index = read_index(file)
    with PartitionedFileReader(file, index.header.file_id, str(index.writer), key=key) as reader:
        return [
            read_subpartition(reader, index, subpartition, part_bytes)
            for subpartition in range(index.header.subpartitions)
        ]


def read_subpartition(
    reader: PartitionedFileReader, index: Index, subpartition: int, part_bytes: int | None = None
) -> list[bytes]:
    found: list[bytes] = []
    for extent in extents_of(index, subpartition):
        parts = [reader.read_extent(extent)] if part_bytes is None else reader.read_parts(extent, part_bytes)
        for part in parts:
            found += [part.memory.slice(b.start, b.size).to_pybytes() for b in part.buffers]
    return found


# The same by hand, from docs/format.md alone: nothing of the package below.


def xxh3(data: bytes) -> bytes:
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def header_by_hand(
    magic: bytes, file_id: bytes, subpartitions: int, first: int, codec: int, kind: int
) -> bytes:
    fields = struct.pack("<HHBBH16sIIQ", 1, 56, codec, kind, 0, file_id, subpartitions, first, 0)
    return magic + fields + xxh3(magic + fields)


def buffer_by_hand(payload: bytes, data_type: int = 0, flags: int = 0) -> bytes:
    body = struct.pack("<BBHI", data_type, flags, 0, len(payload)) + payload
    body += bytes(-(len(body) + 8) % 64)
    return body + xxh3(body)


@dataclass
class _Entry:
    offset: int
    buffers: list[bytes] = field(default_factory=list)
    raw_bytes: int = 0

    def pack(self) -> bytes:
        size = sum(map(len, self.buffers))
        if not size:
            return struct.pack("<QQQQQII", self.offset, 0, 0, 0, 0, 0, 0)
        digest = xxh3(b"".join(each[-8:] for each in self.buffers))
        count = len(self.buffers)
        return (
            struct.pack("<QQQQ", self.offset, size, self.raw_bytes, count)
            + digest
            + struct.pack("<II", count, 0)
        )


def pair_by_hand(pair: Pair, writer_json: bytes = WRITER_JSON) -> tuple[bytes, bytes]:
    """The bytes of the data and of the index file."""
    head = (pair.file_id, pair.subpartitions, pair.first, 0, 3)
    data = header_by_hand(b"\x89SSD\r\n\x1a\n", *head)
    index = header_by_hand(b"\x89SSI\r\n\x1a\n", *head)
    kinds = b""
    records = 0
    for region in pair.regions:
        entries: dict[int, _Entry] = {}
        broadcast = region.kind == 1
        for subpartition in [0] if broadcast else pair.order:
            payloads = region.extents.get(subpartition, ())
            entry = _Entry(len(data), [buffer_by_hand(p) for p in payloads], sum(map(len, payloads)))
            entries[subpartition] = entry
            data += b"".join(entry.buffers)
            records += len(payloads)
        if any(entry.buffers for entry in entries.values()):
            kinds += bytes([broadcast])
            for subpartition in range(pair.subpartitions):
                index += entries[0 if broadcast else subpartition].pack()
    index += kinds + pair.schema + writer_json
    index += struct.pack("<IIII", len(kinds), len(pair.schema), len(writer_json), 0)
    index += struct.pack("<QQQ", len(data), records, records)
    index += xxh3(index)
    return data, index + b"\x89SSI\r\n\x1a\n"


# Rows


class Modulo:
    """Sends a row to the value of its first column, an integer, modulo the number of subpartitions."""

    def __init__(self, subpartitions: int) -> None:
        self.subpartitions = subpartitions

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        dtype = np.min_scalar_type(self.subpartitions - 1)
        if not batch.num_columns:
            return np.zeros(batch.num_rows, dtype)
        return (np.asarray(batch.column(0)) % self.subpartitions).astype(dtype)


class AllTo:
    """Sends every row to one subpartition."""

    def __init__(self, subpartitions: int, target: int) -> None:
        self.subpartitions = subpartitions
        self.target = target

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        return np.full(batch.num_rows, self.target, np.min_scalar_type(self.subpartitions - 1))


@dataclass
class Output:
    """A result partition to write rows into, with all that it is made of."""

    partition: RowResultPartition
    payload: ArrowPayload
    budget: MemoryBudget
    file: PartitionedFile

    def rows(self) -> list[list[dict[str, object]]]:
        """The rows of every subpartition, in the order in which a consumer gets them."""
        return [[row for batch in run for row in batch.to_pylist()] for run in self.batches()]

    def batches(self) -> list[list[pa.RecordBatch]]:
        index = read_index(self.file)
        with PartitionedFileReader(self.file, index.header.file_id) as reader:
            return [
                [batch for run in self.runs(reader, index, subpartition) for batch in run]
                for subpartition in range(index.header.subpartitions)
            ]

    def runs(
        self, reader: PartitionedFileReader, index: Index, subpartition: int
    ) -> Iterator[list[pa.RecordBatch]]:
        """The batches of each extent."""
        metrics = TaskMetrics()
        for extent in extents_of(index, subpartition):
            part = reader.read_extent(extent)
            yield [self.payload.decode(part.memory, buffer, metrics.seconds) for buffer in part.buffers]


def new_output(
    directory: Path | str,
    schema: pa.Schema,
    *,
    memory: int | MemoryBudget,
    subpartitions: int = 4,
    first: int = 0,
    order: RowOrder | None = None,
    codec: Codec = Codec.NONE,
    buffer_size: int = 1 << 18,
    selector: object = None,
    attempt: int = 204,
) -> Output:
    file = PartitionedFile.named(str(directory), 3, 17, attempt)
    payload = ArrowPayload(schema, codec)
    budget = MemoryBudget(memory) if isinstance(memory, int) else memory
    writer = PartitionedFileWriter(file, FileHeader(ID, subpartitions, first, codec, PayloadKind.ARROW))
    layout = PartitionLayout(payload, selector or Modulo(subpartitions), buffer_size, order)
    return Output(RowResultPartition(writer, layout, budget, TaskMetrics()), payload, budget, file)


# Frames


@dataclass
class FrameOutput:
    """A result partition to write frames into, with all that it is made of."""

    partition: FrameResultPartition
    payload: FramesPayload
    segments: NetworkBufferPool
    budget: MemoryBudget
    file: PartitionedFile

    def gate(self, subpartition: int, *, memory: int = 1 << 26, threads: int = 2) -> RecordGate:
        """What the consumer of a subpartition reads it through."""
        channel = frame_channel(self.file, subpartition)
        return RecordGate([channel], self.payload, MemoryBudget(memory), threads, TaskMetrics())

    def records(self, **how: int) -> list[list[object]]:
        """The records of every subpartition, in the order in which a consumer gets them; frames as bytes."""
        return [
            [bytes(each) if isinstance(each, memoryview) else each for each in self.gate(s, **how).records()]
            for s in range(self.partition.subpartitions)
        ]

    def is_whole(self) -> bool:
        """Whether every segment is back, and nothing is charged."""
        return self.segments.available == self.segments.total and self.budget.used == 0


def end_region(partition: SortMergeResultPartition) -> None:
    """Make a region of all unicast records that wait, as a full budget does."""
    with partition._whole_or_failed():
        partition._spill(partition._intakes[0])


def noise(seed: int, count: int, most: int) -> list[bytes]:
    """Records of up to ``most`` bytes."""
    chosen = random.Random(seed)
    return [chosen.randbytes(chosen.randint(0, most)) for _ in range(count)]


def frame_channel(file: PartitionedFile, subpartition: int, map_index: int = 0) -> LocalInputChannel:
    index = read_index(file)
    extents = tuple(extents_of(index, subpartition))
    return LocalInputChannel(file, index.header.file_id, map_index, str(index.writer), extents)


def new_frame_output(
    directory: Path | str,
    *,
    kind: PayloadKind = PayloadKind.FRAMES,
    codec: Codec = Codec.NONE,
    subpartitions: int = 4,
    first: int = 0,
    segments: int = 64,
    segment_bytes: int = 4096,
    buffer_size: int | None = None,
    memory: int = 1 << 30,
    attempt: int = 204,
) -> FrameOutput:
    """``buffer_size``: bytes of a segment that are used, None for all of them."""
    payload = PickledPayload(codec) if kind is PayloadKind.PICKLE else FramesPayload(codec)
    pool = NetworkBufferPool(segments, segment_bytes, option="a test's segments")
    layout = FrameLayout(payload, pool.create_pool(segments), buffer_size or segment_bytes)
    file = PartitionedFile.named(str(directory), 3, 17, attempt)
    writer = PartitionedFileWriter(file, FileHeader(ID, subpartitions, first, codec, kind))
    budget = MemoryBudget(memory)
    partition = FrameResultPartition(writer, layout, budget, TaskMetrics())
    return FrameOutput(partition, payload, pool, budget, file)


# The system


# Bytes of the path of a directory. The path of a Unix socket has at most 107: a directory of one's own below
# it takes 26 of them, and Spark's name for its workers' socket 43
SHORT = 38


def short_directory() -> str:
    """For temporary files. The path of a Unix socket below it must not be longer than the system takes."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= SHORT else "/tmp"


def names(directory: Path | str) -> list[str]:
    return sorted(os.listdir(directory))


def open_files(directory: Path | str, process: int | str = "self") -> list[str]:
    """Paths below a directory (deleted ones included) to which a process has a descriptor."""
    found = []
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        try:
            path = os.readlink(f"/proc/{process}/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if path.startswith(str(directory)):
            found.append(path)
    return sorted(found)


def eventually(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for another process to do something that it tells nobody. The longer it takes, the longer are the
    pauses: some conditions look through all processes, or collect a JVM's garbage."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds} s: {what}"
        time.sleep(min(max(0.005, waited / 10), 0.2))


def fill(disk: Path) -> None:
    """Write to a small disk until it is full."""
    with open(disk / "filled", "wb", buffering=0) as opened, suppress(OSError):
        while True:
            opened.write(bytes(1 << 16))


@contextmanager
def small_disk(directory: Path, options: str = "size=1m") -> Iterator[Path]:
    """A file system of its own on a new directory. Only root may mount: else the test is skipped."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a file system is not permitted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # for processes that import this checkout


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, killed and waited for at the end if it still runs."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=ENVIRONMENT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(module: str) -> dict[int, list[str]]:
    """The processes that run this module of the package: the words of their command lines."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = os.fsdecode(Path(f"/proc/{entry}/cmdline").read_bytes()).split("\0")
        except OSError:
            continue
        if f"sortshuffle.{module}" in words:
            found[int(entry)] = words
    return found


def kill(pid: int) -> None:
    """With SIGKILL, if it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end(process: subprocess.Popen[str]) -> None:
    """Kill it and wait for it."""
    process.kill()
    process.wait()


def printed(program: str, *arguments: str) -> list[str]:
    """The words that a Python program prints."""
    command = (sys.executable, "-c", program, *arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True, check=True)
    return done.stdout.split()


_MAP_NORESERVE = 0x4000  # of Linux; not in `mmap` before Python 3.13


def untouched(size: int) -> memoryview:
    """So many bytes of which the system gives no page as long as nobody looks at them."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE))


_pools: list[pa.MemoryPool] = []  # a pool must outlive what was allocated from it


@contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow allocates by default meanwhile: ``max_memory()`` and ``bytes_allocated()``."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _pools.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


@contextmanager
def changed(path: str, offset: int, mask: int) -> Iterator[None]:
    """One byte of a file xor ``mask``, for a while."""
    with open(path, "r+b", buffering=0) as opened:
        byte = os.pread(opened.fileno(), 1, offset)[0]
        os.pwrite(opened.fileno(), bytes([byte ^ mask]), offset)
        try:
            yield
        finally:
            os.pwrite(opened.fileno(), bytes([byte]), offset)
