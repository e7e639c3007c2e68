"""Calls on frames of Python's side, whose columns Spark must find. In a session of `sortshuffle.session` they
give what plain PySpark gives, with a JVM and over Spark Connect, on each version of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

Call: TypeAlias = Callable[[Any, DataFrame, DataFrame], DataFrame]

SCHEMA = "id long, k long, v long"


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def numbers(session: Any, count: int) -> DataFrame:
    """Return what a Python function gives; the result of the function is a frame of Python's side, if the
    session is of `sortshuffle.session`."""
    source = session.range(count).select("id", (sf.col("id") % 3).alias("k"), (sf.col("id") * 2).alias("v"))
    frame: DataFrame = source.mapInArrow(same, SCHEMA)
    return frame


def _first(pdf: Any) -> Any:
    return pdf.head(1)


def _left(left: Any, right: Any) -> Any:
    return left.head(1)


def _view(session: Any, frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("numbers")
    result: DataFrame = session.sql("select k, sum(v) as total from numbers group by k")
    return result


def _dropped_view(session: Any, frame: DataFrame) -> DataFrame:
    result = _view(session, frame).localCheckpoint()
    session.catalog.dropTempView("numbers")
    return result


CALLS: dict[str, Call] = {
    "its own column": lambda s, f, g: f.filter(f.k > 1),
    "a column before an exchange": lambda s, f, g: f.repartition(3).filter(f.k > 1),
    "a column before a selection": lambda s, f, g: f.select(f.id, f.k).filter(f.k > 1).select(f.id),
    "a column that a selection dropped": lambda s, f, g: f.select("id").filter(f.k == 1),
    "a name that a selection dropped": lambda s, f, g: f.select("id").filter("k = 1"),
    "a column beside a renamed one": lambda s, f, g: f.withColumnRenamed("k", "q").filter(f.v > 2),
    "an added column": lambda s, f, g: f.withColumn("q", f.k + 1).filter(f.k > 0).drop(f.v),
    "an alias": lambda s, f, g: f.alias("a").filter("a.k > 1").select("a.id"),
    "aliases in a self join": lambda s, f, g: (
        f.alias("l").join(f.alias("r"), sf.col("l.id") == sf.col("r.v")).select("l.id", "r.k")
    ),
    "columns of a join by name": lambda s, f, g: f.join(g, "id").select(f.id, g.v),
    "columns of a join": lambda s, f, g: f.join(g, f.id == g.v).select(f.id, g.v).filter(f.id > 0),
    "columns of groups": lambda s, f, g: (
        f.groupBy(f.k).agg(sf.sum(f.v).alias("t"), sf.max("id").alias("m")).filter(f.k > 0)
    ),
    "columns of a function's result": lambda s, f, g: (
        h := f.groupBy("k").applyInPandas(_first, SCHEMA)
    ).withColumn("z", h.k + h.v),
    "a column before a sort": lambda s, f, g: f.repartition(2, f.k).sort(f.id.desc()).filter(f.id > 4),
    "a window": lambda s, f, g: f.withColumn(
        "r", sf.row_number().over(Window.partitionBy(f.k).orderBy(f.id))
    ),
    "a union": lambda s, f, g: f.unionByName(f.select("v", "k", "id")).filter("k = 1"),
    "a cache": lambda s, f, g: f.cache().filter(f.k == 1),
    "a cache behind a selection": lambda s, f, g: f.select("id", "k").cache().filter(f.k == 1),
    "SQL with a frame": lambda s, f, g: s.sql("select * from {f} where k = 1", f=f),
    "a view": lambda s, f, g: _dropped_view(s, f),
    "a subquery": lambda s, f, g: f.where(g.where(g.id == sf.col("id").outer()).exists()),
    "a pivot": lambda s, f, g: f.groupBy("k").pivot("v", [0, 2]).count(),
    "a broadcast": lambda s, f, g: f.join(sf.broadcast(g), "id").select(f.v),
    "columns by an expression": lambda s, f, g: f.select(f.colRegex("`(id|k)`")),
    "a new session": lambda s, f, g: numbers(s.newSession(), 9).groupBy("k").applyInPandas(_first, SCHEMA),
    "a cogroup": lambda s, f, g: f.groupBy("k").cogroup(g.groupBy("k")).applyInPandas(_left, SCHEMA),
}


def outcome(session: Any, call: Call) -> tuple[str, list[str]]:
    """Return the schema and the rows of a call's result."""
    result = call(session, numbers(session, 7), numbers(session, 4))
    return result.schema.simpleString(), sorted(map(str, result.collect()))
