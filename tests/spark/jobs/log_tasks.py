"""A job whose tasks log, one whose do not, and one that fails. Prints the driver's figures as JSON, by stage.

    python log_tasks.py MASTER LOCAL-DIRECTORY

The lines of the tasks go where Spark puts its workers' standard error.
"""

from __future__ import annotations

import json
import logging
import sys

from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import sortshuffle


def main(master: str, directory: str) -> None:
    spark = (
        sortshuffle.configure(SparkSession.builder)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", directory)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    numbers = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 7 as k")

    def same(batches):  # type: ignore[no-untyped-def]
        yield from batches

    def fail(batches):  # type: ignore[no-untyped-def]
        raise KeyError("on purpose")
        yield

    logger = logging.getLogger("sortshuffle.task")
    logger.setLevel(logging.INFO)
    frame = sortshuffle.frame(numbers).mapInArrow(same, numbers.schema)
    one, two = frame.repartition(3, "k"), frame.select("k").repartition(1)
    counts = [one.count(), two.count()]

    logger.setLevel(logging.NOTSET)
    unlogged = sortshuffle.frame(numbers).repartition(2, "k")
    counts.append(unlogged.count())

    logger.setLevel(logging.INFO)
    try:
        sortshuffle.frame(numbers.coalesce(1)).mapInArrow(fail, numbers.schema).repartition(2, "k").count()
    except PythonException:
        counts.append(-1)
    stages = {
        total.stage: {
            "tasks": total.tasks,
            **total.metrics.counts,
            **{
                f"exchange_{number}.{name}": count
                for number, metrics in total.outputs.items()
                for name, count in metrics.counts.items()
            },
        }
        for total in frame.stage_totals()
    }
    quiet = [total.stage for total in unlogged.stage_totals()]
    print(json.dumps({"counts": counts, "stages": stages, "quiet": quiet}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
