"""Which shuffles of plans and RDDs stay with Spark's own manager: lists of [partitions, whose]. The session
has the manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark import RDD
from pyspark.core.rdd import Partitioner
from pyspark.sql import DataFrame, SparkSession
from registry import job

import sortshuffle
from sortshuffle.spark.rdds import planner

OURS = "SortMergeShuffleHandle"
Found = list[list[Any]]


def of_plan(frame: DataFrame) -> Found:
    return of_rdd(frame._jdf.queryExecution().toRdd())


def of_rdd(rdd: Any) -> Found:
    """The shuffles of an RDD's lineage, its last one first."""
    found: Found = []
    dependencies = rdd.dependencies()
    for at in range(dependencies.size()):
        each = dependencies.apply(at)
        if each.getClass().getSimpleName() == "ShuffleDependency":
            found.append(of_shuffle(each))
        found += of_rdd(each.rdd())
    return found


def of_shuffle(dependency: Any) -> list[Any]:
    whose = "ours" if dependency.shuffleHandle().getClass().getSimpleName() == OURS else "Spark's"
    return [dependency.partitioner().numPartitions(), whose]


def frames(spark: SparkSession) -> dict[str, Found]:
    """A frame whose source has shuffles of its own; shuffles of Spark's behind it."""
    source = spark.range(100).selectExpr("id % 10 as k", "id").repartition(7, "k")
    frame = sortshuffle.frame(source).repartition(3, "k")
    behind = frame.toDF()
    assert behind.count() == 100
    return {
        "frame": of_plan(behind),
        "behind a frame": of_plan(behind.repartition(5, "id")),
    }


def fan_out(spark: SparkSession) -> DataFrame:
    source = spark.range(100).selectExpr("id % 10 as k", "id").repartition(7, "k")
    root = sortshuffle.frame(source).mapInArrow(lambda batches: batches, "k long, id long")
    kept = [root.repartition(3, "k"), root.repartition(4, "id")]
    assert [each.count() for each in kept] == [100, 100]
    return kept[0].toDF()


def in_a_thread(made: Callable[[], Found]) -> Found:
    answers: list[Found] = []
    thread = threading.Thread(target=lambda: answers.append(made()))
    thread.start()
    thread.join()
    return answers[0]


def rdds(spark: SparkSession) -> dict[str, Found]:
    source = spark.sparkContext.parallelize([(number % 10, number) for number in range(100)], 2)
    exchanged = sortshuffle.rdd(source.groupByKey(7)).partitionBy(3).toRDD()
    found = of_rdd(exchanged._jrdd.rdd())  # before anybody else has asked for them
    assert exchanged.count() == 10
    behind = exchanged.groupByKey(5)
    return {"RDD": found, "behind an RDD": of_rdd(behind._jrdd.rdd())}


def cogrouped(spark: SparkSession) -> Found:
    """An RDD of Scala's whose partitions are made of its shuffles, and nobody has asked for either."""
    context: Any = spark.sparkContext
    words = context._jsc.parallelize(["a", "b"])
    pairs = words.zipWithIndex()
    made: RDD[Any] = RDD(pairs.cogroup(pairs, 7).values(), context)
    rows = planner.shuffle_rows(made, lambda split, records: iter(()), Partitioner(3, hash), "control rows")
    return of_rdd(rows._jrdd.rdd())


def of_unknown_columns(spark: SparkSession) -> Found:
    """Shuffles of SQL's rows that Spark's planner has not made, each beside one of numbers: of an RDD that
    has no function, and of one whose function has no columns."""
    jvm: Any = spark.sparkContext._jvm
    serializers = [
        jvm.org.apache.spark.sql.execution.UnsafeRowSerializer(1, None),
        jvm.org.apache.spark.serializer.JavaSerializer(spark.sparkContext._jsc.sc().conf()),
    ]
    numbers = spark.sparkContext._jsc.parallelize([1, 2])
    rdds = [numbers.zipWithIndex().rdd(), numbers.glom().rdd()]
    nothing = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    tag = rdds[0].elementClassTag()
    writer = jvm.org.apache.spark.shuffle.ShuffleWriteProcessor()
    return [
        of_shuffle(
            jvm.org.apache.spark.ShuffleDependency(
                rdd,
                jvm.org.apache.spark.HashPartitioner(2),
                each,
                nothing,
                nothing,
                False,
                writer,
                tag,
                tag,
                tag,
            )
        )
        for rdd in rdds
        for each in serializers
    ]


@job
def control_rows(spark: SparkSession, _: str) -> dict[str, Found]:
    found = {**frames(spark), **rdds(spark), "cogrouped": cogrouped(spark)}
    found["two exchanges in one pass"] = of_plan(fan_out(spark))
    found["unknown columns"] = of_unknown_columns(spark)
    found["in a thread"] = in_a_thread(lambda: frames(spark)["frame"])
    return found
