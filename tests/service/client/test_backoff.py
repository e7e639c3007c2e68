"""When to try again: 100 ms, then twice as long each time, up to 10 s, until the time is over."""

from __future__ import annotations

import pytest

from sortshuffle.service.client.backoff import Backoff


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def delays(limit: float) -> list[float]:
    """All delays of one trouble in which nothing but waiting takes time."""
    clock = Clock()
    backoff = Backoff(limit, clock)
    found = []
    while (delay := backoff.failed()) is not None:
        found.append(round(delay, 6))
        clock.now += delay
    assert clock.now == pytest.approx(limit)
    return found


def test_delays_double_from_100_ms_to_10_s_and_the_last_attempt_is_made_when_the_time_is_over() -> None:
    assert delays(60) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0, 7.3]


def test_a_short_time_has_one_attempt_at_its_end() -> None:
    assert delays(0.05) == [0.05]
    assert delays(0.1) == [0.1]
    assert delays(1) == [0.1, 0.2, 0.4, 0.3]


def test_progress_begins_anew() -> None:
    clock = Clock()
    backoff = Backoff(1, clock)
    assert [backoff.failed(), backoff.failed()] == [0.1, 0.2]
    clock.now = 0.9
    backoff.progress()
    assert backoff.lasted == 0
    clock.now = 5
    assert backoff.failed() == 0.1
    clock.now = 5.5
    assert (backoff.failed(), backoff.lasted) == (0.2, 0.5)
    clock.now = 6
    assert backoff.failed() is None


def test_the_attempt_that_failed_counts_from_when_it_was_begun() -> None:
    clock = Clock()
    clock.now = 100
    assert Backoff(30, clock).failed(since=70) is None
    backoff = Backoff(30, clock)
    assert backoff.failed(since=80) == 0.1
    assert backoff.lasted == 20
    assert backoff.failed(since=99) == 0.2  # it is the same trouble
    assert backoff.lasted == 20
