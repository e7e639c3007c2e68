"""All segments of a process: what is guaranteed to pools, and what happens at the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine import eventually
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recyclers import OPTION

from sortshuffle.errors import BufferTimeoutError, InsufficientBuffersError, StateError, UsageError
from sortshuffle.memory import leaks
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool

FOREVER = 60.0  # seconds; a wait that the test itself ends
SEGMENT = 16


def new_network(total: int = 10, timeout: float = FOREVER) -> NetworkBufferPool:
    return NetworkBufferPool(total, SEGMENT, option=OPTION, request_timeout=timeout)


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    """A pool of ten segments, whole at the end."""
    network = new_network()
    yield network
    assert network.available == 10
    network.destroy()


# Guarantees


def test_a_pool_of_nothing_is_refused_naming_the_option() -> None:
    with pytest.raises(UsageError, match=OPTION):
        new_network(0)


@pytest.mark.parametrize("size", [0, -1])
def test_a_local_pool_of_nothing_is_refused(network: NetworkBufferPool, size: int) -> None:
    with pytest.raises(UsageError, match=f"not {size}"):
        network.create_pool(size)


def test_more_than_there_is_cannot_be_guaranteed(network: NetworkBufferPool) -> None:
    with pytest.raises(InsufficientBuffersError) as caught:
        network.create_pool(11, name="too large")
    assert str(caught.value) == (
        "local buffer pool 'too large' requires 11 segments of 16 bytes; the process has 10, of which 0 are"
        f" guaranteed to others. Raise {OPTION} to 176 bytes at least, or let fewer tasks run at a time"
    )


def test_more_than_is_left_cannot_be_guaranteed_even_while_it_is_free(network: NetworkBufferPool) -> None:
    first, second = network.create_pool(5), network.create_pool(4)
    with pytest.raises(InsufficientBuffersError, match=r"of which 9 are guaranteed.* to 176 bytes"):
        network.create_pool(2)
    assert (network.available, network.guaranteed) == (10, 9)
    third = network.create_pool(1)
    for pool in (first, second, third):
        pool.close()
    assert network.guaranteed == 0


# The end


def test_a_destroyed_pool_creates_nothing() -> None:
    network = new_network()
    network.destroy()
    network.destroy()
    assert network.available == 0
    with pytest.raises(StateError, match="is destroyed"):
        network.create_pool(1)


def test_destroying_closes_all_local_pools_and_drops_what_comes_late() -> None:
    network = new_network()
    first, second = network.create_pool(2), network.create_pool(3)
    buffers = [first.request_blocking(), second.request_blocking()]
    network.destroy()
    for pool in (first, second):
        with pytest.raises(StateError, match="is closed"):
            pool.request()
    for buffer in buffers:
        buffer.recycle()
    first.close()
    assert (network.available, network.guaranteed) == (0, 0)


def test_destroying_fails_requests_and_reservations_that_wait() -> None:
    network = new_network()
    full, closed = network.create_pool(1), network.create_pool(9)
    buffers = [full.request_blocking(), *(closed.request_blocking() for _ in range(9))]
    closed.close()
    reserving = network.create_pool(2)
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(full.request_blocking), threads.submit(reserving.reserve)]
        eventually(lambda: full._waiting and network._store._claims, "both wait")
        network.destroy()
        for wait in waits:
            with pytest.raises(StateError, match="gave up waiting") as raised:
                wait.result(FOREVER)
            assert str(raised.value.__cause__) == f"{network} was destroyed"
    for buffer in buffers:
        buffer.recycle()


def test_two_reservations_never_hold_each_other_up_with_a_part_each(network: NetworkBufferPool) -> None:
    closed = network.create_pool(10)
    buffers = [closed.request_blocking() for _ in range(10)]
    closed.close()
    large, small = network.create_pool(6), network.create_pool(3)
    with ThreadPoolExecutor(2) as threads:
        reserving = threads.submit(large.reserve)
        eventually(lambda: len(network._store._claims) == 1, "the large one waits")
        beside = threads.submit(small.reserve)
        eventually(lambda: len(network._store._claims) == 2, "both wait")
        for buffer in buffers[:3]:
            buffer.recycle()
        beside.result(FOREVER)
        assert (small.available, large.requested, reserving.done()) == (3, 0, False)
        for buffer in buffers[3:]:
            buffer.recycle()
        reserving.result(FOREVER)
    assert large.available == 6
    large.close()
    small.close()


def test_local_pools_of_many_threads_share_the_segments_and_all_come_home() -> None:
    network = new_network(24)
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(30):
            pool = network.create_pool(chance.randint(1, 3))
            if chance.random() < 0.5:
                pool.reserve()
            buffers = [pool.request_blocking() for _ in range(pool.size)]
            chance.shuffle(buffers)
            for buffer in buffers[::2]:
                buffer.recycle()
            pool.close()
            for buffer in buffers[1::2]:
                buffer.recycle()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, seed) for seed in range(8)]:
            done.result()
    assert (network.available, network.guaranteed) == (24, 0)
    network.destroy()


def test_what_is_missing_when_the_pool_is_destroyed_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = new_network()
    pool = network.create_pool(1, name="gate 7")
    lost = pool.request_blocking()
    pool.close()
    network.destroy()
    (message,) = caplog.messages
    assert message.startswith("never recycled: a buffer of local buffer pool 'gate 7', taken at")
    assert "test_network_buffer_pool.py" in message
    lost.recycle()


# Any order of everything


class Pools(RuleBasedStateMachine):
    """Every segment is in exactly one place, and no pool is without what it is guaranteed."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.network = new_network(self.TOTAL)
        self.open: list[LocalBufferPool] = []
        self.closed: list[LocalBufferPool] = []
        self.buffers: list[Buffer] = []
        self.content = 0

    def pool(self, number: int) -> LocalBufferPool:
        return self.open[number % len(self.open)]

    @rule(size=st.integers(1, 5))
    def create_pool(self, size: int) -> None:
        if sum(pool.size for pool in self.open) + size > self.TOTAL:
            with pytest.raises(InsufficientBuffersError):
                self.network.create_pool(size)
        else:
            self.open.append(self.network.create_pool(size))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0))
    def close_pool(self, number: int) -> None:
        pool = self.open.pop(number % len(self.open))
        pool.close()
        self.closed.append(pool)
        with pytest.raises(StateError):
            pool.request()

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0))
    def request(self, number: int) -> None:
        pool = self.pool(number)
        can = pool.available or (pool.requested < pool.size and self.network.available)
        buffer = pool.request()
        assert (buffer is not None) == bool(can)
        if buffer is not None:
            self.content = self.content % 200 + 1
            buffer.segment.fill(self.content)
            self.buffers.append(buffer)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0))
    def reserve(self, number: int) -> None:
        pool = self.pool(number)
        before = pool.requested
        if pool.size - before > self.network.available:
            with pytest.raises(BufferTimeoutError):
                pool.reserve(timeout=0)
            assert pool.requested == before
        else:
            pool.reserve(timeout=0)
            assert pool.requested == pool.size

    @precondition(lambda self: self.buffers)
    @rule(number=st.integers(0))
    def recycle(self, number: int) -> None:
        self.buffers.pop(number % len(self.buffers)).recycle()

    @invariant()
    def every_segment_is_in_one_place(self) -> None:
        places = [buffer.segment for buffer in self.buffers] + self.network._store._free
        for pool in self.open + self.closed:
            places += pool._free
        assert len(places) == len(set(places)) == self.TOTAL
        requested = sum(pool.requested for pool in self.open + self.closed)
        assert self.network.available + requested == self.TOTAL
        assert all(pool.requested <= pool.size for pool in self.open)

    @invariant()
    def what_is_guaranteed_is_there(self) -> None:
        assert self.network.guaranteed == sum(pool.size for pool in self.open)
        assert all(pool.available == 0 for pool in self.closed)

    @invariant()
    def nothing_is_overwritten(self) -> None:
        assert all(len(set(bytes(buffer.view))) == 1 for buffer in self.buffers)

    def teardown(self) -> None:
        for pool in self.open:
            pool.close()
        for buffer in self.buffers:
            buffer.recycle()
        assert self.network.available == self.TOTAL
        self.network.destroy()
        assert leaks.outstanding(self.network) == []


TestPools = Pools.TestCase
