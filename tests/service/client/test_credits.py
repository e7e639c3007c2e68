"""Room for data ahead of their consumers: it is lent in turn, no more than there is, and to no one alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from consumers import together
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.service.client.credits import FloatingCredits


@dataclass(eq=False)
class Channel:
    """``had``: bytes that it was lent later, call by call."""

    segment_bytes: int = 10
    had: list[int] = field(default_factory=list)
    on_lent: Callable[[int], None] = lambda size: None

    def lent(self, size: int) -> None:
        self.had.append(size)
        self.on_lent(size)


def test_one_alone_gets_half_and_the_next_ones_find_something() -> None:
    credits = FloatingCredits(160)
    first, second, third = Channel(), Channel(), Channel()
    assert credits.borrow(first, 100) == 80
    assert credits.borrow(first, 0) == 0
    assert credits.borrow(second, 100) == 40
    assert credits.borrow(second, 0) == 0
    assert credits.borrow(third, 1) == 10
    assert [credits.held(each) for each in (first, second, third)] == [80, 40, 10]
    assert credits.free == 30


def test_what_is_given_back_is_lent_in_turn_a_segment_at_a_time() -> None:
    credits = FloatingCredits(80)
    holders = [Channel(), Channel(), Channel()]
    assert [credits.borrow(each, n) for each, n in zip(holders, (4, 2, 1), strict=True)] == [40, 20, 10]
    waiting = [Channel(20), Channel(20), Channel(20)]
    assert [credits.borrow(each, 3) for each in waiting] == [0, 0, 0]
    credits.give_back(holders[0], 10)
    assert [each.had for each in waiting] == [[20], [], []]
    credits.give_back(holders[0], 30)
    assert [each.had for each in waiting] == [[20], [20], []]
    credits.leave(holders[1])
    assert [each.had for each in waiting] == [[20], [20], [20]]
    assert credits.free == 10


def test_who_comes_later_is_lent_nothing_before_those_who_wait() -> None:
    credits = FloatingCredits(40)
    holder, large, late = Channel(), Channel(30), Channel()
    assert credits.borrow(holder, 2) == 20
    assert credits.borrow(large, 1) == 0
    assert credits.borrow(late, 1) == 0  # although 20 are free
    credits.leave(holder)
    assert (large.had, late.had) == ([30], [10])


def test_floating_room_comes_to_be_shared_evenly_among_those_that_want_all() -> None:
    credits = FloatingCredits(1600)
    channels = [Channel() for _ in range(8)]
    for channel in channels:
        credits.borrow(channel, 1000)
    assert credits.held(channels[0]) == 800
    for _ in range(100):  # each consumes a segment, and wants another
        for channel in channels:
            if credits.held(channel):
                credits.give_back(channel, 10)
    held = [credits.held(channel) for channel in channels]
    assert max(held) - min(held) <= 20
    assert sum(held) == 1600 - credits.free
    assert min(held) >= 1600 // 9 - 20


def test_who_wants_none_any_more_is_lent_none() -> None:
    credits = FloatingCredits(20)
    first, second, third = Channel(), Channel(), Channel()
    credits.borrow(first, 1)
    credits.borrow(third, 1)
    assert credits.borrow(second, 1) == 0
    assert credits.borrow(second, 0) == 0
    credits.leave(first)
    assert second.had == []
    credits.leave(second)
    credits.leave(third)
    assert credits.free == 20


def test_a_later_call_says_anew_how_many_are_wanted() -> None:
    credits = FloatingCredits(40)
    holder, channel = Channel(), Channel()
    assert (credits.borrow(holder, 2), credits.borrow(channel, 2)) == (20, 10)
    assert credits.borrow(channel, 1) == 0
    credits.leave(holder)
    assert (channel.had, credits.held(channel)) == ([10], 20)


def test_leaving_gives_everything_back_and_may_be_done_again() -> None:
    credits = FloatingCredits(40)
    channel = Channel()
    assert credits.borrow(channel, 9) == 20
    credits.leave(channel)
    credits.leave(channel)
    assert (credits.free, credits.held(channel)) == (40, 0)


def test_more_than_was_lent_cannot_be_given_back() -> None:
    credits = FloatingCredits(40)
    channel = Channel()
    credits.borrow(channel, 1)
    with pytest.raises(AssertionError):
        credits.give_back(channel, 20)


def test_nothing_is_lent_where_there_is_nothing() -> None:
    credits = FloatingCredits(0)
    assert credits.borrow(Channel(), 5) == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["borrow", "give", "leave"]), st.integers(0, 9)))
)
def test_no_more_is_lent_than_there_is_and_nothing_is_lost(steps: list[tuple[int, str, int]]) -> None:
    credits = FloatingCredits(100)
    channels = [Channel(size) for size in (10, 10, 30, 7)]
    held = dict.fromkeys(channels, 0)

    def on_lent(channel: Channel) -> Callable[[int], None]:
        def add(size: int) -> None:
            held[channel] += size

        return add

    for channel in channels:
        channel.on_lent = on_lent(channel)
    for number, step, amount in steps:
        channel = channels[number]
        if step == "borrow":
            held[channel] += credits.borrow(channel, amount)
        elif step == "give":
            size = min(held[channel], amount * channel.segment_bytes)
            held[channel] -= size
            credits.give_back(channel, size)
        else:
            held[channel] = 0
            credits.leave(channel)
        assert {each: credits.held(each) for each in channels} == held
        assert credits.free == 100 - sum(held.values()) >= 0
    for channel in channels:
        credits.leave(channel)
    assert credits.free == 100


def test_threads_that_borrow_and_give_back_at_the_same_time_lose_nothing() -> None:
    credits = FloatingCredits(1000)
    lock = threading.Lock()

    def use() -> None:
        channel = Channel()
        mine = [0]

        def add(size: int) -> None:
            with lock:
                mine[0] += size

        channel.on_lent = add
        for turn in range(300):
            add(credits.borrow(channel, turn % 7))
            with lock:
                size, mine[0] = mine[0], 0
            credits.give_back(channel, size)
        credits.leave(channel)

    with together(*[use] * 6):
        pass
    assert credits.free == 1000
