"""`ShuffleFrame`: the door for Arrow batches, with PySpark's method names and stages that run in Python.

    frame(df) or read(spark).parquet(path)
        .mapInArrow(...) .repartition(n, "k") .groupBy("k").applyInArrow(...)
        .toDF()

A frame is an immutable, lazy description (`spark.plan.chain`). Consecutive functions run in one pass in one
Python worker. Rows do not reach the JVM before `toDF()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.partitioner import SortKey
from sortshuffle.partitioner.selector import MAX_SUBPARTITIONS
from sortshuffle.spark.frame.grouped_frame import GroupedFrame
from sortshuffle.spark.functions.maps import MapFunction, MapInArrow, MapInPandas
from sortshuffle.spark.operators import aggregates, columns, joins, sorting
from sortshuffle.spark.operators import rows as row_operators
from sortshuffle.spark.operators.cogroups import FrameGroups
from sortshuffle.spark.operators.expressions import (
    Alias,
    Star,
    column_name,
    name_of,
    node_of,
    positions_to_drop,
    resolve,
    sort_key,
)
from sortshuffle.spark.operators.key_checks import check_id_column, check_range_key
from sortshuffle.spark.operators.layouts import exchange_rows, hash_exchanged
from sortshuffle.spark.operators.selection import reading_only, select_columns
from sortshuffle.spark.parquet.pruning import binds
from sortshuffle.spark.plan import explain as explaining
from sortshuffle.spark.plan.chain import Chain, FrameContext, Rows, next_number
from sortshuffle.spark.plan.hints import for_spark
from sortshuffle.spark.plan.origins import DataFrameOrigin, ParquetOrigin
from sortshuffle.spark.plan.schemes import Id, Range, RoundRobin
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.steps.selection_steps import Filter
from sortshuffle.spark.worker.reports import StageTotals, stage_totals
from sortshuffle.spark.worker.stages import CountRows, ToSpark

if TYPE_CHECKING:
    from sortshuffle.spark.frame.frame_writer import FrameWriter

ColumnLike: TypeAlias = "str | Column"
P = ParamSpec("P")


def frame(df: DataFrame) -> ShuffleFrame:
    """Make a `ShuffleFrame` of any DataFrame, whose own plan runs in Spark, in the same stage.

    Raises `UnsupportedError` for streaming frames and for columns that Arrow cannot carry, and `OptionError`
    for a wrong ``spark.sortshuffle.*`` setting.
    """
    if not isinstance(df, DataFrame):
        raise UsageError(f"frame() takes a DataFrame, not {type(df).__name__}")
    if df.isStreaming:
        raise UnsupportedError(
            "a streaming DataFrame has no end, and this shuffle hands over only finished outputs: use"
            " foreachBatch and call frame() on each batch"
        )
    context = FrameContext.of(df.sparkSession)
    wire = context.wire(df.schema)
    return ShuffleFrame(Rows(Chain(context, DataFrameOrigin(df, wire), df.schema, wire)))


def broadcast(frame: ShuffleFrame) -> ShuffleFrame:
    """Mark a frame as small, like PySpark's `broadcast`. A join gives the whole of it to every task of the
    other side, which then needs no exchange.

    The mark is a hint: an outer join that keeps the rows of the marked side exchanges it all the same. The
    mark holds for the returned frame, not for frames made from it. In the join the frame must fit into the
    memory of a task.
    """
    return ShuffleFrame(replace(_rows_of(frame, "broadcast", "a ShuffleFrame"), broadcast=True))


class ShuffleFrame:
    """A lazy frame whose stages run in Python and whose shuffles run on sortshuffle.

    Made by `sortshuffle.frame` and `sortshuffle.read`. Every method but the actions (`collect`, `count`,
    `head`, `toArrow`, `toPandas`, `show`, `write`) returns at once and leaves this frame as it is.
    """

    def __init__(self, rows: Rows) -> None:
        self._own_rows = rows
        self._df: DataFrame | None = None
        self._persisted = False
        self._runs: list[int] = []

    # ---- description ------------------------------------------------------------------------------

    @property
    def schema(self) -> StructType:
        """Spark's schema of the rows."""
        return self._own_rows.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def explain(self) -> None:
        """Print the stages, the steps chained in each, and, after a run, the work that each has done."""
        print(explaining.text(self._chain, self.stage_totals(), self._runs))

    def stage_totals(self) -> list[StageTotals]:
        """Return the work of all tasks so far, per stage, for this frame and those made from the same source.
        The list is empty over Spark Connect, where tasks cannot report."""
        reports = (each for source in self._chain.reports() for each in source.value.items())
        return stage_totals(reports)

    def __repr__(self) -> str:
        columns = ", ".join(f"{each.name}: {each.dataType.simpleString()}" for each in self.schema)
        return f"ShuffleFrame[{columns}]"

    # ---- functions on batches ---------------------------------------------------------------------

    def mapInArrow(
        self, func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType | str
    ) -> ShuffleFrame:
        """Map each partition's iterator of record batches to another, like `DataFrame.mapInArrow`."""
        return self._map(MapInArrow.of(func, schema, self._chain.context.conf))

    def mapInPandas(
        self, func: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType | str
    ) -> ShuffleFrame:
        """Map each partition's iterator of pandas DataFrames to another, like `DataFrame.mapInPandas`."""
        return self._map(MapInPandas.of(func, schema, self._chain.context.conf))

    # ---- columns and rows -------------------------------------------------------------------------

    def select(self, *cols: ColumnLike | list[ColumnLike]) -> ShuffleFrame:
        """Select columns, like `DataFrame.select`: by names, plain column references and aliases of these;
        ``"*"`` means all columns. Add computed columns by `withColumn` first."""
        positions: list[int] = []
        names: list[str] = []
        for col in _as_list(cols):
            node = node_of(col)
            if isinstance(node, Star):
                positions += range(len(self.columns))
                names += self.columns
                continue
            positions.append(self._position(name_of(node.child if isinstance(node, Alias) else node, col)))
            names.append(node.name if isinstance(node, Alias) else self.columns[positions[-1]])
        return self._apply(select_columns, tuple(positions), names)

    def drop(self, *cols: ColumnLike) -> ShuffleFrame:
        """Drop columns, like `DataFrame.drop`. Unknown names are ignored."""
        case_sensitive = self._chain.context.case_sensitive
        dropped = {at for col in cols for at in positions_to_drop(col, self.schema, case_sensitive)}
        kept = tuple(at for at in range(len(self.columns)) if at not in dropped)
        return self._apply(select_columns, kept, [self.columns[at] for at in kept])

    def withColumn(self, colName: str, col: pc.Expression | Column) -> ShuffleFrame:
        """Add a column, like `DataFrame.withColumn`: the value of an Arrow expression over the columns, such
        as ``pyarrow.compute.field("k") + 1``, or a plain column reference. An existing column of this name is
        replaced in its place."""
        return self._apply(columns.with_columns, {colName: col})

    def withColumns(self, colsMap: Mapping[str, pc.Expression | Column]) -> ShuffleFrame:
        """Add several columns, like `DataFrame.withColumns`. No expression sees the result of another."""
        return self._apply(columns.with_columns, colsMap)

    def withColumnRenamed(self, existing: str, new: str) -> ShuffleFrame:
        """Rename a column, like `DataFrame.withColumnRenamed`. An unknown name is ignored."""
        return self._apply(columns.with_columns_renamed, {existing: new})

    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> ShuffleFrame:
        """Rename several columns, like `DataFrame.withColumnsRenamed`."""
        return self._apply(columns.with_columns_renamed, colsMap)

    def filter(self, condition: pc.Expression) -> ShuffleFrame:
        """Keep the rows for which an Arrow expression is true, such as ``pyarrow.compute.field("k") > 5``.

        A filter that directly follows a Parquet scan also skips row groups by their statistics, unless it
        uses floating point columns (whose statistics ignore NaNs): give those columns a separate filter.
        Raises `UsageError` for anything that is not a boolean expression over the columns.
        """
        rows = self._rows
        chain, origin = rows.chain, rows.chain.origin
        _check_condition(condition, chain.wire)
        if isinstance(origin, ParquetOrigin) and not chain.steps:
            filters = (*origin.filters, condition)
            return ShuffleFrame(Rows(replace(chain, origin=replace(origin, filters=filters))))
        return ShuffleFrame(Rows(chain.then(Filter(condition), self.schema), rows.layout))

    where = filter

    def limit(self, num: int) -> ShuffleFrame:
        """Keep the first ``num`` rows in partition order, in one partition, like `DataFrame.limit`."""
        return self._apply(row_operators.limit, num)

    def sample(
        self,
        withReplacement: float | bool | None = None,
        fraction: int | float | None = None,
        seed: int | None = None,
    ) -> ShuffleFrame:
        """Sample rows, like `DataFrame.sample`: each with the probability ``fraction``, or, with replacement,
        ``fraction`` times on average. The same seed and partitions give the same rows, but not Spark's."""
        return self._apply(row_operators.sample, withReplacement, fraction, seed)

    def union(self, other: ShuffleFrame) -> ShuffleFrame:
        """Append the rows of another frame, with columns matched by position, like `DataFrame.union`."""
        return self._apply(row_operators.union, _rows_of(other, "union"))

    unionAll = union  # noqa: N815  PySpark's name

    def unionByName(self, other: ShuffleFrame, allowMissingColumns: bool = False) -> ShuffleFrame:
        """Append the rows of another frame, with columns matched by name, like `DataFrame.unionByName`."""
        return self._apply(row_operators.union_by_name, _rows_of(other, "unionByName"), allowMissingColumns)

    def distinct(self) -> ShuffleFrame:
        """Keep one of each set of equal rows, like `DataFrame.distinct`."""
        return self._apply(aggregates.distinct)

    def dropDuplicates(self, subset: list[str] | None = None) -> ShuffleFrame:
        """Keep one row for each combination of values in the columns of ``subset``, or in all columns, like
        `DataFrame.dropDuplicates`."""
        return self._apply(aggregates.drop_duplicates, subset)

    drop_duplicates = dropDuplicates

    # ---- shuffles ---------------------------------------------------------------------------------

    def repartition(self, numPartitions: int | ColumnLike, *cols: ColumnLike) -> ShuffleFrame:
        """Repartition by Spark's hash of the columns, or evenly if none is named, like PySpark's method.

        ``repartition(n, *cols)``, ``repartition(*cols)`` (into ``spark.sql.shuffle.partitions``) or
        ``repartition(n)``.
        """
        count, columns = self._count_and_columns("repartition", numPartitions, cols)
        if not columns:
            return self._apply(exchange_rows, RoundRobin(), count)
        return self._apply(hash_exchanged, tuple(self._position(column) for column in columns), count)

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

    def coalesce(self, numPartitions: int) -> ShuffleFrame:
        """Combine partitions into fewer, without a shuffle, like `DataFrame.coalesce`."""
        return self._apply(row_operators.coalesce, numPartitions, self.toDF)

    def sort(
        self,
        *cols: int | ColumnLike | list[int | ColumnLike],
        ascending: bool | int | list[bool | int] = True,
    ) -> ShuffleFrame:
        """Sort the rows over all partitions, like `DataFrame.sort`, into at most
        ``spark.sql.shuffle.partitions`` partitions. Samples the rows as `repartitionByRange` does."""
        return self._apply(sorting.sort, cols, ascending)

    orderBy = sort  # noqa: N815

    def sortWithinPartitions(
        self,
        *cols: int | ColumnLike | list[int | ColumnLike],
        ascending: bool | int | list[bool | int] = True,
    ) -> ShuffleFrame:
        """Sort each partition, like `DataFrame.sortWithinPartitions`."""
        return self._apply(sorting.sort_within_partitions, cols, ascending)

    def groupBy(self, *cols: ColumnLike | list[ColumnLike]) -> GroupedFrame[ShuffleFrame]:
        """Group the rows by columns, like `DataFrame.groupBy`, for ``.agg``, ``.count`` and other aggregates,
        ``.applyInArrow``, ``.applyInPandas``, ``.cogroup``."""
        keys = tuple(self._position(name) for name in _column_names(cols))
        return GroupedFrame(FrameGroups(lambda: self._rows, keys), ShuffleFrame)

    groupby = groupBy

    def agg(self, *exprs: Column | dict[str, str]) -> ShuffleFrame:
        """Aggregate all rows into one, like `DataFrame.agg`."""
        return self.groupBy().agg(*exprs)

    def join(
        self,
        other: ShuffleFrame,
        on: str | list[str] | Column | list[Column] | None = None,
        how: str | None = None,
    ) -> ShuffleFrame:
        """Join two frames, like `DataFrame.join`, on columns of equal names or on equalities of columns.
        ``how``: inner (None), left, right, full, semi, anti, and PySpark's other names for these. A side
        marked by `sortshuffle.broadcast` is broadcast where the kind of join allows it."""
        return self._apply(joins.join, _rows_of(other, "join"), on, how)

    # ---- results ----------------------------------------------------------------------------------

    def toDF(self) -> DataFrame:
        """Return the rows as an ordinary lazy DataFrame, in the same partitions. Spark's planner knows by
        which columns they are placed and sorted, and about how large they are (`spark.plan.hints`)."""
        if self._df is None:
            chain = self._own_rows.chain
            if isinstance(chain.origin, DataFrameOrigin) and not chain.steps:
                self._df = chain.origin.source
            else:
                run = self._new_run()
                rows = plan_stage(chain, run, ToSpark(), chain.schema)
                self._df = for_spark(rows, chain, self._own_rows.layout, run)
        return self._df

    def collect(self) -> list[Any]:
        """Return all rows, as Spark's Row objects."""
        rows: list[Any] = self.toDF().collect()
        return rows

    def count(self) -> int:
        """Return the number of rows, counted in Python, without JVM rows, unless the frame is persisted."""
        if self._persisted:
            return int(self.toDF().count())
        rows = self._rows
        chain = (reading_only(rows, ()) or rows).chain
        counts = plan_stage(chain, self._new_run(), CountRows(), "rows long")
        return sum(row.rows for row in counts.collect())

    def head(self, n: int | None = None) -> Any:
        """Return the first row or None, or the first ``n`` rows in a list, like `DataFrame.head`."""
        return self.toDF().head(n)

    def first(self) -> Any:
        """Return the first row, or None if there are no rows."""
        return self.toDF().first()

    def take(self, num: int) -> list[Any]:
        """Return the first ``num`` rows, reading as few partitions as needed."""
        taken: list[Any] = self.toDF().take(num)
        return taken

    def isEmpty(self) -> bool:
        """Return whether there are no rows."""
        return bool(self.toDF().isEmpty())

    def toArrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        return self.toDF().toArrow()

    def toPandas(self) -> Any:
        """Return all rows as one pandas DataFrame."""
        return self.toDF().toPandas()

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first ``n`` rows."""
        self.toDF().show(n, truncate, vertical)

    @property
    def write(self) -> FrameWriter:
        """A writer of the rows, which runs in Python: ``.write.mode("overwrite").parquet(path)``."""
        from sortshuffle.spark.frame.frame_writer import FrameWriter

        return FrameWriter(self._chain, self._new_run)

    def persist(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> ShuffleFrame:
        """Keep the rows in Spark's cache once they are computed. Frames made from this frame afterwards read
        them there. Returns this frame."""
        self.toDF().persist(storageLevel)
        self._persisted = True
        return self

    def unpersist(self, blocking: bool = False) -> ShuffleFrame:
        """Drop the rows from Spark's cache. Returns this frame."""
        self.toDF().unpersist(blocking)
        self._persisted = False
        return self

    # ---- inside -----------------------------------------------------------------------------------

    @property
    def _rows(self) -> Rows:
        """The rows that frames made from this frame begin with. Nothing is known of where rows in Spark's
        cache are placed, because they come from no exchange of ours."""
        own = self._own_rows
        if not self._persisted:
            return own
        chain = Chain(own.context, DataFrameOrigin(self.toDF(), own.chain.wire), own.schema, own.chain.wire)
        return Rows(chain, broadcast=own.broadcast)

    @property
    def _chain(self) -> Chain:
        return self._rows.chain

    def _new_run(self) -> int:
        """Return a number for a new result stage of this frame."""
        self._runs.append(next_number())
        return self._runs[-1]

    def _apply(
        self, operator: Callable[Concatenate[Rows, P], Rows], *args: P.args, **kwargs: P.kwargs
    ) -> ShuffleFrame:
        """Return a frame of what an operator makes of the rows, or this frame if it leaves them unchanged."""
        rows = self._rows
        made = operator(rows, *args, **kwargs)
        return self if made is rows else ShuffleFrame(made)

    def _map(self, step: MapFunction) -> ShuffleFrame:
        return ShuffleFrame(Rows(self._chain.then(step, step.declared.schema)))

    def _position(self, col: ColumnLike) -> int:
        return resolve(column_name(col), self.schema, self._chain.context.case_sensitive)

    def _count_and_columns(
        self, method: str, numPartitions: int | ColumnLike, cols: tuple[Any, ...]
    ) -> tuple[int, list[ColumnLike]]:
        """Return the number of partitions and the columns, if any, from the arguments of ``method``."""
        columns = _as_list(cols)
        if isinstance(numPartitions, str | Column):
            return self._chain.context.shuffle_partitions(), [numPartitions, *columns]
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise UsageError(
                f"{method}() takes a number of partitions or columns, not {type(numPartitions).__name__}"
            )
        return _check_count(method, numPartitions), columns


def _rows_of(other: Any, method: str, what: str = "another ShuffleFrame") -> Rows:
    """Return the rows of ``other``, an argument of ``method``. Raises `UsageError` if it is no frame."""
    if not isinstance(other, ShuffleFrame):
        raise UsageError(f"{method}() takes {what}, not {type(other).__name__}: wrap it in frame()")
    return other._rows


def _as_list(cols: tuple[Any, ...]) -> list[ColumnLike]:
    return list(cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols)


def _column_names(cols: tuple[Any, ...]) -> list[str]:
    return [column_name(col) for col in _as_list(cols)]


def _check_count(method: str, count: int) -> int:
    if not 1 <= count <= MAX_SUBPARTITIONS:
        raise UsageError(f"{method}() takes from 1 to {MAX_SUBPARTITIONS} partitions, not {count}")
    return count


def _check_condition(condition: Any, wire: pa.Schema) -> None:
    if not isinstance(condition, pc.Expression):
        raise UsageError(
            'filter() takes a pyarrow expression, such as pyarrow.compute.field("k") > 5; for a SQL condition'
            f" filter the DataFrame before frame(df). This is {type(condition).__name__}"
        )
    if "FieldPath(" in str(condition):
        raise UsageError(
            f"{condition} means a column by its position: give its name to pyarrow.compute.field()"
        )
    if not binds(condition, wire):
        names = ", ".join(wire.names)
        raise UsageError(f"{condition} is not a boolean expression over the columns {names}")
