"""A frame is a DataFrame: all public methods of PySpark's with their parameters; and looking at a frame plans
nothing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import (
    DataFrame,
    DataFrameNaFunctions,
    DataFrameStatFunctions,
    DataFrameWriter,
    GroupedData,
    PandasCogroupedOps,
    SparkSession,
)
from pyspark.sql import functions as sf
from pyspark.sql.classic import dataframe as classic

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.spark.frame.classic_frame import ClassicFrame
from sortshuffle.spark.frame.frame_writer import FrameWriter
from sortshuffle.spark.frame.grouped_frame import CoGroupedFrame, GroupedFrame
from sortshuffle.spark.frame.shuffle_session import ShuffleSession

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLASSES = [
    (ClassicFrame, DataFrame),
    (GroupedFrame, GroupedData),
    (CoGroupedFrame, PandasCogroupedOps),
    (FrameWriter, DataFrameWriter),
    (ShuffleSession, SparkSession),
]


@pytest.fixture(scope="module")
def job(spark: SparkSession) -> SparkSession:
    return sortshuffle.session(spark)


@pytest.fixture
def doubled(job: SparkSession) -> ShuffleFrame:
    """A frame of Python's side that nothing has planned yet."""
    frame = job.range(4).withColumn("k", sf.col("id") % 2).mapInArrow(same, "id long, k long")
    assert isinstance(frame, ShuffleFrame)
    return frame


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def public_names(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_")]


@pytest.mark.parametrize(("ours", "theirs"), CLASSES, ids=lambda cls: cls.__name__)
def test_every_public_method_has_pysparks_parameters(ours: type, theirs: type) -> None:
    differing = {}
    for name in public_names(theirs):
        wanted, found = inspect.getattr_static(theirs, name), inspect.getattr_static(ours, name)
        if inspect.isfunction(wanted):
            if parameters(getattr(theirs, name)) != parameters(getattr(ours, name)):
                differing[name] = (parameters(getattr(theirs, name)), parameters(getattr(ours, name)))
        elif isinstance(wanted, property):
            assert not inspect.isfunction(found), name
    assert differing == {}


def test_frames_add_one_public_name() -> None:
    assert set(public_names(ClassicFrame)) - set(public_names(classic.DataFrame)) == {"stage_totals"}


def test_na_and_stat_work_on_frames(doubled: ShuffleFrame) -> None:
    assert isinstance(doubled.na, DataFrameNaFunctions)
    assert isinstance(doubled.stat, DataFrameStatFunctions)
    assert isinstance(doubled.na.drop(), ShuffleFrame)
    assert doubled.stat.corr("id", "id") == 1.0


def test_looking_at_a_frame_plans_nothing(doubled: ShuffleFrame) -> None:
    assert isinstance(doubled, DataFrame)
    assert repr(doubled) == str(doubled) == "DataFrame[id: bigint, k: bigint]"
    assert hasattr(doubled, "k")
    assert not hasattr(doubled, "nothing")
    assert {"id", "k", "mapInArrow"} <= set(dir(doubled))
    assert doubled.columns == ["id", "k"]
    assert doubled.dtypes == [("id", "bigint"), ("k", "bigint")]
    assert doubled["k"] is not None
    assert not doubled.isStreaming
    assert repr(doubled.groupBy("k")) == (
        "GroupedData[grouping expressions: [k], value: [id: bigint, k: bigint], type: GroupBy]"
    )
    doubled.printSchema()
    assert doubled._plain is None


def test_columns_of_a_frame_resolve_in_frames_derived_from_it(doubled: ShuffleFrame) -> None:
    derived = doubled.filter(doubled.id > 0).repartition(3, doubled.k)
    rows = derived.select(doubled.id, (doubled.k * 2 + derived.id).alias("sum"))

    assert sorted(map(tuple, rows.collect())) == [(1, 3), (2, 2), (3, 5)]


def test_columns_of_a_frame_that_is_already_planned_resolve(doubled: ShuffleFrame) -> None:
    assert doubled.toDF().count() == 4
    rows = doubled.filter(doubled.id > 1).select((doubled.id + 1).alias("next")).collect()
    assert sorted(row.next for row in rows) == [3, 4]


def test_a_column_of_another_frame_is_pysparks_error(job: SparkSession, doubled: ShuffleFrame) -> None:
    other = job.range(3).mapInArrow(same, "id long")
    with pytest.raises(Exception, match="MISSING_ATTRIBUTES"):
        doubled.filter(other.id > 1)


def test_names_of_frames_qualify_columns(doubled: ShuffleFrame) -> None:
    one, other = doubled.alias("one"), doubled.alias("other")
    joined = one.join(other, sf.col("one.id") == sf.col("other.k")).select("one.id", "other.id")
    assert sorted(map(tuple, joined.collect())) == [(0, 0), (0, 2), (1, 1), (1, 3)]


SELF_JOINS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "the maximum of each group": lambda a: (
        (b := a.groupBy("k").agg(sf.max("v").alias("v"))) and a.join(b, a.k == b.k).select(a.id, b.v)
    ),
    "the rows of the maximum": lambda a: (
        (b := a.groupBy("k").agg(sf.max("v").alias("v"))) and a.join(b, a.v == b.v).select(a.id, b.v)
    ),
    "by name": lambda a: (
        (b := a.groupBy("k").agg(sf.max("v").alias("v"))) and a.join(b, "k").select(a.id, b.v)
    ),
    "by two conditions": lambda a: (
        (m := a.groupBy("k").agg(sf.max("v").alias("m")))
        and a.join(m, (a.k == m.k) & (a.v == m.m)).select(a.id, m.m)
    ),
    "with a column more": lambda a: (
        (b := a.withColumn("w", sf.col("v") * 2)) and a.join(b.select("w"), a.id == b.w).select(a.k, b.w)
    ),
    "with itself renamed": lambda a: (
        (b := a.select(sf.col("id").alias("other"), "k")) and a.join(b, a.id == b.other).select(a.v, b.other)
    ),
}


@pytest.mark.parametrize("call", SELF_JOINS.values(), ids=SELF_JOINS.keys())
def test_columns_of_both_sides_of_a_self_join_resolve(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame], DataFrame]
) -> None:
    def rows(session: SparkSession) -> DataFrame:
        numbers = session.range(60).selectExpr("id", "id % 7 as k", "id * 1.5D as v")
        return numbers.mapInArrow(same, "id long, k long, v double")

    assert sorted(map(tuple, call(rows(job)).collect())) == sorted(map(tuple, call(rows(spark)).collect()))


def test_a_frame_meets_ordinary_dataframes(spark: SparkSession, doubled: ShuffleFrame) -> None:
    plain = spark.range(2)
    assert type(plain) is not ClassicFrame
    assert sorted(map(tuple, plain.join(doubled, "id").collect())) == [(0, 0), (1, 1)]
    assert sorted(map(tuple, doubled.join(plain, "id").collect())) == [(0, 0), (1, 1)]
    assert sorted(map(tuple, doubled.join(sf.broadcast(plain), "id").collect())) == [(0, 0), (1, 1)]
    assert doubled.drop("k").union(plain).count() == plain.union(doubled.drop("k")).count() == 6


def test_sql_sees_frames(job: SparkSession, doubled: ShuffleFrame) -> None:
    doubled.createOrReplaceTempView("doubled")
    assert job.sql("select sum(id) s from doubled").first().s == 6
    assert job.sql("select sum(id) s from {f}", f=doubled).first().s == 6
    assert isinstance(job.table("doubled"), ShuffleFrame)


def test_kept_rows_are_computed_once(job: SparkSession) -> None:
    counted = job.sparkContext.accumulator(0)

    def count(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            counted.add(len(frame))
            yield frame

    frame = job.range(10).mapInPandas(count, "id long").cache()
    try:
        assert [frame.count(), frame.filter("id > 4").count(), frame.groupBy("id").count().count()] == [
            10,
            5,
            10,
        ]
        assert counted.value == 10
    finally:
        frame.unpersist()
