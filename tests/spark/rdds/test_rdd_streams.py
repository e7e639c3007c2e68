"""How many records are held at once on their way from one part of a stage to the next: many small ones, few
large ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, ClassVar

import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.options import KIB, MIB
from sortshuffle.spark.rdds.ranges import draw_keys
from sortshuffle.spark.rdds.streams import BATCH_BYTES, MOST_RECORDS, RecordStream

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LARGE = 64 * KIB
FEW = 2 * BATCH_BYTES // LARGE + 4  # two batches, and what the loops hold


class Large:
    """A value that counts the values like it in this process. ``most``: how many there were at once."""

    now: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def __init__(self) -> None:
        self.data = bytes(LARGE)
        Large.now += 1
        Large.most = max(Large.most, Large.now)

    def __del__(self) -> None:
        Large.now -= 1


def large_pairs(count: int) -> Iterator[tuple[int, Large]]:
    Large.most = Large.now
    return ((0, Large()) for _ in range(count))


def mixed_pairs(count: int) -> Iterator[tuple[int, Any]]:
    """One large value among 20, at random."""
    Large.most = Large.now
    random = Random(3)
    return ((n, Large() if random.random() < 1 / 20 else n) for n in range(count))


class Sized:
    """Counts how often objects like it are measured in this process."""

    measured: ClassVar[int] = 0

    def __sizeof__(self) -> int:
        Sized.measured += 1
        return 16


def first(one: Any, _: Any) -> Any:
    return one


@pytest.fixture(scope="module")
def sc(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


def test_chunks_are_of_many_small_records_or_few_large_ones() -> None:
    small = [(n, n) for n in range(50_000)]
    sizes = [len(chunk) for chunk in RecordStream(records=small).chunks()]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert max(sizes) == MOST_RECORDS
    assert [pair for chunk in RecordStream(records=small).chunks() for pair in chunk] == small

    seen = 0
    for chunk in RecordStream(records=large_pairs(1000)).chunks():
        seen += len(chunk)
        del chunk
    assert seen == 1000
    assert Large.most <= FEW


def test_chunks_stay_short_if_some_records_are_large() -> None:
    for chunk in RecordStream(records=mixed_pairs(50_000)).chunks():
        del chunk
    assert Large.most <= 2 * FEW


def test_sampling_holds_no_records() -> None:
    ((count, kept),) = draw_keys(60.0, 1.0, 0, large_pairs(1000))
    assert count == 1000
    assert all(key == 0 for _, key in kept)
    assert Large.most <= 3


# ``held``: values that the step itself may hold; a writer holds some until they are pickled
@pytest.mark.parametrize(
    ("shuffle", "held"),
    [
        (lambda rdd, make: rdd.flatMapValues(make).reduceByKey(first, 2), 0),
        (lambda rdd, make: rdd.flatMapValues(make).partitionBy(2), 4 * MIB // LARGE),
        (lambda rdd, make: rdd.partitionBy(1).flatMapValues(make).reduceByKey(first, 1), 0),
    ],
    ids=["combined", "written", "merged in place"],
)
def test_a_task_holds_few_large_records(
    sc: SparkContext, shuffle: Callable[[Any, Callable[[int], Iterator[Large]]], Any], held: int
) -> None:
    most = sc.accumulator(0)

    def make(count: int) -> Iterator[Large]:
        yield from (value for _, value in large_pairs(count))
        most.add(Large.most)

    shuffle(sortshuffle.rdd(sc.parallelize([(0, 1000)], 1)), make).count()
    assert 0 < most.value <= FEW + held


def test_writing_holds_few_large_records_among_small_ones(sc: SparkContext) -> None:
    most = sc.accumulator(0)

    def make(count: int) -> Iterator[Any]:
        yield from (value for _, value in mixed_pairs(count))
        most.add(Large.most)

    sortshuffle.rdd(sc.parallelize([(0, 50_000)], 1)).flatMapValues(make).partitionBy(2).count()
    assert 0 < most.value <= FEW + 4 * MIB // LARGE


def test_objects_are_not_measured_to_write_them(sc: SparkContext) -> None:
    measured = sc.accumulator(0)

    def make(count: int) -> Iterator[Sized]:
        before = Sized.measured
        yield from (Sized() for _ in range(count))
        measured.add(Sized.measured - before)

    sortshuffle.rdd(sc.parallelize([(0, 1000)], 1)).flatMapValues(make).partitionBy(2).count()
    assert measured.value == 0
