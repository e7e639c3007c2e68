"""What the tasks of case `rdd` run: pairs that they make, and consumers of what a shuffle gives.

A worker imports this module, and through it nothing large. PySpark's workers collect garbage after every
task: 13 ms each with what PySpark itself imports, 38 ms if pandas and pyarrow are there too, which PySpark's
side needs for nothing here. Workers of our side do not walk what they have imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from jobs import text_hash
from pyspark import RDD, SparkContext

MAPS = 8
SPREAD = 2_654_435_761  # so that neighbours have keys far apart
VALUES = [f"value {number:04d}" for number in range(10_000)]


def larger(one: str, other: str) -> str:
    return one if one >= other else other


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


def sorted_records(records: Iterable[Any]) -> Iterator[str]:
    """What stands for a partition. The values of a group may come in any order."""
    found = [(key, value if isinstance(value, str) else sorted(value)) for key, value in records]
    yield text_hash(map(repr, sorted(found)))


def pairs_of(context: SparkContext, kind: str, count: int, different: int) -> RDD[Any]:
    """Pairs that are made where they are needed."""
    each = math.ceil(count / MAPS)

    def ints(split: int, _: Iterable[Any]) -> Iterator[Any]:
        for number in range(split * each, (split + 1) * each):
            yield number * SPREAD % different, VALUES[number % len(VALUES)]

    def strings(split: int, _: Iterable[Any]) -> Iterator[Any]:
        for number in range(split * each, (split + 1) * each):
            yield f"key {number * SPREAD % different}", VALUES[number % len(VALUES)]

    seeds = context.parallelize(range(MAPS), MAPS)
    return seeds.mapPartitionsWithIndex(ints if kind == "int" else strings)
