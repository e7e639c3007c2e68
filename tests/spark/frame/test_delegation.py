"""Methods that only PySpark has: a wrong call plans nothing. Calls of methods as functions reach frames."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from oracle import assert_same_error
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sortshuffle import ShuffleFrame

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WRONG_CALLS: dict[str, Callable[[DataFrame], Any]] = {
    "unpivot": lambda f: f.unpivot("nothing", ["k"], "name", "value"),
    "describe": lambda f: f.describe("nothing"),
    "summary": lambda f: f.summary("nothing"),
    "dropna": lambda f: f.na.drop(subset=["nothing"]),
    "fillna": lambda f: f.fillna(1, subset=["nothing"]),
    "replace": lambda f: f.replace(1, 2, subset=["nothing"]),
    "freqItems": lambda f: f.freqItems(["nothing"]),
    "subtract": lambda f: f.subtract(f.select("k")),
    "lateralJoin": lambda f: f.lateralJoin(f, sf.col("nothing") == 1),
    "cube": lambda f: f.cube("nothing").count(),
    "groupingSets": lambda f: f.groupingSets([["k"]], "k").sum("nothing"),
    "groupBy": lambda f: f.groupBy("k").sum("nothing"),
    "colRegex": lambda f: f.colRegex("`nothing"),
    "createTempView": lambda f: f.createTempView("a_view"),
    "writeStream": lambda f: f.writeStream,
}

CALLS_AS_FUNCTIONS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "union": lambda f, g: functools.reduce(DataFrame.union, [f, g, f]),
    "transform": lambda f, g: DataFrame.transform(f, lambda own: own.union(g)),
    "select": lambda f, _: DataFrame.select(f, "k"),
    "a parameter by its name": lambda f, g: DataFrame.join(f, other=g, on=["id", "k"]),
    "another name": lambda f, _: DataFrame.where(f, "k > 0"),
}


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def numbers(session: SparkSession) -> DataFrame:
    return session.range(6).selectExpr("id", "id % 2 k").mapInArrow(same, "id long, k long")


@pytest.fixture
def view(spark: SparkSession) -> Iterator[None]:
    spark.range(1).createOrReplaceTempView("a_view")
    yield
    spark.catalog.dropTempView("a_view")


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS)
@pytest.mark.usefixtures("view")
def test_a_wrong_call_plans_nothing(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame], Any]
) -> None:
    frame = numbers(job).sort("id")  # to plan it would be to sample it
    assert isinstance(frame, ShuffleFrame)

    assert_same_error(call, frame, numbers(spark).sort("id"))
    assert frame._plain is None


def test_a_column_by_a_pattern_plans_nothing(job: SparkSession) -> None:
    frame = numbers(job)
    assert isinstance(frame, ShuffleFrame)

    chosen = frame.select(frame.colRegex("`i.*`"))

    assert chosen.columns == ["id"]
    assert frame._plain is None


@pytest.mark.parametrize(
    "call", [lambda f: f.cube("k"), lambda f: f.rollup("k", "id")], ids=["cube", "rollup"]
)
def test_groups_that_only_spark_makes(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame], Any]
) -> None:
    groups, expected = call(numbers(job)), call(numbers(spark))
    assert repr(groups) == repr(expected)
    assert isinstance(groups.count(), ShuffleFrame)
    assert sorted(map(str, groups.sum("id").collect())) == sorted(map(str, expected.sum("id").collect()))


@pytest.mark.parametrize("call", CALLS_AS_FUNCTIONS.values(), ids=CALLS_AS_FUNCTIONS)
def test_a_call_of_a_method_as_a_function_stays_in_python(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame, DataFrame], DataFrame]
) -> None:
    made, expected = call(numbers(job), numbers(job)), call(numbers(spark), numbers(spark))

    assert isinstance(made, ShuffleFrame)
    assert made._is_in_python
    assert sorted(made.collect()) == sorted(expected.collect())


def test_a_call_as_a_function_on_an_ordinary_dataframe_gives_one(spark: SparkSession) -> None:
    united = functools.reduce(DataFrame.union, [spark.range(2), spark.range(3)])
    assert not isinstance(united, ShuffleFrame)
    assert united.count() == 5
