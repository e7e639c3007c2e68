"""Tells Spark's planner about a frame: where its rows are, how they are sorted, and their size.

Spark sees the frame's last stage as a Python function, of which it knows nothing. `with_hints` replaces it by
a `LogicalRDD`, a scan of the stage's rows that makes three claims:

    outputPartitioning   the rows are where Spark's hash of these columns would place them
    outputOrdering       each partition is sorted by these columns
    originStats          the approximate size of the rows in bytes

So a groupBy, a join or a window on those columns needs no Exchange and no Sort, and a small frame is
broadcast in a join. Spark trusts the first two blindly: a false claim gives wrong results without an error.
So they are taken from a `Layout`, and the partitioning is claimed only if the scan has exactly as many
partitions. Without any claim the frame remains the original DataFrame.

The scan is planned at once, like control rows (`spark.session.classic_planner`). Nothing runs, and everything
made from it shares its map outputs. Its name in Spark's plans shows the claims.

Sizes are estimated as Spark estimates them (`spark.plan.estimated_sizes`).

Classic sessions only: over Spark Connect a frame is a DataFrame without claims.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from sortshuffle.payload.ordering import SortKey
from sortshuffle.spark.plan.chain import UNKNOWN_LAYOUT, Chain, Layout
from sortshuffle.spark.plan.estimated_sizes import estimated_size
from sortshuffle.spark.plan.origins import DataFrameOrigin
from sortshuffle.spark.plan.staging import stage_name
from sortshuffle.spark.session import classic_planner as planner
from sortshuffle.spark.session.java import java_class, scala_object
from sortshuffle.spark.session.naming import call_site
from sortshuffle.spark.session.requirements import is_classic

LOGGER = "sortshuffle.hints"

_SQL = "org.apache.spark.sql"

# Of Spark's `LogicalRDD`: 4.3 has all ten arguments, 4.1 and 4.2 lack the last, `isCheckpointedInput`.
_ARITIES = (10, 9)
# The largest size claimed, in bytes: far too large for a broadcast, and within the limits of `spark.range`.
_LARGEST = 1 << 60
_LONG = 8  # bytes


def for_spark(df: DataFrame, chain: Chain, layout: Layout, stage: int) -> DataFrame:
    """Return a frame's rows for Spark. ``df``: the frame's last stage in Spark's plan, with number ``stage``.
    ``chain``: the chain of that stage.

    If the chain begins with a DataFrame there is nothing to add: Spark sees that DataFrame in its plan, and
    estimates the size by the same rules.
    """
    if isinstance(chain.origin, DataFrameOrigin) or not is_classic(df.sparkSession):
        return df
    return with_hints(df, layout, estimated_size(chain), stage_name(stage, chain.origin))


def with_hints(df: DataFrame, layout: Layout, size: int | None, name: str = "sortshuffle") -> DataFrame:
    """Return the same rows and partitions with claims about them. ``size``: bytes, None if unknown. ``name``:
    the name of the rows in Spark's plans.

    Returns ``df`` itself if there is nothing to claim, or if this Spark has another kind of `LogicalRDD`.
    """
    if not is_classic(df.sparkSession) or (size is None and layout == UNKNOWN_LAYOUT):
        return df
    spark: Any = df.sparkSession
    jvm = spark.sparkContext._jvm
    rdd = planner.rdd_of(df)
    count = int(rdd.getNumPartitions())
    label = ": ".join(filter(None, (name, describe(layout, df.columns, count))))
    rdd.setName(label)
    with call_site(spark.sparkContext, label):
        scan = _Claims(jvm, df).scan(rdd, layout, count, size)
    return df if scan is None else DataFrame(scan, spark)


def describe(layout: Layout, names: Sequence[str], count: int) -> str:
    """Describe the claims about a frame of ``count`` partitions, for people; return "" if there are none."""
    words = []
    if _is_placed(layout, count):
        assert layout.placed_by is not None
        words.append(f"hash({', '.join(names[at] for at in layout.placed_by)}) into {count}")
    if layout.ordered_by:
        words.append(f"sorted by {', '.join(key.describe(names[key.column]) for key in layout.ordered_by)}")
    return ", ".join(words)


def _is_placed(layout: Layout, count: int) -> bool:
    """Return whether the placement may be claimed for a scan with ``count`` partitions."""
    return bool(layout.placed_by) and layout.partitions == count


# ---- in the JVM ---------------------------------------------------------------------------------------


class _Claims:
    """Makes the JVM's objects for the claims about a DataFrame's rows."""

    def __init__(self, jvm: Any, df: DataFrame) -> None:
        self._jvm = jvm
        self._session: SparkSession = df.sparkSession
        self._output = df._jdf.queryExecution().analyzed().output()
        # looked up by position, because names may repeat in another case or contain dots
        self._columns = [self._output.apply(at) for at in range(len(df.columns))]

    def scan(self, rdd: Any, layout: Layout, count: int, size: int | None) -> Any:
        """Return the JVM's Dataset of the rows of ``rdd``; None if this Spark has another `LogicalRDD`."""
        session: Any = self._session
        none = scala_object(self._jvm, "scala.None")
        arguments = (
            self._output,
            rdd,
            self._partitioning(layout, count),
            self._seq(self._order(key) for key in layout.ordered_by),
            False,
            none,
            session._jsparkSession,
            none if size is None else java_class(self._jvm, "scala.Option").apply(self._statistics(size)),
            none,
            False,
        )
        node = _constructed(java_class(self._jvm, f"{_SQL}.execution.LogicalRDD"), arguments)
        if node is None:
            return None
        # a new instance has new column ids, by which Spark tells the sides of a self join apart
        datasets = scala_object(self._jvm, f"{_SQL}.classic.Dataset")
        return datasets.ofRows(session._jsparkSession, node.newInstance())

    def _partitioning(self, layout: Layout, count: int) -> Any:
        physical = f"{_SQL}.catalyst.plans.physical"
        if _is_placed(layout, count):
            assert layout.placed_by is not None
            columns = self._seq(self._columns[at] for at in layout.placed_by)
            return java_class(self._jvm, f"{physical}.HashPartitioning")(columns, count)
        if count == 1:
            return scala_object(self._jvm, f"{physical}.SinglePartition")
        return java_class(self._jvm, f"{physical}.UnknownPartitioning")(0)

    def _order(self, key: SortKey) -> Any:
        expressions = f"{_SQL}.catalyst.expressions"
        direction = "Descending" if key.descending else "Ascending"
        nulls = "NullsLast" if key.nulls_last else "NullsFirst"
        return java_class(self._jvm, f"{expressions}.SortOrder")(
            self._columns[key.column],
            scala_object(self._jvm, f"{expressions}.{direction}"),
            scala_object(self._jvm, f"{expressions}.{nulls}"),
            self._seq(()),
        )

    def _statistics(self, size: int) -> Any:
        """Return Spark's statistics for a number of bytes. They hold a Scala BigInt, which Py4J would convert
        to a Python int, so they are taken from a plan of that size. It is a union, because the statistics of
        a range would also have a number of rows."""
        rows = max(1, min(size, _LARGEST) // _LONG)
        plan: Any = self._session.range(rows).union(self._session.range(0))
        return plan._jdf.queryExecution().analyzed().stats()

    def _seq(self, items: Iterable[Any]) -> Any:
        listed = java_class(self._jvm, "java.util.ArrayList")()
        for item in items:
            listed.add(item)
        return self._jvm.PythonUtils.toSeq(listed)


def _constructed(kind: Any, arguments: Sequence[Any]) -> Any:
    """Make a `LogicalRDD` with whichever known constructor exists; None if none does."""
    problem: Exception | None = None
    for arity in _ARITIES:
        try:
            return kind(*arguments[:arity])
        except Py4JError as error:  # no constructor with this number of arguments
            problem = error
    logging.getLogger(LOGGER).warning("Spark is not told how rows are laid out: %s", problem)
    return None
