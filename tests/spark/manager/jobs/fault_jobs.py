"""Shuffles that things happen to: jobs that stop between their stages, or in the middle of a task, and go on
when the test says so.

A job leaves *marks* in its directory, files whose names say what a task did; it waits there for the file
``go``.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from registry import job

import sortshuffle

PATIENCE = 90.0  # seconds; more than any test takes
POLL_SECONDS = 0.02
TEXT_BYTES = 96  # in hex digits: some 200 bytes for each row, which compress badly

Pair = tuple[int, str]


@dataclass
class Held:
    """A shuffle whose map stage has run. ``read``: runs the other stage, and gives all rows. ``rdd``: the
    JVM's, which reads the shuffle."""

    read: Callable[[], list[tuple[Any, ...]]]
    expected: int
    text: Callable[[int], str]
    rdd: Any


_held: dict[str, Held] = {}


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"in vain: {what}")
        time.sleep(POLL_SECONDS)


def mark(directory: str, what: str) -> None:
    context = TaskContext.get()
    assert context is not None
    open(os.path.join(directory, f"{what}-{context.partitionId()}-{context.taskAttemptId()}"), "x").close()


def is_first(directory: str, what: str) -> bool:
    """Whether no attempt of this task has asked before."""
    context = TaskContext.get()
    assert context is not None
    try:
        open(os.path.join(directory, f"first-{what}-{context.partitionId()}"), "x").close()
    except FileExistsError:
        return False
    return True


def text_of(number: int) -> str:
    return hashlib.shake_128(b"%d" % number).hexdigest(TEXT_BYTES)  # ten times as quick as blake2b in parts


def sha_of(number: int) -> str:
    return hashlib.sha512(str(number).encode()).hexdigest()


def sha_of_shas(number: int) -> str:
    """Of the long text that `hold_random_places` makes."""
    return hashlib.sha512("".join(sha_of(number * 16 + each) for each in range(16)).encode()).hexdigest()


# ---- stages apart ------------------------------------------------------------------------------------------


def _shuffle_of(rdd: Any) -> Any:
    """The dependency on the shuffle that this RDD reads."""
    found = rdd
    while found.dependencies().head().getClass().getSimpleName() != "ShuffleDependency":
        found = found.dependencies().head().rdd()
    return found.dependencies().head()


def _run_map_stage(spark: SparkSession, rdd: Any) -> int:
    """Of the shuffle that this RDD reads; the shuffle's number."""
    dependency = _shuffle_of(rdd)
    future = spark.sparkContext._jsc.sc().submitMapStage(dependency)
    wait_until(future.isCompleted, "the map stage")
    assert future.value().get().isSuccess(), future.value().get().toString()
    return int(dependency.shuffleId())


@job
def hold_pairs(
    spark: SparkSession, _: str, *, name: str, maps: int = 4, partitions: int = 3, rows: int = 8000
) -> dict[str, Any]:
    """The map stage of a shuffle of pairs of Python objects."""
    made = spark.sparkContext.parallelize(range(rows), maps).map(lambda number: (number, text_of(number)))
    placed = made.partitionBy(partitions)

    def read() -> list[tuple[Any, ...]]:
        return placed.collect()  # type: ignore[no-any-return]

    rdd = placed._jrdd.rdd()
    shuffle = _run_map_stage(spark, rdd)
    _held[name] = Held(read, rows, text_of, rdd)
    return {"shuffle": shuffle}


@job
def hold_rows(
    spark: SparkSession, _: str, *, name: str, maps: int = 4, partitions: int = 3, rows: int = 8000
) -> dict[str, Any]:
    """The map stage of a shuffle of SQL's rows."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    frame = (
        spark.range(0, rows, 1, maps)
        .selectExpr("id", "sha2(string(id), 512) as t")
        .repartition(partitions, "id")
    )
    execution = frame._jdf.queryExecution()

    def read() -> list[tuple[Any, ...]]:
        return [(row.id, row.t) for row in frame.collect()]

    rdd = execution.executedPlan().execute()
    shuffle = _run_map_stage(spark, rdd)
    _held[name] = Held(read, rows, sha_of, rdd)
    return {"shuffle": shuffle}


@job
def hold_frames(
    spark: SparkSession, _: str, *, name: str, frames: int, maps: int = 2, rows: int = 2000
) -> dict[str, Any]:
    """The map stages of frames of sortshuffle's own, whose control rows Spark's shuffle moves. One stage
    reads them all."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    made = []
    for first in range(0, frames * rows, rows):
        source = spark.range(first, first + rows, 1, maps).selectExpr("id", "sha2(string(id), 512) as t")
        made.append(sortshuffle.frame(source).repartition(3, "id").toDF())
    united = reduce(DataFrame.union, made)

    def read() -> list[tuple[Any, ...]]:
        return [(row.id, row.t) for row in united.collect()]

    rdds = [frame._jdf.queryExecution().executedPlan().execute() for frame in made]
    shuffles = [_run_map_stage(spark, rdd) for rdd in rdds]
    _held[name] = Held(read, frames * rows, sha_of, rdds[0])
    return {"shuffles": shuffles}


@job
def large_results(spark: SparkSession, _: str, *, tasks: int, megabytes: int) -> list[int]:
    """Results of tasks that are too large to come with the message that a task is done; their sizes."""
    rows = spark.sparkContext.parallelize(range(tasks), tasks).map(lambda _: bytes(megabytes << 20))
    return [len(each) for each in rows.collect()]


@job
def read_held(spark: SparkSession, _: str, *, name: str) -> dict[str, Any]:
    """The other stage. ``right``: whether the rows are all there, once, and as they were made. ``stages``:
    what ran for it."""
    held = _held[name]
    first = _next_stage(spark)
    rows = held.read()
    texts = dict(rows)
    is_complete = len(rows) == held.expected and texts.keys() == set(range(held.expected))
    is_right = is_complete and all(text == held.text(number) for number, text in texts.items())
    return {"right": is_right, "stages": _stages(spark, first)}


@job
def remove_and_make_again(spark: SparkSession, _: str, *, name: str) -> None:
    """Spark removes the files of the shuffle, as it can do at a query's end, and runs the map stage again."""
    rdd = _held[name].rdd
    spark.sparkContext._jsc.sc().shuffleDriverComponents().removeShuffle(_shuffle_of(rdd).shuffleId(), True)
    _run_map_stage(spark, rdd)


@job
def remove_late(spark: SparkSession, _: str, *, name: str) -> None:
    """The manager is told to remove the files of the shuffle when Spark has made it again."""
    _shuffle_manager(spark).unregisterShuffle(_shuffle_of(_held[name].rdd).shuffleId())


def _shuffle_manager(spark: SparkSession) -> Any:
    """Spark's. Py4J cannot ask for it: methods beside that one have classes that are in no jar."""
    java: Any = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    environment, manager = map(
        java.lang.Class.forName, ("org.apache.spark.SparkEnv", "org.apache.spark.shuffle.ShuffleManager")
    )
    invoke = java.lang.invoke
    method = invoke.MethodHandles.publicLookup().findVirtual(
        environment, "shuffleManager", invoke.MethodType.methodType(manager)
    )
    arguments = java.util.ArrayList()
    arguments.add(spark.sparkContext._jsc.sc().env())
    return method.invokeWithArguments(arguments)


@job
def forget_held(spark: SparkSession, _: str, *, name: str | None = None) -> None:
    """One, or all."""
    for each in [name] if name is not None else [*_held]:
        del _held[each]


@job
def is_known(spark: SparkSession, _: str, *, shuffle: int) -> bool:
    """Whether Spark takes the shuffle's map outputs for its own. It notices what is garbage."""
    collect_garbage(spark, _)
    tracker = spark.sparkContext._jsc.sc().taskScheduler().mapOutputTracker()
    return bool(tracker.containsShuffle(shuffle))


def _next_stage(spark: SparkSession) -> int:
    return 1 + max((each["stage"] for each in _stages(spark, 0)), default=-1)


def _stages(spark: SparkSession, first: int) -> list[dict[str, Any]]:
    """The attempts of stages from a number on that ran tasks, as the status store has them."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    gateway: Any = spark.sparkContext._gateway
    found = context.statusStore().stageList(
        None, False, False, gateway.new_array(gateway.jvm.double, 0), None
    )
    every = [found.apply(at) for at in range(found.size())]
    return [
        {
            "stage": each.stageId(),
            "attempt": each.attemptId(),
            "status": each.status().toString(),
            "complete": each.numCompleteTasks(),
            "failed": each.numFailedTasks(),
            "killed": each.numKilledTasks(),
            "written": each.shuffleWriteRecords(),
            "bytes_written": each.shuffleWriteBytes(),
            "read": each.shuffleReadBytes(),
            "read_rows": each.shuffleReadRecords(),
            "remote": each.shuffleRemoteBytesRead(),
            "fetch_wait": each.shuffleFetchWaitTime() / 1000,
        }
        for each in reversed(every)
        if each.stageId() >= first and each.status().toString() != "SKIPPED"
    ]


# ---- tasks that wait in the middle -------------------------------------------------------------------------


def _held_rows(directory: str, what: str, at: int) -> Callable[[Iterable[Pair]], Iterator[Pair]]:
    """The same rows. The first attempt of each task waits at a row until it may go on."""

    def pass_on(rows: Iterable[Pair]) -> Iterator[Pair]:
        waits = is_first(directory, what)
        for number, row in enumerate(rows):
            if number == at and waits:
                mark(directory, f"waiting-{what}")
                wait_until(lambda: os.path.exists(os.path.join(directory, "go")), "the test")
            yield row
        mark(directory, f"done-{what}")

    return pass_on


@job
def paused(
    spark: SparkSession, directory: str, *, where: str, rows: int = 120_000, at: int = 45_000, maps: int = 2
) -> dict[str, Any]:
    """A job of two map tasks and two reduce tasks with 12 MB each. ``where``: in the ``map`` or the
    ``reduce`` tasks, which wait at a row."""
    first = _next_stage(spark)
    made = spark.sparkContext.parallelize(range(rows), maps).map(lambda number: (number, text_of(number)))
    if where == "map":
        made = made.mapPartitions(_held_rows(directory, "map", at))
    placed = made.partitionBy(2)
    if where == "reduce":
        placed = placed.mapPartitions(_held_rows(directory, "reduce", at))

    def check(rows: Iterable[Pair]) -> Iterator[tuple[int, int, int]]:
        count = total = wrong = 0
        for number, text in rows:
            count, total, wrong = count + 1, total + number, wrong + (text != text_of(number))
        yield count, total, wrong

    found = placed.mapPartitions(check).collect()
    count, total, wrong = (sum(each) for each in zip(*found, strict=True))
    return {
        "right": (count, total, wrong) == (rows, rows * (rows - 1) // 2, 0),
        "stages": _stages(spark, first),
    }


@job
def hold_random_places(spark: SparkSession, _: str, *, name: str, rows: int = 12_000) -> dict[str, Any]:
    """The map stage of a shuffle whose rows go elsewhere whenever a task runs again. What reads it is a map
    stage itself, which Spark can begin anew."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    somewhere = sf.udf(lambda number: random.randrange(3), "int").asNondeterministic()
    text = "concat(" + ", ".join(f"sha2(string(id * 16 + {each}), 512)" for each in range(16)) + ")"
    made = spark.range(0, rows, 1, 4).withColumn("p", somewhere("id")).withColumn("t", sf.expr(text))
    frame = made.repartition(3, "p")
    pairs = frame.rdd.map(lambda row: (row.id, hashlib.sha512(row.t.encode()).hexdigest())).partitionBy(2)

    def read() -> list[tuple[Any, ...]]:
        return pairs.collect()  # type: ignore[no-any-return]

    rdd = frame._jdf.queryExecution().executedPlan().execute()
    shuffle = _run_map_stage(spark, rdd)
    _held[name] = Held(read, rows, sha_of_shas, rdd)
    return {"shuffle": shuffle}


@job
def first_rows(spark: SparkSession, _: str, *, rows: int) -> dict[str, Any]:
    """A task that reads no further than its first rows."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    first = _next_stage(spark)
    made = spark.range(0, rows, 1, 2).selectExpr("id", "sha2(string(id), 512) as t")
    found = made.repartition(1, "id").limit(3).collect()
    return {"right": all(row.t == sha_of(row.id) for row in found), "stages": _stages(spark, first)}


@job
def passed_on(spark: SparkSession, _: str, *, rows: int) -> int:
    """A stage whose tasks still read when they write. How many rows come out of it."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    made = spark.range(0, rows, 1, 4).repartition(4, "id").selectExpr("id", "id * 7 as other")
    return int(made.repartition(3, "other").selectExpr("count(id) as n").first().n)  # type: ignore[union-attr]


@job
def one_task_hangs(spark: SparkSession, directory: str, *, maps: int = 9, rows: int = 9000) -> dict[str, Any]:
    """The first attempt of one map task sends some rows and then no more, until it is killed."""
    first = _next_stage(spark)

    def make(task: int, numbers: Iterable[int]) -> Iterator[Pair]:
        hangs = task == 2 and is_first(directory, "hang")
        for number in numbers:
            if hangs and number % (rows // maps) == rows // maps // 2:
                wait_until(lambda: False, "the end")
            yield number, text_of(number)

    made = spark.sparkContext.parallelize(range(rows), maps).mapPartitionsWithIndex(make)
    conf = spark.sparkContext._jsc.sc().conf()  # read when a stage begins, and shared by all jobs
    before = conf.get("spark.speculation.quantile")
    conf.set("spark.speculation.quantile", "0.5")
    try:
        found = made.partitionBy(3).collect()
    finally:
        conf.set("spark.speculation.quantile", before)
    right = sorted(found) == [(number, text_of(number)) for number in range(rows)]
    # The job may be over before the other attempt is.
    wait_until(lambda: any(each["killed"] for each in _stages(spark, first)), "the task that hangs ends")
    return {"right": right, "stages": _stages(spark, first)}


@job
def collect_garbage(spark: SparkSession, _: str) -> None:
    """So that Spark notices which shuffles nobody needs any more."""
    gc.collect()
    spark.sparkContext._jvm.java.lang.System.gc()


@job
def executors(spark: SparkSession, _: str) -> list[str]:
    """The ids of those that Spark takes for alive, beside the driver."""
    living = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return [
        each
        for each in (str(living.apply(number).id()) for number in range(living.size()))
        if each != "driver"
    ]


@job
def large(spark: SparkSession, _: str, *, megabytes: int, maps: int) -> int:
    """A shuffle of so many megabytes that do not compress; how many rows came."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    rows = spark.range(0, megabytes * 1000, 1, maps).selectExpr(
        "id", *(f"sha2(string(id * 16 + {each}), 512) as t{each}" for each in range(8))
    )
    placed = rows.repartition(4, "id").selectExpr("concat(" + ", ".join(rows.columns) + ") as t")
    return int(placed.selectExpr("count(if(length(t) >= 1024, 1, null)) as n").first().n)  # type: ignore[union-attr]
