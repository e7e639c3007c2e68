"""Where frames with two sides gave other rows than PySpark, or none."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import confs, counter_of_rows, error_of
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.parquet.file_schema import SPARK_NOTE

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def first_rows(group: pd.DataFrame) -> pd.DataFrame:
    return group[:1]


def test_a_size_that_was_asked_for_does_not_hide_a_later_cache(job: SparkSession) -> None:
    number = sf.udf(lambda _: random.getrandbits(40), "long").asNondeterministic()
    rows = job.range(50, numPartitions=2).withColumn("k", number("id"))
    grouped = rows.mapInPandas(same, "id long, k long").groupBy("k").applyInPandas(same_group, rows.schema)
    assert grouped.columns == ["id", "k"]
    rows.cache()
    try:
        assert sorted(rows.collect()) == sorted(rows.filter("k >= 0").collect())
    finally:
        rows.unpersist()


def same_group(group: pd.DataFrame) -> pd.DataFrame:
    return group


def test_columns_to_group_by_are_those_of_the_call(job: SparkSession) -> None:
    rows = job.range(6).selectExpr("id % 2 as k", "id as v").mapInPandas(same, "k long, v long")
    keys = ["k"]
    counted = rows.groupBy(keys)
    keys.append("v")
    counts = counted.count()
    assert sorted(counts.select(counts["count"]).collect()) == [(3,), (3,)]
    functions = {"v": "sum"}
    sums = rows.groupBy("k").agg(functions)
    functions["k"] = "max"
    assert sorted(sums.select(sums["sum(v)"]).collect()) == [(6,), (9,)]


def test_a_correlated_subquery_is_sparks(job: SparkSession) -> None:
    outer = job.range(3).mapInPandas(same, "id long").alias("f")
    inner = job.range(2).mapInPandas(same, "id long").alias("o")
    related = inner.where(sf.col("o.id") == sf.col("f.id").outer())
    assert sorted(outer.where(related.exists()).collect()) == [(0,), (1,)]


@pytest.mark.parametrize("by", ["view", "sql"])
def test_an_observation_behind_a_name_arrives(job: SparkSession, by: str) -> None:
    observation = Observation()
    observed = job.range(9).observe(observation, sf.count("*").alias("rows"))
    if by == "view":
        observed.createOrReplaceTempView("observed")
        named = job.table("observed")
    else:
        named = job.sql("select * from {observed}", observed=observed)
    with confs(job, {"spark.sql.shuffle.partitions": "2"}):
        assert named.groupBy("id").applyInPandas(first_rows, "id long").count() == 9
    assert observation.get == {"rows": 9}


def test_a_class_of_a_library_is_derived_from_dataframe(job: SparkSession) -> None:
    class Named(DataFrame):
        pass

    frame: Any = job.range(3)
    assert Named(frame._jdf, job).count() == 3


def test_kept_rows_that_the_catalog_drops_are_made_again(job: SparkSession) -> None:
    made, counted = counter_of_rows(job)
    rows = job.range(5).mapInPandas(counted, "id long")
    derived = rows.filter("id > 1")
    rows.cache()
    assert (rows.count(), derived.count(), made.value) == (5, 3, 5)
    job.catalog.clearCache()
    assert (derived.filter("id > 2").count(), made.value) == (2, 10)
    rows.unpersist()


def test_dropped_rows_are_forgotten_when_others_are_kept(job: SparkSession) -> None:
    source = job.range(5).mapInPandas(same, "id long").repartition(2, "id")
    assert isinstance(source, sortshuffle.ShuffleFrame)
    try:
        for low in range(3):
            source.filter(f"id > {low}").persist()
            job.catalog.clearCache()
        last = source.filter("id > 3").persist()
        known = source._chain.context.cached_rows.values()
        assert [cached.storageLevel.useMemory for _, _, cached in known] == [True]
        assert last.count() == 1
    finally:
        job.catalog.clearCache()


@pytest.mark.parametrize("level", ["DISK_ONLY", "MEMORY_ONLY", "memory_and_disk_ser_2"])
@pytest.mark.parametrize("is_in_python", [False, True], ids=["spark", "python"])
def test_cache_has_the_level_of_the_session(
    job: SparkSession, spark: SparkSession, level: str, is_in_python: bool
) -> None:
    def kept_level(session: SparkSession) -> object:
        with confs(session, {"spark.sql.defaultCacheStorageLevel": level}):
            rows = session.range(3)
            kept = (rows.mapInPandas(same, "id long") if is_in_python else rows).cache()
        try:
            return kept.storageLevel
        finally:
            session.catalog.clearCache()

    assert kept_level(job) == kept_level(spark)


def with_unknown_type(path: Path) -> str:
    """Write a file whose second column is of a user-defined type, and Python has not the type's module."""
    kind = {"type": "udt", "pyClass": "no_such_module.B", "serializedClass": "", "sqlType": "long"}
    named = {"id": "long", "b": kind}
    fields = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in named.items()]
    note = json.dumps({"type": "struct", "fields": fields})
    pq.write_table(pa.table({"id": [1, 2], "b": [3, 4]}).replace_schema_metadata({SPARK_NOTE: note}), path)
    return str(path)


def test_a_type_that_python_does_not_know_is_left_to_spark(
    job: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    path = with_unknown_type(tmp_path / "f.parquet")
    assert job.read.parquet(path).select("id").mapInPandas(same, "id long").collect() == [(1,), (2,)]
    moved = job.read.parquet(path).repartition(2, "id").select("id").mapInPandas(same, "id long")
    assert sorted(moved.collect()) == [(1,), (2,)]
    assert sortshuffle.frame(spark.read.parquet(path).select("id")).filter("id > 1").collect() == [(2,)]
    with pytest.raises(UnsupportedError, match="no_such_module"):
        sortshuffle.frame(spark.read.parquet(path))
    calls = [
        error_of(lambda session: session.read.parquet(path).mapInPandas(same, "id long"), session)
        for session in (job, spark)
    ]
    assert calls[0] == calls[1]
