"""The buffers of one writer: who gets what is recycled, and what happens when the pool is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from engine import eventually
from recyclers import OPTION

from sortshuffle.errors import BufferTimeoutError, StateError
from sortshuffle.memory import local_buffer_pool
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool

FOREVER = 60.0  # seconds; a wait that the test itself ends


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    """A pool of ten segments, whole at the end."""
    network = NetworkBufferPool(10, 16, option=OPTION, request_timeout=FOREVER)
    yield network
    assert (network.available, network.guaranteed) == (10, 0)
    network.destroy()


def waiting(pool: LocalBufferPool, count: int = 1) -> None:
    """Until so many threads wait in the pool."""
    eventually(lambda: len(pool._waiting) == count, f"{count} requests wait")


def taken(pool: LocalBufferPool, count: int) -> list[Buffer]:
    return [pool.request_blocking(timeout=0) for _ in range(count)]


def left_behind(network: NetworkBufferPool, count: int) -> list[Buffer]:
    """So many buffers of a pool that is closed."""
    pool = network.create_pool(count)
    buffers = taken(pool, count)
    pool.close()
    return buffers


def recycle(buffers: list[Buffer]) -> None:
    while buffers:
        buffers.pop().recycle()


# Requests


def test_a_buffer_is_a_segment_and_goes_back_to_its_pool(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    buffer = pool.request()
    assert buffer is not None
    assert (buffer.size, buffer.references) == (16, 1)
    assert (pool.requested, pool.available) == (1, 0)
    buffer.recycle()
    assert (pool.requested, pool.available, network.available) == (1, 1, 9)
    pool.close()


def test_a_buffer_may_be_given_back_by_the_thread_that_holds_the_pools_lock(
    network: NetworkBufferPool,
) -> None:
    """As a finalizer does in a garbage collection that starts there."""
    pool = network.create_pool(1)
    buffer = pool.request_blocking()
    with network._store.lock:
        buffer.recycle()
        assert pool.available == 0
    assert pool.available == 1
    pool.close()


def test_what_is_recycled_is_used_again_before_more_is_taken(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2)
    first, second = taken(pool, 2)
    segment = first.segment
    first.recycle()
    third = pool.request()
    assert third is not None
    assert third.segment is segment
    assert pool.requested == 2
    recycle([second, third])
    pool.close()


def test_reserving_takes_all_that_is_guaranteed(network: NetworkBufferPool) -> None:
    pool = network.create_pool(4)
    first = pool.request()
    pool.reserve()
    pool.reserve()
    assert (pool.requested, pool.available, network.available) == (4, 3, 6)
    assert first is not None
    first.recycle()
    pool.close()


def test_reserving_waits_until_what_closed_pools_had_comes_home(network: NetworkBufferPool) -> None:
    buffers = left_behind(network, 10)
    pool = network.create_pool(3)
    with ThreadPoolExecutor(1) as threads:
        reserving = threads.submit(pool.reserve)
        eventually(lambda: network._store._claims, "the reservation waits")
        recycle(buffers[:2])
        assert (network.available, pool.requested, reserving.done()) == (2, 0, False)
        buffers[2].recycle()
        reserving.result(FOREVER)
    assert pool.available == 3
    recycle(buffers[3:])
    pool.close()


def test_a_reservation_that_times_out_takes_nothing_and_names_pool_and_option(
    network: NetworkBufferPool,
) -> None:
    buffers = left_behind(network, 9)
    pool = network.create_pool(3, name="partition 5")
    with pytest.raises(BufferTimeoutError) as caught:
        pool.reserve(timeout=0)
    text = str(caught.value)
    assert text.startswith("3 segments for local buffer pool 'partition 5' (0 of 3 segments taken, 0 of them")
    assert f"1 of 10 segments of the process are free. Raise {OPTION}" in text
    assert (pool.requested, network.available) == (0, 1)
    recycle(buffers)
    pool.close()


def test_a_reservation_fails_when_its_pool_is_closed(network: NetworkBufferPool) -> None:
    buffers = left_behind(network, 10)
    pool = network.create_pool(3)
    with ThreadPoolExecutor(1) as threads:
        reserving = threads.submit(pool.reserve)
        eventually(lambda: network._store._claims, "the reservation waits")
        pool.close()
        with pytest.raises(StateError, match=r"gave up waiting: .* was closed"):
            reserving.result(FOREVER)
    recycle(buffers)


def test_a_request_waits_for_what_is_recycled_next(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2)
    buffers = taken(pool, 2)
    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(pool.request_blocking)
        waiting(pool)
        segment = buffers[0].segment
        buffers[0].recycle()
        found = request.result(FOREVER)
    assert found.segment is segment
    assert (pool.requested, pool.available) == (2, 0)
    recycle([buffers[1], found])
    pool.close()


def test_requests_wait_for_what_a_closed_pool_had(network: NetworkBufferPool) -> None:
    buffers = left_behind(network, 10)
    pool = network.create_pool(2)
    with ThreadPoolExecutor(2) as threads:
        requests = [threads.submit(pool.request_blocking) for _ in range(2)]
        waiting(pool, 2)
        recycle(buffers)
        found = [request.result(FOREVER) for request in requests]
    assert (pool.requested, network.available) == (2, 8)
    recycle(found)
    pool.close()


def test_what_is_recycled_goes_to_the_request_that_came_first(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    (held,) = taken(pool, 1)
    with ThreadPoolExecutor(3) as threads:
        requests = []
        for count in range(1, 4):
            requests.append(threads.submit(pool.request_blocking))
            waiting(pool, count)
        for served, request in enumerate(requests):
            held.recycle()
            held = request.result(FOREVER)
            assert [each.done() for each in requests] == [number <= served for number in range(3)]
    held.recycle()
    pool.close()


def test_pools_that_wait_take_turns(network: NetworkBufferPool) -> None:
    buffers = left_behind(network, 10)
    first, second = network.create_pool(2), network.create_pool(2)
    with ThreadPoolExecutor(4) as threads:
        requests = []
        for pool in (first, second):
            requests += [threads.submit(pool.request_blocking) for _ in range(2)]
            waiting(pool, 2)
        counts = []
        for _ in range(4):
            buffers.pop().recycle()
            counts.append((first.requested, second.requested))
        assert counts == [(1, 0), (1, 1), (2, 1), (2, 2)]
        recycle([*buffers, *(request.result(FOREVER) for request in requests)])
    first.close()
    second.close()


def test_a_request_that_times_out_says_who_waited_for_what(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, name="gate 3")
    buffers = taken(pool, 1)
    with pytest.raises(BufferTimeoutError) as caught:
        pool.request_blocking(timeout=0)
    text = str(caught.value)
    assert "a buffer of local buffer pool 'gate 3' (1 of 1 segments taken, 0 of them free" in text
    assert f"Raise {OPTION}" in text
    waiting(pool, 0)
    recycle(buffers)
    assert pool.available == 1
    pool.close()


def test_the_time_out_of_the_network_pool_counts_where_none_is_given() -> None:
    network = NetworkBufferPool(1, 16, option=OPTION, request_timeout=0)
    pool = network.create_pool(1)
    buffer = pool.request_blocking()
    with pytest.raises(BufferTimeoutError):
        pool.request_blocking()
    buffer.recycle()
    network.destroy()


@pytest.mark.parametrize("recycled_first", [False, True])
def test_an_interrupted_request_loses_no_buffer(
    network: NetworkBufferPool, monkeypatch: pytest.MonkeyPatch, recycled_first: bool
) -> None:
    pool = network.create_pool(1)
    buffer = pool.request_blocking()

    def interrupted(waiter: object, seconds: float) -> None:
        if recycled_first:
            buffer.recycle()
        raise KeyboardInterrupt

    monkeypatch.setattr(local_buffer_pool.Waiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.request_blocking()
    assert (pool.requested, pool.available) == (1, int(recycled_first))
    waiting(pool, 0)
    if not recycled_first:
        buffer.recycle()
    pool.close()


@pytest.mark.parametrize("wait", ["request_blocking", "reserve"])
def test_an_interrupt_is_not_lost_when_the_pool_is_closed_at_the_same_moment(
    network: NetworkBufferPool, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    buffers = left_behind(network, 10)
    pool = network.create_pool(1)

    def interrupted(waiter: object, seconds: float) -> None:
        pool.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(local_buffer_pool.Waiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(pool, wait)()
    recycle(buffers)


# The end


def test_a_closed_pool_hands_out_nothing(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, name="gate 3")
    pool.close()
    pool.close()
    for use in (pool.request, pool.request_blocking, pool.reserve):
        with pytest.raises(StateError, match=r"local buffer pool 'gate 3' .* is closed"):
            use()


def test_closing_fails_all_that_wait(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    buffer = pool.request_blocking()
    with ThreadPoolExecutor(3) as threads:
        requests: list[Future[Buffer]] = [threads.submit(pool.request_blocking) for _ in range(3)]
        waiting(pool, 3)
        pool.close()
        for request in requests:
            with pytest.raises(StateError, match=r"gave up waiting: .* was closed"):
                request.result(FOREVER)
    buffer.recycle()


def test_many_threads_request_and_recycle_and_the_pool_is_whole(network: NetworkBufferPool) -> None:
    pool = network.create_pool(4)
    start = threading.Barrier(16)

    def work(number: int) -> None:
        start.wait()
        for count in range(128):
            buffer = pool.request_blocking()
            buffer.segment.fill(number)
            part = buffer.slice(count % 16, 16)
            buffer.recycle()
            assert set(part.view) <= {number}
            part.recycle()

    with ThreadPoolExecutor(16) as threads:
        for done in [threads.submit(work, number) for number in range(16)]:
            done.result()
    assert pool.requested == pool.available
    pool.close()


def test_buffers_and_reservations_that_come_just_when_the_time_is_over_are_not_lost(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(2)
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for _ in range(200):
            try:
                if number == 0:
                    pool.reserve(timeout=0)
                pool.request_blocking(timeout=0).recycle()
            except BufferTimeoutError:
                pass

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(work, number) for number in range(6)]:
            done.result()
    assert pool.requested == pool.available
    pool.close()


# Debug mode


def test_recycled_memory_is_poisoned(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    buffer = pool.request_blocking()
    view = buffer.view
    buffer.recycle()
    assert bytes(view) == b"\xdb" * 16
    pool.close()
