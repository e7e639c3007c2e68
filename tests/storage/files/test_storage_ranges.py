"""Ranges of subpartitions: one or two extents each region, exact to the byte, and what they add up to."""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from engine import Pair, Region, write_pair
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import UsageError
from sortshuffle.format.buffer import sealed_size
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.index import Index, RegionKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.storage.files.ranges import (
    ExtentCursor,
    RangeExtent,
    RangePart,
    RegionRange,
    SubpartitionRange,
    extents_of_range,
)
from sortshuffle.storage.files.reader import read_index

BUFFER = sealed_size(100)
ONE_EACH = {subpartition: [bytes(100)] for subpartition in range(5)}
BROADCAST = Region({0: [b"to everyone", b"and more"]}, RegionKind.BROADCAST)


def index_of(directory: Path, pair: Pair) -> Index:
    return read_index(write_pair(directory, pair))


def over(first: int, last: int) -> SubpartitionRange:
    return SubpartitionRange(first, last)


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (over(0, 4), [(2, 4, 0), (0, 1, 3)]),
        (over(2, 4), [(2, 4, 0)]),
        (over(0, 1), [(0, 1, 3)]),
        (over(0, 2), [(2, 2, 0), (0, 1, 3)]),
        (over(1, 3), [(2, 3, 0), (1, 1, 4)]),
        (over(3, 3), [(3, 3, 1)]),
    ],
)
def test_a_range_is_one_extent_or_two_where_it_goes_over_the_rotation_point(
    tmp_path: Path, asked: SubpartitionRange, parts: list[tuple[int, int, int]]
) -> None:
    index = index_of(tmp_path, Pair(5, first=2, regions=[Region(ONE_EACH), Region(ONE_EACH)]))
    region_bytes = 5 * BUFFER
    assert list(extents_of_range(index, asked)) == [
        RangeExtent(
            region,
            over(first, last),
            HEADER_BYTES + region * region_bytes + before * BUFFER,
            (last - first + 1) * BUFFER,
        )
        for region in range(2)
        for first, last, before in parts
    ]


def test_without_rotation_every_range_is_one_extent(tmp_path: Path) -> None:
    index = index_of(tmp_path, Pair(5, first=0, regions=[Region(ONE_EACH)]))
    for first in range(5):
        for last in range(first, 5):
            (extent,) = extents_of_range(index, over(first, last))
            assert extent.bytes == (last - first + 1) * BUFFER
            assert extent.offset == HEADER_BYTES + first * BUFFER


@pytest.mark.parametrize("first_written", range(3))
def test_a_broadcast_region_is_read_once_and_says_for_how_many(tmp_path: Path, first_written: int) -> None:
    index = index_of(tmp_path, Pair(3, first=first_written, regions=[BROADCAST]))
    size = sealed_size(11) + sealed_size(8)
    for asked in (over(0, 0), over(1, 2), over(0, 2)):
        assert list(extents_of_range(index, asked)) == [
            RangeExtent(0, asked, HEADER_BYTES, size, repeat=len(asked))
        ]


def test_empty_extents_are_left_out_and_do_not_break_a_range(tmp_path: Path) -> None:
    holes = [Region({1: [bytes(100)], 4: [bytes(100)]}), Region({0: [bytes(100)]}), Region({3: [bytes(100)]})]
    index = index_of(tmp_path, Pair(5, first=2, regions=holes))
    assert [(e.region, str(e.subpartitions), e.bytes) for e in extents_of_range(index, over(0, 4))] == [
        (0, "2..4", BUFFER),
        (0, "0..1", BUFFER),
        (1, "0..1", BUFFER),
        (2, "2..4", BUFFER),
    ]
    assert list(extents_of_range(index, over(2, 2))) == []


def test_a_cursor_keeps_a_few_numbers_of_each_region_however_wide_its_range(tmp_path: Path) -> None:
    width = 2000
    wide = {subpartition: [b"x"] for subpartition in range(width)}
    index = index_of(tmp_path, Pair(width, first=0, regions=[Region(wide)] * 5))
    tracemalloc.start()
    try:
        cursor = ExtentCursor(index, over(0, width - 1))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cursor.left == index.entries["bytes"].sum()
    assert kept < width * 8, "less than a number for each subpartition"


def test_a_file_without_regions_has_no_extents_and_nothing_to_count(tmp_path: Path) -> None:
    index = index_of(tmp_path, Pair(4))
    assert list(extents_of_range(index, over(0, 3))) == []
    assert ExtentCursor(index, over(0, 3)).left == 0


def test_a_range_reads_a_broadcast_region_once(tmp_path: Path) -> None:
    index = index_of(tmp_path, Pair(3, regions=[Region({0: [b"a"], 1: [b"b"]}), BROADCAST]))
    broadcast = sealed_size(11) + sealed_size(8)
    assert ExtentCursor(index, over(0, 2)).left == 2 * sealed_size(1) + broadcast
    assert ExtentCursor(index, over(2, 2)).left == broadcast


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (2, 1), (0, -1)])
def test_what_is_not_a_range_is_refused(first: int, last: int) -> None:
    with pytest.raises(UsageError, match=f"{first}..{last} are not a range"):
        SubpartitionRange(first, last)


def test_subpartitions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    index = index_of(tmp_path, Pair(3))
    for ask in (extents_of_range, ExtentCursor):
        with pytest.raises(UsageError, match=r"subpartitions 1\.\.3 of a result partition that has 3"):
            ask(index, over(1, 3))


def test_an_index_whose_extents_do_not_follow_each_other_is_refused_before_a_byte_is_read(
    tmp_path: Path,
) -> None:
    index = index_of(tmp_path, Pair(3, regions=[Region({0: [b"x"], 1: [b"y"]})]))
    entries = index.entries.copy()
    entries["offset"][0, 0] += 64
    stale = Index(index.header, entries, index.kinds, index.schema, index.writer, index.data_bytes)
    with pytest.raises(Malformed, match="subpartition 1 in region 0 does not follow") as caught:
        extents_of_range(stale, over(0, 2))
    assert caught.value.offset == HEADER_BYTES + 48


def test_a_cursor_goes_through_the_extents_by_any_steps(tmp_path: Path) -> None:
    index = index_of(tmp_path, Pair(5, first=2, regions=[Region(ONE_EACH), Region(ONE_EACH)]))
    cursor = ExtentCursor(index, over(1, 3))
    places = []
    while not cursor.is_at_end:
        step = min(100, cursor.left_in_extent)
        places.append((cursor.offset, step))
        cursor.advance(step)
    assert sum(step for _, step in places) == 6 * BUFFER
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("regions", "numbers"),
    [
        (RegionRange(), [0, 1, 2, 3]),
        (RegionRange(2), [2, 3]),
        (RegionRange(1, 2), [1, 2]),
        (RegionRange(3, 9), [3]),
        (RegionRange(4), []),
        (RegionRange(9, 1), []),
    ],
    ids=str,
)
def test_extents_of_some_regions(tmp_path: Path, regions: RegionRange, numbers: list[int]) -> None:
    index = index_of(
        tmp_path, Pair(5, first=2, regions=[Region(ONE_EACH), BROADCAST, *[Region(ONE_EACH)] * 2])
    )
    everything = list(extents_of_range(index, over(1, 3)))
    assert list(extents_of_range(index, over(1, 3), regions)) == [
        extent for extent in everything if extent.region in numbers
    ]


@pytest.mark.parametrize("skip", [0, 1, BUFFER, 2 * BUFFER + 5, 5 * BUFFER - 1, 5 * BUFFER])
def test_a_cursor_may_begin_anywhere_in_its_part(tmp_path: Path, skip: int) -> None:
    index = index_of(tmp_path, Pair(5, first=2, regions=[Region(ONE_EACH)] * 6))
    part = RangePart(RegionRange(1), skip)
    cursor = ExtentCursor(index, over(4, 4), part)
    offsets = [each.offset for each in extents_of_range(index, over(4, 4), RegionRange(1))]
    whole, within = divmod(skip, BUFFER)
    if skip < 5 * BUFFER:
        assert cursor.offset == offsets[whole] + within
        assert cursor.left_in_extent == BUFFER - within
    else:
        assert cursor.is_at_end


def test_a_cursor_that_would_begin_behind_the_last_byte_is_refused(tmp_path: Path) -> None:
    index = index_of(tmp_path, Pair(5, regions=[Region(ONE_EACH)] * 2))
    with pytest.raises(UsageError, match="which is 1 more than there are"):
        ExtentCursor(index, over(1, 1), RangePart(skip=2 * BUFFER + 1))


def test_a_cursor_refuses_to_leave_its_extent(tmp_path: Path) -> None:
    cursor = ExtentCursor(index_of(tmp_path, Pair(5, regions=[Region(ONE_EACH)])), over(1, 1))
    with pytest.raises(ValueError, match=f"{BUFFER + 1} bytes are more than the {BUFFER} left"):
        cursor.advance(BUFFER + 1)
    cursor.advance(BUFFER)
    with pytest.raises(ValueError, match="nothing behind the last extent"):
        _ = cursor.offset


@st.composite
def pairs_and_ranges(draw: st.DrawFn) -> tuple[Pair, SubpartitionRange]:
    count = draw(st.integers(1, 6))
    payloads = st.lists(st.binary(max_size=150), max_size=3)
    unicast = st.dictionaries(st.integers(0, count - 1), payloads).map(Region)
    broadcast = payloads.map(lambda found: Region({0: found}, RegionKind.BROADCAST))
    regions = draw(st.lists(unicast | broadcast, max_size=4))
    first = draw(st.integers(0, count - 1))
    asked = SubpartitionRange(first, draw(st.integers(first, count - 1)))
    return Pair(count, draw(st.integers(0, count - 1)), regions), asked


@given(pairs_and_ranges())
def test_the_extents_of_a_range_hold_exactly_its_subpartitions_and_ascend(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Pair, SubpartitionRange]
) -> None:
    pair, asked = drawn
    file = write_pair(tmp_path_factory.mktemp("pair"), pair)
    index, data = read_index(file), Path(file.data_path).read_bytes()
    extents = list(extents_of_range(index, asked))
    assert [e.offset for e in extents] == sorted(e.offset for e in extents)
    expected = b""
    for region in range(index.regions):
        broadcast = index.kinds[region] is RegionKind.BROADCAST
        targets = [0] if broadcast else [s for s in pair.order if asked.first <= s <= asked.last]
        for target in targets:
            entry = index.entries[region, target]
            expected += data[int(entry["offset"]) :][: int(entry["bytes"])]
    assert b"".join(data[e.offset : e.offset + e.bytes] for e in extents) == expected
    assert ExtentCursor(index, asked).left == len(expected)


def test_many_threads_look_up_every_entry_of_one_index(tmp_path: Path) -> None:
    count, regions = 8, 20
    payloads = {
        (region, subpartition): bytes([region, subpartition]) * (1 + region + subpartition)
        for region in range(regions)
        for subpartition in range(count)
    }
    pair = Pair(
        count,
        first=3,
        regions=[Region({s: [payloads[region, s]] for s in range(count)}) for region in range(regions)],
    )
    file = write_pair(tmp_path, pair)
    index = read_index(file)
    start = threading.Barrier(count)
    right = np.zeros((count, regions), bool)

    def look_up(subpartition: int) -> None:
        start.wait()
        for extent in extents_of_range(index, over(subpartition, subpartition)):
            payload = payloads[extent.region, subpartition]
            stored = os.pread(descriptor, extent.bytes, extent.offset)
            right[subpartition, extent.region] = stored[8 : 8 + len(payload)] == payload

    descriptor = os.open(file.data_path, os.O_RDONLY)
    threads = [threading.Thread(target=look_up, args=(each,)) for each in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert right.all()
