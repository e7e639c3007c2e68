"""The flusher's thread: flushes again and again, ends when it is closed, and keeps what a flush raised."""

from __future__ import annotations

import threading

import pytest

from sortshuffle.errors import UsageError
from sortshuffle.write.flusher import ALWAYS, NEVER, FlushPolicy, OutputFlusher

SOON = 0.001
LONG = 60.0


def flushing_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "sortshuffle-flush"]


def test_it_flushes_again_and_again_until_it_is_closed() -> None:
    thrice = threading.Semaphore(0)
    flusher = OutputFlusher(thrice.release, SOON, threading.Lock())
    assert all(thrice.acquire(timeout=LONG) for _ in range(3))
    flusher.check()
    flusher.close()
    flusher.close()
    assert flushing_threads() == []


def test_closing_does_not_wait_for_the_next_flush() -> None:
    flusher = OutputFlusher(lambda: pytest.fail("too early"), LONG, threading.Lock())
    flusher.close()
    assert flushing_threads() == []


def test_closing_waits_for_a_flush_in_progress() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def flush() -> None:
        begun.set()
        assert go_on.wait(LONG)
        ended.append(True)

    flusher = OutputFlusher(flush, SOON, threading.Lock())
    assert begun.wait(LONG)
    closing = threading.Thread(target=flusher.close)
    closing.start()
    assert ended == []
    go_on.set()
    closing.join(LONG)
    assert ended[0]


def test_a_failed_flush_is_the_last_and_is_raised_by_every_check() -> None:
    flushes: list[int] = []

    def flush() -> None:
        flushes.append(1)
        raise ConnectionError("the service is gone")

    flusher = OutputFlusher(flush, SOON, threading.Lock())
    flusher._thread.join(LONG)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="the service is gone"):
            flusher.check()
    flusher.close()
    assert flushes == [1]


def test_policies() -> None:
    policies = [NEVER, ALWAYS, FlushPolicy(0.1)]
    assert [(each.is_always, each.is_periodic) for each in policies] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="must be 0 or more seconds"):
            FlushPolicy(wrong)


def test_whoever_gets_the_lock_behind_a_failed_flush_is_told() -> None:
    lock, begun = threading.Lock(), threading.Event()

    def flush() -> None:
        begun.set()
        raise ConnectionError("half of it was sent")

    flusher = OutputFlusher(flush, SOON, lock)
    assert begun.wait(LONG)
    with lock, pytest.raises(ConnectionError, match="half of it was sent"):
        flusher.check()
    flusher.close()


def test_nothing_is_flushed_while_somebody_has_the_lock_nor_behind_the_end() -> None:
    lock = threading.Lock()
    flushed = threading.Semaphore(0)
    flusher = OutputFlusher(flushed.release, SOON, lock)
    with lock:
        while flushed.acquire(blocking=False):
            pass
        assert not flushed.acquire(timeout=20 * SOON)
    assert flushed.acquire(timeout=LONG)
    flusher.close()
    while flushed.acquire(blocking=False):
        pass
    assert not flushed.acquire(timeout=20 * SOON)
