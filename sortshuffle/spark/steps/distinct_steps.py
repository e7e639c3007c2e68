"""Steps of `distinct` and `dropDuplicates`: the first row of each key, before the exchange and behind it."""

from __future__ import annotations

from dataclasses import dataclass

from sortshuffle.compute.aggregate.aggregation import FirstRows
from sortshuffle.compute.aggregate.partial import partial
from sortshuffle.compute.aggregate.results import first_rows
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.spark.worker.stages import Batches, TaskStep
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class PartialFirstRows(TaskStep):
    """The first row of each key, as far as a task sees: more where that does not pay."""

    keys: tuple[int, ...]
    label: str

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        return partial(batches, [FirstRows(self.keys)], memory)

    def describe(self) -> str:
        return f"{self.label}, as far as a task sees"


@dataclass(frozen=True)
class DifferentRows:
    """The first row of each key, of rows sorted by it."""

    keys: tuple[int, ...]
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return first_rows(batches, self.keys)

    def describe(self) -> str:
        return self.label
