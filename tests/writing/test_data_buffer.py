"""`DataBuffer`: buffers keep their order within a subpartition, subpartitions leave in the write order, and
every byte is charged until whoever writes it gives it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.buffer import SealedBuffer, seal
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.writing.data_buffer import DataBuffer, bytes_of


def buffer(payload: bytes) -> SealedBuffer:
    return seal(payload, len(payload), records=1)


def payloads(extents: list[tuple[int, list[SealedBuffer]]]) -> list[tuple[int, list[bytes]]]:
    return [(subpartition, [each.payload for each in extent]) for subpartition, extent in extents]


def test_extents_leave_in_the_write_order_without_the_empty_ones() -> None:
    data = DataBuffer([2, 3, 0, 1], MemoryBudget(1000))
    for subpartition, payload in [(0, b"a"), (3, b"b"), (0, b"c"), (2, b"d"), (3, b"e")]:
        data.append(subpartition, buffer(payload))
    assert payloads(list(data.drain())) == [(2, [b"d"]), (3, [b"b", b"e"]), (0, [b"a", b"c"])]


def test_nothing_leaves_an_empty_data_buffer() -> None:
    data = DataBuffer([0, 1], MemoryBudget(1000))
    assert list(data.drain()) == []
    assert data.bytes == 0


def test_draining_empties_and_what_comes_later_leaves_later() -> None:
    data = DataBuffer([0, 1], MemoryBudget(1000))
    data.append(0, buffer(b"a"))
    assert payloads(list(data.drain())) == [(0, [b"a"])]
    assert data.bytes == 0
    assert list(data.drain()) == []
    data.append(0, buffer(b"b"))
    assert payloads(list(data.drain())) == [(0, [b"b"])]


def test_bytes_are_counted_and_charged_as_they_will_stand_in_the_file() -> None:
    budget = MemoryBudget(1000)
    data = DataBuffer([0, 1], budget)
    data.append(1, buffer(b"a"))
    data.append(0, buffer(bytes(100)))
    assert (data.bytes, budget.used) == (64 + 128, 64 + 128)


def test_what_was_drained_stays_charged_until_it_is_released() -> None:
    budget = MemoryBudget(1000)
    data = DataBuffer([0, 1], budget)
    data.append(1, buffer(b"a"))
    data.append(0, buffer(bytes(100)))
    for _, extent in data.drain():
        before = budget.used
        budget.release(bytes_of(extent))
        assert before - budget.used == bytes_of(extent)
    assert budget.used == 0


@pytest.mark.parametrize("subpartition", [2, 100])
def test_a_subpartition_that_does_not_exist_is_an_error_and_charges_nothing(subpartition: int) -> None:
    budget = MemoryBudget(1000)
    with pytest.raises(IndexError):
        DataBuffer([0, 1], budget).append(subpartition, buffer(b"a"))
    assert budget.used == 0


@given(
    st.integers(1, 8).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.integers(0, count - 1),
            st.lists(st.tuples(st.integers(0, count - 1), st.binary(max_size=100))),
        )
    )
)
def test_every_buffer_leaves_once_in_its_place(drawn: tuple[int, int, list[tuple[int, bytes]]]) -> None:
    count, first, appended = drawn
    order = [*range(first, count), *range(first)]
    budget = MemoryBudget(10**9)
    data = DataBuffer(order, budget)
    for subpartition, payload in appended:
        data.append(subpartition, buffer(payload))
    expected = [(s, [p for at, p in appended if at == s]) for s in order]
    drained = list(data.drain())
    assert payloads(drained) == [(s, found) for s, found in expected if found]
    assert budget.used == sum(bytes_of(extent) for _, extent in drained)
