"""`ShuffledJoin`: joins two shuffled inputs, partition by partition.

The side that is smaller in the partition is held as a table in memory. If the table does not fit, both sides
are sorted, through files of the task, and merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from sortshuffle.compute.join.build import HeldRows
from sortshuffle.compute.join.hash_join import BuildTable, JoinSpec, probe
from sortshuffle.compute.join.merge_join import merge_join
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.running import CloseAtEnd
from sortshuffle.spark.steps.local_sort import LocalSort
from sortshuffle.spark.worker.multi_input import Leg
from sortshuffle.spark.worker.stages import Batches
from sortshuffle.spark.worker.task import Task

_SORTING_PARTS = 3  # equal parts of the memory: one to sort each side, and one for the rows of a key


@dataclass(frozen=True)
class ShuffledJoin:
    """Joins one partition of both sides. Each side has all its rows of the partition's keys. ``left``,
    ``right``: the schemas of the sides."""

    spec: JoinSpec
    left: pa.Schema
    right: pa.Schema
    label: str

    @property
    def sliceable(self) -> tuple[bool, bool]:
        """Whether each side may be joined in parts (`spark.plan.skew`): not if rows of the other side are
        returned without a match, or at most once."""
        return self.spec.kind.repeats_right, self.spec.kind.repeats_left

    @property
    def only_first(self) -> bool:
        return self.spec.kind.is_existence

    def run(self, legs: Sequence[Leg], task: Task, memory: MemoryBudget) -> Batches:
        left, right = legs
        build_left = _size(left) < _size(right)
        smaller, larger = (left, right) if build_left else (right, left)
        held = HeldRows(memory, self.spec.keys.of(left=build_left))
        try:
            if held.fill(smaller.rows):
                build = BuildTable(self.spec, held.concatenate(self._schema(build_left)), is_left=build_left)
                yield from probe(self.spec, build, larger.rows)
            else:
                smaller.rows = chain(held.handed_on(), smaller.rows)
                yield from self._merge(left, right, task, memory)
        finally:
            held.release()

    def describe(self) -> str:
        return f"{self.label}, of"

    def _merge(self, left: Leg, right: Leg, task: Task, memory: MemoryBudget) -> Batches:
        with (
            CloseAtEnd(self._sort_side(left, task, memory, is_left=True)) as lefts,
            CloseAtEnd(self._sort_side(right, task, memory, is_left=False)) as rights,
        ):
            own = memory.share(memory.limit // _SORTING_PARTS, "merge the sides")
            yield from merge_join(self.spec, lefts, rights, own)

    def _sort_side(self, leg: Leg, task: Task, memory: MemoryBudget, *, is_left: bool) -> Batches:
        schema = self._schema(is_left)
        order = RowOrder(self.spec.keys.of(left=is_left))
        share = memory.share(
            memory.limit // _SORTING_PARTS, f"sort the {'left' if is_left else 'right'} side"
        )
        return LocalSort(order, schema, order.describe(schema.names)).run(leg.rows, task, share)

    def _schema(self, is_left: bool) -> pa.Schema:
        return self.left if is_left else self.right


def _size(leg: Leg) -> float:
    """Return the raw bytes of a leg, or infinity if they are unknown."""
    return float("inf") if leg.raw_bytes is None else leg.raw_bytes
