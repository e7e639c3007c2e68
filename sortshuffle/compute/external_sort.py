"""Sorts any number of rows within one task's memory.

    rows --> collect --> all rows fit:        sort once --> output
                    \\--> memory is full:      sort --> spill a run --> collect the next rows
                     \\--> end after a spill:  sort --> spill the last run --> merge all runs --> output

The sort is stable: rows of equal keys keep their input order, within a run because its sort is stable, among
runs because the merge puts runs in the order of their numbers. All runs go into one file (`reading.spill`);
the merge takes several passes if necessary (`reading.multi_pass`).

Memory: held rows are charged, and exceed the budget by at most a row that is larger than a piece. A run has
up to two fifths of the budget: its rows must lie in one batch to be taken in order, so for a moment there are
two copies. A run is sorted as a whole rather than piece by piece, so that a run is as long as memory allows,
and rows that all fit need no merge.

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
from sortshuffle.reading.gate import join_small
from sortshuffle.reading.multi_pass import MultiPassMerge
from sortshuffle.reading.spill import NewFile, SpilledRun, SpillSize, SpillWriter, spill_header
from sortshuffle.writing.clustering import concatenate, own
from sortshuffle.writing.row_slices import size_of, slice_rows

Batches: TypeAlias = Generator[pa.RecordBatch, None, None]

PIECES_IN_BUDGET = 16  # rows are collected in pieces of at most this fraction of the budget
MOST_GATHERED = GIB  # the rows of a run lie in one batch, whose 32-bit string offsets end at 2 GiB
POSITION_BYTES = 8  # bytes of a row's position in the sort order


@dataclass(frozen=True, slots=True)
class ExternalSort:
    """Sorts streams of the payload's schema. ``new_file``: creates files for rows beyond ``memory``."""

    order: RowOrder
    payload: ArrowPayload
    memory: MemoryBudget
    metrics: TaskMetrics
    new_file: NewFile

    def sorted(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """Yield all rows in order, in batches that are worth a call. Yields nothing before it has read all
        rows. Raises `OutOfDiskError` if the disks have no room for the runs. Closing the generator releases
        all memory and files."""
        with _HeldRows(SortMemory.of(self.order, self.payload.schema), self.memory) as held:
            runs = self._spill_runs(batches, held)
            if not runs:
                yield from self._in_order(held, BATCH_BYTES, BATCH_ROWS)
                return
        fetcher = Fetcher(self.payload, self.memory, 1, self.metrics)
        merge = MultiPassMerge(self.order, self.payload, fetcher, self.new_file)
        with closing(merge.merged(runs)) as merged:
            yield from join_small(merged)

    def _spill_runs(self, batches: Iterable[pa.RecordBatch], held: _HeldRows) -> list[SpilledRun]:
        """Write all rows as runs and return these; return none if ``held`` has room for all rows."""
        pieces = _pieces(batches, max(1, self.memory.limit // PIECES_IN_BUDGET))
        first_unheld = next((piece for piece in pieces if not held.add_if_fits(piece)), None)
        if first_unheld is None:
            return []
        size = SpillSize.within(self.memory.limit)
        file = self.new_file(spill_header(self.payload))
        with SpillWriter(file, self.payload, size, self.memory, self.metrics) as spill:
            # an iterator, because `chain` would hold a tuple until its end, and so the piece
            waiting = iter((first_unheld,))
            del first_unheld
            for piece in chain(waiting, pieces):
                if not held.add_if_fits(piece):
                    spill.write_run(self._in_order(held, size.region))
                    held.add(piece)
                del piece
            spill.write_run(self._in_order(held, size.region))
            return spill.finish()

    def _in_order(self, held: _HeldRows, most_bytes: int, most_rows: int | None = None) -> Batches:
        """Sort the held rows, yield them in batches of about the given limits, then discard them."""
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
    """Rows that wait to be sorted, charged to the budget. Leaving the context discards them."""

    def __init__(self, sort_memory: SortMemory, memory: MemoryBudget) -> None:
        self.rows = 0
        self._size = 0
        self._batches: list[pa.RecordBatch] = []
        self._sort_memory = sort_memory
        self._memory = memory

    def add_if_fits(self, batch: pa.RecordBatch) -> bool:
        """Add a batch and return True, if all rows can then be sorted within the budget, or none are held."""
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
        """Charge the memory of sorting for the duration of the context; afterwards charge the sort order."""
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
        """Hand over the rows as one batch. It stays charged here until `discard`."""
        batches, self._batches = self._batches, []
        return concatenate(batches)

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
        """Return the bytes that sorting takes beside the rows: for a copy in one batch, and for the keys."""
        return size + self._sort_memory.sorting(size, rows)


def _pieces(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Cut batches to pieces of at most ``most`` bytes, or one larger row, that pin little other memory."""
    for batch in join_small(batches):
        for piece in slice_rows(batch, most):
            yield own(piece)
