"""What a frame is made of: chains, exchanges and origins, and how they are put into Spark's plan.

What can be seen without running is looked at on the plan itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import confs, jobs
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.origins import ExchangeOrigin
from sortshuffle.spark.plan.schemes import Hash
from sortshuffle.spark.session.classic_planner import ClassicPlanner
from sortshuffle.spark.session.requirements import QUERY_ROLLBACK, ROLLBACK
from sortshuffle.spark.worker.placements import HashPlacement, RoundRobinPlacement

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """100 rows in 4 partitions: ``id`` and keys ``k`` of 7 values and ``j`` of 3."""
    return spark.range(0, 100, 1, 4).selectExpr("id", "id % 7 as k", "id % 3 as j")


@pytest.fixture
def placed(numbers: DataFrame) -> ShuffleFrame:
    return sortshuffle.frame(numbers).repartition(3, "k")


def same(batches: Batches) -> Batches:
    yield from batches


def whole(table: pa.Table) -> pa.Table:
    return table


def origin_of(frame: ShuffleFrame) -> ExchangeOrigin:
    origin = frame._chain.origin
    assert isinstance(origin, ExchangeOrigin)
    return origin


def exchange_of(frame: ShuffleFrame) -> Exchange:
    return origin_of(frame).exchange


# --- exchanges and their order --------------------------------------------------------------------------


def test_a_group_gives_its_order_to_an_exchange_that_is_not_built(placed: ShuffleFrame) -> None:
    by_k = placed.groupBy("k").applyInArrow(whole, placed.schema)
    assert exchange_of(by_k) is exchange_of(placed)
    assert exchange_of(placed).order == RowOrder((1,))
    assert origin_of(by_k).order == RowOrder((1,))
    assert origin_of(placed).order is None

    by_k_and_j = placed.groupBy("k", "j").applyInArrow(whole, placed.schema)
    assert exchange_of(by_k_and_j) is exchange_of(placed)
    assert exchange_of(placed).order == RowOrder((1, 2))
    # what was ordered by the first column alone still is
    assert origin_of(by_k).order == RowOrder((1,))
    assert exchange_of(placed.groupBy("k").applyInArrow(whole, placed.schema)) is exchange_of(placed)


def test_an_exchange_of_another_order_is_a_twin_of_its_own_and_shared(placed: ShuffleFrame) -> None:
    by_k = placed.groupBy("k").applyInArrow(whole, placed.schema)
    by_j_and_k = placed.groupBy("j", "k").applyInArrow(whole, placed.schema)
    again = placed.filter(pc.field("id") > 5).groupBy("j", "k").applyInArrow(whole, placed.schema)

    twin = exchange_of(by_j_and_k)
    assert twin is not exchange_of(by_k)
    assert twin is exchange_of(again)
    assert (twin.order, twin.scheme, twin.subpartitions, twin.upstream) == (
        RowOrder((2, 1)), Hash((1,)), 3, exchange_of(placed).upstream
    )  # fmt: skip


def test_an_exchange_that_is_built_keeps_its_order(placed: ShuffleFrame) -> None:
    placed.toDF()
    by_k = placed.groupBy("k").applyInArrow(whole, placed.schema)

    assert exchange_of(by_k) is not exchange_of(placed)
    assert exchange_of(placed).order is None
    assert exchange_of(by_k).order == RowOrder((1,))


def test_the_order_is_of_the_columns_as_they_lie_in_the_exchange(placed: ShuffleFrame) -> None:
    turned = placed.select("j", "k", "id").filter(pc.field("id") > 5).select("k", "j")
    grouped = turned.groupBy("j", "k").applyInArrow(whole, turned.schema)

    assert exchange_of(grouped) is exchange_of(placed)
    assert origin_of(grouped).order == RowOrder((2, 1))


def test_numbers_of_exchanges_ascend_along_the_data(placed: ShuffleFrame) -> None:
    last = exchange_of(placed.repartition(2).groupBy("j").applyInArrow(whole, placed.schema))
    numbers = []
    while True:
        numbers.append(last.number)
        if not isinstance(last.upstream.origin, ExchangeOrigin):
            break
        last = last.upstream.origin.exchange

    assert len(numbers) == 3
    assert numbers == sorted(numbers, reverse=True)


def test_control_rows_are_planned_once_also_by_threads_that_come_together(placed: ShuffleFrame) -> None:
    exchange = exchange_of(placed)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: exchange.control(), range(4)))

    assert all(control is found[0] for control in found)
    assert found[0].rdd.getNumPartitions() == 3


# --- how they are planned -------------------------------------------------------------------------------


def test_an_exchange_is_planned_without_adaptive_execution_and_the_session_is_left_alone(
    spark: SparkSession, numbers: DataFrame
) -> None:
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    }
    with confs(spark, settings):
        # a source with a shuffle of its own, whose stages adaptive execution would run at once
        source = numbers.repartition(5, "j")
        with jobs(spark) as building:
            ours = sortshuffle.frame(source).repartition(3, "k")
            partitions = ours.toDF().rdd.getNumPartitions()
        with jobs(spark) as running:
            assert ours.count() == 100

        assert {name: spark.conf.get(name) for name in settings} == settings
    assert partitions == 3  # adaptive execution would have joined these
    assert building.ids == []
    assert running.stages == [3]


def dependencies_of(rdd: Any) -> list[Any]:
    """The shuffles that an RDD of the JVM depends on, the last one first."""
    found, left = [], [rdd]
    while left:
        dependencies = left.pop(0).dependencies()
        for at in range(dependencies.size()):
            dependency = dependencies.apply(at)
            if dependency.getClass().getSimpleName() == "ShuffleDependency":
                found.append(dependency)
            left.append(dependency.rdd())
    return found


SHUFFLED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "repartition": lambda df: df.repartition(5, sf.rand()),
    "limit behind a sort": lambda df: df.orderBy(sf.rand()).limit(90).filter("k >= 0"),
    "aggregate": lambda df: df.groupBy("k").agg(sf.max("id").alias("id")),
    "a cached limit": lambda df: df.limit(90).cache(),
}


@pytest.mark.parametrize("shuffling", SHUFFLED.values(), ids=SHUFFLED.keys())
@pytest.mark.parametrize("value", ["true", "false"])
def test_shuffles_of_the_users_plan_check_rows_if_the_user_wants_it_and_control_rows_are_not_checked(
    spark: SparkSession, numbers: DataFrame, shuffling: Callable[[DataFrame], DataFrame], value: str
) -> None:
    """A map task that runs again may send the user's rows elsewhere. Control rows are others each time."""
    plans = {"spark.sql.maxPlanStringLength": "100"}  # of which the text shows no shuffle
    with confs(spark, {ROLLBACK: value, QUERY_ROLLBACK: "true", **plans}):
        source = shuffling(numbers)
        try:
            frame = sortshuffle.frame(source).mapInArrow(lambda batches: batches, source.schema)
            control: Any = exchange_of(frame.repartition(3, "k")).control()
            shuffles = dependencies_of(control._jdf.queryExecution().toRdd())
            assert frame.repartition(3, "k").count() == source.count()
        finally:
            source.unpersist(blocking=True)  # if it is cached
    assert [each.checksumMismatchFullRetryEnabled() for each in shuffles] == [False, value == "true"]
    assert [each.checksumMismatchQueryLevelRollbackEnabled() for each in shuffles] == [False, True]
    assert shuffles[0].partitioner().numPartitions() == 3


def test_the_active_session_is_again_the_users(spark: SparkSession, placed: ShuffleFrame) -> None:
    placed.toDF()
    active = SparkSession.getActiveSession()

    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)


# --- reproducible inputs --------------------------------------------------------------------------------


def placement_of(frame: ShuffleFrame) -> object:
    exchange = exchange_of(frame)
    exchange.place()
    return exchange.closing(0, ()).placement


def test_rows_are_counted_out_only_where_a_re_run_task_sees_them_in_the_same_order(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "f.parquet")
    fixed = sortshuffle.frame(numbers)
    shuffled = sortshuffle.frame(numbers.repartition(3, "id"))
    scanned = sortshuffle.read(spark).parquet(str(tmp_path / "f.parquet"))

    for same_again in (fixed, scanned, fixed.repartition(2, "id"), scanned.drop("k").repartition(2)):
        assert placement_of(same_again.repartition(4)) == RoundRobinPlacement(reproducible=True)
    behind_two = shuffled.repartition(2, "id").repartition(2)
    for other in (shuffled, shuffled.mapInArrow(same, numbers.schema), behind_two):
        assert placement_of(other.repartition(4)) == RoundRobinPlacement(reproducible=False)
    assert placement_of(shuffled.repartition(4, "id", "k")) == HashPlacement((0, 1))


def test_sparks_word_is_taken_for_what_a_source_gives_when_it_runs_again(numbers: DataFrame) -> None:
    planner = ClassicPlanner(numbers.sparkSession)
    assert planner.is_reproducible(numbers)
    assert planner.is_reproducible(numbers.where("id > 5").select("k"))
    assert not planner.is_reproducible(numbers.repartition(3))
    assert not planner.is_reproducible(numbers.groupBy("k").count())
    assert not planner.is_reproducible(numbers.sort(sf.col("j")).limit(10).coalesce(1).repartition(2, "k"))
