"""``cogroup``: the groups of two frames that have equal keys, together.

Both frames are placed alike, by Spark's hash of their keys, and sorted by them; partition by partition the
two sorted streams go side by side (`compute.cogroup`), so of each side one group is held, and a batch. A side
that is already placed by its keys, or by some of them, stays where it is, and the other follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from sortshuffle.compute.cogroup import Side, cogroup, comparable
from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions import CoGroupFunction, CoGroupInArrow, CoGroupInPandas
from sortshuffle.spark.operators.layouts import (
    common_context,
    hash_exchanged,
    ordered,
    placed_exactly,
    placement_of,
)
from sortshuffle.spark.origins import TogetherOrigin
from sortshuffle.spark.plan import Chain
from sortshuffle.spark.several import Leg
from sortshuffle.spark.stages import Batches
from sortshuffle.spark.task import Task

if TYPE_CHECKING:
    from sortshuffle.spark.frame import ShuffleFrame
    from sortshuffle.spark.grouped import GroupedFrame


class CoGroupedFrame:
    """The groups of two frames. Raises `UsageError` and `ColumnError` where they have no common keys."""

    def __init__(self, left: GroupedFrame, right: GroupedFrame) -> None:
        _check_sides(left, right)
        self._left = left
        self._right = right

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> ShuffleFrame:
        """Like PySpark's: ``func(left, right)`` or ``func(key, left, right)`` gets the groups of one key,
        each as a `pyarrow.Table` that may be empty, and returns a table of ``schema``."""
        return self._applied(CoGroupInArrow, func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> ShuffleFrame:
        """Like PySpark's: ``func(left, right)`` or ``func(key, left, right)`` gets the groups of one key,
        each as a pandas DataFrame that may be empty, and returns one of ``schema``."""
        return self._applied(CoGroupInPandas, func, schema)

    def _applied(
        self, adaptor: type[CoGroupFunction], func: Callable[..., Any], schema: StructType | str
    ) -> ShuffleFrame:
        sides = (self._left, self._right)
        keys = (self._left._keys, self._right._keys)
        first = self._left._frame
        context = first._chain.context
        function = adaptor.of(func, schema, context.conf, *keys)
        frames = _placed_alike([side._frame for side in sides], keys)
        orders = [RowOrder(own) for own in keys]
        chains = [ordered(each, order)._chain for each, order in zip(frames, orders, strict=True)]
        named = (", ".join(side._frame.columns[key] for key in side._keys) for side in sides)
        label = function.declared.place.replace("cogroup()", "cogroup({} with {})".format(*named))
        combine = CoGroupApply(function, (orders[0], orders[1]), (chains[0].wire, chains[1].wire), label)
        declared = function.declared.schema
        origin = TogetherOrigin(tuple(chains), combine)
        return first._derived(Chain(context, origin, declared, context.wire(declared)))


@dataclass(frozen=True, slots=True)
class CoGroupApply:
    """A function of the groups of two legs, each sorted by its order."""

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


def _check_sides(left: GroupedFrame, right: Any) -> None:
    from sortshuffle.spark.grouped import GroupedFrame

    if not isinstance(right, GroupedFrame):
        raise UsageError(f"cogroup() takes what groupBy() gives, not {type(right).__name__}")
    common_context(left._frame, right._frame, "cogroup")
    if len(left._keys) != len(right._keys):
        raise UsageError(
            f"both sides of a cogroup must have the same number of keys, not {len(left._keys)} and"
            f" {len(right._keys)}"
        )
    for own, other in zip(left._keys, right._keys, strict=True):
        ours, theirs = left._frame.schema.fields[own], right._frame.schema.fields[other]
        if not comparable(
            left._frame._chain.wire.field(own).type, right._frame._chain.wire.field(other).type
        ):
            raise ColumnError(
                f"the keys of a cogroup must be of the same types: {ours.name} is"
                f" {ours.dataType.simpleString()} and {theirs.name} {theirs.dataType.simpleString()}, whose"
                " equal values are placed apart. Cast one of them first"
            )


def _placed_alike(
    frames: Sequence[ShuffleFrame], keys: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[ShuffleFrame]:
    """The frames with rows of equal keys in partitions of one number, each straight from an exchange."""
    sides = (placement_of(frame, own) for frame, own in zip(frames, keys, strict=True))
    found = next((placement for placement in sides if placement is not None), None)
    if found is None:
        count = frames[0]._shuffle_partitions() if keys[0] else 1
        return [hash_exchanged(each, its, count) for each, its in zip(frames, keys, strict=True)]
    by, count = found
    return [
        placed_exactly(each, tuple(its[key] for key in by), count)
        for each, its in zip(frames, keys, strict=True)
    ]
