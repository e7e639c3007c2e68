"""Steps of `distinct` and `dropDuplicates`: the first row of each key, before and after the exchange."""

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
    """Drops rows whose key repeats within the task, before the exchange and only as far as that pays."""

    keys: tuple[int, ...]
    label: str

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        return partial(batches, [FirstRows(self.keys)], memory)

    def describe(self) -> str:
        return f"{self.label}, as far as a task sees"


@dataclass(frozen=True)
class FirstRowOfEachKey:
    """Keeps the first row of each key. The rows come sorted by key."""

    keys: tuple[int, ...]
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return first_rows(batches, self.keys)

    def describe(self) -> str:
        return self.label
