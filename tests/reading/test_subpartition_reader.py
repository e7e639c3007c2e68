"""The view of one consumer: what it is told and when, what credit buys, and where the memory goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from consumers import Consumer, one, random_pair, read_pool
from engine import write_pair

from sortshuffle.errors import StateError
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.reading.subpartition_reader import ReadPiece, SubpartitionReader
from sortshuffle.storage.files.ranges import ExtentCursor
from sortshuffle.storage.files.reader import read_index

SEGMENT = 1024


class Sweeper:
    """Counts what the reader reports."""

    def __init__(self) -> None:
        self.returned = 0
        self.left: list[SubpartitionReader] = []

    def memory_returned(self, reader: SubpartitionReader) -> None:
        self.returned += 1

    def leave(self, reader: SubpartitionReader) -> None:
        self.left.append(reader)


class View:
    """A reader, its consumer, and pieces of an extent of 5 to 6 segments to add to it."""

    def __init__(self, directory: Path, pool: ReadBufferPool, credits: int | None = None) -> None:
        index = read_index(write_pair(directory, random_pair(2, 1, 5 * SEGMENT + 100)))
        self.pool = pool
        self.segments = pool.request(0)
        self.sweeper = Sweeper()
        self.consumer = Consumer()
        cursor = ExtentCursor(index, one(0))
        self.extent = cursor.current
        self.position = 0
        on_available = self.consumer.on_available
        self.reader = SubpartitionReader(cursor, SEGMENT, self.sweeper, on_available, credits=credits)

    def add(self, *sizes: int, complete: bool = False) -> None:
        """One piece of each size, each in a segment of its own and filled with its number."""
        pieces = []
        for size in sizes:
            segment = self.segments.pop()
            segment.fill(len(self.segments))
            whole = Buffer(segment, self.pool)
            pieces.append(ReadPiece(self.extent, self.position, whole.slice(0, size)))
            whole.recycle()
            self.position += size
        self.reader.add(pieces, complete=complete)

    def next_extent(self) -> None:
        """What is added from now on is of another extent."""
        self.extent = replace(self.extent, region=self.extent.region + 1)
        self.position = 0

    def taken(self, credits: int, most: int = sys.maxsize) -> list[list[int]]:
        """The sizes of one poll's pieces, those of each run by themselves. It is recycled."""
        delivery = self.reader.poll(credits, most)
        assert delivery is not None
        sizes = [[len(piece) for piece in run] for run in delivery.runs]
        delivery.recycle()
        return sizes

    @property
    def is_whole(self) -> bool:
        """Whether the reader and its consumer have given everything back."""
        return self.pool.available + len(self.segments) == self.pool.total_segments


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    pool = read_pool(10, SEGMENT)
    made = View(tmp_path, pool)
    yield made
    made.consumer.give_back()
    made.reader.release()
    pool.recycle(made.segments)
    assert pool.available == pool.total_segments
    pool.destroy()


def test_the_consumer_is_told_only_when_there_is_something_after_there_was_nothing(view: View) -> None:
    assert view.consumer.notified == 0
    view.add(100)
    assert view.consumer.notified == 1
    view.add(100)
    assert view.consumer.notified == 1
    view.consumer.take(view.reader)
    view.add(100)
    assert view.consumer.notified == 2


def test_pieces_come_in_order_with_their_places(view: View) -> None:
    view.add(SEGMENT, SEGMENT, 500)
    first = view.reader.poll(2)
    second = view.reader.poll(2)
    assert first is not None and second is not None
    assert [(piece.position, piece.size) for piece in first.pieces] == [(0, SEGMENT), (SEGMENT, SEGMENT)]
    assert [(piece.position, piece.size) for piece in second.pieces] == [(2 * SEGMENT, 500)]
    assert [bytes(seen) for seen in second.views] == [bytes([7]) * 500]  # 10 segments: 9 and 8 went first
    assert (first.size, second.size) == (2 * SEGMENT, 500)
    first.recycle()
    second.recycle()
    assert view.is_whole


def test_a_credit_is_worth_one_segment_and_pieces_of_one_extent_share_it(view: View) -> None:
    view.add(400, 400, 400, SEGMENT)
    assert view.reader.poll(0) is None
    bought = []
    for credits in (1, 1, 2):
        delivery = view.reader.poll(credits)
        assert delivery is not None
        bought.append((len(delivery.pieces), delivery.credits, delivery.backlog))
        delivery.recycle()
    assert bought == [(2, 1, 5), (1, 1, 4), (1, 1, 3)]  # of 5 segments and a bit in all
    assert view.reader.poll(1) is None


def test_extents_do_not_share_credits_because_each_becomes_a_response(view: View) -> None:
    view.add(300, 300)
    view.next_extent()
    view.add(300, SEGMENT)
    assert view.taken(2) == [[300, 300], [300]]
    assert view.taken(2) == [[SEGMENT]]


def test_what_is_wanted_is_what_there_is_credit_for_beyond_the_queue(tmp_path: Path) -> None:
    pool = read_pool(10, SEGMENT)
    view = View(tmp_path, pool, credits=4)
    assert view.reader.wanted == 4
    view.add(SEGMENT, SEGMENT, SEGMENT)
    assert view.reader.wanted == 1
    assert view.taken(4, most=1) == [[SEGMENT]]
    assert view.reader.wanted == 1
    before = view.sweeper.returned
    view.reader.grant(10)
    assert (view.reader.wanted, view.sweeper.returned) == (8, before + 1)
    view.reader.release()
    pool.recycle(view.segments)
    pool.destroy()


def test_a_consumer_without_a_number_of_credits_wants_anything(view: View) -> None:
    view.add(SEGMENT, SEGMENT)
    view.reader.grant(1)
    assert view.reader.wanted > 1 << 40
    assert view.taken(1) == [[SEGMENT]]
    assert view.reader.wanted > 1 << 40


def test_a_poll_takes_no_more_than_it_is_told(view: View) -> None:
    view.add(SEGMENT, SEGMENT, SEGMENT)
    assert view.taken(9, most=1) == [[SEGMENT]]
    assert view.taken(9, most=SEGMENT + 1) == [[SEGMENT, SEGMENT]]


@pytest.mark.parametrize(
    ("added", "complete", "credits", "available"),
    [
        ((), False, 5, False),
        ((SEGMENT, 10), False, 1, True),
        ((SEGMENT, 10), False, 0, False),
        ((SEGMENT,), True, 0, False),
        ((), True, 0, True),
    ],
    ids=["nothing", "data and credit", "data without credit", "data before the end", "the end is free"],
)
def test_data_costs_credit_and_the_end_is_free(
    view: View, added: tuple[int, ...], complete: bool, credits: int, available: bool
) -> None:
    view.add(*added, complete=complete)
    assert view.reader.is_available(credits) == available
    assert view.reader.is_queued == bool(added)


def test_the_end_comes_once_with_the_last_piece_or_alone(view: View) -> None:
    view.add(SEGMENT, SEGMENT, complete=True)
    first = view.reader.poll(1)
    last = view.reader.poll(1)
    assert first is not None and last is not None
    assert not first.end_of_partition
    assert last.end_of_partition and len(last.pieces) == 1
    assert view.reader.poll(1) is None
    assert not view.reader.is_available(1)
    first.recycle()
    last.recycle()


def test_a_view_without_data_has_an_end_that_needs_no_credit(view: View) -> None:
    view.add(complete=True)
    assert view.consumer.notified == 1
    delivery = view.reader.poll(0)
    assert delivery is not None
    assert (delivery.pieces, delivery.end_of_partition, delivery.credits) == ((), True, 0)
    delivery.recycle()


def test_failing_gives_the_queue_back_and_tells_the_consumer_why(view: View) -> None:
    view.add(100, 100)
    cause = OSError("the disk is gone")
    view.reader.fail(cause)
    assert view.consumer.notified == 2
    assert view.reader.cause is cause
    assert view.reader.is_available(0)
    assert view.is_whole
    assert view.sweeper.left == [view.reader]


def test_only_the_first_failure_counts(view: View) -> None:
    cause = OSError("the first")
    view.reader.fail(cause)
    view.reader.fail(OSError("the second"))
    assert view.reader.cause is cause
    assert view.consumer.notified == 1
    assert view.sweeper.left == [view.reader]


def test_releasing_gives_the_queue_back_and_tells_nobody(view: View) -> None:
    view.add(100)
    view.reader.release()
    view.reader.release()
    view.reader.fail(OSError("too late"))
    assert view.consumer.notified == 1
    assert view.reader.cause is None
    assert view.is_whole
    assert view.sweeper.left == [view.reader]


def test_adding_after_release_gives_the_memory_back_and_is_an_error(view: View) -> None:
    view.reader.release()
    with pytest.raises(StateError, match="released while its data was being read"):
        view.add(100, 100)
    assert view.is_whole
    assert view.consumer.notified == 0


def test_polling_after_release_or_failure_gives_nothing(view: View) -> None:
    view.add(100, complete=True)
    view.reader.fail(OSError("gone"))
    assert view.reader.poll(5) is None
    view.reader.release()
    assert view.reader.poll(5) is None


def test_what_was_delivered_before_a_release_stays_the_consumers(view: View) -> None:
    view.add(300, 100)
    delivery = view.reader.poll(1)
    assert delivery is not None
    view.reader.release()
    assert not view.is_whole
    assert [len(each) for each in delivery.views] == [300, 100]
    delivery.recycle()
    assert view.is_whole


def test_held_counts_what_is_queued_or_delivered(view: View) -> None:
    view.add(SEGMENT, SEGMENT, SEGMENT)
    assert view.reader.held == 3
    delivery = view.reader.poll(2)
    assert delivery is not None
    assert view.reader.held == 3
    delivery.recycle()
    assert view.reader.held == 1
    view.reader.release()
    assert view.reader.held == 0


def test_recycling_a_delivery_twice_does_nothing_the_second_time(view: View) -> None:
    view.add(SEGMENT, SEGMENT)
    delivery = view.reader.poll(1)
    assert delivery is not None
    delivery.recycle()
    delivery.recycle()
    assert view.reader.held == 1
    assert view.sweeper.returned == 1


def test_the_callback_may_poll_and_recycle(tmp_path: Path) -> None:
    pool = read_pool(4, SEGMENT)
    taken = Consumer()
    view = View(tmp_path, pool)
    view.reader = SubpartitionReader(view.reader.cursor, SEGMENT, view.sweeper, taken.drain)
    view.add(100)
    view.add(200, complete=True)
    assert len(taken.data) == 300
    assert taken.ended
    pool.recycle(view.segments)
    assert pool.available == pool.total_segments
