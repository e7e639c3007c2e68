"""PySpark's RDD operations that shuffle."""

from __future__ import annotations

from operator import add
from typing import Any

from java_jobs import dependency_of
from oracle import lists
from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.storagelevel import StorageLevel
from registry import job
from results import ordered, partitions

COUNT, TASKS, PARTS = 4000, 3, 4
Found = dict[str, Any]


def pairs(spark: SparkSession, keys: int = 300, count: int = COUNT) -> RDD[tuple[int, int]]:
    return spark.sparkContext.parallelize(range(count), TASKS).map(
        lambda number: (number * 31 % keys, number)
    )


@job
def reduce_by_key(spark: SparkSession, _: str) -> Found:
    return partitions(pairs(spark).reduceByKey(add, PARTS).glom().collect())


@job
def group_by_key(spark: SparkSession, _: str) -> Found:
    return partitions(pairs(spark).groupByKey(PARTS).mapValues(sorted).glom().collect())


@job
def operations(spark: SparkSession, _: str) -> Found:
    left, right = pairs(spark, 300, 900), pairs(spark, 400, 1200)
    less = pairs(spark, 300, 1800)
    placed = pairs(spark).partitionBy(PARTS, lambda key: key * 7)
    found = {
        "reduced": pairs(spark).reduceByKey(add, PARTS),
        "aggregated": pairs(spark).aggregateByKey(
            (0, 0), lambda s, v: (s[0] + 1, s[1] + v), lambda s, t: (s[0] + t[0], s[1] + t[1]), PARTS
        ),
        "folded": pairs(spark).foldByKey(0, max, PARTS),
        "combined": pairs(spark).combineByKey(str, lambda s, v: min(s, str(v)), min, PARTS),
        "grouped": pairs(spark).groupByKey(PARTS).mapValues(sorted),
        "placed": placed,
        "repartitioned": pairs(spark).repartition(11),
        "cogrouped": left.cogroup(right, PARTS).mapValues(lambda both: tuple(map(sorted, both))),
        **{how: getattr(left, how)(right, PARTS) for how in ("join", "leftOuterJoin", "fullOuterJoin")},
        "distinct": pairs(spark).map(lambda pair: pair[1] % 701).distinct(PARTS),
        "subtracted": less.subtract(left),
        "intersected": left.intersection(less),
        "subtracted by key": left.subtractByKey(right),
        "many small blocks": pairs(spark, 50).repartition(20).partitionBy(60).coalesce(PARTS),
        **of_nothing(spark),
        **texts_and_objects(spark),
    }
    serializer = dependency_of(placed._jrdd.rdd()).serializer()
    rows = dict(zip(found, map(partitions, lists(*found.values())), strict=True))
    return {**rows, "serializer": serializer.getClass().getSimpleName()}


@job
def sorting_operations(spark: SparkSession, _: str) -> Found:
    words = pairs(spark).map(lambda pair: f"{pair[0]:05d}-{pair[1]}")
    keyed = pairs(spark).map(lambda pair: (pair, None))
    found: dict[str, RDD[Any]] = {
        "by key": pairs(spark, COUNT + 1).sortByKey(ascending=False, numPartitions=PARTS),
        "by a function": words.sortBy(lambda word: word, numPartitions=PARTS),
        "within partitions": keyed.repartitionAndSortWithinPartitions(PARTS, lambda key: key[0]),
    }
    return {
        name: ordered(f"{number}: {row}" for number, part in enumerate(parts) for row in part)
        for name, parts in zip(found, lists(*found.values()), strict=True)
    }


def texts_and_objects(spark: SparkSession) -> dict[str, RDD[Any]]:
    """Keys of many kinds, rows of megabytes."""
    # no two are equal, as 1 and True: which of them stands for both depends on which comes first
    keys: list[Any] = [None, 3, 2.5, "é", b"\x00\xff", (1, "x"), True]
    made = spark.sparkContext.parallelize(range(700), 3).map(lambda n: (keys[n % 7], n))
    large = spark.sparkContext.parallelize([5, 1, 0], 1).map(lambda n: (n, "x" * (n << 20)))
    return {
        "keys of many kinds": made.groupByKey(PARTS).mapValues(sorted),
        "large": large.partitionBy(5).mapValues(len),
    }


def of_nothing(spark: SparkSession) -> dict[str, RDD[Any]]:
    """RDDs without partitions, and without rows."""
    context = spark.sparkContext
    found: dict[str, RDD[Any]] = {}
    for name, rdd in {"no partitions": context.emptyRDD(), "no rows": context.parallelize([], 3)}.items():
        keyed: RDD[Any] = rdd.map(lambda each: (each, each))
        found |= {
            f"{name}, reduced": keyed.reduceByKey(add, 4),
            f"{name}, placed": keyed.partitionBy(3),
            f"{name}, joined": keyed.join(pairs(spark, 5, 10), 3),
            f"{name}, distinct": rdd.distinct(2),
            f"{name}, with others": keyed.union(pairs(spark, 5, 10)).reduceByKey(add, 3),
        }
    return found


@job
def persisted(spark: SparkSession, _: str) -> Found:
    """A shuffle that is read, kept, forgotten, and read again."""
    grouped = pairs(spark).groupByKey(PARTS).mapValues(sum)
    kept = grouped.persist(StorageLevel.MEMORY_AND_DISK)
    first = kept.glom().collect()
    kept.unpersist(blocking=True)
    assert sorted(map(sorted, first)) == sorted(map(sorted, grouped.glom().collect()))
    return partitions(first)
