"""Steps on whole rows: limits, samples, and the inputs of a union.

`operators.rows` makes these steps. They stand apart from it because tasks import this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.arrow import BATCH_BYTES, BATCH_ROWS
from sortshuffle.payload.ordering import Int64s
from sortshuffle.spark.worker.stages import Batches, TaskStep
from sortshuffle.spark.worker.task import Task
from sortshuffle.writing.row_slices import slice_rows


@dataclass(frozen=True, slots=True)
class Limit:
    """Passes the first rows of a stream, and reads no batch after those that hold them."""

    number: int

    def __call__(self, batches: Batches) -> Batches:
        left = self.number
        while left:
            batch = next(batches, None)
            if batch is None:
                return
            batch = batch.slice(0, left)
            left -= batch.num_rows
            yield batch

    def describe(self) -> str:
        return f"limit({self.number})"


@dataclass(frozen=True, slots=True)
class Sample(TaskStep):
    """Draws rows at random. The random numbers depend on the seed, the partition and the row's position."""

    with_replacement: bool
    fraction: float
    seed: int
    holds: ClassVar[bool] = False
    needs_number: ClassVar[bool] = True

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        numbers = np.random.default_rng([self.seed & (2**64 - 1), task.row_partition])
        for batch in batches:
            if self.with_replacement:
                times = numbers.poisson(self.fraction, batch.num_rows)
                for piece in slice_rows(batch, BATCH_BYTES):  # so that a very large row is repeated alone
                    yield from _repeated(piece, times[: piece.num_rows])
                    times = times[piece.num_rows :]
            else:
                taken = batch.filter(pa.array(numbers.random(batch.num_rows) < self.fraction))
                if taken.num_rows:
                    yield taken

    def describe(self) -> str:
        how = ", with replacement" if self.with_replacement else ""
        return f"sample({self.fraction}, seed {self.seed}{how})"


def _repeated(batch: pa.RecordBatch, times: Int64s) -> Batches:
    """Yield each row so many times, in batches of at most `BATCH_ROWS` rows, and of about `BATCH_BYTES` bytes
    if the rows are of about one size."""
    if not times.any():
        return
    row_bytes = max(1, batch.nbytes // batch.num_rows)
    most = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
    ends = np.cumsum(times)
    for start in range(0, int(ends[-1]), most):
        # the row of each of the next places: the first one that ends after it
        rows = np.searchsorted(ends, np.arange(start, min(start + most, int(ends[-1]))), side="right")
        yield batch.take(pa.array(rows))


@dataclass(frozen=True, slots=True)
class Arrange:
    """Arranges an input's columns as in the union. ``sources``: positions in the input, or None for nulls."""

    sources: tuple[int | None, ...]
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            columns = [
                pa.nulls(batch.num_rows, field.type)
                if source is None
                else _widen(batch.column(source), field.type)
                for source, field in zip(self.sources, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def describe(self) -> str:
        return f"as ({', '.join(f'{field.name} {field.type}' for field in self.schema)})"


def _widen(column: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(column.type) and pa.types.is_floating(type):
        # Arrow multiplies by a power of ten, and some results are off in the last bit; parsing text is exact
        return column.cast(pa.string()).cast(type)
    # not safe: as in Spark, a long may lose digits when it becomes a double
    return column.cast(type, safe=False)
