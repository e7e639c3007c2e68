"""Shuffles of RDDs of Java objects, with Java's serializer, which cannot reorder records, and with Kryo.

They are made through Py4J, with methods that need no function of Java's or Scala's. Each call through Py4J is
a message, so the rows of a partition come home as one text.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

from pyspark.sql import SparkSession
from registry import job
from results import ordered, partitions

COUNT, TASKS, PARTS = 6000, 4, 5
Found = dict[str, Any]
Java = Any
"""An object of Java's."""


def longs(spark: SparkSession, count: int = COUNT) -> Java:
    return spark.sparkContext._jsc.sc().range(0, count, 1, TASKS).toJavaRDD()


def texts(spark: SparkSession) -> Java:
    """Lines of which each comes often, as many as `longs` has."""
    lines = spark.range(0, COUNT, 1, 1).selectExpr(
        "concat('key ', id * 31 % 70, repeat('x', int(id % 90))) as value"
    )
    return lines._jdf.toJavaRDD().repartition(TASKS)


def large(spark: SparkSession) -> Java:
    """Pairs of a row and a number, in one task: two rows are larger than a slot, then comes one of almost
    nothing. So a task sends its blocks more than once."""
    some = spark.range(0, 3, 1, 1).selectExpr("repeat('abcdefgh', int((2 - id) * 315000)) as t", "id")
    return some._jdf.toJavaRDD().zipWithIndex()


def parallel_pairs(spark: SparkSession, pairs: list[tuple[Any, Any]], parts: int = TASKS) -> Java:
    jvm = spark.sparkContext._jvm
    made, pair = jvm.java.util.ArrayList(), jvm.scala.Tuple2
    for key, value in pairs:
        made.add(pair(key, value))
    return spark.sparkContext._jsc.parallelizePairs(made, parts)


def together(spark: SparkSession, rdds: dict[str, Java]) -> dict[str, list[list[str]]]:
    """Each partition's elements as Java prints them, of several RDDs by name. One job makes them all."""
    join = spark.sparkContext._jvm.org.apache.commons.lang3.StringUtils.join
    # `glom` first: RDDs that have one partitioner would become one
    parts = iter(
        reduce(lambda one, other: one.union(other), [each.glom() for each in rdds.values()]).collect()
    )
    return {
        name: [shown(join(next(parts), "\n")) for _ in range(rdd.getNumPartitions())]
        for name, rdd in rdds.items()
    }


def shown(text: str) -> list[str]:
    """Lines, in which the numbers of a group are in order."""
    in_order = re.sub(r"\[(\d+(?:, \d+)*)\]", lambda found: str(sorted(map(int, found[1].split(", ")))), text)
    return in_order.split("\n") if in_order else []


def dependency_of(rdd: Java) -> Java:
    """The last shuffle above."""
    at = rdd
    while True:
        first = at.dependencies().head()
        if first.getClass().getSimpleName() == "ShuffleDependency":
            return first
        at = first.rdd()


def shuffled(spark: SparkSession, pairs: Java, parts: int, serializer: str) -> Java:
    """Spark's `ShuffledRDD` of Java pairs, with a serializer of our choice."""
    jvm = spark.sparkContext._jvm
    tags = [jvm.scala.reflect.ClassTag.Any()] * 3
    made = jvm.org.apache.spark.rdd.ShuffledRDD(
        pairs.rdd(), jvm.org.apache.spark.HashPartitioner(parts), *tags
    )
    conf = spark.sparkContext._jsc.sc().conf()
    chosen = made.setSerializer(getattr(jvm.org.apache.spark.serializer, serializer)(conf))
    assert (serializer == "KryoSerializer") == (
        dependency_of(chosen).serializer().supportsRelocationOfSerializedObjects()
    )
    return chosen.toJavaRDD()


@job
def java_group_by_key(spark: SparkSession, _: str) -> Found:
    """An aggregator, on the reduce side only."""
    found = together(spark, {"grouped": texts(spark).zipWithIndex().groupByKey(PARTS)})
    return partitions(found["grouped"])


@job
def kryo(spark: SparkSession, _: str) -> Found:
    found = shuffled(spark, texts(spark).zipWithIndex(), PARTS, "KryoSerializer")
    return partitions(together(spark, {"found": found})["found"])


@job
def java_operations(spark: SparkSession, _: str) -> Found:
    lines, big = texts(spark), large(spark)
    keyed = lines.zipWithIndex()
    left = parallel_pairs(spark, [(n % 50, n) for n in range(120)])
    right = parallel_pairs(spark, [(n % 70, f"é{n}") for n in range(100)], 3)
    numbers = parallel_pairs(spark, [(n % 17, n * 13 % 101) for n in range(200)])
    more, fewer = longs(spark).union(longs(spark, 500)), longs(spark, 3000)
    empty, none = parallel_pairs(spark, []), spark.sparkContext._jsc.emptyRDD()
    made = {
        # an aggregator on the reduce side, one with combining on the map side, an ordering
        "grouped": keyed.groupByKey(PARTS),
        "distinct": lines.distinct(PARTS),
        "counted": numbers.countApproxDistinctByKey(0.01, PARTS),
        # few pairs, so that Spark samples all of them; a smaller sample would depend on the RDD's number
        "sorted": parallel_pairs(spark, [(n * 37 % 307, f"v{n}") for n in range(240)]).sortByKey(True, PARTS),
        "joined": left.join(right, PARTS),
        "outer joined": left.fullOuterJoin(right, PARTS),
        "cogrouped": left.cogroup(numbers, PARTS),
        "large": big.groupByKey(3),
        "subtracted": more.subtract(fewer, PARTS),
        "intersected": more.intersection(fewer),
        "repartitioned": longs(spark).repartition(7),
        # 2,100 partitions, which a few tasks read
        "of many partitions": keyed.groupByKey(2100).keys().coalesce(PARTS),
        "empty, grouped": empty.groupByKey(3),
        "empty, sorted": empty.sortByKey(),
        "none, distinct": none.distinct(2),
        "none, repartitioned": none.repartition(3),
        "shuffled": shuffled(spark, keyed, PARTS, "JavaSerializer"),
        "shuffled by Kryo": shuffled(spark, keyed, PARTS, "KryoSerializer"),
        "large, by Kryo": shuffled(spark, big, 3, "KryoSerializer"),
    }
    for name in ("grouped", "distinct", "counted", "sorted"):
        assert dependency_of(made[name].rdd()).serializer().getClass().getSimpleName() == "JavaSerializer"
    found = together(spark, made)
    in_order = ordered(text for part in found["sorted"] for text in part)
    return {**{name: partitions(parts) for name, parts in found.items()}, "in order": in_order}
