"""One byte budget for a task and shares of it: what is charged is counted everywhere it should be, once, and
what is given back never exceeds what was taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import StateError
from sortshuffle.memory.budget import MemoryBudget


def test_a_new_budget_holds_nothing() -> None:
    budget = MemoryBudget(100)
    assert (budget.limit, budget.used, budget.peak, budget.name) == (100, 0, 0, "task")


def test_charges_add_up_and_releases_take_off() -> None:
    budget = MemoryBudget(100)
    budget.charge(30)
    budget.charge(50)
    budget.release(20)
    assert (budget.used, budget.peak) == (60, 80)
    budget.charge(10)
    assert (budget.used, budget.peak) == (70, 80)


@pytest.mark.parametrize(("size", "exceeds"), [(0, False), (70, False), (71, True), (10**18, True)])
def test_exactly_the_limit_does_not_exceed_it(size: int, exceeds: bool) -> None:
    budget = MemoryBudget(100)
    budget.charge(30)
    assert budget.would_exceed(size) is exceeds
    assert budget.used == 30


def test_charging_beyond_the_limit_is_counted_not_refused() -> None:
    budget = MemoryBudget(100)
    budget.charge(1000)
    assert (budget.used, budget.peak) == (1000, 1000)
    assert budget.would_exceed(0)


def test_giving_back_more_than_was_taken_is_a_state_error_and_changes_nothing() -> None:
    task = MemoryBudget(100)
    share = task.share(50, "read")
    task.charge(40)
    share.charge(10)
    with pytest.raises(StateError, match="the read budget got back 11 bytes of 10 in use"):
        share.release(11)
    assert (share.used, task.used) == (10, 50)


def test_charges_of_a_share_count_in_the_whole() -> None:
    task = MemoryBudget(100)
    read, write = task.share(30, "read"), task.share(70, "write")
    read.charge(20)
    write.charge(60)
    assert (read.used, write.used, task.used) == (20, 60, 80)
    read.release(15)
    assert (read.used, write.used, task.used) == (5, 60, 65)
    assert (read.peak, write.peak, task.peak) == (20, 60, 80)


def test_shares_of_a_share_count_in_all_above() -> None:
    task = MemoryBudget(100)
    inner = task.share(50, "outer").share(25, "inner")
    inner.charge(10)
    assert task.used == 10
    inner.release(10)
    assert task.used == 0


@pytest.mark.parametrize(("wanted", "limit"), [(30, 30), (100, 100), (1000, 100)])
def test_a_share_is_never_larger_than_the_whole(wanted: int, limit: int) -> None:
    assert MemoryBudget(100).share(wanted, "read").limit == limit


def test_a_share_looks_at_its_own_limit_only() -> None:
    task = MemoryBudget(100)
    read = task.share(30, "read")
    task.charge(100)
    assert not read.would_exceed(30)
    assert read.would_exceed(31)


def test_releasing_all_of_a_share_leaves_what_others_hold() -> None:
    task = MemoryBudget(100)
    read, write = task.share(30, "read"), task.share(70, "write")
    read.charge(20)
    write.charge(60)
    write.release_all()
    assert (read.used, write.used, task.used) == (20, 0, 20)
    write.release_all()
    assert task.used == 20


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 1000))))
def test_the_whole_always_holds_the_sum_of_its_shares(steps: list[tuple[int, bool, int]]) -> None:
    task = MemoryBudget(1000)
    shares = [task.share(300, str(number)) for number in range(3)]
    highest = 0
    for number, takes, size in steps:
        share = shares[number]
        if takes:
            share.charge(size)
        else:
            share.release(min(size, share.used))
        highest = max(highest, task.used)
        assert task.used == sum(each.used for each in shares)
    assert task.peak == highest
    for share in shares:
        share.release_all()
    assert task.used == 0
