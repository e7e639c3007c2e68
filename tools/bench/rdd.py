"""`rdd`: pairs of Python objects through `partitionBy`, `reduceByKey`, `groupByKey`, against PySpark's own.

The pairs are made in the map tasks and counted in the reduce tasks by the same functions, so that both sides
pay the same for those, and neither moves anything but what it shuffles. Two kinds of keys, int and str, each
with a short string for a value; a million different keys, of which hardly any comes twice in a map task, and
ten thousand, which do. Both sides with Unix sockets between the JVM and its workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from exchange import session
from harness import Side, compare, record
from pyspark import RDD, SparkContext

import sortshuffle

PARTITIONS = 64
MAPS = 8
PAIR_BYTES = {"int": 18, "str": 26}  # about, pickled
MANY, FEW = 1_000_003, 10_007
SPREAD = 2_654_435_761  # so that neighbours have keys far apart


def pairs_of(context: SparkContext, kind: str, count: int, keys: int) -> RDD[Any]:
    """``count`` pairs, made where they are needed."""
    each = count // MAPS

    def ints(split: int, _: Iterable[Any]) -> Iterator[Any]:
        for number in range(split * each, (split + 1) * each):
            yield number * SPREAD % keys, "value 0001"

    def strings(split: int, _: Iterable[Any]) -> Iterator[Any]:
        for number in range(split * each, (split + 1) * each):
            yield f"key {number * SPREAD % keys}", "value 0001"

    seeds = context.parallelize(range(MAPS), MAPS)
    return seeds.mapPartitionsWithIndex(ints if kind == "int" else strings)


def pairs(records: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """What the consumer does: how many pairs, and the sum of their lengths."""
    count = letters = 0
    for _, value in records:
        count += 1
        letters += len(value)
    yield count, letters


def values(groups: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """The same for groups of values."""
    count = letters = 0
    for _, group in groups:
        for value in group:
            count += 1
            letters += len(value)
    yield count, letters


def larger(one: str, other: str) -> str:
    return one if one >= other else other


@dataclass(frozen=True)
class Case:
    """``name``: the method. ``run``: on either side's RDD, what it gives, and what consumes it. ``count``: of
    so many pairs with so many keys, how many values come out."""

    name: str
    run: Callable[[Any], Any]
    consume: Callable[[Iterable[Any]], Iterator[tuple[int, int]]]
    count: Callable[[int, int], int]


CASES = [
    Case("partitionBy", lambda rdd: rdd.partitionBy(PARTITIONS), pairs, lambda count, _: count),
    Case("reduceByKey", lambda rdd: rdd.reduceByKey(larger, PARTITIONS), pairs, min),
    Case("groupByKey", lambda rdd: rdd.groupByKey(PARTITIONS), values, lambda count, _: count),
]


def main(quick: bool) -> None:
    spark = session()
    try:
        for case in CASES:
            for kind in PAIR_BYTES:
                for keys in (MANY,) if case.name == "partitionBy" else (MANY, FEW):
                    _compare(spark.sparkContext, case, kind, keys, 80_000 if quick else 5_000_000, quick)
    finally:
        spark.stop()


def _compare(context: SparkContext, case: Case, kind: str, keys: int, count: int, quick: bool) -> None:
    source = pairs_of(context, kind, count, keys)
    steps: dict[str, float] = {}

    def run_ours() -> tuple[int, int]:
        shuffled = case.run(sortshuffle.rdd(source)).mapPartitions(case.consume)
        moved = _check(shuffled.collect(), case, kind, count, keys)
        steps.clear()
        for stage in shuffled.stage_totals():
            for step, seconds in stage.metrics.seconds.items():
                steps[step] = steps.get(step, 0.0) + seconds
        return moved

    def run_theirs() -> tuple[int, int]:
        return _check(case.run(source).mapPartitions(case.consume).collect(), case, kind, count, keys)

    run_ours()  # both sides' workers are started and have imported what they need
    compare(
        "rdd",
        f"{case.name}, {count / 1e6:g} M pairs with {keys:,} {kind} keys, {MAPS} map tasks, {PARTITIONS}"
        " partitions, local[2]",
        Side("sortshuffle", run_ours),
        Side(f"PySpark's {case.name}", run_theirs),
        rounds=1 if quick else 2,
        rows=count,
        method=case.name,
        keys=kind,
        different=keys,
        partitions=PARTITIONS,
    )
    shown = ", ".join(f"{step} {seconds:.2f}" for step, seconds in sorted(steps.items(), key=lambda s: -s[1]))
    print(f"  sortshuffle's task seconds by step: {shown}")
    record("rdd steps", rows=count, method=case.name, keys=kind, different=keys, seconds=steps)


def _check(sums: list[tuple[int, int]], case: Case, kind: str, count: int, keys: int) -> tuple[int, int]:
    expected = case.count(count, keys)
    if sum(found for found, _ in sums) != expected or sum(letters for _, letters in sums) != 10 * expected:
        sys.exit(f"{case.name} lost values of {count} pairs")
    return count * PAIR_BYTES[kind], count
