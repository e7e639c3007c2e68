"""Placement by id where Spark knows none: by ints whose hash is at home in the partition that is wanted."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sortshuffle.partitioner import HashSelector
from sortshuffle.spark.by_id import by_hash_of_ints, by_id, ints_at_home

Place = Callable[[DataFrame, int, str], DataFrame]


@pytest.mark.parametrize("partitions", [1, 2, 3, 64, 1000])
def test_every_partition_has_an_int_that_hashes_to_it(partitions: int) -> None:
    found = ints_at_home(partitions)
    batch = pa.record_batch([pa.array(found, pa.int32())], names=["i"])
    assert HashSelector((0,), partitions).assign(batch).tolist() == list(range(partitions))


@pytest.mark.parametrize("place", [by_id, by_hash_of_ints])
def test_rows_go_to_the_partition_of_their_number(spark: SparkSession, place: Place) -> None:
    numbers = spark.range(0, 300, 1, 3).select((sf.col("id") % 7).cast("int").alias("p"), "id")
    placed = place(numbers, 9, "p")
    assert placed.columns == ["p", "id"]
    assert placed.rdd.getNumPartitions() == 9
    found = placed.select("id", sf.spark_partition_id()).collect()
    assert sorted(map(tuple, found)) == [(n, n % 7) for n in range(300)]
