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
from sortshuffle.partitioner import RangeSelector, SortKey, determine_bounds, shorten_texts
from sortshuffle.partitioner.range_bounds import LONGEST_TEXT
from sortshuffle.payload.ordering import RowOrder

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


# --- long keys ----------------------------------------------------------------------------------------------

LONG = LONGEST_TEXT


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str)
def test_keys_are_shortened_to_their_first_bytes(kind: pa.DataType) -> None:
    values = [b"x" * (LONG + 1), b"", None, b"y" * LONG, b"z" * (LONG - 1) + "é".encode() * 9, b"a"]
    keys = pa.record_batch([pa.array(values, pa.large_binary()).cast(kind)], ["k"]).slice(1)
    found = shorten_texts(keys)
    assert found.schema == keys.schema
    expected = [None if value is None else value[:LONG] for value in values[1:]]
    assert found["k"].view(pa.large_binary() if "large" in str(kind) else pa.binary()).to_pylist() == expected


@pytest.mark.parametrize(
    ("other", "others"),
    [(pa.float64(), [1.5, None, 2.5, 3.5]), (pa.struct([]), [{}] * 4), (pa.struct([]), [{}, None, {}, {}])],
    ids=["double", "no fields", "no fields and a null"],
)
def test_keys_in_structs_are_shortened_and_others_stay(other: pa.DataType, others: list[Any]) -> None:
    kind = pa.struct([("n", pa.int32()), ("s", pa.struct([("t", pa.string())]))])
    rows = [{"n": 1, "s": {"t": "a" * (LONG + 5)}}, None, {"n": None, "s": None}, {"n": 2, "s": {"t": "b"}}]
    keys = pa.record_batch([pa.array(rows, kind), pa.array(others, other)], ["x", "d"])
    found = shorten_texts(keys)
    rows[0] = {"n": 1, "s": {"t": "a" * LONG}}
    assert found.schema == keys.schema
    assert found.to_pydict() == {"x": rows, "d": others}


@settings(max_examples=30)
@given(
    heads=st.lists(st.sampled_from(["", "a", "b", "é"]), min_size=1, max_size=12),
    others=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    keys=st.sampled_from(
        [(SortKey(0), SortKey(1)), (SortKey(0, descending=True), SortKey(1, nulls_last=True))]
    ),
    subpartitions=st.integers(2, 6),
)
def test_ranges_of_long_keys_ascend_and_keep_equal_keys_together(
    heads: list[str], others: list[int], keys: tuple[SortKey, ...], subpartitions: int
) -> None:
    """Keys that differ before, at, and behind the place where bounds end."""
    tails = ["", "x" * (LONG - 1), "x" * LONG, "x" * LONG + "y", "x" * 3 * LONG]
    texts = [head + tails[other] for head in heads for other in (*others[:2], 4)]
    numbers = [others[at % 12] for at in range(len(texts))]
    rows = pa.record_batch([pa.array(texts), pa.array(numbers)], ["k", "n"])
    order = RowOrder(keys).ranks(rows).sort_indices()
    bounds = determine_bounds(shorten_texts(rows), np.ones(rows.num_rows), keys, subpartitions)
    selector = RangeSelector(keys, bounds, subpartitions)
    ids = selector.assign(rows)
    assert (np.diff(ids[order].astype(int)) >= 0).all()
    together: dict[Any, set[int]] = {}
    for text, number, at in zip(texts, numbers, ids.tolist(), strict=True):
        together.setdefault((text, number), set()).add(at)
    assert all(len(places) == 1 for places in together.values())
    assert sum(map(len, bounds["k"].view(pa.binary()).to_pylist())) <= LONG * bounds.num_rows
    words = [part for part in selector._parts if part.word is not None]  # and the length
    assert len(words) <= LONG // 8 + 1
