"""How many partitions an exchange has for which no number is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from spark.oracle import confs

import sortshuffle
from sortshuffle.spark.operators import partition_counts
from sortshuffle.spark.operators.partition_counts import BYTES, BYTES_OF_FILES, TASKS_PER_CORE

MIB = 1 << 20
LEAST = TASKS_PER_CORE * 2  # there are two cores


@pytest.fixture(autouse=True)
def adaptive(spark: SparkSession) -> Iterator[None]:
    settings = {
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.sql.shuffle.partitions": "200",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    with confs(spark, settings):
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A little less than 12 MiB of two columns, uncompressed."""
    directory = tmp_path_factory.mktemp("files")
    rows = (12 * MIB - (128 << 10)) // 16
    table = pa.table({"k": np.arange(rows), "v": np.arange(rows)})
    pq.write_table(table, directory / "part.parquet", compression="none", use_dictionary=False)
    return str(directory)


def partitions(frame: Any) -> list[int]:
    return [exchange.subpartitions for exchange in frame._chain.exchanges()]


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def counted(left: Any, right: Any = None) -> pa.Table:
    return pa.table({"n": [1]})


def test_files_that_python_reads_need_few_partitions(
    spark: SparkSession, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sortshuffle.read(spark).parquet(files)
    assert partitions(rows.groupBy("k").agg(sf.sum("v"))) == [LEAST]
    monkeypatch.setattr(partition_counts, "BYTES_OF_FILES", MIB)
    assert partitions(rows.groupBy("k").agg(sf.sum("v"))) == [12]
    assert partitions(rows.where("k > 5").groupBy("k").count()) == [12]  # with the counts
    assert partitions(rows.repartition("k")) == [12]
    assert partitions(rows.repartition(50, "k")) == [50]
    assert partitions(rows.sort("k")) == [12]
    assert partitions(rows.sort("k").groupBy("v").count())[1:] == [12]


def test_a_join_is_as_large_as_its_sides_together(
    spark: SparkSession, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_counts, "BYTES_OF_FILES", MIB)
    rows = sortshuffle.read(spark).parquet(files)
    joined = rows.join(sortshuffle.read(spark).parquet(files).withColumnRenamed("v", "w"), "k")
    assert partitions(joined) == [24, 24]
    assert partitions(joined.groupBy("w").count())[2:] == [200]  # to Spark it has the product of the sizes
    assert partitions(rows.union(rows).groupBy("k").agg(sf.sum("v"))) == [24]


def test_behind_a_users_function_and_of_sparks_rows_partitions_are_smaller(
    spark: SparkSession, files: str
) -> None:
    assert BYTES_OF_FILES > BYTES == MIB
    rows = sortshuffle.read(spark).parquet(files)
    few = rows.groupBy("k")
    for behind in (
        rows.mapInArrow(same, "k long, v long"),
        few.applyInArrow(lambda table: table, "k long, v long"),
        rows.mapInArrow(same, "k long, v long").repartition(3, "v"),
        rows.union(rows.mapInArrow(same, "k long, v long")).limit(100_000_000).repartition(3, "v"),
    ):
        assert partitions(behind.groupBy("k").count())[-1] >= 12
    cogrouped = few.cogroup(rows.groupBy("k")).applyInArrow(counted, "n long")
    assert partitions(cogrouped.groupBy("n").count())[-1] == 200
    assert partitions(sortshuffle.frame(spark.range(10 * MIB // 8)).repartition("id")) == [10]


def test_the_configured_number_is_the_most(spark: SparkSession) -> None:
    rows = sortshuffle.frame(spark.range(100 * MIB))
    with confs(spark, {"spark.sql.shuffle.partitions": "9"}):
        assert partitions(rows.groupBy("id").count()) == [9]
    with confs(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        few = sortshuffle.frame(spark.range(10))
        assert partitions(few.groupBy("id").count()) == [200]


def test_sizes_may_be_larger_than_any_number_of_the_machine(spark: SparkSession) -> None:
    """To Spark a join has the product of the sizes of its sides, here of 2^62 rows each."""
    many = spark.range(1 << 62)
    for at in range(20):
        many = many.crossJoin(spark.range(1 << 62).toDF(f"c{at}"))
    rows = sortshuffle.frame(many)
    assert partitions(rows.repartition("id")) == [200]
    assert partitions(rows.sample(0.5, seed=1).select("id").groupBy("id").count()) == [200]
