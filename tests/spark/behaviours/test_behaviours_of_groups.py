"""Functions of groups: what they get, what they may return, and what is said of wrong results."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import confs
from pyspark import cloudpickle
from pyspark.errors import PySparkValueError, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BY_POSITION = {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"}
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(scope="module")
def scores(job: SparkSession) -> DataFrame:
    """Six rows of each of the ids 0 to 3: v counts from 10 * id."""
    return job.range(24).select(
        (sf.col("id") % 4).alias("id"), (sf.col("id") % 4 * 10 + sf.col("id") / 4).cast("int").alias("v")
    )


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    assert getattr(frame, "_is_in_python", False), "the rows left Python"
    return sorted(map(tuple, frame.collect()))


def refused(frame: Callable[[], DataFrame]) -> str:
    with pytest.raises(PythonException) as raised:
        frame().collect()
    return str(raised.value)


# ---- Arrow ------------------------------------------------------------------------------------------------


def spread(table: pa.Table) -> pa.Table:
    assert isinstance(table, pa.Table)
    assert table.schema.names == ["id", "v"]
    return pa.table({"id": table["id"][:1], "n": [pc.max(table["v"]).as_py() - pc.min(table["v"]).as_py()]})


def spread_of_key(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    assert isinstance(key[0], pa.Int64Scalar)
    assert set(table["id"].to_pylist()) == {key[0].as_py()}
    return spread(table)


def spread_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from spread(pa.Table.from_batches(list(batches))).to_batches()


def spread_of_key_and_batches(
    key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    yield from spread_of_key(key, pa.Table.from_batches(list(batches))).to_batches()


@pytest.mark.parametrize("batch", ["2", "-1"])
@pytest.mark.parametrize(
    "function",
    [spread, spread_of_key, spread_of_batches, spread_of_key_and_batches],
    ids=lambda each: each.__name__,
)
def test_a_group_comes_whole_in_all_forms(
    scores: DataFrame, spark: SparkSession, function: Any, batch: str
) -> None:
    with confs(spark, {BATCH: batch}):
        frame = scores.groupBy("id").applyInArrow(function, "id long, n long")
        assert values(frame) == [(0, 5), (1, 5), (2, 5), (3, 5)]


def first_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(batches)


def test_a_function_need_not_read_all_parts_of_a_group(scores: DataFrame, spark: SparkSession) -> None:
    with confs(spark, {BATCH: "2"}):
        found = values(scores.groupBy("id").applyInArrow(first_part, "id long, v int"))
    assert [key for key, _ in found] == [0, 0, 1, 1, 2, 2, 3, 3]


def odd_alone(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    return pa.table([]) if key[0].as_py() % 2 == 0 else table


def odd_or_nameless(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    return pa.table({"id": pa.array([], pa.int64())}) if key[0].as_py() % 2 == 0 else table


def backwards(table: pa.Table) -> pa.Table:
    return table.select(["v", "id"])


def test_an_empty_table_needs_no_columns_but_no_wrong_ones_either(scores: DataFrame) -> None:
    found = values(scores.groupBy("id").applyInArrow(odd_alone, "id long, v int"))
    assert {key for key, _ in found} == {1, 3}
    assert len(found) == 12
    message = refused(lambda: scores.groupBy("id").applyInArrow(odd_or_nameless, "id long, v int"))
    assert "do not match specified schema. Missing: v.\n" in message


def test_columns_are_found_by_name_or_by_position(scores: DataFrame, spark: SparkSession) -> None:
    first = scores.limit(1)
    assert values(first.groupBy("id").applyInArrow(backwards, "id long, v int")) == [(0, 0)]
    with confs(spark, BY_POSITION):
        assert values(first.groupBy("id").applyInArrow(backwards, "a int, b long")) == [(0, 0)]
        message = refused(lambda: first.groupBy("id").applyInArrow(backwards, "a int"))
        assert "Expected: 1 Actual: 2\n" in message


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ("id int, v int", "column 'id' (expected int32, actual int64)"),
        (
            "id int, v long",
            "column 'id' (expected int32, actual int64), column 'v' (expected int64, actual int32)",
        ),
        ("id long, v string", "column 'v' (expected string, actual int32)"),
    ],
)
def test_wrong_types_are_all_named(scores: DataFrame, schema: str, wrong: str) -> None:
    message = refused(lambda: scores.groupBy("id").applyInArrow(lambda table: table, schema))
    assert f"data do not match specified schema. Mismatch: {wrong}.\n" in message


def test_the_whole_frame_is_one_group_without_keys(scores: DataFrame) -> None:
    counted = scores.groupBy().applyInArrow(
        lambda key, table: pa.table({"n": [table.num_rows + len(key)]}), "n long"
    )
    assert values(counted) == [(24,)]


def test_large_types_reach_the_function(job: SparkSession, spark: SparkSession) -> None:
    def check(table: pa.Table) -> pa.Table:
        assert table.schema.types == [pa.int64(), pa.large_string(), pa.large_binary()]
        return table

    rows = [(0, "a", b"a"), (1, "b", b"")]
    with confs(spark, {"spark.sql.execution.arrow.useLargeVarTypes": "true"}):
        frame = job.createDataFrame(rows, "id long, s string, b binary")
        assert values(frame.groupBy("id").applyInArrow(check, "id long, s string, b binary")) == rows


# ---- pandas -----------------------------------------------------------------------------------------------


def mean_first(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
    assert type(key[0]) is np.int64
    return pd.DataFrame({"mean": [group.v.mean()], "id": key})


def without_names(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([(*key, group.v.mean())])


def names_sometimes(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
    return mean_first(key, group) if key[0] % 2 else without_names(key, group)


MEANS = [(0, 2.5), (1, 12.5), (2, 22.5), (3, 32.5)]


@pytest.mark.parametrize(
    "function", [mean_first, without_names, names_sometimes], ids=lambda each: each.__name__
)
def test_a_frame_may_have_names_or_not(scores: DataFrame, function: Any) -> None:
    assert values(scores.groupBy("id").applyInPandas(function, "id long, mean double")) == MEANS


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda key, group: key, "should be pandas.DataFrame, but is tuple."),
        (
            lambda key, group: pd.DataFrame({"id": key, "median": 1.0, "std": 1.0}),
            "Missing: mean. Unexpected: median, std.\n",
        ),
        (lambda key, group: pd.DataFrame([(*key, 1.0, 2.0)]), "Expected: 2 Actual: 3\n"),
        (
            lambda key, group: pd.DataFrame([(*key, "text")]),
            "ValueError: Failed to convert the value of the column 'mean'",
        ),
    ],
    ids=["no frame", "other names", "more columns", "text for a double"],
)
def test_what_is_said_of_wrong_frames(scores: DataFrame, result: Any, words: str) -> None:
    assert words in refused(lambda: scores.groupBy("id").applyInPandas(result, "id long, mean double"))


def test_empty_frames_are_no_rows(scores: DataFrame) -> None:
    frame = scores.groupBy("id").applyInPandas(
        lambda key, group: mean_first(key, group) if key[0] % 2 else pd.DataFrame(), "id long, mean double"
    )
    assert values(frame) == MEANS[1::2]


def test_integers_become_decimals_if_the_session_says_so(scores: DataFrame, spark: SparkSession) -> None:
    def make() -> DataFrame:
        return scores.groupBy("id").applyInPandas(
            lambda key, _: pd.DataFrame({"d": [int(key[0])]}), "d decimal(10,2)"
        )

    setting = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
    with confs(spark, {setting: "true"}):
        assert values(make()) == [(Decimal(number),) for number in range(4)]
    with confs(spark, {setting: "false"}):
        refused(make)


@pytest.mark.parametrize("kind", ["int", "long", "float", "double"])
def test_texts_become_numbers(scores: DataFrame, kind: str) -> None:
    frame = scores.groupBy("id").applyInPandas(lambda _: pd.DataFrame({"n": ["123"]}), f"n {kind}")
    assert values(frame) == [(123,)] * 4


def test_an_hour_that_comes_twice_comes_back(job: SparkSession) -> None:
    times = [(datetime.datetime(2015, 11, 1, hour, 30),) for hour in range(3)]
    frame = job.createDataFrame(times, "time timestamp")
    assert values(frame.groupBy("time").applyInPandas(lambda group: group, "time timestamp")) == times


def test_keys_may_be_spelt_in_other_cases(job: SparkSession) -> None:
    frame = job.createDataFrame([(1, 1)], "column long, score long")
    added = frame.groupBy("COLUMN").applyInPandas(lambda group: group + 1, frame.schema)
    assert [tuple(row) for row in added.collect()] == [(2, 2)]


def test_a_window_as_a_key_is_a_dict(job: SparkSession) -> None:
    days = job.createDataFrame([(day, f"2018-03-{day}") for day in (10, 11, 15, 21)], "id long, day string")
    timed = days.select("id", sf.to_timestamp("day").alias("ts"))
    starts = timed.groupBy(sf.window("ts", "5 days")).applyInPandas(
        lambda key, group: pd.DataFrame({"day": [key[0]["start"].day], "n": [len(group)]}), "day long, n long"
    )
    assert sorted(row.n for row in starts.collect()) == [1, 1, 2]


@pytest.mark.parametrize("method", ["applyInPandas", "applyInArrow"])
@pytest.mark.parametrize("cogrouped", [False, True], ids=["grouped", "cogrouped"])
def test_a_function_without_parameters_is_refused_at_once(
    scores: DataFrame, method: str, cogrouped: bool
) -> None:
    groups: Any = scores.groupBy("id").cogroup(scores.groupBy("id")) if cogrouped else scores.groupBy("id")
    with pytest.raises(PySparkValueError, match="INVALID_PANDAS_UDF"):
        getattr(groups, method)(lambda: 1, "d double")


def test_a_result_is_joined_with_itself(job: SparkSession) -> None:
    frame = job.createDataFrame([(1, "A"), (1, "B"), (2, "C")], "key long, col string")
    grouped = frame.groupBy("key").applyInPandas(lambda group: group, frame.schema)
    one, other = grouped.alias("one"), grouped.alias("other")
    assert one.join(other, sf.col("one.key") == sf.col("other.key")).count() == 5
