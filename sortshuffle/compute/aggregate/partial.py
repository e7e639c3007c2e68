"""Aggregation before a shuffle: replaces rows by fewer rows that mean the same, as far as that pays.

Each `Reducer` has a separate *side*:

    rows -> waiting --a chunk is full--> grouped -> held --memory full, or the end--> out
         \\--grouping does not pay------> lifted, row by row ------------------------> out

Grouping a chunk shows how many of its rows repeat a key. Chunks grow as long as larger chunks promise more
repetitions, because a key that is unique in a small chunk may repeat in a large one. If even the largest
chunk would save less than grouping costs, rows pass through ungrouped until a later chunk is tried. Grouped
rows are held, grouped again when their number has doubled, and yielded when they do not fit.

All waiting and held rows are charged to the budget, of which each side has an equal share. However much that
is, no more than `MOST_JOINED` bytes are grouped together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sortshuffle.compute.aggregate.aggregation import Batches, Reducer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import GIB

# Rows. Of 50,000 keys, a chunk of 64 Ki rows has 36,000, a chunk of 256 Ki rows nearly all
FIRST_CHUNK, LARGEST_CHUNK = 1 << 16, 1 << 20
# Grouping a row with a unique key costs some 50 ns (integer key) to 150 (text key), sending it through the
# shuffle 200 to 300. So grouping pays if a chunk loses a quarter of its rows
LEAST_SAVED = 0.25
# Larger chunks would save little more, and exceed the cache. 8 million rows of 50,000 keys, four aggregates,
# ns a row with chunks of 64, 128, 256, 512 and 1024 Ki rows: 78, 58, 44, 52, 42; of 500 keys 24 to 21 each
ENOUGH_SAVED = 0.75
ROWS_PASSED_THROUGH = 1 << 22  # before a chunk is tried again: a first chunk is a 64th of them
# Memory of grouping beside the rows: a joined copy and up to as many groups (twice the rows' bytes), and for
# each row its group number, its position in the order and a value being processed (measured: 40 to 56 bytes)
COPIES, WORK_PER_ROW = 2, 48
SHARE = 2  # parts of a side's memory: one for grouping the waiting rows, one for the held rows
PIECES = 8  # at least so many pieces of a batch fill a chunk's memory, so that it ends near that limit
MOST_JOINED = GIB  # bytes of rows that are grouped as one batch, whose 32-bit text offsets end at 2 GiB


def partial(rows: Batches, reducers: Sequence[Reducer], budget: MemoryBudget) -> Batches:
    """Yield what the reducers make of all rows: one or more rows of each reducer for each key."""
    limit = budget.limit // len(reducers)
    sides = [_Side(reducer, limit, budget) for reducer in reducers]
    try:
        for batch in rows:
            if batch.num_rows:
                for side in sides:
                    yield from side.take_in(batch)
        for side in sides:
            yield from side.rest()
    finally:
        for side in sides:
            side.discard()


class _HeldStates:
    """Batches held to be grouped together, charged to the budget."""

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
        """Bytes that grouping takes beside the batches."""
        return COPIES * self.size + WORK_PER_ROW * self.rows

    @property
    def cost(self) -> int:
        """Bytes of the batches and of grouping them."""
        return self.size + self.working

    def concatenate(self) -> pa.RecordBatch:
        return self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)

    def clear(self) -> None:
        self._budget.release(self.size)
        self.batches, self.rows, self.size = [], 0, 0


class _Side:
    """Pre-aggregates rows with one reducer. ``limit``: bytes for waiting rows, held rows and grouping."""

    def __init__(self, reducer: Reducer, limit: int, budget: MemoryBudget) -> None:
        self._reducer = reducer
        self._budget = budget
        self._most = min(limit // SHARE, MOST_JOINED)  # bytes that grouping may take
        self._waiting = _HeldStates(budget)
        self._held = _HeldStates(budget)
        self._chunk_rows = FIRST_CHUNK
        self._rows_to_pass = 0  # number of rows still to pass through ungrouped
        self._regroup_at = 0  # number of held rows at which they are grouped again

    def take_in(self, batch: pa.RecordBatch) -> Batches:
        """Add the rows of a batch; yield the rows that are ready to be sent."""
        selected = self._reducer.select(batch)
        if self._rows_to_pass > 0:
            self._rows_to_pass -= batch.num_rows
            if self._waiting.rows:  # the rest of the batch in which grouping was given up: it comes first
                self._group_waiting()
                yield from self._send()
            yield self._reducer.to_wire(self._reducer.lift(selected))
            return
        rows = self._piece_rows(selected)
        for start in range(0, selected.num_rows, rows):
            piece, size = _rows_to_hold(selected.slice(start, rows), batch)
            if self._waiting.rows and self._waiting.size + size > MOST_JOINED:  # a very large row
                yield from self._group_chunk()
            self._waiting.add(piece, size)
            if self._waiting.rows >= self._chunk_rows or self._waiting.cost >= self._most:
                yield from self._group_chunk()

    def rest(self) -> Batches:
        """Yield the remaining rows, after the last batch."""
        if self._waiting.rows:
            self._group_waiting()
        if len(self._held.batches) > 1:
            self._regroup()
        yield from self._send()

    def discard(self) -> None:
        self._waiting.clear()
        self._held.clear()

    def _piece_rows(self, selected: pa.RecordBatch) -> int:
        """Return how many rows of a batch to add at a time: a large batch must not make a chunk larger."""
        rows = max(1, selected.num_rows)
        cost = (1 + COPIES) * selected.nbytes // rows + WORK_PER_ROW
        return int(max(1, min(FIRST_CHUNK, self._most // cost // PIECES)))

    def _group_chunk(self) -> Batches:
        """Group the waiting rows. Regroup or yield held rows if they are too many or grouping stops."""
        rows = self._waiting.rows
        self._learn(rows, self._group_waiting())
        if self._rows_to_pass > 0:
            yield from self._send()  # before the rows that follow, so that a group's first row stays first
        elif self._held.cost > self._most or self._held.rows >= max(self._regroup_at, self._chunk_rows):
            if self._held.rows >= self._regroup_at:
                self._regroup()
            if 2 * self._held.cost > self._most:
                yield from self._send()

    def _group_waiting(self) -> int:
        """Group the waiting rows and hold the groups. Return the number of groups."""
        working = self._waiting.working
        self._budget.charge(working)
        try:
            grouped = self._reducer.group(self._waiting.concatenate())
        finally:
            self._budget.release(working)
        self._waiting.clear()
        self._held.add(grouped, grouped.nbytes)
        return int(grouped.num_rows)

    def _learn(self, rows: int, groups: int) -> None:
        """Choose from this chunk's result how to treat the next rows. If keys are evenly distributed, a chunk
        of twice the rows has twice the share of repetitions, as long as repetitions are few."""
        saved = 1 - groups / rows
        was_cut_short = rows < self._chunk_rows
        largest = rows if was_cut_short else LARGEST_CHUNK
        if saved * max(1.0, largest / rows) < LEAST_SAVED:
            self._rows_to_pass = ROWS_PASSED_THROUGH
            self._chunk_rows = FIRST_CHUNK
        elif saved < ENOUGH_SAVED:
            self._chunk_rows = min(2 * self._chunk_rows, LARGEST_CHUNK)

    def _regroup(self) -> None:
        """Group the held rows again. If they are too many for one batch, they are to be sent as they are."""
        if self._held.size > MOST_JOINED:
            return
        working = self._held.working
        self._budget.charge(working)
        try:
            grouped = self._reducer.regroup(self._held.concatenate())
        finally:
            self._budget.release(working)
        self._held.clear()
        self._held.add(grouped, grouped.nbytes)
        self._regroup_at = 2 * grouped.num_rows

    def _send(self) -> Batches:
        for batch in self._held.batches:
            yield self._reducer.to_wire(batch)
        self._held.clear()
        self._regroup_at = 0


def _rows_to_hold(selected: pa.RecordBatch, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Return rows to hold, and the bytes that they keep alive. A few columns of many are copied, because all
    columns of a batch may share the memory of one message."""
    size = int(selected.nbytes)
    if 2 * size > batch.nbytes * selected.num_rows // batch.num_rows or not selected.num_columns:
        return selected, size
    return selected.take(pa.array(np.arange(selected.num_rows))), size
