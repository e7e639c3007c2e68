"""Shuffles of RDDs of Java objects, with Java's serializer, which cannot reorder records, and with Kryo.

They are made through Py4J, of methods that need no function of Java's or Scala's.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from registry import job
from results import ordered, unordered

COUNT, TASKS, PARTS = 6000, 4, 5
Found = dict[str, Any]
Java = Any
"""An object of Java's."""


def longs(spark: SparkSession, count: int = COUNT) -> Java:
    return spark.sparkContext._jsc.sc().range(0, count, 1, TASKS).toJavaRDD()


def texts(spark: SparkSession, directory: str, keys: int = 400) -> Java:
    """Lines of which each comes often, as many as `longs` has."""
    spark.range(0, COUNT, 1, TASKS).selectExpr(
        f"concat('key ', id * 31 % {keys}, repeat('x', int(id % 90)))"
    ).write.text(f"{directory}/lines")
    read = spark.read.text(f"{directory}/lines").sort("value").coalesce(1)
    return read._jdf.toJavaRDD().repartition(TASKS)


def keyed(spark: SparkSession, directory: str, keys: int = 400) -> Java:
    """Pairs of a row and a number."""
    return texts(spark, directory, keys).zipWithIndex()


def parallel_pairs(spark: SparkSession, pairs: list[tuple[Any, Any]], parts: int = TASKS) -> Java:
    jvm = spark.sparkContext._jvm
    made = jvm.java.util.ArrayList()
    for key, value in pairs:
        made.add(jvm.scala.Tuple2(key, value))
    return spark.sparkContext._jsc.parallelizePairs(made, parts)


def shown(rdd: Java) -> list[str]:
    """Each element as Java prints it."""
    return [each.toString() if hasattr(each, "toString") else str(each) for each in rdd.collect()]


def _each(values: Java) -> list[Any]:
    """Of an Iterable of Java's."""
    found, iterator = [], values.iterator()
    while iterator.hasNext():
        found.append(iterator.next())
    return found


def _is(rdd: Java, serializer: str) -> None:
    """Check that the shuffle above is made with that serializer."""
    found = _dependency(rdd.rdd()).serializer().getClass().getSimpleName()
    assert found == serializer, found


def _dependency(rdd: Java) -> Java:
    at = rdd
    while True:
        first = at.dependencies().head()
        if first.getClass().getSimpleName() == "ShuffleDependency":
            return first
        at = first.rdd()


@job
def java_group_by_key(spark: SparkSession, directory: str) -> Found:
    """An aggregator, on the reduce side only."""
    found = keyed(spark, directory).groupByKey(PARTS)
    _is(found, "JavaSerializer")
    return unordered((pair._1().toString(), sorted(_each(pair._2()))) for pair in found.collect())


@job
def java_distinct(spark: SparkSession, directory: str) -> Found:
    """An aggregator with combining on the map side."""
    found = texts(spark, directory, 70).distinct(PARTS)
    _is(found, "JavaSerializer")
    return unordered(shown(found))


@job
def java_count_approximately(spark: SparkSession, directory: str) -> Found:
    found = parallel_pairs(spark, [(n % 17, n * 13 % 101) for n in range(800)]).countApproxDistinctByKey(
        0.01, PARTS
    )
    _is(found, "JavaSerializer")
    return unordered(shown(found))


@job
def java_sort_by_key(spark: SparkSession, directory: str) -> Found:
    """Ordering."""
    pairs = [(n * 37 % 2003, f"v{n}") for n in range(2000)]
    found = parallel_pairs(spark, pairs).sortByKey(True, PARTS)
    _is(found, "JavaSerializer")
    return ordered(shown(found))


@job
def java_join(spark: SparkSession, directory: str) -> Found:
    left = parallel_pairs(spark, [(n % 50, n) for n in range(300)])
    right = parallel_pairs(spark, [(n % 70, f"é{n}") for n in range(200)], 3)
    found = left.join(right, PARTS)
    outer = left.fullOuterJoin(right, PARTS)
    return unordered(shown(found) + shown(outer))


@job
def java_cogroup(spark: SparkSession, directory: str) -> Found:
    left = parallel_pairs(spark, [(n % 50, n) for n in range(300)])
    right = parallel_pairs(spark, [(n % 70, n * 2) for n in range(200)], 3)
    groups = left.cogroup(right, PARTS).collect()
    return unordered(
        (pair._1(), sorted(_each(pair._2()._1())), sorted(_each(pair._2()._2()))) for pair in groups
    )


@job
def java_big_records(spark: SparkSession, directory: str) -> Found:
    """Blocks of more than a frame, and of almost nothing."""
    some = spark.range(0, 10, 1, 3).selectExpr("repeat('abcdefgh', int(id * 70000)) as t", "id")
    found = some._jdf.toJavaRDD().zipWithIndex().groupByKey(3)
    rows = found.keys().collect()
    return unordered((len(row.getString(0)), row.getLong(1)) for row in rows)


@job
def java_subtract_and_intersect(spark: SparkSession, directory: str) -> Found:
    left = longs(spark).union(longs(spark, 500))
    right = longs(spark, 3000)
    return unordered(shown(left.subtract(right, PARTS)) + shown(left.intersection(right)))


@job
def java_repartition(spark: SparkSession, directory: str) -> Found:
    parts = longs(spark).repartition(7).glom().collect()
    return ordered(sorted(part) for part in parts)


@job
def java_many_partitions(spark: SparkSession, directory: str) -> Found:
    """Two thousand readers, of some hundred tasks."""
    found = keyed(spark, directory).groupByKey(2100).keys().coalesce(100)
    return unordered(shown(found))


@job
def java_nothing(spark: SparkSession, directory: str) -> Found:
    empty = parallel_pairs(spark, [])
    none = spark.sparkContext._jsc.emptyRDD()
    counts = [
        empty.groupByKey(3).count(),
        empty.sortByKey().count(),
        none.distinct(2).count(),
        none.repartition(3).count(),
    ]
    return {**ordered(map(str, counts)), "parts": none.distinct(2).getNumPartitions()}


# ---- Kryo --------------------------------------------------------------------------------------------------


def _shuffled(spark: SparkSession, pairs: Java, parts: int, serializer: str) -> Java:
    """Spark's `ShuffledRDD` of Java pairs, with a serializer of our choice."""
    jvm = spark.sparkContext._jvm
    tags = [jvm.scala.reflect.ClassTag.Any()] * 3
    made = jvm.org.apache.spark.rdd.ShuffledRDD(
        pairs.rdd(), jvm.org.apache.spark.HashPartitioner(parts), *tags
    )
    conf = spark.sparkContext._jsc.sc().conf()
    return made.setSerializer(getattr(jvm.org.apache.spark.serializer, serializer)(conf))


@job
def kryo(spark: SparkSession, directory: str) -> Found:
    found = _shuffled(spark, keyed(spark, directory), PARTS, "KryoSerializer")
    assert _dependency(found).serializer().supportsRelocationOfSerializedObjects()
    parts = found.toJavaRDD().glom().collect()
    return ordered(sorted(pair.toString() for pair in part) for part in parts)


@job
def kryo_big_records(spark: SparkSession, directory: str) -> Found:
    """Records that overflow Kryo's buffer and the frame."""
    some = spark.range(0, 10, 1, 3).selectExpr("repeat('abcdefgh', int(id * 70000)) as t", "id")
    found = _shuffled(spark, some._jdf.toJavaRDD().zipWithIndex(), 3, "KryoSerializer")
    rows = [pair._1() for pair in found.toJavaRDD().collect()]
    return unordered((len(row.getString(0)), row.getLong(1)) for row in rows)


@job
def kryo_of_primitives(spark: SparkSession, directory: str) -> Found:
    """Pairs for which Spark itself chooses Kryo, as PySpark's are."""
    made = spark.sparkContext.parallelize(range(5000), 4).map(lambda n: (n % 100, n)).partitionBy(PARTS)
    chosen = _dependency(made._jrdd.rdd()).serializer().getClass().getSimpleName()
    return {**unordered(made.collect()), "serializer": chosen}


@job
def java_shuffled(spark: SparkSession, directory: str) -> Found:
    found = _shuffled(spark, keyed(spark, directory), PARTS, "JavaSerializer")
    parts = found.toJavaRDD().glom().collect()
    return ordered(sorted(pair.toString() for pair in part) for part in parts)
