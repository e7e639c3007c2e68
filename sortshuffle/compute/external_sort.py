"""Sorting any number of rows within one task's memory.

    rows --collected--> they all fit   --------------------------> sorted once, and taken in order
                   \\--> they do not: sorted, put aside as a run --> all runs merged

The sort is stable: rows of equal keys stay as they came, within a run because it is sorted so, among runs
because they are merged in the order of their numbers. All runs go into one file (`reading.spill`); the merge
takes several passes if need be (`reading.multi_pass`).

Memory: what is held is charged, and is over the budget by no more than a row that is larger than a piece. A
run has up to two fifths of the budget, because its rows must lie in one batch to be taken in order, and so
are there twice for a moment. They are sorted at once rather than each piece as it comes, so that a run is as
long as memory allows, and what fits is not merged at all.

Used by the step that sorts a stream: `spark.steps.local_sort`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import GIB
from sortshuffle.payload.arrow import BATCH_BYTES, BATCH_ROWS, ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.payload.sort_memory import SortMemory
from sortshuffle.reading.fetcher import Fetcher
from sortshuffle.reading.gate import joined
from sortshuffle.reading.multi_pass import MultiPassMerge
from sortshuffle.reading.spill import NewFile, SpilledRun, SpillSize, SpillWriter, spill_header
from sortshuffle.writing.clustering import joined as one_batch
from sortshuffle.writing.clustering import owned
from sortshuffle.writing.row_slices import size_of, sliced

Batches: TypeAlias = Generator[pa.RecordBatch, None, None]

PIECES_IN_BUDGET = 16  # rows are collected in pieces that are at most such a part of the budget
MOST_GATHERED = GIB  # rows of a run lie in one batch, whose 32-bit offsets of strings end at 2 GiB
POSITION_BYTES = 8  # of a row, in the order that was found


@dataclass(frozen=True, slots=True)
class ExternalSort:
    """Sorts streams of the payload's schema. ``new_file``: makes the files for what does not fit into
    ``memory``."""

    order: RowOrder
    payload: ArrowPayload
    memory: MemoryBudget
    metrics: TaskMetrics
    new_file: NewFile

    def sorted(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """All rows in order, in batches that are worth a call.

        Nothing is given before all rows have come. Raises `OutOfDiskError` where there is no room for what
        does not fit into memory. Closing the iterator lets go of everything.
        """
        with _HeldRows(SortMemory.of(self.order, self.payload.schema), self.memory) as held:
            runs = self._put_aside(batches, held)
            if not runs:
                yield from self._in_order(held, BATCH_BYTES, BATCH_ROWS)
                return
        fetcher = Fetcher(self.payload, self.memory, 1, self.metrics)
        merge = MultiPassMerge(self.order, self.payload, fetcher, self.new_file)
        with closing(merge.merged(runs)) as merged:
            yield from joined(merged)

    def _put_aside(self, batches: Iterable[pa.RecordBatch], held: _HeldRows) -> list[SpilledRun]:
        """All rows as runs; none, if all of them are held."""
        pieces = _pieces(batches, max(1, self.memory.limit // PIECES_IN_BUDGET))
        too_many = next((piece for piece in pieces if not held.takes(piece)), None)
        if too_many is None:
            return []
        size = SpillSize.within(self.memory.limit)
        file = self.new_file(spill_header(self.payload))
        with SpillWriter(file, self.payload, size, self.memory, self.metrics) as spill:
            for piece in chain((too_many,), pieces):
                if not held.takes(piece):
                    spill.write_run(self._in_order(held, size.region))
                    held.add(piece)
                del piece
            spill.write_run(self._in_order(held, size.region))
            return spill.finish()

    def _in_order(self, held: _HeldRows, most_bytes: int, most_rows: int | None = None) -> Batches:
        """The rows held, which then are no more, in batches of about so many bytes and rows."""
        count = held.rows
        if not count:
            return
        with held.sorting():
            with self.metrics.step("gather"):
                rows = held.gathered()
            with self.metrics.step("sort"):
                indices = self.order.ranks(rows).sort_indices()
        step = max(1, min(most_rows or count, most_bytes * count // max(1, rows.nbytes)))
        for start in range(0, count, step):
            with self.metrics.step("take"):
                taken = rows.take(pa.array(indices[start : start + step]))
            yield taken
        held.discard()


class _HeldRows:
    """Rows that wait to be sorted, charged. Leaving it as a context lets go of them."""

    def __init__(self, sort_memory: SortMemory, memory: MemoryBudget) -> None:
        self.rows = 0
        self._size = 0
        self._batches: list[pa.RecordBatch] = []
        self._sort_memory = sort_memory
        self._memory = memory

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Add these rows if all of them can then be sorted within the budget, or if there are no others."""
        size, rows = self._size + size_of(batch), self.rows + batch.num_rows
        sorting = self._sorting(size, rows)
        if self.rows and (size > MOST_GATHERED or self._memory.would_exceed(size - self._size + sorting)):
            return False
        self.add(batch)
        return True

    def add(self, batch: pa.RecordBatch) -> None:
        size = size_of(batch)
        self._memory.charge(size)
        self._size += size
        self.rows += batch.num_rows
        self._batches.append(batch)

    @contextmanager
    def sorting(self) -> Iterator[None]:
        """While they are sorted. Their order is charged with them from then on."""
        working = self._sorting(self._size, self.rows)
        self._memory.charge(working)
        try:
            yield
        finally:
            self._memory.release(working)
        positions = POSITION_BYTES * self.rows
        self._memory.charge(positions)
        self._size += positions

    def gathered(self) -> pa.RecordBatch:
        """All of them in one batch, which is the caller's; it stays charged here until `discard`."""
        batches, self._batches = self._batches, []
        return one_batch(batches)

    def discard(self) -> None:
        self._batches.clear()
        self._memory.release(self._size)
        self._size = self.rows = 0

    def __enter__(self) -> _HeldRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _sorting(self, size: int, rows: int) -> int:
        """What sorting rows of this size takes beside them: a copy in one batch, and their keys."""
        return size + self._sort_memory.sorting(size, rows)


def _pieces(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most ``most`` bytes, or a single row, that keep nothing larger alive."""
    for batch in joined(batches):
        for piece in sliced(batch, most):
            yield owned(piece)
