"""One budget of a process, divided among those who write at the same time: shares come and go, each keeps to
its own, the floor is everybody's, and what is counted adds up whatever the threads do."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import StateError
from sortshuffle.memory.shared_budget import SharedBudget

LIMIT, FLOOR = 1000, 100
WRITERS, ROUNDS = 8, 400


def test_one_alone_has_it_all() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    share = whole.open("map 1")
    assert not share.would_exceed(LIMIT)
    assert share.would_exceed(LIMIT + 1)
    share.charge(600)
    assert (share.used, whole.used, whole.peak, share.peak) == (600, 600, 600, 600)
    assert not share.would_exceed(400)
    assert share.would_exceed(401)
    share.release(100)
    share.charge(50)
    assert (share.used, whole.used, whole.peak, share.peak) == (550, 550, 600, 600)
    share.close()
    assert (whole.used, whole.shares, whole.peak) == (0, 0, 600)


def test_a_share_shrinks_when_another_opens() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    first = whole.open("map 1")
    first.charge(450)
    assert not first.would_exceed(LIMIT - 450)
    second = whole.open("map 2")
    assert whole.shares == 2
    assert not first.would_exceed(50)
    assert first.would_exceed(51)
    assert not second.would_exceed(500)
    assert second.would_exceed(501)


def test_one_alone_has_no_more_than_a_share_may_have() -> None:
    whole = SharedBudget(LIMIT, FLOOR, most=300)
    first = whole.open("read 1")
    assert (first.limit, first.would_exceed(300), first.would_exceed(301)) == (300, False, True)
    others = [whole.open(f"read {number}") for number in range(2, 6)]
    assert (others[-1].limit, first.would_exceed(200), first.would_exceed(201)) == (200, False, True)


def test_a_share_grows_again_when_the_others_close() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    first = whole.open("map 1")
    others = [whole.open(f"map {number}") for number in range(2, 5)]
    assert first.would_exceed(251)
    for other in others:
        other.close()
    assert not first.would_exceed(LIMIT)


def test_one_that_was_opened_among_others_grows_when_they_close() -> None:
    """What counts is the share now."""
    whole = SharedBudget(LIMIT, FLOOR)
    first = whole.open("map 1")
    second = whole.open("map 2")
    assert second.would_exceed(501)
    first.close()
    assert not second.would_exceed(LIMIT)


def test_what_others_hold_above_their_share_is_not_free() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    first = whole.open("map 1")
    first.charge(800)
    second = whole.open("map 2")
    assert first.would_exceed(0)  # it finds that out at its next question
    assert not second.would_exceed(200)
    assert second.would_exceed(201)
    first.release(800)
    assert not second.would_exceed(500)


def test_the_floor_is_everybodys_whatever_the_others_hold() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    first = whole.open("map 1")
    first.charge(LIMIT)
    second = whole.open("map 2")
    assert not second.would_exceed(FLOOR)
    assert second.would_exceed(FLOOR + 1)
    second.charge(FLOOR)
    assert (whole.used, whole.peak) == (LIMIT + FLOOR, LIMIT + FLOOR)


def test_with_more_shares_than_floors_fit_each_has_the_floor() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    shares = [whole.open(f"map {number}") for number in range(25)]
    assert {each.limit for each in shares[10:]} == {FLOOR}
    for each in shares:
        assert not each.would_exceed(FLOOR)
        each.charge(FLOOR)
        assert each.would_exceed(1)
    assert whole.used == 25 * FLOOR


def test_one_item_may_be_larger_than_all_of_it() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    share = whole.open("map 1")
    share.charge(5 * LIMIT)
    assert (whole.used, share.would_exceed(0)) == (5 * LIMIT, True)
    share.release(5 * LIMIT)
    assert (whole.used, share.would_exceed(LIMIT)) == (0, False)


def test_more_than_it_holds_cannot_be_given_back_by_a_share() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    first, second = whole.open("map 1"), whole.open("map 2")
    first.charge(10)
    second.charge(10)
    with pytest.raises(StateError, match="the map 1 budget got back 11 bytes of 10 in use"):
        first.release(11)
    assert (first.used, second.used, whole.used) == (10, 10, 20)


def test_closing_gives_back_everything_once() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    first, second = whole.open("map 1"), whole.open("map 2")
    first.charge(30)
    second.charge(40)
    first.close()
    first.close()
    assert (whole.used, whole.shares, first.used) == (40, 1, 0)
    second.close()
    assert (whole.used, whole.shares) == (0, 0)


def test_a_part_of_a_share_counts_in_the_whole() -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    part = whole.open("map 1").share(70, "messages")
    part.charge(60)
    assert (whole.used, part.would_exceed(11)) == (60, True)
    part.release_all()
    assert whole.used == 0


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["take", "give", "close"]), st.integers(0, 400)))
)
def test_the_whole_is_the_sum_of_the_shares_and_exceeds_its_limit_by_floors_only(
    steps: list[tuple[int, str, int]],
) -> None:
    whole = SharedBudget(LIMIT, FLOOR)
    shares = [whole.open(str(number)) for number in range(5)]
    for number, what, size in steps:
        share = shares[number]
        if what == "take" and not share.would_exceed(size):
            share.charge(size)
        elif what == "give":
            share.release(min(size, share.used))
        elif what == "close":
            share.close()
            shares[number] = whole.open(str(number))
        assert whole.used == sum(each.used for each in shares)
        assert whole.used <= LIMIT + len(shares) * FLOOR
        assert whole.shares == len(shares)


def test_threads_that_open_fill_and_close_shares_leave_nothing() -> None:
    whole = SharedBudget(1 << 20, 1 << 14)
    started = threading.Barrier(WRITERS)
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        generator = random.Random(seed)
        started.wait()
        try:
            for number in range(ROUNDS):
                share = whole.open(f"{seed}, {number}")
                held = 0
                for _ in range(10):
                    size = generator.randrange(1, 1 << 13)
                    if share.would_exceed(size):
                        share.release(held)
                        held = 0
                    share.charge(size)
                    held += size
                assert share.used == held
                share.close()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(WRITERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert (whole.used, whole.shares) == (0, 0)
    assert 0 < whole.peak <= (1 << 20) + WRITERS * (1 << 14)
