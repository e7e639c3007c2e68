"""Reading ahead: results come in the order of the items whatever order they are fetched in, the budget holds,
a failure surfaces where its item would have come, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from map_outputs import reading_threads

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.reading.read_ahead import ReadAhead

PATIENCE = 30.0  # seconds until a test that would wait for ever fails instead


class FetchFailedError(Exception):
    """What a test's fetch raises."""


def ahead(
    items: Iterable[int],
    fetch: Callable[[int], int],
    *,
    limit: int = 1000,
    size_of: Callable[[int], int] = lambda item: 1,
    threads: int = 4,
) -> tuple[ReadAhead[int, int], MemoryBudget]:
    budget = MemoryBudget(limit)
    return ReadAhead(list(items), fetch, size_of, budget, threads), budget


def assert_nothing_is_left(budget: MemoryBudget) -> None:
    assert budget.used == 0
    assert reading_threads() == []


def test_as_many_fetches_run_at_once_as_there_are_threads() -> None:
    together = threading.Barrier(3)

    def fetch(item: int) -> int:
        together.wait(PATIENCE)
        return item

    reading, budget = ahead(range(6), fetch, threads=3)
    with reading:
        assert list(reading) == list(range(6))
    assert_nothing_is_left(budget)


def test_no_more_threads_are_started_than_asked_for() -> None:
    names: set[str] = set()

    def fetch(item: int) -> int:
        names.add(threading.current_thread().name)
        return item

    reading, _ = ahead(range(100), fetch, threads=2)
    with reading:
        assert list(reading) == list(range(100))
    assert 1 <= len(names) <= 2
    assert all(name.startswith("sortshuffle-read") for name in names)


@given(sizes=st.lists(st.integers(0, 50), max_size=30), limit=st.integers(1, 100), threads=st.integers(1, 5))
def test_the_budget_is_exceeded_by_a_single_larger_item_only(
    sizes: list[int], limit: int, threads: int
) -> None:
    reading, budget = ahead(
        range(len(sizes)), lambda item: item, limit=limit, size_of=sizes.__getitem__, threads=threads
    )
    with reading:
        assert list(reading) == list(range(len(sizes)))
    assert budget.peak <= max([limit, *sizes])
    assert_nothing_is_left(budget)


def test_the_budget_is_used_up_and_a_delivered_result_makes_room_for_the_next() -> None:
    sizes = [40, 30, 30, 200, 10, 10]
    reading, budget = ahead(range(6), lambda item: item, limit=100, size_of=sizes.__getitem__)
    with reading:
        held = [(item, budget.used) for item in reading]
    # 200 waits until nothing else is held; the last two wait for it
    assert held == [(0, 60), (1, 30), (2, 200), (3, 20), (4, 10), (5, 0)]
    assert budget.peak == 200


@pytest.mark.parametrize("failing", [0, 2, 4])
def test_a_failure_surfaces_at_its_place(failing: int) -> None:
    def fetch(item: int) -> int:
        if item == failing:
            raise FetchFailedError(item)
        return item

    reading, budget = ahead(range(5), fetch)
    delivered: list[int] = []
    with pytest.raises(FetchFailedError, match=str(failing)), reading:
        delivered.extend(reading)
    assert delivered == list(range(failing))
    assert_nothing_is_left(budget)


def test_a_failure_does_not_overtake_results_before_it() -> None:
    failed = threading.Event()

    def fetch(item: int) -> int:
        if item == 1:
            failed.set()
            raise FetchFailedError
        assert failed.wait(PATIENCE)
        return item

    reading, budget = ahead(range(2), fetch)
    with reading:
        results = iter(reading)
        assert next(results) == 0
        with pytest.raises(FetchFailedError):
            next(results)
    assert_nothing_is_left(budget)


def test_closing_in_the_middle_waits_for_running_fetches_and_starts_no_more() -> None:
    running, closed, go = threading.Event(), threading.Event(), threading.Event()
    events: list[str] = []

    def fetch(item: int) -> int:
        if item == 1:
            running.set()
            assert go.wait(PATIENCE)
        events.append(f"fetched {item}")
        return item

    reading, budget = ahead(range(10), fetch, threads=1)
    assert next(iter(reading)) == 0
    assert running.wait(PATIENCE)

    def close() -> None:
        reading.close()
        events.append("closed")
        closed.set()

    closer = threading.Thread(target=close)
    closer.start()
    closed.wait(0.1)  # a close that did not wait would be through by now, and "closed" come first
    go.set()
    closer.join(PATIENCE)
    assert events == ["fetched 0", "fetched 1", "closed"]
    assert_nothing_is_left(budget)


def test_there_are_no_results_behind_a_close() -> None:
    reading, budget = ahead(range(10), lambda item: item, limit=3)
    results = iter(reading)
    assert next(results) == 0
    reading.close()
    assert list(results) == []
    assert list(reading) == []
    assert_nothing_is_left(budget)


def test_a_thread_that_cannot_be_started_leaves_nothing_charged() -> None:
    reading, budget = ahead(range(3), lambda item: item)
    usual = threading.stack_size(1 << 47)  # more than an address space
    try:
        with pytest.raises(RuntimeError, match="start new thread"), reading:
            list(reading)
    finally:
        threading.stack_size(usual)
    assert_nothing_is_left(budget)
