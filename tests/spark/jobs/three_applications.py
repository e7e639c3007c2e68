"""Three applications in one process, one after the other, with three exchanges each. The first wants Spark to
remove nothing. The others hold the frame of their first exchange: the second one until the third has one of
the same number. Prints as JSON the shuffles of control rows that Spark has after each exchange.

    python three_applications.py
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.spark.session import control_shuffles


def started(tracking: str) -> Any:
    spark = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.cleaner.referenceTracking", tracking)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def exchanged(spark: Any) -> Any:
    frame = sortshuffle.frame(spark.range(0, 100, 1, 2)).repartition(2, "id")
    assert frame.count() == 100
    return frame


def shuffles(spark: Any) -> list[int]:
    return sorted(control_shuffles.shuffles_of_spark(spark.sparkContext))


def main() -> None:
    control_shuffles.UNUSED_FOR = control_shuffles.JANITORS_START = 0.0
    found: dict[str, list[list[int]]] = {}
    held: list[Any] = []  # the first frame of the application before
    for name, tracking in (("nothing removed", "false"), ("removed", "true"), ("the next one", "true")):
        spark = started(tracking)
        first = exchanged(spark)
        held.clear()
        found[name] = [shuffles(spark)]
        for _ in range(2):
            exchanged(spark)
            found[name].append(shuffles(spark))
        held.append(first)
        del first
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
