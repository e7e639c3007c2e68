"""Ranges of subpartitions: where their bytes lie in the data file, and how many there are.

Pure arithmetic on an `Index`; no file is touched. Used by the shuffle service and the shuffle manager's
engine. Their consumers ask for one subpartition or, if an adaptive plan has joined small ones, for a range.

Rules
* The subpartitions ``a..b`` of a region are one contiguous extent of the file, or two if the range crosses
  the rotation point (`docs/format.md`, "Index entry"). The two come in file order, so the extents of a range
  ascend through the whole file.
* A broadcast region has one extent for all subpartitions. It is read once, together with the number of
  subpartitions that it stands for.
* Empty extents are left out.
* A consumer that stopped and continues later asks for a part of a range (`RangePart`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sortshuffle.errors import UsageError
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.index import ENTRY_BYTES, Index, RegionKind
from sortshuffle.format.malformed import Malformed

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SubpartitionRange:
    """The subpartitions ``first..last``, both included, that a consumer asks for."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise UsageError(f"subpartitions {self.first}..{self.last} are not a range")

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}..{self.last}" if self.last > self.first else str(self.first)

    def checked(self, index: Index) -> SubpartitionRange:
        """Return the range itself. Raises `UsageError` if the result partition lacks part of it."""
        count = index.header.subpartitions
        if self.last >= count:
            raise UsageError(f"subpartitions {self} of a result partition that has {count}")
        return self

    def in_write_order(self, first_written: int) -> tuple[SubpartitionRange, ...]:
        """Return the one or two parts of the range, in file order, that are contiguous in a region beginning
        with subpartition ``first_written``."""
        if self.first < first_written <= self.last:
            return SubpartitionRange(first_written, self.last), SubpartitionRange(
                self.first, first_written - 1
            )
        return (self,)


@dataclass(frozen=True, slots=True)
class RegionRange:
    """``count`` regions from ``first`` on. A count of 0 means all of them."""

    first: int = 0
    count: int = 0

    def of(self, regions: int) -> range:
        """Return the numbers of these regions in a file with ``regions`` regions."""
        end = regions if not self.count else min(regions, self.first + self.count)
        return range(min(self.first, end), end)


ALL_REGIONS = RegionRange()


@dataclass(frozen=True, slots=True)
class RangePart:
    """A part of a range: the bytes of its extents in these regions, without the first ``skip`` bytes."""

    regions: RegionRange = ALL_REGIONS
    skip: int = 0


EVERYTHING = RangePart()


@dataclass(frozen=True, slots=True)
class RangeExtent:
    """Contiguous bytes of the data file: the extents of these subpartitions in one region.

    ``repeat``: how many of the requested subpartitions share these bytes; above 1 only in a broadcast region.
    """

    region: int
    subpartitions: SubpartitionRange
    offset: int
    bytes: int
    repeat: int = 1


def extents_of_range(
    index: Index, subpartitions: SubpartitionRange, regions: RegionRange = ALL_REGIONS
) -> Iterator[RangeExtent]:
    """Yield the non-empty extents of the range in these regions, ascending in the file.

    They are made one at a time: a service has thousands of consumers, each with an extent per region. Raises
    `UsageError` for subpartitions that do not exist; `Malformed`, with the place in the index, if extents are
    not adjacent.
    """
    # 1. split the range at the rotation point; 2. add up each part in every region; 3. list region by region
    parts = subpartitions.checked(index).in_write_order(index.header.first_subpartition)
    broadcast = _is_broadcast(index)
    placed = [_contiguous(index, part, ~broadcast) for part in parts]
    return _non_empty(regions.of(index.regions), subpartitions, parts, placed, broadcast)


class ExtentCursor:
    """One consumer's progress through its extents: ``position`` in the current one. ``left``: unread bytes of
    all extents. At the end there is no current extent, and its properties raise ValueError.

    Raises as `extents_of_range` does, and `UsageError` if the part begins after the last byte.
    """

    __slots__ = ("_extent", "_extents", "left", "position")

    def __init__(self, index: Index, subpartitions: SubpartitionRange, part: RangePart = EVERYTHING) -> None:
        self._extents = extents_of_range(index, subpartitions, part.regions)
        self._extent = next(self._extents, None)
        self.left = _bytes_of(index, subpartitions, part.regions)
        self.position = 0
        self._skip(part.skip)

    @property
    def is_at_end(self) -> bool:
        return self._extent is None

    @property
    def current(self) -> RangeExtent:
        """The extent that the next byte belongs to."""
        if self._extent is None:
            raise ValueError("there is nothing behind the last extent")
        return self._extent

    @property
    def offset(self) -> int:
        """The offset of the next byte in the data file."""
        return self.current.offset + self.position

    @property
    def left_in_extent(self) -> int:
        """Unread bytes of the current extent."""
        return self.current.bytes - self.position

    def advance(self, size: int) -> None:
        """Move forward by ``size`` bytes of the current extent, and to the next extent at its end."""
        if size > self.left_in_extent:
            raise ValueError(f"{size} bytes are more than the {self.left_in_extent} left of the extent")
        self.position += size
        self.left -= size
        if not self.left_in_extent:
            self._extent = next(self._extents, None)
            self.position = 0

    def _skip(self, size: int) -> None:
        left = size
        while left and self._extent is not None:
            step = min(left, self.left_in_extent)
            self.advance(step)
            left -= step
        if left:
            raise UsageError(f"{size} bytes are to be skipped, which is {left} more than there are")


def _bytes_of(index: Index, subpartitions: SubpartitionRange, regions: RegionRange) -> int:
    """Return the bytes to read from the file for the range; a broadcast region counts once."""
    rows = regions.of(index.regions)
    sizes = index.entries["bytes"][rows.start : rows.stop, subpartitions.first : subpartitions.last + 1]
    broadcast = _is_broadcast(index)[rows.start : rows.stop]
    return int(sizes[~broadcast].sum() + sizes[broadcast, :1].sum())


def _is_broadcast(index: Index) -> npt.NDArray[np.bool_]:
    return np.array([kind is RegionKind.BROADCAST for kind in index.kinds], np.bool_)


def _contiguous(
    index: Index, part: SubpartitionRange, unicast: npt.NDArray[np.bool_]
) -> tuple[Counts, Counts]:
    """Return offset and bytes of ``part`` in each region; in a broadcast region those of its one extent."""
    entries = index.entries[:, part.first : part.last + 1]
    starts = entries["offset"].astype(np.int64)
    sizes = entries["bytes"].astype(np.int64)
    follows = starts[:, 1:] == starts[:, :-1] + sizes[:, :-1]
    broken = np.argwhere(~follows & unicast[:, None])
    if len(broken):
        region, subpartition = int(broken[0, 0]), part.first + int(broken[0, 1]) + 1
        entry = HEADER_BYTES + ENTRY_BYTES * (region * index.header.subpartitions + subpartition)
        raise Malformed(
            f"the extent of subpartition {subpartition} in region {region} does not follow the one before it",
            entry,
        )
    # copied: a view would keep the offsets of all subpartitions, up to MBs for each reader
    return starts[:, 0].copy(), np.where(unicast, sizes.sum(axis=1), sizes[:, 0])


def _non_empty(
    regions: range,
    asked: SubpartitionRange,
    parts: tuple[SubpartitionRange, ...],
    placed: list[tuple[Counts, Counts]],
    broadcast: npt.NDArray[np.bool_],
) -> Iterator[RangeExtent]:
    for region in regions:
        if broadcast[region]:
            (starts, sizes), *_ = placed
            if sizes[region]:
                yield RangeExtent(region, asked, int(starts[region]), int(sizes[region]), len(asked))
            continue
        for part, (starts, sizes) in zip(parts, placed, strict=True):
            if sizes[region]:
                yield RangeExtent(region, part, int(starts[region]), int(sizes[region]))
