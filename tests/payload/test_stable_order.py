"""The stable order of int64 values is that of NumPy's stable sort, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.payload import stable_order as module
from sortshuffle.payload.stable_order import stable_order

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def assert_stable(values: np.ndarray) -> None:  # type: ignore[type-arg]
    order, changes = stable_order(values)
    assert (order.dtype, changes.dtype) == (np.int64, np.bool_)
    assert order.tolist() == np.argsort(values, kind="stable").tolist()
    ordered = values[order].tolist()
    assert changes.tolist() == [at == 0 or ordered[at] != ordered[at - 1] for at in range(len(values))]


@given(
    st.sampled_from([1, 1 << 8, 1 << 16, 1 << 17, 1 << 40, MOST]).flatmap(
        lambda most: st.lists(
            st.one_of(st.integers(0, most), st.sampled_from([LEAST, -1, 0, most - 1, most, MOST])),
            max_size=60,
        )
    )
)
def test_any_values(values: list[int]) -> None:
    assert_stable(np.array(values, np.int64))


@pytest.mark.parametrize("least", [LEAST, -5, 0, MOST - (1 << 16)])
@pytest.mark.parametrize("spread", [(1 << 16) - 1, 1 << 16])
def test_values_that_just_fit_into_16_bits_and_that_do_not(least: int, spread: int) -> None:
    offsets = np.random.default_rng(7).integers(0, spread, 1000, endpoint=True)
    offsets[:2] = 0, spread
    assert_stable(offsets + least)


@pytest.mark.parametrize("rows", [2, 3, 1000, 1 << 17])
def test_rows_whose_leading_bits_are_equal(rows: int) -> None:
    """With 2**17 rows, the last 17 of 64 bits are not packed."""
    random = np.random.default_rng(7)
    values = (
        random.integers(0, 4, rows) << 62 | random.integers(0, 3, rows) << 10 | random.integers(0, 3, rows)
    )
    assert_stable(values)
    values[0], values[-1] = MOST, LEAST
    assert_stable(values)


def test_a_slice_with_a_step_and_one_that_cannot_be_written_to() -> None:
    values = np.random.default_rng(7).integers(LEAST, MOST, 1000)
    assert_stable(values[::3])
    values.flags.writeable = False
    assert_stable(values)


@pytest.mark.parametrize("ends", [(LEAST,), (MOST,), (LEAST, MOST)])
@pytest.mark.parametrize("spread", [9, 1 << 30, MOST - 1])
def test_values_at_an_end_are_set_apart(ends: tuple[int, ...], spread: int) -> None:
    random = np.random.default_rng(7)
    values = random.integers(0, spread, 70_000)
    values[random.integers(0, len(values), 500)] = random.choice(ends, 500)
    assert_stable(values)
    assert_stable(np.full(3, ends[0]))


def test_equal_values_with_many_bits_are_not_sorted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    values = random.choice(random.integers(LEAST, MOST, 500), 1 << 17)
    assert_stable(values)
    monkeypatch.setattr(module.np, "argsort", None)
    stable_order(values)


def test_few_ties_are_sorted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    argsort = np.argsort

    def counting(values: np.ndarray, kind: str) -> np.ndarray:  # type: ignore[type-arg]
        sizes.append(len(values))
        return argsort(values, kind=kind)  # type: ignore[call-overload, no-any-return]

    values = np.random.default_rng(7).integers(LEAST, MOST, 1 << 17)
    values[500:503] = values[7], values[7] + 1, values[7]
    monkeypatch.setattr(module.np, "argsort", counting)
    order, changes = stable_order(values)
    monkeypatch.undo()
    assert len(values) - changes.sum() == 2
    assert order.tolist() == np.argsort(values, kind="stable").tolist()
    assert sizes == [4]
