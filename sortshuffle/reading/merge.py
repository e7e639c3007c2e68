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
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.ordering import KeyRow, Ranks, RowOrder, concat_ranks

OUTPUT_ROWS = 65_536  # rows taken into order at a time: the copy stays in cache
# What a step takes grows with the windows, what the runs cost in all steps shrinks: merging 100 runs of two
# numbers a row took 74 MB and 91 ns a row with 2,048, 144 MB and 61 ns with 8,192; 16 runs 39 and 37 ns
WINDOW_ROWS = 2048
SORT_BYTES_PER_ROW = 96  # what `Ranks.sort_indices` allocates besides its result; tracemalloc: 41 to 96

Bound: TypeAlias = tuple[KeyRow, int]
"""A key and the number of a run: this key's rows are taken from runs up to that number only."""


class SortedRun(Protocol):
    """Batches sorted by key, such as a generator gives them."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class _RunPiece:
    """A batch of a run with its keys, taken up to ``position``."""

    __slots__ = ("batch", "position", "ranks", "size")

    def __init__(self, batch: pa.RecordBatch, ranks: Ranks) -> None:
        self.batch = batch
        self.ranks = ranks
        self.position = 0
        self.size = batch.nbytes + ranks.nbytes

    @property
    def left(self) -> int:
        return self.ranks.rows - self.position

    def copied(self) -> _RunPiece:
        """What is left, in memory of its own."""
        rows = np.arange(self.position, self.ranks.rows)
        return _RunPiece(self.batch.take(pa.array(rows)), self.ranks.take(rows))

    def take(self, stop: int) -> tuple[pa.RecordBatch, Ranks]:
        start, self.position = self.position, stop
        return self.batch.slice(start, stop - start), self.ranks.slice(start, stop)


class _Run:
    """What is in memory of one run, charged to the budget, and the window on it: all rows up to ``_shown`` in
    the last piece."""

    __slots__ = (
        "_batches",
        "_budget",
        "_metrics",
        "_order",
        "_pieces",
        "_shown",
        "_source",
        "exhausted",
        "number",
    )

    def __init__(
        self,
        number: int,
        source: SortedRun,
        order: RowOrder,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.number = number
        self._source = source
        self._batches = iter(source)
        self._order = order
        self._budget = budget
        self._metrics = metrics
        self._pieces: deque[_RunPiece] = deque()
        self._shown = 0
        self.exhausted = False

    @property
    def rows(self) -> int:
        """Rows in the window."""
        if not self._pieces:
            return 0
        hidden = self._pieces[-1].ranks.rows - self._shown
        return sum(piece.left for piece in self._pieces) - hidden

    def first(self) -> Bound:
        return self._pieces[0].ranks.key(self._pieces[0].position), self.number

    def last(self) -> Bound:
        return self._pieces[-1].ranks.key(self._shown - 1), self.number

    def move_on(self) -> None:
        """Show more while less than half of a window is left, or of a batch that is smaller than that."""
        while not self._pieces or 2 * self.rows < min(WINDOW_ROWS, self._pieces[-1].ranks.rows):
            if not self._pieces or self._shown == self._pieces[-1].ranks.rows:
                if not self._read():
                    return
                self._shown = 0
            self._shown = min(self._shown + WINDOW_ROWS, self._pieces[-1].ranks.rows)

    def take_up_to(self, bound: Bound | None) -> list[tuple[pa.RecordBatch, Ranks]]:
        """The rows at or below the bound (all, if there is none), which are then no longer the run's."""
        parts = []
        while self._pieces:
            piece = self._pieces[0]
            stop = piece.ranks.rows
            if bound is not None:
                stop = piece.ranks.count_up_to(bound[0], inclusive=self.number <= bound[1])
            parts.append(piece.take(stop))
            if len(self._pieces) == 1:
                self._shown = max(self._shown, stop)
            if stop < piece.ranks.rows:
                break
            self._let_go(self._pieces.popleft())
        return parts

    def close(self) -> None:
        """Let go of everything, the source included."""
        while self._pieces:
            self._let_go(self._pieces.popleft())
        self._source.close()

    def _read(self) -> bool:
        batch = next((batch for batch in self._batches if batch.num_rows), None)
        if batch is None:
            self.exhausted = True
            return False
        with self._metrics.step("merge"):
            if self._pieces:
                # less than half a window is no reason to keep its whole batch, or the extent behind that
                self._let_go(self._pieces[-1])
                self._hold(self._pieces.pop().copied())
            self._hold(_RunPiece(batch, self._order.ranks(batch)))
        return True

    def _hold(self, piece: _RunPiece) -> None:
        self._budget.charge(piece.size)
        self._pieces.append(piece)

    def _let_go(self, piece: _RunPiece) -> None:
        self._budget.release(piece.size)


def merge_runs(
    sources: Sequence[SortedRun], order: RowOrder, budget: MemoryBudget, metrics: TaskMetrics
) -> Generator[pa.RecordBatch, None, None]:
    """One sorted stream of all rows of these sorted runs, holding a part of each.

    A source is closed as soon as it has ended, and all are when this iterator ends or is closed. What is held
    is charged to ``budget``, and released when it is handed on.
    """
    runs = [_Run(number, source, order, budget, metrics) for number, source in enumerate(sources)]
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        waiting: list[tuple[Bound, _Run]] = []
        _move_on(runs, waiting)
        while waiting:
            with metrics.step("merge"):
                touched, bound = _below_common_bound(waiting)
                parts = [part for run in touched for part in run.take_up_to(bound)]
            if len(touched) == 1:
                while parts:
                    yield parts.pop(0)[0]
            else:
                yield from _in_order(parts, budget, metrics)
            _move_on(touched, waiting)


def _move_on(runs: Sequence[_Run], waiting: list[tuple[Bound, _Run]]) -> None:
    """Let these runs show more, and wait again if they have rows."""
    for run in runs:
        run.move_on()
        if run.rows:
            heapq.heappush(waiting, (run.first(), run))
        else:
            run.close()


def _below_common_bound(waiting: list[tuple[Bound, _Run]]) -> tuple[list[_Run], Bound | None]:
    """Take out of the heap the runs that have rows at or below the bound, in the order of their numbers.

    A run that begins above the bound also ends above it, so the runs left in the heap could not lower it. A
    single run has nothing to be merged with up to the first row of the next, so that is then the bound.
    """
    bound: Bound | None = None
    runs: list[_Run] = []
    while waiting and (bound is None or waiting[0][0] < bound):
        _, run = heapq.heappop(waiting)
        runs.append(run)
        if not run.exhausted:
            bound = run.last() if bound is None else min(bound, run.last())
    if len(runs) == 1:
        bound = waiting[0][0] if waiting else None
    return sorted(runs, key=lambda run: run.number), bound


def _in_order(
    parts: list[tuple[pa.RecordBatch, Ranks]], budget: MemoryBudget, metrics: TaskMetrics
) -> Iterator[pa.RecordBatch]:
    """All rows of the parts, sorted. Empties the list, because its batches are not needed any more."""
    with metrics.step("merge"):
        rows = pa.concat_batches([batch for batch, _ in parts])
        indices = concat_ranks([ranks for _, ranks in parts]).sort_indices()
        parts.clear()
    size = rows.nbytes + SORT_BYTES_PER_ROW * rows.num_rows
    budget.charge(size)
    try:
        for start in range(0, len(indices), OUTPUT_ROWS):
            with metrics.step("merge"):
                ordered = rows.take(pa.array(indices[start : start + OUTPUT_ROWS]))
            yield ordered
    finally:
        budget.release(size)
