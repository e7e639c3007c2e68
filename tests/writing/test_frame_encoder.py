"""`FrameEncoder`: what is added is what is drained, cut over segments; fullness is known before anything is
written; every segment goes back, and nothing stays charged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pytest
from engine import untouched

from sortshuffle.errors import UsageError
from sortshuffle.format.buffer import sealed_size
from sortshuffle.format.header import Codec
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.pickled import PickledPayload, pack_chunk
from sortshuffle.payload.spanning import LENGTH_BYTES, SpanningDeserializer
from sortshuffle.writing.frame_encoder import LARGE_SLICE, Frame, FrameEncoder, FrameLayout, segment_bytes

SEGMENT = 4096
NO_LIMIT = 1 << 40


@dataclass
class Bench:
    """An encoder with all that it is made of."""

    encoder: FrameEncoder
    pool: LocalBufferPool
    budget: MemoryBudget
    metrics: TaskMetrics

    def add(self, data: bytes, subpartition: int = 0) -> bool:
        """Add a frame if there is room; whether there was."""
        frame = self.encoder.checked(Frame.of(data, subpartition))
        if not self.encoder.room_for(frame):
            return False
        self.encoder.add(frame)
        return True

    def drained(self) -> list[tuple[int, list[bytes]]]:
        """The payloads of each extent, with the encoder as it is behind the write."""
        found: list[tuple[int, list[bytes]]] = []
        for subpartition, buffers in self.encoder.drain():
            found.append((subpartition, [bytes(buffer.payload) for buffer in buffers]))
            self.budget.release(sum(buffer.bytes for buffer in buffers))
        self.encoder.written()
        return found

    def is_whole(self) -> bool:
        return self.in_hand == 0 and self.budget.used == 0

    @property
    def in_hand(self) -> int:
        return self.pool.requested - self.pool.available


def network_of(segments: int) -> NetworkBufferPool:
    return NetworkBufferPool(segments, SEGMENT, option="a test's segments", request_timeout=0.01)


def bench(
    *,
    segments: int = 8,
    usable: int = SEGMENT,
    order: list[int] | None = None,
    memory: int = NO_LIMIT,
    codec: Codec = Codec.NONE,
    kind: RegionKind = RegionKind.UNICAST,
    payload: FramesPayload | None = None,
) -> Bench:
    pool = network_of(segments).create_pool(segments)
    layout = FrameLayout(payload or FramesPayload(codec), pool, usable)
    budget, metrics = MemoryBudget(memory), TaskMetrics()
    encoder = FrameEncoder(layout, kind, order or [0, 1, 2], budget, metrics)
    benches.append(Bench(encoder, pool, budget, metrics))
    return benches[-1]


benches: list[Bench] = []


@pytest.fixture(autouse=True)
def discard_what_is_left() -> Iterator[None]:
    """Wherever a test leaves an encoder, discarding it gives back every segment."""
    yield
    while benches:
        left = benches.pop()
        left.encoder.discard()
        assert left.in_hand == 0
        left.pool.close()


def frames_in(payloads: list[bytes]) -> list[bytes]:
    deserializer = SpanningDeserializer(BytesIO)  # type: ignore[arg-type]
    found = [bytes(frame) for payload in payloads for frame in deserializer.records(memoryview(payload))]
    deserializer.finish()
    return found


def holding(size: int) -> bytes:
    """A frame that takes ``size`` bytes of segments."""
    return bytes(size - LENGTH_BYTES)


# What is added is drained


def test_the_buffers_say_how_many_records_end_in_them() -> None:
    used = bench(usable=100)
    for size in (40, 40, 40, 80, 100):
        assert used.add(holding(size))
    ((_, buffers),) = used.encoder.drain()
    assert [(buffer.raw_bytes, buffer.records) for buffer in buffers] == [(100, 2), (100, 2), (100, 1)]


# Fullness


def test_a_frame_that_does_not_fit_is_refused_before_any_of_it_is_written() -> None:
    used = bench(segments=3)
    assert used.add(holding(2 * SEGMENT + 100))
    before = (used.encoder.bytes, used.budget.used)
    assert not used.add(holding(SEGMENT - 99))
    assert not used.add(holding(SEGMENT))
    assert (used.encoder.bytes, used.budget.used) == before
    assert used.add(holding(SEGMENT - 100)), "what is left takes exactly this"
    assert used.in_hand == 3
    ((_, payloads),) = used.drained()
    assert list(map(len, payloads)) == [SEGMENT] * 3
    assert used.is_whole()


def test_segments_are_taken_as_they_are_needed() -> None:
    used = bench()
    for size, needed in ((10, 1), (SEGMENT - 10, 1), (1 + LENGTH_BYTES, 2), (2 * SEGMENT, 4)):
        assert used.add(holding(size))
        assert used.in_hand == needed


def test_the_budget_limits_the_segments_too() -> None:
    used = bench(segments=8, memory=3 * sealed_size(SEGMENT))
    assert used.add(holding(3 * SEGMENT))
    assert not used.add(b"", 1)
    assert used.budget.peak <= used.budget.limit
    used.drained()
    assert used.is_whole()


def test_segments_taken_for_a_frame_that_did_not_fit_are_kept_for_it_until_the_region_is_written() -> None:
    used = bench(segments=4)
    assert used.add(holding(SEGMENT))
    assert not used.add(holding(4 * SEGMENT), 1)
    assert used.in_hand == 4
    used.drained()
    assert used.is_whole()
    assert used.add(holding(4 * SEGMENT), 1)


def test_compressed_buffers_share_segments_and_give_theirs_back_at_once() -> None:
    used = bench(segments=2, codec=Codec.LZ4)
    for _ in range(100):
        assert used.add(holding(SEGMENT))
    assert used.in_hand == 1
    assert 0 < used.encoder.bytes == used.budget.used < 20 * SEGMENT
    ((_, payloads),) = used.drained()
    assert len(payloads) == 100
    assert used.is_whole()
    assert {"compress", "checksum"} <= set(used.metrics.seconds)


def test_the_budget_limits_compressed_buffers() -> None:
    used = bench(segments=8, memory=10 * SEGMENT, codec=Codec.LZ4)
    added = 0
    while used.add(holding(SEGMENT)):
        added += 1
    assert added > 30
    assert used.budget.peak <= used.budget.limit
    used.drained()
    assert used.is_whole()


@pytest.mark.parametrize("codec", Codec)
def test_whatever_is_held_lies_in_segments_that_are_charged(codec: Codec) -> None:
    """Blocks in memory of their own would be beside the segments, which the pool has anyhow."""
    used = bench(segments=40, codec=codec)
    chosen = random.Random(6)

    def frame() -> bytes:
        size = chosen.randint(0, 3000)
        return chosen.randbytes(size) + bytes(3000 - size)

    while used.add(frame(), chosen.randrange(3)):
        assert not used.encoder._spare
        assert used.budget.used == used.encoder.bytes >= used.in_hand * SEGMENT
    spans = [
        range(each._buffer.segment.address, each._buffer.segment.address + SEGMENT)
        for each in (*used.encoder._lent, *used.encoder._open.values())
    ]
    for _, buffers in used.encoder.drain():
        for buffer in buffers:
            address = np.frombuffer(buffer.payload, np.uint8).ctypes.data
            assert any(address in span for span in spans)
        used.budget.release(sum(buffer.bytes for buffer in buffers))
    used.encoder.written()
    assert used.is_whole()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_frame_without_room_in_an_empty_encoder_is_due_at_once_and_never_held(codec: Codec) -> None:
    used = bench(segments=4, codec=codec)
    data = random.Random(4).randbytes(LARGE_SLICE) + bytes(LARGE_SLICE + 5)
    frame = Frame.of(data, 2)
    assert not used.encoder.room_for(frame)
    used.encoder.add(frame)
    assert used.encoder.is_due
    parts = list(used.encoder.drain())
    assert {subpartition for subpartition, _ in parts} == {2}
    buffers = [buffer for _, extent in parts for buffer in extent]
    assert [buffer.raw_bytes for buffer in buffers] == [4, LARGE_SLICE, LARGE_SLICE, 5]
    assert [buffer.records for buffer in buffers] == [0, 0, 0, 1]
    assert used.budget.used >= sum(buffer.bytes for buffer in buffers)
    if codec is Codec.NONE:
        assert frames_in([bytes(buffer.payload) for buffer in buffers]) == [data]
    else:
        assert buffers[2].bytes < LARGE_SLICE // 100
    used.budget.release(sum(buffer.bytes for buffer in buffers))
    used.encoder.written()
    assert used.is_whole()
    assert not used.encoder.is_due


def test_a_large_frame_is_not_copied() -> None:
    used = bench(segments=1)
    memory = bytearray(5 * SEGMENT)
    frame = Frame.of(memory, 0)
    assert not used.encoder.room_for(frame)
    used.encoder.add(frame)
    parts = used.encoder.drain()
    next(parts)
    memory[0] = 77
    _, (buffer,) = next(parts)
    assert bytes(buffer.payload)[0] == 77


def test_broadcast_frames_are_due_when_they_hold_their_share() -> None:
    used = bench(segments=100, memory=16 * sealed_size(SEGMENT), kind=RegionKind.BROADCAST, order=[0])
    for _ in range(4):
        assert used.add(holding(SEGMENT))
        assert not used.encoder.is_due
    assert used.add(b"")
    assert used.encoder.is_due


# Memory


# What is refused


@pytest.mark.parametrize("subpartition", [-1, 3, 100])
def test_a_subpartition_that_is_not_there_is_refused(subpartition: int) -> None:
    with pytest.raises(UsageError, match=rf"no subpartition {subpartition}: they are 0 to 2"):
        bench().encoder.checked(Frame.of(b"x", subpartition))


def test_a_frame_that_is_no_chunk_is_refused_where_chunks_are_wanted() -> None:
    encoder = bench(payload=PickledPayload(Codec.NONE)).encoder
    with pytest.raises(UsageError, match="frames are PICKLE: a chunk of objects is no pickle"):
        encoder.checked(Frame.of(b"not a chunk", 0))
    assert encoder.checked(Frame.of(pack_chunk([1, 2]), 0))


def test_a_frame_whose_length_cannot_be_said_is_refused() -> None:
    encoder = bench().encoder
    with pytest.raises(UsageError, match="at most 4294967295 bytes, not 4294967296: cut it"):
        encoder.checked(Frame.of(untouched(2**32), 0))
    frame = encoder.checked(Frame.of(untouched(2**32 - 1), 0))
    assert not encoder.room_for(frame)


def test_a_layout_that_does_not_suit_its_segments_is_refused() -> None:
    pool = network_of(2).create_pool(1)
    with closing(pool), pytest.raises(UsageError, match="buffer_size must be at least 1 byte, not 0"):
        FrameLayout(FramesPayload(Codec.NONE), pool, 0)
    used = bench(usable=SEGMENT + 1)
    with pytest.raises(
        UsageError, match="segments have 4096 bytes, less than the layout's buffer_size of 4097"
    ):
        used.add(b"x")


@pytest.mark.parametrize(
    ("subpartitions", "memory", "size"),
    [(64, 256 * MIB, 256 * KIB), (1000, 256 * MIB, 64 * KIB), (10_000, 256 * MIB, 4 * KIB), (7, 1, 4 * KIB)],
)
def test_segments_are_whole_pages_and_enough_for_every_subpartition(
    subpartitions: int, memory: int, size: int
) -> None:
    assert segment_bytes(subpartitions, memory) == size
