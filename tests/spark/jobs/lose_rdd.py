"""A job of RDDs on two executors, one of which is killed and wiped by a reduce task, when at least two others
have finished. Prints what happened as JSON.

    python lose_rdd.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from lose_executor import kill_and_wipe, mark, marks
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.homes.processes import executor_pid

MAPS, REDUCES, PAIRS = 6, 8, 6000
KILLER = 3


def main(directory: str) -> None:
    marked = os.path.join(directory, "marks")
    killed = os.path.join(marked, "killed")
    os.makedirs(marked)
    cloudpickle.register_pickle_by_value(sys.modules[mark.__module__])
    spark: Any = (
        sortshuffle.configure(SparkSession.builder)
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def produce(split: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        mark(marked, "map", split)
        return ((number, number) for number in numbers)

    def consume(split: int, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        if split == KILLER and not os.path.exists(killed):
            victim = min({pid for _, pid in marks(marked, "map")} - {executor_pid()})
            with open(killed, "x") as opened:
                opened.write(str(victim))
            kill_and_wipe(directory, victim)
        values = [value for _, value in pairs]
        yield len(values), sum(values)

    numbers = spark.sparkContext.parallelize(range(PAIRS), MAPS)
    shuffled = sortshuffle.rdd(numbers).mapPartitionsWithIndex(produce).partitionBy(REDUCES)
    sums = shuffled.mapPartitionsWithIndex(consume).collect()
    with open(killed) as opened:
        victim = int(opened.read())
    runs = marks(marked, "map")
    print(
        json.dumps(
            {
                "pairs": sum(count for count, _ in sums),
                "total": sum(total for _, total in sums),
                "victims": sorted({split for split, pid in runs if pid == victim}),
                "runs": {str(split): count for split, count in sorted(Counter(p for p, _ in runs).items())},
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
