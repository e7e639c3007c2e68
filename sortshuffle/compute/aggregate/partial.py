"""Aggregation before a shuffle: fewer rows that mean the same, as far as that pays.

Each `Reducer` has a *side* of its own:

    rows -> waiting --a chunk is full--> grouped -> held --memory full, or the end--> out
                 \\--grouping does not pay--> lifted, row by row ---------------------> out

A chunk that is grouped shows how many of its rows were repetitions. Chunks grow while larger ones promise
more of them, because keys that a small chunk has once come again in a large one. Where even the largest would
save less than grouping costs, rows go on as they are, until a later chunk is tried again. What was grouped is
held, grouped again when it has doubled, and sent off when it does not fit.

All that waits or is held is charged to the budget, of which each side has an equal share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sortshuffle.compute.aggregate.aggregation import Batches, Reducer
from sortshuffle.memory.budget import MemoryBudget

# Rows. Of 50,000 keys a chunk of 64 Ki rows has 36,000, one of 256 Ki nearly all
FIRST_CHUNK, LARGEST_CHUNK = 1 << 16, 1 << 20
# Grouping a row that comes once costs some 50 ns (an integer) to 150 (a text), sending it through the shuffle
# 200 to 300: so a chunk must lose a quarter of its rows
LEAST_SAVED = 0.25
# Larger chunks would not save much more, and leave the cache. 8 million rows of 50,000 keys, four aggregates,
# ns a row with chunks of 64, 128, 256, 512 and 1024 Ki rows: 78, 58, 44, 52, 42; of 500 keys 24 to 21 each
ENOUGH_SAVED = 0.75
LEFT_ALONE = 1 << 22  # rows that go on as they are before a chunk is tried again: a 64th of them is grouped
# What grouping takes beside the rows: they are joined and there may be as many groups (twice their bytes),
# and for each row its number, its place in the order and a value in work (measured: 40 to 56 bytes)
COPIES, WORK_PER_ROW = 2, 48
SHARE = 2  # of a side's memory what waits takes when it is grouped, and so does what is held
PIECES = 8  # of a chunk, at least, in which a batch is taken in, so that it ends near where it should


def partial(rows: Batches, reducers: Sequence[Reducer], budget: MemoryBudget) -> Batches:
    """What the reducers give of all rows: for each key one row or more of each."""
    limit = budget.limit // len(reducers)
    sides = [_Side(reducer, limit, budget) for reducer in reducers]
    try:
        for batch in rows:
            if batch.num_rows:
                for side in sides:
                    yield from side.took(batch)
        for side in sides:
            yield from side.rest()
    finally:
        for side in sides:
            side.forget()


class _HeldStates:
    """Batches that wait together, charged to the budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size = 0

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        self._budget.charge(size)
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.size += size

    @property
    def working(self) -> int:
        """Bytes that grouping takes beside them."""
        return COPIES * self.size + WORK_PER_ROW * self.rows

    @property
    def cost(self) -> int:
        """Bytes that they take while they are grouped."""
        return self.size + self.working

    def joined(self) -> pa.RecordBatch:
        return self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)

    def clear(self) -> None:
        self._budget.release(self.size)
        self.batches, self.rows, self.size = [], 0, 0


class _Side:
    """The work of one reducer. ``limit``: bytes."""

    def __init__(self, reducer: Reducer, limit: int, budget: MemoryBudget) -> None:
        self._reducer = reducer
        self._budget = budget
        self._most = limit // SHARE  # bytes that grouping may take
        self._waiting = _HeldStates(budget)
        self._held = _HeldStates(budget)
        self._chunk_rows = FIRST_CHUNK
        self._left_alone = 0  # rows that are still to go on as they are
        self._regroup_at = 0  # rows that are held before they are grouped again

    def took(self, batch: pa.RecordBatch) -> Batches:
        """Take in rows; what is then to be sent."""
        selected = self._reducer.selected(batch)
        if self._left_alone > 0:
            self._left_alone -= batch.num_rows
            if self._waiting.rows:  # of the batch by which this was decided: they come first
                self._group_waiting()
                yield from self._send()
            yield self._reducer.given(self._reducer.lifted(selected))
            return
        rows = self._piece_rows(selected)
        for start in range(0, selected.num_rows, rows):
            self._waiting.add(*_kept(selected.slice(start, rows), batch))
            if self._waiting.rows >= self._chunk_rows or self._waiting.cost >= self._most:
                yield from self._group_chunk()

    def rest(self) -> Batches:
        """All that is left, at the end of the rows."""
        if self._waiting.rows:
            self._group_waiting()
        if len(self._held.batches) > 1:
            self._regroup()
        yield from self._send()

    def forget(self) -> None:
        self._waiting.clear()
        self._held.clear()

    def _piece_rows(self, selected: pa.RecordBatch) -> int:
        """Rows of a batch to be taken in at a time: a chunk is no larger because a batch is."""
        rows = max(1, selected.num_rows)
        cost = (1 + COPIES) * selected.nbytes // rows + WORK_PER_ROW
        return int(max(1, min(FIRST_CHUNK, self._most // cost // PIECES)))

    def _group_chunk(self) -> Batches:
        """Group what waits, and decide what that means for what follows."""
        rows = self._waiting.rows
        self._learn(rows, self._group_waiting())
        if self._left_alone > 0:
            yield from self._send()  # before the rows that follow: the first of a group comes first
        elif self._held.cost > self._most or self._held.rows >= max(self._regroup_at, self._chunk_rows):
            if self._held.rows >= self._regroup_at:
                self._regroup()
            if 2 * self._held.cost > self._most:
                yield from self._send()

    def _group_waiting(self) -> int:
        """How many groups there are in what waits, which are then held."""
        working = self._waiting.working
        self._budget.charge(working)
        try:
            grouped = self._reducer.grouped(self._waiting.joined())
        finally:
            self._budget.release(working)
        self._waiting.clear()
        self._held.add(grouped, grouped.nbytes)
        return int(grouped.num_rows)

    def _learn(self, rows: int, groups: int) -> None:
        """Decide about the next chunk by this one. Of keys that come up evenly, a chunk of twice the rows has
        twice the share of repetitions, as long as these are few."""
        saved = 1 - groups / rows
        was_cut_short = rows < self._chunk_rows
        largest = rows if was_cut_short else LARGEST_CHUNK
        if saved * max(1.0, largest / rows) < LEAST_SAVED:
            self._left_alone = LEFT_ALONE
            self._chunk_rows = FIRST_CHUNK
        elif saved < ENOUGH_SAVED:
            self._chunk_rows = min(2 * self._chunk_rows, LARGEST_CHUNK)

    def _regroup(self) -> None:
        working = self._held.working
        self._budget.charge(working)
        try:
            grouped = self._reducer.regrouped(self._held.joined())
        finally:
            self._budget.release(working)
        self._held.clear()
        self._held.add(grouped, grouped.nbytes)
        self._regroup_at = 2 * grouped.num_rows

    def _send(self) -> Batches:
        for batch in self._held.batches:
            yield self._reducer.given(batch)
        self._held.clear()
        self._regroup_at = 0


def _kept(selected: pa.RecordBatch, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Rows to be kept, and what they keep alive. A few columns of many are copied, because columns may share
    the memory of the message that they came in."""
    size = int(selected.nbytes)
    if 2 * size > batch.nbytes * selected.num_rows // batch.num_rows or not selected.num_columns:
        return selected, size
    return selected.take(pa.array(np.arange(selected.num_rows))), size
