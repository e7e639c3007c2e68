"""What the failures of a client's connections mean: which are final, and when it is given up."""

from __future__ import annotations

from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.client.request_table import BreachError
from sortshuffle.service.client.trouble import Trouble


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
    trouble = Trouble(1.0, clock)
    assert not trouble.is_final(ServiceUnavailableError("cut"))
    assert [trouble.failed(0.0), trouble.failed(0.0)] == [0.1, 0.2]
    clock.now = 1.0
    assert (trouble.failed(0.9), trouble.lasted) == (None, 1.0)
    trouble.end()
    assert (trouble.lasted, trouble.failed(1.0)) == (0.0, 0.1)


def test_progress_ends_trouble() -> None:
    clock = Clock()
    trouble = Trouble(1.0, clock)
    trouble.failed(0.0)
    clock.now = 0.9
    trouble.progress()
    clock.now = 1.5
    assert (trouble.failed(1.5), trouble.lasted) == (0.1, 0.0)


def test_a_peer_that_breaks_the_protocol_three_times_in_a_row_will_do_it_again() -> None:
    trouble = Trouble(1.0, Clock())
    wrong = ProtocolError("kind 99")
    assert [trouble.is_final(wrong), trouble.is_final(wrong)] == [False, False]
    trouble.progress()
    assert [trouble.is_final(wrong) for _ in range(3)] == [False, False, True]


def test_a_breach_for_which_a_channel_was_blamed_is_never_final() -> None:
    trouble = Trouble(1.0, Clock())
    assert [trouble.is_final(BreachError("of a channel")) for _ in range(5)] == [False] * 5


def test_a_secret_that_is_not_accepted_is_final_at_once() -> None:
    assert Trouble(1.0, Clock()).is_final(rejection())


def test_a_service_that_goes_while_it_greets_is_tried_once_more() -> None:
    trouble = Trouble(1.0, Clock())
    gone = rejection(ServiceUnavailableError("closed"))
    assert [trouble.is_final(gone), trouble.is_final(gone)] == [False, True]
    trouble.greeted()
    assert not trouble.is_final(gone)
