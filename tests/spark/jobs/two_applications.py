"""One application that wants Spark to remove nothing, and another in the same process after it. Prints as
JSON the shuffles of control rows that Spark has after each of three exchanges.

    python two_applications.py
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.spark.session import control_shuffles

TRACKING = "spark.cleaner.referenceTracking"


def shuffles(spark: Any) -> list[int]:
    tracker = spark.sparkContext._jsc.sc().taskScheduler().mapOutputTracker()
    return sorted(map(int, filter(None, str(tracker.shuffleStatuses().keySet().mkString(",")).split(","))))


def found_with(tracking: str) -> list[list[int]]:
    spark = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config(TRACKING, tracking)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    found = []
    for _ in range(3):
        assert sortshuffle.frame(spark.range(0, 100, 1, 2)).repartition(2, "id").count() == 100
        found.append(shuffles(spark))
    spark.stop()
    return found


def main() -> None:
    control_shuffles.UNUSED_FOR = 0.0
    print(json.dumps({tracking: found_with(tracking) for tracking in ("false", "true")}))


if __name__ == "__main__":
    main()
