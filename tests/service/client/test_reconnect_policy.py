"""What the failures of a client's connections mean: which are final, and when it is given up."""

from __future__ import annotations

from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.client.reconnect_policy import ReconnectPolicy
from sortshuffle.service.client.request_table import BreachError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rejection(cause: Exception | None = None) -> AuthenticationError:
    error = AuthenticationError("no")
    error.__cause__ = cause
    return error


def test_a_connection_that_breaks_is_made_again_until_the_time_is_over() -> None:
    clock = Clock()
    policy = ReconnectPolicy(1.0, clock)
    assert not policy.is_final(ServiceUnavailableError("cut"))
    assert [policy.failed(0.0), policy.failed(0.0)] == [0.1, 0.2]
    clock.now = 1.0
    assert (policy.failed(0.9), policy.lasted) == (None, 1.0)
    policy.end()
    assert (policy.lasted, policy.failed(1.0)) == (0.0, 0.1)


def test_progress_ends_trouble() -> None:
    clock = Clock()
    policy = ReconnectPolicy(1.0, clock)
    policy.failed(0.0)
    clock.now = 0.9
    policy.progress()
    clock.now = 1.5
    assert (policy.failed(1.5), policy.lasted) == (0.1, 0.0)


def test_a_peer_that_breaks_the_protocol_three_times_in_a_row_will_do_it_again() -> None:
    policy = ReconnectPolicy(1.0, Clock())
    wrong = ProtocolError("kind 99")
    assert [policy.is_final(wrong), policy.is_final(wrong)] == [False, False]
    policy.progress()
    assert [policy.is_final(wrong) for _ in range(3)] == [False, False, True]


def test_a_breach_for_which_a_channel_was_blamed_is_never_final() -> None:
    policy = ReconnectPolicy(1.0, Clock())
    assert [policy.is_final(BreachError("of a channel")) for _ in range(5)] == [False] * 5


def test_a_secret_that_is_not_accepted_is_final_at_once() -> None:
    assert ReconnectPolicy(1.0, Clock()).is_final(rejection())


def test_a_service_that_goes_while_it_greets_is_tried_once_more() -> None:
    policy = ReconnectPolicy(1.0, Clock())
    gone = rejection(ServiceUnavailableError("closed"))
    assert [policy.is_final(gone), policy.is_final(gone)] == [False, True]
    policy.greeted()
    assert not policy.is_final(gone)
