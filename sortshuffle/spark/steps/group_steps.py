"""Steps that apply users' functions to the groups of one frame, and to groups of equal key in two frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from sortshuffle.compute.groups.cogroup import Side, cogroup
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.cogrouped import CoGroupFunction
from sortshuffle.spark.functions.grouped import GroupFunction
from sortshuffle.spark.worker.multi_input import Leg
from sortshuffle.spark.worker.stages import Batches
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class GroupApply:
    """Applies a grouped function to a stream sorted by the keys of the groups."""

    order: RowOrder
    function: GroupFunction
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return self.function(self.function.cut(batches, self.order))

    def describe(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class CoGroupApply:
    """Applies a function to the groups of two legs, each sorted by its own order."""

    sliceable: ClassVar[tuple[bool, ...]] = ()
    only_first: ClassVar[bool] = False

    function: CoGroupFunction
    orders: tuple[RowOrder, RowOrder]
    schemas: tuple[pa.Schema, pa.Schema]
    label: str

    def run(self, legs: Sequence[Leg], task: Task, memory: MemoryBudget) -> Batches:
        left, right = (
            Side(leg.rows, schema, order)
            for leg, schema, order in zip(legs, self.schemas, self.orders, strict=True)
        )
        return self.function(cogroup(left, right, memory))

    def describe(self) -> str:
        return self.label
