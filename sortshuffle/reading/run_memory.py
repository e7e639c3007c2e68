"""What merging a run takes: the arithmetic by which the merge of many runs keeps within its budget.

It is reckoned from the run's index entries, before anything is read. A run is cut into buffers of about one
size, but for the last, which may be short. Only rows much larger than others of the same run can take more
than is reckoned here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import pyarrow as pa

from sortshuffle.options import KIB, MIB
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.merge import SORT_BYTES_PER_ROW, WINDOW_ROWS
from sortshuffle.storage.files.extents import Extent

MOST_OPEN_FILES = 256  # streamed at a time; many systems allow a process 1024
LEAST_PART = 16 * KIB  # of a streamed extent: a smaller read costs as much
MOST_PART = 4 * MIB  # from there on a larger read is not faster
# Python's and Arrow's objects of a run that is being merged, which no budget counts. Resident memory of
# 20,000 runs of three rows: 7.2 KB with 2 columns, 10.6 KB with 6, 24 KB with 21
RUN_BYTES = 6 * KIB
COLUMN_BYTES = KIB
SKEW = 1.25  # largest buffer of a run / average without the last: rows differ, and compress differently


@dataclass(frozen=True, slots=True)
class RunSize:
    """What an index says of a run: bytes as stored and decompressed, rows, buffers."""

    stored: int = 0
    raw: int = 0
    records: int = 0
    buffers: int = 0

    @staticmethod
    def of(extents: Iterable[Extent]) -> RunSize:
        size = RunSize()
        for each in extents:
            size += RunSize(each.bytes, each.raw_bytes, each.records, each.buffers)
        return size

    def __add__(self, other: RunSize) -> RunSize:
        return RunSize(
            self.stored + other.stored,
            self.raw + other.raw,
            self.records + other.records,
            self.buffers + other.buffers,
        )

    def in_largest_buffer(self, amount: int) -> int:
        """Of something that the run has ``amount`` of, how much its largest buffer is taken to have."""
        return min(amount, ceil(SKEW * amount / max(1, self.buffers - 1)))

    @property
    def least_part(self) -> int:
        """Size of a part into which the largest buffer fits, so that no part is fetched in vain to learn how
        large its first buffer is."""
        return min(self.stored, max(LEAST_PART, self.in_largest_buffer(self.stored)))

    def part(self, spare: int) -> int:
        """Bytes of the parts that it is streamed in, where there are ``spare`` ones beside its demands."""
        return max(self.least_part, min(MOST_PART, self.least_part + spare))


@dataclass(frozen=True, slots=True)
class Demands:
    """What merging a run takes, bytes. ``key_bytes``: a row's rank columns; ``fixed``: of any run."""

    key_bytes: int
    fixed: int

    @staticmethod
    def of(order: RowOrder, schema: pa.Schema) -> Demands:
        key_bytes = 8 * len(order.ranks_of_no_rows(schema))
        return Demands(key_bytes, RUN_BYTES + COLUMN_BYTES * len(schema))

    def held(self, size: RunSize) -> int:
        """A run that is read whole."""
        return size.stored + size.raw + self._merging(size)

    def streamed(self, size: RunSize, ahead: int = 0, parts: int = 1) -> int:
        """A run of which there are ``parts``, the batch decoded of one, and what is left of the one before.
        ``ahead``: bytes that its reader may hold beyond the part, beside what it then keeps of a buffer
        that the part cuts; 0 for a reader that keeps nothing."""
        # Of a run that is one part: that part, and where it is encrypted, what it was decrypted from
        stored = min(max(1, parts - 1) * size.stored, parts * size.least_part)
        if ahead:
            stored += min(size.stored, ahead + size.in_largest_buffer(size.stored))
        rows = min(WINDOW_ROWS // 2, size.in_largest_buffer(size.records))
        left = rows * (_row(size) + self.key_bytes)
        return stored + size.in_largest_buffer(size.raw) + left + self._merging(size)

    def _merging(self, size: RunSize) -> int:
        """The keys of a batch, and the run's share of a step: rows joined, then put in order."""
        batch = size.in_largest_buffer(size.records)
        window = min(size.records, WINDOW_ROWS * 3 // 2, batch * 3 // 2)
        return self.fixed + batch * self.key_bytes + window * (2 * _row(size) + SORT_BYTES_PER_ROW)


def _row(size: RunSize) -> int:
    return -(-size.raw // max(1, size.records))


@dataclass(frozen=True, slots=True)
class Load:
    """Memory (bytes) and open files that runs take while they are merged."""

    memory: int = 0
    files: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.memory + other.memory, self.files + other.files)

    def __sub__(self, other: Load) -> Load:
        return Load(self.memory - other.memory, self.files - other.files)

    def fits(self, memory: int) -> bool:
        return self.memory <= memory and self.files <= MOST_OPEN_FILES
