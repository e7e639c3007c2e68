"""Rows in groups: the same groups as a dict of plain Python keys finds, rows in order, for every type of key
and wherever a fast way ends."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import DOUBLE, INT64, KEY_CASES, STRING, KeyCase

from sortshuffle.compute.aggregate.segments import Segments, by_hash, in_order
from sortshuffle.payload.ordering import RowOrder


def groups_in(segments: Segments) -> list[list[int]]:
    """The rows of each group, groups by their first row."""
    rows = segments.rows_at(np.arange(segments.rows))
    found = np.split(rows, segments.starts[1:]) if segments.rows else []
    return sorted(each.tolist() for each in found)


def expected_groups(keys: list[Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    return sorted(groups.values())


@pytest.mark.parametrize("case", KEY_CASES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_groups_by_hash_are_those_of_equal_keys(case: KeyCase, data: st.DataObject) -> None:
    values = data.draw(case.lists(max_size=30))
    batch = pa.record_batch([case.sliced_array(values)], ["key"])
    segments = by_hash(RowOrder((0,)).ranks(batch))
    assert groups_in(segments) == expected_groups(list(map(case.key, values)))


@given(data=st.data())
def test_groups_by_several_keys_are_those_of_equal_keys(data: st.DataObject) -> None:
    cases = data.draw(st.lists(st.sampled_from([INT64, STRING, DOUBLE]), min_size=1, max_size=6))
    rows = data.draw(st.integers(0, 30))
    columns = [data.draw(case.lists(min_size=rows, max_size=rows)) for case in cases]
    batch = pa.record_batch(
        [case.array(values) for case, values in zip(cases, columns, strict=True)],
        [str(number) for number in range(len(cases))],
    )
    keys = [
        tuple(case.key(value) for case, value in zip(cases, row, strict=True))
        for row in zip(*columns, strict=True)
    ]
    assert groups_in(by_hash(RowOrder(range(len(cases))).ranks(batch))) == expected_groups(keys)


@pytest.mark.parametrize("columns", [1, 2, 5, 40])
def test_keys_of_more_bits_than_a_word_has_are_told_apart(columns: int) -> None:
    random = np.random.default_rng(3)
    pool = random.integers(-(2**63), 2**63 - 1, (50, columns))
    picked = random.integers(0, 50, 2000)
    batch = pa.record_batch(list(pool[picked].T.copy()), [str(number) for number in range(columns)])
    segments = by_hash(RowOrder(range(columns)).ranks(batch))
    assert groups_in(segments) == expected_groups(picked.tolist())


def test_rows_of_a_group_keep_their_order() -> None:
    random = np.random.default_rng(4)
    batch = pa.record_batch([random.integers(0, 20, 5000)], ["key"])
    segments = by_hash(RowOrder((0,)).ranks(batch))
    for rows in np.split(segments.rows_at(np.arange(5000)), segments.starts[1:]):
        assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize("keys", [[], [5], [5, 5, 5], [None, None]])
def test_one_group_or_none_needs_no_order(keys: list[Any]) -> None:
    batch = pa.record_batch([pa.array(keys, pa.int64())], ["key"])
    for order in (RowOrder((0,)), RowOrder(())):
        segments = by_hash(order.ranks(batch))
        assert (segments.count, segments.rows, segments.order) == (min(1, len(keys)), len(keys), None)


def test_sums_and_sizes_are_those_of_each_group() -> None:
    batch = pa.record_batch([[2, 1, 2, 2]], ["key"])
    segments = by_hash(RowOrder((0,)).ranks(batch))
    assert segments.sums(np.array([1, 10, 100, 1000])).tolist() == [10, 1101]
    assert segments.sizes().tolist() == [1, 3]
    assert segments.first_rows().tolist() == [1, 0]
    assert segments.any(np.array([False, False, False, True])).tolist() == [False, True]


def test_groups_of_sorted_rows_stand_where_they_are() -> None:
    batch = pa.record_batch([[1, 1, 2, 5, 5]], ["key"])
    segments = in_order(RowOrder((0,)).ranks(batch))
    assert segments.starts.tolist() == [0, 2, 3]
    assert segments.order is None
    assert segments.arranged(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
