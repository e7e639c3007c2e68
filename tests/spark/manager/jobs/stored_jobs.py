"""What Spark thinks of map outputs at a URL."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterable, Iterator

from fault_jobs import _next_stage, _stages, is_first, mark, wait_until
from pyspark.sql import SparkSession
from registry import job

import sortshuffle
from sortshuffle.homes.processes import executor_pid

PATIENCE = 60.0  # seconds


def _is_reliable(spark: SparkSession) -> bool:
    components = spark.sparkContext._jsc.sc().shuffleDriverComponents()  # type: ignore[attr-defined]
    return bool(components.supportsReliableStorage())


@job
def is_reliable(spark: SparkSession, _: str) -> bool:
    """Whether map outputs outlive executors, as Spark is told."""
    return _is_reliable(spark)


@job
def is_reliable_beside_a_frame(spark: SparkSession, _: str) -> dict[str, object]:
    """The same while there are control rows of a frame of this package, also when Spark has removed their
    shuffle once and has written it again, and when they are gone."""
    context = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]
    before = context.newShuffleId()
    frame = sortshuffle.frame(spark.range(1000).toDF("n")).repartition(3, "n")
    rows = frame.toDF()
    found = [sorted(row.n for row in rows.collect())]
    beside = _is_reliable(spark)
    for shuffle in range(before + 1, context.newShuffleId()):
        context.shuffleDriverComponents().removeShuffle(shuffle, True)
    found.append(sorted(row.n for row in rows.collect()))
    again = _is_reliable(spark)
    del frame, rows
    deadline = time.monotonic() + PATIENCE
    while not _is_reliable(spark) and time.monotonic() < deadline:
        gc.collect()
        spark.sparkContext._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        time.sleep(0.1)
    right = found == [list(range(1000))] * 2
    return {"right": right, "beside": beside, "again": again, "after": _is_reliable(spark)}


@job
def one_task_waits(spark: SparkSession, directory: str, *, maps: int, rows: int = 3000) -> dict[str, object]:
    """A shuffle. One of its map tasks waits until it may go on; the others end meanwhile. Each leaves a mark
    with its executor's process, and the driver one when Spark knows that these have ended."""
    first = _next_stage(spark)
    tracker = spark.sparkContext.statusTracker()

    def have_others_ended() -> bool:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage is not None and stage.numCompletedTasks == maps - 1 for stage in stages)

    def tell() -> None:
        wait_until(have_others_ended, "the other tasks end")
        open(os.path.join(directory, "known"), "x").close()

    def make(task: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        if task == 0 and is_first(directory, "wait"):
            mark(directory, f"waits-{executor_pid()}")
            wait_until(lambda: os.path.exists(os.path.join(directory, "go")), "the test")
        for number in numbers:
            yield number, number
        mark(directory, f"ran-{executor_pid()}")

    teller = threading.Thread(target=tell)
    teller.start()
    found = spark.sparkContext.parallelize(range(rows), maps).mapPartitionsWithIndex(make).partitionBy(2)
    right = sorted(found.collect()) == [(number, number) for number in range(rows)]
    teller.join()
    return {"right": right, "stages": _stages(spark, first)}
