"""A lock that finalizers can get past, and waiting for one thing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sortshuffle.errors import StateError
from sortshuffle.memory.handover import HandoverLock, Waiter


def test_an_action_submitted_while_another_thread_holds_the_lock_is_done_by_that_thread() -> None:
    lock = HandoverLock()
    by: list[int] = []
    with lock:
        other = threading.Thread(target=lambda: lock.submit(lambda: by.append(threading.get_ident())))
        other.start()
        other.join()
        assert by == []
    assert by == [threading.get_ident()]


def test_an_action_may_submit_another() -> None:
    lock = HandoverLock()
    done: list[int] = []

    def action() -> None:
        lock.submit(lambda: done.append(2))
        done.append(1)

    lock.submit(action)
    assert done == [1, 2]


def test_the_lock_is_free_and_the_inbox_empty_after_an_error() -> None:
    lock = HandoverLock()
    done: list[int] = []
    with pytest.raises(ZeroDivisionError), lock:
        lock.submit(lambda: done.append(1))
        raise ZeroDivisionError
    assert done == [1]
    with lock:
        pass


def test_no_action_of_many_threads_is_lost_or_done_beside_another() -> None:
    lock = HandoverLock()
    start = threading.Barrier(8)
    count = 0

    def action() -> None:
        nonlocal count
        seen = count
        for _ in range(3):
            pass
        count = seen + 1

    def work(takes_lock: bool) -> None:
        start.wait()
        for _ in range(2000):
            if takes_lock:
                with lock:
                    action()
            else:
                lock.submit(action)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number % 2 == 0) for number in range(8)]:
            done.result()
    assert count == 16_000


def test_a_waiter_may_wait_without_a_limit() -> None:
    waiter: Waiter[str] = Waiter()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waiter.wait, float("inf"))
        waiter.deliver("it")
        waiting.result(60)
    assert waiter.result == "it"


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_waiter_has_nothing_after_the_time_is_over(seconds: float) -> None:
    waiter: Waiter[str] = Waiter()
    waiter.wait(seconds)
    assert (waiter.result, waiter.is_over) == (None, False)


def test_a_waiter_that_is_refused_raises_the_cause() -> None:
    waiter: Waiter[str] = Waiter()
    cause = OSError("gone")
    waiter.refuse(cause)
    waiter.wait(60)
    assert (waiter.delivered, waiter.is_over) == (None, True)
    with pytest.raises(StateError, match="gave up waiting: gone") as caught:
        waiter.result  # noqa: B018
    assert caught.value.__cause__ is cause
