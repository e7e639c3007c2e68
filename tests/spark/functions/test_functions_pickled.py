"""A function is what it was at the call, whatever happens to what it refers to before the rows are needed."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from sortshuffle.spark.functions.pickled import PickledFunction

Call = Callable[[DataFrame, dict[str, int]], DataFrame]


def mapped(rows: DataFrame, settings: dict[str, int]) -> DataFrame:
    return rows.mapInPandas(lambda frames: (frame * settings["factor"] for frame in frames), "id long")


def mapped_in_arrow(rows: DataFrame, settings: dict[str, int]) -> DataFrame:
    def multiplied(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.from_pandas(batch.to_pandas() * settings["factor"])

    return rows.mapInArrow(multiplied, "id long")


def grouped(rows: DataFrame, settings: dict[str, int]) -> DataFrame:
    return rows.groupBy("id").applyInPandas(lambda group: group * settings["factor"], "id long")


def cogrouped(rows: DataFrame, settings: dict[str, int]) -> DataFrame:
    pairs = rows.groupBy("id").cogroup(rows.groupBy("id"))
    return pairs.applyInPandas(lambda left, right: left * settings["factor"], "id long")


CALLS: dict[str, Call] = {
    "mapInPandas": mapped,
    "mapInArrow": mapped_in_arrow,
    "applyInPandas": grouped,
    "cogroup": cogrouped,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_a_function_refers_to_may_change(job: SparkSession, spark: SparkSession, call: Call) -> None:
    settings = {"factor": 2}
    ours, plain = call(job.range(3), settings), call(spark.range(3), settings)
    for factor in (100, 7):
        settings["factor"] = factor
        assert sorted(ours.collect()) == sorted(plain.collect()) == [(0,), (2,), (4,)]


def test_each_function_of_a_loop_has_its_own_variable(job: SparkSession) -> None:
    united = job.range(0).selectExpr("id", "'' as name")
    for name in ("a", "b"):
        named = job.range(2).mapInPandas(
            lambda frames: (frame.assign(name=name) for frame in frames),  # noqa: B023
            "id long, name string",
        )
        united = united.union(named)
    assert sorted(united.collect()) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_what_cannot_be_pickled_fails_at_the_call_as_in_pyspark(
    job: SparkSession, spark: SparkSession
) -> None:
    lock = threading.Lock()

    def locked(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with lock:
            yield from frames

    for session in (job, spark):
        with pytest.raises(pickle.PicklingError):
            session.range(1).mapInPandas(locked, "id long")


def test_broadcast_variables_and_accumulators_reach_every_stage(job: SparkSession) -> None:
    offsets, rows = job.sparkContext.broadcast([10]), job.sparkContext.accumulator(0)

    def moved(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            rows.add(len(frame))
            yield frame + offsets.value[0]

    first = job.range(3).mapInPandas(moved, "id long")
    second = first.repartition(2, "id").mapInPandas(moved, "id long")
    assert sorted(second.collect()) == [(20,), (21,), (22,)]
    assert rows.value == 6
    assert sorted(first.filter("id > 10").collect()) == [(11,), (12,)]


def test_pickling_a_function_leaves_the_broadcast_variables_of_the_thread(spark: SparkSession) -> None:
    sc = spark.sparkContext
    one, other = sc.broadcast(1), sc.broadcast(2)
    registry: Any = sc._pickled_broadcast_vars
    registry.clear()
    registry.add(one)
    try:
        pickled = PickledFunction.of(lambda: other.value)
        assert list(registry) == [one]
        cloudpickle.dumps(pickled)  # as with a stage
        assert set(registry) == {one, other}
    finally:
        registry.clear()


def test_workers_get_the_function_itself() -> None:
    sent = cloudpickle.loads(cloudpickle.dumps(PickledFunction.of(lambda number: number + 1)))
    assert not isinstance(sent, PickledFunction)
    assert sent(1) == 2
