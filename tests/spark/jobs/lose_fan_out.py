"""One stage that writes two exchanges, on two executors. One of its tasks fails first and runs again; then an
executor is killed and wiped. Prints what happened as JSON.

    python lose_fan_out.py DIRECTORY
"""

from __future__ import annotations

import glob
import json
import os
import sys
from collections import Counter

from lose_executor import kill_and_wipe
from pyspark import TaskContext
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.homes.processes import executor_pid

MAPS, ROWS = 6, 60_000
FAILING = 2  # this partition's first attempt fails behind its last row


def main(directory: str) -> None:
    marked = os.path.join(directory, "marks")
    os.makedirs(marked)
    spark = (
        sortshuffle.configure(SparkSession.builder)
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def produce(batches):  # type: ignore[no-untyped-def]
        context = TaskContext.get()
        partition, attempt = context.partitionId(), context.taskAttemptId()
        fails = partition == FAILING and not glob.glob(os.path.join(marked, "fail-*"))
        name = f"{'fail' if fails else 'map'}-{partition}-{attempt}-{executor_pid()}"
        with open(os.path.join(marked, name), "x"):
            pass
        yield from batches
        if fails:
            raise RuntimeError("the first attempt")

    def runs() -> list[tuple[int, int]]:
        """(partition, pid of the executor) of each run so far."""
        names = [os.path.basename(path).split("-") for path in glob.glob(os.path.join(marked, "map-*"))]
        return [(int(partition), int(pid)) for _, partition, _, pid in names]

    def outputs() -> list[str]:
        found = glob.glob(os.path.join(directory, "local", "**", "exchange-*.data*"), recursive=True)
        return sorted(os.path.basename(path) for path in found)

    numbers = spark.range(0, ROWS, 1, MAPS).selectExpr("id", "id % 100 as k")
    frame = sortshuffle.frame(numbers).mapInArrow(produce, numbers.schema)
    one, two = frame.repartition(8, "id"), frame.select("k").repartition(3, "k")
    first = one.count()
    before = outputs()

    victim = min(pid for _, pid in runs())
    kill_and_wipe(directory, victim)
    groups = two.toDF().groupBy("k").count().collect()
    total = one.toDF().agg({"id": "sum"}).collect()[0][0]
    print(
        json.dumps(
            {
                "first": first,
                "before": before,
                "groups": sorted({row["count"] for row in groups}),
                "keys": len(groups),
                "total": total,
                "victims": sorted({partition for partition, pid in runs() if pid == victim}),
                "runs": {str(p): count for p, count in sorted(Counter(p for p, _ in runs()).items())},
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
