"""What the driver on the cluster is asked to run. Each job is a function of a session, a directory to leave
marks in, and what it is told; it returns something that JSON can carry.

Tests and tasks meet in files: a task leaves a *mark* that says what it did, and where it is told to, it waits
for a *go* that a test gives.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

import sortshuffle

PATIENCE = 1200.0  # seconds until a task or job that waits gives up: more than the tests of a module take
POLL_SECONDS = 0.02
REPEATS = 25  # of an id's digits in its row: some 150 bytes

Batches = Iterator[pa.RecordBatch]
Job = Callable[..., Any]
jobs: dict[str, Job] = {}


def job(function: Job) -> Job:
    jobs[function.__name__] = function
    return function


@job
def await_hosts(spark: SparkSession, directory: str, *, hosts: int) -> list[str]:
    """The hosts that have executors, when there are so many."""
    deadline = time.monotonic() + PATIENCE
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    while True:
        found = {each.host() for each in tracker.getExecutorInfos()} - {spark.conf.get("spark.driver.host")}
        if len(found) == hosts:
            return sorted(found)
        if time.monotonic() > deadline:
            raise TimeoutError(f"executors on {sorted(found)}, not on {hosts} hosts")
        time.sleep(POLL_SECONDS)


# ---- in tasks ----------------------------------------------------------------------------------------------


def mark(directory: str, what: str, partition: int) -> None:
    """Say that this attempt did something. The name: what, partition, attempt, host."""
    attempt, host = TaskContext.get().taskAttemptId(), os.environ["SPARK_LOCAL_IP"]
    Path(directory, f"{what}-{partition}-{attempt}-{host}").touch()


def is_first(directory: str, what: str, partition: int) -> bool:
    """Whether no attempt has asked this before."""
    try:
        Path(directory, f"first-{what}-{partition}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for(directory: str, go: str) -> None:
    wait_until(lambda: os.path.exists(os.path.join(directory, go)), go)


def wait_for_hosts(directory: str, what: str, hosts: int) -> None:
    """Until tasks on so many hosts have left that mark, so that each host has a share."""
    wait_until(
        lambda: (
            len({n.rpartition("-")[2] for n in os.listdir(directory) if n.startswith(f"{what}-")}) >= hosts
        ),
        what,
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"a task waited in vain for {what}")
        time.sleep(POLL_SECONDS)


def with_text(batches: Batches) -> Batches:
    """Rows of an id and a text that can be told from it."""
    for batch in batches:
        yield pa.record_batch({"id": batch["id"], "text": text_of(batch["id"])})


def text_of(ids: pa.Array) -> pa.Array:
    return pc.binary_repeat(pc.cast(ids, pa.string()), REPEATS)


# ---- the job that faults happen to -------------------------------------------------------------------------


@job
def exchange(
    spark: SparkSession,
    directory: str,
    *,
    rows: int = 60_000,
    maps: int = 6,
    reduces: int = 9,
    hosts: int = 3,
    reducers: int = 0,
    held_maps: tuple[int, ...] = (),
    held_reduces: tuple[int, ...] = (),
    between: bool = False,
    speculation: bool = False,
) -> dict[str, Any]:
    """Rows to and fro, every one looked at.

    ``hosts``: on each of which there is a map task, and on each of ``reducers`` a reduce task. ``held_maps``,
    ``held_reduces``: partitions whose first attempt waits in the middle for the go ``map`` or ``reduce``.
    ``between``: say when all map outputs are there, and wait for the go ``between``. ``speculation``: Spark
    runs slow tasks twice.
    """

    def produce(batches: Batches) -> Batches:
        partition = TaskContext.get().partitionId()
        mark(directory, "mapping", partition)
        wait_for_hosts(directory, "mapping", hosts)
        for number, batch in enumerate(with_text(batches)):
            if number == 1 and partition in held_maps and is_first(directory, "map", partition):
                mark(directory, "waiting", partition)
                wait_for(directory, "go-map")
            yield batch
        mark(directory, "map", partition)

    def consume(batches: Batches) -> Batches:
        partition = TaskContext.get().partitionId()
        mark(directory, "reducing", partition)
        wait_for_hosts(directory, "reducing", reducers)
        count = total = wrong = 0
        for number, batch in enumerate(batches):
            if number == 0 and partition in held_reduces and is_first(directory, "reduce", partition):
                mark(directory, "reading", partition)
                wait_for(directory, "go-reduce")
            count += batch.num_rows
            total += pc.sum(batch["id"]).as_py()
            wrong += pc.sum(pc.not_equal(batch["text"], text_of(batch["id"]))).as_py()
        mark(directory, "reduce", partition)
        yield pa.record_batch({"p": [partition], "rows": [count], "total": [total], "wrong": [wrong]})

    if spark.sparkContext.getConf().get("spark.speculation") == "true":
        # read when a stage begins; when all tasks have finished, none is left to be run twice
        spark.sparkContext._jsc.sc().conf().set("spark.speculation.quantile", "0.5" if speculation else "1.0")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows // maps // 4))
    frame = (
        sortshuffle.frame(spark.range(0, rows, 1, maps))
        .mapInArrow(produce, "id long, text string")
        .repartition(reduces, "id")
    )
    if between:
        assert frame.count() == rows
        Path(directory, "all-mapped").touch()
        wait_for(directory, "go-between")
    found = frame.mapInArrow(consume, "p long, rows long, total long, wrong long").collect()
    return {
        "rows": sum(row.rows for row in found),
        "total": sum(row.total for row in found),
        "wrong": sum(row.wrong for row in found),
        "partitions": sorted(row.p for row in found),
    }


@job
def exchange_pairs(
    spark: SparkSession,
    directory: str,
    *,
    rows: int = 60_000,
    maps: int = 6,
    reduces: int = 9,
    hosts: int = 3,
    between: bool = False,
) -> dict[str, Any]:
    """The same with RDDs."""

    def produce(partition: int, numbers: Iterator[int]) -> Iterator[tuple[int, str]]:
        mark(directory, "mapping", partition)
        wait_for_hosts(directory, "mapping", hosts)
        for number in numbers:
            yield number, str(number) * REPEATS
        mark(directory, "map", partition)

    def consume(partition: int, pairs: Iterator[tuple[int, str]]) -> Iterator[tuple[int, int, int, int]]:
        mark(directory, "reducing", partition)
        count = total = wrong = 0
        for number, text in pairs:
            count, total, wrong = count + 1, total + number, wrong + (text != str(number) * REPEATS)
        mark(directory, "reduce", partition)
        yield partition, count, total, wrong

    source = spark.sparkContext.parallelize(range(rows), maps)
    pairs: Any = sortshuffle.rdd(source).mapPartitionsWithIndex(produce).partitionBy(reduces)
    if between:
        assert pairs.count() == rows
        Path(directory, "all-mapped").touch()
        wait_for(directory, "go-between")
    found = pairs.mapPartitionsWithIndex(consume).collect()
    return {
        "rows": sum(each[1] for each in found),
        "total": sum(each[2] for each in found),
        "wrong": sum(each[3] for each in found),
        "partitions": sorted(each[0] for each in found),
    }


@job
def hold(spark: SparkSession, directory: str, *, maps: int = 6) -> None:
    """Write a frame, and need it until a test says that it goes on."""
    held: Any = sortshuffle.frame(spark.range(0, 1000, 1, maps)).repartition(3, "id")
    assert held.count() == 1000
    Path(directory, "all-mapped").touch()
    wait_for(directory, "go-between")


@job
def executors(spark: SparkSession, directory: str) -> int:
    """How many there are as far as the driver knows: it notices a moment later that one has ended."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is among them


@job
def collect_garbage(spark: SparkSession, directory: str) -> None:
    """Have Spark notice which shuffles nobody needs any more."""
    gc.collect()
    spark.sparkContext._jvm.System.gc()


# ---- the jobs of a local session, unchanged ----------------------------------------------------------------


@job
def every_operator(spark: SparkSession, directory: str, *, share: int) -> dict[str, Any]:
    """Run every second case of `cases_of_tasks`, from number ``share`` on. Returns how many these are, and
    what differs from PySpark."""
    import every_operator as operators

    # the cases are written for these settings
    spark.conf.set("spark.sql.shuffle.partitions", str(operators.PARTITIONS))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    names = operators.cases_of_tasks()[share::2]
    differing = operators.differing_cases(operators.Job(spark, Path(directory)), names)
    return {"cases": len(names), "differing": differing}


@job
def flights(spark: SparkSession, directory: str) -> list[Any]:
    """The demo's answers."""
    sys.path.insert(0, str(Path(sortshuffle.__file__).parents[1] / "examples" / "demo"))
    import flights as demo

    cloudpickle.register_pickle_by_value(demo)  # no worker can import it
    answers = demo.delays(sortshuffle.read(spark).parquet(demo.write_table(directory)), 16)
    return [answer.rows for answer in answers]
