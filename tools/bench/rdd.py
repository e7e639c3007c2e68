"""`rdd`: pairs of Python objects through `partitionBy`, against PySpark's own.

The pairs are made in the map tasks and counted in the reduce tasks by the same functions, so that both sides
pay the same for those, and neither moves anything but what it shuffles. Two kinds of keys, int and str, each
with a short string for a value. Both with Unix sockets between the JVM and its workers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from exchange import session
from harness import Side, compare, record
from pyspark import RDD, SparkContext

import sortshuffle

PARTITIONS = 64
MAPS = 8
PAIR_BYTES = {"int": 18, "str": 26}  # about, pickled


def pairs_of(context: SparkContext, kind: str, count: int) -> RDD[Any]:
    """``count`` pairs, made where they are needed."""
    each = count // MAPS

    def ints(split: int, _: Iterable[Any]) -> Iterator[Any]:
        for number in range(split * each, (split + 1) * each):
            yield number * 2654435761 % 1_000_003, "value 0001"

    def strings(split: int, _: Iterable[Any]) -> Iterator[Any]:
        for number in range(split * each, (split + 1) * each):
            yield f"key {number * 2654435761 % 1_000_003}", "value 0001"

    seeds = context.parallelize(range(MAPS), MAPS)
    return seeds.mapPartitionsWithIndex(ints if kind == "int" else strings)


def total(pairs: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """What the consumer does: how many pairs, and the sum of their lengths."""
    count = letters = 0
    for _, value in pairs:
        count += 1
        letters += len(value)
    yield count, letters


def main(quick: bool) -> None:
    spark = session()
    try:
        for kind in PAIR_BYTES:
            _compare(spark.sparkContext, kind, 80_000 if quick else 5_000_000, quick)
    finally:
        spark.stop()


def _compare(context: SparkContext, kind: str, count: int, quick: bool) -> None:
    source = pairs_of(context, kind, count)
    steps: dict[str, float] = {}

    def run_ours() -> tuple[int, int]:
        shuffled = sortshuffle.rdd(source).partitionBy(PARTITIONS).mapPartitions(total)
        moved = _check(shuffled.collect(), kind, count)
        steps.clear()
        for stage in shuffled.stage_totals():
            for step, seconds in stage.metrics.seconds.items():
                steps[step] = steps.get(step, 0.0) + seconds
        return moved

    def run_theirs() -> tuple[int, int]:
        return _check(source.partitionBy(PARTITIONS).mapPartitions(total).collect(), kind, count)

    run_ours()  # both sides' workers are started and have imported what they need
    compare(
        "rdd",
        f"{count / 1e6:g} M pairs with {kind} keys, {MAPS} map tasks, {PARTITIONS} partitions, local[2]",
        Side("sortshuffle", run_ours),
        Side("PySpark's partitionBy", run_theirs),
        rounds=1 if quick else 2,
        rows=count,
        keys=kind,
        partitions=PARTITIONS,
    )
    shown = ", ".join(f"{step} {seconds:.2f}" for step, seconds in sorted(steps.items(), key=lambda s: -s[1]))
    print(f"  sortshuffle's task seconds by step: {shown}")
    record("rdd steps", rows=count, keys=kind, seconds=steps)


def _check(sums: list[tuple[int, int]], kind: str, count: int) -> tuple[int, int]:
    if sum(pairs for pairs, _ in sums) != count or sum(letters for _, letters in sums) != 10 * count:
        sys.exit(f"the exchange lost pairs of {count}")
    return count * PAIR_BYTES[kind], count
