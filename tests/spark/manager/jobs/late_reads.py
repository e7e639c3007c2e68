"""A frame and an RDD that run longer than the grace time of their map outputs, with the manager on: for each
the map outputs it has written, those there were when it had been read to the end, and what it gave; besides,
the map outputs that were left when both were forgotten.

In a session of which no shuffle file of Spark's is lost: Spark stops cleaning up after that.
"""

from __future__ import annotations

import gc
import glob
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from registry import job

import sortshuffle

NOBODYS = 10**9  # no task attempt has this number
POLL_SECONDS = 0.2  # seconds


class Homes:
    """The map outputs of frames and RDDs below a directory."""

    def __init__(self, directory: str, seconds: float) -> None:
        self._pattern = f"{glob.escape(directory)}/**/sortshuffle/*/*/exchange-*"
        self._seconds = seconds

    def files(self) -> list[Path]:
        # rather than Path.rglob, which raises where a directory goes while it is looked into
        found = map(Path, glob.glob(self._pattern, recursive=True))
        return sorted(each for each in found if not each.parent.name.startswith("shared-"))

    def names(self) -> list[str]:
        return [each.name for each in self.files()]

    def outlive_a_pair_that_spark_does_not_know(self) -> None:
        """Return when the janitor has removed a pair that is younger than all there are. By then all are
        older than the grace time, and the janitor has looked at them."""
        pairs = self.files()
        attempt = pairs[0].stem.rpartition("-")[2]
        copies = [each for each in pairs if each.stem == pairs[0].stem]
        forgotten = [each.with_name(each.name.replace(f"-{attempt}.", f"-{NOBODYS}.")) for each in copies]
        for each, copy in zip(copies, forgotten, strict=True):
            shutil.copyfile(each, copy)
        self.until(lambda: not any(each.exists() for each in forgotten))

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + self._seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"still there: {self.names()}")
            threading.Event().wait(POLL_SECONDS)


def read_late(homes: Homes, rows: Iterator[Any]) -> dict[str, Any]:
    """Rows that come partition by partition: the first of them at once, the others after the grace time."""
    found = [next(rows)]
    before = homes.names()
    homes.outlive_a_pair_that_spark_does_not_know()
    found += rows
    return {"found": sorted(found), "before": before, "after": homes.names()}


def of_a_frame(spark: SparkSession, homes: Homes) -> dict[str, Any]:
    source = spark.range(0, 1000, 1, 2).repartition(2, "id")  # the manager's
    placed = sortshuffle.frame(source).repartition(4, "id").toDF()
    # of the RDD: Spark does not let go of a shuffle after DataFrame.toLocalIterator (plain PySpark, 4.3)
    return read_late(homes, (row.id for row in placed.rdd.toLocalIterator()))


def of_an_rdd(spark: SparkSession, homes: Homes) -> dict[str, Any]:
    pairs = spark.sparkContext.parallelize([(number, number) for number in range(1000)], 2)
    placed = sortshuffle.rdd(pairs).partitionBy(4).toRDD()
    return read_late(homes, (key for key, _ in placed.toLocalIterator()))


@job
def late_reads(spark: SparkSession, _: str, *, below: str, seconds: float) -> dict[str, Any]:
    """In a session with a grace time of 5 s. ``below``: a directory that has its map outputs."""
    homes = Homes(below, seconds)
    jvm: Any = spark.sparkContext._jvm

    def are_gone() -> bool:
        gc.collect()
        jvm.System.gc()
        return not homes.names()

    found: dict[str, Any] = {"frame": of_a_frame(spark, homes)}
    homes.until(are_gone)  # before the RDD's are counted
    found["RDD"] = of_an_rdd(spark, homes)
    homes.until(are_gone)
    return {**found, "left": homes.names()}
