"""A client that takes nothing: since when, what is kept for it, and when it counts as gone."""

from __future__ import annotations

import pytest
from views import Part

from sortshuffle.errors import ProtocolError
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.stall import Copies, Stall

LIMITS = Limits(stall=2.0, gone=10.0, kept=10)


def sending(data: bytes) -> tuple[GatheredSend, Part]:
    made, part = GatheredSend(), Part([], 0)
    made.add([data], part)
    return made, part


def test_who_takes_nothing_is_blocked_since_it_last_took_something() -> None:
    stall = Stall(LIMITS, Copies())
    assert (stall.since, stall.is_long(100.0)) == (None, False)
    stall.some_sent(0, now=5.0)
    stall.some_sent(0, now=6.0)
    assert (stall.since, stall.is_long(7.0), stall.is_long(7.1)) == (5.0, False, True)
    stall.some_sent(1, now=7.0)
    assert (stall.since, stall.is_long(9.0)) == (7.0, False)
    stall.all_sent()
    assert (stall.since, stall.is_long(100.0)) == (None, False)


def test_who_takes_nothing_for_very_long_counts_as_gone() -> None:
    stall = Stall(LIMITS, Copies())
    stall.some_sent(0, now=5.0)
    assert stall.is_long(15.0)
    with pytest.raises(ProtocolError, match="it took nothing for 11 s"):
        stall.is_long(16.0)


def test_what_waits_is_copied_once_and_counted_until_it_is_taken() -> None:
    copies = Copies()
    stall = Stall(LIMITS, copies)
    waiting, part = sending(b"12345")
    stall.copy(waiting)
    waiting.add([b"678"])
    stall.copy(waiting)
    assert (copies.size, part.recycled) == (5, 1)
    stall.all_sent()
    assert copies.size == 0


def test_copies_of_all_clients_together_are_bounded() -> None:
    copies = Copies()
    first, second = Stall(LIMITS, copies), Stall(LIMITS, copies)
    first.copy(sending(b"123456")[0])
    waiting, part = sending(b"12345")
    with pytest.raises(ProtocolError, match="6 bytes are kept for such clients"):
        second.copy(waiting)
    second.end()
    assert (copies.size, part.recycled) == (6, 0)
    first.end()
    assert copies.size == 0
