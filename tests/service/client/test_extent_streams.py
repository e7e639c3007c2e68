"""Streams of extents without a network: whatever the service sends when, and however often the connection
breaks, what the reader gets are the bytes of the file; there is never credit for more than there is room for,
and whoever waits has credit."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import Place, ProtocolError
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client_channel import RequestSubject
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.client.extent_streams import MOST_CREDIT, ExtentStream, PartStream, WholeStream
from sortshuffle.service.wire.protocol import (
    Header,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Sender,
    pack_buffer_header,
    pack_end_of_partition,
)
from sortshuffle.storage.files.extents import Extent, aligned_memory

SEGMENT = 64
ASKED = RequestSubject("what a test asks for", Place("/far/file.data"), "far")
OUTPUT = MapOutputAddress("app", 1, 2, 3, bytes(16))
DATA = random.Random(1).randbytes(1 << 16)


def extents(*sizes: int, of_region: bool = False) -> tuple[Extent, ...]:
    """Of one subpartition, or of one region."""
    found, offset = [], 0
    for number, size in enumerate(sizes):
        region, subpartition = (0, 5 + number) if of_region else (number, 5)
        found.append(Extent(region, subpartition, offset, size, size, 1, 0, 1))
        offset += size
    return tuple(found)


@dataclass
class Service:
    """The other end of one stream: sends as much as a step says, as far as the credit goes. Extents of one
    region lie one behind the other, and come as if they were one."""

    stream: ExtentStream
    sizes: tuple[int, ...]
    of_region: bool = False
    position: int = 0
    credit: int = 0
    sequence: int = 0
    number: int = -1
    granted: list[int] = field(default_factory=list)

    def connect(self, segment_bytes: int = SEGMENT) -> bool:
        """The stream is requested, if it has room."""
        self.number += 1
        frame = self.stream.request(self.number, segment_bytes)
        if frame is None:
            return False
        request = PartitionRequest.unpack(Header.unpack(frame[:24], Sender.CLIENT), frame[24:])
        subpartitions, regions = request.subpartitions, request.regions
        subpartition_count, region_count = (len(self.sizes), 1) if self.of_region else (1, len(self.sizes))
        assert (subpartitions.first, len(subpartitions)) == (5, subpartition_count)
        assert (regions.first, regions.count) == (0, region_count)
        self.position, self.credit, self.sequence = request.skip, request.credit, 0
        return True

    def add_credit(self) -> None:
        due = self.stream.credit_due()
        self.credit += due
        if due:
            self.granted.append(due)

    def send(self, most: int, arriving: int | None = None, backlog: int = 0) -> int:
        """One response of at most so many bytes, of which so many arrive before the connection breaks."""
        end = 0
        for size in [sum(self.sizes)] if self.of_region else self.sizes:
            end += size
            if self.position < end:
                break
        size = min(most, end - self.position, self.credit * self.stream.segment_bytes)
        if size <= 0:
            return 0
        self.credit -= -(-size // self.stream.segment_bytes)
        views = self.stream.accept(
            header_of(pack_buffer_header(self.number, self.sequence, backlog, size, False))
        )
        self.sequence += 1
        assert sum(map(len, views)) == size
        arrived = size if arriving is None else min(size, arriving)
        at = self.position
        for view in views:
            part = DATA[at : min(at + len(view), self.position + arrived)]
            view[: len(part)] = part
            at += len(part)
        self.stream.count_filled(arrived)
        self.position += arrived
        if arrived < size:
            self.stream.forget_request()
        return arrived


def header_of(frame: bytes) -> Header:
    header = Header.unpack(frame[:24], Sender.SERVER)
    assert header.kind is Kind.BUFFER_RESPONSE
    return header


def attached(stream: ExtentStream) -> ExtentStream:
    stream.attach(threading.Lock(), Backoff(60))
    stream.changed.acquire()
    return stream


def part_stream(
    sizes: tuple[int, ...], floating: int = 0, of_region: bool = False
) -> tuple[PartStream, FloatingCredits]:
    credits = FloatingCredits(floating)
    found = extents(*sizes, of_region=of_region)
    stream = PartStream(ASKED, OUTPUT, found, credits, lambda each, size: each.add_loan(size))
    attached(stream)
    return stream, credits


def expect_room(stream: PartStream) -> None:
    """What may come and what lies ahead never takes more than there is room for."""
    room = stream._missing + stream.segment_bytes + stream._borrowed
    assert stream.credit * stream.segment_bytes + stream._ahead <= room


SIZES = st.lists(st.integers(1, 700), min_size=1, max_size=4).map(tuple)


@given(
    SIZES,
    st.booleans(),
    st.integers(1, 500),
    st.sampled_from([0, 2 * SEGMENT, 40 * SEGMENT]),
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 20), st.integers(0, 9)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_parts_are_the_files_bytes_and_room_is_kept(
    sizes: tuple[int, ...],
    of_region: bool,
    part: int,
    floating: int,
    steps: list[tuple[int, int, int]],
    chance: random.Random,
) -> None:
    """``steps``: sizes of responses, their backlog, and whether the connection breaks (0)."""
    stream, credits = part_stream(sizes, floating, of_region)
    service = Service(stream, sizes, of_region)
    service.connect()
    turn = 0

    def one_step() -> None:
        nonlocal turn
        most, backlog, fate = steps[turn % len(steps)]
        turn += 1
        if not stream.is_requested and not service.connect(chance.choice([SEGMENT, 2 * SEGMENT])):
            return
        expect_room(stream)
        breaks = fate == 0 and turn < 50
        service.send(most, chance.randint(0, most) if breaks else None, backlog)
        if breaks:
            stream.forget_request()
        else:
            service.add_credit()
        if stream.is_requested:
            expect_room(stream)

    found = b""
    while len(found) < sum(sizes):
        for _ in range(chance.randint(0, 3)):  # what comes while nobody waits
            one_step()
        start = len(found)
        size = min(part, sum(sizes) - start)
        memory, view = aligned_memory(size)
        stream.want(start, view)
        if stream.is_requested:
            service.add_credit()
            expect_room(stream)
        tries = 0
        while not stream.has_wanted:
            if stream.is_requested:
                assert service.credit > 0, "who waits has no credit"
            one_step()
            tries += 1
            assert tries < 5000
        assert memory.to_pybytes() == DATA[start : start + size]
        stream.taken()
        credits.give_back(stream, stream.spare())
        if stream.is_requested:
            service.add_credit()
        kept = chance.randint(1, size)  # the rest is asked for again
        found += memory.to_pybytes()[:kept]
        if chance.random() < 0.5:
            stream.forget_up_to(start + kept)
    assert found == DATA[: sum(sizes)]
    credits.leave(stream)
    assert credits.free == credits.total


@given(
    SIZES,
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_whole_extents_are_the_files_bytes(
    sizes: tuple[int, ...], of_region: bool, steps: list[tuple[int, int]], chance: random.Random
) -> None:
    stream = WholeStream(ASKED, OUTPUT, extents(*sizes, of_region=of_region))
    attached(stream)
    service = Service(stream, sizes, of_region)
    service.connect()
    found: list[pa.Buffer] = []
    for turn in range(10_000):
        most, fate = steps[turn % len(steps)]
        breaks = fate == 0 and turn < 50
        assert service.credit > 0
        service.send(most, chance.randint(0, most) if breaks else None)
        if breaks:
            stream.forget_request()
            if not stream.is_complete:
                service.connect(chance.choice([SEGMENT, 3 * SEGMENT]))
        else:
            service.add_credit()
        while stream.has_next:
            assert stream.next is not None
            found.append(stream.take())
        if stream.is_complete:
            break
    assert stream.next is None
    starts = [extent.offset for extent in extents(*sizes)]
    assert [each.to_pybytes() for each in found] == [
        DATA[start : start + size] for start, size in zip(starts, sizes, strict=True)
    ]


def test_whole_extents_have_credit_for_all_of_them_at_once_but_no_absurd_sum() -> None:
    small, large = (attached(WholeStream(ASKED, OUTPUT, extents(size, 10))) for size in (1000, 1 << 20))
    assert Service(small, (1000, 10)).connect()
    assert small.credit == 1010 // SEGMENT + 1 + 2
    assert Service(large, (1 << 20, 10)).connect()
    assert large.credit == MOST_CREDIT


def test_credit_is_announced_in_pieces_that_are_worth_it() -> None:
    sizes = (SEGMENT * 400,)
    stream, _ = part_stream(sizes)
    service = Service(stream, sizes)
    service.connect()
    part = 40 * SEGMENT
    for number in range(10):
        stream.want(number * part, aligned_memory(part)[1])
        service.add_credit()
        while not stream.has_wanted:
            service.send(SEGMENT)
            service.add_credit()
        stream.taken()
        service.add_credit()
    assert len(service.granted) <= 2 * 10
    assert sum(service.granted) >= 390


def test_what_comes_for_a_waiting_reader_is_put_where_it_is_handed_out() -> None:
    stream, _ = part_stream((1000,))
    stream.segment_bytes = SEGMENT
    memory, view = aligned_memory(300)
    stream.want(0, view)
    service = Service(stream, (1000,))
    service.connect()
    views = stream.accept(header_of(pack_buffer_header(0, 0, 0, 320, False)))
    assert [len(each) for each in views] == [300, 20]
    views[0][:] = b"x" * 300
    assert memory.to_pybytes() == b"x" * 300


@pytest.mark.parametrize("size", [1001, 2000])
def test_nothing_may_come_beyond_the_end_of_an_extent(size: int) -> None:
    stream = attached(WholeStream(ASKED, OUTPUT, extents(1000, 5000)))
    Service(stream, (1000, 5000)).connect()
    with pytest.raises(ProtocolError, match="go beyond the end of an extent: 6000 bytes are expected"):
        stream.accept(header_of(pack_buffer_header(0, 0, 0, size, False)))


def test_the_end_is_told_at_the_end() -> None:
    stream = attached(WholeStream(ASKED, OUTPUT, extents(100)))
    service = Service(stream, (100,))
    service.connect()
    service.send(64)
    with pytest.raises(ProtocolError, match="the stream ended after 64 bytes, where 100 are expected"):
        stream.end(header_of(pack_end_of_partition(0, 1)))
    service.connect()
    service.send(64)
    stream.end(header_of(pack_end_of_partition(1, 1)))
    assert stream.is_complete


@pytest.mark.parametrize("sequence", [0, 2])
def test_numbers_have_no_gaps_and_come_once(sequence: int) -> None:
    stream = attached(WholeStream(ASKED, OUTPUT, extents(100)))
    service = Service(stream, (100,))
    service.connect()
    service.send(10)
    with pytest.raises(ProtocolError, match=f"buffer {sequence} came where 1 is next"):
        stream.accept(header_of(pack_buffer_header(0, sequence, 0, 10, False)))
