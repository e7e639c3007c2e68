"""A job that makes many exchanges, holds one, and forgets the others. Prints the map outputs as JSON:
those of the one that is held, those there were, and those left once the driver had collected garbage.

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
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle

ACTIONS = 50


def main(directory: str, seconds: str) -> None:
    spark: Any = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sortshuffle.dir", directory)
        .config("spark.sortshuffle.grace", "5s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def outputs() -> list[str]:
        return sorted(name for _, _, names in os.walk(directory) for name in names if name.endswith(".data"))

    held = sortshuffle.frame(spark.range(0, 1000, 1, 2)).repartition(2, "id")
    assert held.count() == 1000
    kept = outputs()
    made = set(kept)
    for _ in range(ACTIONS):
        derived = held.repartition(2, "id")
        assert derived.count() == 1000
        made.update(outputs())  # the first ones may go before the last ones come
    del derived
    deadline = time.monotonic() + float(seconds)
    while outputs() != kept and time.monotonic() < deadline:
        gc.collect()
        spark.sparkContext._jvm.System.gc()
        threading.Event().wait(1.0)
    assert held.count() == 1000
    print(json.dumps({"kept": kept, "made": sorted(made), "left": outputs()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
