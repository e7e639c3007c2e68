"""A uniform sample, of a fixed size, of a stream of rows of unknown length.

Used by ``ShuffleFrame.repartitionByRange``: each producer samples its own keys.

Every row draws a random number, and the rows with the smallest numbers are kept. The distribution is that of
Vitter's reservoir (algorithm R, which Spark uses), but a whole batch is sampled at a time: once the reservoir
is full, a row enters it only if the row's number is below the largest number kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sortshuffle.errors import UsageError


class Reservoir:
    """Keeps ``size`` of the added rows, each with the same probability, or all rows if there are fewer.

    The same rows in the same order and the same ``seed`` give the same sample, however the rows are divided
    into batches. Holds up to twice ``size`` rows, and a batch. Raises UsageError if ``size`` is less than 1.
    """

    def __init__(self, schema: pa.Schema, size: int, seed: Sequence[int]) -> None:
        if size < 1:
            raise UsageError(f"a reservoir holds at least 1 row, not {size}")
        self.rows = 0
        self._size = size
        self._random = np.random.default_rng(list(seed))
        self._kept = [pa.RecordBatch.from_pylist([], schema)]
        self._numbers = np.empty(0)
        self._below = np.inf

    @property
    def nbytes(self) -> int:
        """Bytes of the kept rows."""
        return sum(int(batch.nbytes) for batch in self._kept) + int(self._numbers.nbytes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Sample the rows of ``batch`` too. Rows that are kept are copied."""
        numbers = self._random.random(batch.num_rows)
        self.rows += batch.num_rows
        chosen = np.flatnonzero(numbers < self._below)
        if len(chosen) == 0:
            return
        self._kept.append(batch.take(pa.array(chosen)))
        self._numbers = np.concatenate([self._numbers, numbers[chosen]])
        if len(self._numbers) >= 2 * self._size:
            self._shrink()

    def sample(self) -> pa.RecordBatch:
        """Return the sampled rows, in the order in which they were added."""
        self._shrink()
        return self._kept[0]

    def _shrink(self) -> None:
        """Keep the rows with the smallest numbers, as one batch."""
        kept = pa.concat_batches(self._kept)
        if len(self._numbers) > self._size:
            chosen = np.sort(np.argpartition(self._numbers, self._size - 1)[: self._size])
            kept, self._numbers = kept.take(pa.array(chosen)), self._numbers[chosen]
            self._below = float(self._numbers.max())
        self._kept = [kept]
