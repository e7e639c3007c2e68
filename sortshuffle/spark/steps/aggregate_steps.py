"""Steps of `groupBy().agg`: rows to states of groups before the exchange, and behind it states to rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.compute.aggregate.aggregation import Aggregation, PlainStates
from sortshuffle.compute.aggregate.partial import partial
from sortshuffle.compute.aggregate.results import results
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.spark.worker.stages import Batches, TaskStep
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class PartialAggregate(TaskStep):
    """Rows to states of groups, as far as that makes fewer."""

    aggregation: Aggregation
    label: str

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        return partial(batches, self.aggregation.reducers(), memory)

    def describe(self) -> str:
        return f"{self.label}, as far as a task sees"


@dataclass(frozen=True)
class Lift:
    """Every row to a state of its own."""

    aggregation: Aggregation
    label: str

    def __call__(self, batches: Batches) -> Batches:
        reducer = PlainStates(self.aggregation)
        for batch in batches:
            if batch.num_rows:
                yield reducer.given(reducer.lifted(reducer.selected(batch)))

    def describe(self) -> str:
        return f"{self.label}, each row by itself"


@dataclass(frozen=True)
class Aggregate:
    """States that come in groups to one row for each. ``wire``: of the result."""

    aggregation: Aggregation
    wire: pa.Schema
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return results(batches, self.aggregation, self.wire)

    def describe(self) -> str:
        return self.label
