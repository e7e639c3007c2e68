"""Work for threads that may refuse it: either it is done or its refusal is told, never both."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from consumers import PATIENCE

from sortshuffle.reading.submission import submit_once


class Outcome:
    """What became of some work."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.errors: list[str] = []

    def work(self) -> None:
        self.done.set()

    def refused(self, error: Exception) -> None:
        self.errors.append(str(error))


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_work_that_is_taken_is_done() -> None:
    outcome = Outcome()
    with ThreadPoolExecutor(1) as threads:
        submit_once(threads, outcome.work, outcome.refused)
    assert (outcome.done.is_set(), outcome.errors) == (True, [])


def test_work_that_is_refused_is_not_done_by_a_thread_that_becomes_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome, may_end, is_busy = Outcome(), threading.Event(), threading.Event()

    def be_busy() -> None:
        is_busy.set()
        assert may_end.wait(PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        threads.submit(be_busy)
        assert is_busy.wait(PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            submit_once(threads, outcome.work, outcome.refused)
        may_end.set()
    assert (outcome.done.is_set(), outcome.errors) == (False, ["can't start new thread"])


def test_work_that_has_begun_is_not_refused() -> None:
    class Both(ThreadPoolExecutor):
        """Another thread begins the work before the refusal comes."""

        def submit(self, work, /, *arguments, **named):  # type: ignore[no-untyped-def]
            work()
            raise RuntimeError("can't start new thread")

    outcome = Outcome()
    with Both(1) as threads:
        submit_once(threads, outcome.work, outcome.refused)
    assert (outcome.done.is_set(), outcome.errors) == (True, [])


def test_threads_that_were_shut_down_refuse() -> None:
    outcome = Outcome()
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    submit_once(threads, outcome.work, outcome.refused)
    assert not outcome.done.is_set()
    assert len(outcome.errors) == 1
