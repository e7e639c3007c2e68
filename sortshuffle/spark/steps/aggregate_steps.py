"""Steps of `groupBy().agg`: rows become states of groups before the exchange, and states rows after it."""

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
    """Aggregates rows to states of groups before the exchange, where that makes fewer rows."""

    aggregation: Aggregation
    label: str

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        return partial(batches, self.aggregation.reducers(), memory)

    def describe(self) -> str:
        return f"{self.label}, as far as a task sees"


@dataclass(frozen=True)
class RowsToStates:
    """Turns each row into a state, without grouping."""

    aggregation: Aggregation
    label: str

    def __call__(self, batches: Batches) -> Batches:
        reducer = PlainStates(self.aggregation)
        for batch in batches:
            if batch.num_rows:
                yield reducer.to_wire(reducer.lift(reducer.select(batch)))

    def describe(self) -> str:
        return f"{self.label}, each row by itself"


@dataclass(frozen=True)
class Aggregate:
    """Turns states sorted by group into one row per group. ``wire``: the schema of the result."""

    aggregation: Aggregation
    wire: pa.Schema
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return results(batches, self.aggregation, self.wire)

    def describe(self) -> str:
        return self.label
