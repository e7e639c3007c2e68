"""Services that do not hear are passed over for a while, and never for good."""

from __future__ import annotations

from sortshuffle.service.jvm.silent_services import LONGEST_RETRY, MOST_FAILURES, RETRY_AFTER, SilentServices

ONE, OTHER = "a:1", "b:1"


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fails(services: SilentServices, service: str = ONE) -> bool:
    """An attempt that fails at once; whether the service is passed over for that."""
    began = services.begin_attempt(service)
    assert began is not None
    return services.failed(service, began)


def test_one_that_does_not_hear_time_and_again_is_passed_over() -> None:
    services = SilentServices(Clock())
    for times in range(1, MOST_FAILURES + 1):
        assert fails(services) == (times == MOST_FAILURES)
    assert services.begin_attempt(ONE) is None
    assert services.begin_attempt(OTHER) is not None


def test_attempts_that_fail_at_the_same_time_fail_once() -> None:
    """Several shuffles are removed together, while the network fails for a moment."""
    clock = Clock()
    services = SilentServices(clock)
    for times in range(1, MOST_FAILURES + 1):
        began = []
        for _ in range(MOST_FAILURES + 1):
            clock.now += 1
            began.append(services.begin_attempt(ONE))
        for at in began:
            assert at is not None
            clock.now += 1
            is_passed_over = services.failed(ONE, at)
            assert is_passed_over == (times == MOST_FAILURES and at == began[0])
    assert services.begin_attempt(ONE) is None


def test_it_is_tried_again_once_after_a_while_and_then_more_and_more_rarely() -> None:
    clock = Clock()
    services = SilentServices(clock)
    for _ in range(MOST_FAILURES):
        fails(services)
    for wait in (RETRY_AFTER, 2 * RETRY_AFTER, 4 * RETRY_AFTER):
        clock.now += wait - 1
        assert services.begin_attempt(ONE) is None
        clock.now += 1
        began = services.begin_attempt(ONE)
        assert began is not None
        assert [services.begin_attempt(ONE) for _ in range(3)] == [None] * 3
        assert services.failed(ONE, began) is False, "that is known already"
    for _ in range(9):  # once a day in the end
        clock.now += LONGEST_RETRY
        fails(services)


def test_one_that_has_heard_is_as_any_other() -> None:
    clock = Clock()
    services = SilentServices(clock)
    for _ in range(MOST_FAILURES):
        fails(services)
    clock.now += RETRY_AFTER
    assert services.begin_attempt(ONE) is not None
    services.answered(ONE)
    for _ in range(MOST_FAILURES - 1):
        assert fails(services) is False
    assert fails(services) is True
