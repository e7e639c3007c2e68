"""`ShuffleFrame`: PySpark's DataFrame, with stages that run in Python and exchange their rows on sortshuffle.

    frame(df) or read(spark).parquet(path), or any DataFrame of a session of `sortshuffle.session()`
        .mapInArrow(...) .repartition(n, "k") .groupBy("k").applyInArrow(...)

A frame is an immutable, lazy description (`spark.plan.chain`). Consecutive functions run in one pass in one
Python worker. `two_sided` explains where rows are, and when they go to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.resource import ResourceProfile
from pyspark.sql import Column, DataFrame, DataFrameWriter
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from sortshuffle.errors import ColumnError, UnsupportedError, UsageError
from sortshuffle.partitioner import SortKey
from sortshuffle.partitioner.selector import MAX_SUBPARTITIONS
from sortshuffle.spark.frame.delegation import own_errors
from sortshuffle.spark.frame.frame_writer import FrameWriter
from sortshuffle.spark.frame.grouped_frame import GroupedFrame
from sortshuffle.spark.frame.two_sided import TwoSidedFrame, exchanging, in_python, taking_rows
from sortshuffle.spark.functions.maps import MapFunction, MapInArrow, MapInPandas
from sortshuffle.spark.operators import aggregates, columns, joins, sorting
from sortshuffle.spark.operators import rows as row_operators
from sortshuffle.spark.operators.expressions import (
    Alias,
    Star,
    check_spelling,
    column_name,
    name_of,
    node_of,
    positions_to_drop,
    quote,
    resolve,
    sort_key,
)
from sortshuffle.spark.operators.key_checks import check_id_column, check_range_key
from sortshuffle.spark.operators.layouts import exchange_rows, hash_exchanged
from sortshuffle.spark.operators.partition_counts import default_partitions
from sortshuffle.spark.operators.selection import reading_only, select_columns
from sortshuffle.spark.operators.translation import filter_of, projection_of
from sortshuffle.spark.parquet.pruning import binds
from sortshuffle.spark.plan import explain as explaining
from sortshuffle.spark.plan.chain import Rows, next_number
from sortshuffle.spark.plan.origins import ParquetOrigin
from sortshuffle.spark.plan.schemes import Id, Range, RoundRobin
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.steps.selection_steps import Filter
from sortshuffle.spark.worker.reports import StageTotals, stage_totals
from sortshuffle.spark.worker.stages import CountRows

_BROADCAST_HINTS = ("broadcast", "broadcastjoin", "mapjoin")  # Spark's names of one hint
LONGEST_LABEL = 120  # characters of arguments that are shown

ColumnLike: TypeAlias = "str | Column"
P = ParamSpec("P")


class ShuffleFrame(TwoSidedFrame):
    """A DataFrame whose Python stages run, and exchange their rows, on sortshuffle.

    Made by `sortshuffle.session`, `sortshuffle.frame` and `sortshuffle.read`. It has all of PySpark's
    methods. Those that are defined here run in Python if the frame's rows are there; the others in Spark.
    """

    # ---- description ------------------------------------------------------------------------------

    @property
    def schema(self) -> StructType:
        """Spark's schema of the rows."""
        own = self._own_rows
        return self._as_plain().schema if own is None else own.schema

    @property
    def isStreaming(self) -> bool:
        """Whether the rows come from a stream."""
        return self._own_rows is None and self._as_plain().isStreaming

    def printSchema(self, level: int | None = None) -> None:
        """Print the schema as a tree."""
        self._shadow().printSchema(level)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print the plan: on Python's side the stages, the steps chained in each, and, after a run, the work
        that each has done; otherwise Spark's plan. After it come the places where rows go from Spark to
        Python or back. With ``extended`` or ``mode``: Spark's plan, as in PySpark."""
        if self._own_rows is None or extended is not None or mode is not None:
            self._as_plain().explain(extended, mode)
        else:
            print(explaining.text(self._chain, self.stage_totals(), self._runs))
        if self._crossings:
            print("Rows cross between Spark and Python:")
            print("\n".join(f"  {crossing.describe()}" for crossing in self._crossings))

    def stage_totals(self) -> list[StageTotals]:
        """Return the work of all tasks so far, per stage, for this frame and those made from the same source.
        The list is empty over Spark Connect, where tasks cannot report."""
        if self._own_rows is None:
            return []
        reports = (each for source in self._chain.reports() for each in source.value.items())
        return stage_totals(reports)

    # ---- functions on batches ---------------------------------------------------------------------

    @taking_rows
    def mapInArrow(
        self,
        func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: StructType | str,
        barrier: bool = False,
        profile: ResourceProfile | None = None,
    ) -> ShuffleFrame:
        """Map each partition's iterator of record batches to another, like `DataFrame.mapInArrow`."""
        _check_plain_stage("mapInArrow", barrier, profile)
        return self._map(MapInArrow.of(func, schema, self._chain.context.conf))

    @taking_rows
    def mapInPandas(
        self,
        func: Callable[[Iterator[Any]], Iterator[Any]],
        schema: StructType | str,
        barrier: bool = False,
        profile: ResourceProfile | None = None,
    ) -> ShuffleFrame:
        """Map each partition's iterator of pandas DataFrames to another, like `DataFrame.mapInPandas`."""
        _check_plain_stage("mapInPandas", barrier, profile)
        return self._map(MapInPandas.of(func, schema, self._chain.context.conf))

    # ---- columns and rows -------------------------------------------------------------------------

    @in_python
    def select(self, *cols: Any) -> ShuffleFrame:
        """Select columns and expressions, like `DataFrame.select`. Arrow computes the expressions that it is
        known to compute like Spark."""
        try:
            positions, names = self._plain_columns(_as_list(cols))
        except ColumnError:
            return self._project("select", *cols)
        return self._apply(select_columns, tuple(positions), names)

    def _plain_columns(self, cols: Sequence[ColumnLike]) -> tuple[list[int], list[str]]:
        """Return the positions and new names of plain columns. Raises `ColumnError` for an expression."""
        positions: list[int] = []
        names: list[str] = []
        for col in cols:
            node = node_of(col)
            if isinstance(node, Star):
                positions += range(len(self.columns))
                names += self.columns
                continue
            name = name_of(node.child if isinstance(node, Alias) else node, col)
            positions.append(self._position(name))
            if not isinstance(node, Alias):
                check_spelling([name], positions[-1:], self.columns)
            names.append(node.name if isinstance(node, Alias) else self.columns[positions[-1]])
        return positions, names

    @in_python
    def selectExpr(self, *expr: Any) -> ShuffleFrame:
        """Select SQL expressions, like `DataFrame.selectExpr`."""
        return self._project("selectExpr", *expr)

    @in_python
    def drop(self, *cols: ColumnLike) -> ShuffleFrame:
        """Drop columns, like `DataFrame.drop`. Unknown names are ignored."""
        case_sensitive = self._chain.context.case_sensitive
        dropped = {at for col in cols for at in positions_to_drop(col, self.schema, case_sensitive)}
        kept = tuple(at for at in range(len(self.columns)) if at not in dropped)
        return self._apply(select_columns, kept, [self.columns[at] for at in kept])

    @in_python
    def withColumn(self, colName: str, col: pc.Expression | Column) -> ShuffleFrame:
        """Add a column, like `DataFrame.withColumn`, or replace the column of this name. The value is one of
        Spark's expressions, or an Arrow expression such as ``pyarrow.compute.field("k") + 1``."""
        if not isinstance(col, Column | pc.Expression):
            raise UsageError(f"withColumn() takes a Column, not {type(col).__name__}")
        return self._with_columns({colName: col})

    @in_python
    def withColumns(self, *colsMap: Mapping[str, pc.Expression | Column]) -> ShuffleFrame:
        """Add several columns, like `DataFrame.withColumns`. No expression sees the result of another."""
        if len(colsMap) != 1 or not isinstance(colsMap[0], Mapping):
            raise UsageError("withColumns() takes one dict of names and columns")
        return self._with_columns(colsMap[0])

    def _with_columns(self, new: Mapping[str, pc.Expression | Column]) -> ShuffleFrame:
        if not any(isinstance(column, pc.Expression) for column in new.values()):
            return self._project("withColumns", new)
        frame = self._apply(columns.with_columns, new)
        # Spark does not know Arrow's expressions, but their types
        types = {name: sf.lit(None).cast(frame.schema[name].dataType) for name in new}
        frame._make_shadow, frame._sources = lambda: self._shadow().withColumns(types), (self,)
        return frame

    @in_python
    def withColumnRenamed(self, existing: str, new: str) -> ShuffleFrame:
        """Rename a column, like `DataFrame.withColumnRenamed`. An unknown name is ignored."""
        return self._apply(columns.with_columns_renamed, {existing: new})

    @in_python
    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> ShuffleFrame:
        """Rename several columns, like `DataFrame.withColumnsRenamed`."""
        return self._apply(columns.with_columns_renamed, colsMap)

    @in_python
    def filter(self, condition: pc.Expression | Column | str) -> ShuffleFrame:
        """Keep the rows for which a condition is true, like `DataFrame.filter`. Arrow evaluates conditions of
        Spark's that it is known to evaluate alike, and Arrow expressions such as
        ``pyarrow.compute.field("k") > 5``.

        A filter that directly follows a Parquet scan also skips row groups by their statistics, unless it
        uses floating point columns (whose statistics ignore NaNs): give those columns a separate filter.
        Raises `UsageError` for an Arrow expression that is not a boolean one over the columns.
        """
        if isinstance(condition, pc.Expression):
            _check_condition(condition, self._chain.wire)
            frame = self._filter(condition)
            # Spark cannot make one: it does not know the condition
            frame._make_shadow, frame._sources = self._shadow, (self,)
            return frame
        shadow = self._shadow()
        filtered = shadow.filter(condition)
        expression = filter_of(shadow, filtered, self._chain.context.conf.timezone)
        if expression is None:
            raise UnsupportedError(_computed_by_spark("filter", (condition,)))
        frame = self._filter(expression)
        frame._set_shadow(filtered, self)
        return frame

    where = filter

    @in_python
    def limit(self, num: int) -> ShuffleFrame:
        """Keep the first ``num`` rows in partition order, in one partition, like `DataFrame.limit`."""
        return self._apply(row_operators.limit, num)

    @in_python
    def sample(
        self,
        withReplacement: float | bool | None = None,
        fraction: int | float | None = None,
        seed: int | None = None,
    ) -> ShuffleFrame:
        """Sample rows, like `DataFrame.sample`: each with the probability ``fraction``, or, with replacement,
        ``fraction`` times on average. The same seed and partitions give the same rows, but not Spark's."""
        return self._apply(row_operators.sample, withReplacement, fraction, seed)

    @in_python
    def alias(self, alias: str) -> ShuffleFrame:
        """Return the frame under a name, by which expressions can qualify its columns: ``"a.k"``."""
        frame = self._derive(self._rows)
        frame._set_shadow(self._shadow().alias(alias), self)
        return frame

    @in_python
    def hint(self, name: str, *parameters: Any) -> ShuffleFrame:
        """Return the frame with a hint, like `DataFrame.hint`. ``"broadcast"`` marks it for joins in Python,
        as `sortshuffle.broadcast` does."""
        if not isinstance(name, str) or name.lower() not in _BROADCAST_HINTS or parameters:
            raise UnsupportedError("only Spark's planner follows hints other than broadcast")
        return self._derive(replace(self._rows, broadcast=True))

    @in_python
    def union(self, other: DataFrame) -> ShuffleFrame:
        """Append the rows of another frame, with columns matched by position, like `DataFrame.union`."""
        right = self._other(other, "union")
        return self._derive(row_operators.union(self._rows, right._rows), right)

    unionAll = union  # noqa: N815  PySpark's name

    @in_python
    def unionByName(self, other: DataFrame, allowMissingColumns: bool = False) -> ShuffleFrame:
        """Append the rows of another frame, with columns matched by name, like `DataFrame.unionByName`."""
        right = self._other(other, "unionByName")
        return self._derive(row_operators.union_by_name(self._rows, right._rows, allowMissingColumns), right)

    @in_python
    def distinct(self) -> ShuffleFrame:
        """Keep one of each set of equal rows, like `DataFrame.distinct`."""
        return self._apply(aggregates.distinct)

    @in_python
    def dropDuplicates(self, subset: list[str] | None = None) -> ShuffleFrame:
        """Keep one row for each combination of values in the columns of ``subset``, or in all columns, like
        `DataFrame.dropDuplicates`."""
        return self._apply(aggregates.drop_duplicates, subset)

    drop_duplicates = dropDuplicates

    # ---- shuffles ---------------------------------------------------------------------------------

    @exchanging
    def repartition(self, numPartitions: int | ColumnLike, *cols: ColumnLike) -> ShuffleFrame:
        """Repartition by Spark's hash of the columns, or evenly if none is named, like PySpark's method.

        ``repartition(n, *cols)``, ``repartition(*cols)`` (into ``spark.sql.shuffle.partitions``) or
        ``repartition(n)``.
        """
        count, columns = self._count_and_columns("repartition", numPartitions, cols)
        if not columns:
            return self._apply(exchange_rows, RoundRobin(), count)
        return self._apply(hash_exchanged, tuple(self._position(column) for column in columns), count)

    @exchanging
    def repartitionByRange(self, numPartitions: int | ColumnLike, *cols: ColumnLike) -> ShuffleFrame:
        """Repartition into ascending ranges of the columns' values, like `DataFrame.repartitionByRange`.

        ``repartitionByRange(n, *cols)`` or ``repartitionByRange(*cols)``. A column may have a direction, such
        as ``df.k.desc()`` or ``asc_nulls_last("k")``. When the exchange is built (at `toDF()` or the first
        action), a job samples the rows to find the ranges, and runs the steps before the exchange for it.
        """
        count, columns = self._count_and_columns("repartitionByRange", numPartitions, cols)
        if not columns:
            raise UsageError("repartitionByRange() takes at least one column")
        keys: dict[int, SortKey] = {}
        for column in columns:
            plain, descending, nulls_last = sort_key(column)
            key = self._position(plain)
            check_range_key(self.schema.fields[key], self._chain.wire.field(key).type)
            keys.setdefault(key, SortKey(key, descending, nulls_last))  # a repeated column decides nothing
        return self._apply(exchange_rows, Range(tuple(keys.values()), count, next_number()), count)

    @exchanging
    def repartitionById(self, numPartitions: int, partitionIdCol: ColumnLike) -> ShuffleFrame:
        """Move each row to the partition whose number is in an int column, like `DataFrame.repartitionById`.

        Numbers are taken modulo ``numPartitions``, never negative; a null counts as 0.
        """
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise UsageError(
                f"repartitionById() takes a number of partitions, not {type(numPartitions).__name__}"
            )
        key = self._position(partitionIdCol)
        check_id_column(self.schema.fields[key])
        return self._apply(exchange_rows, Id(key), _check_count("repartitionById", numPartitions))

    @in_python
    def coalesce(self, numPartitions: int) -> ShuffleFrame:
        """Combine partitions into fewer, without a shuffle, like `DataFrame.coalesce`."""
        return self._apply(row_operators.coalesce, numPartitions, self._as_plain)

    @in_python
    def sort(self, *cols: Any, **kwargs: Any) -> ShuffleFrame:
        """Sort the rows over all partitions, like `DataFrame.sort`, into at most
        ``spark.sql.shuffle.partitions`` partitions. Samples the rows as `repartitionByRange` does.
        ``ascending``: a direction, or one for each column."""
        return self._apply(sorting.sort, cols, kwargs.get("ascending", True))

    orderBy = sort  # noqa: N815

    @in_python
    def sortWithinPartitions(self, *cols: Any, **kwargs: Any) -> ShuffleFrame:
        """Sort each partition, like `DataFrame.sortWithinPartitions`."""
        return self._apply(sorting.sort_within_partitions, cols, kwargs.get("ascending", True))

    def groupBy(self, *cols: Any) -> GroupedFrame:
        """Group the rows by columns, like `DataFrame.groupBy`, for ``.agg``, ``.count`` and other aggregates,
        ``.applyInArrow``, ``.applyInPandas``, ``.cogroup``."""
        columns = _as_list(cols)
        if self._own_rows is None:
            groups = super().groupBy(*cols)
            return GroupedFrame(self, columns, lambda: groups)
        return GroupedFrame(self, columns, lambda: super(ShuffleFrame, self).groupBy(*cols))

    groupby = groupBy

    def agg(self, *exprs: Column | dict[str, str]) -> ShuffleFrame:
        """Aggregate all rows into one, like `DataFrame.agg`."""
        aggregated: ShuffleFrame = self.groupBy().agg(*exprs)
        return aggregated

    @in_python
    def join(
        self,
        other: DataFrame,
        on: str | list[str] | Column | list[Column] | None = None,
        how: str | None = None,
    ) -> ShuffleFrame:
        """Join two frames, like `DataFrame.join`, on columns of equal names or on equalities of columns.
        ``how``: inner (None), left, right, full, semi, anti, and PySpark's other names for these. A side
        marked by `sortshuffle.broadcast` is broadcast where the kind of join allows it."""
        right = self._other(other, "join")
        return self._derive(joins.join(self._rows, right._rows, on, how), right)

    # ---- results ----------------------------------------------------------------------------------

    def toDF(self, *cols: str) -> DataFrame:
        """Without names return the rows as an ordinary lazy DataFrame, in the same partitions. Spark's
        planner knows by which columns they are placed and sorted, and about how large they are
        (`spark.plan.hints`). With names return the frame with its columns renamed, like `DataFrame.toDF`."""
        if not cols:
            return self._as_plain()
        if (
            self._own_rows is None
            or len(cols) != len(self.columns)
            or not all(isinstance(name, str) for name in cols)
        ):
            return self._by_spark("toDF", *cols)
        return self.select(
            *(sf.col(quote(old)).alias(new) for old, new in zip(self.columns, cols, strict=True))
        )

    def count(self) -> int:
        """Return the number of rows, counted in Python, without JVM rows, unless the frame is persisted."""
        if self._is_kept or self._own_rows is None:
            return int(super().count())
        rows = self._rows
        chain = (reading_only(rows, ()) or rows).chain
        counts = plan_stage(chain, self._new_run(), CountRows(), "rows long")
        with own_errors():
            return sum(row.rows for row in counts.collect())

    def collect(self) -> list[Any]:
        """Return all rows, as Spark's Row objects."""
        with own_errors():
            rows: list[Any] = self._as_plain().collect()
            return rows

    def take(self, num: int) -> list[Any]:
        """Return the first ``num`` rows, computing as few partitions as needed, like `DataFrame.take`."""
        with own_errors():
            rows: list[Any] = self._as_plain().take(num)
            return rows

    @property
    def write(self) -> DataFrameWriter:
        """A writer of the rows. Parquet files are written by the Python workers if the rows are there."""
        return super().write if self._own_rows is None else FrameWriter(self)

    def observe(self, observation: Any, *exprs: Column) -> ShuffleFrame:
        """Return the frame with an observation, like `DataFrame.observe`. Spark makes its rows."""
        observed: ShuffleFrame = self._by_spark("observe", observation, *exprs)
        observed._is_observed = True
        return observed

    def persist(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> ShuffleFrame:
        """Keep the rows in Spark's cache once they are computed. Frames made from this frame afterwards read
        them there. Return this frame."""
        super().persist(storageLevel)
        self._is_kept = True
        return self

    def cache(self) -> ShuffleFrame:
        """Return `persist` with Spark's default storage level."""
        return self.persist()

    def unpersist(self, blocking: bool = False) -> ShuffleFrame:
        """Drop the rows from Spark's cache. Return this frame."""
        super().unpersist(blocking)
        self._is_kept = False
        return self

    # ---- inside -----------------------------------------------------------------------------------

    def _apply(
        self, operator: Callable[Concatenate[Rows, P], Rows], *args: P.args, **kwargs: P.kwargs
    ) -> ShuffleFrame:
        """Return a frame of what an operator makes of the rows, or this frame if it leaves them unchanged."""
        rows = self._rows
        made = operator(rows, *args, **kwargs)
        return self if made is rows else self._derive(made)

    def _map(self, step: MapFunction) -> ShuffleFrame:
        return self._derive(Rows(self._chain.then(step, step.declared.schema)))

    def _project(self, method: str, *args: Any) -> ShuffleFrame:
        """Return what ``select`` or a similar method returns, with Spark's expressions computed by Arrow.
        Raises `UnsupportedError` unless Arrow is known to compute the same."""
        shadow = self._shadow()
        projected = getattr(shadow, method)(*args)
        sources = projection_of(shadow, projected, self._chain.context.conf.timezone)
        if sources is None:
            raise UnsupportedError(_computed_by_spark(method, args))
        frame = self._apply(columns.project, sources, projected.schema, f"{method}({_shown(args)})")
        frame._set_shadow(projected, self)
        return frame

    def _filter(self, condition: pc.Expression) -> ShuffleFrame:
        rows = self._rows
        chain, origin = rows.chain, rows.chain.origin
        if isinstance(origin, ParquetOrigin) and not chain.steps:
            filters = (*origin.filters, condition)
            return self._derive(Rows(replace(chain, origin=replace(origin, filters=filters))))
        return self._derive(Rows(chain.then(Filter(condition), self.schema), rows.layout))

    def _wrap(self, result: Any, args: Sequence[Any]) -> Any:
        if type(result).__name__ == "GroupedData":  # PySpark has two classes of this name
            return GroupedFrame(self, None, lambda: result)
        return super()._wrap(result, args)

    def _other(self, other: Any, operator: str) -> ShuffleFrame:
        """Return the frame ``other``, an argument of ``operator``, on Python's side. Raises `UsageError` if
        it is no DataFrame."""
        if not isinstance(other, DataFrame):
            raise UsageError(f"{operator}() takes a DataFrame, not {type(other).__name__}")
        if other._is_observed if isinstance(other, ShuffleFrame) else self._has_observation(other):
            raise UnsupportedError("Spark reports what observe() asks for only of plans that it runs itself")
        frame = other if isinstance(other, ShuffleFrame) else self._of_plain(other, self.sparkSession)
        taken = frame._taken(operator)
        if taken is not frame and self._has_broadcast_hint(other):
            taken = taken._derive(replace(taken._rows, broadcast=True))
        return taken

    def _has_observation(self, other: DataFrame) -> bool:
        """Return whether the plan of an ordinary DataFrame has an observation."""
        return False  # over Spark Connect that is not known

    def _has_broadcast_hint(self, other: DataFrame) -> bool:
        """Return whether a frame of Spark's side was marked by PySpark's `broadcast`."""
        return False  # over Spark Connect that is not known

    def _position(self, col: ColumnLike) -> int:
        return resolve(column_name(col), self.schema, self._chain.context.case_sensitive)

    def _count_and_columns(
        self, method: str, numPartitions: int | ColumnLike, cols: tuple[Any, ...]
    ) -> tuple[int, list[ColumnLike]]:
        """Return the number of partitions and the columns, if any, from the arguments of ``method``."""
        columns = _as_list(cols)
        if isinstance(numPartitions, str | Column):
            return default_partitions(self._rows), [numPartitions, *columns]
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise UsageError(
                f"{method}() takes a number of partitions or columns, not {type(numPartitions).__name__}"
            )
        return _check_count(method, numPartitions), columns


def _as_list(cols: tuple[Any, ...]) -> list[ColumnLike]:
    return list(cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols)


def _computed_by_spark(method: str, args: tuple[Any, ...]) -> str:
    return f"Arrow is not known to compute {method}({_shown(args)}) as Spark does"


def _shown(args: tuple[Any, ...]) -> str:
    text = ", ".join(map(str, args))
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}..."


def _check_plain_stage(method: str, barrier: bool, profile: Any) -> None:
    if barrier or profile is not None:
        raise UnsupportedError(f"{method}() runs barrier stages and resource profiles in Spark")


def _check_count(method: str, count: int) -> int:
    if not 1 <= count <= MAX_SUBPARTITIONS:
        raise UsageError(f"{method}() takes from 1 to {MAX_SUBPARTITIONS} partitions, not {count}")
    return count


def _check_condition(condition: pc.Expression, wire: pa.Schema) -> None:
    if "FieldPath(" in str(condition):
        raise UsageError(
            f"{condition} means a column by its position: give its name to pyarrow.compute.field()"
        )
    if not binds(condition, wire):
        names = ", ".join(wire.names)
        raise UsageError(f"{condition} is not a boolean expression over the columns {names}")
