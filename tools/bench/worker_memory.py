"""`workers`: the peak memory of a Python worker above the budget of its task.

It is the most anonymous memory that a worker has during a job, less what it has when it is idle, less the
budget, `spark.sortshuffle.memory`. Anonymous memory is RssAnon of proc_pid_status(5), looked at every 10 ms:
mapped files, such as libraries, are no part of it. A worker is idle when its tasks have ended, garbage is
collected, and both allocators have given back what is free. The modules of the tasks are imported then.

Jobs of the usual size do not fill a budget of 256 MiB. So each runs once more with few large tasks, which do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
import pyarrow as pa
from exchange import PARTITIONS, checked, ours, session
from harness import DATA, is_worker, record
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rows import parquet_files
from systems.contestants.consumers import SUMS, totals
from systems.work import WORKS
from watching import watching

import sortshuffle
from sortshuffle.options import MIB, Options

INTERVAL = 0.01  # seconds between two looks
ROWS, FILES = 10_000_000, 8
QUICK = 500  # so many times fewer rows
BUDGET = Options().memory
LARGE = {"spark.sql.files.maxPartitionBytes": "2g"}  # a task for each core reads all files
# The most that a join of these tables holds in half of the budget: 0.94 M rows of the smaller side each
FEW_PARTITIONS = {"spark.sql.shuffle.partitions": "8"}


@dataclass(frozen=True, slots=True)
class Job:
    """``settings``: of Spark, for this job."""

    name: str
    run: Callable[[SparkSession], None]
    settings: dict[str, str] = field(default_factory=dict)


def main(quick: bool) -> None:
    fewer = QUICK if quick else 1
    print(f"\nworkers: the most memory of a Python worker above idle, MiB; the budget is {BUDGET // MIB}")
    print(f"  {'job':<48}{'above idle':>12}{'above the budget':>18}")
    spark = session("local[2]")
    try:
        for job in jobs(fewer):
            before = {key: spark.conf.get(key) for key in job.settings}
            for key, value in job.settings.items():
                spark.conf.set(key, value)
            above_idle = peak_above_idle(spark, job)
            for key, value in before.items():
                spark.conf.set(key, str(value))
            print(f"  {job.name:<48}{above_idle / MIB:>12.0f}{(above_idle - BUDGET) / MIB:>18.0f}")
            record("workers", job=job.name, settings=job.settings, budget=BUDGET, above_idle=above_idle)
    finally:
        spark.stop()


def jobs(fewer: int) -> list[Job]:
    rows = ROWS // fewer
    files = parquet_files(DATA / f"compare-exchange-{rows}-{FILES}", rows, FILES)
    join = next(work for work in WORKS if work.name == "join").arguments(fewer)
    return [
        Job("exchange", partial(exchange, files, rows)),
        Job("exchange, two tasks", partial(exchange, files, rows), LARGE),
        Job("two exchanges one after the other, two tasks", partial(exchange_twice, files, rows), LARGE),
        Job("join", partial(join_sides, join)),
        Job("join, 8 partitions", partial(join_sides, join), FEW_PARTITIONS),
    ]


def exchange(files: list[str], rows: int, spark: SparkSession) -> None:
    checked(ours(spark, files).collect(), rows)


def exchange_twice(files: list[str], rows: int, spark: SparkSession) -> None:
    once = sortshuffle.read(spark).parquet(*files).repartition(2, "k")
    checked(once.repartition(PARTITIONS, "v").mapInArrow(totals, SUMS).collect(), rows)


def join_sides(sides: dict[str, Any], spark: SparkSession) -> None:
    read = sortshuffle.read(spark)
    joined = read.parquet(*sides["files"]).join(read.parquet(*sides["others"]), "id")
    joined.agg(sf.count("id"), sf.sum("v"), sf.sum("w")).collect()


def peak_above_idle(spark: SparkSession, job: Job) -> int:
    """Run the job. Return the most that one worker had above what the same worker has when it is idle."""
    peaks: dict[int, int] = {}
    own = psutil.Process()

    def look() -> None:
        for process in own.children(recursive=True):
            if is_worker(process):
                peaks[process.pid] = max(peaks.get(process.pid, 0), anonymous_memory(process.pid))

    with watching(look, INTERVAL):
        job.run(spark)
    idle = idle_memory(spark)
    return max(peaks[pid] - idle[pid] for pid in peaks.keys() & idle.keys())


def anonymous_memory(pid: int) -> int:
    """RssAnon of a process, bytes; 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def idle_memory(spark: SparkSession) -> dict[int, int]:
    """The anonymous memory of the session's workers, by pid, once they have given back what they can."""

    def give_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # pickled by value
        import ctypes
        import gc
        import os

        for _ in batches:
            pass
        gc.collect()
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("RssAnon:"))
        yield pa.record_batch({"pid": [os.getpid()], "memory": [int(line.split()[1]) * 1024]})

    # more tasks than workers, so that each worker runs one
    found = spark.range(0, 64, 1, 64).mapInArrow(give_back, "pid long, memory long").collect()
    return {row["pid"]: row["memory"] for row in found}
