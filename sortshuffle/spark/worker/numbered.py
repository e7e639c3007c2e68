"""Rows that carry the number of their partition.

The number of a task is not always that of the partition whose rows it has. Spark numbers tasks anew where it
unites, joins or multiplies partitions: for `exceptAll`, `coalesce` and `crossJoin` of DataFrames, and over
Spark Connect for map stages that go through one shuffle. So a step whose result depends on the partition
(`TaskStep.needs_number`) takes the number from the rows. `spark.plan.staging` gives it to them, and only if
there is such a step. What a task writes is still named by the number of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import pyarrow as pa

from sortshuffle.spark.worker.stages import Batches, Opening
from sortshuffle.spark.worker.task import Task

NUMBER = "_sortshuffle_partition"  # the column with the number of a row's partition


@dataclass(frozen=True, slots=True)
class ReadNumbered:
    """Opens rows that carry the number of their partition, and tells the task this number. A task that
    receives no rows keeps its own number."""

    opening: Opening
    needs_number: ClassVar[bool] = False

    @property
    def holders(self) -> int:
        return self.opening.holders

    def open(self, received: Batches, task: Task) -> Batches:
        read: list[pa.RecordBatch] = []
        # at once: a function may give rows to the next step before it reads any
        for batch in received:
            read.append(batch)
            if batch.num_rows:
                task.rows_from = batch.column(NUMBER)[0].as_py()
                break
        # an iterator, because `chain` would hold a list until its end, and so the first rows
        return self.opening.open((each.drop_columns(NUMBER) for each in chain(iter(read), received)), task)
