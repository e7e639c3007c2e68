"""Places in the segments of one run: no more segments than needed, slices that share them, all given back."""

from __future__ import annotations

import pytest
from consumers import read_pool
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.reading.segment_batch import SegmentBatch


@pytest.mark.parametrize(
    ("used", "size", "place"),
    [
        (0, 100, 0),
        (0, 250, 0),
        (60, 40, 60),
        (60, 41, 100),
        (60, 140, 60),
        (60, 141, 100),
        (99, 1, 99),
        (100, 30, 100),
    ],
)
def test_a_place_begins_in_a_new_segment_only_where_it_would_take_one_more(
    used: int, size: int, place: int
) -> None:
    pool = read_pool(4, 100)
    batch = SegmentBatch(pool.request(0), pool)
    batch.used = used
    assert batch.place_for(size) == place
    batch.release()


@given(st.integers(1, 50), st.lists(st.integers(1, 120), max_size=12))
def test_places_never_overlap_and_lie_in_as_few_segments_as_their_sizes_need(
    segment: int, sizes: list[int]
) -> None:
    pool = read_pool(60, segment)
    batch = SegmentBatch(pool.request(0), pool)
    slices = []
    for number, size in enumerate(sizes):
        start = batch.place_for(size)
        assert start >= batch.used
        if start + size > batch.end:
            break
        batch.used = start + size
        for view in batch.views(start, size):
            view[:] = bytes([number]) * len(view)
        slices.append(batch.slices(start, size))
        assert len(slices[-1]) == -(-size // segment)
    batch.release()
    assert pool.available <= pool.total_segments - len({id(s.segment) for each in slices for s in each})
    for number, (size, each) in enumerate(zip(sizes, slices, strict=False)):
        assert b"".join(bytes(piece.view) for piece in each) == bytes([number]) * size
        for piece in each:
            piece.recycle()
    assert pool.available == pool.total_segments
