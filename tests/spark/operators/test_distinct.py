"""`distinct` and `dropDuplicates` against plain PySpark: the same rows in the same partitions, for columns of
every type, with the first row of each kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from oracle import (
    GROUP_KEYS,
    OnlyPython,
    assert_handed_to_spark,
    confs,
    data_frame,
    differences,
    every_type,
    partition_count,
    rows_in_order,
)
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession

import sortshuffle
from sortshuffle.errors import ColumnError

KEYS = [tuple(GROUP_KEYS[at : at + 4]) for at in range(0, len(GROUP_KEYS), 4)]


@pytest.fixture(scope="module")
def typed(spark: SparkSession) -> DataFrame:
    """1500 rows with a column of every type."""
    return data_frame(spark, every_type(seed=31, rows=1500))


@pytest.mark.parametrize("columns", KEYS, ids="-".join)
def test_different_rows_of_every_type_are_sparks(typed: DataFrame, columns: tuple[str, ...]) -> None:
    def job(frame: Any) -> Any:
        return frame.select(*columns).distinct()

    assert differences(job(sortshuffle.frame(typed)), job(typed)) == []


def test_the_first_row_of_each_key_is_kept_whole_as_spark_keeps_it(typed: DataFrame) -> None:
    one = typed.coalesce(1)
    for subset in (["d", "bo"], ["ST"], ("by", "by", "da")):
        ours = rows_in_order(sortshuffle.frame(one).dropDuplicates(subset=subset))
        plain = rows_in_order(one.dropDuplicates(subset))
        # of one partition Spark makes no exchange: the places differ
        assert sorted(row.split(": ", 1)[1] for row in ours) == sorted(row.split(": ", 1)[1] for row in plain)


def test_no_columns_named_are_all_of_them(typed: DataFrame) -> None:
    plain = typed.select("bo", "by")
    ours = sortshuffle.frame(typed).select("bo", "by")
    expected = sorted(rows_in_order(plain.distinct()))
    assert sorted(rows_in_order(ours.dropDuplicates())) == expected
    assert sorted(rows_in_order(ours.drop_duplicates())) == expected


def test_an_empty_list_of_columns_keeps_one_row_as_in_spark(typed: DataFrame) -> None:
    for df in (typed, typed.where("id < 0")):
        count = df.dropDuplicates([]).count()
        assert sortshuffle.frame(df).dropDuplicates([]).count() == count


def test_rows_that_are_placed_by_a_column_are_not_exchanged_again(spark: SparkSession) -> None:
    df = spark.range(0, 1000, 1, 4).selectExpr("id % 10 as k", "id % 30 as j")
    ours = sortshuffle.frame(df).repartition(3, "k").distinct()
    assert len(list(ours._chain.exchanges())) == 1
    assert partition_count(ours) == 3
    assert differences(ours, df.repartition(3, "k").distinct()) == []
    again = ours.groupBy("k").count()
    assert len(list(again._chain.exchanges())) == 1
    assert sorted(map(tuple, again.collect())) == [(k, 3) for k in range(10)]


def test_more_different_rows_than_fit_into_memory_are_sparks(spark: SparkSession) -> None:
    random = np.random.default_rng(6)
    texts = [f"{each:040d}" for each in random.integers(0, 30_000, 60_000)]
    df = data_frame(spark, pa.table({"s": texts, "k": random.integers(0, 2, 60_000)}))
    with confs(spark, {"spark.sortshuffle.memory": "1m", "spark.sortshuffle.read.memory": "1m"}):
        ours = sortshuffle.frame(df).distinct()
    assert differences(ours, df.distinct()) == []


def test_what_spark_refuses_and_what_has_no_order_here_are_refused(typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    for each in (frame, typed):
        with pytest.raises(AnalysisException):
            each.distinct()  # it has a map
        with pytest.raises(AnalysisException):
            each.dropDuplicates(["nope"])
        with pytest.raises(PySparkTypeError):
            each.dropDuplicates("bo")
    with pytest.raises(ColumnError, match=r"dropDuplicates\(bo, a\): .* make a column of a plain type"):
        OnlyPython(frame).dropDuplicates(["bo", "a"])
    ours, plain = (each.select("bo", "a") for each in (frame, typed))
    assert_handed_to_spark(ours.distinct(), plain.distinct(), "distinct")
    assert_handed_to_spark(
        ours.dropDuplicates(["bo", "a"]), plain.dropDuplicates(["bo", "a"]), "dropDuplicates"
    )
