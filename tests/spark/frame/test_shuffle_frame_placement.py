"""`repartitionByRange` and `repartitionById` against plain PySpark: the same rows in the same partitions, the
same calls refused.

Where a frame is so small that the sample is all of it, both sides must find the same bounds, and every row is
compared with the partition that Spark gives it. Where it is larger the bounds differ: then the contract is
checked, and that rows placed by bounds that come from Spark's partitions are where Spark has them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    GROUP_KEYS,
    OnlyPython,
    assert_handed_to_spark,
    assert_same_error,
    confs,
    counter_of_tasks,
    data_frame,
    differences,
    every_type,
    jobs,
    partition_count,
    rows_in_order,
)
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner import GlobalSelector, RangeSelector, SortKey
from sortshuffle.spark.plan.sampling import SAMPLE_SIZE
from sortshuffle.spark.worker.placements import (
    HashPlacement,
    IdPlacement,
    Placement,
    RangePlacement,
    RoundRobinPlacement,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of this module

Batches = Iterator[pa.RecordBatch]
DIRECTIONS = ["asc", "desc", "asc_nulls_last", "desc_nulls_first", "asc_nulls_first", "desc_nulls_last"]
AS_PLANNED = {"spark.sql.adaptive.enabled": "false"}  # which would join partitions


@pytest.fixture(scope="module")
def typed(spark: SparkSession) -> DataFrame:
    """400 rows with a column of every type: few enough that they are all in the sample."""
    return data_frame(spark, every_type(seed=11, rows=400))


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """20,000 rows in 4 partitions: more than are sampled for a few partitions."""
    return spark.range(0, 20_000, 1, 4).selectExpr(
        "id", "cast(id * 7919 % 20011 as int) as k", "id % 3 as few"
    )


def directed(name: str, direction: str) -> Column:
    column: Column = getattr(sf.col(name), direction)()
    return column


def columns_by_partition(df: DataFrame, *names: str) -> dict[int, list[tuple[Any, ...]]]:
    """The values of these columns in each partition that has rows."""
    with confs(df.sparkSession, AS_PLANNED):
        table = df.select(sf.spark_partition_id(), *names).toArrow()
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for partition, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found[partition].append(tuple(values))
    return dict(found)


# --- ranges: the same placement ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "direction"), list(zip(GROUP_KEYS, cycle(DIRECTIONS), strict=False)))
def test_ranges_of_every_type_are_those_of_spark(typed: DataFrame, name: str, direction: str) -> None:
    df = typed.select("id", name)
    by = directed(name, direction)

    assert differences(sortshuffle.frame(df).repartitionByRange(4, by), df.repartitionByRange(4, by)) == []


@settings(max_examples=8)
@given(
    keys=st.lists(st.sampled_from([*GROUP_KEYS, "id"]), min_size=1, max_size=3, unique=True),
    directions=st.lists(st.sampled_from(DIRECTIONS), min_size=3, max_size=3),
    partitions=st.integers(2, 12),
)
def test_ranges_of_several_columns_and_directions_are_those_of_spark(
    typed: DataFrame, keys: list[str], directions: list[str], partitions: int
) -> None:
    by = [directed(name, direction) for name, direction in zip(keys, directions, strict=False)]

    ours = sortshuffle.frame(typed).repartitionByRange(partitions, *by)

    assert differences(ours, typed.repartitionByRange(partitions, *by)) == []


def test_rows_placed_by_sparks_own_bounds_are_where_spark_has_them(
    spark: SparkSession, numbers: DataFrame
) -> None:
    # the greatest key of each partition is as good as Spark's bound: there are no keys between the two
    with confs(spark, {SAMPLE_SIZE: "5"}):
        theirs = columns_by_partition(numbers.repartitionByRange(16, sf.col("few").desc(), "k"), "few", "k")
    tops = [max(rows, key=lambda row: (-row[0], row[1])) for _, rows in sorted(theirs.items())][:-1]
    bounds = pa.RecordBatch.from_pylist([{"few": few, "k": k} for few, k in tops])
    selector = RangeSelector((SortKey(0, True, True), SortKey(1)), bounds, 16)

    for partition, rows in theirs.items():
        batch = pa.RecordBatch.from_pylist([{"few": few, "k": k} for few, k in rows])
        assert set(selector.assign(batch).tolist()) == {partition}


# --- ranges: the contract, where the sample is not everything -----------------------------------------------


def test_partitions_are_disjoint_ascending_ranges_of_about_equal_size(numbers: DataFrame) -> None:
    ours = sortshuffle.frame(numbers).repartitionByRange(8, sf.col("k").desc())
    found = columns_by_partition(ours.toDF(), "k", "id")

    assert sorted(row for rows in found.values() for row in rows) == sorted(
        map(tuple, numbers["k", "id"].collect())
    )
    assert sorted(found) == list(range(8))
    edges = [(max(rows)[0], min(rows)[0]) for _, rows in sorted(found.items())]
    assert all(least > most for (_, least), (most, _) in pairwise(edges))
    sizes = [len(rows) for rows in found.values()]
    assert 0.6 * 2500 < min(sizes) <= max(sizes) < 1.5 * 2500


def test_the_same_rows_give_the_same_ranges_again(numbers: DataFrame) -> None:
    with confs(numbers.sparkSession, {SAMPLE_SIZE: "10"}):
        first, second = (
            columns_by_partition(sortshuffle.frame(numbers).repartitionByRange(6, "k").toDF(), "id")
            for _ in range(2)
        )

    assert {p: sorted(rows) for p, rows in first.items()} == {p: sorted(rows) for p, rows in second.items()}


def test_a_producer_that_has_almost_all_rows_is_sampled_again(spark: SparkSession) -> None:
    # 16 producers: each may give 3 * 8 * 20 / 16 = 30 keys, of which one has nearly all rows
    df = spark.range(0, 16, 1, 16).selectExpr("explode(sequence(0, if(id = 5, 20000, 1))) as k")
    with confs(spark, {SAMPLE_SIZE: "20"}), jobs(spark) as found:
        ours = sortshuffle.frame(df).repartitionByRange(8, "k").toDF()
    sizes = [len(rows) for rows in columns_by_partition(ours, "k").values()]

    assert len(found.ids) == 2
    assert len(sizes) == 8
    assert max(sizes) < 1.8 * 20_000 / 8


def test_a_few_different_keys_make_a_few_partitions(spark: SparkSession, numbers: DataFrame) -> None:
    ours = sortshuffle.frame(numbers).repartitionByRange(10, "few")

    theirs = numbers.repartitionByRange(10, "few")
    assert differences(ours, theirs) == []
    assert partition_count(ours) == theirs.rdd.getNumPartitions() < 10
    assert {p: {few for (few,) in rows} for p, rows in columns_by_partition(ours.toDF(), "few").items()} == {
        0: {0},
        1: {1},
        2: {2},
    }


def test_an_empty_source_and_a_source_without_partitions_have_ranges_too(spark: SparkSession) -> None:
    for df in (spark.range(10).where("id < 0"), spark.createDataFrame([], "id long")):
        ours = sortshuffle.frame(df).repartitionByRange(3, "id")

        assert ours.collect() == []


def test_into_one_partition_nothing_is_sampled(spark: SparkSession, numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers)
    with jobs(spark) as found:
        one = frame.repartitionByRange(1, "k").toDF()

    assert found.ids == []
    assert partition_count(frame.repartitionByRange(1, "k")) == 1
    assert one.count() == 20_000


def test_without_a_number_there_are_as_many_partitions_as_spark_shuffles_into(
    spark: SparkSession, numbers: DataFrame
) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "6"}):
        ours = sortshuffle.frame(numbers).repartitionByRange(numbers.k, sf.desc("id"))

    assert partition_count(ours) == 6
    assert sorted(columns_by_partition(ours.toDF(), "id")) == list(range(6))


# --- ranges: when things run ----------------------------------------------------------------------------


def test_the_sample_is_taken_once_when_the_exchange_is_built(spark: SparkSession, numbers: DataFrame) -> None:
    sortshuffle.frame(numbers).mapInArrow(same, "id long, k int, few long").count()  # workers are checked
    calls, counted = counter_of_tasks(spark)

    with jobs(spark) as described:
        mapped = sortshuffle.frame(numbers).mapInArrow(counted, "id long, k int, few long")
        ours = mapped.repartitionByRange(5, "k")
    assert described.ids == []
    assert calls.value == 0

    with jobs(spark) as planned:
        df = ours.toDF()
    assert len(planned.ids) == 1
    assert calls.value == 4

    with jobs(spark) as first:
        assert df.count() == 20_000
        assert ours.filter(pc.field("k") > 5).count() == sum(1 for row in numbers.collect() if row.k > 5)
    assert calls.value == 8
    assert first.ids


def test_exchanges_further_up_are_not_run_again_for_the_sample(
    spark: SparkSession, numbers: DataFrame
) -> None:
    calls, counted = counter_of_tasks(spark)

    mapped = sortshuffle.frame(numbers).mapInArrow(counted, "id long, k int, few long")
    ours = mapped.repartition(3, "few").repartitionByRange(5, "k")

    assert ours.toDF().count() == 20_000
    assert calls.value == 4


def test_a_group_by_behind_ranges_or_ids_is_right(spark: SparkSession, numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers)
    expected = sorted(map(tuple, numbers.groupBy("few").count().collect()))

    for placed in (frame.repartitionByRange(7, "few", "k"), frame.repartitionById(7, "k")):
        counted = placed.groupBy("few").applyInArrow(group_size, "few long, n long")
        assert sorted(map(tuple, counted.collect())) == expected


@pytest.mark.usefixtures("generated_code")
def test_rows_placed_in_two_ways_come_from_one_pass(spark: SparkSession, typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed.select("id", "lo", "i"))
    plain = typed.select("id", "lo", "i")
    ranges, ids, hashed = (
        frame.repartitionByRange(3, "lo"),
        frame.repartitionById(4, "i"),
        frame.repartition(5, "lo"),
    )

    assert differences(ranges, plain.repartitionByRange(3, "lo")) == []
    assert differences(ids, plain.repartitionById(4, "i")) == []
    assert differences(hashed, plain.repartition(5, "lo")) == []


def test_ranges_of_a_parquet_scan_and_of_a_cached_frame(
    spark: SparkSession, typed: DataFrame, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows")
    typed.select("id", "st").write.parquet(path)
    plain = spark.read.parquet(path).repartitionByRange(3, "st")
    scanned = sortshuffle.read(spark).parquet(path)

    assert differences(scanned.repartitionByRange(3, "st"), plain) == []
    scanned.persist()
    try:
        assert differences(scanned.repartitionByRange(3, "st"), plain) == []
    finally:
        scanned.unpersist()


def test_into_one_subpartition_rows_are_not_looked_at() -> None:
    batch = pa.record_batch([pa.array([3, 1, 2])], names=["k"])
    keys = (SortKey(0),)
    placements: list[Placement] = [
        HashPlacement((0,)),
        IdPlacement(0),
        RangePlacement(keys, batch.slice(1, 1)),
        RoundRobinPlacement(True),
        RoundRobinPlacement(False),
    ]

    assert [each.selector(1, 5) for each in placements] == [GlobalSelector()] * 5
    assert [each.count(9) for each in placements] == [9, 9, 2, 9, 9]
    assert RangePlacement(keys, None).count(9) == 1
    assert GlobalSelector() not in [each.selector(2, 5) for each in placements]


def test_explain_says_by_what_rows_are_placed(numbers: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    frame = sortshuffle.frame(numbers)
    by = [sf.col("k").desc(), sf.col("few").asc_nulls_last(), sf.col("id").desc_nulls_first()]
    frame.repartitionByRange(4, *by).explain()
    frame.repartitionById(4, "k").explain()
    printed = capsys.readouterr().out

    assert "range(k desc, few nulls last, id desc nulls first) into 4 subpartitions" in printed
    assert "id(k) into 4 subpartitions" in printed


def same(batches: Batches) -> Batches:
    yield from batches


def group_size(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
    return pa.table({"few": key[:1], "n": [table.num_rows]})


# --- ids ----------------------------------------------------------------------------------------------------


def test_rows_go_to_the_partitions_whose_numbers_they_carry(spark: SparkSession) -> None:
    ids = [None, 0, 1, 6, 7, 8, -1, -7, -8, 2**31 - 1, -(2**31)]
    table = pa.table(
        {"id": np.arange(400), "p": pa.array([ids[row % len(ids)] for row in range(400)], pa.int32())}
    )
    df = data_frame(spark, table)

    for partitions in (1, 7, 30):
        ours = sortshuffle.frame(df).repartitionById(partitions, "p")
        assert differences(ours, df.repartitionById(partitions, "p")) == []
        assert partition_count(ours) == partitions


def test_a_column_of_type_void_sends_rows_to_the_first_partition(spark: SparkSession) -> None:
    df = spark.range(20).select("id", sf.lit(None).alias("p"))

    ours = sortshuffle.frame(df).repartitionById(4, df.p)

    assert differences(ours, df.repartitionById(4, df.p)) == []


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f.repartitionByRange(4),
        lambda f: f.repartitionByRange(0, "k"),
        lambda f: f.repartitionByRange(-1, "k"),
        lambda f: f.repartitionByRange(2**31, "k"),
        lambda f: f.repartitionByRange(True, "k"),
        lambda f: f.repartitionByRange(2.0, "k"),
        lambda f: f.repartitionByRange(["k"]),
        lambda f: f.repartitionByRange(3, "nosuch"),
        lambda f: f.repartitionByRange(3, sf.col("nosuch").desc()),
        lambda f: f.repartitionByRange(3, 5),
        lambda f: f.repartition(3, sf.col("k").desc()),
        lambda f: f.repartitionById(0, "k"),
        lambda f: f.repartitionById(-3, "k"),
        lambda f: f.repartitionById(True, "k"),
        lambda f: f.repartitionById("3", "k"),
        lambda f: f.repartitionById(2.0, "k"),
        lambda f: f.repartitionById(3, "nosuch"),
        lambda f: f.repartitionById(3, 5),
        lambda f: f.repartitionById(3, ["k"]),
        lambda f: f.repartitionById(3, "id"),
    ],
)
def test_what_spark_refuses_is_refused(numbers: DataFrame, call: Any) -> None:
    frame = sortshuffle.frame(numbers)
    assert_same_error(lambda each: call(each).count(), frame, numbers)
    with pytest.raises(UsageError):
        call(OnlyPython(frame))


@pytest.mark.parametrize("name", ["a", "ax", "m"])
def test_ranges_of_arrays_and_maps_are_refused(typed: DataFrame, name: str) -> None:
    with pytest.raises(ColumnError, match=f"column {name} of type .* cannot be cut into ranges"):
        OnlyPython(sortshuffle.frame(typed)).repartitionByRange(3, name)


def test_spark_places_by_what_python_cannot(typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    for method, key in (
        ("repartitionByRange", sf.col("a").desc()),
        ("repartitionByRange", sf.col("id") % 5),
        ("repartitionById", sf.expr("cast(id % 3 as int)")),
        ("repartition", sf.col("id") % 5),
    ):
        ours, plain = (getattr(each, method)(3, key) for each in (frame, typed))
        assert_handed_to_spark(ours, plain, method)
        assert rows_in_order(ours) == rows_in_order(plain)


def test_ranges_of_collated_strings_are_refused(spark: SparkSession) -> None:
    df = spark.range(3).selectExpr("cast(id as string) collate UNICODE_CI as s")
    with pytest.raises(ColumnError, match="collation UNICODE_CI"):
        OnlyPython(sortshuffle.frame(df)).repartitionByRange(3, "s")


def test_ids_of_another_type_than_int_are_refused(typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    for name in ("lo", "sh", "by", "d", "st", "bo"):
        with pytest.raises(ColumnError, match=f"column {name} .* cannot hold partition ids: cast it to int"):
            OnlyPython(frame).repartitionById(3, name)
    assert_same_error(lambda each: each.repartitionById(3, "lo").count(), frame, typed)


def test_an_expression_is_refused_with_and_without_a_direction(numbers: DataFrame) -> None:
    for column in (sf.col("k") + 1, (sf.col("k") + 1).desc(), sf.col("k").desc().alias("d")):
        with pytest.raises(ColumnError, match="is an expression"):
            OnlyPython(sortshuffle.frame(numbers)).repartitionByRange(3, column)


def test_a_column_named_twice_counts_the_first_time(numbers: DataFrame) -> None:
    few = numbers.where("id < 300")
    ours = sortshuffle.frame(few).repartitionByRange(4, sf.col("few").desc(), "few", "k")

    assert differences(ours, few.repartitionByRange(4, sf.col("few").desc(), "few", "k")) == []
