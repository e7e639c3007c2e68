"""Merges sorted runs into one sorted stream, holding one batch of each run.

Rows are ordered by (key, number of the run, position in the run), so the result is that of a stable sort of
the concatenated runs, however they are cut into batches.

This is a k-way merge by batches. Each run has a *window*: the rows that take part in the next step. A step

    1. finds the bound: the smallest (last key of the window, number) of all runs with more rows after their
       window. No row outside the windows is below the bound.
    2. takes all rows at or below the bound from every run, sorts them together, and emits them.
    3. advances the windows of these runs, where less than half a window is left.

Runs wait in a heap, ordered by their first key. So a step costs nothing for runs above its bound: a thousand
runs of disjoint key ranges pass one after another.
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

OUTPUT_ROWS = 65_536  # rows copied in sorted order at a time, so that the copy stays in cache
# With larger windows there are fewer steps, which take more memory each. 100 runs of two numbers a row: 74 MB
# and 91 ns a row with 2,048, 144 MB and 61 ns with 8,192. 16 runs: 39 and 37 ns
WINDOW_ROWS = 2048
# Taken by `Ranks.sort_indices`, with its result. By tracemalloc, which leaves out Arrow: 33 to 82
SORT_BYTES_PER_ROW = 84

Bound: TypeAlias = tuple[KeyRow, int]
"""A key and the number of a run: rows with this key are taken only from runs up to that number."""


def step_bytes(columns: int) -> int:
    """Return the bytes that a step of a merge takes for each row, in addition to copies of the rows and of
    the texts in their keys. ``columns``: rank columns, which are joined."""
    return 8 * columns + SORT_BYTES_PER_ROW


class SortedRun(Protocol):
    """Batches sorted by key, for example a generator."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class _RunPiece:
    """A batch of a run, and its keys (``ranks``). Rows before ``position`` have been taken."""

    __slots__ = ("batch", "position", "ranks", "size")

    def __init__(self, batch: pa.RecordBatch, ranks: Ranks) -> None:
        self.batch = batch
        self.ranks = ranks
        self.position = 0
        self.size = batch.nbytes + ranks.nbytes

    @property
    def left(self) -> int:
        return self.ranks.rows - self.position

    def copy_left(self) -> _RunPiece:
        """Copy the rows that are left, so that the batch can be freed."""
        rows = np.arange(self.position, self.ranks.rows)
        return _RunPiece(self.batch.take(pa.array(rows)), self.ranks.take(rows))

    def take(self, stop: int) -> tuple[pa.RecordBatch, Ranks]:
        start, self.position = self.position, stop
        return self.batch.slice(start, stop - start), self.ranks.slice(start, stop)


class _Run:
    """The rows of a run that are in memory, charged to the budget. The window ends at row ``_window_end`` of
    the last piece."""

    __slots__ = (
        "_batches",
        "_budget",
        "_ended",
        "_metrics",
        "_order",
        "_pieces",
        "_source",
        "_window_end",
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
        self._ended: list[_RunPiece] = []  # all taken, but their rows are still in memory
        self._window_end = 0
        self.exhausted = False

    @property
    def rows(self) -> int:
        """Number of rows in the window."""
        if not self._pieces:
            return 0
        hidden = self._pieces[-1].ranks.rows - self._window_end
        return sum(piece.left for piece in self._pieces) - hidden

    def first(self) -> Bound:
        return self._pieces[0].ranks.key(self._pieces[0].position), self.number

    def last(self) -> Bound:
        return self._pieces[-1].ranks.key(self._window_end - 1), self.number

    def move_on(self) -> None:
        """Enlarge the window while it has less than half of `WINDOW_ROWS`, or of a smaller batch."""
        while not self._pieces or 2 * self.rows < min(WINDOW_ROWS, self._pieces[-1].ranks.rows):
            if not self._pieces or self._window_end == self._pieces[-1].ranks.rows:
                if not self._read():
                    return
                self._window_end = 0
            self._window_end = min(self._window_end + WINDOW_ROWS, self._pieces[-1].ranks.rows)

    def take_up_to(self, bound: Bound | None) -> list[tuple[pa.RecordBatch, Ranks]]:
        """Take the rows of the window at or below the bound, or all of them if there is no bound.

        They stay charged until `release_ended`."""
        parts = []
        while self._pieces:
            piece = self._pieces[0]
            stop = piece.ranks.rows
            if bound is not None:
                stop = piece.ranks.count_up_to(bound[0], inclusive=self.number <= bound[1])
            parts.append(piece.take(stop))
            if len(self._pieces) == 1:
                self._window_end = max(self._window_end, stop)
            if stop < piece.ranks.rows:
                break
            self._ended.append(self._pieces.popleft())
        return parts

    def release_ended(self) -> None:
        """Release the batches whose last row was taken. Called once nothing here refers to what was taken."""
        while self._ended:
            self._release(self._ended.pop())

    def close(self) -> None:
        """Release all rows, and close the source."""
        self.release_ended()
        while self._pieces:
            self._release(self._pieces.popleft())
        self._source.close()

    def _read(self) -> bool:
        batch = next((batch for batch in self._batches if batch.num_rows), None)
        if batch is None:
            self.exhausted = True
            return False
        with self._metrics.step("merge"):
            if self._pieces:
                # Less than half a window is left: copy it, and release its batch and the batch's extent
                self._release(self._pieces[-1])
                self._hold(self._pieces.pop().copy_left())
            self._hold(_RunPiece(batch, self._order.ranks(batch)))
        return True

    def _hold(self, piece: _RunPiece) -> None:
        self._budget.charge(piece.size)
        self._pieces.append(piece)

    def _release(self, piece: _RunPiece) -> None:
        self._budget.release(piece.size)


def merge_runs(
    sources: Sequence[SortedRun], order: RowOrder, budget: MemoryBudget, metrics: TaskMetrics
) -> Generator[pa.RecordBatch, None, None]:
    """Yield all rows of these runs in one sorted stream, holding a part of each run.

    A source is closed as soon as it has ended. All sources are closed when this generator ends or is closed.
    Held rows are charged to ``budget``. A batch is released once its last row was delivered or copied, what
    a step has copied once the step's rows were delivered.
    """
    runs = [_Run(number, source, order, budget, metrics) for number, source in enumerate(sources)]
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        waiting: list[tuple[Bound, _Run]] = []
        _move_on(runs, waiting)
        while waiting:
            with metrics.step("merge"):
                chosen, bound = _take_below_bound(waiting)
                parts = [part for run in chosen for part in run.take_up_to(bound)]
            if len(chosen) == 1:  # already sorted
                while parts:
                    yield parts.pop(0)[0]
                chosen[0].release_ended()
            else:
                yield from _sort_parts(parts, chosen, budget, metrics)
            _move_on(chosen, waiting)


def _move_on(runs: Sequence[_Run], waiting: list[tuple[Bound, _Run]]) -> None:
    """Advance the windows of these runs. Put runs with rows back into the heap, and close the others."""
    for run in runs:
        run.move_on()
        if run.rows:
            heapq.heappush(waiting, (run.first(), run))
        else:
            run.close()


def _take_below_bound(waiting: list[tuple[Bound, _Run]]) -> tuple[list[_Run], Bound | None]:
    """Find the bound, and take the runs with rows at or below it out of the heap, ordered by number.

    A run that begins above the bound also ends above it, so runs that stay in the heap cannot lower the
    bound. A single run needs no merging up to the first row of the next run, so that row is its bound.
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


def _sort_parts(
    parts: list[tuple[pa.RecordBatch, Ranks]],
    runs: Sequence[_Run],
    budget: MemoryBudget,
    metrics: TaskMetrics,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the parts, sorted. ``runs``: where the parts are from. Empties the list, to free its
    batches."""
    columns = len(parts[0][1].columns)
    # joined rows, and what takes no more than they do: texts of their keys, then a part of them in order
    size = sum(2 * batch.nbytes + step_bytes(columns) * batch.num_rows for batch, _ in parts)
    budget.charge(size)
    try:
        with metrics.step("merge"):
            rows = pa.concat_batches([batch for batch, _ in parts])
            indices = concat_ranks([ranks for _, ranks in parts]).sort_indices()
            parts.clear()
        for run in runs:
            run.release_ended()
        # from now on the joined rows, their order, and a part of them in that order
        held = min(size, 2 * rows.nbytes + indices.nbytes)
        budget.release(size - held)
        size = held
        for start in range(0, len(indices), OUTPUT_ROWS):
            with metrics.step("merge"):
                ordered = rows.take(pa.array(indices[start : start + OUTPUT_ROWS]))
            yield ordered
    finally:
        budget.release(size)
