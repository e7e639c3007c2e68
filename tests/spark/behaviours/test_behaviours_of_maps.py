"""Functions of partitions: the batches they get, and what they may yield."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from oracle import confs
from pyspark import BarrierTaskContext, TaskContext, cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ARROW = "spark.sql.execution.arrow"
NAMED = [(1, "foo"), (2, None), (3, "bar"), (4, "bar")]


def same_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        yield batch


def same_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        assert list(map(str, frame.dtypes)) == ["int32", "object"]
        yield frame


def numbered_columns(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.set_axis(range(frame.shape[1]), axis=1)


def and_an_empty_one(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames
    yield pd.DataFrame()


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    assert getattr(frame, "_is_in_python", False), "the rows left Python"
    return [tuple(row) for row in frame.collect()]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {f"{ARROW}.maxRecordsPerBatch": "0"},
        {f"{ARROW}.maxRecordsPerBatch": "-1"},
        {f"{ARROW}.maxRecordsPerBatch": "3", f"{ARROW}.maxBytesPerBatch": "10"},
        {f"{ARROW}.maxRecordsPerBatch": "10", f"{ARROW}.maxRecordsPerOutputBatch": "3"},
    ],
    ids=["as it is", "no rows", "no limit", "few bytes", "small outputs"],
)
def test_rows_come_back_in_order_whatever_batches_hold(
    job: SparkSession, spark: SparkSession, settings: dict[str, str]
) -> None:
    with confs(spark, settings):
        frame = job.createDataFrame(NAMED, "a int, b string")
        for method, function in (
            ("mapInArrow", same_batches),
            ("mapInPandas", same_frames),
            ("mapInPandas", numbered_columns),
            ("mapInPandas", and_an_empty_one),
        ):
            once = getattr(frame, method)(function, frame.schema)
            assert values(once) == NAMED
            assert values(getattr(once, method)(function, frame.schema)) == NAMED


def test_a_partition_may_become_more_rows_or_none(job: SparkSession) -> None:
    one = job.range(10).repartition(1)
    hundred = one.mapInArrow(lambda batches: (pa.record_batch({"a": range(100)}) for _ in batches), "a long")
    assert values(hundred) == [(number,) for number in range(100)]
    assert values(one.mapInPandas(lambda _: iter(()), "a int, b string")) == []
    assert values(one.mapInPandas(lambda _: iter([pd.DataFrame({"a": []})]), "a int")) == []


def renamed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (frame.rename(columns={"id": "iid"}) for frame in frames)


def renamed_to_another(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (frame.rename(columns={"value": "id"}) for frame in frames)


def text_ids(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (frame.assign(id="x") for frame in frames)


@pytest.mark.parametrize(
    ("method", "function", "schema", "words"),
    [
        ("mapInArrow", lambda _: 1, "a int", "iterator of pyarrow.RecordBatch, but is int."),
        (
            "mapInArrow",
            lambda _: iter([1]),
            "a int",
            "iterator of pyarrow.RecordBatch, but is iterator of int.",
        ),
        ("mapInPandas", lambda _: 1, "a int", "iterator of pandas.DataFrame, but is int."),
        (
            "mapInPandas",
            lambda _: iter([1]),
            "a int",
            "iterator of pandas.DataFrame, but is iterator of int.",
        ),
        ("mapInPandas", renamed, "id int, value int", "Missing: id. Unexpected: iid.\n"),
        ("mapInPandas", renamed_to_another, "id int, value int", "Missing: value.\n"),
        ("mapInPandas", numbered_columns, "id int, v int, w int", "Expected: 3 Actual: 2\n"),
        (
            "mapInPandas",
            text_ids,
            "id double, value int",
            "ValueError: Failed to convert the value of the column 'id'",
        ),
    ],
)
def test_what_is_said_of_wrong_results(
    job: SparkSession, method: str, function: Any, schema: str, words: str
) -> None:
    frame = getattr(job.range(10, numPartitions=2).withColumn("value", sf.lit(0)), method)(function, schema)
    with pytest.raises(PythonException) as raised:
        frame.collect()
    assert words in str(raised.value)


@pytest.mark.parametrize("barrier", [False, True])
def test_a_function_sees_its_task(job: SparkSession, barrier: bool) -> None:
    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        assert isinstance(context, BarrierTaskContext) == barrier
        yield from batches

    frame = job.range(10, numPartitions=2).mapInArrow(check, "id long", barrier)
    assert [row.id for row in frame.collect()] == list(range(10))


def test_a_result_is_joined_with_itself(job: SparkSession) -> None:
    mapped = job.range(4).mapInArrow(same_batches, "id long")
    pairs = [(one, other) for one in range(4) for other in range(4)]
    assert sorted(tuple(row) for row in mapped.join(mapped).collect()) == pairs
