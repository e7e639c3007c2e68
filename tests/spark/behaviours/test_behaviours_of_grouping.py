"""Aggregates, joins, renamings and repartitions of frames whose rows a function has taken to Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from oracle import error_of
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Call = Callable[[DataFrame, DataFrame], Any]


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@pytest.fixture(scope="module")
def pairs(
    spark: SparkSession, job: SparkSession
) -> tuple[tuple[DataFrame, DataFrame], tuple[DataFrame, DataFrame]]:
    """Two frames of Python's, and PySpark's own of the same rows."""
    people = [(14, "Tom"), (23, "Alice"), (16, "Bob"), (16, None)], "age long, name string"
    heights = [(80, "Tom"), (85, "Bob"), (90, "Eve")], "height long, name string"

    def frames(session: SparkSession) -> tuple[DataFrame, DataFrame]:
        one, other = session.createDataFrame(*people), session.createDataFrame(*heights)
        return one.mapInArrow(same, one.schema), other.mapInArrow(same, other.schema)

    return frames(job), frames(spark)


def rows(frame: DataFrame) -> tuple[list[str], list[str]]:
    return frame.columns, sorted(map(repr, frame.collect()))


IN_PYTHON: dict[str, Call] = {
    "sum": lambda one, _: one.groupBy("age").sum(),
    "max": lambda one, _: one.groupBy("name").max("age"),
    "mean": lambda one, _: one.groupBy("name").mean("age"),
    "count": lambda one, _: one.groupBy("name").count(),
    "dict": lambda one, _: one.groupBy("age").agg({"name": "count"}),
    "aliases": lambda one, _: one.groupBy("age").agg(sf.min("name").alias("first"), sf.count("*").alias("n")),
    "ordinal": lambda one, _: one.groupBy(1).agg(sf.count("name")),
    "all rows": lambda one, _: one.agg(sf.max("age"), sf.count("name")),
    "no keys": lambda one, _: one.groupBy().agg({"age": "max", "name": "count"}),
    "inner": lambda one, other: one.join(other, "name"),
    "left": lambda one, other: one.join(other, ["name"], "left"),
    "full": lambda one, other: one.join(other, "name", "full_outer"),
    "semi": lambda one, other: one.join(other, "name", "left_semi"),
    "anti": lambda one, other: one.join(other, ["name"], "leftanti"),
    "drop": lambda one, _: one.drop("age", "unknown"),
    "drop nothing": lambda one, _: one.drop(),
    "drop a column of neither": lambda one, _: one.drop(sf.col("name"), sf.col("random")),
    "rename in a chain": lambda one, _: one.withColumnsRenamed({"age": "a", "a": "b"}),
    "rename out of order": lambda one, _: one.withColumnsRenamed({"a": "b", "age": "a"}),
    "toDF": lambda one, _: one.toDF("a", "b"),
    "dropDuplicates": lambda one, _: one.select("age").dropDuplicates(["age"]),
    "distinct": lambda one, _: one.union(one).distinct(),
    "repartition": lambda one, _: one.repartition(3, "name"),
    "range": lambda one, _: one.repartitionByRange(2, sf.col("age").desc()),
    "coalesce": lambda one, _: one.repartition(4).coalesce(2),
    "self join of a renaming": lambda one, _: one.join(one.withColumnRenamed("age", "old"), "name"),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_rows_are_those_of_pyspark_and_stay_in_python(pairs: Any, name: str) -> None:
    ours, plain = pairs
    found = IN_PYTHON[name](*ours)
    assert found._is_in_python
    assert rows(found) == rows(IN_PYTHON[name](*plain))


BY_SPARK: dict[str, Call] = {
    "pivot": lambda one, _: one.groupBy("age").pivot("name", ["Tom", "Bob"]).count(),
    "distinct counts": lambda one, _: one.groupBy().agg(
        sf.countDistinct("age"), sf.approx_count_distinct("name")
    ),
    "key of an expression": lambda one, _: one.groupBy((sf.col("age") % 2).alias("odd")).count(),
    "cube": lambda one, _: one.cube("age").count(),
    "cross join": lambda one, other: one.crossJoin(other),
    "joined columns by source": lambda one, other: one.join(other, one.name == other.name, "left").drop(
        other.name
    ),
    "drop an ambiguous name": lambda one, other: one.join(other, one.name == other.name).drop(
        "name", one.age
    ),
    "star of one side": lambda one, other: one.join(other).select(other["*"]).distinct(),
    "count of a star": lambda one, _: one.select(sf.count(one["*"])),
}


@pytest.mark.parametrize("name", BY_SPARK)
def test_what_python_leaves_to_spark_has_the_same_rows(pairs: Any, name: str) -> None:
    ours, plain = pairs
    found = BY_SPARK[name](*ours)
    assert not found._is_in_python
    assert rows(found) == rows(BY_SPARK[name](*plain))


WRONG: dict[str, tuple[type[Exception], Call]] = {
    "an ordinal of no column": (IndexError, lambda one, _: one.groupBy(3).count()),
    "a negative ordinal": (IndexError, lambda one, _: one.groupBy(-1).agg(sf.sum("age"))),
    "a sort by no column": (IndexError, lambda one, _: one.sort(0)),
    "a subset that is a text": (PySparkTypeError, lambda one, _: one.dropDuplicates("name")),
    "renamings that are a tuple": (PySparkTypeError, lambda one, _: one.withColumnsRenamed(("name", "x"))),
    "a name that is None": (PySparkTypeError, lambda one, _: one.toDF("key", None)),
    "no fraction": (PySparkTypeError, lambda one, _: one.sample()),
    "a negative fraction": (IllegalArgumentException, lambda one, _: one.sample(-1.0).count()),
    "a condition that is a number": (PySparkTypeError, lambda one, _: one.where(10)),
    "no kind of join": (
        PySparkException,
        lambda one, other: one.join(other, how="invalid-join-type"),
    ),
    "an unknown key": (AnalysisException, lambda one, other: one.join(other, "age")),
    "no partitions": (PySparkException, lambda one, _: one.repartition(0).count()),
    "partitions of a fraction": (PySparkTypeError, lambda one, _: one.repartition(1.5)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_raise_what_pyspark_raises(pairs: Any, name: str) -> None:
    expected, call = WRONG[name]
    found, plain = (error_of(lambda frames: call(*frames), frames) for frames in pairs)
    assert found == plain
    assert issubclass(found[0], expected)
