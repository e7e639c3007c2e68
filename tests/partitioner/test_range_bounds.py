"""Bounds from a sample: Spark's own `RangePartitioner.determineBounds` is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sortshuffle.errors import UsageError
from sortshuffle.partitioner import SortKey, determine_bounds

UP = (SortKey(0),)


def bounds_of(values: list[Any], weights: list[float], subpartitions: int, key: SortKey = UP[0]) -> list[Any]:
    samples = pa.record_batch([pa.array(values)], names=["k"])
    return determine_bounds(samples, np.array(weights, np.float64), [key], subpartitions)["k"].to_pylist()


def sparks_bounds(
    spark: SparkSession, keys: list[int], weights: list[float], subpartitions: int
) -> list[int]:
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.jvm
    longs, floats = gateway.new_array(jvm.long, len(keys)), gateway.new_array(jvm.float, len(keys))
    for position, (key, weight) in enumerate(zip(keys, weights, strict=True)):
        longs[position], floats[position] = key, weight
    predef = getattr(jvm, "scala.Predef$").__getattr__("MODULE$")
    pairs = predef.wrapLongArray(longs).zip(predef.wrapFloatArray(floats))
    buffers = getattr(jvm, "scala.collection.mutable.ArrayBuffer$").__getattr__("MODULE$")
    candidates = getattr(buffers, "from")(pairs)
    ordering = getattr(jvm, "scala.math.Ordering$Long$").__getattr__("MODULE$")
    tag = getattr(jvm, "scala.reflect.ClassTag$").__getattr__("MODULE$").Long()
    least = min(subpartitions, len(keys))  # as Spark itself calls it
    return list(jvm.org.apache.spark.RangePartitioner.determineBounds(candidates, least, ordering, tag))


@settings(max_examples=40)
@given(
    samples=st.lists(
        st.tuples(st.integers(-4, 30), st.integers(1, 400).map(lambda quarter: quarter / 4)),
        min_size=1,
        max_size=60,
    ),
    subpartitions=st.integers(2, 40),
)
def test_bounds_are_those_of_spark_for_the_same_sample(
    spark: SparkSession, samples: list[tuple[int, float]], subpartitions: int
) -> None:
    keys, weights = map(list, zip(*samples, strict=True))

    assert bounds_of(keys, weights, subpartitions) == sparks_bounds(spark, keys, weights, subpartitions)


def test_ranges_of_equal_weight() -> None:
    assert bounds_of(list(range(12)), [1.0] * 12, 4) == [2, 5, 8]
    assert bounds_of([1, 2, 3, 4], [1.0, 1.0, 1.0, 9.0], 2) == [4]


def test_a_key_that_fills_several_ranges_is_a_bound_once() -> None:
    assert bounds_of([5] * 90 + [7, 8, 9], [1.0] * 93, 5) == [5, 7, 8, 9]


def test_there_are_no_more_bounds_than_different_keys() -> None:
    assert bounds_of([3, 3, 3], [1.0] * 3, 10) == [3]
    assert bounds_of([2, 1], [1.0, 1.0], 10) == [1]


def test_bounds_follow_the_direction_of_the_key() -> None:
    values = [1, None, 3, 4, None, 6]

    assert bounds_of(values, [1.0] * 6, 3) == [None, 3]
    assert bounds_of(values, [1.0] * 6, 3, SortKey(0, True, True)) == [4, 1]
    assert bounds_of(values, [1.0] * 6, 3, SortKey(0, True, False)) == [None, 4]


def test_one_range_has_no_bounds_and_neither_has_an_empty_sample() -> None:
    assert bounds_of([1, 2, 3], [1.0] * 3, 1) == []
    empty = pa.record_batch([pa.array([], pa.string())], names=["k"])
    assert determine_bounds(empty, np.empty(0), UP, 5).num_rows == 0


def test_every_sample_needs_its_weight() -> None:
    with pytest.raises(UsageError, match="3 samples and 1 weights"):
        bounds_of([1, 2, 3], [1.0], 2)
