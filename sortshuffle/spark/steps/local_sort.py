"""`LocalSort`: the step that sorts the rows of one task.

It serves rows that must be sorted but do not come sorted from an exchange: those of `sortWithinPartitions`,
and of groups and joins after a function (`operators.layouts.order_rows`). Rows that do come from an exchange
are sorted where they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.compute.external_sort import ExternalSort
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.worker.stages import TaskStep
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class LocalSort(TaskStep):
    """Sorts the rows of each task stably. Rows that do not fit into memory go through files of the task.

    ``schema``: the rows' schema. ``names``: the keys as `RowOrder.describe` shows them.
    """

    order: RowOrder
    schema: pa.Schema
    names: tuple[str, ...]

    def run(
        self, batches: Iterator[pa.RecordBatch], task: Task, memory: MemoryBudget
    ) -> Iterator[pa.RecordBatch]:
        payload = ArrowPayload.of(self.schema, task.options)
        sort = ExternalSort(self.order, payload, memory, task.metrics, task.new_merge_file)
        return sort.sorted(batches)

    def describe(self) -> str:
        return f"sort({', '.join(self.names)})"
