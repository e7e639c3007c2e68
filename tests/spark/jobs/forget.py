"""A job that makes many exchanges, holds one, and forgets the others. Prints the map outputs as JSON:
those of the one that is held, those there were, and those left once the driver had collected garbage, long
before the grace time.

    python forget.py DIRECTORY SECONDS

A session of its own, because Spark stops cleaning up after a lost shuffle file, as other tests cause.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle

ACTIONS = 50
UNSEEN = 10  # map outputs that Spark may forget before the janitor sees that it knows them: the last ones


def outputs(directory: str) -> list[str]:
    """The data files of the map outputs that are there."""
    return sorted(name for _, _, names in os.walk(directory) for name in names if name.endswith(".data"))


def collect_until(jvm: Any, condition: Callable[[], bool], seconds: float) -> None:
    """Collect the garbage of both heaps until something is so, or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        jvm.System.gc()
        threading.Event().wait(1.0)


def main(directory: str, seconds: str) -> None:
    spark: Any = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sortshuffle.dir", directory)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    held = sortshuffle.frame(spark.range(0, 1000, 1, 2)).repartition(2, "id")
    assert held.count() == 1000
    kept = outputs(directory)
    made = set(kept)
    derived = [held.repartition(2, "id") for _ in range(ACTIONS)]
    for each in derived:
        assert each.count() == 1000
        made.update(outputs(directory))
    derived.clear()
    del each
    few = len(kept) + UNSEEN
    collect_until(spark.sparkContext._jvm, lambda: len(outputs(directory)) <= few, float(seconds))
    assert held.count() == 1000
    print(json.dumps({"kept": kept, "made": sorted(made), "left": outputs(directory), "unseen": UNSEEN}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
