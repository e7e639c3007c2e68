"""One stage that writes two exchanges, on two executors. One of its tasks fails first and runs again; then an
executor is killed and wiped. Prints what happened as JSON.

    python lose_fan_out.py DIRECTORY
"""

from __future__ import annotations

import glob
import json
import os
import sys

from lose_executor import kill_and_wipe, mark, marks, on_two_executors, runs_of
from pyspark import TaskContext, cloudpickle

import sortshuffle

MAPS, ROWS = 6, 60_000
FAILING = 2  # this partition's first attempt fails behind its last row


def main(directory: str) -> None:
    marked = os.path.join(directory, "marks")
    os.makedirs(marked)
    cloudpickle.register_pickle_by_value(sys.modules[mark.__module__])
    spark = on_two_executors(directory)

    def produce(batches):  # type: ignore[no-untyped-def]
        partition = TaskContext.get().partitionId()
        fails = partition == FAILING and not marks(marked, "fail")
        mark(marked, "fail" if fails else "map", partition)
        yield from batches
        if fails:
            raise RuntimeError("the first attempt")

    def outputs() -> list[str]:
        found = glob.glob(os.path.join(directory, "local", "**", "exchange-*.data*"), recursive=True)
        return sorted(os.path.basename(path) for path in found)

    numbers = spark.range(0, ROWS, 1, MAPS).selectExpr("id", "id % 100 as k")
    frame = sortshuffle.frame(numbers).mapInArrow(produce, numbers.schema)
    one, two = frame.repartition(8, "id"), frame.select("k").repartition(3, "k")
    first = one.count()
    before = outputs()

    victim = min(pid for _, pid in marks(marked, "map"))
    kill_and_wipe(directory, victim)
    groups = two.toDF().groupBy("k").count().collect()
    total = one.toDF().agg({"id": "sum"}).collect()[0][0]
    found = {
        "first": first,
        "before": before,
        "groups": sorted({row["count"] for row in groups}),
        "keys": len(groups),
        "total": total,
        **runs_of(marks(marked, "map"), victim),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
