"""Two exchanges written in one pass; one is forgotten, and later the other. Prints the map outputs that were
there at each point as JSON.

    python forget_fan_out.py DIRECTORY SECONDS

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

GRACE = 5.0


def main(directory: str, seconds: str) -> None:
    spark: Any = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sortshuffle.dir", directory)
        .config("spark.sortshuffle.grace", f"{GRACE}s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def outputs() -> list[str]:
        return sorted(name for _, _, names in os.walk(directory) for name in names if name.endswith(".data"))

    def collect_until(condition: Any, deadline: float) -> None:
        while not condition() and time.monotonic() < deadline:
            gc.collect()
            spark.sparkContext._jvm.System.gc()
            threading.Event().wait(1.0)

    frame = sortshuffle.frame(spark.range(0, 1000, 1, 2))
    one, two = frame.repartition(2, "id"), frame.repartition(3, "id")
    assert one.count() == 1000
    made = outputs()
    # what is forgotten beside it shows when Spark has cleaned up
    other = sortshuffle.frame(spark.range(0, 1000, 1, 2)).repartition(2, "id")
    assert other.count() == 1000
    del one, other
    collect_until(lambda: outputs() == made, time.monotonic() + float(seconds))
    held = outputs()
    rows = two.count()
    after = outputs()
    del two, frame
    collect_until(lambda: not outputs(), time.monotonic() + float(seconds))
    print(json.dumps({"made": made, "held": held, "rows": rows, "after": after, "left": outputs()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
