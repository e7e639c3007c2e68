"""The reservoir: which rows it keeps, however they come."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import UsageError
from sortshuffle.partitioner import Reservoir


def numbers(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, stop), pa.int64())], names=["n"])


def sampled(size: int, seed: int, cuts: list[int]) -> list[int]:
    reservoir = Reservoir(numbers(0, 0).schema, size, (seed,))
    for start, stop in pairwise(cuts):
        reservoir.add(numbers(start, stop))
    assert reservoir.rows == cuts[-1] - cuts[0]
    found: list[int] = reservoir.sample()["n"].to_pylist()
    return found


def test_few_rows_are_all_kept_in_their_order() -> None:
    assert sampled(10, 1, [0, 3, 3, 10]) == list(range(10))
    assert sampled(10, 1, [0]) == []


@given(size=st.integers(1, 30), cuts=st.lists(st.integers(0, 300), max_size=12))
def test_the_cuts_between_batches_do_not_matter(size: int, cuts: list[int]) -> None:
    found = sampled(size, 7, [0, *sorted(cuts), 300])

    assert found == sampled(size, 7, [0, 300])
    assert len(found) == size
    assert found == sorted(set(found))


def test_every_row_is_kept_with_the_same_probability() -> None:
    counts = np.zeros(100)
    for seed in range(2000):
        counts[sampled(20, seed, [0, 5, 60, 100])] += 1

    assert counts.sum() == 20 * 2000
    variance = 2000 * 0.2 * 0.8
    assert 0.5 < ((counts - 400) ** 2).mean() / variance < 1.5
    assert abs(counts - 400).max() < 5 * variance**0.5


def test_seeds_give_samples_of_their_own() -> None:
    samples = {tuple(sampled(20, seed, [0, 1000])) for seed in range(20)}

    assert len(samples) == 20


def test_it_holds_no_more_than_twice_its_size_and_a_batch() -> None:
    reservoir = Reservoir(numbers(0, 0).schema, 100, (1,))
    bytes_per_row = 16
    for start in range(0, 100_000, 50):
        reservoir.add(numbers(start, start + 50))
        assert reservoir.nbytes <= (2 * 100 + 50) * bytes_per_row


def test_an_empty_reservoir_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 row"):
        Reservoir(numbers(0, 0).schema, 0, (1,))
