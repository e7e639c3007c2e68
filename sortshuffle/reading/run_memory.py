"""Estimates the memory that a run takes in a merge, so that the merge of many runs keeps within its budget.

The estimate uses the run's index entries, before any data is read. It assumes that the buffers of a run have
about the same size, and that only the last may be smaller. A run can take more than the estimate only if some
of its rows are much larger than the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import pyarrow as pa

from sortshuffle.options import KIB, MIB
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.fetcher import LEAST_PART
from sortshuffle.reading.merge import WINDOW_ROWS, step_bytes
from sortshuffle.storage.files.extents import Extent

MOST_OPEN_FILES = 256  # files streamed at a time; many systems allow a process 1024
MOST_PART = 4 * MIB  # larger reads are not faster
# Python's and Arrow's objects of a run in a merge, which no budget counts. Resident memory of each of 20,000
# runs of three rows: 7.2 KB with 2 columns, 10.6 KB with 6, 24 KB with 21
RUN_BYTES = 6 * KIB
COLUMN_BYTES = KIB
SKEW = 1.25  # largest buffer of a run / average without the last: rows differ in size, even after compression


@dataclass(frozen=True, slots=True)
class RunSize:
    """The size of a run, from its index: stored and decompressed bytes, rows, buffers."""

    stored: int = 0
    raw: int = 0
    records: int = 0
    buffers: int = 0

    @staticmethod
    def of(extents: Iterable[Extent]) -> RunSize:
        size = RunSize()
        for extent in extents:
            size += RunSize(extent.bytes, extent.raw_bytes, extent.records, extent.buffers)
        return size

    def __add__(self, other: RunSize) -> RunSize:
        return RunSize(
            self.stored + other.stored,
            self.raw + other.raw,
            self.records + other.records,
            self.buffers + other.buffers,
        )

    def in_largest_buffer(self, amount: int) -> int:
        """Estimate the largest buffer's share of ``amount``, a total of the whole run."""
        return min(amount, ceil(SKEW * amount / max(1, self.buffers - 1)))

    @property
    def least_part(self) -> int:
        """The smallest useful part, in bytes: it holds the largest buffer. A smaller part may not hold its
        first buffer, and must then be fetched again."""
        return min(self.stored, max(LEAST_PART, self.in_largest_buffer(self.stored)))

    def part(self, spare: int) -> int:
        """Return the size of parts for streaming the run, with ``spare`` bytes beyond its demands."""
        return max(self.least_part, min(MOST_PART, self.least_part + spare))


@dataclass(frozen=True, slots=True)
class Demands:
    """The bytes that runs of one schema take in a merge. ``key_columns``: rank columns. ``fixed``: for any
    run."""

    key_columns: int
    fixed: int

    @staticmethod
    def of(order: RowOrder, schema: pa.Schema) -> Demands:
        columns = len(order.ranks_of_no_rows(schema))
        return Demands(columns, RUN_BYTES + COLUMN_BYTES * len(schema))

    @property
    def key_bytes(self) -> int:
        """Bytes of the rank columns of a row."""
        return 8 * self.key_columns

    def held(self, size: RunSize) -> int:
        """Return the bytes that a held run takes."""
        return size.stored + size.raw + self._merging(size)

    def streamed(self, size: RunSize, ahead: int = 0, parts: int = 1) -> int:
        """Return the bytes that a streamed run takes: ``parts`` of its parts, the batch being decoded, and
        the rest of the previous batch. ``ahead``: bytes that the run's reader may hold beyond the part; if
        not 0, the reader also keeps a buffer that was cut by the end of a part."""
        # The stored parts. A run of one part takes that part, and its encrypted copy if there is one
        stored = min(max(1, parts - 1) * size.stored, parts * size.least_part)
        if ahead:
            stored += min(size.stored, ahead + size.in_largest_buffer(size.stored))
        # The rest of the previous batch is less than half a window
        rows = min(WINDOW_ROWS // 2, size.in_largest_buffer(size.records))
        left = rows * (_row(size) + self.key_bytes)
        return stored + size.in_largest_buffer(size.raw) + left + self._merging(size)

    def _merging(self, size: RunSize) -> int:
        """Return the bytes of a batch's keys and of the run's share of a step: rows joined, sorted, and taken
        in order (or, while they are sorted, a copy of the texts that are keys)."""
        batch = size.in_largest_buffer(size.records)
        window = min(size.records, WINDOW_ROWS * 3 // 2, batch * 3 // 2)
        return self.fixed + batch * self.key_bytes + window * (2 * _row(size) + step_bytes(self.key_columns))


def _row(size: RunSize) -> int:
    return -(-size.raw // max(1, size.records))


@dataclass(frozen=True, slots=True)
class Load:
    """The memory (bytes) and open files of runs in a merge."""

    memory: int = 0
    files: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.memory + other.memory, self.files + other.files)

    def __sub__(self, other: Load) -> Load:
        return Load(self.memory - other.memory, self.files - other.files)

    def fits(self, memory: int) -> bool:
        return self.memory <= memory and self.files <= MOST_OPEN_FILES
