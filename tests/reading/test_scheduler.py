"""Many readers of one file: they get their bytes, the file is read in order, and memory and handles come back
whatever happens."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consumers import (
    PATIENCE,
    Consumer,
    Reads,
    Steps,
    one,
    random_pair,
    read_pool,
    reads,
    stored,
    together,
)
from engine import ID, OTHER_ID, WRITER, FrameOutput, Pair, Region, open_files, write_pair
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle import calls
from sortshuffle.errors import (
    BufferTimeoutError,
    CorruptDataError,
    MissingDataError,
    StateError,
    UsageError,
)
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import Index, RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.reading import batch_reader
from sortshuffle.reading.read_shares import BATCHES_AHEAD, LEAST_SHARE, ReadShares
from sortshuffle.reading.scheduler import ReadScheduler, sweep_threads
from sortshuffle.reading.subpartition_reader import Delivery, SubpartitionReader
from sortshuffle.reading.sweep import Sweep
from sortshuffle.reading.swept_file import IOV_MAX
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import ExtentCursor, RangePart, RegionRange, SubpartitionRange
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.frame_encoder import FrameLayout
from sortshuffle.writing.frame_partition import FrameResultPartition

__all__ = ["reads"]  # a fixture
SEGMENT = 4096


class Stage:
    """A partition, its scheduler, and threads that a test steps through."""

    def __init__(
        self, directory: Path, pair: Pair, pool: ReadBufferPool, threads: Steps | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.file = write_pair(directory, pair)
        self.pool = pool
        self.threads = threads or Steps()
        self.scheduler = ReadScheduler(self.file, ID, pool, self.threads)

    def open(self, subpartition: int, last: int | None = None) -> tuple[SubpartitionReader, Consumer]:
        consumer = Consumer()
        asked = SubpartitionRange(subpartition, subpartition if last is None else last)
        return self.scheduler.create_reader(asked, consumer.on_available), consumer

    def drain(self, *opened: tuple[SubpartitionReader, Consumer]) -> None:
        """Let all of them read to their ends, side by side."""
        while self.threads.waiting:
            self.threads.step()
            for reader, consumer in opened:
                consumer.drain(reader)

    def step(self) -> None:
        """One run, if there is a batch for it: it would wait for one, and so would the test."""
        if self.threads.waiting and self.pool.available >= self.pool.segments_per_request:
            self.threads.step()

    def assert_let_go(self) -> None:
        """Nothing runs, no file is open, and the pool is whole."""
        assert not self.threads.waiting
        assert self.scheduler.is_idle
        assert not self.scheduler.is_open
        assert open_files(self.directory) == []
        assert self.pool.available == self.pool.total_segments


MakeStage = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[MakeStage]:
    made: list[Stage] = []

    def make(pair: Pair, pool: ReadBufferPool | None = None, threads: Steps | None = None) -> Stage:
        made.append(Stage(tmp_path, pair, pool or read_pool(64, SEGMENT, batch=16), threads))
        return made[-1]

    yield make
    for each in made:
        each.assert_let_go()


def test_a_new_reader_opens_the_file_and_starts_one_run(stage: MakeStage) -> None:
    here = stage(random_pair(2, 3, 10_000))
    assert not here.scheduler.is_open
    first = here.open(0)
    second = here.open(1)
    assert here.scheduler.is_open
    assert not here.scheduler.is_idle
    assert len(here.threads.waiting) == 1
    here.drain(first, second)
    for subpartition, (_, consumer) in enumerate((first, second)):
        assert bytes(consumer.data) == stored(here.file, one(subpartition))
        assert consumer.ended


def test_the_files_are_opened_again_for_a_reader_that_comes_after_the_last(stage: MakeStage) -> None:
    here = stage(random_pair(2, 1, 1000))
    for subpartition in (0, 1, 0):
        opened = here.open(subpartition)
        assert here.scheduler.is_open
        here.drain(opened)
        assert not here.scheduler.is_open
        assert bytes(opened[1].data) == stored(here.file, one(subpartition))


def test_a_range_is_delivered_in_file_order(stage: MakeStage) -> None:
    here = stage(random_pair(6, 3, 3000, first=4))
    opened = here.open(2, 5)
    here.drain(opened)
    assert bytes(opened[1].data) == stored(here.file, SubpartitionRange(2, 5))


def test_a_reader_without_data_is_told_so_at_once_and_nothing_is_read(stage: MakeStage, reads: Reads) -> None:
    here = stage(Pair(2, regions=[Region({0: [b"x"]})]))
    reader, consumer = here.open(1)
    assert consumer.notified == 1
    assert not here.scheduler.is_open
    consumer.drain(reader, credits=0)
    assert consumer.ended and not consumer.data and not reads.made


# Order and size of reads


def test_neighbours_are_read_with_one_call(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(64, 3, 500), read_pool(64, SEGMENT))
    opened = [here.open(subpartition) for subpartition in range(64)]
    here.drain(*opened)
    region = 64 * 576
    assert reads.made == [(56 + number * region, region) for number in range(3)]
    for subpartition, (_, consumer) in enumerate(opened):
        assert bytes(consumer.data) == stored(here.file, one(subpartition))


@pytest.mark.parametrize("first", [0, 40])
def test_extents_that_fit_a_turn_are_one_ascending_sweep_over_the_file(
    stage: MakeStage, reads: Reads, first: int
) -> None:
    here = stage(random_pair(64, 4, 3 * SEGMENT, first), read_pool(512, SEGMENT, batch=64))
    opened = [here.open(subpartition) for subpartition in random.Random(1).sample(range(64), 64)]
    here.drain(*opened)
    assert reads.backward_seeks == 0
    assert sum(size for _, size in reads.made) == Path(here.file.data_path).stat().st_size - 56


def test_larger_extents_take_one_ascending_sweep_per_pass(stage: MakeStage, reads: Reads) -> None:
    batch = 16 * SEGMENT  # what one turn takes at most
    extent = 100 * SEGMENT + 64
    here = stage(random_pair(8, 2, 100 * SEGMENT), read_pool(64, SEGMENT, batch=16))
    opened = [here.open(subpartition) for subpartition in range(8)]
    here.drain(*opened)
    assert reads.made[:8] == [(56 + number * extent, batch) for number in range(8)]
    assert 2 * 7 <= here.scheduler.passes <= 2 * 2 * 7
    assert 2 * 6 <= reads.backward_seeks < here.scheduler.passes


def test_readers_are_served_in_file_order_whatever_order_they_came_in(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(4, 1, 2 * SEGMENT, first=2))
    opened = [here.open(subpartition) for subpartition in (1, 3, 0, 2)]
    here.drain(*opened)
    offsets = read_index(here.file).entries["offset"][0]
    assert reads.offsets == sorted(reads.offsets)
    assert reads.offsets[0] == offsets[2]


def test_a_late_reader_waits_for_one_pass_and_not_for_the_end_of_the_file(
    stage: MakeStage, reads: Reads
) -> None:
    here = stage(random_pair(2, 10, SEGMENT), read_pool(4, SEGMENT, batch=2))
    early = here.open(0)
    here.threads.step()
    before = len(reads.made)
    late = here.open(1)
    early[1].drain(early[0])
    here.threads.step()  # the rest of the pass that was planned without it
    early[1].drain(early[0])
    here.threads.step()
    assert late[1].notified == 1
    assert len(reads.made) - before <= 3
    here.drain(early, late)
    late[1].drain(late[0])
    here.drain(early, late)
    assert bytes(late[1].data) == stored(here.file, one(1))


def test_a_broadcast_region_is_read_once_for_all_its_readers(stage: MakeStage, reads: Reads) -> None:
    payload = random.Random(2).randbytes(10_000)
    here = stage(Pair(8, 3, [Region({0: [payload]}, RegionKind.BROADCAST)]))
    opened = [here.open(subpartition) for subpartition in range(8)]
    here.threads.step()
    assert reads.made == [(56, 10_048)]
    assert here.pool.total_segments - here.pool.available == 3
    here.drain(*opened)
    for reader, consumer in opened:
        consumer.drain(reader)
        assert bytes(consumer.data)[8 : 8 + len(payload)] == payload


def test_two_readers_of_the_same_subpartition_share_its_reads(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(2, 2, 3 * SEGMENT))
    opened = [here.open(0), here.open(0)]
    here.drain(*opened)
    assert len(reads.made) == 2
    for _, consumer in opened:
        assert bytes(consumer.data) == stored(here.file, one(0))


def test_small_extents_share_segments_also_where_they_are_not_neighbours(stage: MakeStage) -> None:
    here = stage(random_pair(8, 1, 500))
    opened = [here.open(subpartition) for subpartition in (0, 2, 4, 6)]
    here.threads.step()
    assert here.pool.total_segments - here.pool.available == 1
    for reader, consumer in opened:
        consumer.drain(reader)


def test_a_read_into_more_segments_than_the_system_takes_at_once_is_made_in_parts(
    stage: MakeStage, reads: Reads
) -> None:
    segments = IOV_MAX + 10
    here = stage(random_pair(1, 1, segments * 64 - 64), read_pool(4 * segments, 64, batch=segments))
    opened = here.open(0)
    here.drain(opened)
    assert [size for _, size in reads.made] == [segments * 64]
    assert bytes(opened[1].data) == stored(here.file, one(0))


# Memory


def test_a_consumer_that_takes_nothing_holds_its_share_and_stalls_nobody(stage: MakeStage) -> None:
    here = stage(random_pair(8, 5, 20 * SEGMENT), read_pool(32, SEGMENT, batch=8))
    slow = here.open(0)
    others = [here.open(subpartition) for subpartition in range(1, 8)]
    here.drain(*others)
    for subpartition, (_, consumer) in enumerate(others, start=1):
        assert bytes(consumer.data) == stored(here.file, one(subpartition))
    assert not slow[1].data
    assert slow[0].held <= here.pool.total_segments
    while not slow[1].ended:
        slow[1].drain(slow[0])
        here.threads.run()
    assert bytes(slow[1].data) == stored(here.file, one(0))


@pytest.mark.parametrize("readers", [1, 2, 12, 40])
def test_readers_that_take_nothing_hold_a_bounded_part_of_the_pool_and_each_has_something(
    stage: MakeStage, readers: int
) -> None:
    pool = read_pool(64, SEGMENT, batch=4)
    here = stage(random_pair(readers, 1, 100 * SEGMENT), pool)
    opened = [here.open(subpartition) for subpartition in range(readers)]
    here.threads.run()
    held = [reader.held for reader, _ in opened]
    assert sum(held) == pool.total_segments - pool.available
    assert sum(held) <= (BATCHES_AHEAD + 1) * pool.segments_per_request + LEAST_SHARE * readers
    assert min(held) >= LEAST_SHARE
    for reader, _ in opened:
        reader.release()
    here.threads.run()


def test_the_more_is_out_the_less_each_reader_may_hold(stage: MakeStage) -> None:
    here = stage(random_pair(8, 1, 100 * SEGMENT), read_pool(23, SEGMENT, batch=4))
    opened = [here.open(subpartition) for subpartition in range(8)]
    here.threads.run()
    assert [reader.held for reader, _ in opened] == [4, 4, 4, 2, 2, 1, 1, 1]  # of 16
    for reader, _ in opened:
        reader.release()
    here.threads.run()


def test_while_the_pool_has_plenty_each_reader_may_hold_half_a_batch(stage: MakeStage) -> None:
    here = stage(random_pair(8, 1, 100 * SEGMENT), read_pool(200, SEGMENT, batch=8))
    opened = [here.open(subpartition) for subpartition in range(8)]
    here.threads.run()
    assert [reader.held for reader, _ in opened] == [8, 8, 8, 4, 4, 4, 4, 4]
    for reader, _ in opened:
        reader.release()
    here.threads.run()


def test_a_partition_holds_no_more_than_its_fair_part_of_the_pool(tmp_path: Path) -> None:
    pool = read_pool(24, SEGMENT, batch=4)
    stages = [Stage(tmp_path / name, random_pair(1, 1, 100 * SEGMENT), pool) for name in "abc"]
    opened = [each.open(0) for each in stages]
    for each in stages:
        each.threads.run()
    assert [reader.held for reader, _ in opened] == [4, 4, 4]  # half of what is theirs, while alone
    for reader, _ in opened:
        reader.release()
    for each in stages:
        each.assert_let_go()


def test_beyond_its_fair_part_a_partition_reads_only_for_readers_that_hold_nothing(tmp_path: Path) -> None:
    pool = read_pool(24, SEGMENT, batch=4)
    for requester in range(5):  # partitions elsewhere: a fair part is 4 segments
        pool.register(requester)
    here = Stage(tmp_path, random_pair(3, 1, 100 * SEGMENT), pool)
    first, second = here.open(0), here.open(1)
    here.threads.run()
    assert (first[0].held, second[0].held) == (2, 2)
    third = here.open(2)
    here.threads.run()
    assert third[0].held == LEAST_SHARE
    delivery = second[0].poll(1)
    assert delivery is not None
    delivery.recycle()
    here.threads.run()
    assert second[0].held == 1
    second[1].drain(second[0])
    here.threads.run()
    assert second[0].held == LEAST_SHARE
    for reader, _ in (first, second, third):
        reader.release()
    here.threads.run()
    here.assert_let_go()


def test_a_partition_may_have_all_of_its_fair_part(tmp_path: Path) -> None:
    pool = read_pool(24, SEGMENT, batch=4)
    for requester in range(2):  # partitions elsewhere: a fair part is 8 segments
        pool.register(requester)
    here = Stage(tmp_path, random_pair(2, 1, 100 * SEGMENT), pool)
    first, second = here.open(0), None
    here.threads.run()
    assert first[0].held == 4
    take_one(here, first[0])
    second = here.open(1)
    here.threads.run()
    assert (first[0].held, second[0].held) == (3, 2)
    take_one(here, second[0])
    assert (first[0].held, second[0].held) == (3, 2)  # a batch more is just what was left
    for reader, _ in (first, second):
        reader.release()
    here.threads.run()
    here.assert_let_go()


def take_one(here: Stage, reader: SubpartitionReader) -> None:
    """Consume a segment, and let the partition read on."""
    delivery = reader.poll(1)
    assert delivery is not None
    delivery.recycle()
    here.threads.run()


def test_what_a_run_gave_back_at_once_does_not_count_as_out(stage: MakeStage) -> None:
    pair = Pair(2, 0, [Region({0: [b"x"], 1: [os.urandom(100 * SEGMENT)]})])
    here = stage(pair, read_pool(23, SEGMENT, batch=4))
    here.drain(here.open(0))
    elsewhere = here.pool.request()  # what that run had
    large, _ = here.open(1)
    here.threads.run()
    assert large.held == 6  # as if it were the first
    large.release()
    for segment in elsewhere:
        here.pool.recycle(segment)
    here.threads.run()


def test_what_a_run_does_not_fill_goes_back_at_its_end(stage: MakeStage) -> None:
    here = stage(random_pair(1, 1, 100), read_pool(16, SEGMENT))
    reader, consumer = here.open(0)
    here.threads.run()
    assert here.pool.available == 15
    consumer.drain(reader)


def test_the_number_of_threads_is_that_of_batches_up_to_four_per_core() -> None:
    assert sweep_threads(read_pool(10, SEGMENT, batch=10)) == 1
    assert sweep_threads(read_pool(10, SEGMENT, batch=4)) == 2
    assert sweep_threads(read_pool(10_000, SEGMENT, batch=1)) == 4 * (os.cpu_count() or 1)


# Failures


def test_a_file_that_is_cut_short_fails_only_the_readers_whose_bytes_are_missing(stage: MakeStage) -> None:
    here = stage(random_pair(4, 1, 1000))
    expected = [stored(here.file, one(subpartition)) for subpartition in range(4)]
    opened = [here.open(subpartition) for subpartition in range(4)]
    cut = int(read_index(here.file).entries["offset"][0, 2]) + 100
    os.truncate(here.file.data_path, cut)
    here.drain(*opened)
    assert [bytes(consumer.data) for _, consumer in opened] == [*expected[:2], b"", b""]
    for subpartition, (_, consumer) in enumerate(opened[2:], start=2):
        error = consumer.cause
        assert isinstance(error, CorruptDataError)
        assert "cut short" in str(error)
        assert (error.place.region, error.place.subpartition) == (0, subpartition)
        assert error.place.file == here.file.data_path


def test_a_read_that_the_system_refuses_fails_its_reader_with_the_place(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(random_pair(1, 2, 1000))
    reader, consumer = here.open(0)

    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(calls, "preadv", broken)
        here.threads.run()
    consumer.drain(reader)
    assert isinstance(consumer.cause, CorruptDataError)
    assert "cannot be read: Input/output error" in str(consumer.cause)
    assert consumer.cause.place.offset == 56
    assert "attempt 204 of map 17" in str(consumer.cause)


def test_a_callback_that_fails_fails_its_own_reader_only(stage: MakeStage) -> None:
    here = stage(random_pair(2, 2, 1000))

    def broken(reader: SubpartitionReader) -> None:
        raise KeyError("the connection is not there any more")

    failing = here.scheduler.create_reader(one(0), broken)
    other = here.open(1)
    here.drain(other)
    assert isinstance(failing.cause, KeyError)
    assert bytes(other[1].data) == stored(here.file, one(1))


def test_a_callback_that_fails_for_a_reader_without_data_is_that_readers_failure(stage: MakeStage) -> None:
    here = stage(Pair(2, regions=[Region({0: [b"x"]})]))

    def broken(reader: SubpartitionReader) -> None:
        raise KeyError("the connection is not there any more")

    reader = here.scheduler.create_reader(one(1), broken)
    assert isinstance(reader.cause, KeyError)


def test_bytes_that_were_delivered_are_not_read_over_when_their_neighbours_cannot_be_read(
    stage: MakeStage, reads: Reads
) -> None:
    here = stage(random_pair(2, 1, 1000))
    expected = stored(here.file, one(0))
    opened = [here.open(subpartition) for subpartition in (0, 0, 1, 1)]
    os.truncate(here.file.data_path, 56 + len(expected))
    here.drain(*opened)
    assert reads.offsets == [56, 56, 56 + len(expected)]  # all at once, then each place once
    for reader, consumer in opened[:2]:
        assert bytes(consumer.data) == expected and consumer.ended
        assert reader.cause is None
    for reader, _ in opened[2:]:
        assert isinstance(reader.cause, CorruptDataError)
        assert reader.cause.place.subpartition == 1


def test_a_read_that_finds_no_memory_says_nothing_of_the_file(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(random_pair(1, 1, 1000))
    reader, consumer = here.open(0)

    def broken(*arguments: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(calls, "preadv", broken)
        here.threads.run()
    consumer.drain(reader)
    assert isinstance(consumer.cause, OSError)
    assert consumer.cause.errno == errno.ENOMEM


def test_a_pass_that_cannot_be_planned_fails_the_readers_and_gives_the_batch_back(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(random_pair(2, 1, 1000))
    opened = [here.open(subpartition) for subpartition in range(2)]

    def broken(*arguments: object) -> None:
        raise MemoryError("no room for a plan")

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "begin_pass", broken)
        here.threads.run()
    assert all(isinstance(reader.cause, MemoryError) for reader, _ in opened)


def test_a_batch_that_finds_no_memory_for_its_buffers_goes_back(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(random_pair(1, 1, 1000))
    reader, _ = here.open(0)

    def broken(*arguments: object) -> None:
        raise MemoryError("no room for a buffer")

    with monkeypatch.context() as patched:
        patched.setattr(batch_reader, "SegmentBatch", broken)
        here.threads.run()
    assert isinstance(reader.cause, MemoryError)
    assert here.pool.available == here.pool.total_segments


def test_a_batch_that_cannot_be_counted_at_its_end_goes_back(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(random_pair(1, 1, 1000))
    reader, consumer = here.open(0)

    def broken(*arguments: object) -> None:
        raise MemoryError("no room for a number")

    with monkeypatch.context() as patched:
        patched.setattr(ReadShares, "lend", broken)
        here.threads.run()
    consumer.drain(reader)
    assert bytes(consumer.data) == stored(here.file, one(0))
    assert here.pool.available == here.pool.total_segments


def test_a_released_reader_is_read_for_no_more(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(2, 2, 1000))
    reader, _ = here.open(0)
    reader.release()
    here.threads.run()
    assert reads.made == []
    assert not here.scheduler.is_open


@pytest.mark.parametrize("after", range(4))
def test_releasing_at_any_moment_leaves_the_pool_whole_and_the_file_closed(
    stage: MakeStage, after: int
) -> None:
    here = stage(random_pair(3, 4, 3 * SEGMENT), read_pool(4, SEGMENT))
    opened = [here.open(subpartition) for subpartition in range(3)]
    for _ in range(after):
        here.step()
        for reader, consumer in opened[:2]:
            consumer.drain(reader)
    reader, consumer = opened[2]
    consumer.take(reader, credits=1)
    for reader, _ in opened:
        reader.release()
    consumer.give_back()
    here.threads.run()


def test_a_reader_released_while_its_bytes_are_read_gets_nothing_and_keeps_nothing(
    stage: MakeStage, reads: Reads
) -> None:
    here = stage(random_pair(2, 1, 1000))
    leaving, staying = here.open(0), here.open(1)
    reads.before = lambda offset, size: leaving[0].release()
    here.drain(staying)
    assert leaving[1].notified == 0
    assert bytes(staying[1].data) == stored(here.file, one(1))


def test_closing_fails_all_readers_and_is_done_when_the_run_has_let_go(
    stage: MakeStage, reads: Reads
) -> None:
    here = stage(random_pair(2, 3, 1000))
    opened = [here.open(subpartition) for subpartition in range(2)]
    cause = StateError("the partition was released")
    in_the_run: list[bool] = []

    def close(offset: int, size: int) -> None:
        in_the_run.append(here.scheduler.close(cause).done())

    reads.before = close
    here.threads.step()
    assert in_the_run == [False]
    assert here.scheduler.close(cause).done()
    for reader, consumer in opened:
        assert reader.cause is cause
        assert consumer.notified == 1
        assert consumer.take(reader) is None
    with pytest.raises(StateError, match="the partition was released"):
        here.open(0)


def test_closing_without_readers_is_done_at_once(stage: MakeStage) -> None:
    here = stage(random_pair(1, 1, 10))
    assert here.scheduler.close(StateError("closed")).done()
    assert here.scheduler.close(StateError("again")).done()


def test_who_waits_for_the_end_of_a_close_cannot_cancel_it(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(1, 1, 10))
    here.open(0)
    closed = here.scheduler.close(StateError("closed"))
    assert not closed.cancel()
    here.threads.run()
    assert closed.done() and not closed.cancelled()


def test_a_pool_that_is_destroyed_fails_all_readers_and_closes_the_file(tmp_path: Path) -> None:
    pool = read_pool(4, SEGMENT)
    here = Stage(tmp_path, random_pair(2, 3, 1000), pool)
    opened = [here.open(subpartition) for subpartition in range(2)]
    pool.destroy()
    here.threads.run()
    for reader, consumer in opened:
        assert isinstance(reader.cause, StateError)
        assert consumer.notified == 1
    assert not here.scheduler.is_open
    with pytest.raises(StateError, match="is destroyed"):
        here.open(0)
    assert open_files(tmp_path) == []


def test_threads_that_are_shut_down_fail_the_reader(tmp_path: Path) -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    pool = read_pool(4, SEGMENT)
    scheduler = ReadScheduler(write_pair(tmp_path, random_pair(1, 1, 100)), ID, pool, threads)
    reader = scheduler.create_reader(one(0), lambda reader: None)
    assert isinstance(reader.cause, RuntimeError)
    assert not scheduler.is_open


class Refusing(Steps):
    """Queues its first work and refuses it all the same, as threads do of which no more can be started.
    ``meanwhile``: what happens between the two."""

    def __init__(self, meanwhile: Callable[[Steps], None] = lambda threads: None) -> None:
        super().__init__()
        self.meanwhile = meanwhile
        self.has_refused = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if not self.has_refused:
            self.has_refused = True
            self.meanwhile(self)
            raise RuntimeError("can't start new thread")
        return future


def test_a_run_that_no_thread_could_be_started_for_does_not_begin_on_one_that_is_free_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = read_pool(4, SEGMENT)
    file = write_pair(tmp_path, random_pair(1, 1, 100))
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        go_on.wait(PATIENCE)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(2) as threads:  # its end waits for all that was queued
        threads.submit(work)
        assert busy.wait(PATIENCE)
        scheduler = ReadScheduler(file, ID, pool, threads)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            reader = scheduler.create_reader(one(0), lambda reader: None)
        assert isinstance(reader.cause, RuntimeError)
        assert scheduler.is_idle and not scheduler.is_open
        go_on.set()
    assert pool.available == pool.total_segments
    assert scheduler.is_idle and not scheduler.is_open


def test_a_run_that_was_refused_is_not_made_beside_the_next_one(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(1, 2, 3 * SEGMENT), read_pool(8, SEGMENT, batch=4), Refusing())
    refused, _ = here.open(0)
    assert isinstance(refused.cause, RuntimeError)
    reader, consumer = here.open(0)  # its consumer asks again
    reads.before = lambda offset, size: here.threads.run()  # threads that get free in the middle of a run
    here.drain((reader, consumer))
    assert bytes(consumer.data) == stored(here.file, one(0))
    assert reads.made == [(56, 3 * SEGMENT + 64), (56 + 3 * SEGMENT + 64, 3 * SEGMENT + 64)]


def test_a_run_that_began_before_it_was_refused_is_made(stage: MakeStage, reads: Reads) -> None:
    refusing = Refusing(lambda threads: threads.step())
    here = stage(random_pair(1, 4, 3 * SEGMENT), read_pool(8, SEGMENT, batch=4), refusing)
    reader, consumer = here.open(0)
    assert reader.held and reader.cause is None
    consumer.drain(reader)
    here.drain((reader, consumer))
    assert bytes(consumer.data) == stored(here.file, one(0)) and consumer.ended
    assert sum(size for _, size in reads.made) == len(consumer.data)


@pytest.mark.parametrize("gone", ["data", "index", "both"])
def test_files_that_are_gone_are_missing_data_and_leave_nothing_open(tmp_path: Path, gone: str) -> None:
    here = Stage(tmp_path, random_pair(1, 1, 10), read_pool(4, SEGMENT))
    if gone != "index":
        os.unlink(here.file.data_path)
    if gone != "data":
        os.unlink(here.file.index_path)
    with pytest.raises(MissingDataError):
        here.open(0)
    here.assert_let_go()


def test_files_with_another_id_are_missing_data(tmp_path: Path) -> None:
    file = write_pair(tmp_path, random_pair(1, 1, 10))
    scheduler = ReadScheduler(file, OTHER_ID, read_pool(4, SEGMENT), Steps())
    with pytest.raises(MissingDataError, match="another one"):
        scheduler.create_reader(one(0), lambda reader: None)
    assert open_files(tmp_path) == []


def test_subpartitions_that_are_not_there_are_refused_and_leave_nothing_open(stage: MakeStage) -> None:
    here = stage(random_pair(2, 1, 10))
    with pytest.raises(UsageError, match="subpartitions 2 of a result partition that has 2"):
        here.open(2)


# Waiting for memory


class TestTime:
    """A clock that only waiting for buffers moves."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class PatientPool(ReadBufferPool):
    """A pool in which waiting takes no time but the test clock's; ``meanwhile`` happens at each wait."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def request(
        self, timeout: float = 2.0, still_wanted: Callable[[], bool] = lambda: False
    ) -> list[MemorySegment]:
        assert isinstance(self._clock, TestTime)
        while not (found := super().request(0)):
            self._clock.now += timeout
            self.meanwhile()
            if not still_wanted():
                break
        return found


def test_readers_fail_when_nobody_got_on_for_the_time_out(tmp_path: Path) -> None:
    clock = TestTime()
    pool = PatientPool(4 * SEGMENT, SEGMENT, option="the.option", clock=clock)
    taken = pool.request(0)
    threads = Steps()
    scheduler = ReadScheduler(
        write_pair(tmp_path, random_pair(2, 1, 100)), ID, pool, threads, timeout=300, clock=clock
    )
    clock.now += 10_000  # an idle service: waiting counts from when it began
    started = clock.now
    readers = [scheduler.create_reader(one(each), lambda reader: None) for each in range(2)]
    threads.run()
    assert 300 <= clock.now - started < 303
    for reader in readers:
        assert isinstance(reader.cause, BufferTimeoutError)
        assert "the.option" in str(reader.cause)
        assert scheduler.file.data_path in str(reader.cause)
    assert not scheduler.is_open
    pool.recycle(taken)


def test_anybodys_progress_refreshes_the_time_out(tmp_path: Path) -> None:
    clock = TestTime()
    pool = PatientPool(8 * SEGMENT, SEGMENT, option="the.option", clock=clock)
    taken = pool.request(0)
    started = clock.now

    def somebody_gets_on() -> None:
        if clock.now - started >= 250 * (9 - len(taken)):
            pool.recycle([taken.pop()])

    pool.meanwhile = somebody_gets_on
    threads = Steps()
    file = write_pair(tmp_path, random_pair(1, 1, 100))
    scheduler = ReadScheduler(file, ID, pool, threads, timeout=300, clock=clock)
    consumer = Consumer()
    reader = scheduler.create_reader(one(0), consumer.on_available)
    threads.run()
    assert clock.now - started > 2 * 300
    consumer.drain(reader)
    assert bytes(consumer.data) == stored(file, one(0))
    assert pool.available == pool.total_segments


def test_a_run_that_nobody_waits_for_stops_waiting_for_memory(tmp_path: Path) -> None:
    clock = TestTime()
    pool = PatientPool(4 * SEGMENT, SEGMENT, option="the.option", clock=clock)
    taken = pool.request(0)
    threads = Steps()
    scheduler = ReadScheduler(write_pair(tmp_path, random_pair(1, 1, 100)), ID, pool, threads, clock=clock)
    reader = scheduler.create_reader(one(0), lambda reader: None)
    pool.meanwhile = reader.release
    started = clock.now
    threads.run()
    assert clock.now - started <= 2
    assert reader.cause is None
    assert not scheduler.is_open
    pool.recycle(taken)


# Threads


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def test_64_concurrent_readers_all_get_their_bytes(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    file = write_pair(tmp_path, random_pair(64, 6, 9000, first=17))
    pool = read_pool(64, SEGMENT, batch=16)
    scheduler = ReadScheduler(file, ID, pool, threads)
    consumers = [Consumer() for _ in range(64)]
    start = threading.Barrier(64)

    def consume(subpartition: int) -> None:
        start.wait(PATIENCE)
        consumer = consumers[subpartition]
        consumer.consume(scheduler.create_reader(one(subpartition), consumer.on_available), credits=2)

    with together(*[lambda s=subpartition: consume(s) for subpartition in range(64)]):
        pass
    for subpartition, consumer in enumerate(consumers):
        assert bytes(consumer.data) == stored(file, one(subpartition))
    threads.shutdown()
    assert pool.available == pool.total_segments
    assert not scheduler.is_open


def test_readers_come_and_go_while_others_read(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    file = write_pair(tmp_path, random_pair(8, 10, 9000))
    expected = [stored(file, one(subpartition)) for subpartition in range(8)]
    pool = read_pool(16, SEGMENT, batch=4)
    scheduler = ReadScheduler(file, ID, pool, threads)

    def stay(subpartition: int) -> None:
        for _ in range(5):
            consumer = Consumer()
            consumer.consume(scheduler.create_reader(one(subpartition), consumer.on_available))
            assert bytes(consumer.data) == expected[subpartition]

    def leave(subpartition: int) -> None:
        for polls in range(20):
            consumer = Consumer()
            reader = scheduler.create_reader(one(subpartition), consumer.on_available)
            for _ in range(polls % 3):
                consumer.take(reader, credits=1)
            reader.release()
            consumer.give_back()

    with together(*[lambda s=s: stay(s) for s in range(4)], *[lambda s=s: leave(s) for s in range(8)]):
        pass
    threads.shutdown()
    assert pool.available == pool.total_segments
    assert not scheduler.is_open


def test_a_callback_may_poll_recycle_release_and_create_readers(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    file = write_pair(tmp_path, random_pair(2, 20, 9000))
    scheduler = ReadScheduler(file, ID, read_pool(4, SEGMENT), threads)
    taken, other, done = Consumer(), Consumer(), threading.Event()

    def on_available(reader: SubpartitionReader) -> None:
        taken.drain(reader)
        if taken.ended:
            scheduler.create_reader(one(1), on_available_of_the_other)

    def on_available_of_the_other(reader: SubpartitionReader) -> None:
        other.drain(reader)
        if other.ended:
            reader.release()
            done.set()

    scheduler.create_reader(one(0), on_available)
    assert done.wait(PATIENCE)
    assert bytes(taken.data) == stored(file, one(0))
    assert bytes(other.data) == stored(file, one(1))


def consume_by_halves(directory: Path, work: Callable[[int, Delivery], None]) -> list[bytes]:
    """Two consumers read a partition through a pool of one batch. Each ``work``s on what it got while both
    hold half of the pool, and gives nothing back before both are done. Returns what each of them got."""
    pool = read_pool(8, SEGMENT)  # nothing is read while anybody holds a segment
    file = write_pair(directory, random_pair(2, 1, 20 * SEGMENT))
    consumers = [Consumer(), Consumer()]
    meet = threading.Barrier(2)

    def consume(number: int, reader: SubpartitionReader) -> None:
        consumer = consumers[number]
        while not consumer.ended:
            consumer.wait()
            delivery = consumer.take(reader)
            meet.wait(PATIENCE)
            assert delivery is not None
            assert pool.available == 0 or consumer.ended
            work(number, delivery)
            meet.wait(PATIENCE)
            consumer.give_back()

    with ThreadPoolExecutor(1) as threads:
        both_there = threading.Event()
        threads.submit(both_there.wait, PATIENCE)
        scheduler = ReadScheduler(file, ID, pool, threads)
        readers = [scheduler.create_reader(one(n), consumers[n].on_available) for n in range(2)]
        both_there.set()
        with together(*[lambda n=n: consume(n, readers[n]) for n in range(2)]):
            pass
    assert pool.available == pool.total_segments
    got = [bytes(consumer.data) for consumer in consumers]
    assert got == [stored(file, one(0)), stored(file, one(1))]
    return got


def test_two_consumers_that_keep_half_of_the_pool_until_the_other_has_its_half_both_end(
    tmp_path: Path,
) -> None:
    consume_by_halves(tmp_path, lambda number, delivery: None)


def test_two_consumers_that_write_what_they_read_while_both_pools_are_out_both_end(tmp_path: Path) -> None:
    """All memory for reading is out, half with each, and all for writing was reserved at set-up, half by
    each: neither can give anything back before it has written, and neither may have to wait for the other."""
    segments = NetworkBufferPool(4, SEGMENT, option="the.option")
    outputs = [re_emitting(tmp_path / str(n), segments, attempt=n) for n in range(2)]
    assert segments.available == 0

    def emit(number: int, delivery: Delivery) -> None:
        for view in delivery.views:
            outputs[number].partition.emit(view, 0)

    got = consume_by_halves(tmp_path, emit)
    for output, expected in zip(outputs, got, strict=True):
        output.partition.finish(WRITER)
        assert b"".join(output.records()[0]) == expected
    assert segments.available == segments.total
    segments.destroy()


def re_emitting(directory: Path, segments: NetworkBufferPool, attempt: int) -> FrameOutput:
    """A partition of one subpartition, written through two segments that it reserves."""
    pool = segments.create_pool(2)
    directory.mkdir()
    file = PartitionedFile.named(str(directory), 4, attempt, attempt)
    writer = PartitionedFileWriter(file, FileHeader(ID, 1, 0, Codec.NONE, PayloadKind.FRAMES))
    payload, budget = FramesPayload(Codec.NONE), MemoryBudget(1 << 20)
    partition = FrameResultPartition(writer, FrameLayout(payload, pool, SEGMENT), budget, TaskMetrics())
    return FrameOutput(partition, payload, segments, budget, file)


def test_partitions_take_turns_on_one_pool_of_one_batch(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    pool = read_pool(8, SEGMENT)
    files = [write_pair(tmp_path, random_pair(2, 3, 5 * SEGMENT), attempt) for attempt in range(4)]
    schedulers = [ReadScheduler(file, ID, pool, threads) for file in files]

    def consume(number: int, subpartition: int) -> None:
        consumer = Consumer()
        consumer.consume(schedulers[number].create_reader(one(subpartition), consumer.on_available))
        assert bytes(consumer.data) == stored(files[number], one(subpartition))

    with together(*[lambda n=n, s=s: consume(n, s) for n in range(4) for s in range(2)]):
        pass
    threads.shutdown()
    assert pool.available == pool.total_segments


# Everything at once


@st.composite
def partitions(draw: st.DrawFn) -> Pair:
    count = draw(st.integers(1, 5))
    payloads = st.lists(st.binary(max_size=400), max_size=4)
    unicast = st.dictionaries(st.integers(0, count - 1), payloads).map(Region)
    broadcast = payloads.map(lambda found: Region({0: found}, RegionKind.BROADCAST))
    return Pair(count, draw(st.integers(0, count - 1)), draw(st.lists(unicast | broadcast, max_size=4)))


class Session:
    """Readers of one partition that come, poll, give back and leave in any order."""

    def __init__(self, here: Stage, data: st.DataObject) -> None:
        self.here = here
        self.draw = data.draw
        self.opened: list[tuple[SubpartitionRange, SubpartitionReader, Consumer]] = []
        self.left: list[SubpartitionReader] = []

    def create(self) -> None:
        count = read_index(self.here.file).header.subpartitions
        first = self.draw(st.integers(0, count - 1), "first")
        last = self.draw(st.integers(first, count - 1), "last")
        self.opened.append((SubpartitionRange(first, last), *self.here.open(first, last)))

    def take(self) -> None:
        reader, consumer = self._some()
        consumer.take(reader, self.draw(st.integers(0, 3), "credits"))

    def give_back(self) -> None:
        self._some()[1].give_back()

    def leave(self) -> None:
        reader, _ = self._some()
        reader.release()
        self.left.append(reader)

    def step(self) -> None:
        self.here.step()

    def finish(self) -> None:
        for _, _, consumer in self.opened:
            consumer.give_back()
        while not all(consumer.ended or reader in self.left for _, reader, consumer in self.opened):
            self.here.step()
            for _, reader, consumer in self.opened:
                consumer.drain(reader, credits=1)

    def end(self) -> None:
        for _, reader, consumer in self.opened:
            consumer.give_back()
            reader.release()
        self.here.threads.run()
        self.here.assert_let_go()

    def _some(self) -> tuple[SubpartitionReader, Consumer]:
        return self.draw(st.sampled_from(self.opened), "reader")[1:]


ACTIONS = st.sampled_from(["create", "take", "take", "step", "step", "give_back", "leave"])


@given(partitions(), st.data())
def test_any_readers_polling_and_recycling_in_any_order_get_every_byte(
    tmp_path_factory: pytest.TempPathFactory, pair: Pair, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(1, 4), "segments in a batch")
    batches = data.draw(st.integers(1, 4), "batches")
    segment = data.draw(st.sampled_from([1, 31, 64, 127, 256, 1024]), "bytes in a segment")
    pool = read_pool(batch * batches, segment, batch=batch)
    session = Session(Stage(tmp_path_factory.mktemp("pair"), pair, pool), data)
    try:
        session.create()
        for action in data.draw(st.lists(ACTIONS, max_size=40), "actions"):
            getattr(session, action)()
        session.finish()
        for asked, reader, consumer in session.opened:
            expected = stored(session.here.file, asked)
            if reader in session.left:
                assert expected.startswith(bytes(consumer.data))
            else:
                assert bytes(consumer.data) == expected
    finally:
        session.end()


# Parts of a range, and credit


@pytest.mark.parametrize("skip", [0, 1, 5000, 10_048, 25_000])
def test_a_reader_may_begin_anywhere(stage: MakeStage, skip: int) -> None:
    here = stage(random_pair(3, 4, 10_000, first=1))
    consumer = Consumer()
    part = RangePart(RegionRange(1), skip)
    reader = here.scheduler.create_reader(one(2), consumer.on_available, part)
    here.drain((reader, consumer))
    whole = stored(here.file, one(2))
    assert bytes(consumer.data) == whole[len(whole) // 4 + skip :]
    assert consumer.ended


def test_a_reader_that_begins_at_the_end_is_at_its_end(stage: MakeStage) -> None:
    here = stage(random_pair(1, 1, 1000))
    consumer = Consumer()
    part = RangePart(skip=len(stored(here.file, one(0))))
    reader = here.scheduler.create_reader(one(0), consumer.on_available, part)
    consumer.drain(reader)
    assert (bytes(consumer.data), consumer.ended) == (b"", True)


def test_a_part_that_is_not_there_is_refused_and_leaves_no_file_open(stage: MakeStage) -> None:
    here = stage(random_pair(1, 1, 1000))
    with pytest.raises(UsageError, match="bytes are to be skipped"):
        here.scheduler.create_reader(one(0), lambda reader: None, RangePart(skip=1 << 30))


def test_nothing_is_read_without_credit_and_no_more_than_it_is_for(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(1, 2, 10 * SEGMENT))
    consumer = Consumer()
    reader = here.scheduler.create_reader(one(0), consumer.on_available, credits=0)
    here.threads.run()
    assert reads.made == []
    for credits in (3, 1, 5):
        before = sum(size for _, size in reads.made)
        reader.grant(credits)
        here.threads.run()
        assert sum(size for _, size in reads.made) - before == credits * SEGMENT
        delivery = consumer.take(reader, credits)
        assert delivery is not None and delivery.credits == credits
        consumer.give_back()
        here.threads.run()
        assert sum(size for _, size in reads.made) - before == credits * SEGMENT
    reader.release()


def test_small_extents_fill_a_batch_in_one_run(stage: MakeStage, reads: Reads) -> None:
    here = stage(random_pair(1, 40, 100))
    reader, consumer = here.open(0)
    here.threads.step()
    assert len(reads.made) == 32  # half of what the partition may have: one piece each
    consumer.drain(reader)
    here.drain((reader, consumer))
    assert bytes(consumer.data) == stored(here.file, one(0))


def test_opening_the_files_keeps_nobody_waiting_who_gives_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = read_pool(64, SEGMENT, batch=16)
    file = write_pair(tmp_path, random_pair(2, 1, 10_000))
    opening, go_on = threading.Event(), threading.Event()

    def slow(file: PartitionedFile, file_id: bytes | None = None) -> Index:
        opening.set()
        assert go_on.wait(PATIENCE)
        return read_index(file, file_id)

    monkeypatch.setattr(sys.modules[ReadScheduler.__module__], "read_index", slow)
    scheduler = ReadScheduler(file, ID, pool, Steps())
    cursor = ExtentCursor(read_index(file), one(1))
    other = SubpartitionReader(cursor, SEGMENT, scheduler, lambda reader: None)

    def create() -> None:
        with pytest.raises(StateError, match="ended meanwhile"):
            scheduler.create_reader(one(0), lambda reader: None)

    with together(create):
        assert opening.wait(PATIENCE)
        scheduler.memory_returned(other)  # comes back at once
        closed = scheduler.close(StateError("ended meanwhile"))
        assert not closed.done()  # the files are about to be open
        go_on.set()
        closed.result(PATIENCE)
    assert open_files(tmp_path) == []
