"""How much readers may hold of a pool, and what counts as out: no file is read for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from consumers import read_pool

from sortshuffle.reading.read_shares import BATCHES_AHEAD, TAIL_SEGMENTS, ReadShares
from sortshuffle.reading.sweep import ReadLimits

SEGMENT = 64
BATCH = 4
ALLOWANCE = BATCHES_AHEAD * BATCH


@contextmanager
def with_out(total: int, out: int) -> Iterator[ReadShares]:
    """Shares in a pool of so many segments, of which so many are out."""
    pool = read_pool(total, SEGMENT, batch=BATCH)
    shares, held = ReadShares(pool), []
    while len(held) < out:
        held += pool.request()
    shares.lend(held)
    while len(held) > out:
        shares.recycle(held.pop())
    yield shares
    for segment in held:
        shares.recycle(segment)


@pytest.mark.parametrize(("out", "share"), [(0, 8), (4, 6), (8, 4), (12, 2), (14, 1), (16, 1), (20, 1)])
def test_a_reader_may_hold_half_of_what_is_left_and_a_segment_at_least(out: int, share: int) -> None:
    with with_out(23, out) as shares:
        limits = shares.limits(readers=8)
    assert limits == ReadLimits(share, crowded=out + BATCH > ALLOWANCE, tail=limits.tail)


def test_where_the_pool_has_plenty_it_is_half_a_batch_at_least_and_a_tail() -> None:
    with with_out(200, ALLOWANCE) as shares:
        limits = shares.limits(readers=8)
    assert limits == ReadLimits(share=BATCH // 2, crowded=True, tail=TAIL_SEGMENTS)


def test_a_segment_for_each_reader_is_set_aside_before_there_is_plenty() -> None:
    with with_out(24, 0) as shares:
        assert [shares.limits(readers=each).tail for each in (8, 9)] == [TAIL_SEGMENTS, 0]


def test_the_allowance_is_the_fair_part_of_the_pool_where_that_is_less() -> None:
    pool = read_pool(24, SEGMENT, batch=BATCH)
    shares = ReadShares(pool)
    for requester in range(3):
        pool.register(requester)
    assert shares.limits(readers=1) == ReadLimits(share=8 // 2, crowded=False, tail=TAIL_SEGMENTS)
    held = pool.request()
    shares.lend(held)
    assert not shares.limits(readers=1).crowded  # a batch more is just what is left
    for requester in range(3, 6):
        pool.register(requester)
    assert shares.limits(readers=1) == ReadLimits(share=2, crowded=True, tail=TAIL_SEGMENTS)
    for segment in held:
        shares.recycle(segment)


def test_a_segment_counts_as_out_from_the_end_of_its_run_until_it_is_recycled() -> None:
    pool = read_pool(8, SEGMENT, batch=BATCH)
    shares = ReadShares(pool)
    segments = pool.request()
    shares.recycle(segments.pop())  # in the run
    assert (shares.out, pool.available) == (0, 5)
    shares.lend(segments)
    assert shares.out == 3
    for segment in segments:
        shares.recycle(segment)
    assert (shares.out, pool.available) == (0, 8)
