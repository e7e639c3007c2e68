"""`GroupedFrame` and `CoGroupedFrame`: what `ShuffleFrame.groupBy` and ``cogroup`` return.

Their methods run in Python, if the frame's rows are there or if they take them there, and if the keys are
plain columns. Everything else is PySpark's own, on groups that PySpark makes when they are first needed.

The rows of a group must be in one partition and adjacent (`operators.layouts`). Rows that are already placed
by some of the group's keys stay where they are; otherwise they are first repartitioned by the keys, as in
Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData, PandasCogroupedOps
from pyspark.sql.types import StructType

from sortshuffle.errors import ColumnError, UnsupportedError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.frame.delegation import delegating
from sortshuffle.spark.frame.sides import attempt, columns_in, copied
from sortshuffle.spark.frame.two_sided import TwoSidedFrame
from sortshuffle.spark.functions.cogrouped import CoGroupFunction, CoGroupInArrow, CoGroupInPandas
from sortshuffle.spark.functions.grouped import GroupApplyInArrow, GroupApplyInPandas
from sortshuffle.spark.operators import aggregates
from sortshuffle.spark.operators.cogroups import GroupedRows, cogroup
from sortshuffle.spark.operators.expressions import check_spelling, column_name, resolve
from sortshuffle.spark.operators.key_checks import check_group_key
from sortshuffle.spark.operators.layouts import order_rows, place_rows
from sortshuffle.spark.plan.chain import Rows
from sortshuffle.spark.schema import quote
from sortshuffle.spark.steps.group_steps import GroupApply


@delegating(GroupedData, lambda groups, *_: groups._spark_groups())
class GroupedFrame(GroupedData):
    """The groups of a frame. ``columns``: the arguments of ``groupBy``; None for groups of another kind, such
    as a cube's. ``make``: makes PySpark's groups of a DataFrame; None if they are made (`of_made`)."""

    def __init__(
        self, frame: Any, columns: Sequence[Any] | None, make: Callable[[DataFrame], Any] | None
    ) -> None:
        self._df = frame
        self._columns = columns
        self._make = make
        self._made: Any = None

    @classmethod
    def of_made(cls, frame: Any, columns: Sequence[Any] | None, made: Any) -> GroupedFrame:
        """Return the groups of a frame that PySpark has made."""
        groups = cls(frame, columns, None)
        groups._made = made
        return groups

    def _spark_groups(self) -> Any:
        if self._made is None:
            assert self._make is not None
            self._made = self._make(self._df._for_spark())
        return self._made

    @property
    def _jgd(self) -> Any:
        return self._spark_groups()._jgd

    @property
    def _grouping_cols(self) -> Any:  # of Connect's groups, which read it of the other side in `cogroup`
        return self._spark_groups()._grouping_cols

    @property
    def session(self) -> Any:
        return self._df.sparkSession

    def __repr__(self) -> str:
        return repr(self._made if self._make is None else self._make(self._df._shadow.dataframe()))

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return self._df._delegated(method, result, args)

    # ---- functions on groups ------------------------------------------------------------------------

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> Any:
        """Apply a function to each group, as in PySpark: ``func(table)`` or ``func(key, table)`` gets a group
        as a `pyarrow.Table` and returns a table of ``schema``. If its type hints say that it maps an iterator
        of `pyarrow.RecordBatch` to another, it gets the group in parts, which need not fit into memory."""
        return self._apply("applyInArrow", GroupApplyInArrow, func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> Any:
        """Apply a function to each group, as in PySpark: ``func(pdf)`` or ``func(key, pdf)`` gets a group as
        a pandas DataFrame and returns a DataFrame of ``schema``; or, if its type hints say so, it maps an
        iterator of DataFrames to another."""
        return self._apply("applyInPandas", GroupApplyInPandas, func, schema)

    def cogroup(self, other: GroupedData) -> CoGroupedFrame:
        """Pair the groups of equal keys in two frames, as in PySpark."""
        return CoGroupedFrame(self, other)

    def _apply(
        self,
        method: str,
        adaptor: type[GroupApplyInArrow | GroupApplyInPandas],
        func: Callable[..., Any],
        schema: StructType | str,
    ) -> Any:
        def apply(frame: Any) -> Any:
            groups = self._groups(frame)
            return frame._derive(
                _applied(groups, adaptor.of(func, schema, frame._rows.context.conf, groups.keys))
            )

        by_spark = functools.partial(self._by_spark, method, func, schema)
        return attempt(self._df, method, apply, by_spark)

    # ---- aggregates ---------------------------------------------------------------------------------

    def agg(self, *exprs: Column | dict[str, str]) -> Any:
        """Aggregate each group into a row, as in PySpark. Python computes the functions of plain columns that
        docs/spark.md lists. Rows are aggregated before the shuffle too, as far as that makes them fewer."""
        return self._aggregate("agg", exprs, functools.partial(aggregates.aggregate, exprs=exprs))

    def count(self) -> Any:
        """Count the rows of each group."""
        return self._aggregate("count", (), aggregates.count)

    def sum(self, *cols: str) -> Any:
        """Return the sums of the named columns, or of all numeric ones."""
        return self._numeric("sum", cols)

    def avg(self, *cols: str) -> Any:
        """Return the averages of the named columns, or of all numeric ones."""
        return self._numeric("avg", cols)

    mean = avg

    def min(self, *cols: str) -> Any:
        """Return the minima of the named columns, or of all numeric ones."""
        return self._numeric("min", cols)

    def max(self, *cols: str) -> Any:
        """Return the maxima of the named columns, or of all numeric ones."""
        return self._numeric("max", cols)

    def _numeric(self, method: str, cols: tuple[str, ...]) -> Any:
        return self._aggregate(
            method, cols, functools.partial(aggregates.numeric, function=method, cols=cols)
        )

    def _aggregate(
        self,
        method: str,
        args: tuple[Any, ...],
        operator: Callable[[Rows, tuple[int, ...], DataFrame], Rows],
    ) -> Any:
        """Aggregate in Python if the rows are there: an aggregate does not take rows from Spark. ``operator``
        gets the rows, the keys and the frame's twin."""
        frame, args = self._df, copied(args)
        by_spark = functools.partial(self._by_spark, method, *args)
        if not frame._is_in_python:
            return by_spark()

        def aggregate(frame: Any) -> Any:
            frame._check_columns(list(columns_in(args)))  # `operator` looks them up by name
            groups = self._groups(frame)
            return frame._derive(operator(groups.rows, groups.keys, frame._twin))

        make = self._make

        def aggregated(shadow: DataFrame) -> DataFrame:
            assert make is not None
            made: DataFrame = getattr(make(shadow), method)(*args)
            return made

        shadow = frame._shadow_by(aggregated) if make is not None else None
        return attempt(frame, method, aggregate, by_spark, shadow)

    # ---- inside -------------------------------------------------------------------------------------

    def _by_spark(self, method: str, *args: Any) -> Any:
        return self._df._wrap(method, getattr(self._spark_groups(), method)(*args), args)

    def _groups(self, frame: TwoSidedFrame) -> GroupedRows:
        """Return the groups of ``frame``, which is the grouped frame on Python's side. Raises `UsageError`
        unless the keys are plain columns that can be compared here."""
        if self._columns is None:
            raise UnsupportedError("only Spark has groups of this kind")
        frame._check_columns([each for each in self._columns if isinstance(each, Column)])
        rows = frame._rows
        case_sensitive = rows.context.case_sensitive
        keys = tuple(resolve(_name_of(each, rows), rows.schema, case_sensitive) for each in self._columns)
        check_spelling([_name_of(each, rows) for each in self._columns], keys, rows.columns)
        for key in keys:
            check_group_key(rows.schema.fields[key], rows.chain.wire.field(key).type)
        return GroupedRows(rows, keys)


@delegating(PandasCogroupedOps, lambda groups, *_: groups._spark_groups())
class CoGroupedFrame(PandasCogroupedOps):
    """The groups of two frames. The function gets both groups of each key, of which one may be empty."""

    def __init__(self, gd1: GroupedFrame, gd2: Any) -> None:
        self._gd1 = gd1
        self._gd2 = gd2

    def _spark_groups(self) -> Any:
        other = self._gd2
        right = other._spark_groups() if isinstance(other, GroupedFrame) else other
        return self._gd1._spark_groups().cogroup(right)

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return self._gd1._delegated(method, result, args)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> Any:
        """Call ``func(left, right)`` or ``func(key, left, right)`` for each key, as PySpark does. It receives
        both groups as `pyarrow.Table`s, and returns a table of ``schema``."""
        return self._apply("applyInArrow", CoGroupInArrow, func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> Any:
        """Call ``func(left, right)`` or ``func(key, left, right)`` for each key, as PySpark does. It receives
        both groups as pandas DataFrames, and returns one of ``schema``."""
        return self._apply("applyInPandas", CoGroupInPandas, func, schema)

    def _apply(
        self, method: str, adaptor: type[CoGroupFunction], func: Callable[..., Any], schema: StructType | str
    ) -> Any:
        left, right = self._gd1, self._gd2

        def apply(frame: Any) -> Any:
            if not isinstance(right, GroupedFrame):
                raise UnsupportedError("the groups of the other side are those of an ordinary DataFrame")
            other = right._df._for_function("cogroup")
            return frame._derive(
                cogroup(left._groups(frame), right._groups(other), adaptor, func, schema), other
            )

        def by_spark() -> Any:
            made = getattr(self._spark_groups(), method)(func, schema)
            return left._df._wrap("cogroup", made, [right._df])

        others = [right._df] if isinstance(right, GroupedFrame) else []
        return attempt(left._df, "cogroup", apply, by_spark, others=others)


def _name_of(column: Any, rows: Rows) -> str:
    """Return the name of a grouping column: a name, a Column, or an ordinal, which counts from 1."""
    if isinstance(column, int) and not isinstance(column, bool):
        if not 1 <= column <= len(rows.columns):
            raise ColumnError(f"there is no column {column}: the frame has {len(rows.columns)}")
        return quote(rows.columns[column - 1])
    return column_name(column)


def _applied(groups: GroupedRows, function: Any) -> Rows:
    """Return what a function makes of each group."""
    rows, keys = groups.rows, groups.keys
    names = ", ".join(rows.columns[key] for key in keys)
    label = function.declared.place.replace("groupBy()", f"groupBy({names})")
    order = RowOrder(keys)
    chain = order_rows(place_rows(rows, keys), order).chain
    return Rows(chain.then(GroupApply(order, function, label), function.declared.schema))
