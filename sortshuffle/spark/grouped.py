"""`GroupedFrame`: what `ShuffleFrame.groupBy` gives; it only waits for what is to be done with the groups.

The rows of a group must be in one partition and come together (`operators.layouts`): rows that are already
placed by some of the group's keys stay where they are; otherwise there is a repartition by the keys first, as
in Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql.types import StructType

from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions import GroupApplyInArrow, GroupApplyInPandas, GroupFunction
from sortshuffle.spark.keys import check_group_key
from sortshuffle.spark.operators import aggregates
from sortshuffle.spark.operators.cogroups import CoGroupedFrame
from sortshuffle.spark.operators.layouts import ordered, placed
from sortshuffle.spark.stages import GroupApply

if TYPE_CHECKING:
    from sortshuffle.spark.frame import ShuffleFrame


class GroupedFrame:
    """The groups of a frame. ``keys``: positions of the grouping columns, in the order given."""

    def __init__(self, frame: ShuffleFrame, keys: tuple[int, ...]) -> None:
        for key in keys:
            check_group_key(frame.schema.fields[key], frame._chain.wire.field(key).type)
        self._frame = frame
        self._keys = keys

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> ShuffleFrame:
        """Like PySpark's: ``func(table)`` or ``func(key, table)`` gets one group as a `pyarrow.Table` and
        returns a table of ``schema``. A function whose type hints say that it maps an iterator of
        `pyarrow.RecordBatch` to another gets the group in parts, which need not fit into memory together."""
        return self._applied(GroupApplyInArrow.of(func, schema, self._frame._chain.context.conf, self._keys))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> ShuffleFrame:
        """Like PySpark's: ``func(pdf)`` or ``func(key, pdf)`` gets one group as a pandas DataFrame and
        returns one of ``schema``; or, if its type hints say so, it maps an iterator of DataFrames to
        another."""
        return self._applied(GroupApplyInPandas.of(func, schema, self._frame._chain.context.conf, self._keys))

    def cogroup(self, other: GroupedFrame) -> CoGroupedFrame:
        """Like PySpark's: the groups of two frames that have equal keys, together."""
        return CoGroupedFrame(self, other)

    def agg(self, *exprs: Column | dict[str, str]) -> ShuffleFrame:
        """Like PySpark's, for the functions that docs/spark.md lists, of plain columns: a row for each group.
        Groups are aggregated before the shuffle as far as that makes fewer rows of them."""
        return aggregates.aggregate(self._frame, self._keys, exprs)

    def count(self) -> ShuffleFrame:
        """The number of rows of each group."""
        return aggregates.count(self._frame, self._keys)

    def sum(self, *cols: str) -> ShuffleFrame:
        """The sum of each of these columns, or of all numeric ones."""
        return aggregates.numeric(self._frame, self._keys, "sum", cols)

    def avg(self, *cols: str) -> ShuffleFrame:
        """The average of each of these columns, or of all numeric ones."""
        return aggregates.numeric(self._frame, self._keys, "avg", cols)

    mean = avg

    def min(self, *cols: str) -> ShuffleFrame:
        """The least value of each of these columns, or of all numeric ones."""
        return aggregates.numeric(self._frame, self._keys, "min", cols)

    def max(self, *cols: str) -> ShuffleFrame:
        """The greatest value of each of these columns, or of all numeric ones."""
        return aggregates.numeric(self._frame, self._keys, "max", cols)

    def _applied(self, function: GroupFunction) -> ShuffleFrame:
        names = ", ".join(self._frame.columns[key] for key in self._keys)
        label = function.declared.place.replace("groupBy()", f"groupBy({names})")
        order = RowOrder(self._keys)
        rows = ordered(placed(self._frame, self._keys), order)
        step = GroupApply(order, function, label)
        return self._frame._derived(rows._chain.then(step, function.declared.schema))
