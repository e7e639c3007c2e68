"""`GroupedFrame`: the result of `ShuffleFrame.groupBy`, whose methods say what to do with the groups.

The rows of a group must be in one partition and adjacent (`operators.layouts`). Rows that are already placed
by some of the group's keys stay where they are; otherwise they are first repartitioned by the keys, as in
Spark.
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
from sortshuffle.spark.operators.layouts import order_rows, place_rows
from sortshuffle.spark.plan.chain import Rows
from sortshuffle.spark.steps.group_steps import GroupApply


class GroupedFrame(Generic[Frame]):
    """The groups of a `ShuffleFrame`. Its methods return frames, which ``make`` makes of rows."""

    def __init__(self, groups: FrameGroups, make: Callable[[Rows], Frame]) -> None:
        rows = groups.rows()
        for key in groups.keys:
            check_group_key(rows.schema.fields[key], rows.chain.wire.field(key).type)
        self._groups = groups
        self._make = make

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Apply a function to each group, as in PySpark: ``func(table)`` or ``func(key, table)`` gets a group
        as a `pyarrow.Table` and returns a table of ``schema``. If its type hints say that it maps an iterator
        of `pyarrow.RecordBatch` to another, it gets the group in parts, which need not fit into memory."""
        return self._apply(GroupApplyInArrow, func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> Frame:
        """Apply a function to each group, as in PySpark: ``func(pdf)`` or ``func(key, pdf)`` gets a group as
        a pandas DataFrame and returns a DataFrame of ``schema``; or, if its type hints say so, it maps an
        iterator of DataFrames to another."""
        return self._apply(GroupApplyInPandas, func, schema)

    def cogroup(self, other: GroupedFrame[Frame]) -> CoGroupedFrame[Frame]:
        """Pair the groups of equal keys in two frames, as in PySpark."""
        if not isinstance(other, GroupedFrame):
            raise UsageError(f"cogroup() takes what groupBy() gives, not {type(other).__name__}")
        return CoGroupedFrame(self._groups, other._groups, self._make)

    def agg(self, *exprs: Column | dict[str, str]) -> Frame:
        """Aggregate each group into a row, as in PySpark, by the functions of plain columns that
        docs/spark.md lists. Rows are aggregated before the shuffle too, as far as that makes them fewer."""
        return self._make(aggregates.aggregate(self._groups.rows(), self._groups.keys, exprs))

    def count(self) -> Frame:
        """Count the rows of each group."""
        return self._make(aggregates.count(self._groups.rows(), self._groups.keys))

    def sum(self, *cols: str) -> Frame:
        """Return the sums of the named columns, or of all numeric ones."""
        return self._numeric("sum", cols)

    def avg(self, *cols: str) -> Frame:
        """Return the averages of the named columns, or of all numeric ones."""
        return self._numeric("avg", cols)

    mean = avg

    def min(self, *cols: str) -> Frame:
        """Return the minima of the named columns, or of all numeric ones."""
        return self._numeric("min", cols)

    def max(self, *cols: str) -> Frame:
        """Return the maxima of the named columns, or of all numeric ones."""
        return self._numeric("max", cols)

    def _numeric(self, function: str, cols: tuple[str, ...]) -> Frame:
        return self._make(aggregates.numeric(self._groups.rows(), self._groups.keys, function, cols))

    def _apply(
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
        chain = order_rows(place_rows(rows, keys), order).chain
        return self._make(Rows(chain.then(step, function.declared.schema)))
