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
from sortshuffle.spark.frame.frame_writer import ShuffleFrameWriter
from sortshuffle.spark.frame.grouped_frame import GroupedFrame
from sortshuffle.spark.frame.sides import (
    attempt,
    columns_in,
    copied,
    python_exchange,
    python_function,
    python_operator,
)
from sortshuffle.spark.frame.two_sided import TwoSidedFrame
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
from sortshuffle.spark.plan.chain import Chain, Rows, next_number
from sortshuffle.spark.plan.coalescing import for_action
from sortshuffle.spark.plan.origins import DataFrameOrigin, ParquetOrigin
from sortshuffle.spark.plan.schemes import Id, Range, RoundRobin
from sortshuffle.spark.plan.spark_cache import keep, kept, release
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.schema import copy_of
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

    _shown_schema: StructType | None = None  # on Python's side: what `schema` returns

    # ---- description ------------------------------------------------------------------------------

    @property
    def schema(self) -> StructType:
        """Spark's schema of the rows. On Python's side it is a copy, because the caller may change it."""
        if not self._is_in_python:
            return self._to_spark().schema
        if self._shown_schema is None:
            self._shown_schema = copy_of(self._own_schema)
        return self._shown_schema

    @property
    def _own_schema(self) -> StructType:
        """The schema of the rows of Python's side, which nobody changes."""
        own = self._own_rows
        assert own is not None
        return own.schema

    @property
    def isStreaming(self) -> bool:
        """Whether the rows come from a stream."""
        return not self._is_in_python and self._to_spark().isStreaming

    def printSchema(self, level: int | None = None) -> None:
        """Print the schema as a tree."""
        self._shadow.dataframe().printSchema(level)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print the plan: on Python's side the stages, the steps chained in each, and, after a run, the work
        that each has done; otherwise Spark's plan. After it come the places where rows go from Spark to
        Python or back, and the Python functions that this package leaves to Spark, each with the reason. With
        ``extended`` or ``mode``: Spark's plan, as in PySpark."""
        if not self._is_in_python or extended is not None or mode is not None:
            self._to_spark().explain(extended, mode)
        else:
            print(explaining.text(self._chain, self.stage_totals(), self._runs))
        if self._crossings:
            print("Rows cross between Spark and Python:")
            print("\n".join(f"  {crossing.describe()}" for crossing in self._crossings))
        if self._spark_functions:
            print("Python functions that are left to Spark:")
            print("\n".join(f"  {function.describe()}" for function in self._spark_functions))

    def stage_totals(self) -> list[StageTotals]:
        """Return the work of all tasks so far, per stage, for this frame and those made from the same source.
        The list is empty over Spark Connect, where tasks cannot report."""
        if not self._is_in_python:
            return []
        reports = (each for source in self._chain.reports() for each in source.value.items())
        return stage_totals(reports)

    # ---- functions on batches ---------------------------------------------------------------------

    @python_function
    def mapInArrow(
        self,
        func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: StructType | str,
        barrier: bool = False,
        profile: ResourceProfile | None = None,
    ) -> ShuffleFrame:
        """Map each partition's iterator of record batches to another, like `DataFrame.mapInArrow`."""
        _check_plain_stage(barrier, profile)
        return self._map(MapInArrow.of(func, schema, self._chain.context.conf))

    @python_function
    def mapInPandas(
        self,
        func: Callable[[Iterator[Any]], Iterator[Any]],
        schema: StructType | str,
        barrier: bool = False,
        profile: ResourceProfile | None = None,
    ) -> ShuffleFrame:
        """Map each partition's iterator of pandas DataFrames to another, like `DataFrame.mapInPandas`."""
        _check_plain_stage(barrier, profile)
        return self._map(MapInPandas.of(func, schema, self._chain.context.conf))

    # ---- columns and rows -------------------------------------------------------------------------

    @python_operator
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
        own = self._own_schema.names
        for col in cols:
            node = node_of(col)
            if isinstance(node, Star):
                positions += range(len(own))
                names += own
                continue
            name = name_of(node.child if isinstance(node, Alias) else node, col)
            positions.append(self._position(name))
            if not isinstance(node, Alias):
                check_spelling([name], positions[-1:], own)
            names.append(node.name if isinstance(node, Alias) else own[positions[-1]])
        return positions, names

    @python_operator
    def selectExpr(self, *expr: Any) -> ShuffleFrame:
        """Select SQL expressions, like `DataFrame.selectExpr`."""
        return self._project("selectExpr", *expr)

    @python_operator
    def drop(self, *cols: ColumnLike) -> ShuffleFrame:
        """Drop columns, like `DataFrame.drop`. Unknown names are ignored."""
        case_sensitive, schema = self._chain.context.case_sensitive, self._own_schema
        dropped = {at for col in cols for at in positions_to_drop(col, schema, case_sensitive)}
        kept = tuple(at for at in range(len(schema)) if at not in dropped)
        return self._apply(select_columns, kept, [schema.names[at] for at in kept])

    @python_operator
    def withColumn(self, colName: str, col: pc.Expression | Column) -> ShuffleFrame:
        """Add a column, like `DataFrame.withColumn`, or replace the column of this name. The value is one of
        Spark's expressions, or an Arrow expression such as ``pyarrow.compute.field("k") + 1``."""
        if not isinstance(col, Column | pc.Expression):
            raise UsageError(f"withColumn() takes a Column, not {type(col).__name__}")
        if isinstance(col, Column):
            return self._project("withColumn", colName, col)
        return self._with_arrow({colName: col})

    @python_operator
    def withColumns(self, *colsMap: Mapping[str, pc.Expression | Column]) -> ShuffleFrame:
        """Add several columns, like `DataFrame.withColumns`. No expression sees the result of another."""
        if len(colsMap) != 1 or not isinstance(colsMap[0], Mapping):
            raise UsageError("withColumns() takes one dict of names and columns")
        if not any(isinstance(column, pc.Expression) for column in colsMap[0].values()):
            return self._project("withColumns", colsMap[0])
        return self._with_arrow(colsMap[0])

    def _with_arrow(self, new: Mapping[str, pc.Expression | Column]) -> ShuffleFrame:
        """Return the frame with new columns, of which some are Arrow expressions."""
        self._check_columns(list(columns_in(new.values())))
        frame = self._apply(columns.with_columns, new, self._twin)
        # Spark does not know Arrow's expressions, but their types
        types = {name: sf.lit(None).cast(frame._own_schema[name].dataType) for name in new}
        frame._set_shadow(self._base_shadow(lambda shadow: shadow.withColumns(types)))
        return frame

    @python_operator
    def withColumnRenamed(self, existing: str, new: str) -> ShuffleFrame:
        """Rename a column, like `DataFrame.withColumnRenamed`. An unknown name is ignored."""
        return self._renamed(self._twin.withColumnRenamed(existing, new))

    @python_operator
    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> ShuffleFrame:
        """Rename several columns, like `DataFrame.withColumnsRenamed`."""
        return self._renamed(self._twin.withColumnsRenamed(colsMap))

    def _renamed(self, twin: DataFrame) -> ShuffleFrame:
        """Return the frame with the column names of ``twin``."""
        names = twin.schema.names
        return self._apply(select_columns, tuple(range(len(names))), names)

    @python_operator
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
            # a node of its own, in place of a filter: Spark does not know the condition
            frame._set_shadow(self._base_shadow(lambda shadow: shadow.select("*")))
            return frame
        shadow = self._shadow_of("filter", (condition,), {})
        conf = self._chain.context.conf
        expression = filter_of(self._shadow.dataframe(), shadow.dataframe(), conf.timezone)
        if expression is None:
            raise UnsupportedError(_not_in_arrow(f"filter({_shown((condition,))})"))
        frame = self._filter(expression)
        frame._set_shadow(shadow)
        return frame

    where = filter

    @python_operator
    def limit(self, num: int) -> ShuffleFrame:
        """Keep the first ``num`` rows in partition order, in one partition, like `DataFrame.limit`."""
        return self._apply(row_operators.limit, num)

    @python_operator
    def sample(
        self,
        withReplacement: float | bool | None = None,
        fraction: int | float | None = None,
        seed: int | None = None,
    ) -> ShuffleFrame:
        """Sample rows, like `DataFrame.sample`: each with the probability ``fraction``, or, with replacement,
        ``fraction`` times on average. The same seed and partitions give the same rows, but not Spark's."""
        return self._apply(row_operators.sample, withReplacement, fraction, seed, self._twin)

    @python_operator
    def alias(self, alias: str) -> ShuffleFrame:
        """Return the frame under a name, by which expressions can qualify its columns: ``"a.k"``."""
        frame = self._derive(self._rows)
        shadow = self._shadow_of("alias", (alias,), {})
        shadow.dataframe()  # a wrong call fails here
        frame._set_shadow(shadow)
        return frame

    @python_operator
    def hint(self, name: str, *parameters: Any) -> ShuffleFrame:
        """Return the frame with a hint, like `DataFrame.hint`. ``"broadcast"`` marks it for joins in Python,
        as `sortshuffle.broadcast` does."""
        if not isinstance(name, str) or name.lower() not in _BROADCAST_HINTS or parameters:
            raise UnsupportedError("only Spark's planner follows hints other than broadcast")
        return self._derive(replace(self._rows, broadcast=True))

    @python_operator
    def union(self, other: DataFrame) -> ShuffleFrame:
        """Append the rows of another frame, with columns matched by position, like `DataFrame.union`."""
        right = self._other(other, "union")
        return self._derive(row_operators.union(self._rows, right._rows), right)

    unionAll = union  # noqa: N815  PySpark's name

    @python_operator
    def unionByName(self, other: DataFrame, allowMissingColumns: bool = False) -> ShuffleFrame:
        """Append the rows of another frame, with columns matched by name, like `DataFrame.unionByName`."""
        right = self._other(other, "unionByName")
        return self._derive(row_operators.union_by_name(self._rows, right._rows, allowMissingColumns), right)

    @python_operator
    def distinct(self) -> ShuffleFrame:
        """Keep one of each set of equal rows, like `DataFrame.distinct`."""
        return self._apply(aggregates.distinct, self._twin)

    @python_operator
    def dropDuplicates(self, subset: list[str] | None = None) -> ShuffleFrame:
        """Keep one row for each combination of values in the columns of ``subset``, or in all columns, like
        `DataFrame.dropDuplicates`."""
        return self._apply(aggregates.drop_duplicates, subset, self._twin)

    drop_duplicates = dropDuplicates

    # ---- shuffles ---------------------------------------------------------------------------------

    @python_exchange
    def repartition(self, numPartitions: int | ColumnLike, *cols: ColumnLike) -> ShuffleFrame:
        """Repartition by Spark's hash of the columns, or evenly if none is named, like PySpark's method.

        ``repartition(n, *cols)``, ``repartition(*cols)`` (into ``spark.sql.shuffle.partitions``) or
        ``repartition(n)``.
        """
        count, columns = self._count_and_columns("repartition", numPartitions, cols)
        if count is not None and not columns:
            return self._apply(exchange_rows, RoundRobin(), count)
        return self._apply(hash_exchanged, tuple(self._position(column) for column in columns), count)

    @python_exchange
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
            check_range_key(self._own_schema.fields[key], self._chain.wire.field(key).type)
            keys.setdefault(key, SortKey(key, descending, nulls_last))  # a repeated column decides nothing
        if count is None:
            count = default_partitions(self._rows)
        return self._apply(exchange_rows, Range(tuple(keys.values()), count, next_number()), count)

    @python_exchange
    def repartitionById(self, numPartitions: int, partitionIdCol: ColumnLike) -> ShuffleFrame:
        """Move each row to the partition whose number is in an int column, like `DataFrame.repartitionById`.

        Numbers are taken modulo ``numPartitions``, never negative; a null counts as 0.
        """
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise UsageError(
                f"repartitionById() takes a number of partitions, not {type(numPartitions).__name__}"
            )
        key = self._position(partitionIdCol)
        check_id_column(self._own_schema.fields[key])
        return self._apply(exchange_rows, Id(key), _check_count("repartitionById", numPartitions))

    @python_operator
    def coalesce(self, numPartitions: int) -> ShuffleFrame:
        """Combine partitions into fewer, without a shuffle, like `DataFrame.coalesce`."""
        return self._apply(row_operators.coalesce, numPartitions, self._to_spark)

    @python_operator
    def sort(self, *cols: Any, **kwargs: Any) -> ShuffleFrame:
        """Sort the rows over all partitions, like `DataFrame.sort`, into at most
        ``spark.sql.shuffle.partitions`` partitions. Samples the rows as `repartitionByRange` does.
        ``ascending``: a direction, or one for each column."""
        return self._apply(sorting.sort, cols, kwargs.get("ascending", True))

    orderBy = sort  # noqa: N815

    @python_operator
    def sortWithinPartitions(self, *cols: Any, **kwargs: Any) -> ShuffleFrame:
        """Sort each partition, like `DataFrame.sortWithinPartitions`."""
        return self._apply(sorting.sort_within_partitions, cols, kwargs.get("ascending", True))

    def groupBy(self, *cols: Any) -> GroupedFrame:
        """Group the rows by columns, like `DataFrame.groupBy`, for ``.agg``, ``.count`` and other aggregates,
        ``.applyInArrow``, ``.applyInPandas``, ``.cogroup``."""
        cols = copied(cols)
        if not self._is_in_python:
            return GroupedFrame.of_made(self, _as_list(cols), super().groupBy(*cols))
        return GroupedFrame(self, _as_list(cols), lambda frame: frame.groupBy(*cols))

    groupby = groupBy

    def cube(self, *cols: Any) -> GroupedFrame:
        """Group the rows by every set of these columns, like `DataFrame.cube`, in Spark."""
        return self._groups_by_spark("cube", *cols)

    def rollup(self, *cols: Any) -> GroupedFrame:
        """Group the rows by the first columns, for each number of them, like `DataFrame.rollup`, in Spark."""
        return self._groups_by_spark("rollup", *cols)

    def groupingSets(self, groupingSets: Sequence[Sequence[ColumnLike]], *cols: ColumnLike) -> GroupedFrame:
        """Group the rows by these sets of columns, like `DataFrame.groupingSets`, in Spark."""
        return self._groups_by_spark("groupingSets", groupingSets, *cols)

    def _groups_by_spark(self, method: str, *args: Any) -> GroupedFrame:
        args = copied(args)
        if not self._is_in_python:
            return GroupedFrame.of_made(self, None, getattr(super(), method)(*args))
        getattr(self._shadow.dataframe(), method)(*args)  # a wrong call fails here
        return GroupedFrame(self, None, lambda frame: getattr(frame, method)(*args))

    def agg(self, *exprs: Column | dict[str, str]) -> ShuffleFrame:
        """Aggregate all rows into one, like `DataFrame.agg`."""
        aggregated: ShuffleFrame = self.groupBy().agg(*exprs)
        return aggregated

    @python_operator
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
            return self._to_spark()
        if (
            not self._is_in_python
            or len(cols) != len(self._own_schema)
            or not all(isinstance(name, str) for name in cols)
        ):
            return self._by_spark("toDF", *cols)
        renamed: DataFrame = attempt(
            self,
            "toDF",
            # by position, because names may differ only in case
            lambda frame: frame._apply(select_columns, tuple(range(len(cols))), cols),
            lambda: self._by_spark("toDF", *cols),
            self._shadow_of("toDF", cols, {}),
        )
        return renamed

    def count(self) -> int:
        """Return the number of rows, counted in Python, without JVM rows, unless the frame is persisted."""
        if self._is_kept or not self._is_in_python:
            return int(super().count())
        rows = self._rows
        chain = (reading_only(rows, ()) or rows).chain
        with own_errors():
            counts = plan_stage(for_action(chain), self._new_run(), CountRows(), "rows long")
            return sum(row.rows for row in counts.collect())

    def collect(self) -> list[Any]:
        """Return all rows, as Spark's Row objects."""
        self._log_read("collect")
        with own_errors():
            rows: list[Any] = self._for_action().collect()
            return rows

    def take(self, num: int) -> list[Any]:
        """Return the first ``num`` rows, computing as few partitions as needed, like `DataFrame.take`. After
        a sort this runs the plan of ``limit(num)``, not that of the sort."""
        self._log_read("take")
        with own_errors():
            frame = self._first_of_sort(num)
            rows: list[Any] = (frame._for_action() if num else frame._to_spark()).take(num)
            return rows

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first ``n`` rows, like `DataFrame.show`."""
        self._log_read("show")
        # one more row, so that PySpark says that there are more
        more = max(n, 0) + 1 if type(n) is int else n
        with own_errors():
            frame = self._first_of_sort(more)  # in a variable, so that it lives until the action's end
            frame._for_action().show(n, truncate, vertical)

    def __repr__(self) -> str:
        """Return the columns; with ``spark.sql.repl.eagerEval.enabled`` the first rows, like PySpark."""
        with own_errors():
            text: str = super().__repr__()
            return text

    def _repr_html_(self) -> str | None:
        """Return the first rows as a table for a notebook, if ``spark.sql.repl.eagerEval.enabled``."""
        with own_errors():
            html: str | None = super()._repr_html_()
            return html

    def _first_of_sort(self, num: int) -> TwoSidedFrame:
        """Return a frame that begins with the first ``num`` rows of this one, for an action that reads no
        others. After a sort, to find those takes less than to sort all rows."""
        if not self._is_in_python or self._plain is not None:
            return self
        if type(num) is not int or not 0 <= num <= row_operators.MOST_ROWS:
            return self
        return self if row_operators.sort_ahead(self._rows)[0] is None else self.limit(num)

    @property
    def write(self) -> DataFrameWriter:
        """A writer of the rows. Parquet files are written by the Python workers if the rows are there."""
        return ShuffleFrameWriter(self) if self._is_in_python else super().write

    def observe(self, observation: Any, *exprs: Column) -> ShuffleFrame:
        """Return the frame with an observation, like `DataFrame.observe`. Spark makes its rows."""
        observed: ShuffleFrame = self._by_spark("observe", observation, *exprs)
        observed._is_observed = True
        return observed

    def persist(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> ShuffleFrame:
        """Keep the rows in Spark's cache once they are computed. Frames made from this frame read them there,
        except those that unite or coalesce its partitions, the first rows of a sort, and stages that are
        already planned. Return this frame."""
        super().persist(storageLevel)
        self._is_kept = True
        if self._is_in_python:
            self._set_shadow(self._shadow.kept())
        for chain in self._chains():
            if kept(chain) is None:
                plan = self._to_spark()
                keep(chain, DataFrameOrigin(plan, chain.wire), plan)
        return self

    def cache(self) -> ShuffleFrame:
        """Return `persist` with Spark's default storage level."""
        return self.persist()

    def unpersist(self, blocking: bool = False) -> ShuffleFrame:
        """Drop the rows from Spark's cache. Return this frame."""
        plan = self._kept_plan
        if plan is not None:
            plan.unpersist(blocking)
        elif not self._is_in_python or self._plain is not None:
            super().unpersist(blocking)
        self._is_kept = False
        for chain in self._chains():
            release(chain)
        return self

    def _chains(self) -> list[Chain]:
        """The chains with which frames that are derived from this one in Python may begin."""
        return [rows.chain for rows in (self._own_rows, self._scanned_rows) if rows is not None]

    @property
    def storageLevel(self) -> StorageLevel:
        """Where Spark's cache keeps the rows. To look there plans nothing."""
        plan = self._kept_plan
        if plan is None and self._is_in_python and self._plain is None:
            return StorageLevel.NONE
        return super().storageLevel if plan is None else plan.storageLevel

    @property
    def _kept_plan(self) -> DataFrame | None:
        """The DataFrame whose rows, which are those of this frame of Python's side, are in Spark's cache."""
        origin = None if self._own_rows is None else kept(self._own_rows.chain)
        return origin.source if isinstance(origin, DataFrameOrigin) else None

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
        shadow = self._shadow_of(method, args, {})
        projection = projection_of(
            self._shadow.dataframe(), shadow.dataframe(), self._chain.context.conf.timezone
        )
        label = f"{method}({_shown(args)})"
        if projection is None:
            raise UnsupportedError(_not_in_arrow(label))
        frame = self._apply(columns.project, projection, label)
        frame._set_shadow(shadow)
        return frame

    def _filter(self, condition: pc.Expression) -> ShuffleFrame:
        rows = self._rows
        chain, origin = rows.chain, rows.chain.origin
        if isinstance(origin, ParquetOrigin) and not chain.steps:
            filters = (*origin.filters, condition)
            return self._derive(Rows(replace(chain, origin=replace(origin, filters=filters))))
        return self._derive(Rows(chain.then(Filter(condition), rows.schema), rows.layout))

    def _wrap(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        if type(result).__name__ == "GroupedData":  # PySpark has two classes of this name
            return GroupedFrame.of_made(self, None, result)
        return super()._wrap(method, result, args)

    def _other(self, other: Any, operator: str) -> ShuffleFrame:
        """Return the frame ``other``, an argument of ``operator``, on Python's side. Raises `UsageError` if
        it is no DataFrame."""
        if not isinstance(other, DataFrame):
            raise UsageError(f"{operator}() takes a DataFrame, not {type(other).__name__}")
        frame = self._as_frame(other)
        if frame._has_observation():
            raise UnsupportedError("Spark reports what observe() asks for only of plans that it runs itself")
        own = frame._to_python(operator)
        if own is not frame and self._has_broadcast_hint(other):
            own = own._derive(replace(own._rows, broadcast=True))
        return own

    def _has_broadcast_hint(self, other: DataFrame) -> bool:
        """Return whether a frame of Spark's side was marked by PySpark's `broadcast`."""
        return False  # over Spark Connect that is not known

    def _position(self, col: ColumnLike) -> int:
        return resolve(column_name(col), self._own_schema, self._chain.context.case_sensitive)

    def _count_and_columns(
        self, method: str, numPartitions: int | ColumnLike, cols: tuple[Any, ...]
    ) -> tuple[int | None, list[ColumnLike]]:
        """Return the number of partitions and the columns, either of them if there, from the arguments of
        ``method``."""
        columns = _as_list(cols)
        if isinstance(numPartitions, str | Column):
            return None, [numPartitions, *columns]
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise UsageError(
                f"{method}() takes a number of partitions or columns, not {type(numPartitions).__name__}"
            )
        return _check_count(method, numPartitions), columns


def _as_list(cols: tuple[Any, ...]) -> list[ColumnLike]:
    return list(cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols)


def _not_in_arrow(call: str) -> str:
    return f"Arrow is not known to compute {call} as Spark does"


def _shown(args: tuple[Any, ...]) -> str:
    text = ", ".join(map(str, args))
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}..."


def _check_plain_stage(barrier: bool, profile: Any) -> None:
    if barrier or profile is not None:
        raise UnsupportedError("barrier stages, and stages with a resource profile, run in Spark")


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
