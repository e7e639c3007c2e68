"""Global, forward, rescale and broadcast placement."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import StateError, UsageError
from sortshuffle.partitioner import (
    BroadcastSelector,
    GlobalSelector,
    HashSelector,
    RescaleSelector,
    RoundRobinSelector,
    RowHashSelector,
    forward,
)


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count), pa.int64())], names=["n"])


def test_global_sends_everything_to_one_subpartition() -> None:
    assert GlobalSelector().assign(rows(3)).tolist() == [0, 0, 0]
    assert GlobalSelector(300, 299).assign(rows(3)).tolist() == [299] * 3
    assert GlobalSelector(300, 299).assign(rows(0)).dtype == np.uint16


def test_into_one_subpartition_every_placement_is_the_global_one() -> None:
    for selector in (HashSelector((0,), 1), RoundRobinSelector(1), RowHashSelector(1)):
        np.testing.assert_array_equal(selector.assign(rows(50)), GlobalSelector().assign(rows(50)))


def test_forward_keeps_the_number_of_the_producer() -> None:
    assert [forward(producer, 4).assign(rows(2)).tolist() for producer in range(4)] == [
        [0, 0],
        [1, 1],
        [2, 2],
        [3, 3],
    ]


@given(subpartitions=st.integers(1, 50), producers=st.integers(1, 50))
def test_rescale_gives_every_subpartition_to_someone_and_shares_them_out_evenly(
    subpartitions: int, producers: int
) -> None:
    owned = [RescaleSelector(subpartitions, producer, producers).own for producer in range(producers)]

    assert {each for own in owned for each in own} == set(range(subpartitions))
    sizes = [len(own) for own in owned]
    assert max(sizes) - min(sizes) <= 1
    assert all(one.start <= other.start for one, other in pairwise(owned))
    sharers = Counter(each for own in owned for each in own)
    assert max(sharers.values()) - min(sharers.values()) <= 1


@given(batches=st.lists(st.integers(0, 30), max_size=5), producer=st.integers(0, 2))
def test_rescale_deals_out_in_turn_whatever_the_batches(batches: list[int], producer: int) -> None:
    selector = RescaleSelector(10, producer, 3)
    own = selector.own
    found = [each for count in batches for each in selector.assign(rows(count)).tolist()]

    assert found == [own[position % len(own)] for position in range(sum(batches))]


def test_rescale_to_fewer_joins_neighbours() -> None:
    ids = [RescaleSelector(2, producer, 5).assign(rows(2)).tolist() for producer in range(5)]

    assert ids == [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1]]


def test_a_broadcast_is_known_by_its_attribute_and_places_no_rows() -> None:
    assert BroadcastSelector(4).is_broadcast
    assert not GlobalSelector().is_broadcast
    with pytest.raises(StateError, match="broadcast"):
        BroadcastSelector(4).assign(rows(1))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_numbers_outside_are_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match="target must be from 0 to 3"):
        GlobalSelector(4, wrong)
    with pytest.raises(UsageError, match="from 0 to 3"):
        forward(wrong, 4)
    with pytest.raises(UsageError, match="producer must be from 0 to 3"):
        RescaleSelector(9, wrong, 4)
