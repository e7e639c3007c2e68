"""PySpark's RDD operations that shuffle."""

from __future__ import annotations

from operator import add
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.storagelevel import StorageLevel
from registry import job
from results import ordered, partitions, unordered

COUNT, TASKS, PARTS = 20_000, 4, 6
Found = dict[str, Any]


def pairs(spark: SparkSession, keys: int = 300, count: int = COUNT) -> RDD[tuple[int, int]]:
    return spark.sparkContext.parallelize(range(count), TASKS).map(
        lambda number: (number * 31 % keys, number)
    )


@job
def reduce_by_key(spark: SparkSession, _: str) -> Found:
    return partitions(pairs(spark).reduceByKey(add, PARTS).glom().collect())


@job
def aggregate_by_key(spark: SparkSession, _: str) -> Found:
    counted = pairs(spark).aggregateByKey(
        (0, 0), lambda s, v: (s[0] + 1, s[1] + v), lambda s, t: (s[0] + t[0], s[1] + t[1]), PARTS
    )
    return partitions(counted.glom().collect())


@job
def fold_and_combine(spark: SparkSession, _: str) -> Found:
    folded = pairs(spark).foldByKey(0, max, PARTS)
    combined = pairs(spark).combineByKey(str, lambda s, v: min(s, str(v)), min, PARTS)
    return partitions(folded.union(combined).glom().collect())


@job
def group_by_key(spark: SparkSession, _: str) -> Found:
    return partitions(pairs(spark).groupByKey(PARTS).mapValues(sorted).glom().collect())


@job
def sort_by_key(spark: SparkSession, _: str) -> Found:
    found = pairs(spark, COUNT + 1).sortByKey(ascending=False, numPartitions=PARTS)
    return ordered(found.collect())


@job
def sort_by(spark: SparkSession, _: str) -> Found:
    words = pairs(spark).map(lambda pair: f"{pair[0]:05d}-{pair[1]}")
    return ordered(words.sortBy(lambda word: word, numPartitions=PARTS).collect())


@job
def sort_within_partitions(spark: SparkSession, _: str) -> Found:
    keyed = pairs(spark).map(lambda pair: (pair, None))
    found = keyed.repartitionAndSortWithinPartitions(PARTS, lambda key: key[0])
    return ordered(f"{number}: {row}" for number, part in enumerate(found.glom().collect()) for row in part)


@job
def partition_by(spark: SparkSession, _: str) -> Found:
    return partitions(pairs(spark).partitionBy(PARTS, lambda key: key * 7).glom().collect())


@job
def repartition(spark: SparkSession, _: str) -> Found:
    return partitions(pairs(spark).repartition(11).glom().collect())


@job
def join(spark: SparkSession, _: str, *, how: str) -> Found:
    left = pairs(spark, 300, 900)
    right = pairs(spark, 400, 1200).mapValues(lambda number: f"r{number}")
    return unordered(getattr(left, how)(right, PARTS).collect())


@job
def cogroup(spark: SparkSession, _: str) -> Found:
    left, right = pairs(spark, 300, 900), pairs(spark, 400, 1200)
    found = left.cogroup(right, PARTS).mapValues(lambda both: tuple(map(sorted, both)))
    return partitions(found.glom().collect())


@job
def distinct_values(spark: SparkSession, _: str) -> Found:
    return unordered(pairs(spark).map(lambda pair: pair[1] % 701).distinct(PARTS).collect())


@job
def subtract_and_intersect(spark: SparkSession, _: str) -> Found:
    left, right = pairs(spark, 300, 900), pairs(spark, 300, 1800)
    found = right.subtract(left).union(left.intersection(right)).union(left.subtractByKey(right))
    return unordered(found.collect())


@job
def texts_and_objects(spark: SparkSession, _: str) -> Found:
    """Keys of many kinds, rows of a megabyte."""
    # no two are equal, as 1 and True: which of them stands for both depends on which comes first
    keys: list[Any] = [None, 3, 2.5, "é", b"\x00\xff", (1, "x"), True]
    made = spark.sparkContext.parallelize(range(700), 3).map(lambda n: (keys[n % 7], n))
    large = spark.sparkContext.parallelize(range(12), 3).map(lambda n: (n, "x" * (n << 20)))
    lengths = large.partitionBy(5).mapValues(len)
    return partitions(made.groupByKey(PARTS).mapValues(sorted).union(lengths).glom().collect())


@job
def of_nothing(spark: SparkSession, _: str) -> Found:
    """RDDs without partitions, and without rows."""
    context = spark.sparkContext
    none, empty = context.emptyRDD(), context.parallelize([], 3)
    keyed = [rdd.map(lambda each: (each, each)) for rdd in (none, empty)]
    found = [rdd.reduceByKey(add, 4).collect() for rdd in keyed]
    found += [rdd.partitionBy(3).glom().collect() for rdd in keyed]
    found += [rdd.join(pairs(spark, 5, 10), 3).collect() for rdd in keyed]
    found += [rdd.distinct(2).collect() for rdd in (none, empty)]
    found += [empty.map(lambda each: (each, each)).sortByKey().collect()]
    found += [sorted(keyed[0].union(pairs(spark, 5, 10)).reduceByKey(add, 3).collect())]
    return ordered(found)


@job
def persisted(spark: SparkSession, _: str) -> Found:
    """A shuffle that is read, kept, forgotten, and read again."""
    grouped = pairs(spark).groupByKey(PARTS).mapValues(sum)
    kept = grouped.persist(StorageLevel.MEMORY_AND_DISK)
    first = kept.glom().collect()
    kept.unpersist(blocking=True)
    assert sorted(map(sorted, first)) == sorted(map(sorted, grouped.glom().collect()))
    return partitions(first)


@job
def many_small_blocks(spark: SparkSession, _: str) -> Found:
    found = pairs(spark, 50, 5000).repartition(25).partitionBy(25)
    return partitions(found.glom().collect())
