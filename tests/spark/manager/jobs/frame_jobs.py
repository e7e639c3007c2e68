"""What else a session does that shuffles: streams, caches, Python functions, this package's own frames and
RDDs; and tasks that end early, by failing or by being cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import InheritableThread, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from registry import job
from results import collected, ordered, partitions, unordered
from sql_jobs import numbers, together, use

import sortshuffle

PATIENCE = 60.0  # seconds
POLL_SECONDS = 0.02
Found = dict[str, Any]


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"in vain: {what}")
        time.sleep(POLL_SECONDS)


# ---- streams and caches ------------------------------------------------------------------------------------


@job
def streams(spark: SparkSession, directory: str) -> Found:
    """Two streams, with a file in each micro-batch. One keeps a state, and shuffles each batch once more. The
    other drops rows that came before; its table is in memory."""
    use(spark, {"spark.sql.shuffle.partitions": "3"})
    source = f"{directory}/source"
    for number in range(2):
        spark.range(number * 50, number * 50 + 100, 1, 2).selectExpr("id", "id % 7 as k").coalesce(
            1
        ).write.mode("append").parquet(source)
    rows = spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1).parquet(source)
    batches: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        batch.repartition(2).write.parquet(f"{directory}/batches/{number}")
        batches.append(number)

    def started(writer: Any, name: str) -> Any:
        return writer.option("checkpointLocation", f"{directory}/{name}").trigger(availableNow=True).start()

    counted = rows.groupBy("k").agg(sf.count("*").alias("n"), sf.sum("id").alias("s"))
    running = [
        started(counted.writeStream.outputMode("update").foreachBatch(keep), "counted"),
        started(rows.dropDuplicates(["id"]).writeStream.queryName("found").format("memory"), "found"),
    ]
    assert all(query.awaitTermination(120) for query in running)
    last = spark.read.parquet(f"{directory}/batches/{max(batches)}")
    return {
        "counted": unordered(last.collect()),
        "found": collected(spark.table("found").groupBy("k").agg(sf.count("*"), sf.sum("id"))),
        "batches": len(batches),
    }


@job
def cached(spark: SparkSession, _: str) -> Found:
    """A table in memory that was made by a shuffle, and is shuffled again."""
    kept = numbers(spark, 5000).repartition(5, "k").cache()
    first = kept.count()
    found = collected(
        kept.groupBy("t").agg(sf.count("*"), sf.sum("v")).join(kept.groupBy("t").agg(sf.max("id")), "t")
    )
    kept.unpersist(blocking=True)
    found.pop("plan")
    return {**found, "n": first}


@job
def collected_twice(spark: SparkSession, _: str) -> Found:
    """One plan, run twice: its shuffle is made once."""
    frame = numbers(spark, 5000).groupBy("k").agg(sf.sum("id").alias("s"))
    first = unordered(frame.collect())
    assert first == unordered(frame.collect())
    rdd = numbers(spark, 5000).repartition(3, "k").rdd
    assert rdd.count() == rdd.filter(lambda row: row.id >= 0).count()
    return first


def shuffles_of(plan: Any) -> list[int]:
    """The ids of the shuffles of a plan that has run."""
    below = [
        shuffle for at in range(plan.children().size()) for shuffle in shuffles_of(plan.children().apply(at))
    ]
    return [plan.shuffleId(), *below] if plan.getClass().getSimpleName() == "ShuffleExchangeExec" else below


@job
def files_cleaned_up(spark: SparkSession, _: str) -> Found:
    """Spark removes the files of a query's shuffles when it ends, and makes them again if they are missed."""
    use(
        spark,
        {
            "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
            "spark.sql.adaptive.enabled": "false",
        },
    )
    frame = numbers(spark).groupBy("k").agg(sf.sum("id").alias("s"))
    first = unordered(frame.collect())
    # Spark removes them in the background, and forgets the shuffle then. A query that begins before that, and
    # uses the shuffle, hangs on executors with Spark's own shuffle, too.
    tracker = spark.sparkContext._jsc.sc().taskScheduler().mapOutputTracker()
    (shuffle,) = shuffles_of(frame._jdf.queryExecution().executedPlan())
    wait_until(lambda: not tracker.containsShuffle(shuffle), "Spark forgets the shuffle")
    second = unordered(frame.collect())
    assert first == second
    return first


@job
def checkpointed(spark: SparkSession, directory: str) -> Found:
    kept = numbers(spark).repartition(4, "k").localCheckpoint()
    return collected(kept.groupBy("k").agg(sf.count("*"), sf.sum("v")))


# ---- Python functions --------------------------------------------------------------------------------------


@job
def python_functions(spark: SparkSession, _: str) -> Found:
    """Of values, of groups and cogroups in pandas, and of groups in Arrow."""
    double = sf.udf(lambda value: value * 2, "long")

    def describe(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": group.k[:1], "n": [len(group)], "s": [int(group.id.sum())]})

    def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        key = (left if len(left) else right).k[:1]
        return pd.DataFrame({"k": list(key), "n": [len(left)], "m": [len(right)]})

    def largest(table: pa.Table) -> pa.Table:
        return table.sort_by([("id", "descending")]).slice(0, 2)

    few = numbers(spark, 3000).where("k < 40").select("id", "k")
    doubled = few.withColumn("d", double("id")).groupBy("k").agg(sf.sum("d").alias("d"))
    described = few.groupBy("k").applyInPandas(describe, "k int, n long, s long")
    other = few.where("id % 3 = 0").groupBy("k")
    cogrouped = (
        few.where("id % 2 = 0").groupBy("k").cogroup(other).applyInPandas(both, "k int, n long, m long")
    )
    sliced = few.groupBy("k").applyInArrow(largest, "id long, k int")
    queries = {"doubled": doubled.where(double("d") > 100), "joined": described.join(cogrouped, "k")}
    return together({**queries, "sliced": sliced})


@job
def own_frames(spark: SparkSession, _: str) -> Found:
    """This package's frames between Spark's operators: their control rows stay with Spark's shuffle, the rest
    is the manager's."""

    def first_rows(table: pa.Table) -> pa.Table:
        return table.sort_by("id").slice(0, 3)

    before = numbers(spark).groupBy("k", "id").agg(sf.max("t").alias("t"))
    frame = sortshuffle.frame(before).repartition(5, "k").groupBy("k").applyInArrow(first_rows, before.schema)
    found = (
        frame.toDF()
        .groupBy("k")
        .agg(sf.count("*"), sf.sum("id"))
        .join(numbers(spark).groupBy("k").count(), "k")
    )
    return unordered(found.collect())


@job
def own_rdds(spark: SparkSession, _: str) -> Found:
    pairs = spark.sparkContext.parallelize(range(5000), 3).map(lambda n: (n % 91, n)).reduceByKey(max, 4)
    ours = sortshuffle.rdd(pairs.map(lambda pair: (pair[0] % 10, pair[1]))).reduceByKey(lambda a, b: a + b, 4)
    return partitions(ours.toRDD().map(lambda pair: pair).reduceByKey(max, 3).glom().collect())


# ---- tasks that end early ----------------------------------------------------------------------------------


SMALL_BATCHES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}
MANY = 80_000  # rows of some 400 bytes: each map task has several frames of them
IN_THE_MIDDLE = 24  # batches, of the 40 that each of two map tasks has
TOLD = "told to fail"


def many_rows(spark: SparkSession) -> DataFrame:
    use(spark, SMALL_BATCHES)
    return spark.range(0, MANY, 1, 2).selectExpr("id", "repeat(hex(id * 7919), 50) as t")


def consume(df: DataFrame) -> None:
    """Make all rows and all columns, and keep none."""
    df.write.format("noop").mode("overwrite").save()


def _what_fails(df: DataFrame) -> str:
    try:
        consume(df)
    except Exception as error:
        return TOLD if TOLD in str(error) else str(error)
    return "nothing"


def _failing_at(batch_number: int) -> Any:
    """The same batches, up to one."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == batch_number:
                raise ValueError(TOLD)
            yield batch

    return pass_on


def _counted(many: DataFrame) -> Found:
    """How many rows there are, which shows that the session goes on."""
    return collected(many.selectExpr("count(*)", "sum(length(t))"))


@job
def failing_tasks(spark: SparkSession, _: str) -> Found:
    """One fails when it has sent some of its rows, one when it has read some."""
    many = many_rows(spark)
    placed = many.repartition(3, "id")
    failed = {
        "map": _what_fails(many.mapInArrow(_failing_at(IN_THE_MIDDLE), many.schema).repartition(8, "id"))
    }
    between = _counted(placed)
    failed["reduce"] = _what_fails(placed.mapInArrow(_failing_at(3), many.schema))
    return {"between": between, "after": _counted(placed), "failed": failed}


@job
def cancelled(spark: SparkSession, directory: str) -> Found:
    """Jobs that are cancelled while their map tasks write, or their reduce tasks read, with interrupts and
    without; and another after each of them."""
    many = many_rows(spark)
    outcomes, after = {}, {}
    for when, interrupt in (("map", False), ("map", True), ("reduce", True)):
        case = f"{when}, {'with' if interrupt else 'without'} interrupts"
        outcomes[case] = _cancelled(many, directory, when, interrupt)
        after[case] = _counted(many.repartition(3, "id"))
    return {"outcomes": outcomes, "after": after}


def _cancelled(many: DataFrame, above: str, when: str, interrupt: bool) -> list[str]:
    context = many.sparkSession.sparkContext
    directory = Path(above, f"{when}-{interrupt}")
    directory.mkdir()
    stop_at = IN_THE_MIDDLE if when == "map" else 3

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == stop_at:
                Path(directory, f"waiting-{TaskContext.get().taskAttemptId()}").touch(exist_ok=False)
                wait_until(Path(directory, "go").exists, "the test")
            yield batch

    if when == "map":
        plan = many.mapInArrow(wait, many.schema).repartition(4, "id")
    else:
        plan = many.repartition(4, "id").mapInArrow(wait, many.schema)
    outcome: list[str] = []

    def run() -> None:
        context.setJobGroup("to cancel", "a job that is cancelled", interruptOnCancel=interrupt)
        try:
            consume(plan)
            outcome.append("it ran")
        except Exception as error:
            outcome.append("cancelled" if "cancelled" in str(error).lower() else str(error))

    thread = InheritableThread(target=run)
    thread.start()
    try:
        wait_until(lambda: len(list(directory.glob("waiting-*"))) >= 2 or outcome, "two tasks in the middle")
        context.cancelJobGroup("to cancel")
    finally:
        thread.join(PATIENCE)
        Path(directory, "go").touch()
    assert not thread.is_alive()
    tracker = context._jsc.sc().statusTracker()
    wait_until(
        lambda: sum(each.numRunningTasks() for each in tracker.getExecutorInfos()) == 0, "the tasks end"
    )
    return outcome


@job
def side_by_side(spark: SparkSession, _: str) -> Found:
    """Jobs of several threads at once."""
    found: dict[int, Any] = {}
    failed: list[Exception] = []

    def run(number: int) -> None:
        frame = numbers(spark, 2000 + number).groupBy("k").agg(sf.sum("id").alias("s"), sf.count("*"))
        try:
            found[number] = unordered(frame.collect())["digest"]
        except Exception as error:
            failed.append(error)

    threads = [InheritableThread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if failed:
        raise failed[0]
    return ordered(found[number] for number in range(3))


@job
def forgotten(spark: SparkSession, directory: str) -> Found:
    """Shuffles of which nobody holds anything any more: the files that are there before and after Spark has
    noticed."""
    import gc

    use(spark, {"spark.sql.adaptive.enabled": "false"})
    kept = numbers(spark).repartition(4, "k").rdd
    kept.count()
    before = map_outputs(spark)
    made = numbers(spark).repartition(4, "k").rdd
    made.count()
    forgotten = map_outputs(spark) - before
    del made
    gc.collect()

    def is_gone() -> bool:
        spark.sparkContext._jvm.java.lang.System.gc()
        return not forgotten & map_outputs(spark)

    wait_until(is_gone, f"these files go: {sorted(forgotten)}")
    return {"left": len(kept.collect()), "files": len(forgotten)}


def map_outputs(spark: SparkSession) -> set[str]:
    """Data files of the manager, of this application."""
    roots = str(spark.sparkContext.getConf().get("spark.local.dir"))
    found = (os.path.join(parent, name) for parent, _, names in os.walk(roots) for name in names)
    return {path for path in found if path.endswith(".data") and "exchange-" in os.path.basename(path)}
