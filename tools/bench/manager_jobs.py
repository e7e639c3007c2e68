"""The jobs of the `manager` benchmark, as both sides run them. How their results are compared:

* rows come home as they are, and are hashed sorted; what the query orders by is hashed once more in the order
  in which it came;
* of large outputs Spark itself makes a count and a sum of a 64-bit hash of all columns of each row, and where
  the place of the rows is looked at, these for each partition;
* of pairs, Python makes sums for each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import add
from typing import TYPE_CHECKING, Any

from jobs import Job, text_hash
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from tpch_data import TABLES
from tpch_queries import ANSWERS, ORDERS, query_text

if TYPE_CHECKING:  # most workers need none
    import pandas as pd

TINY_JOBS, TINY_ROWS = 100, 1000
PAIRS_TASKS = 8
MANY_KEYS = 1_000_003  # a prime; in the full case hardly any key comes twice in a map task
SPREAD = 2_654_435_761  # so that neighbours have keys far apart
FLOAT_DIGITS = 9  # of doubles, whose sums depend on the order of the rows


# ---- SQL ------------------------------------------------------------------------------------------------


def tpch(spark: SparkSession, data: str, scale: float, query: str, partitions: int) -> Job:
    """One query of TPC-H. Raises `AssertionError` where scale 1 does not give the specification's answer."""
    text = query_text(query, scale)

    def run() -> list[Row]:
        return spark.sql(text).collect()

    def digest(rows: list[Row]) -> str:
        if scale == 1:
            _check_answer(query, rows)
        in_order = [[_text(row[column]) for column in ORDERS.get(query, ())] for row in rows]
        unordered = sorted(repr([_text(value) for value in row]) for row in rows)
        return f"{len(rows)} rows {text_hash(unordered)} {text_hash(map(repr, in_order))}"

    _look_up(spark, data)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return Job(run, digest)


_looked_up: list[str] = []  # the directory whose tables the session knows now


def _look_up(spark: SparkSession, data: str) -> None:
    """Make the tables of a directory the session's. It reads their schemas, so not before each run."""
    if _looked_up != [data]:
        for table in TABLES:
            spark.read.parquet(f"{data}/{table}").createOrReplaceTempView(table)
        _looked_up[:] = [data]


def _check_answer(query: str, rows: list[Row]) -> None:
    count, columns = ANSWERS[query]
    first = {name: str(rows[0][name]) for name in columns}
    assert (len(rows), first) == (count, columns), f"{query} gives {len(rows)} rows, the first with {first}"


def repartition(spark: SparkSession, data: str, partitions: int, is_placed: bool = False) -> Job:
    """Every column of lineitem, by the two columns of its key. ``is_placed``: sums of each partition."""
    _look_up(spark, data)
    lines = spark.table("lineitem")

    def run() -> list[Row]:
        shuffled = lines.repartition(partitions, "l_orderkey", "l_linenumber")
        return _placed(shuffled) if is_placed else _hashed(shuffled).collect()

    return Job(run, str)


def blocks(spark: SparkSession, maps: int, partitions: int, rows: int, is_placed: bool = False) -> Job:
    """``maps`` map tasks, each with ``rows`` rows for each of so many partitions, on average. ``is_placed``:
    sums of each partition."""

    def run() -> list[Row]:
        numbers = spark.range(0, maps * partitions * rows, 1, maps).selectExpr("id", "id * 7 as other")
        shuffled = numbers.repartition(partitions, "id")
        return _placed(shuffled) if is_placed else _hashed(shuffled).collect()

    return Job(run, str)


def tiny(spark: SparkSession, jobs: int = TINY_JOBS) -> Job:
    """Jobs of two and four tasks, one behind the other."""

    def run() -> list[int]:
        return [spark.range(0, TINY_ROWS, 1, 2).repartition(4).count() for _ in range(jobs)]

    return Job(run, lambda counts: f"{len(counts)} jobs with {sorted(set(counts))} rows")


def first(spark: SparkSession, has_function: bool = False) -> Job:
    """What a session may do first: a small shuffle by a column. ``has_function``: of a function's rows."""

    def run() -> list[Row]:
        rows = spark.range(0, TINY_ROWS, 1, 2)
        if has_function:
            rows = rows.mapInPandas(successors, rows.schema)
        return _hashed(rows.repartition(4, "id")).collect()

    return Job(run, str)


def successors(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame + 1


def _hashed(df: DataFrame) -> DataFrame:
    return df.agg(sf.count("*").alias("rows"), sf.sum(_hash_of_row(df)).alias("hashes"))


def _placed(df: DataFrame) -> list[Row]:
    """The same for each partition."""
    numbered = df.withColumn("hash", _hash_of_row(df)).withColumn("partition", sf.spark_partition_id())
    sums = numbered.groupBy("partition").agg(sf.count("*").alias("rows"), sf.sum("hash").alias("hashes"))
    return sums.orderBy("partition").collect()


def _hash_of_row(df: DataFrame) -> Column:
    return sf.xxhash64(*df.columns).cast("decimal(38,0)")


# ---- RDDs -----------------------------------------------------------------------------------------------


def reduce_by_key(spark: SparkSession, pairs: int, partitions: int) -> Job:
    """PySpark's own `reduceByKey` of pairs of ints, which are made in the map tasks."""
    each = pairs // PAIRS_TASKS

    def make(task: int, _: Iterable[Any]) -> Iterator[tuple[int, int]]:
        for number in range(task * each, (task + 1) * each):
            yield number * SPREAD % MANY_KEYS, number & 0xFF

    def totals(summed: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        keys = values = mixed = 0
        for key, value in summed:
            keys += 1
            values += value
            mixed += key * value * value  # other groups of the same pairs give another sum
        yield keys, values, mixed

    def run() -> list[tuple[int, int, int]]:
        made = spark.sparkContext.parallelize(range(PAIRS_TASKS), PAIRS_TASKS).mapPartitionsWithIndex(make)
        return made.reduceByKey(add, partitions).mapPartitions(totals).collect()

    def digest(found: list[tuple[int, int, int]]) -> str:
        """Of all pairs, and of each partition."""
        return f"{[sum(column) for column in zip(*found, strict=True)]} {text_hash(map(repr, found))}"

    return Job(run, digest)


KINDS: dict[str, Callable[..., Job]] = {
    "tpch": tpch,
    "repartition": repartition,
    "blocks": blocks,
    "tiny": tiny,
    "first": first,
    "reduce_by_key": reduce_by_key,
}


def _text(value: Any) -> str:
    return f"{value:.{FLOAT_DIGITS}g}" if isinstance(value, float) else repr(value)
