"""`HeatMap`: the bytes of an exchange's regions for each subpartition, in so few cells that a page can show
them.

Memory is bounded, whatever the number of map outputs: rows are joined by twos when there are too many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sortshuffle.storage.inspection.contents import Int64s

Float64s = npt.NDArray[np.float64]
MOST_COLUMNS = 256  # cells side by side: one takes at least 2 pixels of a page's width
MOST_ROWS = 128  # cells above each other, at most twice as many until they are joined


@dataclass(slots=True)
class HeatMap:
    """Adds up regions, in the order in which they are added.

    ``cells``: bytes, shape (rows, columns). A row stands for ``regions_per_row`` regions, the last one for
    fewer. Column ``c`` stands for the subpartitions from ``first[c]`` up to that of the next column.
    """

    subpartitions: int
    regions: int = 0
    regions_per_row: int = 1
    first: Int64s = field(init=False)
    _rows: list[Int64s] = field(default_factory=list)
    _in_last: int = 0  # regions in the last row

    def __post_init__(self) -> None:
        columns = min(self.subpartitions, MOST_COLUMNS)
        self.first = np.arange(columns, dtype=np.int64) * self.subpartitions // columns

    @property
    def cells(self) -> Int64s:
        return np.array(self._rows, np.int64).reshape(-1, len(self.first))

    @property
    def means(self) -> Float64s:
        """The bytes of one region for one subpartition, the mean of each cell."""
        columns = np.diff(np.append(self.first, self.subpartitions))
        regions = np.full(len(self._rows), self.regions_per_row)
        if len(regions):
            regions[-1] = self._in_last
        return np.asarray(self.cells / (regions[:, np.newaxis] * columns), np.float64)

    @property
    def subpartitions_per_column(self) -> int:
        """So many, or one less."""
        return -(-self.subpartitions // len(self.first))

    def add(self, sizes: Int64s) -> None:
        """Add the regions of one map output. ``sizes``: bytes, shape (regions, subpartitions)."""
        for row in np.add.reduceat(sizes, self.first, axis=1) if len(sizes) else ():
            self._add_region(np.asarray(row, np.int64))

    def _add_region(self, row: Int64s) -> None:
        self.regions += 1
        if self._rows and self._in_last < self.regions_per_row:
            self._rows[-1] = self._rows[-1] + row
            self._in_last += 1
            return
        if len(self._rows) == 2 * MOST_ROWS:
            self._join_rows()
        self._rows.append(row)
        self._in_last = 1

    def _join_rows(self) -> None:
        """Join neighbouring rows, all of which are full."""
        self._rows = [even + odd for even, odd in zip(self._rows[::2], self._rows[1::2], strict=True)]
        self.regions_per_row *= 2
