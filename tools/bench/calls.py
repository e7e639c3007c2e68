"""`calls`: what the driver takes to make frames, before anything runs, against PySpark's own methods.

Each call is made of a new DataFrame, on both sides in turn, in one warm session. The figures are medians, in
milliseconds, and the number of calls of the JVM through Py4J. The aims: to wrap a DataFrame, to read its
schema and to call one method takes at most `AIM` ms more than PySpark takes for the same; a call in a session
of `sortshuffle.session`, without Python functions, at most `SESSION_AIM` ms more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from exchange import session
from harness import record
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

AIM, SESSION_AIM = 1.0, 0.2  # ms
# The JVM compiles while it warms up: `filter` took 1.0, 0.85 and 0.6 ms more after 100, 300 and 1000 calls
TIMES, WARM_UP = 300, 300  # of each side
COLUMNS = ("id % 7 as k", "id as v", "id + 0.5D as d", "string(id) as s")
SCHEMA = "k long, v long, d double, s string"
FORGET = "m\n"  # Py4J's commands that drop objects, at times of their own


@dataclass(frozen=True, slots=True)
class Calls:
    """``ours``, ``theirs``: the same calls on both sides, ``count`` of them."""

    name: str
    ours: Callable[[DataFrame], Any]
    theirs: Callable[[DataFrame], Any]
    count: int = 1


@dataclass(slots=True)
class Figures:
    """``count``: of the calls that are timed together. ``seconds`` of each time. ``sent``: the calls of the
    JVM in the last one."""

    count: int
    seconds: list[float] = field(default_factory=list)
    sent: int = 0

    @property
    def milliseconds(self) -> float:
        """Of one call."""
        return round(median(self.seconds) * 1e3 / self.count, 3)


def _batches(batches: Any) -> Any:
    yield from batches


def _group(group: Any) -> Any:
    return group


def _wrapped(name: str, call: Callable[[Any], Any]) -> Calls:
    """The schema, and then this call, on a frame of the DataFrame and on itself."""

    def ours(df: DataFrame) -> Any:
        frame = sortshuffle.frame(df)
        return frame.schema, call(frame)

    return Calls(name, ours, lambda df: (df.schema, call(df)))


def _attributes(df: DataFrame) -> Any:
    return df.columns, df.dtypes, df.schema


CALLS = [
    _wrapped("schema", lambda rows: None),
    _wrapped("schema, filter(k > 1)", lambda rows: rows.filter(rows.k > 1)),
    _wrapped('schema, withColumn("w", v)', lambda rows: rows.withColumn("w", rows.v)),
    _wrapped('schema, repartition(8, "k")', lambda rows: rows.repartition(8, "k")),
    _wrapped('schema, repartition("k")', lambda rows: rows.repartition("k")),
    _wrapped("schema, mapInArrow", lambda rows: rows.mapInArrow(_batches, SCHEMA)),
    _wrapped(
        'schema, groupBy("k").applyInPandas', lambda rows: rows.groupBy("k").applyInPandas(_group, SCHEMA)
    ),
    _wrapped("schema, distinct", lambda rows: rows.distinct()),
    _wrapped('schema, groupBy("k").sum("v")', lambda rows: rows.groupBy("k").sum("v")),
    _wrapped('schema, withColumnRenamed("v", "w")', lambda rows: rows.withColumnRenamed("v", "w")),
    Calls("toDF", lambda df: sortshuffle.frame(df).toDF(), lambda df: df),
    Calls(
        'repartition(8, "k"), toDF: planned',
        lambda df: sortshuffle.frame(df).repartition(8, "k").toDF(),
        lambda df: df.repartition(8, "k")._jdf.queryExecution().executedPlan(),
    ),
]


def _small_calls(df: DataFrame) -> DataFrame:
    rows = df.filter("k > 1").withColumn("w", sf.col("v") * 2).select("k", "w", "s")
    return rows.withColumnRenamed("w", "v").drop("s").distinct().orderBy("k").limit(3)


def _large_calls(df: DataFrame) -> DataFrame:
    sums = df.groupBy("k").agg(sf.sum("v").alias("v"), sf.max("d").alias("d"))
    joined = df.alias("l").join(sums.alias("r"), sf.col("l.k") == sf.col("r.k"), "left")
    return joined.select("l.k", "r.v").union(df.select("k", "v")).repartition(8, "k")


SESSION_CALLS = [
    Calls("8 calls on one DataFrame", _small_calls, _small_calls, 8),
    Calls("9 calls: groupBy, join, union", _large_calls, _large_calls, 9),
    Calls("columns, dtypes, schema", _attributes, _attributes, 3),
]
"""Calls in a session of ours, and in PySpark's."""


def main(quick: bool) -> None:
    warm_up, times = (2, 4) if quick else (WARM_UP, TIMES)
    print(f"\ncalls: ms of the driver, median of {times}, warm (calls of the JVM); aim: {AIM:g} ms more")
    spark = session("local[2]")
    try:
        df = spark.range(1000).selectExpr(*COLUMNS)
        for calls in CALLS:
            _compare(calls, df, df, warm_up, times)
        frame = sortshuffle.session(spark).range(1000).selectExpr(*COLUMNS)
        print(f"  in a session of ours, without Python functions, a call; aim: {SESSION_AIM:g} ms more")
        for calls in SESSION_CALLS:
            _compare(calls, frame, df, warm_up, times)
    finally:
        spark.stop()


def _compare(calls: Calls, own: DataFrame, plain: DataFrame, warm_up: int, times: int) -> None:
    """Make the calls on new DataFrames: of ``own`` on our side, of ``plain`` on the other."""
    ours, theirs = Figures(calls.count), Figures(calls.count)
    sides = ((calls.ours, own, ours), (calls.theirs, plain, theirs))
    for number in range(warm_up + times):
        for run, source, figures in sides:
            _once(plain.sparkSession, run, source.select("*"), figures)
        if number + 1 == warm_up:
            ours.seconds.clear()
            theirs.seconds.clear()
    _tell(calls.name, ours, theirs)


def _once(spark: SparkSession, run: Callable[[DataFrame], Any], df: DataFrame, figures: Figures) -> None:
    with _sent(spark) as sent:
        started = time.perf_counter()
        made = run(df)
        figures.seconds.append(time.perf_counter() - started)
    del made  # dropped after the time is taken
    figures.sent = len(sent)


def _tell(name: str, ours: Figures, theirs: Figures) -> None:
    more = ours.milliseconds - theirs.milliseconds
    print(
        f"  {name:<36} sortshuffle {ours.milliseconds:8.3f} ({ours.sent:3})"
        f"   PySpark {theirs.milliseconds:8.3f} ({theirs.sent:3})   {more:+8.3f} ms"
    )
    record(
        "calls",
        calls=name,
        milliseconds={"sortshuffle": ours.milliseconds, "PySpark": theirs.milliseconds},
        jvm_calls={"sortshuffle": ours.sent, "PySpark": theirs.sent},
        times=len(ours.seconds),
    )


@contextmanager
def _sent(spark: SparkSession) -> Iterator[list[None]]:
    """One item for each call of the JVM that this thread makes in the block."""
    client: Any = spark.sparkContext._gateway._gateway_client
    send, thread, sent = client.send_command, threading.get_ident(), []

    def counted(command: str, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and not command.startswith(FORGET):
            sent.append(None)
        return send(command, *args, **kwargs)

    client.send_command = counted
    try:
        yield sent
    finally:
        del client.send_command
