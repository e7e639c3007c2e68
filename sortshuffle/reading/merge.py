"""Merging sorted runs into one sorted stream, holding one batch of each run.

Rows are ordered by (key, number of the run, position in the run), so the result is that of a stable sort of
all runs one after the other, however they are cut into batches.

This is a k-way merge by batches. Each run has a *window*: the rows of its batch that take part now. A step is

    bound   the smallest (last key of the window, number) of all runs with more rows behind their window:
            no row that is not in a window yet can be below it
    take    all rows at or below the bound from every run, sort them together, and emit them
    move    the windows on, of these runs with less than half a window left

Runs wait in a heap by their first key. So a step costs nothing for runs above its bound: a thousand runs of
disjoint key ranges pass one after the other.
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
# Larger windows take more memory in a step, and fewer steps. 100 runs of two numbers a row: 74 MB and 91 ns a
# row with 2,048, 144 MB and 61 ns with 8,192. 16 runs: 39 and 37 ns
WINDOW_ROWS = 2048
SORT_BYTES_PER_ROW = 96  # that `Ranks.sort_indices` allocates besides its result; tracemalloc: 41 to 96

Bound: TypeAlias = tuple[KeyRow, int]
"""A key and the number of a run: rows with this key are taken only from runs up to that number."""


class SortedRun(Protocol):
    """Batches sorted by key, for example a generator."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class _RunPiece:
    """A batch of a run with its keys. Rows before ``position`` are taken."""

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
        """The rows that are left, in memory of their own."""
        rows = np.arange(self.position, self.ranks.rows)
        return _RunPiece(self.batch.take(pa.array(rows)), self.ranks.take(rows))

    def take(self, stop: int) -> tuple[pa.RecordBatch, Ranks]:
        start, self.position = self.position, stop
        return self.batch.slice(start, stop - start), self.ranks.slice(start, stop)


class _Run:
    """The rows of a run that are in memory, charged to the budget. The window ends at ``_shown`` of the
    last piece."""

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
        """Enlarge the window while less than half of one is left, or of a batch that is smaller than one."""
        while not self._pieces or 2 * self.rows < min(WINDOW_ROWS, self._pieces[-1].ranks.rows):
            if not self._pieces or self._shown == self._pieces[-1].ranks.rows:
                if not self._read():
                    return
                self._shown = 0
            self._shown = min(self._shown + WINDOW_ROWS, self._pieces[-1].ranks.rows)

    def take_up_to(self, bound: Bound | None) -> list[tuple[pa.RecordBatch, Ranks]]:
        """Take the rows of the window at or below the bound; all of them without a bound."""
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
                # less than half a window is left: copy it, and release its batch and the extent of that
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
    """One sorted stream of all rows of these runs, holding a part of each.

    A source is closed as soon as it has ended. All are closed when this generator ends or is closed. Held
    rows are charged to ``budget``, and released when they are delivered.
    """
    runs = [_Run(number, source, order, budget, metrics) for number, source in enumerate(sources)]
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        waiting: list[tuple[Bound, _Run]] = []
        _move_on(runs, waiting)
        while waiting:
            with metrics.step("merge"):
                chosen, bound = _below_common_bound(waiting)
                parts = [part for run in chosen for part in run.take_up_to(bound)]
            if len(chosen) == 1:  # already sorted
                while parts:
                    yield parts.pop(0)[0]
            else:
                yield from _in_order(parts, budget, metrics)
            _move_on(chosen, waiting)


def _move_on(runs: Sequence[_Run], waiting: list[tuple[Bound, _Run]]) -> None:
    """Move the windows of these runs on. Runs with rows wait in the heap again, the others are closed."""
    for run in runs:
        run.move_on()
        if run.rows:
            heapq.heappush(waiting, (run.first(), run))
        else:
            run.close()


def _below_common_bound(waiting: list[tuple[Bound, _Run]]) -> tuple[list[_Run], Bound | None]:
    """Take out of the heap the runs that have rows at or below the bound, in the order of their numbers.

    A run that begins above the bound also ends above it, so runs that stay in the heap cannot lower it. A
    single run needs no merging up to the first row of the next run, so that row is its bound.
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
    """All rows of the parts, sorted. Empties the list, to release its batches."""
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
