"""All segments of a process: what is guaranteed, how the rest is shared out, and requests without a pool."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine import eventually
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recyclers import OPTION

from sortshuffle.errors import BufferTimeoutError, InsufficientBuffersError, StateError, UsageError
from sortshuffle.memory import leaks, segment_store
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool, proportional_shares
from sortshuffle.memory.segment import MemorySegment

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


def claimed(network: NetworkBufferPool, count: int = 1) -> None:
    """Until so many threads wait for several segments."""
    eventually(lambda: len(network._store._claims) == count, f"{count} claims wait")


def close_all(*pools: LocalBufferPool) -> None:
    for pool in pools:
        pool.close()


def sizes(*pools: LocalBufferPool) -> list[int]:
    return [pool.size for pool in pools]


# Guarantees


def test_a_new_pool_has_all_its_segments(network: NetworkBufferPool) -> None:
    assert (network.total, network.available, network.guaranteed) == (10, 10, 0)


def test_a_pool_of_nothing_is_refused_naming_the_option() -> None:
    with pytest.raises(UsageError, match=OPTION):
        new_network(0)


@pytest.mark.parametrize(("required", "maximum"), [(0, None), (-1, 5), (3, 2), (0, 0)])
def test_what_a_local_pool_requires_is_checked(
    network: NetworkBufferPool, required: int, maximum: int | None
) -> None:
    with pytest.raises(UsageError, match="a local pool requires 1 to"):
        network.create_pool(required, maximum)


def test_more_than_there_is_cannot_be_guaranteed(network: NetworkBufferPool) -> None:
    with pytest.raises(InsufficientBuffersError) as caught:
        network.create_pool(11, name="too large")
    assert str(caught.value) == (
        "local buffer pool 'too large' requires 11 segments of 16 bytes; the process has 10, of which 0 are"
        f" guaranteed to others. Raise {OPTION} to 176 bytes at least, or let fewer tasks run at a time"
    )


def test_more_than_is_left_cannot_be_guaranteed_even_while_it_is_free(network: NetworkBufferPool) -> None:
    first = network.create_pool(5)
    second = network.create_pool(4)
    with pytest.raises(InsufficientBuffersError, match=r"of which 9 are guaranteed.* to 176 bytes"):
        network.create_pool(2)
    assert (network.available, network.guaranteed) == (10, 9)
    assert sizes(first, second) == [5, 5]
    third = network.create_pool(1)
    assert sizes(first, second, third) == [5, 4, 1]
    close_all(first, second, third)
    assert network.guaranteed == 0


def test_a_destroyed_pool_creates_and_hands_out_nothing() -> None:
    network = new_network()
    network.destroy()
    network.destroy()
    assert (network.is_destroyed, network.available) == (True, 0)
    for use in (lambda: network.create_pool(1), lambda: network.request_segments(1)):
        with pytest.raises(StateError, match="is destroyed"):
            use()


def test_destroying_closes_all_local_pools_and_drops_what_comes_late() -> None:
    network = new_network()
    first, second = network.create_pool(2), network.create_pool(3)
    buffers = [first.request(), second.request()]
    segments = network.request_segments(1)
    network.destroy()
    assert (first.is_closed, second.is_closed) == (True, True)
    for buffer in buffers:
        assert buffer is not None
        buffer.recycle()
    network.recycle_segments(segments)
    close_all(first, second)
    assert (network.available, network.guaranteed) == (0, 0)


# Shares


def test_a_fixed_pool_has_what_it_requires(network: NetworkBufferPool) -> None:
    pool = network.create_pool(4, 4)
    assert sizes(pool) == [4]
    pool.close()


def test_a_single_growing_pool_gets_all(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    assert sizes(pool) == [10]
    pool.close()


def test_a_growing_pool_gets_all_but_what_fixed_ones_have(network: NetworkBufferPool) -> None:
    growing, fixed = network.create_pool(1), network.create_pool(3, 3)
    assert sizes(growing, fixed) == [7, 3]
    another = network.create_pool(2, 2)
    assert sizes(growing, fixed, another) == [5, 3, 2]
    fixed.close()
    assert sizes(growing, another) == [8, 2]
    close_all(growing, another)


def test_equal_pools_get_equal_shares_as_they_come_and_go(network: NetworkBufferPool) -> None:
    fixed = network.create_pool(2, 2)
    first = network.create_pool(1)
    assert sizes(first) == [8]
    second = network.create_pool(1)
    assert sizes(first, second) == [4, 4]
    third = network.create_pool(1)
    assert sorted(sizes(first, second, third)) == [2, 3, 3]
    fourth = network.create_pool(1)
    assert sizes(first, second, third, fourth) == [2, 2, 2, 2]
    fourth.close()
    assert sorted(sizes(first, second, third)) == [2, 3, 3]
    close_all(third, second)
    assert sizes(first) == [8]
    close_all(first, fixed)


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([(1, 10), (1, 10)], [5, 5]),
        ([(1, 1), (1, None)], [1, 9]),
        ([(1, 3), (1, 3)], [3, 3]),
        ([(1, 3), (1, 5)], [3, 5]),
        ([(1, 2), (2, 4), (3, 3)], [2, 4, 3]),
        ([(3, None), (7, None)], [3, 7]),
        ([(1, 5), (1, 3), (1, 7)], [3, 2, 5]),
    ],
)
def test_what_is_left_is_shared_by_what_each_can_use(
    network: NetworkBufferPool, pools: list[tuple[int, int | None]], expected: list[int]
) -> None:
    made = [network.create_pool(required, maximum) for required, maximum in pools]
    assert sizes(*made) == expected
    close_all(*made)


def test_in_whatever_order_pools_come_nothing_is_left_over_or_short() -> None:
    network = new_network(50)
    kinds = [(1, 4), (5, 5), (3, 20), (2, None), (10, 14), (1, 1), (4, 8)]
    for seed in range(200):
        order = random.Random(seed).sample(kinds, len(kinds))
        pools = [network.create_pool(required, maximum) for required, maximum in order]
        assert sum(sizes(*pools)) == 50
        assert all(pool.required <= pool.size <= pool.maximum for pool in pools)
        for pool in pools:
            use = min(24, pool.maximum - pool.required)  # 24 are left when all have what they require
            exact = 24 * use / sum(min(24, each.maximum - each.required) for each in pools)
            assert abs(pool.size - pool.required - exact) < 1
        close_all(*pools)


@given(st.lists(st.integers(0, 50), max_size=20), st.data())
def test_proportional_shares_lose_nothing_and_exceed_no_weight(
    weights: list[int], data: st.DataObject
) -> None:
    amount = data.draw(st.integers(0, sum(weights)))
    shares = proportional_shares(amount, weights)
    assert sum(shares) == amount
    assert all(0 <= share <= weight for share, weight in zip(shares, weights, strict=True))
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - amount * weight) < max(1, sum(weights))


# Requests without a pool


def test_a_request_gets_all_it_asks_for_and_gives_it_back(network: NetworkBufferPool) -> None:
    segments = network.request_segments(4)
    assert (len(set(segments)), network.available, network.guaranteed) == (4, 6, 4)
    network.recycle_segments(segments[:3])
    assert (network.available, network.guaranteed) == (9, 1)
    network.recycle_segments(segments[3:])


@pytest.mark.parametrize("count", [0, -1])
def test_a_request_for_nothing_is_refused(network: NetworkBufferPool, count: int) -> None:
    with pytest.raises(UsageError, match=f"not {count}"):
        network.request_segments(count)


def test_a_request_for_more_than_can_be_guaranteed_fails_at_once(network: NetworkBufferPool) -> None:
    pool = network.create_pool(6)
    with pytest.raises(InsufficientBuffersError, match="a request without a pool requires 5 segments"):
        network.request_segments(5)
    assert (network.guaranteed, network.available) == (6, 10)
    pool.close()


def test_more_than_was_requested_cannot_be_recycled(network: NetworkBufferPool) -> None:
    segments = network.request_segments(2)
    with pytest.raises(StateError, match=r"3 segments recycled into .* which misses 2"):
        network.recycle_segments([*segments, MemorySegment(SEGMENT)])
    network.recycle_segments(segments)
    with pytest.raises(StateError):
        network.recycle_segments(segments)


def test_requests_are_taken_off_the_shares_of_pools_while_they_last(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2)
    segments = network.request_segments(5)
    assert sizes(pool) == [5]
    network.recycle_segments(segments[:2])
    assert sizes(pool) == [7]
    network.recycle_segments(segments[2:])
    assert sizes(pool) == [10]
    pool.close()


def test_a_request_waits_until_pools_give_back_what_is_above_their_share(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2)
    buffers = [pool.request_blocking() for _ in range(10)]
    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(network.request_segments, 5)
        claimed(network)
        assert sizes(pool) == [5]
        for buffer in buffers[:4]:
            buffer.recycle()
        assert (network.available, request.done()) == (4, False)
        buffers[4].recycle()
        segments = request.result(FOREVER)
    assert (len(segments), pool.requested) == (5, 5)
    network.recycle_segments(segments)
    for buffer in buffers[5:]:
        buffer.recycle()
    pool.close()


def test_a_request_that_times_out_takes_nothing_and_is_no_longer_guaranteed(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(2)
    buffers = [pool.request_blocking() for _ in range(9)]
    with pytest.raises(BufferTimeoutError) as caught:
        network.request_segments(5, timeout=0)
    text = str(caught.value)
    assert text.startswith("5 segments for the network buffer pool of 10 segments")
    assert f"not to be had within 0.0 s, 1 of 10 segments of the process are free. Raise {OPTION}" in text
    assert (network.available, network.guaranteed, pool.size) == (1, 2, 10)
    for buffer in buffers:
        buffer.recycle()
    pool.close()


def test_destroying_fails_requests_that_wait_with_the_cause() -> None:
    network = new_network()
    pool = network.create_pool(2)
    buffers = [pool.request_blocking() for _ in range(10)]
    cause = OSError("the host goes down")
    with ThreadPoolExecutor(2) as threads:
        requests = [threads.submit(network.request_segments, 3), threads.submit(pool.request_blocking)]
        claimed(network)
        eventually(lambda: len(pool._waiting) == 1, "a request waits in the local pool")
        network.destroy(cause)
        for request in requests:
            with pytest.raises(StateError, match="the host goes down") as caught:
                request.result(FOREVER)
            assert caught.value.__cause__ is cause
    for buffer in buffers:
        buffer.recycle()
    assert network.guaranteed == 0


@pytest.mark.parametrize("met_first", [False, True])
def test_an_interrupted_request_gives_back_what_it_took(
    network: NetworkBufferPool, monkeypatch: pytest.MonkeyPatch, met_first: bool
) -> None:
    pool = network.create_pool(2)
    buffers = [pool.request_blocking() for _ in range(10)]

    def interrupted(claim: segment_store.Claim, seconds: float) -> None:
        if met_first:
            for buffer in buffers:
                buffer.recycle()
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_store.Claim, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        network.request_segments(5)
    assert (network.guaranteed, pool.size) == (2, 10)
    if not met_first:
        for buffer in buffers:
            buffer.recycle()
    pool.close()


def test_two_requests_never_hold_each_other_up_with_a_part_each(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    buffers = [pool.request_blocking() for _ in range(10)]
    with ThreadPoolExecutor(2) as threads:
        large = threads.submit(network.request_segments, 6)
        claimed(network)
        small = threads.submit(network.request_segments, 3)
        claimed(network, 2)
        for buffer in buffers[:3]:
            buffer.recycle()
        small_ones = small.result(FOREVER)
        assert not large.done()
        for buffer in buffers[3:9]:
            buffer.recycle()
        large_ones = large.result(FOREVER)
    network.recycle_segments(small_ones + large_ones)
    buffers[9].recycle()
    pool.close()


def test_local_pools_of_many_threads_share_the_segments_and_all_come_home() -> None:
    network = new_network(24)
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(30):
            pool = network.create_pool(chance.randint(1, 3), chance.choice([None, 3, 8]))
            if chance.random() < 0.5:
                pool.reserve()
            buffers = [pool.request_blocking() for _ in range(pool.required)]
            buffers += filter(None, (pool.request() for _ in range(10)))
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


def test_listeners_may_use_the_pools_when_a_pool_that_comes_or_goes_wakes_them() -> None:
    """They are called outside the factory lock, and outside the segment lock."""
    network = new_network()
    hungry = network.create_pool(1)
    greedy = network.create_pool(9)
    buffers = [hungry.request_blocking(), *(greedy.request_blocking() for _ in range(9))]
    heard: list[tuple[int, int]] = []

    def listener(buffer: Buffer | None) -> None:
        assert buffer is not None
        another = network.create_pool(1)
        heard.append((network.available, hungry.size))
        another.close()
        buffer.recycle()

    hungry.add_listener(listener)
    for buffer in buffers[1:]:
        buffer.recycle()
    assert (heard, greedy.available) == ([], 9)
    greedy.close()  # its segments lie free, and the share of the hungry pool grows
    assert heard == [(8, 5)]
    buffers[0].recycle()
    hungry.close()
    assert network.available == 10
    network.destroy()


def test_what_is_missing_when_the_pool_is_destroyed_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = new_network()
    pool = network.create_pool(1, name="gate 7")
    lost = pool.request()
    pool.close()
    segment = network.request_segments(1)
    network.destroy()
    assert [message.split(", taken at")[0].split(" (")[0] for message in caplog.messages] == [
        "never recycled: a buffer of local buffer pool 'gate 7'",
        "never recycled: a segment of the network buffer pool of 10 segments",
    ]
    assert all("test_network_buffer_pool.py" in message for message in caplog.messages)
    assert lost is not None
    lost.recycle()
    network.recycle_segments(segment)


# Any order of everything


class Shares(RuleBasedStateMachine):
    """Every segment is in exactly one place, shares sum up, and no pool is below what it requires."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.network = new_network(self.TOTAL)
        self.open: list[LocalBufferPool] = []
        self.closed: list[LocalBufferPool] = []
        self.buffers: list[Buffer] = []
        self.unpooled: list[MemorySegment] = []
        self.listeners: dict[LocalBufferPool, int] = {}
        self.content = 0

    def pool(self, number: int) -> LocalBufferPool:
        return self.open[number % len(self.open)]

    def keep(self, buffer: Buffer) -> None:
        self.content = self.content % 200 + 1
        buffer.segment.fill(self.content)
        self.buffers.append(buffer)

    @rule(required=st.integers(1, 5), growth=st.none() | st.integers(0, 10))
    def create_pool(self, required: int, growth: int | None) -> None:
        maximum = None if growth is None else required + growth
        guaranteed = sum(pool.required for pool in self.open) + len(self.unpooled)
        if guaranteed + required > self.TOTAL:
            with pytest.raises(InsufficientBuffersError):
                self.network.create_pool(required, maximum)
        else:
            self.open.append(self.network.create_pool(required, maximum))
            self.listeners[self.open[-1]] = 0

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0))
    def close_pool(self, number: int) -> None:
        pool = self.open.pop(number % len(self.open))
        pool.close()
        self.closed.append(pool)
        assert self.listeners[pool] == 0
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
            self.keep(buffer)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0))
    def reserve(self, number: int) -> None:
        pool = self.pool(number)
        missing = pool.required - pool.requested
        if missing > self.network.available:
            before = pool.requested
            with pytest.raises(BufferTimeoutError):
                pool.reserve(timeout=0)
            assert pool.requested == before
        else:
            pool.reserve(timeout=0)
            assert pool.requested >= pool.required

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0))
    def listen(self, number: int) -> None:
        pool = self.pool(number)
        self.listeners[pool] += 1

        def listener(buffer: Buffer | None) -> None:
            self.listeners[pool] -= 1
            if buffer is not None:
                self.keep(buffer)

        pool.add_listener(listener)

    @precondition(lambda self: self.buffers)
    @rule(number=st.integers(0))
    def recycle(self, number: int) -> None:
        self.buffers.pop(number % len(self.buffers)).recycle()

    @rule(count=st.integers(1, 5))
    def request_segments(self, count: int) -> None:
        free, guaranteed = self.network.available, self.network.guaranteed
        if guaranteed + count > self.TOTAL:
            with pytest.raises(InsufficientBuffersError):
                self.network.request_segments(count, timeout=0)
        elif count > free + self.excess_lying_about(count):
            with pytest.raises(BufferTimeoutError):
                self.network.request_segments(count, timeout=0)
            assert self.network.guaranteed == guaranteed
        else:
            self.unpooled += self.network.request_segments(count, timeout=0)

    def excess_lying_about(self, count: int) -> int:
        """Segments that pools give up at once when so many are guaranteed to a request."""
        spare = self.TOTAL - self.network.guaranteed - count
        uses = [min(spare, pool.maximum - pool.required) for pool in self.open]
        shares = proportional_shares(min(spare, sum(uses)), uses)
        excess = 0
        for pool, share in zip(self.open, shares, strict=True):
            excess += max(0, min(pool.requested - pool.required - share, pool.available))
        return excess

    @precondition(lambda self: self.unpooled)
    @rule(data=st.data())
    def recycle_segments(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.unpooled)))
        self.network.recycle_segments(self.unpooled[:count])
        del self.unpooled[:count]

    @invariant()
    def every_segment_is_in_one_place(self) -> None:
        pools = self.open + self.closed
        places = [*self.network._store._free, *self.unpooled]
        for pool in pools:
            places += pool._free
        assert len(places) == len(set(places))
        assert not set(places) & {buffer.segment for buffer in self.buffers}
        requested = sum(pool.requested for pool in pools)
        assert self.network.available + requested + len(self.unpooled) == self.TOTAL

    @invariant()
    def shares_sum_up_and_nobody_is_short(self) -> None:
        assert self.network.guaranteed == sum(pool.required for pool in self.open) + len(self.unpooled)
        assert all(pool.required <= pool.size <= pool.maximum for pool in self.open)
        spare = self.TOTAL - self.network.guaranteed
        usable = sum(min(spare, pool.maximum - pool.required) for pool in self.open)
        assert sum(pool.size - pool.required for pool in self.open) == min(spare, usable)

    @invariant()
    def nothing_lies_free_while_somebody_waits_for_it(self) -> None:
        for pool in self.open:
            assert len(pool._waiting) == self.listeners[pool]
            if pool._waiting:
                assert pool.available == 0
                assert pool.requested >= pool.size or self.network.available == 0

    @invariant()
    def nothing_is_overwritten(self) -> None:
        assert all(len(set(bytes(buffer.view))) == 1 for buffer in self.buffers)

    def teardown(self) -> None:
        for pool in self.open:
            pool.close()
        for buffer in self.buffers:
            buffer.recycle()
        if self.unpooled:
            self.network.recycle_segments(self.unpooled)
        assert self.network.available == self.TOTAL - sum(pool.requested for pool in self.open + self.closed)
        assert self.network.available == self.TOTAL
        self.network.destroy()
        assert leaks.outstanding(self.network) == []


TestShares = Shares.TestCase
