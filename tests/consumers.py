"""What the tests of scheduled reading share: partitions of many extents, pools and threads that a test steps
through, and consumers that collect what their readers deliver."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine import Pair, Region

from sortshuffle.format.index import Index, RegionKind
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.reading.subpartition_reader import Delivery, SubpartitionReader
from sortshuffle.reading.swept_file import SweptFile
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import SubpartitionRange
from sortshuffle.storage.files.reader import read_index

PATIENCE = 30.0  # seconds that a test waits for what must come


def random_pair(subpartitions: int, regions: int, payload: int, first: int = 0) -> Pair:
    """Every subpartition has one buffer of ``payload`` random bytes in every region."""
    generator = random.Random(1)
    return Pair(
        subpartitions,
        first,
        [Region({s: [generator.randbytes(payload)] for s in range(subpartitions)}) for _ in range(regions)],
    )


def one(subpartition: int) -> SubpartitionRange:
    return SubpartitionRange(subpartition, subpartition)


def stored(file: PartitionedFile, asked: SubpartitionRange) -> bytes:
    """What a reader of this range must deliver, cut out of the file entry by entry."""
    index, data = read_index(file), Path(file.data_path).read_bytes()
    return b"".join(data[int(entry["offset"]) :][: int(entry["bytes"])] for entry in _entries(index, asked))


def _entries(index: Index, asked: SubpartitionRange) -> Iterator[Any]:
    first, count = index.header.first_subpartition, index.header.subpartitions
    order = [s for s in [*range(first, count), *range(first)] if asked.first <= s <= asked.last]
    for region, kind in enumerate(index.kinds):
        for subpartition in [0] if kind is RegionKind.BROADCAST else order:
            yield index.entries[region, subpartition]


def read_pool(
    segments: int,
    segment_bytes: int = 4096,
    *,
    batch: int | None = None,
    clock: Callable[[], float] | None = None,
) -> ReadBufferPool:
    """A pool with batches of as many segments as the test says, which may be far less than 4 MiB."""
    more = {"clock": clock} if clock else {}
    pool = ReadBufferPool(segments * segment_bytes, segment_bytes, option="the.option", **more)
    pool.segments_per_request = batch or segments
    pool.max_concurrent_requests = segments // pool.segments_per_request
    return pool


class Steps(Executor):
    """A thread pool whose work is done when the test says so, by the test."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], object]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting.append(fn)
        return Future()

    def step(self) -> None:
        self.waiting.popleft()()

    def run(self) -> None:
        while self.waiting:
            self.step()


@dataclass
class Consumer:
    """Collects what its reader delivers. ``notified``: how often it was told that there is something."""

    data: bytearray = field(default_factory=bytearray)
    notified: int = 0
    ended: bool = False
    cause: BaseException | None = None
    kept: list[Delivery] = field(default_factory=list)
    _news: threading.Event = field(default_factory=threading.Event)

    def on_available(self, reader: SubpartitionReader) -> None:
        self.notified += 1
        self._news.set()

    def take(self, reader: SubpartitionReader, credits: int = 100) -> Delivery | None:
        """One poll, remembered; the memory is kept."""
        delivery = reader.poll(credits)
        if delivery is None:
            self.cause = reader.cause
        else:
            for view in delivery.views:
                self.data += view
            self.ended |= delivery.end_of_partition
            self.kept.append(delivery)
        return delivery

    def give_back(self) -> None:
        kept, self.kept = self.kept, []
        for delivery in kept:
            delivery.recycle()

    def drain(self, reader: SubpartitionReader, credits: int = 100) -> None:
        """Take and give back until there is nothing."""
        while self.take(reader, credits) is not None:
            self.give_back()

    def consume(self, reader: SubpartitionReader, credits: int = 1) -> None:
        """Take and give back until the end or a failure, waiting for it."""
        while not (self.ended or self.cause):
            self.wait()
            self.drain(reader, credits)

    def wait(self) -> None:
        """Until the reader has something to say that it had not before the last wait."""
        assert self._news.wait(PATIENCE), "nothing came"
        self._news.clear()


@contextmanager
def together(*functions: Callable[[], object]) -> Iterator[None]:
    """Run each in a thread of its own while the block runs, and wait for all; what one raises is raised."""
    failures: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread does not end"
    if failures:
        raise failures[0]


@dataclass
class Reads:
    """The positioned reads that were made: offset and size. ``before``: called before each, and may raise."""

    made: list[tuple[int, int]] = field(default_factory=list)
    before: Callable[[int, int], None] = lambda offset, size: None

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.made]

    @property
    def backward_seeks(self) -> int:
        return sum(later < earlier for earlier, later in zip(self.offsets, self.offsets[1:], strict=False))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Watches every read of a data file by a scheduler."""
    watched = Reads()
    real = SweptFile.read_into

    def read_into(self: SweptFile, views: Sequence[memoryview], offset: int, extent: Any) -> None:
        size = sum(map(len, views))
        watched.before(offset, size)
        watched.made.append((offset, size))
        real(self, views, offset, extent)

    monkeypatch.setattr(SweptFile, "read_into", read_into)
    return watched
