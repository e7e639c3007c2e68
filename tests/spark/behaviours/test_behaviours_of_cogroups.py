"""Functions of the groups of two frames."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import confs
from pyspark import cloudpickle
from pyspark.errors import IllegalArgumentException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MERGED = "id long, k int, v int, w int"


@pytest.fixture(scope="module")
def left(job: SparkSession) -> DataFrame:
    return job.range(12).selectExpr("id % 4 as id", "cast(id as int) k", "cast(id * 10 as int) v")


@pytest.fixture(scope="module")
def right(job: SparkSession) -> DataFrame:
    return job.range(12).selectExpr("id % 4 as id", "cast(id as int) k", "cast(id * 100 as int) w")


def merge(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return pd.merge(one, other, on=["id", "k"])


def merge_of_key(key: tuple[Any, ...], one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    assert set(one.id) | set(other.id) == set(key)
    return merge(one, other)


def rows(numbers: Any) -> list[tuple[int, ...]]:
    return sorted((number % 4, number, number * 10, number * 100) for number in numbers)


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    assert getattr(frame, "_is_in_python", False), "the rows left Python"
    return sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize("function", [merge, merge_of_key], ids=["without key", "with key"])
@pytest.mark.parametrize("empty", ["none", "left", "right"])
def test_groups_of_equal_keys_meet(left: DataFrame, right: DataFrame, function: Any, empty: str) -> None:
    one = left.where("id % 2 = 0") if empty == "left" else left
    other = right.where("id % 2 = 0") if empty == "right" else right
    frame = one.groupBy("id").cogroup(other.groupBy("id")).applyInPandas(function, MERGED)
    assert values(frame) == rows(range(12) if empty == "none" else range(0, 12, 2))


def test_few_groups_come_in_the_order_of_their_keys(left: DataFrame, right: DataFrame) -> None:
    frame = left.groupBy("id").cogroup(right.groupBy("id")).applyInPandas(merge, MERGED)
    assert [row.id for row in frame.collect()] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]  # as in PySpark
    assert getattr(frame, "_is_in_python", False)


def test_without_keys_there_is_one_pair(left: DataFrame, right: DataFrame) -> None:
    assert values(left.groupBy().cogroup(right.groupBy()).applyInPandas(merge, MERGED)) == rows(range(12))


def test_keys_may_have_other_names(left: DataFrame, right: DataFrame) -> None:
    renamed = left.withColumnRenamed("id", "number")
    frame = (
        renamed.groupBy("number")
        .cogroup(right.groupBy("id"))
        .applyInPandas(lambda one, other: merge(one.rename(columns={"number": "id"}), other), MERGED)
    )
    assert values(frame) == rows(range(12))


def test_keys_may_be_expressions(left: DataFrame, right: DataFrame) -> None:
    even = sf.col("id") % 2 == 0
    frame = (
        left.groupBy(even)
        .cogroup(right.groupBy(even))
        .applyInPandas(
            lambda key, one, other: one.assign(even=key[0])[["id", "even"]], "id long, even boolean"
        )
    )
    assert sorted(map(tuple, frame.collect())) == sorted((n % 4, n % 2 == 0) for n in range(12))


def test_different_numbers_of_keys_are_refused(left: DataFrame, right: DataFrame) -> None:
    groups = left.groupBy("id", "k").cogroup(right.groupBy("id"))
    with pytest.raises(IllegalArgumentException, match="Cogroup keys must have same size: 2 != 1"):
        groups.applyInPandas(lambda one, _: one, "id long, k int, v int").count()


def no_names(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return merge(one, other).set_axis([0, 1, 2, 3], axis=1)


def test_frames_without_names_are_taken_by_position(left: DataFrame, right: DataFrame) -> None:
    frame = left.groupBy("id").cogroup(right.groupBy("id")).applyInPandas(no_names, MERGED)
    assert values(frame) == rows(range(12))


@pytest.mark.parametrize(
    ("method", "result", "schema", "words"),
    [
        ("applyInPandas", lambda one, _: one.size, MERGED, "should be pandas.DataFrame, but is int"),
        (
            "applyInPandas",
            lambda one, other: merge(one, other).assign(more=1),
            MERGED,
            "schema. Unexpected: more.\n",
        ),
        (
            "applyInPandas",
            lambda one, _: pd.DataFrame([[1, 2.0]]),
            "id long, k string",
            "TypeError: Cannot convert the output value",
        ),
        ("applyInArrow", lambda key, one, _: key, "id long", "should be pyarrow.Table, but is tuple"),
        ("applyInArrow", lambda one, _: one, "id long, m int, v int", "schema. Missing: m. Unexpected: k.\n"),
        (
            "applyInArrow",
            lambda one, _: one,
            "id int, k int, v long",
            "(expected int32, actual int64), column 'v' (expected int64",
        ),
    ],
)
def test_what_is_said_of_wrong_results(
    left: DataFrame, right: DataFrame, method: str, result: Any, schema: str, words: str
) -> None:
    groups = left.groupBy("id").cogroup(right.groupBy("id"))
    with pytest.raises(PythonException) as raised:
        getattr(groups, method)(result, schema).collect()
    assert words in str(raised.value)


def sums(key: tuple[pa.Scalar, ...], one: pa.Table, other: pa.Table) -> pa.Table:
    assert all(isinstance(each, pa.Scalar) for each in key)
    if key[0].as_py() == 0:
        return pa.table([])
    return pa.table({"w": [pc.sum(other["w"]).as_py()], "v": [pc.sum(one["v"]).as_py()]})


def test_tables_are_assigned_by_name_or_by_position(
    left: DataFrame, right: DataFrame, spark: SparkSession
) -> None:
    groups = left.groupBy("id").cogroup(right.groupBy("id"))
    assert values(groups.applyInArrow(sums, "v long, w long")) == [(150, 1500), (180, 1800), (210, 2100)]
    with confs(spark, {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"}):
        assert values(groups.applyInArrow(sums, "v long, w long")) == [(1500, 150), (1800, 180), (2100, 210)]


def test_a_result_is_paired_with_itself(job: SparkSession) -> None:
    frame = job.createDataFrame([(1, 1)], "k long, v long")
    paired = (
        frame.groupBy("k")
        .cogroup(frame.groupBy("K"))
        .applyInPandas(lambda one, other: one + other, frame.schema)
    )
    assert [tuple(row) for row in paired.join(paired).collect()] == [(2, 2, 2, 2)]


def test_one_side_may_come_from_a_window(left: DataFrame, right: DataFrame) -> None:
    ranked = right.selectExpr("id", "k", "cast(sum(w) over (partition by k, id) as int) w")
    frame = left.groupBy("id", "k").cogroup(ranked.groupBy("id", "k")).applyInPandas(merge, MERGED)
    assert values(frame) == rows(range(12))
