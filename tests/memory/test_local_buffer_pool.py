"""The buffers of one result partition or gate: its share, who gets what is recycled, and what happens when it
is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from engine import eventually
from recyclers import OPTION

from sortshuffle.errors import BufferTimeoutError, InsufficientBuffersError, StateError
from sortshuffle.memory import leaks, local_buffer_pool
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


def recycle(buffers: list[Buffer]) -> None:
    while buffers:
        buffers.pop().recycle()


# Requests


def test_a_new_pool_has_a_share_and_nothing_taken(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2, 5)
    assert (pool.required, pool.maximum, pool.size) == (2, 5, 5)
    assert (pool.requested, pool.available, pool.is_closed) == (0, 0, False)
    pool.close()


def test_a_buffer_is_a_segment_and_goes_back_to_its_pool(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    buffer = pool.request()
    assert buffer is not None
    assert (buffer.size, buffer.references) == (16, 1)
    assert (pool.requested, pool.available) == (1, 0)
    buffer.recycle()
    assert (pool.requested, pool.available, network.available) == (1, 1, 9)
    pool.close()


def test_more_than_the_share_is_not_to_be_had(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2, 3)
    buffers = taken(pool, 3)
    assert pool.request() is None
    assert network.available == 7
    recycle(buffers)
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


def test_reserving_takes_all_that_is_guaranteed_and_no_more(network: NetworkBufferPool) -> None:
    pool = network.create_pool(4)
    first = pool.request()
    pool.reserve()
    pool.reserve()
    assert (pool.requested, pool.available, network.available) == (4, 3, 6)
    assert first is not None
    first.recycle()
    pool.close()


def test_reserving_waits_until_others_give_back_what_is_above_their_share(network: NetworkBufferPool) -> None:
    greedy = network.create_pool(1)
    buffers = taken(greedy, 10)
    pool = network.create_pool(3, 3)
    with ThreadPoolExecutor(1) as threads:
        reserving = threads.submit(pool.reserve)
        eventually(lambda: network._store._claims, "the reservation waits")
        recycle(buffers[:2])
        assert (network.available, pool.requested, reserving.done()) == (2, 0, False)
        buffers[2].recycle()
        reserving.result(FOREVER)
    assert (pool.available, greedy.requested) == (3, 7)
    recycle(buffers[3:])
    greedy.close()
    pool.close()


def test_a_reservation_that_times_out_takes_nothing_and_names_pool_and_option(
    network: NetworkBufferPool,
) -> None:
    greedy = network.create_pool(1)
    buffers = taken(greedy, 9)
    pool = network.create_pool(3, 3, name="partition 5")
    with pytest.raises(BufferTimeoutError) as caught:
        pool.reserve(timeout=0)
    text = str(caught.value)
    assert text.startswith("3 segments for local buffer pool 'partition 5' (0 of 3 segments taken, 0 of them")
    assert f"1 of 10 segments of the process are free. Raise {OPTION}" in text
    assert (pool.requested, network.available) == (0, 1)
    recycle(buffers)
    greedy.close()
    pool.close()


def test_a_reservation_fails_with_the_cause_when_its_pool_is_closed(network: NetworkBufferPool) -> None:
    greedy = network.create_pool(1)
    buffers = taken(greedy, 10)
    pool = network.create_pool(3, 3)
    with ThreadPoolExecutor(1) as threads:
        reserving = threads.submit(pool.reserve)
        eventually(lambda: network._store._claims, "the reservation waits")
        cause = OSError("cancelled")
        pool.close(cause)
        with pytest.raises(StateError, match="cancelled") as caught:
            reserving.result(FOREVER)
    assert caught.value.__cause__ is cause
    recycle(buffers)
    greedy.close()


def test_a_request_waits_for_what_is_recycled_next(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2, 2)
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


def test_a_request_waits_for_what_another_pool_gives_back(network: NetworkBufferPool) -> None:
    greedy = network.create_pool(1)
    buffers = taken(greedy, 10)
    pool = network.create_pool(2)
    with ThreadPoolExecutor(2) as threads:
        requests = [threads.submit(pool.request_blocking) for _ in range(2)]
        waiting(pool, 2)
        recycle(buffers)
        found = [request.result(FOREVER) for request in requests]
    assert (pool.requested, greedy.requested) == (2, greedy.size)
    recycle(found)
    greedy.close()
    pool.close()


def test_hungry_pools_take_turns(network: NetworkBufferPool) -> None:
    greedy = network.create_pool(1)
    buffers = taken(greedy, 10)
    order: list[str] = []
    found: list[Buffer] = []

    def listener_of(name: str):  # type: ignore[no-untyped-def]
        def listener(buffer: Buffer | None) -> None:
            order.append(name)
            assert buffer is not None
            found.append(buffer)

        return listener

    pools = {name: network.create_pool(3, 3) for name in "abc"}
    for name, pool in pools.items():
        for _ in range(2):
            pool.add_listener(listener_of(name))
    recycle(buffers)
    assert order == ["a", "b", "c", "a", "b", "c"]
    recycle(found)
    for pool in [greedy, *pools.values()]:
        pool.close()


def test_a_request_that_times_out_says_who_waited_for_what(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, 1, name="gate 3")
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
    pool = network.create_pool(1, 1)
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
    greedy = network.create_pool(1)
    buffers = taken(greedy, 10)
    pool = network.create_pool(1, 1)

    def interrupted(waiter: object, seconds: float) -> None:
        pool.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(local_buffer_pool.Waiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(pool, wait)()
    recycle(buffers)
    greedy.close()


# Shares that change


def test_a_share_that_shrinks_gives_back_what_lies_free_at_once(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2)
    recycle(taken(pool, 10))
    assert (pool.requested, pool.available, network.available) == (10, 10, 0)
    other = network.create_pool(4, 4)
    assert (pool.size, pool.requested, pool.available, network.available) == (6, 6, 6, 4)
    pool.close()
    other.close()


def test_a_share_that_shrinks_gives_back_what_is_in_use_when_it_comes_home(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(2)
    buffers = taken(pool, 10)
    other = network.create_pool(4, 4)
    counts = []
    for buffer in buffers:
        buffer.recycle()
        counts.append((pool.requested, pool.available, network.available))
    assert counts == [
        (9, 0, 1),
        (8, 0, 2),
        (7, 0, 3),
        (6, 0, 4),
        *((6, free, 4) for free in range(1, 7)),
    ]
    pool.close()
    other.close()


def test_a_pool_above_its_share_gets_nothing_even_from_its_own(network: NetworkBufferPool) -> None:
    pool = network.create_pool(2)
    buffers = taken(pool, 10)
    other = network.create_pool(4, 4)
    buffers.pop().recycle()
    assert pool.request() is None
    recycle(buffers)
    pool.close()
    other.close()


def test_a_share_that_grows_wakes_who_waits(network: NetworkBufferPool) -> None:
    pool, other = network.create_pool(2), network.create_pool(8, 8)
    buffers = taken(pool, 2)
    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(pool.request_blocking)
        waiting(pool)
        other.close()
        buffers.append(request.result(FOREVER))
    assert (pool.size, pool.requested) == (10, 3)
    recycle(buffers)
    pool.close()


# Listeners


def test_a_listener_is_called_at_once_when_there_is_a_buffer(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    heard: list[Buffer | None] = []
    pool.add_listener(heard.append)
    assert len(heard) == 1
    assert heard[0] is not None
    heard[0].recycle()
    pool.close()


def test_a_listener_gets_one_buffer_when_it_is_recycled_before_anyone_later(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    segment = buffer.segment
    heard: list[tuple[str, Buffer | None]] = []
    pool.add_listener(lambda got: heard.append(("first", got)))
    pool.add_listener(lambda got: heard.append(("second", got)))
    assert heard == []
    buffer.recycle()
    assert [name for name, _ in heard] == ["first"]
    assert pool.available == 0
    for _, got in heard:  # grows: recycling the first one's buffer hands it to the second
        assert got is not None
        assert got.segment is segment
        got.recycle()
    assert [name for name, _ in heard] == ["first", "second"]
    assert pool.available == 1
    pool.close()


def test_a_listener_may_recycle_and_request_and_listen_again(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    rounds: list[int] = []

    def listener(got: Buffer | None) -> None:
        assert got is not None
        assert pool.request() is None
        rounds.append(pool.available)
        if len(rounds) < 2000:
            pool.add_listener(listener)
        got.recycle()

    pool.add_listener(listener)
    buffer.recycle()
    assert rounds == [0] * 2000
    assert pool.available == 1
    pool.close()


def test_listeners_and_requests_are_served_in_the_order_in_which_they_came(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    heard: list[Buffer | None] = []
    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(pool.request_blocking)
        waiting(pool)
        pool.add_listener(heard.append)
        buffer.recycle()
        found = request.result(FOREVER)
        assert heard == []
        found.recycle()
    assert len(heard) == 1
    assert heard[0] is not None
    heard[0].recycle()
    pool.close()


def test_a_listener_is_told_when_the_pool_is_closed(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    heard: list[Buffer | None] = []
    pool.add_listener(heard.append)
    pool.close()
    assert heard == [None]
    buffer.recycle()
    assert heard == [None]
    with pytest.raises(StateError):
        pool.add_listener(heard.append)


def test_a_pool_may_be_used_when_it_tells_that_it_is_closed(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    free: list[int] = []

    def listener(got: Buffer | None) -> None:
        buffer.recycle()
        another = network.create_pool(10, 10)
        free.append(network.available)
        another.close()

    pool.add_listener(listener)
    pool.close()
    assert free == [10]


def test_a_listener_that_fails_is_logged_and_neither_who_recycles_nor_the_next_one_suffers(
    network: NetworkBufferPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = network.create_pool(2, 2)
    buffers = taken(pool, 2)
    heard: list[Buffer | None] = []

    def broken(buffer: Buffer | None) -> None:
        assert buffer is not None
        buffer.recycle()
        raise KeyError("the connection is not there any more")

    for listener in (broken, heard.append, heard.append):
        pool.add_listener(listener)
    recycle(buffers)
    assert "the connection is not there any more" in caplog.text
    assert len(heard) == 2
    for got in heard:
        assert got is not None
        got.recycle()
    pool.close()


# The end


def test_a_closed_pool_hands_out_nothing(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, name="gate 3")
    pool.close()
    pool.close()
    for use in (pool.request, pool.request_blocking, pool.reserve):
        with pytest.raises(StateError, match=r"local buffer pool 'gate 3' .* is closed"):
            use()


def test_what_is_in_use_when_the_pool_is_closed_goes_home_when_it_is_recycled(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(3)
    buffers = taken(pool, 5)
    recycle(buffers[:2])
    pool.close()
    assert (network.available, network.guaranteed) == (7, 0)
    assert (pool.requested, pool.available) == (3, 0)
    for left, buffer in zip((2, 1, 0), buffers[2:], strict=True):
        buffer.recycle()
        assert (pool.requested, network.available) == (left, 10 - left)


def test_a_closed_pool_takes_nothing_more_when_shares_change(network: NetworkBufferPool) -> None:
    pool, other = network.create_pool(2), network.create_pool(2)
    pool.close()
    other.close()
    assert (pool.requested, pool.available, network.available) == (0, 0, 10)


def test_closing_fails_all_that_wait_with_the_cause(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    cause = OSError("the consumer is gone")
    with ThreadPoolExecutor(3) as threads:
        requests: list[Future[Buffer]] = [threads.submit(pool.request_blocking) for _ in range(3)]
        waiting(pool, 3)
        pool.close(cause)
        for request in requests:
            with pytest.raises(StateError, match="the consumer is gone") as caught:
                request.result(FOREVER)
            assert caught.value.__cause__ is cause
    buffer.recycle()


def test_many_threads_request_and_recycle_and_the_pool_is_whole(network: NetworkBufferPool) -> None:
    pool = network.create_pool(4, 4)
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
    pool, other = network.create_pool(2, 2), network.create_pool(7)
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for _ in range(200):
            try:
                if number == 0:
                    pool.reserve(timeout=0)
                pool.request_blocking(timeout=0).recycle()
                network.recycle_segments(network.request_segments(1, timeout=0))
            except (BufferTimeoutError, InsufficientBuffersError):
                pass

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(work, number) for number in range(6)]:
            done.result()
    assert pool.requested == pool.available
    assert (other.requested, network.guaranteed) == (0, 9)
    pool.close()
    other.close()


# Debug mode


def test_recycled_memory_is_poisoned(network: NetworkBufferPool) -> None:
    pool = network.create_pool(1)
    buffer = pool.request_blocking()
    view = buffer.view
    buffer.recycle()
    assert bytes(view) == b"\xdb" * 16
    pool.close()


def test_a_buffer_given_to_a_listener_is_followed_to_where_the_listener_was_added(
    network: NetworkBufferPool,
) -> None:
    pool = network.create_pool(1, 1)
    buffer = pool.request_blocking()
    heard: list[Buffer | None] = []
    pool.add_listener(heard.append)
    buffer.recycle()
    (leak,) = [leak for leak in leaks.outstanding(network) if "a buffer" in leak.what]
    function = "test_a_buffer_given_to_a_listener_is_followed_to_where_the_listener_was_added"
    assert leak.place[0].endswith(f"in {function}")
    assert heard[0] is not None
    heard[0].recycle()
    pool.close()
