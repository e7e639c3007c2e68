"""The order of reading: passes in file order, neighbours in one read, everyone once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import Consumer, one, random_pair, read_pool
from engine import Pair, write_pair

from sortshuffle.reading.segment_batch import SegmentBatch
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.reading.sweep import ReadLimits, Sweep
from sortshuffle.storage.files.ranges import ExtentCursor
from sortshuffle.storage.files.reader import read_index

SEGMENT = 1024
PLENTY = ReadLimits(share=100, crowded=False)


class Looked(SubpartitionReader):
    """A reader that counts how often it is looked at."""

    looks = 0

    @property
    def wanted(self) -> int:
        self.looks += 1
        return super().wanted


class Plan:
    """A sweep over readers of one partition, and a batch to plan into."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sweep = Sweep()
        self.pool = read_pool(16, SEGMENT)
        self.batch = SegmentBatch(self.pool.request(0), self.pool)

    def memory_returned(self, reader: SubpartitionReader) -> None:
        raise AssertionError("nothing is delivered")

    def leave(self, reader: SubpartitionReader) -> None:
        raise AssertionError("nobody leaves")

    def add(self, pair: Pair, *subpartitions: int, credits: int | None = None) -> list[Looked]:
        index = read_index(write_pair(self.directory, pair))
        cursors = [ExtentCursor(index, one(subpartition)) for subpartition in subpartitions]
        added = [Looked(cursor, SEGMENT, self, Consumer().on_available, False, credits) for cursor in cursors]
        for reader in added:
            self.sweep.add(reader)
        return added

    def reads(self, limits: ReadLimits) -> list[list[tuple[int, int, int]]]:
        """Offset, size and place of every chunk, read by read, until there is no more to plan."""
        found = []
        while (read := self.sweep.plan(self.batch, limits)) is not None:
            found.append([(chunk.offset, chunk.size, chunk.start) for chunk in read.chunks])
        return found


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Plan]:
    made = Plan(tmp_path)
    yield made
    made.batch.release()
    assert made.pool.available == made.pool.total_segments


def test_only_who_changed_is_looked_at_where_nobody_waits_for_memory(plan: Plan) -> None:
    changed, *others = plan.add(random_pair(4, 1, 100), 0, 1, 2, 3, credits=0)
    assert not plan.sweep.is_due(PLENTY)
    seen = [reader.looks for reader in others]
    assert not plan.sweep.is_due(PLENTY, changed)
    changed._credits = 1
    assert plan.sweep.is_due(PLENTY, changed)
    plan.sweep.remove(changed)
    assert not plan.sweep.is_due(PLENTY, changed)
    assert [reader.looks for reader in others] == seen


def test_who_waits_for_memory_is_looked_at_whoever_changed(plan: Plan) -> None:
    waiting, changed = plan.add(random_pair(2, 1, 100), 0, 1, credits=0)
    waiting._credits = 1
    none_left = ReadLimits(share=0, crowded=False)
    assert not plan.sweep.is_due(none_left, waiting)
    assert not plan.sweep.is_due(none_left, changed)
    assert plan.sweep.is_due(PLENTY, changed)


def test_nothing_is_planned_before_a_pass_begins(plan: Plan) -> None:
    plan.add(random_pair(2, 1, 100), 0, 1)
    assert plan.reads(PLENTY) == []


def test_neighbours_are_one_read_in_file_order(plan: Plan) -> None:
    plan.add(random_pair(4, 1, 100, first=2), 0, 1, 3, 2)
    plan.sweep.begin_pass(PLENTY)
    assert plan.reads(PLENTY) == [[(56 + n * 128, 128, n * 128) for n in range(4)]]


def test_a_hole_in_the_file_is_not_read(plan: Plan) -> None:
    plan.add(random_pair(4, 1, 100), 0, 1, 3)
    plan.sweep.begin_pass(PLENTY)
    assert plan.reads(PLENTY) == [[(56, 128, 0), (184, 128, 128)], [(440, 128, 256)]]


def test_chunks_of_one_read_may_skip_the_end_of_a_segment(plan: Plan) -> None:
    plan.add(random_pair(3, 1, 600), 0, 1, 2)
    plan.sweep.begin_pass(PLENTY)
    assert plan.reads(PLENTY) == [[(56, 640, 0), (696, 640, 1024), (1336, 640, 2048)]]


def test_readers_of_the_same_bytes_share_their_place(plan: Plan) -> None:
    plan.add(random_pair(2, 1, 100), 0, 0, 0)
    plan.sweep.begin_pass(PLENTY)
    assert plan.reads(PLENTY) == [[(56, 128, 0)] * 3]


def test_a_read_can_be_made_place_by_place_each_for_all_its_readers(plan: Plan) -> None:
    plan.add(random_pair(3, 1, 600), 0, 0, 1, 2, 2)
    plan.sweep.begin_pass(PLENTY)
    read = plan.sweep.plan(plan.batch, PLENTY)
    assert read is not None
    parts = read.place_by_place()
    assert [part.places for part in parts] == [[(0, 640)], [(1024, 640)], [(2048, 640)]]
    assert [chunk.reader for part in parts for chunk in part.chunks] == list(plan.sweep.readers)


def test_the_rest_of_a_pass_waits_for_the_next_batch(plan: Plan) -> None:
    plan.add(random_pair(3, 1, 6 * SEGMENT), 0, 1, 2)
    plan.sweep.begin_pass(PLENTY)
    extent = 6 * SEGMENT + 64
    assert plan.reads(PLENTY) == [[(56, extent, 0), (56 + extent, extent, extent)]]
    plan.batch.used = 0
    plan.sweep.begin_pass(PLENTY)  # goes on with the one that is not through
    assert plan.reads(PLENTY) == [[(56 + 2 * extent, extent, 0)]]
    assert plan.sweep.passes == 1


def test_an_extent_above_the_share_or_the_batch_is_cut(plan: Plan) -> None:
    plan.add(random_pair(1, 1, 100 * SEGMENT), 0)
    for limits, size in ((ReadLimits(3, False), 3), (PLENTY, 16)):
        plan.batch.used = 0
        plan.sweep.begin_pass(limits)
        assert plan.reads(limits) == [[(56, size * SEGMENT, 0)]]


def test_who_leaves_in_the_middle_of_a_pass_is_left_out(plan: Plan) -> None:
    plan.add(random_pair(3, 1, 100), 0, 1, 2)
    plan.sweep.begin_pass(PLENTY)
    second = list(plan.sweep.readers)[1]
    plan.sweep.remove(second)
    plan.sweep.remove(second)
    assert [len(read) for read in plan.reads(PLENTY)] == [1, 1]
