"""A job of RDDs on two executors, one of which is killed and wiped by a reduce task, when at least two others
have finished. Prints what happened as JSON.

    python lose_rdd.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from lose_executor import kill_as_said, killed_one, mark, marks, on_two_executors, runs_of
from pyspark import cloudpickle

import sortshuffle
from sortshuffle.homes.processes import executor_pid

MAPS, REDUCES, PAIRS = 6, 8, 6000
KILLER = 3


def main(directory: str) -> None:
    marked = os.path.join(directory, "marks")
    os.makedirs(marked)
    cloudpickle.register_pickle_by_value(sys.modules[mark.__module__])
    spark = on_two_executors(directory)

    def produce(split: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        mark(marked, "map", split)
        return ((number, number) for number in numbers)

    def consume(split: int, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        if split == KILLER and killed_one(directory) is None:
            kill_as_said(directory, min({pid for _, pid in marks(marked, "map")} - {executor_pid()}))
        values = [value for _, value in pairs]
        yield len(values), sum(values)

    numbers = spark.sparkContext.parallelize(range(PAIRS), MAPS)
    shuffled = sortshuffle.rdd(numbers).mapPartitionsWithIndex(produce).partitionBy(REDUCES)
    sums = shuffled.mapPartitionsWithIndex(consume).collect()
    victim = killed_one(directory)
    assert victim is not None
    counts = {"pairs": sum(count for count, _ in sums), "total": sum(total for _, total in sums)}
    print(json.dumps({**counts, **runs_of(marks(marked, "map"), victim)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
