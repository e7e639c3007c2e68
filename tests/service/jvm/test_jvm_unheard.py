"""Services that do not hear are passed over for a while, and never for good."""

from __future__ import annotations

from sortshuffle.service.jvm.unheard import MOST_UNHEARD, RETRY_AFTER, UnheardServices

ONE, OTHER = "a:1", "b:1"


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_one_that_does_not_hear_time_and_again_is_passed_over() -> None:
    services = UnheardServices(Clock())
    for times in range(1, MOST_UNHEARD + 1):
        assert services.may_try(ONE)
        assert services.unheard(ONE) == (times == MOST_UNHEARD)
    assert not services.may_try(ONE)
    assert services.may_try(OTHER)


def test_it_is_tried_again_once_after_a_while() -> None:
    clock = Clock()
    services = UnheardServices(clock)
    for _ in range(MOST_UNHEARD):
        services.unheard(ONE)
    for _ in range(3):
        clock.now += RETRY_AFTER - 1
        assert not services.may_try(ONE)
        clock.now += 1
        assert [services.may_try(ONE) for _ in range(3)] == [True, False, False]
        assert services.unheard(ONE) is False, "that is known already"


def test_one_that_has_heard_is_as_any_other() -> None:
    clock = Clock()
    services = UnheardServices(clock)
    for _ in range(MOST_UNHEARD):
        services.unheard(ONE)
    clock.now += RETRY_AFTER
    assert services.may_try(ONE)
    services.heard(ONE)
    for _ in range(MOST_UNHEARD - 1):
        services.unheard(ONE)
        assert services.may_try(ONE)
    assert services.unheard(ONE) is True
