"""How many objects are held is reckoned from their sizes when pickled; a surprise closes what is held."""

from __future__ import annotations

import pytest

from sortshuffle.writing.pickled_sizes import (
    CHUNK_BYTES,
    HEAP_BYTES_PER_PICKLED,
    MOST_OBJECTS,
    PROBE_EVERY,
    SURPRISE,
    PickledSizes,
)

MEMORY = 1 << 20


def never() -> None:
    raise AssertionError("nothing was to be flushed")


def test_one_object_is_held_until_a_size_is_known() -> None:
    sizes = PickledSizes(MEMORY)
    assert (sizes.most_in_chunk, sizes.most_held) == (1, 1)


def test_a_chunk_and_what_is_held_follow_from_the_mean_size() -> None:
    sizes = PickledSizes(MEMORY)
    sizes.sent(1000, 10)
    assert sizes.most_in_chunk == CHUNK_BYTES // 100
    assert sizes.most_held == MEMORY // (HEAP_BYTES_PER_PICKLED * 100)
    sizes.sent(2000, 10)  # the newest counts for half
    assert sizes.most_in_chunk == CHUNK_BYTES // 150


@pytest.mark.parametrize(("size", "most"), [(1, MOST_OBJECTS), (10 * CHUNK_BYTES, 1)])
def test_a_chunk_has_an_object_and_no_more_than_the_most(size: int, most: int) -> None:
    sizes = PickledSizes(MEMORY)
    sizes.sent(size, 1)
    assert sizes.most_in_chunk == most


def test_one_object_of_so_many_is_due_however_they_are_cut_into_calls() -> None:
    sizes = PickledSizes(MEMORY)
    due, start = [], 0
    for count in (1, 100, 30, 500, 3, 0, 700):
        due += [start + place for place in sizes.due(count)]
        start += count
    assert due == list(range(PROBE_EVERY - 1, start, PROBE_EVERY))


def test_a_surprise_is_flushed_before_and_then_expected_of_all() -> None:
    sizes = PickledSizes(MEMORY)
    sizes.probed(50, never)
    sizes.probed(SURPRISE * 50, never)  # just none
    sizes.sent(100, 10)
    seen = []
    sizes.probed(10_000, lambda: seen.append(sizes.most_in_chunk))
    assert seen == [MOST_OBJECTS]
    assert sizes.most_in_chunk == CHUNK_BYTES // (10 * 10_000 // 125)  # the probes' mean was 125


def test_a_surprise_before_anything_was_sent_is_expected_of_all() -> None:
    sizes = PickledSizes(MEMORY)
    sizes.probed(30, never)
    seen = []
    sizes.probed(1000, lambda: seen.append(sizes.most_in_chunk))
    assert seen == [1]
    assert sizes.most_in_chunk == CHUNK_BYTES // 1000
