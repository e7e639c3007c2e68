"""The rows that a join holds in memory, to make the table in which it looks up the other side's keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa

from sortshuffle.compute.join.keys import TABLE_BYTES_PER_ROW, copied_bytes
from sortshuffle.memory.budget import MemoryBudget

# Copies of the rows while their batches are joined into one. The table is made later, from one copy, and
# takes keys a third time: with text of 100 letters it took 424 bytes a row, of which 112 are the row's
COPIES = 2
# the batches become one, and in one text array Arrow's offsets have 32 bits
MOST_BYTES = 2**31 - 1


class HeldRows:
    """Batches held in memory. The charge includes the memory that a table of their rows will take. ``keys``:
    positions of the columns that the rows are joined by."""

    def __init__(self, memory: MemoryBudget, keys: Sequence[int]) -> None:
        self._memory = memory
        self._keys = keys
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._charged = 0

    def fill(self, batches: Iterator[pa.RecordBatch]) -> bool:
        """Hold all batches. Return False as soon as they take too much memory; the rest is not read then."""
        for batch in batches:
            if batch.num_rows:
                self.hold(batch)
                if self.is_too_much:
                    return False
        return True

    def hold(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        table = TABLE_BYTES_PER_ROW * batch.num_rows + copied_bytes(batch, self._keys)
        self._charge(COPIES * batch.nbytes + table)

    @property
    def is_too_much(self) -> bool:
        """Whether a table of the rows takes too much memory, or the rows too much for one batch."""
        return self._memory.would_exceed(0) or self._bytes > MOST_BYTES

    def concatenate(self, schema: pa.Schema) -> pa.RecordBatch:
        """Hand over the rows as one batch. They stay charged until `release`."""
        batches = list(self._batches)
        self._batches.clear()
        return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)

    def handed_on(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches and stop holding them. Their charge is released first."""
        self.release_charge()
        while self._batches:
            yield self._batches.popleft()

    def release(self) -> None:
        """Drop all batches and release their charge."""
        self._batches.clear()
        self.release_charge()

    def release_charge(self) -> None:
        self._memory.release(self._charged)
        self._charged = 0

    def _charge(self, size: int) -> None:
        self._memory.charge(size)
        self._charged += size
