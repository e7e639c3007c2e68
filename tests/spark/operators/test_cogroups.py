"""`cogroup` against plain PySpark: the same groups of both frames, in the same partitions, seen and returned
the same way."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from function_cases import arrow_seen, batch, described, in_worker, pandas_seen
from oracle import OnlyPython, data_frame, differences, every_type
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import ColumnError, SchemaMismatchError, UsageError
from sortshuffle.spark.functions.cogrouped import CoGroupInArrow, CoGroupInPandas
from sortshuffle.spark.functions.conf import FunctionConf

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONF = FunctionConf(timezone="America/New_York")


@pytest.fixture(scope="module")
def left(spark: SparkSession) -> DataFrame:
    return data_frame(spark, every_type(1, 60)).persist()


@pytest.fixture(scope="module")
def right(spark: SparkSession) -> DataFrame:
    """Other rows, of which some have keys that the left ones have not, in another order of the columns."""
    table = every_type(2, 40)
    return data_frame(spark, table.select(sorted(table.column_names))).persist()


def applied(left: Any, right: Any, keys: list[str], method: str, function: Any, schema: str) -> Any:
    """The same call for frames of both kinds."""
    return getattr(left.groupBy(*keys).cogroup(right.groupBy(*keys)), method)(function, schema)


def assert_same(
    left: DataFrame, right: DataFrame, keys: list[str], method: str, function: Any, schema: str
) -> None:
    ours = applied(sortshuffle.frame(left), sortshuffle.frame(right), keys, method, function, schema)
    assert differences(ours, applied(left, right, keys, method, function, schema)) == []


# --- what functions are given ---------------------------------------------------------------------------


def see_arrow(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    sides = [arrow_seen(each.sort_by("id")) for each in (left, right)]
    return pa.table({"key": [str(described(key))], "left": [sides[0]], "right": [sides[1]]})


def see_pandas(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    sides = [pandas_seen(each.sort_values("id", ignore_index=True)) for each in (left, right)]
    return pd.DataFrame({"key": [str(described(key))], "left": [sides[0]], "right": [sides[1]]})


@pytest.mark.parametrize(
    ("keys", "method", "function"),
    [
        (["sh"], "applyInArrow", see_arrow),
        (["i"], "applyInPandas", see_pandas),
        (["st", "dl"], "applyInArrow", see_arrow),
        (["x", "iv", "bo"], "applyInPandas", see_pandas),
    ],
)
def test_groups_are_those_of_pyspark(
    left: DataFrame, right: DataFrame, keys: list[str], method: str, function: Any
) -> None:
    assert_same(left, right, keys, method, function, "key string, left string, right string")


def counted(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"left": [left.num_rows], "right": [right.num_rows]})


def counted_in_pandas(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"right": [len(right)], "left": [len(left)]})


def test_without_keys_all_rows_of_both_frames_are_one_group(left: DataFrame, right: DataFrame) -> None:
    assert_same(left, right, [], "applyInArrow", counted, "left long, right long")


def test_either_frame_may_be_empty(left: DataFrame, right: DataFrame) -> None:
    none = left.where("false")
    assert_same(none, right, ["sh"], "applyInPandas", counted_in_pandas, "left long, right long")
    assert_same(right, none, ["sh"], "applyInArrow", counted, "left long, right long")
    both = sortshuffle.frame(none)
    assert applied(both, both, ["sh"], "applyInArrow", counted, "left long, right long").count() == 0


def test_values_that_are_equal_meet_where_spark_fails(spark: SparkSession) -> None:
    """Spark fails on an assertion of its own if one side has both zeros."""
    sides = [
        spark.createDataFrame([(each,) for each in values], "k double")
        for values in ([-0.0, 0.0, float("nan"), None], [0.0, float("nan"), None])
    ]
    ours = applied(*map(sortshuffle.frame, sides), ["k"], "applyInArrow", counted, "left long, right long")
    assert sorted(ours.collect()) == [(1, 1), (1, 1), (2, 1)]


# --- where groups come from -------------------------------------------------------------------------------


def exchanges(frame: ShuffleFrame) -> int:
    return len(list(frame._chain.exchanges()))


def sums(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    ids = [sum(each["id"].to_pylist()) for each in (left, right)]
    return pa.table({"k": [key[0].as_py()], "ids": [ids[0] - ids[1]]})


def test_a_frame_that_is_placed_by_the_keys_stays_and_the_other_follows(spark: SparkSession) -> None:
    numbers = spark.range(0, 2000, 1, 3).select((sf.col("id") % 7).alias("k"), "id")
    others = spark.range(0, 300, 1, 2).select("id", (sf.col("id") % 9).alias("k"))
    placed = sortshuffle.frame(numbers).repartition(4, "k")
    other = sortshuffle.frame(others)
    schema = "k long, ids long"
    expected = sorted(applied(numbers, others, ["k"], "applyInArrow", sums, schema).collect())
    pairs = {
        "left placed": (placed, other, 2),
        "right placed": (other, placed, 2),
        "both placed alike": (placed, other.repartition(4, "k"), 2),
        "both placed otherwise": (placed, other.repartition(3, "k"), 3),
        "placed by another column": (placed, other.repartition(4, "id"), 3),
        "a selection behind": (placed.select("id", "k"), other, 2),
    }
    for case, (one, two, count) in pairs.items():
        ours = applied(one, two, ["k"], "applyInArrow", sums, schema)
        assert exchanges(ours) == count, case
        assert ours.toDF().rdd.getNumPartitions() == 4, case
        found = sorted(ours.collect())
        signs = -1 if case == "right placed" else 1
        assert [(row.k, signs * row.ids) for row in found] == [(row.k, row.ids) for row in expected], case


def test_some_of_the_keys_are_enough_to_stay(spark: SparkSession) -> None:
    numbers = spark.range(0, 500, 1, 3).select((sf.col("id") % 7).alias("k"), "id", sf.col("id").alias("j"))
    placed = sortshuffle.frame(numbers).repartition(4, "k")
    # the same positions among the keys are different columns
    ours = (
        placed.groupBy("j", "k")
        .cogroup(placed.groupBy("j", "k"))
        .applyInArrow(counted, "left long, right long")
    )
    assert exchanges(ours) == 1
    assert ours.count() == 500
    crossed = (
        placed.groupBy("j", "k")
        .cogroup(placed.groupBy("k", "j"))
        .applyInArrow(counted, "left long, right long")
    )
    assert exchanges(crossed) == 2
    plain = (
        numbers.groupBy("j", "k")
        .cogroup(numbers.groupBy("k", "j"))
        .applyInArrow(counted, "left long, right long")
    )
    assert sorted(crossed.collect()) == sorted(plain.collect())


def doubled(batches: Any) -> Any:
    for each in batches:
        yield each
        yield each


def test_functions_are_chained_before_and_behind(spark: SparkSession) -> None:
    numbers = spark.range(0, 500, 1, 3).select((sf.col("id") % 7).alias("k"), "id")
    schema = "k long, ids long"

    def job(frame: Any) -> Any:
        both = applied(
            frame.mapInArrow(doubled, "k long, id long"), frame, ["k"], "applyInArrow", sums, schema
        )
        return both.mapInArrow(doubled, schema).groupBy("k").applyInArrow(lambda table: table, schema)

    ours = job(sortshuffle.frame(numbers))
    assert differences(ours, job(numbers)) == []
    assert "cogroup(k with k).applyInArrow(sums)" in str(
        ours._chain.origin.exchanges()[0].upstream.origin.lines()
    )


# --- errors -----------------------------------------------------------------------------------------------


def test_sides_without_common_keys_are_refused(spark: SparkSession, left: DataFrame) -> None:
    schema = "left long, right long"
    frame = OnlyPython(sortshuffle.frame(left))
    with pytest.raises(UsageError, match="the same number of keys, not 2 and 1"):
        frame.groupBy("i", "lo").cogroup(frame.groupBy("i"), counted, schema)
    for each in (sortshuffle.frame(left), left):
        with pytest.raises(PySparkException, match="must have same size: 2 != 1"):
            each.groupBy("i", "lo").cogroup(each.groupBy("i")).applyInArrow(counted, schema)
    for one, two in (("i", "lo"), ("ts", "nt"), ("f", "d"), ("st", "bi"), ("x", "xx"), ("ds", "dl")):
        with pytest.raises(ColumnError, match=f"{one} is .* and {two} .*Cast one"):
            frame.groupBy(one).cogroup(frame.groupBy(two), counted, schema)


def test_groups_that_are_not_python_s_are_cogrouped_by_spark(spark: SparkSession) -> None:
    schema = "k long, ids long"
    numbers = spark.range(0, 500, 1, 3).select((sf.col("id") % 7).alias("k"), "id")
    expected = sorted(applied(numbers, numbers, ["k"], "applyInArrow", sums, schema).collect())
    frame = sortshuffle.frame(numbers)
    key = sf.col("k") + 0
    ordinary, expressions = (
        frame.groupBy("k").cogroup(numbers.groupBy("k")).applyInArrow(sums, schema),
        frame.groupBy(key).cogroup(frame.groupBy(key)).applyInArrow(sums, schema),
    )
    for ours in (ordinary, expressions):
        assert ours._own_rows is None
        assert [(each.operator, each.to) for each in ours._crossings] == [("cogroup", "Spark")]
        assert sorted(ours.collect()) == expected


def test_errors_of_functions_come_with_their_frames(left: DataFrame) -> None:
    def failing(left: pa.Table, right: pa.Table) -> pa.Table:
        raise ZeroDivisionError("by the user")

    frame = sortshuffle.frame(left)
    with pytest.raises(PySparkException, match=r"(?s)in failing.*ZeroDivisionError: by the user") as caught:
        applied(frame, frame, ["by"], "applyInArrow", failing, "a long").collect()
    assert "in cogroup" not in str(caught.value)


def results_of(adaptor: Any, function: Any, schema: str) -> list[dict[str, Any]]:
    made = in_worker(adaptor.of(function, schema, CONF, [0], [0]))
    there = pa.table({"k": [1], "s": ["x"]})
    groups = [(there, there.slice(1)), (there.slice(1), there)]
    return [row for part in made(iter(groups)) for row in part.to_pylist()]


@pytest.mark.parametrize(
    ("adaptor", "function", "says"),
    [
        (CoGroupInArrow, lambda a, b: None, "should be pyarrow.Table, but is NoneType."),
        (CoGroupInArrow, lambda a, b: batch(a=[1]), "pyarrow.Table, but is RecordBatch"),
        (CoGroupInArrow, lambda a, b: pa.table({"b": [1]}), "Missing: a. Unexpected: b"),
        (CoGroupInArrow, lambda k, a, b: pa.table({"a": [1.0]}), "int64, actual double"),
        (CoGroupInPandas, lambda a, b: a["k"], "pandas.DataFrame, but is Series"),
        (CoGroupInPandas, lambda a, b: a, "Missing: a. Unexpected: k, s"),
        (CoGroupInPandas, lambda k, a, b: pd.DataFrame({"a": ["x"]}), "'a'.*int64"),
    ],
)
def test_results_must_be_as_declared(spark: SparkSession, adaptor: Any, function: Any, says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=rf"(?s)cogroup\(\)\.applyIn.*\(<lambda>\).*{says}"):
        results_of(adaptor, function, "a long")


@pytest.mark.parametrize("adaptor", [CoGroupInArrow, CoGroupInPandas])
def test_the_key_is_of_the_side_that_has_rows(spark: SparkSession, adaptor: Any) -> None:
    def function(key: tuple[Any, ...], left: Any, right: Any) -> Any:
        made = pa.table if adaptor is CoGroupInArrow else pd.DataFrame
        return made({"a": [int(str(key[0]))], "b": [len(left)]})

    assert results_of(adaptor, function, "a long, b long") == [{"a": 1, "b": 1}, {"a": 1, "b": 0}]


def test_a_returned_table_of_nothing_is_nothing(spark: SparkSession) -> None:
    assert results_of(CoGroupInArrow, lambda a, b: pa.table({}), "a long") == []
    assert results_of(CoGroupInPandas, lambda a, b: pd.DataFrame(), "a long") == []
