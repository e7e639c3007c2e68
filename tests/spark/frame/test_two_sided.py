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
from pyspark.sql.types import LongType, StructType

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


def test_an_observation_in_a_plan_whose_text_is_cut_arrives(job: SparkSession) -> None:
    observation = Observation()
    rows = job.range(9).observe(observation, sf.count("*").alias("rows"))
    for number in range(20):
        rows = rows.withColumn(f"c{number}", sf.col("id") + number)
    with confs(job, {"spark.sql.maxPlanStringLength": "200"}):
        groups: Any = rows.groupBy("id").applyInPandas(first_rows, rows.schema)
    assert not groups._is_in_python
    assert groups.count() == 9
    assert observation.get == {"rows": 9}


def test_an_observation_in_a_subquery_is_found(job: SparkSession) -> None:
    observed = job.range(9).observe(Observation(), sf.count("*").alias("rows"))
    rows = job.range(9).where(sf.col("id") < observed.agg(sf.max("id")).scalar())
    groups: Any = rows.groupBy("id").applyInPandas(first_rows, "id long")
    assert not groups._is_in_python


def test_a_column_that_is_named_like_an_observation_is_none(job: SparkSession) -> None:
    rows = job.range(9).withColumn("CollectMetrics", sf.lit(1))
    groups: Any = rows.groupBy("id").applyInPandas(first_rows, rows.schema)
    assert groups._is_in_python


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


def with_weight(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(w=frame["id"] / 2)


def group_with_weight(group: pd.DataFrame) -> pd.DataFrame:
    return group.assign(w=group["id"] / 2)


def pair_with_weight(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return group_with_weight(left)


def null_for_one(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(v=frame["id"].where(frame["id"] != 1).astype("Int64"))


def declared(session: SparkSession, by: str) -> list[Any]:
    """Rows of a function whose schema grows after the call, and of one with the grown schema."""
    schema = StructType().add("id", "long")
    rows = session.range(3)
    if by == "map":
        first = rows.mapInPandas(same, schema)
        second = first.mapInPandas(with_weight, schema.add("w", "double"))
    elif by == "groups":
        first = rows.groupBy("id").applyInPandas(same_group, schema)
        second = first.groupBy("id").applyInPandas(group_with_weight, schema.add("w", "double"))
    else:
        both = rows.groupBy("id").cogroup(session.range(3).groupBy("id"))
        first = both.applyInPandas(lambda left, _: left, schema)
        both = first.groupBy("id").cogroup(session.range(3).groupBy("id"))
        second = both.applyInPandas(pair_with_weight, schema.add("w", "double"))
    return [sorted(first.collect()), first.columns, sorted(second.collect()), second.columns]


@pytest.mark.parametrize("by", ["map", "groups", "cogroups"])
def test_a_declared_schema_is_that_of_the_call(job: SparkSession, spark: SparkSession, by: str) -> None:
    assert declared(job, by) == declared(spark, by)


def after_the_schema_has_grown(session: SparkSession) -> list[Any]:
    frame = session.range(3).mapInPandas(same, "id long")
    wider = frame.schema.add("place", "long")
    numbered = frame.rdd.zipWithIndex().map(lambda pair: (*pair[0], pair[1]))
    made = session.createDataFrame(numbered, wider)
    later = frame.filter("id > 0").mapInPandas(same, "id long")
    return [made.collect(), frame.collect(), frame.distinct().count(), later.collect(), frame.columns]


def test_a_schema_that_was_read_can_be_changed(job: SparkSession, spark: SparkSession) -> None:
    assert after_the_schema_has_grown(job) == after_the_schema_has_grown(spark)


def after_nulls_are_denied(session: SparkSession) -> list[Any]:
    frame = session.range(3).mapInPandas(null_for_one, "id long, v long")
    frame.schema["v"].nullable = False
    return [frame.collect(), frame.filter("v is null").collect(), frame.schema is frame.schema]


def test_a_schema_that_was_read_says_nothing_of_the_rows(job: SparkSession, spark: SparkSession) -> None:
    assert after_nulls_are_denied(job) == after_nulls_are_denied(spark)


def test_a_schema_that_was_read_has_the_types_of_pyspark(job: SparkSession, spark: SparkSession) -> None:
    for session in (job, spark):
        frame = session.range(3).mapInPandas(same, "id long")
        assert frame.schema["id"].dataType is LongType()


def test_a_column_as_an_attribute_copies_no_schema(job: SparkSession) -> None:
    frame: Any = job.range(3).mapInPandas(same, "id long")
    assert frame.select(frame.id).columns == ["id"]
    assert frame._shown_schema is None


def after_the_schema_of_sparks_rows_has_grown(session: SparkSession) -> list[Any]:
    rows = session.range(3)
    mapped = rows.mapInPandas(same, "id long")
    groups = rows.groupBy("id").applyInPandas(same_group, "id long")
    wider = rows.schema.add("place", "long")
    numbered = rows.rdd.zipWithIndex().map(lambda pair: (*pair[0], pair[1]))
    made = session.createDataFrame(numbered, wider)
    return [made.collect(), mapped.collect(), sorted(groups.collect()), mapped.columns]


def test_the_schema_of_sparks_rows_can_be_changed(job: SparkSession, spark: SparkSession) -> None:
    assert after_the_schema_of_sparks_rows_has_grown(job) == after_the_schema_of_sparks_rows_has_grown(spark)


def change(schema: StructType) -> None:
    schema.add("other", "long")
    schema["id"].name = "renamed"


IDS = [(0,), (1,), (2,)]


def test_the_schema_of_a_dataframe_can_be_changed_after_a_frame_is_made(spark: SparkSession) -> None:
    df = spark.range(3).select("id")
    frame = sortshuffle.frame(df)
    change(df.schema)
    assert sorted(frame.mapInPandas(same, "id long").collect()) == IDS
    assert sorted(frame.repartition(2, "id").collect()) == IDS
    assert sorted(frame.union(frame).distinct().collect()) == IDS
    assert sorted(frame.groupBy("id").count().select("id").collect()) == IDS


def test_the_schema_of_a_broadcast_joins_large_side_can_be_changed(spark: SparkSession) -> None:
    df = spark.range(3).select("id")
    small = sortshuffle.broadcast(sortshuffle.frame(spark.range(2)))
    joined = sortshuffle.frame(df).mapInPandas(same, "id long").join(small, "id")
    direct = sortshuffle.frame(df).join(small, "id")
    change(df.schema)
    assert sorted(joined.collect()) == sorted(direct.collect()) == IDS[:2]


def test_the_schema_of_a_kept_frames_plan_can_be_changed(job: SparkSession) -> None:
    frame: Any = job.range(3).mapInPandas(same, "id long").persist()
    try:
        change(frame.toDF().schema)
        assert sorted(frame.mapInPandas(same, "id long").collect()) == IDS
        assert sorted(frame.repartition(2, "id").collect()) == IDS
    finally:
        frame.unpersist()


def test_what_is_known_of_a_dataframe_does_not_change_with_its_schema(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    df = spark.range(3).select("id")
    frame = sortshuffle.frame(df)
    known, schema = frame._chain.origin.size_and_schema(), df.schema.json()
    change(df.schema)
    for other in (frame, sortshuffle.frame(df)):
        size, now = other._chain.origin.size_and_schema()
        assert now is not None
        assert (size, now.json()) == (known[0], schema)
        other.explain()
        assert "rows of DataFrame[id]\n" in capsys.readouterr().out


def test_a_remembered_call_that_another_thread_forgets_is_none(job: SparkSession) -> None:
    moved: Any = job.range(3).repartition(2, "id")
    call = moved._pending_call

    class Forgetful(type(moved)):  # type: ignore[misc]
        """A frame as it is if the other thread forgets the call after this one has looked once."""

        _looks = iter([call])

        @property
        def _pending_call(self) -> Any:
            return next(self._looks, None)

    vars(moved).pop("_pending_call")
    moved.__class__ = Forgetful
    call.made = moved
    assert moved._by_pending_calls() is None
    Forgetful._looks = iter([call, call])
    assert moved._by_pending_calls() is moved
