"""Merging sorted runs into one sorted stream, holding one batch of each run.

Rows are ordered by (key, number of the run, position in the run), so the result is that of a stable sort of
all runs one after the other, however they are cut into batches.

A run shows a *window* of its batch. Step: the bound is the smallest (last key of the window, number) of the
runs that can go on. What is at or below it in any run can be followed only by rows that are above it, so it
is taken from every run, sorted together and emitted; then every run that was touched and has less than half
a window left moves on. Runs wait in a heap by their first key, so that a step costs nothing for runs that
lie above its bound: a thousand runs of disjoint key ranges are passed through one after the other. (Idea:
the batch-wise form of the k-way merge, as in the design's section 4.)
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeAlias

import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.ordering import Int64s, KeyRow, Ranks, RowOrder, concat_ranks

OUTPUT_ROWS = 65_536  # rows taken into order at a time: the copy stays in cache
# Least and most rows of a window. Larger ones leave the cache; in each step a run costs about 10 us, which
# begins to show below 2,000 rows
WINDOW_ROWS = (1024, 8192)
SORT_BYTES_PER_ROW = 96  # what `Ranks.sort_indices` allocates besides its result; tracemalloc: 41 to 96
# bytes that a row of a window takes of the budget: half of it is left to what the runs have read, and half
# to rows and keys of windows, their concatenation, the sorting and the rows in order
_BUDGET_PER_ROW = 512

Bound: TypeAlias = tuple[KeyRow, int]
"""A key and the number of a run: this key's rows are taken from runs up to that number only."""


class SortedRun(Protocol):
    """Batches sorted by key, such as a generator gives them."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class _Run:
    """The window of one run: some of its rows and their keys, from ``position`` on; charged to the budget."""

    __slots__ = (
        "_budget",
        "_charged",
        "_metrics",
        "_order",
        "_source",
        "_windows",
        "batch",
        "exhausted",
        "number",
        "position",
        "ranks",
    )

    def __init__(
        self,
        number: int,
        source: SortedRun,
        window_rows: int,
        order: RowOrder,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.number = number
        self._source = source
        self._windows = _windows(source, window_rows, budget)
        self._order = order
        self._budget = budget
        self._metrics = metrics
        self._charged = 0
        self.batch: pa.RecordBatch | None = None
        self.ranks = Ranks((), 0)
        self.position = 0
        self.exhausted = False

    @property
    def left(self) -> int:
        return self.ranks.rows - self.position

    def refill(self) -> None:
        """Move on when less than half of the window is left."""
        if self.exhausted or 2 * self.left > self.ranks.rows > 0:
            return
        read = next(self._windows, None)
        if read is None:
            self.exhausted = True
            return
        with self._metrics.step("merge"):
            ranks = self._order.ranks(read)
            if self.left:
                assert self.batch is not None
                read = pa.concat_batches([self.batch.slice(self.position), read])
                ranks = concat_ranks([self.ranks.slice(self.position, self.ranks.rows), ranks])
        self._hold(read, ranks)

    def first(self) -> Bound:
        return self.ranks.key(self.position), self.number

    def last(self) -> Bound:
        return self.ranks.key(self.ranks.rows - 1), self.number

    def take_up_to(self, bound: Bound | None) -> tuple[pa.RecordBatch, Ranks]:
        """The rows at or below the bound (all, if there is none), which are then no longer the run's."""
        start, stop = self.position, self.ranks.rows
        if bound is not None:
            stop = self.ranks.count_up_to(bound[0], inclusive=self.number <= bound[1])
        assert self.batch is not None
        self.position = stop
        return self.batch.slice(start, stop - start), self.ranks.slice(start, stop)

    def close(self) -> None:
        """Let go of everything, the source included."""
        self._budget.release(self._charged)
        self._charged = 0
        self.batch = None
        self._windows.close()
        self._source.close()

    def _hold(self, batch: pa.RecordBatch, ranks: Ranks) -> None:
        size = batch.nbytes + ranks.nbytes
        self._budget.charge(size)
        self._budget.release(self._charged)
        self._charged = size
        self.batch, self.ranks, self.position = batch, ranks, 0


def merge_runs(
    sources: Sequence[SortedRun], order: RowOrder, budget: MemoryBudget, metrics: TaskMetrics
) -> Generator[pa.RecordBatch, None, None]:
    """One sorted stream of all rows of these sorted runs, holding a part of each.

    A source is closed as soon as it has ended, and all are when this iterator ends or is closed. What is held
    is charged to ``budget``, and released when it is handed on.
    """
    least, most = WINDOW_ROWS
    rows = min(most, max(least, budget.limit // _BUDGET_PER_ROW // max(1, len(sources))))
    runs = [_Run(number, source, rows, order, budget, metrics) for number, source in enumerate(sources)]
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        waiting: list[tuple[Bound, _Run]] = []
        _move_on(runs, waiting)
        while waiting:
            with metrics.step("merge"):
                touched, bound = _below_common_bound(waiting)
                parts = [run.take_up_to(bound) for run in touched]
            yield from _in_order(parts, budget, metrics)
            del parts
            _move_on(touched, waiting)


def _windows(source: SortedRun, most: int, budget: MemoryBudget) -> Generator[pa.RecordBatch, None, None]:
    """The batches of a run in slices of at most ``most`` rows; a batch is charged until its last slice is
    done with."""
    for batch in source:
        size = batch.nbytes
        budget.charge(size)
        try:
            pieces = -(-batch.num_rows // most)
            for piece in range(pieces):
                start, stop = (at * batch.num_rows // pieces for at in (piece, piece + 1))
                yield batch.slice(start, stop - start)
        finally:
            budget.release(size)


def _move_on(runs: Sequence[_Run], waiting: list[tuple[Bound, _Run]]) -> None:
    """Let these runs read, and wait again if they have rows."""
    for run in runs:
        run.refill()
        if run.left:
            heapq.heappush(waiting, (run.first(), run))
        else:
            run.close()


def _below_common_bound(waiting: list[tuple[Bound, _Run]]) -> tuple[list[_Run], Bound | None]:
    """Take out of the heap the runs that have rows at or below the bound, in the order of their numbers.

    A run that begins above the bound also ends above it, so the runs left in the heap could not lower it.
    """
    bound: Bound | None = None
    runs: list[_Run] = []
    while waiting and (bound is None or waiting[0][0] <= bound):
        _, run = heapq.heappop(waiting)
        runs.append(run)
        if not run.exhausted:
            bound = run.last() if bound is None else min(bound, run.last())
    return sorted(runs, key=lambda run: run.number), bound


def _in_order(
    parts: Sequence[tuple[pa.RecordBatch, Ranks]], budget: MemoryBudget, metrics: TaskMetrics
) -> Iterator[pa.RecordBatch]:
    if len(parts) == 1:
        yield parts[0][0]
        return
    with metrics.step("merge"):
        rows = pa.concat_batches([batch for batch, _ in parts])
        indices = concat_ranks([ranks for _, ranks in parts]).sort_indices()
    size = rows.nbytes + SORT_BYTES_PER_ROW * rows.num_rows
    budget.charge(size)
    try:
        yield from _taken(rows, indices, metrics)
    finally:
        budget.release(size)


def _taken(rows: pa.RecordBatch, indices: Int64s, metrics: TaskMetrics) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(indices), OUTPUT_ROWS):
        with metrics.step("merge"):
            ordered = rows.take(pa.array(indices[start : start + OUTPUT_ROWS]))
        yield ordered
