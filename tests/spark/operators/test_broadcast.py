"""Broadcast joins, of which one side is whole in every task of the other, against plain PySpark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest
from oracle import confs, data_frame, every_type, partition_count, rows_in_order
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import UsageError
from sortshuffle.spark.frame.frames import broadcast
from sortshuffle.spark.operators.broadcast import BroadcastOrigin
from sortshuffle.spark.plan.chain import UNKNOWN_LAYOUT, Layout


def same_rows(ours: ShuffleFrame, plain: DataFrame) -> bool:
    assert ours._own_rows is not None  # else Spark would be compared with itself
    assert ours.schema == plain.schema
    got, wanted = (
        Counter(map(repr, zip(*(c.to_pylist() for c in table.columns), strict=True)))
        for table in (ours.toArrow(), plain.toArrow())
    )
    assert wanted
    return got == wanted


@pytest.fixture(scope="module")
def plain_sides(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left, right = every_type(11, 40), every_type(12, 30)
    right = right.rename_columns([name if name in ("i", "d") else f"{name}_r" for name in left.column_names])
    return data_frame(spark, left), data_frame(spark, right)


@pytest.mark.parametrize("wrong", ["a DataFrame", 1])
def test_only_a_frame_of_ours_is_marked(spark: SparkSession, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"broadcast\(\) takes a ShuffleFrame, not (DataFrame|int)"):
        broadcast(spark.range(1) if wrong == "a DataFrame" else wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_the_right_side_is_broadcast(plain_sides: tuple[DataFrame, DataFrame], how: str) -> None:
    left, right = plain_sides
    ours = sortshuffle.frame(left).join(broadcast(sortshuffle.frame(right)), ["i", "d"], how)
    assert isinstance(ours._chain.origin, BroadcastOrigin)
    assert same_rows(ours, left.join(right, ["i", "d"], how))


def test_the_left_side_is_broadcast_to_a_placed_one(plain_sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = plain_sides
    placed = sortshuffle.frame(right).repartition(3, "d", "i").select("*")
    ours = broadcast(sortshuffle.frame(left)).join(placed, ["i", "d"], "right")
    assert ours._rows.layout == Layout((1, 0), 3)
    assert partition_count(ours) == 3
    assert same_rows(ours, left.join(right, ["i", "d"], "right"))
    where = sf.pmod(sf.hash("d", "i"), sf.lit(3)) != sf.spark_partition_id()
    assert ours.toDF().where(where).count() == 0


def test_a_side_that_must_be_exchanged_is(plain_sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = map(sortshuffle.frame, plain_sides)
    for joined in (
        left.select("i").join(broadcast(right), "i", "right"),
        left.select("i").join(broadcast(right), "i", "full"),
        broadcast(left).join(right.select("i"), "i", "left"),
        broadcast(left).join(right.select("i"), "i", "semi"),
    ):
        assert not isinstance(joined._chain.origin, BroadcastOrigin)
        assert joined._rows.layout == Layout((0,), 5, is_default=True)


def test_every_origin_can_stay(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of Spark, with names that Spark cannot look up; a scan; a union; another join; and functions."""
    plain = spark.createDataFrame([(k % 5, k) for k in range(40)], "k int, `v.w``x` int").repartition(3)
    small_plain = spark.createDataFrame([(1, "a"), (2, "b"), (1, "c"), (9, "d")], "k int, t string")
    small = broadcast(sortshuffle.frame(small_plain))
    path = str(tmp_path / "rows")
    plain.write.parquet(path)
    scanned = sortshuffle.read(spark).parquet(path)
    wanted = plain.join(small_plain, "k", "left")
    assert same_rows(sortshuffle.frame(plain).join(small, "k", "left"), wanted)
    assert same_rows(scanned.filter(pc.field("k") > 0).join(small, "k", "left"), wanted.where("k > 0"))
    united = scanned.union(sortshuffle.frame(plain).repartition(2, "k"))
    assert same_rows(united.join(small, "k"), plain.union(plain).join(small_plain, "k"))
    shuffled = scanned.join(sortshuffle.frame(small_plain).withColumnRenamed("t", "u"), "k")
    twice = shuffled.mapInArrow(lambda batches: (batch.slice(0) for batch in batches), shuffled.schema)
    both = twice.join(small, "k", "left")
    renamed = small_plain.withColumnRenamed("t", "u")
    assert same_rows(both, plain.join(renamed, "k").join(small_plain, "k", "left"))


def test_the_order_of_the_side_that_stays_is_kept(spark: SparkSession) -> None:
    plain = spark.createDataFrame([(k * 7 % 13, k) for k in range(60)], "k int, v int")
    small_plain = spark.createDataFrame([(1, "a"), (2, "b"), (1, "c")], "k int, t string")
    ordered = sortshuffle.frame(plain).repartition(2, "k").sortWithinPartitions("v")
    joined = ordered.join(broadcast(sortshuffle.frame(small_plain)), "k", "left")
    assert joined._rows.layout.ordered_by == ordered._rows.layout.ordered_by
    kept = (
        plain.repartition(2, "k").sortWithinPartitions("v").join(small_plain.hint("broadcast"), "k", "left")
    )
    numbers = [row.split("(")[0] for row in rows_in_order(joined.select("v"))]
    assert numbers == [row.split("(")[0] for row in rows_in_order(kept.select("v"))]


def test_small_sides_without_rows_and_sides_of_one_source(spark: SparkSession) -> None:
    plain = spark.createDataFrame([(1, "a"), (2, "b"), (None, "c")], "k int, v string")
    frame = sortshuffle.frame(plain)
    none = broadcast(frame.filter(pc.field("k") > 9).withColumnRenamed("v", "w"))
    assert same_rows(frame.join(none, "k", "left"), plain.selectExpr("k", "v", "cast(null as string) as w"))
    placed = frame.repartition(2, "k")
    itself = placed.join(broadcast(frame.withColumnRenamed("v", "w")), "k")
    assert same_rows(itself, plain.join(plain.withColumnRenamed("v", "w"), "k"))


def test_ranges_may_be_fewer_than_were_asked_for(spark: SparkSession) -> None:
    plain = spark.createDataFrame([(k % 2, k) for k in range(10)], "k int, v int")
    small = spark.createDataFrame([(0, "a"), (1, "b")], "k int, t string")
    joined = (
        sortshuffle.frame(plain).repartitionByRange(5, "k").join(broadcast(sortshuffle.frame(small)), "k")
    )
    assert partition_count(joined) < 5
    assert same_rows(joined, plain.join(small, "k"))


def test_a_broadcast_side_that_does_not_fit_is_an_error_that_names_the_option(spark: SparkSession) -> None:
    with confs(spark, {"spark.sortshuffle.memory": "1m"}):
        large = sortshuffle.frame(spark.range(20_000))
        joined = sortshuffle.frame(spark.range(3)).join(broadcast(large), "id")
    with pytest.raises(PythonException, match=r"more memory with spark\.sortshuffle\.memory"):
        joined.collect()


def test_explain_tells_the_broadcast(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = sortshuffle.frame(spark.range(3))
    small = broadcast(frame.filter(pc.field("id") > 1))
    joined = frame.join(small, "id")
    assert joined._rows.layout == UNKNOWN_LAYOUT
    joined.explain()
    number = next(iter(joined._chain.exchanges())).number
    assert capsys.readouterr().out.splitlines() == [
        f"Stage {number}, writes an exchange",
        "    rows of DataFrame[id]",
        "    filter((id > 1))",
        f"    -> exchange {number}: broadcast into 1 subpartitions",
        "Result stage",
        "    broadcast inner join on id, of",
        f"      * exchange {number}",
        "      * rows of DataFrame[id]",
        "    -> rows",
    ]
