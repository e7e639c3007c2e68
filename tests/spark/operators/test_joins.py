"""`ShuffleFrame.join` by a shuffle, against plain PySpark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import EDGES, OnlyPython, assert_handed_to_spark, confs, data_frame, every_type
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import ColumnError, UnsupportedError, UsageError
from sortshuffle.spark.operators.broadcast import BroadcastOrigin
from sortshuffle.spark.plan.chain import UNKNOWN_LAYOUT, Layout

KINDS = ["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True)
class Sides:
    """Two DataFrames, and frames of them that are placed by both keys."""

    left: DataFrame
    right: DataFrame
    left_frame: ShuffleFrame
    right_frame: ShuffleFrame


@pytest.fixture(scope="module")
def sides(spark: SparkSession) -> Sides:
    """Columns of every type, and two keys with nulls and many ties; other names but for the keys."""
    left, right = every_type(1, 60), every_type(2, 50)
    right = right.rename_columns([name if name in ("i", "st") else f"{name}_r" for name in left.column_names])
    plain = data_frame(spark, left), data_frame(spark, right)
    placed = [sortshuffle.frame(each).repartition(4, "i", "st") for each in plain]
    return Sides(*plain, *placed)


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


def differences_of(ours: ShuffleFrame, plain: DataFrame) -> list[str]:
    """Up to four rows that only one side has. No row is where the layout says that it is not."""
    assert ours._own_rows is not None  # else Spark would be compared with itself
    assert ours.schema == plain.schema
    layout = ours._rows.layout
    found = ours.toDF()
    misplaced = sf.lit(False)
    if layout.placed_by is not None:
        keys = [sf.col(ours.columns[at]) for at in layout.placed_by]
        assert layout.partitions == found.rdd.getNumPartitions()
        misplaced = sf.spark_partition_id() != sf.pmod(sf.hash(*keys), sf.lit(layout.partitions))
    table = found.withColumn("misplaced", misplaced).toArrow()
    assert not any(table.column("misplaced").to_pylist())
    got, wanted = rows_of(table.drop_columns("misplaced")), rows_of(plain.toArrow())
    assert wanted, "nothing was compared"
    return [f"ours {row}" for row in got - wanted][:2] + [f"plain {row}" for row in wanted - got][:2]


@pytest.mark.parametrize("how", KINDS)
def test_every_kind_joins_columns_of_every_type_as_spark_does(sides: Sides, how: str) -> None:
    ours = sides.left_frame.join(sides.right_frame, ["i", "st"], how)
    assert differences_of(ours, sides.left.join(sides.right, ["i", "st"], how)) == []
    assert ours._rows.layout == Layout((0, 1), 4)


def keys_of_every_type(seed: int, name: str) -> pa.Table:
    """Rows that have a value in the column of one type, whose name is ``tag``, and nulls in all others."""
    drawn = every_type(seed, 12, null_share=0.1)
    types = [key for key in EDGES if not pa.types.is_list(EDGES[key][0]) and key != "m"]
    names = [f"{key}_{name}" for key in ("tag", "id", *types)]
    parts = []
    for tag in types:
        columns = [drawn.column(key) if key == tag else pa.nulls(12, EDGES[key][0]) for key in types]
        parts.append(pa.table([pa.array([tag] * 12), drawn.column("id"), *columns], names))
    return pa.concat_tables(parts)


def test_keys_of_every_type_match_as_in_spark(spark: SparkSession) -> None:
    """NaN, zeros of both signs, nulls in structs, text and bytes, ..., all in one join, null-safely."""
    left, right = (data_frame(spark, keys_of_every_type(seed, name)) for seed, name in ((3, "l"), (4, "r")))
    names = [name.removesuffix("_l") for name in left.columns if name != "id_l"]
    on = [sf.col(f"{name}_l").eqNullSafe(sf.col(f"{name}_r")) for name in names]
    ours = sortshuffle.frame(left).join(sortshuffle.frame(right), on, "full")
    assert differences_of(ours, left.join(right, on, "full")) == []
    found = ours.toArrow()
    matched = found.filter(pc.equal(found.column("tag_l"), found.column("tag_r")))
    assert {*matched.column("tag_l").to_pylist(), "tag"} == set(names)


def test_conditions_of_both_kinds_of_equality(spark: SparkSession) -> None:
    left = spark.createDataFrame(
        [(1, None, "a"), (1, 2, "b"), (None, 2, "c"), (None, None, "d")], "a int, b int, v string"
    )
    right = spark.createDataFrame(
        [(1, None, 1), (1, 2, 2), (None, 2, 3), (None, None, 4), (1, None, 5)], "c int, `d.e` int, w int"
    )
    on = (sf.col("c") == sf.col("A")) & sf.col("b").eqNullSafe(sf.col("`d.e`"))
    ours = sortshuffle.frame(left).join(sortshuffle.frame(right), on, "left_outer")
    assert differences_of(ours, left.join(right, on, "left_outer")) == []
    assert ours._rows.layout == Layout((0, 1), 5, is_default=True)


def test_the_narrower_of_two_numbers_is_widened(spark: SparkSession) -> None:
    left = spark.createDataFrame(
        [(1, 0.1, "a"), (2, 0.5, "b"), (None, 0.5, "c"), (3, None, "d")], "k int, x float, v string"
    )
    right = spark.createDataFrame(
        [(1, 0.1, 1), (2, 0.5, 2), (2**40, 0.5, 3), (3, None, 4)], "K long, X double, w int"
    )
    frames = sortshuffle.frame(left), sortshuffle.frame(right)
    ours = frames[0].join(frames[1], ["k", "x"], "full")
    assert differences_of(ours, left.join(right, ["k", "x"], "full")) == []
    assert ours._rows.layout == Layout((0, 1), 5, is_default=True)
    ours = frames[0].drop("x").join(frames[1], ["K"], "right")
    assert differences_of(ours, left.drop("x").join(right, ["K"], "right")) == []
    assert ours._rows.layout == Layout((0,), 5, is_default=True)
    assert frames[0].drop("x").join(frames[1], ["K"], "left")._rows.layout == UNKNOWN_LAYOUT


def test_a_key_is_widened_for_each_column_that_it_is_compared_with(spark: SparkSession) -> None:
    """Widened for one of them only, so the other pair's places and comparisons stay those of its own type."""
    left = spark.createDataFrame(
        [(k, float(k), f"l{k}") for k in range(40)] + [(None, None, "null")], "a int, f float, v string"
    )
    equal = [(k, k, k, float(k), float(k)) for k in range(40)]
    others = [
        (1, 2, 1, 1.0, 2.0),
        (2, 2, None, 2.0, None),
        (None, None, None, None, None),
        (None, 3, 3, None, 3.0),
    ]
    right = spark.createDataFrame(equal + others, "x long, y int, z short, d double, e float")
    a, f = left["a"], left["f"]
    conditions = [
        (a == right["x"]) & (a == right["y"]),
        (a == right["y"]) & (a == right["x"]),
        (a == right["x"]) & a.eqNullSafe(right["y"]),
        a.eqNullSafe(right["x"]) & a.eqNullSafe(right["y"]),
        (a == right["x"]) & (a == right["z"]),
        (f == right["d"]) & (f == right["e"]) & (a == right["y"]),
    ]
    for on in conditions:
        for how in ("inner", "full"):
            ours = sortshuffle.frame(left).join(sortshuffle.frame(right), on, how)
            assert ours._own_rows is not None
            plain = left.join(right, on, how)
            assert Counter(map(str, ours.collect())) == Counter(map(str, plain.collect())), on
        assert plain.where("v is not null and d is not null").count() >= 40


def test_what_is_placed_already_stays_where_it_is(spark: SparkSession) -> None:
    rows = [(k % 7, k % 3, k) for k in range(50)]
    left = spark.createDataFrame(rows, "a int, b int, v int")
    right = spark.createDataFrame(rows[:30], "a int, b int, w int")
    by_b = sortshuffle.frame(left).filter(pc.field("v") > 2).repartition(3, "b")
    by_a = sortshuffle.frame(right).repartition(2, "a").select("w", "a", "b")
    joined = by_b.join(by_a, ["a", "b"])
    assert joined._rows.layout == Layout((1,), 3)
    numbers = [
        exchange.scheme.describe(exchange.upstream.schema.names) for exchange in joined._chain.exchanges()
    ]
    assert numbers == ["hash(b)", "hash(a)", "hash(b)"]
    assert differences_of(joined, left.filter("v > 2").join(right, ["a", "b"])) == []
    both = by_b.join(sortshuffle.frame(right).repartition(3, "b").drop("a"), "b", "anti")
    assert len(list(both._chain.exchanges())) == 2
    assert both._rows.layout == Layout((0,), 3)
    grouped = both.groupBy("b").applyInArrow(lambda table: table.slice(0, 1), "b int, a int, v int")
    assert len(list(grouped._chain.exchanges())) == 2


def test_a_frame_joins_itself_and_what_is_made_of_it(spark: SparkSession) -> None:
    plain = spark.createDataFrame([(1, "a"), (2, "b"), (1, "c"), (None, "d")], "k int, v string")
    frame = sortshuffle.frame(plain).repartition(2, "k")
    other = frame.withColumnRenamed("v", "w")
    once = frame.join(other, "k", "full")
    assert len(list(once._chain.exchanges())) == 1
    assert differences_of(once, plain.join(plain.withColumnRenamed("v", "w"), "k", "full")) == []
    keys, plain_keys = frame.select("k"), plain.select("k")
    assert differences_of(keys.join(keys, "k"), plain_keys.join(plain_keys, "k")) == []
    twice = once.join(frame.select("k"), "k", "semi")
    wanted = plain.join(plain.withColumnRenamed("v", "w"), "k", "full").join(plain_keys, "k", "semi")
    assert differences_of(twice, wanted) == []


def test_sides_without_rows(spark: SparkSession) -> None:
    some = spark.createDataFrame([(1, "a"), (None, "b")], "k int, v string")
    none = spark.createDataFrame([], "k int, w string")
    frames = sortshuffle.frame(some), sortshuffle.frame(none)
    for how in ("full", "anti"):
        assert differences_of(frames[0].join(frames[1], "k", how), some.join(none, "k", how)) == []
    assert frames[1].join(frames[0], "k", "left").collect() == []


def test_sides_larger_than_memory_are_sorted_and_merged(spark: SparkSession) -> None:
    def scattered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """400 rows for each: keys that come a few times, and one in half of the rows."""
        for batch in batches:
            for start in batch.column(0).to_pylist():
                numbers = range(400 * start, 400 * (start + 1))
                keys = [number * 7919 % 6007 if number % 2 else -1 for number in numbers]
                columns = [pa.array(keys), pa.array(numbers), pa.array(["x" * 60] * len(keys))]
                yield pa.record_batch(columns, ["k", "n", "pad"])

    with confs(spark, {"spark.sortshuffle.memory": "1m"}):
        frame = sortshuffle.frame(spark.range(100)).mapInArrow(scattered, "k long, n long, pad string")
        left = frame.repartition(2, "k")
        right = frame.filter(pc.field("k") >= 0).withColumnsRenamed({"n": "m", "pad": "pad2"})
        joined = left.join(right, "k", "full")
    plain_left = spark.range(100).mapInArrow(scattered, "k long, n long, pad string").drop("pad")
    plain_right = plain_left.filter("k >= 0").withColumnRenamed("n", "m")
    assert differences_of(joined.drop("pad", "pad2"), plain_left.join(plain_right, "k", "full")) == []
    totals = joined.stage_totals()
    assert sum(each.metrics.counts["bytes_spilled"] for each in totals) > 1 << 20


# ---- what is refused --------------------------------------------------------------------------------------


def test_what_spark_refuses_is_refused(spark: SparkSession) -> None:
    left = sortshuffle.frame(spark.createDataFrame([], "k int, m map<int, int>, v int"))
    right = sortshuffle.frame(spark.createDataFrame([], "k int, m map<int, int>, w int"))
    with pytest.raises(AnalysisException, match="UNSUPPORTED_JOIN_TYPE"):
        left.join(right, "k", "sideways")
    with pytest.raises(AnalysisException, match="UNRESOLVED_USING_COLUMN_FOR_JOIN"):
        left.join(right, "v")
    with pytest.raises(AnalysisException, match="DATATYPE_MISMATCH"):
        left.drop("k").join(right.drop("k"), "m")
    assert left.drop("m").join(right.drop("m"), "k", "cross").columns == ["k", "v", "w"]


def test_what_cannot_equal_spark_is_refused_with_an_alternative(spark: SparkSession) -> None:
    def of(schema: str) -> ShuffleFrame:
        return sortshuffle.frame(spark.createDataFrame([], schema))

    left = OnlyPython(of("k int, v int, a array<int>, s string"))
    right = of("j int, w int, b array<int>, v int")
    refused: list[tuple[type[Exception], str, Any, str]] = [
        (UnsupportedError, "columns named v: rename", sf.col("k") == sf.col("j"), "inner"),
        (ColumnError, "arrays are not compared here", sf.col("a") == sf.col("b"), "semi"),
        (ColumnError, "column s of type string and column j of type int", sf.col("s") == sf.col("j"), "semi"),
        (UnsupportedError, "equalities of a left and a right column", sf.col("k") > sf.col("j"), "semi"),
        (UnsupportedError, "equalities of a left and a right column", sf.col("k") + 1 == sf.col("j"), "semi"),
        (UnsupportedError, "are of one side", sf.col("k") == sf.col("s"), "semi"),
        (ColumnError, "join by its name", sf.col("v") == sf.col("v"), "semi"),
        (ColumnError, "'v' is ambiguous", sf.col("k") == sf.col("v"), "semi"),
        (ColumnError, "no column 'z'", sf.col("k") == sf.col("z"), "semi"),
        (UnsupportedError, "every row with every other", None, "inner"),
        (UnsupportedError, "every row with every other", [], "inner"),
        (UsageError, "a name, a Column, or a list", ["k", sf.col("k") == sf.col("j")], "inner"),
        (UsageError, "a name, a Column, or a list", 3, "inner"),
    ]
    for kind, words, on, how in refused:
        with pytest.raises(kind, match=words):
            left.join(right, on, how)
    with pytest.raises(UsageError, match=r"join\(\) takes a DataFrame, not str"):
        left.join("right", "k")
    with pytest.raises(UsageError, match="one Spark session"):
        left.join(sortshuffle.frame(spark.newSession().createDataFrame([], "k int, z int")), "k")


def test_spark_joins_what_python_cannot(spark: SparkSession) -> None:
    left, right = (
        spark.range(20).selectExpr("id as k", "id % 3 as v"),
        spark.range(5, 12).selectExpr("id as j", "id as v"),
    )
    ours = sortshuffle.frame(left).repartition(2, "k"), sortshuffle.frame(right)
    for on, how in (
        (sf.col("k") == sf.col("j"), "inner"),  # two columns v
        (sf.col("k") > sf.col("j"), "semi"),
        (sf.lit(True), "left"),
    ):
        assert_handed_to_spark(ours[0].join(ours[1], on, how), left.join(right, on, how), "join")


def test_spark_joins_by_char_columns_of_different_lengths(spark: SparkSession) -> None:
    """It pads the shorter one for the comparison."""
    kinds = {"two": "char(2)", "two_too": "char(2)", "five": "char(5)", "most": "varchar(5)"}
    frames = {}
    try:
        for name, kind in kinds.items():
            spark.sql(f"create table joined_{name} ({name} {kind}, v_{name} int) using parquet")
            spark.sql(f"insert into joined_{name} values ('ab', 1), ('c', 2)")
            frames[name] = spark.table(f"joined_{name}")
        left = frames.pop("two")
        for name, right in frames.items():
            plain = left.join(right, left.two == right[name])
            on = sf.col("two") == sf.col(name)
            ours = sortshuffle.frame(left).join(sortshuffle.frame(right), on)
            if name == "five":
                assert_handed_to_spark(ours, plain, "join")
                assert plain.count() == 2
            else:
                assert differences_of(ours, plain) == []
    finally:
        for name in kinds:
            spark.sql(f"drop table if exists joined_{name}")


def test_the_other_side_may_be_an_ordinary_dataframe(sides: Sides) -> None:
    joined = sides.left_frame.join(sides.right, ["i", "st"], "left")
    assert differences_of(joined, sides.left.join(sides.right, ["i", "st"], "left")) == []
    assert joined._rows.layout.partitions == 4


def test_a_side_that_pyspark_marked_is_broadcast(sides: Sides) -> None:
    for marked in (sf.broadcast(sides.right), sides.right.hint("broadcast")):
        joined = sides.left_frame.join(marked, ["i", "st"], "left")
        assert isinstance(joined._chain.origin, BroadcastOrigin)
        assert differences_of(joined, sides.left.join(sides.right, ["i", "st"], "left")) == []


def test_explain_tells_what_is_joined(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    left = sortshuffle.frame(spark.createDataFrame([], "k int, v int")).repartition(2, "k")
    right = sortshuffle.frame(spark.createDataFrame([], "j int, w int"))
    joined = left.join(right, sf.col("j") == sf.col("k"), "left")
    joined.explain()
    first, second = (exchange.number for exchange in joined._chain.exchanges())
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "Result stage",
        "    left outer join on k = j, of",
        f"      * exchange {first}",
        f"      * exchange {second}",
        "    -> rows",
    ]
