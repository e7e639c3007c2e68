"""What a job of the soak computes: the same code runs with this package and with plain Spark.

A job is a function of a session, whether it is ours, and a `Shape`. It returns what JSON can carry: digests
of its result. The two sides are right if they are equal.

Rows are made of their numbers alone, so they are the same whoever makes them, and whenever they are made
again. Tasks that make rows wait a little between batches. So faults meet tasks in the middle, on a machine of
any speed, and waiting costs no CPU.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

BATCHES = 4  # of a task that makes rows
ROWS = "id long, k long, v long, s string"
DIGEST = "part long, rows long, total long"

Batches = Iterator[pa.RecordBatch]
Work = Callable[[SparkSession, bool, "Shape"], Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a job's data. ``rows`` in ``maps`` tasks, shuffled into ``reduces`` partitions; ``keys``: how many
    different keys they have; ``seed``: of their values; ``pace``: seconds that a task waits in all.
    ``heavy``: the share of the rows that have one key."""

    rows: int
    maps: int
    reduces: int
    keys: int
    seed: int
    pace: float
    heavy: float = 0.0


SHAPES = {
    "small": Shape(rows=6_000, maps=6, reduces=5, keys=500, seed=1, pace=0.3),
    "many": Shape(rows=20_000, maps=24, reduces=40, keys=20_000, seed=2, pace=0.1),
    "large": Shape(rows=240_000, maps=9, reduces=9, keys=30_000, seed=3, pace=0.4),
    "skewed": Shape(rows=120_000, maps=12, reduces=9, keys=10_000, seed=4, pace=0.3, heavy=0.5),
}

works: dict[str, tuple[str, Work]] = {}
"""Every kind of job: its entry point (frame, rdd, or manager: unmodified jobs), and what it does."""


def work(door: str) -> Callable[[Work], Work]:
    def register(function: Work) -> Work:
        works[function.__name__] = (door, function)
        return function

    return register


# ---- rows --------------------------------------------------------------------------------------------------


def mixed(numbers: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """The finaliser of splitmix64: 64 bits that look random."""
    with np.errstate(over="ignore"):
        found = numbers.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def values_of(ids: np.ndarray[Any, Any], shape: Shape) -> tuple[np.ndarray[Any, Any], ...]:
    """The key and the value of each row."""
    bits = mixed(ids, shape.seed)
    keys, values = bits % np.uint64(shape.keys), (bits >> np.uint64(20)) % np.uint64(10**9)
    is_heavy = mixed(ids, shape.seed + 1) % np.uint64(1000) < np.uint64(round(1000 * shape.heavy))
    return np.where(is_heavy, 0, keys.astype(np.int64)), values.astype(np.int64)


def produce(shape: Shape) -> Callable[[Batches], Batches]:
    """Of ids, rows."""

    def rows_of(batches: Batches) -> Batches:
        for batch in batches:
            time.sleep(shape.pace / BATCHES)
            ids = batch["id"].to_numpy()
            keys, values = values_of(ids, shape)
            texts = pc.binary_repeat(pc.cast(pa.array(values), pa.string()), 4)
            yield pa.record_batch({"id": ids, "k": keys, "v": values, "s": texts})

    return rows_of


def ids(spark: SparkSession, shape: Shape) -> DataFrame:
    spark.conf.set(
        "spark.sql.execution.arrow.maxRecordsPerBatch", str(shape.rows // shape.maps // BATCHES + 1)
    )
    spark.conf.set("spark.sql.shuffle.partitions", str(shape.reduces))
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    return spark.range(0, shape.rows, 1, shape.maps)


def frame(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    """The rows, as a frame of ours or a DataFrame."""
    source = ids(spark, shape)
    return (sortshuffle.frame(source) if is_ours else source).mapInArrow(produce(shape), ROWS)


def table(spark: SparkSession, shape: Shape) -> DataFrame:
    """The rows, as a DataFrame."""
    return ids(spark, shape).mapInArrow(produce(shape), ROWS)


def pairs(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    """Keys and values, as an RDD of ours or of PySpark's."""
    spark.conf.set("spark.sql.shuffle.partitions", str(shape.reduces))

    def pairs_of(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        chosen = np.fromiter(numbers, np.int64)
        for part in np.array_split(chosen, BATCHES):
            time.sleep(shape.pace / BATCHES)
            keys, values = values_of(part, shape)
            yield from zip(keys.tolist(), values.tolist(), strict=True)

    source = spark.sparkContext.range(0, shape.rows, 1, shape.maps)
    return (sortshuffle.rdd(source) if is_ours else source).mapPartitions(pairs_of)


# ---- digests -----------------------------------------------------------------------------------------------


def row_hashes(columns: Iterable[pa.Array | pa.ChunkedArray]) -> np.ndarray[Any, Any]:
    """64 bits for each row: integers and texts."""
    found: np.ndarray[Any, Any] | None = None
    for number, column in enumerate(columns, 1):
        if pa.types.is_integer(column.type):
            bits = column.to_numpy().view(np.uint64) if column.type == pa.int64() else column.to_numpy()
        else:
            texts = column.to_pylist()
            bits = np.fromiter((zlib.crc32(each.encode()) for each in texts), np.uint64, len(texts))
        mine = mixed(bits.astype(np.uint64), number)
        found = mine if found is None else mixed(found ^ mine, number)
    assert found is not None
    return found


def digest(batches: Batches) -> Batches:
    """Of a task's rows one: its partition, how many there are, the sum of their hashes."""
    count, total = 0, np.uint64(0)
    with np.errstate(over="ignore"):
        for batch in batches:
            count += batch.num_rows
            total += row_hashes(batch.columns).sum(dtype=np.uint64)
    part = TaskContext.get().partitionId()
    yield pa.record_batch({"part": [part], "rows": [count], "total": [int(total.astype(np.int64))]})


def placed(frame: Any) -> list[list[int]]:
    """The digest of each partition that has rows."""
    found = frame.mapInArrow(digest, DIGEST).collect()
    return sorted([row.part, row.rows, row.total] for row in found if row.rows)


def total(frame: Any) -> list[int]:
    """One digest of all rows, in whatever partition."""
    found = placed(frame)
    return [sum(rows for _, rows, _ in found), sum(total for _, _, total in found) % 2**64]


def exchanged(frame: Any, shape: Shape) -> Any:
    """A digest of what was exchanged by a key: of each partition where there is no heavy one. A partition of
    a heavy key may be divided (``spark.sortshuffle.skew``), and those behind it have other numbers then."""
    return total(frame) if shape.heavy else placed(frame)


def ordered(frame: Any) -> list[Any]:
    """A digest of the rows in their order."""
    found = frame.toArrow()
    return [found.num_rows, hashlib.sha256(row_hashes(found.columns).tobytes()).hexdigest()]


def of_objects(found: list[Any]) -> list[Any]:
    """A digest of Python objects in their order."""
    return [len(found), hashlib.sha256(repr(found).encode()).hexdigest()]


# ---- frames ------------------------------------------------------------------------------------------------


@work("frame")
def frame_exchange(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return exchanged(frame(spark, is_ours, shape).repartition(shape.reduces, "k"), shape)


@work("frame")
def frame_aggregate(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    rows = frame(spark, is_ours, shape)
    return total(rows.groupBy("k").agg(sf.count("id"), sf.sum("v"), sf.min("s"), sf.max("id")))


@work("frame")
def frame_join(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    left = frame(spark, is_ours, shape)
    right = frame(spark, is_ours, shape).groupBy("k").agg(sf.sum("v").alias("w"))
    return total(left.repartition(shape.reduces + 2, "v").join(right, "k"))


@work("frame")
def frame_sort(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return ordered(frame(spark, is_ours, shape).sort("v", "id"))


@work("frame")
def frame_two_exchanges(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    """Of one pass."""
    rows = frame(spark, is_ours, shape)
    by_key = rows.repartition(shape.reduces, "k")
    by_value = rows.select("v", "s").repartition(shape.reduces + 3, "v")
    return [exchanged(by_key, shape), exchanged(by_value, shape)]


@work("frame")
def frame_groups(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    def of_group(group: pa.Table) -> pa.Table:
        return pa.table({"k": group["k"][:1], "rows": [group.num_rows], "most": [pc.max(group["v"]).as_py()]})

    grouped = frame(spark, is_ours, shape).groupBy("k")
    return total(grouped.applyInArrow(of_group, "k long, rows long, most long"))


# ---- RDDs --------------------------------------------------------------------------------------------------


@work("rdd")
def rdd_reduce_by_key(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return of_objects(sorted(pairs(spark, is_ours, shape).reduceByKey(add, shape.reduces).collect()))


@work("rdd")
def rdd_group_by_key(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    found = pairs(spark, is_ours, shape).groupByKey(shape.reduces).mapValues(lambda values: sorted(values))
    return of_objects(sorted(found.collect()))


@work("rdd")
def rdd_join(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    left, right = pairs(spark, is_ours, shape), pairs(spark, is_ours, shape).reduceByKey(max, shape.reduces)
    return of_objects(sorted(left.join(right, shape.reduces).collect()))


@work("rdd")
def rdd_sort_by(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    found = pairs(spark, is_ours, shape).sortBy(lambda pair: (pair[1], pair[0]), numPartitions=shape.reduces)
    return of_objects(found.collect())


# ---- unmodified jobs ---------------------------------------------------------------------------------------


@work("manager")
def sql_aggregate(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return total(table(spark, shape).groupBy("k").agg(sf.count("id"), sf.sum("v"), sf.min("s"), sf.max("id")))


@work("manager")
def sql_join(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    right = table(spark, shape).groupBy("k").agg(sf.sum("v").alias("w"))
    return total(table(spark, shape).join(right, "k"))


@work("manager")
def sql_wide_repartition(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return placed(table(spark, shape).repartition(4 * shape.reduces, "k"))


@work("manager")
def sql_sort(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return ordered(table(spark, shape).sort("v", "id"))


@work("manager")
def pyspark_reduce_by_key(spark: SparkSession, is_ours: bool, shape: Shape) -> Any:
    return of_objects(sorted(pairs(spark, False, shape).reduceByKey(add, shape.reduces).collect()))
