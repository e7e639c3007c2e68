"""Key groups: groups that stay, and how they are dealt to subpartitions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import UsageError
from sortshuffle.partitioner import HashSelector, KeyGroupSelector

KEYS = pa.record_batch([pa.array(range(5000))], names=["k"])


@given(subpartitions=st.integers(1, 128), max_parallelism=st.integers(128, 1 << 15))
def test_groups_go_to_subpartitions_as_flink_deals_them(subpartitions: int, max_parallelism: int) -> None:
    selector = KeyGroupSelector((0,), subpartitions, max_parallelism)
    groups = selector.key_groups(KEYS)

    np.testing.assert_array_equal(groups, HashSelector((0,), max_parallelism).assign(KEYS))
    expected = groups.astype(np.int64) * subpartitions // max_parallelism
    np.testing.assert_array_equal(selector.assign(KEYS), expected)


@given(subpartitions=st.integers(1, 64), factor=st.integers(1, 2))
def test_more_subpartitions_split_what_fewer_had(subpartitions: int, factor: int) -> None:
    coarse = KeyGroupSelector((0,), subpartitions, 128).assign(KEYS)
    fine = KeyGroupSelector((0,), subpartitions * factor, 128).assign(KEYS)

    np.testing.assert_array_equal(fine // factor, coarse)


def test_as_many_groups_as_subpartitions_is_hash_placement() -> None:
    ids = KeyGroupSelector((0,), 128, 128).assign(KEYS)

    np.testing.assert_array_equal(ids, HashSelector((0,), 128).assign(KEYS))


@pytest.mark.parametrize("max_parallelism", [0, 7, (1 << 15) + 1])
def test_an_impossible_number_of_groups_is_refused(max_parallelism: int) -> None:
    with pytest.raises(UsageError, match="max_parallelism must be from 8"):
        KeyGroupSelector((0,), 8, max_parallelism)
