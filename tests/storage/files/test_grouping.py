"""Items in groups: all of them, in order, as few groups as that allows."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.storage.files.grouping import in_groups


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 100))
def test_groups_are_full_or_one_larger_item(sizes: list[int], most: int) -> None:
    groups = list(in_groups(enumerate(sizes), most))

    assert [item for group in groups for item in group] == list(range(len(sizes)))
    assert all(len(group) == 1 or sum(sizes[item] for item in group) <= most for group in groups)
    for group, following in itertools.pairwise(groups):
        assert sum(sizes[item] for item in group) + sizes[following[0]] > most
