"""Steps on whole rows: the first ones, some by chance, those of a union's input as the union has them.

Made by `operators.rows`, and apart from it because tasks import this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.spark.worker.stages import Batches, TaskStep
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True, slots=True)
class Limit:
    """The first rows of a stream, of which no more is read than is needed for these."""

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
    """Rows by chance. The random numbers depend on the seed, the partition and the row's position in it."""

    with_replacement: bool
    fraction: float
    seed: int
    holds: ClassVar[bool] = False

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        numbers = np.random.default_rng([self.seed & (2**64 - 1), task.partition])
        for batch in batches:
            if self.with_replacement:
                times = numbers.poisson(self.fraction, batch.num_rows)
                taken = batch.take(pa.array(np.repeat(np.arange(batch.num_rows), times)))
            else:
                taken = batch.filter(pa.array(numbers.random(batch.num_rows) < self.fraction))
            if taken.num_rows:
                yield taken

    def describe(self) -> str:
        how = ", with replacement" if self.with_replacement else ""
        return f"sample({self.fraction}, seed {self.seed}{how})"


@dataclass(frozen=True, slots=True)
class Arrange:
    """Columns of one input of a union as the union has them: in its order and types; null for None."""

    sources: tuple[int | None, ...]
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            columns = [
                pa.nulls(batch.num_rows, field.type)
                if source is None
                else _widened(batch.column(source), field.type)
                for source, field in zip(self.sources, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def describe(self) -> str:
        return f"as ({', '.join(f'{field.name} {field.type}' for field in self.schema)})"


def _widened(column: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(column.type) and pa.types.is_floating(type):
        # Arrow multiplies by a power of ten and is off in the last bit of some; what is read is the nearest
        return column.cast(pa.string()).cast(type)
    # not safe: as in Spark a long may lose digits when it becomes a double
    return column.cast(type, safe=False)
