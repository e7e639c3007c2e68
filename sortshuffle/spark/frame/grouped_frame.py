"""`GroupedFrame`: what `ShuffleFrame.groupBy` gives; it only waits for what is to be done with the groups.

The rows of a group must be in one partition and come together (`operators.layouts`): rows that are already
placed by some of the group's keys stay where they are; otherwise there is a repartition by the keys first, as
in Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from pyspark.sql import Column
from pyspark.sql.types import StructType

from sortshuffle.errors import UsageError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.grouped import GroupApplyInArrow, GroupApplyInPandas
from sortshuffle.spark.operators import aggregates
from sortshuffle.spark.operators.cogroups import CoGroupedFrame, Frame, FrameGroups
from sortshuffle.spark.operators.key_checks import check_group_key
from sortshuffle.spark.operators.layouts import ordered, placed
from sortshuffle.spark.plan.chain import Rows
from sortshuffle.spark.steps.group_steps import GroupApply


class GroupedFrame(Generic[Frame]):
    """The groups of a `ShuffleFrame`; its methods give `ShuffleFrame`s. ``make``: makes one of rows."""

    def __init__(self, groups: FrameGroups, make: Callable[[Rows], Frame]) -> None:
        rows = groups.rows()
        for key in groups.keys:
            check_group_key(rows.schema.fields[key], rows.chain.wire.field(key).type)
        self._groups = groups
        self._make = make

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Like PySpark's: ``func(table)`` or ``func(key, table)`` gets one group as a `pyarrow.Table` and
        returns a table of ``schema``. A function whose type hints say that it maps an iterator of
        `pyarrow.RecordBatch` to another gets the group in parts, which need not fit into memory together."""
        return self._applied(GroupApplyInArrow, func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Like PySpark's: ``func(pdf)`` or ``func(key, pdf)`` gets one group as a pandas DataFrame and
        returns one of ``schema``; or, if its type hints say so, it maps an iterator of DataFrames to
        another."""
        return self._applied(GroupApplyInPandas, func, schema)

    def cogroup(self, other: GroupedFrame[Frame]) -> CoGroupedFrame[Frame]:
        """Like PySpark's: the groups of two frames that have equal keys, together."""
        if not isinstance(other, GroupedFrame):
            raise UsageError(f"cogroup() takes what groupBy() gives, not {type(other).__name__}")
        return CoGroupedFrame(self._groups, other._groups, self._make)

    def agg(self, *exprs: Column | dict[str, str]) -> Frame:
        """Like PySpark's, for the functions that docs/spark.md lists, of plain columns: a row for each group.
        Groups are aggregated before the shuffle as far as that makes fewer rows of them."""
        return self._make(aggregates.aggregate(self._groups.rows(), self._groups.keys, exprs))

    def count(self) -> Frame:
        """The number of rows of each group."""
        return self._make(aggregates.count(self._groups.rows(), self._groups.keys))

    def sum(self, *cols: str) -> Frame:
        """The sum of each of these columns, or of all numeric ones."""
        return self._numeric("sum", cols)

    def avg(self, *cols: str) -> Frame:
        """The average of each of these columns, or of all numeric ones."""
        return self._numeric("avg", cols)

    mean = avg

    def min(self, *cols: str) -> Frame:
        """The least value of each of these columns, or of all numeric ones."""
        return self._numeric("min", cols)

    def max(self, *cols: str) -> Frame:
        """The greatest value of each of these columns, or of all numeric ones."""
        return self._numeric("max", cols)

    def _numeric(self, function: str, cols: tuple[str, ...]) -> Frame:
        return self._make(aggregates.numeric(self._groups.rows(), self._groups.keys, function, cols))

    def _applied(
        self,
        adaptor: type[GroupApplyInArrow | GroupApplyInPandas],
        func: Callable[..., Any],
        schema: StructType | str,
    ) -> Frame:
        rows, keys = self._groups.rows(), self._groups.keys
        function = adaptor.of(func, schema, rows.context.conf, keys)
        names = ", ".join(rows.columns[key] for key in keys)
        label = function.declared.place.replace("groupBy()", f"groupBy({names})")
        order = RowOrder(keys)
        step = GroupApply(order, function, label)
        chain = ordered(placed(rows, keys), order).chain
        return self._make(Rows(chain.then(step, function.declared.schema)))
