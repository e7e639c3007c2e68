"""Whether a service that owes something gets on: by a clock that only the test moves, without a socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sortshuffle.errors import ServiceUnavailableError
from sortshuffle.service.client.liveness import LEAST_BYTES, Liveness


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Service:
    """Sends now and then, to who is patient for 30 seconds and looks every second."""

    def __init__(self, is_expecting: Callable[[], bool] = lambda: True) -> None:
        self.clock = Clock()
        self.liveness = Liveness(30.0, is_expecting, self.clock)
        assert self.liveness.tick == 1.0

    def sends(self, size: int, after: float = 1.0) -> None:
        """So many bytes, after so many seconds of which each was listened to."""
        for _ in range(int(after)):
            self.clock.now += 1.0
            self.liveness.check()
        self.liveness.count(size)


def test_a_service_that_sends_nothing_does_not_get_on() -> None:
    service = Service()
    with pytest.raises(ServiceUnavailableError, match=r"it sent nothing for 30\.0 s"):
        service.sends(1, after=40)
    assert service.clock.now == 130.0


def test_a_service_that_sends_a_little_now_and_then_does_not_get_on() -> None:
    service, sent = Service(), 0
    with pytest.raises(ServiceUnavailableError, match=r"it sent only 696 bytes for 30\.0 s"):
        while sent < 40:
            service.sends(24)
            sent += 1
    assert sent == 29


def test_a_service_whose_small_frames_end_something_gets_on() -> None:
    service = Service()
    for _ in range(40):
        service.sends(24, after=29)
        service.liveness.progress()
    assert service.liveness.last_progress == service.clock.now


def test_a_service_that_sends_enough_in_the_time_gets_on() -> None:
    service = Service()
    for _ in range(40):
        service.sends(LEAST_BYTES // 2, after=14)
    assert service.liveness.last_progress == service.clock.now


def test_a_service_that_owes_nothing_may_be_silent() -> None:
    service = Service(is_expecting=lambda: False)
    service.sends(0, after=200)
    assert service.liveness.last_progress == 300.0


def test_a_service_that_owes_nothing_at_times_gets_on() -> None:
    looks = iter(range(1000))
    service = Service(is_expecting=lambda: next(looks) % 20 > 0)
    for _ in range(90):
        service.sends(24)
    assert service.liveness.last_progress > 180.0


def test_it_is_asked_once_in_a_tick_whether_anything_is_expected() -> None:
    looks: list[float] = []
    service = Service(is_expecting=lambda: not looks.append(service.clock.now))
    for _ in range(10):
        service.clock.now += 0.25
        service.liveness.check()
    assert looks == [101.0, 102.0]


def test_time_in_which_this_process_stood_still_is_not_the_services() -> None:
    service = Service()
    service.sends(0, after=20)
    service.clock.now += 61.0  # nobody listened; two ticks of it count
    service.liveness.check()
    assert service.clock.now - service.liveness.last_progress == 22.0
    service.sends(0, after=7)
    with pytest.raises(ServiceUnavailableError, match=r"for 30\.0 s"):
        service.sends(0)
