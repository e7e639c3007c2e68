"""Two exchanges written in one pass; one is forgotten, and later the other. Prints the map outputs that were
there at each point as JSON.

    python forget_fan_out.py DIRECTORY SECONDS

A session of its own, because Spark stops cleaning up after a lost shuffle file, as other tests cause.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from forget import collect_until, outputs
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

    jvm = spark.sparkContext._jvm
    frame = sortshuffle.frame(spark.range(0, 1000, 1, 2))
    one, two = frame.repartition(2, "id"), frame.repartition(3, "id")
    assert one.count() == 1000
    made = outputs(directory)
    # what is forgotten beside it shows when Spark has cleaned up
    other = sortshuffle.frame(spark.range(0, 1000, 1, 2)).repartition(2, "id")
    assert other.count() == 1000
    del one, other
    collect_until(jvm, lambda: outputs(directory) == made, float(seconds))
    held = outputs(directory)
    rows = two.count()
    after = outputs(directory)
    del two, frame
    collect_until(jvm, lambda: not outputs(directory), float(seconds))
    print(json.dumps({"made": made, "held": held, "rows": rows, "after": after, "left": outputs(directory)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
