"""Batches for reading: whole or not at all, first come first served, and a time-out that anyone's progress
puts off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine import eventually, printed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recyclers import OPTION

from sortshuffle.errors import BufferTimeoutError, OptionError, StateError, UsageError
from sortshuffle.memory import leaks
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.memory.segment import MemorySegment

MIB = 1 << 20
FOREVER = 60.0  # seconds; a wait that the test itself ends


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def new_pool(segments: int = 8, clock: Clock | None = None) -> ReadBufferPool:
    """A pool of segments of 1 MiB, four to a batch."""
    return ReadBufferPool(segments * MIB, MIB, option=OPTION, clock=clock or Clock())


@pytest.fixture
def pool() -> Iterator[ReadBufferPool]:
    pool = new_pool()
    yield pool
    pool.destroy()


def waiting(pool: ReadBufferPool, count: int = 1) -> None:
    """Until so many threads wait in the pool."""
    eventually(lambda: len(pool._waiting) == count, f"{count} requests wait")


@pytest.mark.parametrize(("total", "segment"), [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_sizes_below_one_are_refused(total: int, segment: int) -> None:
    with pytest.raises(UsageError):
        ReadBufferPool(total, segment, option=OPTION)


def test_less_than_one_segment_is_refused_naming_the_option() -> None:
    with pytest.raises(OptionError, match=f"{OPTION}: 4095 bytes hold no segment of 4096 bytes"):
        ReadBufferPool(4095, 4096, option=OPTION)


@pytest.mark.parametrize(
    ("total", "segment", "segments", "batch", "requests"),
    [
        (64 * MIB, 32 << 10, 2048, 128, 16),
        (2 * MIB, 32 << 10, 64, 64, 1),
        (64 * MIB + 100, 32 << 10, 2048, 128, 16),
        (64 * MIB, 8 * MIB, 8, 1, 8),
        (1, 1, 1, 1, 1),
        (9 * MIB, MIB, 9, 4, 2),
        (1 << 46, 1 << 20, 1 << 26, 4, 1 << 24),
    ],
)
def test_counts_follow_from_the_sizes(
    total: int, segment: int, segments: int, batch: int, requests: int
) -> None:
    pool = ReadBufferPool(total, segment, option=OPTION)
    assert (pool.total_segments, pool.segments_per_request) == (segments, batch)
    assert (pool.max_concurrent_requests, pool.available) == (requests, segments)


def test_a_request_is_exactly_one_batch(pool: ReadBufferPool) -> None:
    batch = pool.request()
    assert (len(batch), len(set(batch)), pool.available) == (4, 4, 4)
    assert {segment.size for segment in batch} == {MIB}
    pool.recycle(batch)
    assert pool.available == 8


def test_segments_may_be_given_back_by_the_thread_that_holds_the_lock(pool: ReadBufferPool) -> None:
    batch = pool.request()
    with pool._lock:
        pool.recycle(batch)
        assert pool.available == 4
    assert pool.available == 8


def test_progress_is_a_batch_handed_out_or_a_segment_recycled_not_a_vain_request() -> None:
    clock = Clock()
    pool = new_pool(4, clock)
    assert pool._last_progress == 1000
    clock.now = 1001
    batch = pool.request()
    assert pool._last_progress == 1001
    clock.now = 1002
    assert pool.request(timeout=0) == []
    assert pool._last_progress == 1001
    pool.recycle(batch[0])
    assert pool._last_progress == 1002
    clock.now = 1003
    pool.recycle([])
    with pytest.raises(BufferTimeoutError):
        pool.request(0, lambda: bool(pool.expect_progress(1001, 1)))
    assert pool._last_progress == 1002  # one who gives up puts nobody else's time-out off
    pool.recycle(batch[1:])


def test_who_waits_gives_up_only_when_nobody_got_on_for_the_limit() -> None:
    clock = Clock()
    pool = new_pool(4, clock)
    pool.register("a partition")
    batch = pool.request()
    clock.now = begun = 2000.0
    pool.expect_progress(begun, 5)
    clock.now = 2004.9
    pool.expect_progress(begun, 5)
    pool.recycle(batch[0])
    clock.now = 2009.8
    pool.expect_progress(begun, 5)
    clock.now = 2009.9
    with pytest.raises(BufferTimeoutError) as caught:
        pool.expect_progress(begun, 5)
    text = str(caught.value)
    assert "no batch of 4 read buffers in 5 s" in text
    assert "1 of 4 segments of 1048576 bytes are free, 1 partitions are being read" in text
    assert f"Raise {OPTION}" in text
    pool.recycle(batch[1:])


@pytest.mark.parametrize("one_by_one", [True, False])
def test_recycling_a_batch_wakes_who_waits(pool: ReadBufferPool, one_by_one: bool) -> None:
    batches = [pool.request(), pool.request()]
    with ThreadPoolExecutor(2) as threads:
        requests = [threads.submit(pool.request, FOREVER) for _ in range(2)]
        waiting(pool, 2)
        for batch in batches:
            if one_by_one:
                for segment in batch:
                    pool.recycle(segment)
            else:
                pool.recycle(batch)
        found = [request.result(FOREVER) for request in requests]
    assert sorted(map(id, found[0] + found[1])) == sorted(map(id, batches[0] + batches[1]))
    pool.recycle(found[0] + found[1])
    assert pool.available == 8


def test_who_came_first_is_served_first() -> None:
    pool = new_pool(4)
    held = pool.request()
    with ThreadPoolExecutor(3) as threads:
        requests = []
        for count in range(1, 4):
            requests.append(threads.submit(pool.request, FOREVER))
            waiting(pool, count)
        for served, request in enumerate(requests):
            pool.recycle(held)
            held = request.result(FOREVER)
            assert [each.done() for each in requests] == [number <= served for number in range(3)]
    pool.recycle(held)


def test_who_waits_on_after_a_time_out_keeps_its_place() -> None:
    pool = new_pool(4)
    held = pool.request()
    asked = threading.Semaphore(0)
    order: list[str] = []

    def still_wanted() -> bool:
        asked.release()
        return True

    def request(name: str, timeout: float) -> None:
        batch = pool.request(timeout, still_wanted)
        order.append(name)
        pool.recycle(batch)

    with ThreadPoolExecutor(2) as threads:
        impatient = threads.submit(request, "impatient", 0.0)
        waiting(pool)
        patient = threads.submit(request, "patient", FOREVER)
        waiting(pool, 2)
        while asked.acquire(blocking=False):
            pass
        for _ in range(5):
            assert asked.acquire(timeout=FOREVER)
        pool.recycle(held)
        impatient.result(FOREVER)
        patient.result(FOREVER)
    assert order == ["impatient", "patient"]


def test_a_request_that_is_wanted_no_more_gets_nothing_and_leaves_the_line(pool: ReadBufferPool) -> None:
    held = pool.request() + pool.request()
    answers = [True, True, False]
    assert pool.request(0, lambda: answers.pop(0)) == []
    assert answers == []
    waiting(pool, 0)
    pool.recycle(held)
    assert pool.available == 8


@pytest.mark.parametrize("recycled_first", [False, True])
def test_what_the_question_raises_ends_the_wait_and_loses_no_segment(
    pool: ReadBufferPool, recycled_first: bool
) -> None:
    held = pool.request() + pool.request()

    def still_wanted() -> bool:
        if recycled_first:
            pool.recycle(held)
        raise OSError("the consumer is gone")

    with pytest.raises(OSError, match="the consumer is gone"):
        pool.request(0, still_wanted)
    waiting(pool, 0)
    assert pool.available == (8 if recycled_first else 0)
    if not recycled_first:
        pool.recycle(held)


@pytest.mark.parametrize("timeout", [FOREVER, 0.0005])  # some batches come just when the time is over
def test_ten_threads_request_and_recycle_a_hundred_times_and_the_pool_is_whole(timeout: float) -> None:
    pool = new_pool(12)
    start = threading.Barrier(10)
    holding: set[MemorySegment] = set()
    guard = threading.Lock()

    def work() -> int:
        start.wait()
        for _ in range(100):
            batch = pool.request(timeout, lambda: True)
            assert len(batch) == 4
            with guard:
                assert not holding & set(batch)
                holding.update(batch)
            with guard:
                holding.difference_update(batch)
            pool.recycle(batch[:1])
            pool.recycle(batch[1:])
        return 100

    with ThreadPoolExecutor(10) as threads:
        assert sum(request.result() for request in [threads.submit(work) for _ in range(10)]) == 1000
    assert pool.available == 12
    pool.destroy()


def test_memory_is_allocated_at_the_first_request_only() -> None:
    pool = ReadBufferPool(1 << 46, 1 << 20, option=OPTION)  # more than there is address space to touch
    assert pool.available == 1 << 26
    pool.destroy()
    assert pool.available == 0


LIMITED = """
import resource, sys
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
pool = ReadBufferPool(1 << 32, 1 << 26, option="an.option")
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
try:
    pool.request()
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(pool.request()), pool.available)
"""


def test_too_little_memory_at_the_first_request_names_the_option_and_can_be_tried_again() -> None:
    words = printed(LIMITED)
    assert "lower an.option" in " ".join(words)
    assert words[-2:] == ["1", "63"]


def test_the_average_is_that_of_the_registered_requesters(pool: ReadBufferPool) -> None:
    assert pool.average_per_requester == 8
    for number, average in [(1, 8), (2, 4), (3, 2), (3, 2), (4, 2), (9, 1), (9, 1)]:
        for name in range(number):
            pool.register(name)
        assert pool.average_per_requester == average
    for name in range(9):
        pool.unregister(name)
        pool.unregister(name)
    assert pool.average_per_requester == 8


def test_a_destroyed_pool_hands_out_nothing_and_drops_what_comes_late() -> None:
    pool = new_pool()
    batch = pool.request()
    pool.destroy()
    pool.destroy()
    for use in (pool.request, lambda: pool.register("late")):
        with pytest.raises(StateError, match="is destroyed"):
            use()
    pool.recycle(batch)
    assert pool.available == 0


def test_destroying_fails_who_waits() -> None:
    pool = new_pool(4)
    batch = pool.request()
    with ThreadPoolExecutor(2) as threads:
        requests = [threads.submit(pool.request, FOREVER) for _ in range(2)]
        waiting(pool, 2)
        pool.destroy()
        for request in requests:
            with pytest.raises(StateError, match="gave up waiting"):
                request.result(FOREVER)
    pool.recycle(batch)


def test_a_wait_that_is_interrupted_loses_no_segment(
    pool: ReadBufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sortshuffle.memory import read_buffer_pool

    held = pool.request() + pool.request()

    class Interrupted(read_buffer_pool.Waiter):  # type: ignore[type-arg]
        def wait(self, seconds: float) -> None:
            if recycles_first:
                pool.recycle(held)
            raise KeyboardInterrupt

    monkeypatch.setattr(read_buffer_pool, "Waiter", Interrupted)
    for recycles_first in (False, True):
        with pytest.raises(KeyboardInterrupt):
            pool.request(FOREVER)
        assert pool.available == (8 if recycles_first else 0)
        waiting(pool, 0)


def test_an_interrupt_is_not_lost_when_the_pool_is_destroyed_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sortshuffle.memory import read_buffer_pool

    pool = new_pool(4)
    held = pool.request()

    def interrupted(waiter: object, seconds: float) -> None:
        pool.destroy()
        raise KeyboardInterrupt

    monkeypatch.setattr(read_buffer_pool.Waiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.request(FOREVER)
    pool.recycle(held)


def test_recycled_memory_is_poisoned(pool: ReadBufferPool) -> None:
    batch = pool.request()
    batch[0].view[:3] = b"abc"
    pool.recycle(batch)
    assert {bytes(segment.view[:8]) for segment in batch} == {b"\xdb" * 8}


def test_what_is_missing_when_the_pool_is_destroyed_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = new_pool()
    batch = pool.request()
    pool.recycle(batch[:3])
    pool.destroy()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("never recycled: a segment of the read buffer pool of 8 segments")
    assert "test_read_buffer_pool.py" in caplog.messages[0]
    assert len(leaks.forget()) == 1


class ReadBatches(RuleBasedStateMachine):
    """Every segment is free or held, batches are whole, and progress is what it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.pool = new_pool(10, self.clock)
        self.held: list[MemorySegment] = []
        self.requesters: set[int] = set()
        self.progress = self.clock.now

    @rule(seconds=st.integers(0, 10))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def request(self) -> None:
        free = 10 - len(self.held)
        batch = self.pool.request(timeout=0)
        assert len(batch) == (4 if free >= 4 else 0)
        assert not set(batch) & set(self.held)
        self.held += batch
        if batch:
            self.progress = self.clock.now

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.held)))
        given, self.held = self.held[:count], self.held[count:]
        self.pool.recycle(given if count > 1 else given[0])
        self.progress = self.clock.now

    @rule(more=st.integers(1, 3))
    def recycle_too_many(self, more: int) -> None:
        with pytest.raises(StateError):
            self.pool.recycle([*self.held, *(MemorySegment(1) for _ in range(more))])

    @rule(requester=st.integers(0, 30))
    def register(self, requester: int) -> None:
        self.pool.register(requester)
        self.requesters.add(requester)

    @rule(requester=st.integers(0, 30))
    def unregister(self, requester: int) -> None:
        self.pool.unregister(requester)
        self.requesters.discard(requester)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.pool.available == 10 - len(self.held)
        assert self.pool._last_progress == self.progress
        assert self.pool.average_per_requester == max(1, 10 // max(1, len(self.requesters)))

    def teardown(self) -> None:
        self.pool.recycle(self.held)
        self.pool.destroy()


TestReadBatches = ReadBatches.TestCase
