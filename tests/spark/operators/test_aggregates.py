"""`groupBy().agg` and its shortcuts against plain PySpark: the same rows, in the same partitions, under the
same names and types; what is refused; and when there is no exchange."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import (
    GROUP_KEYS,
    OnlyPython,
    assert_handed_to_spark,
    assert_same_error,
    confs,
    data_frame,
    every_type,
    partition_count,
    rows_in_order,
)
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import ColumnError, UnsupportedError, UsageError

KEY_TRIPLES = [tuple(GROUP_KEYS[at : at + 3]) for at in range(0, len(GROUP_KEYS), 3)]
TINY = {"spark.sortshuffle.memory": "1m", "spark.sortshuffle.read.memory": "1m"}


@pytest.fixture(scope="module")
def typed(spark: SparkSession) -> DataFrame:
    """1200 rows with a column of every type, ``h``: doubles whose sums are exact, ``dm``: decimals of more
    digits than a long, and ``g``: 9 groups."""
    table = every_type(seed=21, rows=1200)
    random = np.random.default_rng(22)
    table = table.append_column("h", pa.array(random.integers(-999, 999, 1200) / 4))
    amounts = [Decimal(f"{each}E-3") for each in random.integers(-(2**62), 2**62, 1200).tolist()]
    table = table.append_column("dm", pa.array(amounts, pa.decimal128(24, 3)))
    table = table.append_column("g", pa.array(random.integers(0, 9, 1200)))
    return data_frame(spark, table)


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id``, ``k`` of 7 values, ``v``."""
    return spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 as k", "id * 3 % 11 as v")


def as_df(frame: Any) -> DataFrame:
    return frame.toDF() if isinstance(frame, ShuffleFrame) else frame


def as_it_is(df: DataFrame) -> DataFrame:
    return df


def without_sign(row: str) -> str:
    return re.sub(r"(?<![\w.])-0\.0(?![\d.])", "0.0", row)


def differences(
    ours: ShuffleFrame,
    plain: DataFrame,
    finish: Callable[[DataFrame], DataFrame] = as_it_is,
    *,
    places: bool = True,
) -> list[str]:
    """Rows that only one side has, after ``finish``, in that partition if ``places``: of a single partition
    Spark makes no exchange. Zeros are of no sign, because which of two that are equal is least depends on
    their order in Spark."""
    assert ours._own_rows is not None  # else Spark would be compared with itself
    assert ours.schema.simpleString() == plain.schema.simpleString()
    assert [field.nullable for field in ours.schema] == [field.nullable for field in plain.schema]
    left, right = (Counter(map(without_sign, rows_in_order(finish(as_df(each))))) for each in (ours, plain))
    if not places:
        left, right = (Counter(row.split(": ", 1)[1] for row in each.elements()) for each in (left, right))
    assert left, "nothing was compared"
    return [f"ours {row}" for row in left - right][:2] + [f"plain {row}" for row in right - left][:2]


def rounded_doubles(df: DataFrame) -> DataFrame:
    """Without the last digits, which depend on the order of additions; with lists in order."""
    return df.select(
        *(
            sf.format_string("%.10e", f"`{name}`").alias(name)
            if kind == "double"
            else sf.array_sort(f"`{name}`").alias(name)
            if kind.startswith("array")
            else df[f"`{name}`"]
            for name, kind in df.dtypes
        )
    )


# --- the same results --------------------------------------------------------------------------------------


def test_functions_of_every_type_give_what_spark_gives(typed: DataFrame) -> None:
    numeric = ["id", "by", "sh", "i", "h", "ds", "dm", "no"]
    comparable = [name for name in GROUP_KEYS if name != "no"]
    exprs = [
        sf.count("*"),
        *(sf.sum(name) for name in numeric),
        *(sf.avg(name) for name in numeric),
        *(sf.min(name) for name in comparable),
        *(sf.max(name).alias(f"most {name}") for name in comparable),
        *(sf.count(name) for name in ("a", "m", "no")),
        sf.stddev("i"),
        sf.stddev_pop("h"),
        sf.variance("ds"),
        sf.var_pop("by"),
        sf.bool_and("bo"),
        sf.bool_or("bo"),
        sf.count_if("bo"),
    ]  # fmt: skip

    def job(frame: Any) -> Any:
        return frame.groupBy("g").agg(*exprs)

    assert differences(job(sortshuffle.frame(typed)), job(typed), rounded_doubles) == []


def test_the_spread_of_decimals_is_sparks_also_if_it_is_small_beside_them(spark: SparkSession) -> None:
    """The differences are in the last digits of the doubles that the decimals become."""
    groups = [
        ("562490066.55", "562490066.56"),
        ("8921068662.693023", "8921068662.693024"),
        ("19.99", "20.01", "20.03"),
        ("0.1", "0.3"),
    ]
    rows = [(k, Decimal(value)) for k, group in enumerate(groups) for value in group]
    plain = spark.createDataFrame(rows, "k int, d decimal(18, 6)")

    def job(frame: Any) -> Any:
        return frame.groupBy("k").agg(sf.stddev("d"), sf.var_pop("d"))

    assert differences(job(sortshuffle.frame(plain)), job(plain), rounded_doubles) == []
    found = {row["k"]: row["stddev(d)"] for row in job(sortshuffle.frame(plain)).collect()}
    assert found[0] == pytest.approx((562490066.56 - 562490066.55) / 2**0.5, rel=1e-12)
    assert found[1] == 0.0  # both are the same double


def test_zeros_have_the_sign_that_spark_gives_them(spark: SparkSession) -> None:
    """Of zeros that are equal Spark takes the first. All rows come from one partition, so that the order of
    Spark's rows is known; every group of up to 3 of these values is there."""
    values = [0.0, -0.0, float("nan"), None, 1.5, -1.5]
    groups = [group for size in (1, 2, 3) for group in product(values, repeat=size)]
    rows = [(k, value) for k, group in enumerate(groups) for value in group]
    plain = spark.createDataFrame(rows, "k int, d double").coalesce(1)
    plain = plain.selectExpr(
        "k", "d", "cast(d as float) f", "struct(d) x", "struct(cast(d as float), struct(d)) xx"
    )
    columns = ["d", "f", "x", "xx"]
    exprs = [
        *(sf.min(name) for name in columns),
        *(sf.max(name) for name in columns),
        *(sf.first(name) for name in columns),
        *(sf.last(name, ignorenulls=True) for name in columns),
        sf.sum("d"),
        sf.avg("f"),
    ]

    def job(frame: Any) -> Any:
        return frame.groupBy("k").agg(*exprs)

    ours, sparks = (
        sorted(row.split(": ", 1)[1] for row in rows_in_order(as_df(job(each))))
        for each in (sortshuffle.frame(plain), plain)
    )
    assert len(sparks) == len(groups)
    assert ours == sparks


def columns_scanned_by_spark(frame: ShuffleFrame) -> list[str]:
    """What Spark reads of files for the first stage: the ``ReadSchema`` of its plan."""
    origin = frame._chain.origin
    while exchanges := origin.exchanges():
        (exchange,) = exchanges
        origin = exchange.upstream.origin
    plan: Any = origin.rows()._jdf.queryExecution().executedPlan()  # type: ignore[operator]
    leaves = plan.collectLeaves()
    assert leaves.size() == 1, plan.toString()
    return list(leaves.apply(0).requiredSchema().fieldNames())


def test_rows_are_counted_without_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    """What cannot be read is not read."""
    path = tmp_path / "damaged"
    pq.write_table(pa.table({"n": range(1000), "text": ["some words"] * 1000}), path, compression="none")
    footer = pq.read_metadata(path)
    damaged = bytearray(path.read_bytes())
    chunks = [footer.row_group(0).column(number) for number in range(2)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    for start in starts:
        damaged[start : start + 16] = bytes(16)
    path.write_bytes(damaged)
    for frame in (
        sortshuffle.read(spark).parquet(str(path)),
        sortshuffle.frame(spark.read.parquet(str(path))),
    ):
        with pytest.raises(Exception, match=r"(?i)page|thrift|not a parquet"):
            frame.collect()
        assert frame.count() == 1000


def test_only_columns_that_are_needed_are_read(
    spark: SparkSession, typed: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["g", "id", "h", "st", "no"]
    typed.select(*wanted).repartition(2, "id").write.parquet(str(tmp_path / "files"))
    files = spark.read.parquet(str(tmp_path / "files"))
    bare = sortshuffle.frame(files.withColumn("no", sf.expr("nvl(no, no)")))  # rows that Spark makes
    scan = sortshuffle.read(spark).parquet(str(tmp_path / "files"))
    jobs_of: list[tuple[Callable[[Any], Any], list[str]]] = [
        (lambda frame: frame.groupBy("g").count(), ["g"]),
        (lambda frame: frame.groupBy("st").agg(sf.max("id"), sf.sum("h"), sf.count("*")), ["id", "h", "st"]),
        (lambda frame: frame.groupBy("g", "st").agg(sf.count_distinct("id")), ["g", "id", "st"]),
        (lambda frame: frame.agg(sf.min("h")), ["h"]),
        (lambda frame: frame.agg(sf.count("*")), []),
        (lambda frame: frame.groupBy("g").max("id", "g"), ["g", "id"]),
    ]
    for job, read in jobs_of:
        for frame in (bare, scan):
            ours = job(frame)
            assert differences(ours, job(files), places=False) == []
            ours.explain()
            text = capsys.readouterr().out
            listed = re.search(r"rows of DataFrame\[(.*)\]|scan of .*?: (.*)", text)
            assert listed is not None, text
            names = [name.strip() for name in (listed[1] or listed[2] or "").split(",")]
            assert sorted(filter(None, names)) == sorted(read)
            if frame is bare:
                assert sorted(columns_scanned_by_spark(ours)) == sorted(read)
    assert (bare.count(), scan.count()) == (1200, 1200)
    few = scan.filter(pc.field("id") < 700).groupBy("g").count()
    assert differences(few, files.filter("id < 700").groupBy("g").count(), places=False) == []
    dotted = sortshuffle.frame(files.toDF("a.b", "id", "c`d", "st", "no"))  # names that Spark takes apart
    assert differences(dotted.groupBy("st").count(), files.groupBy("st").count(), places=False) == []


def test_distinct_values_and_lists_of_every_type_are_sparks(typed: DataFrame) -> None:
    exprs = [
        *(sf.count_distinct(name) for name in GROUP_KEYS),
        sf.count_distinct("by", "st"),
        sf.sum_distinct("i"),
        sf.sum_distinct("ds"),
        sf.sum("i"),
        sf.count("id").alias("rows"),
        *(sf.collect_set(name) for name in ("st", "by", "x", "da", "ds", "f", "d")),
        *(sf.collect_list(name) for name in ("st", "by", "x", "a", "d")),
    ]

    def job(frame: Any) -> Any:
        return frame.groupBy("bo").agg(*exprs)

    assert differences(job(sortshuffle.frame(typed)), job(typed), rounded_doubles) == []


@pytest.mark.parametrize("keys", KEY_TRIPLES, ids="-".join)
def test_keys_of_every_type_make_sparks_groups_in_its_places(typed: DataFrame, keys: tuple[str, ...]) -> None:
    def job(frame: Any) -> Any:
        return frame.groupBy(*keys).agg(sf.sum("id").alias("ids"), sf.count("*"), sf.countDistinct("g"))

    assert differences(job(sortshuffle.frame(typed)), job(typed)) == []


def test_first_and_last_are_of_the_first_and_last_row_of_one_partition(typed: DataFrame) -> None:
    one = typed.select("g", "id", "st", "a", "m", "xx", "ts").coalesce(1)
    exprs = [
        *(sf.first(name) for name in ("id", "st", "a", "m")),
        *(sf.last(name) for name in ("id", "st", "a", "xx")),
        *(sf.first(name, ignorenulls=True).alias(f"first {name}") for name in ("st", "xx", "ts")),
        *(sf.last(name, True).alias(f"last {name}") for name in ("st", "a")),
        sf.any_value("ts"),
        sf.first_value("a"),
        sf.last_value("ts", True),
        sf.collect_list("st"),
    ]

    def job(frame: Any) -> Any:
        return frame.groupBy("g").agg(*exprs)

    assert differences(job(sortshuffle.frame(one)), job(one), places=False) == []


def test_all_rows_are_one_group_also_when_there_are_none(typed: DataFrame) -> None:
    exprs = [
        sf.count("*"),
        sf.sum("i"),
        sf.sum("ds"),
        sf.avg("h"),
        sf.min("st"),
        sf.max("f"),
        sf.stddev("h"),
        sf.count_distinct("st"),
        sf.collect_list("no"),
        sf.first("bi"),
    ]

    def job(frame: Any) -> Any:
        return frame.agg(*exprs)

    for df in (typed.coalesce(1), typed.where("id < 0")):
        ours = job(sortshuffle.frame(df))
        assert differences(ours, job(df), rounded_doubles) == []
        assert partition_count(ours) == 1
    grouped = sortshuffle.frame(typed.where("id < 0")).groupBy("g").agg(*exprs)
    assert grouped.collect() == []
    assert partition_count(grouped) == 5


def test_the_shortcuts_take_the_columns_that_spark_takes(typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    for name in ("sum", "avg", "mean", "min", "max"):
        for keys, cols in ((("i",), ()), (("st", "bo"), ("D", "i")), ((), ("h",))):
            ours, plain = (getattr(each.groupBy(*keys), name)(*cols) for each in (frame, typed))
            assert ours.schema == plain.schema
    assert frame.groupBy("st").count().schema == typed.groupBy("st").count().schema
    assert differences(frame.groupBy("by").count(), typed.groupBy("by").count()) == []
    some = ("by", "i", "h", "ds")
    for name in ("sum", "max"):
        ours, plain = (getattr(each.select("g", *some).groupBy("g"), name)() for each in (frame, typed))
        assert differences(ours, plain) == []


def test_a_dict_gives_the_columns_in_sparks_order(typed: DataFrame) -> None:
    several = {"i": "sum", "lo": "max", "h": "mean", "*": "count", "bo": "min", "by": "STD", "x": "first"}
    for some in (several, {"i": "avg", "*": "size"}, {"H": "average"}):
        ours = sortshuffle.frame(typed).groupBy("g").agg(some)
        assert ours.schema.simpleString() == typed.groupBy("g").agg(some).schema.simpleString()
    ours = sortshuffle.frame(typed).agg({"id": "sum", "*": "count"})
    assert ours.collect() == typed.agg({"id": "sum", "*": "count"}).collect()


def test_names_are_those_that_spark_gives(spark: SparkSession, numbers: DataFrame) -> None:
    odd = numbers.selectExpr("k as `a.b`", "v as `c d`", "id as `e``f`", "v as plain", "v > 3 as flag")
    exprs = [
        sf.sum("`c d`"),
        sf.sum(sf.col("PLAIN")),
        sf.mean("plain"),
        sf.count(sf.lit(1)).alias("n"),
        sf.countDistinct("`c d`", "`a.b`"),
        sf.max("`e``f`"),
        sf.first("plain", True),
        sf.array_agg("plain"),
        sf.every(sf.col("flag")),
        sf.sum(odd.plain).alias("x.y"),
    ]
    ours = sortshuffle.frame(odd).groupBy("`a.b`").agg(*exprs)
    assert ours.columns == odd.groupBy("`a.b`").agg(*exprs).columns
    with confs(spark, {"spark.sql.ansi.enforceReservedKeywords": "true"}):
        reserved = [*exprs, sf.some("flag"), sf.any_value("plain"), sf.last("plain").alias("any")]
        for some in (reserved, [{"flag": "any", "plain": "first"}], [{"flag": "SOME", "*": "count"}]):
            ours = sortshuffle.frame(odd).groupBy("`a.b`").agg(*some)
            assert ours._own_rows is not None
            assert ours.columns == odd.groupBy("`a.b`").agg(*some).columns
        ours, plain = (each.groupBy("plain").agg(sf.some("flag")) for each in (sortshuffle.frame(odd), odd))
        assert differences(ours, plain) == []
    with confs(spark, {"spark.sql.retainGroupColumns": "false"}):
        without = sortshuffle.frame(odd).groupBy("`a.b`").agg(sf.sum("plain").alias("s"))
        assert without.columns == ["s"]
        plain = odd.groupBy("`a.b`").agg(sf.sum("plain").alias("s"))
        assert differences(without, plain) == []


# --- overflow ----------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_an_error_in_ansi_mode_and_else_what_spark_makes_of_it(
    spark: SparkSession,
) -> None:
    most = Decimal("9" * 38)
    table = pa.table(
        {
            "k": [1, 1, 2],
            "v": [2**63 - 1, 1, 5],
            "d": pa.array([most, most, Decimal(3)], pa.decimal128(38, 0)),
            "e": pa.array([Decimal(10**36), Decimal(10**36), Decimal(1)], pa.decimal128(38, 0)),
        }
    )
    df = data_frame(spark, table).coalesce(1)
    frame = sortshuffle.frame(df)
    with pytest.raises(PythonException, match=r"ResultOverflowError: total does not fit into a long"):
        frame.groupBy("k").agg(sf.sum("v").alias("total")).collect()
    with confs(spark, {"spark.sql.ansi.enabled": "false"}):
        exprs = [sf.sum("v"), sf.sum("d"), sf.avg("d"), sf.avg("e")]
        ours, plain = (each.groupBy("k").agg(*exprs) for each in (frame, df))
        assert differences(ours, plain, places=False) == []


# --- exchanges, order and memory ---------------------------------------------------------------------------


def exchanges(frame: ShuffleFrame) -> int:
    return len(list(frame._chain.exchanges()))


def test_rows_that_are_placed_by_some_of_the_keys_are_not_exchanged_again(numbers: DataFrame) -> None:
    def job(frame: Any) -> Any:
        return frame.repartition(3, "k")

    exprs = [sf.sum("id"), sf.count_distinct("v").alias("n")]
    ours, plain = (job(each).groupBy("v", "k").agg(*exprs) for each in (sortshuffle.frame(numbers), numbers))
    assert exchanges(ours) == 1
    assert partition_count(ours) == 3
    assert differences(ours, plain) == []
    again = ours.groupBy("k").agg(sf.sum("n").alias("n"), sf.first("v"))
    assert exchanges(again) == 1
    assert sorted((row.k, row.n) for row in again.collect()) == [(k, 11) for k in range(7)]
    other = ours.groupBy("v").count()
    assert exchanges(other) == 2


def test_rows_that_come_in_groups_are_aggregated_as_they_come(numbers: DataFrame) -> None:
    def job(frame: Any) -> Any:
        return frame.repartition(3, "k").sortWithinPartitions(sf.desc("k"), "v", "id")

    exprs = [sf.sum("id"), sf.first("id"), sf.last("v"), sf.count("*").alias("n")]
    ours, plain = (job(each).groupBy("v", "k").agg(*exprs) for each in (sortshuffle.frame(numbers), numbers))
    assert differences(ours, plain) == []
    steps = [step.describe() for step in ours._chain.steps]
    assert any("each row by itself" in step for step in steps)
    assert not any("sort" in step for step in steps)


def test_groups_and_lists_larger_than_memory_are_sparks(spark: SparkSession) -> None:
    random = np.random.default_rng(5)
    rows = 60_000
    keys = np.where(random.random(rows) < 0.5, 0, random.integers(1, 40_000, rows))
    texts = [f"{each:030d}" for each in random.integers(0, 50_000, rows)]
    df = data_frame(spark, pa.table({"id": np.arange(rows), "k": keys, "s": texts}))
    exprs = [sf.sum("id"), sf.count_distinct("s"), sf.max("s"), sf.collect_list("id")]
    with confs(spark, TINY):
        ours = sortshuffle.frame(df).groupBy("k").agg(*exprs)
    assert differences(ours, df.groupBy("k").agg(*exprs), rounded_doubles) == []
    written = ours.stage_totals()[0]
    assert written.metrics.counts["regions"] >= 2 * written.tasks


def test_fewer_rows_are_written_than_came_where_keys_come_again(numbers: DataFrame) -> None:
    ours = sortshuffle.frame(numbers).groupBy("k").count()
    assert sorted((row.k, row["count"]) for row in ours.collect()) == [
        (k, 143 if k < 6 else 142) for k in range(7)
    ]
    written = ours.stage_totals()[0]
    assert written.metrics.counts["rows_in"] == 1000
    assert written.metrics.counts["rows_written"] == 7 * 4


def test_an_aggregate_is_explained(numbers: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    sortshuffle.frame(numbers).groupBy("k").agg(sf.sum("v"), sf.count_distinct("id")).explain()
    printed = capsys.readouterr().out
    assert "groupBy(k).agg(sum(v), count(DISTINCT id)), as far as a task sees" in printed


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (lambda: sf.sum(sf.col("i") + 1), "only plain columns are aggregated"),
        (lambda: sf.sum("i") + 1, "not one aggregate function"),
        (lambda: sf.col("i"), "not one aggregate function"),
        (lambda: sf.expr("sum(i)"), "write it with functions"),
        (lambda: sf.approx_count_distinct("i"), "approx_count_distinct is none of the functions"),
        (lambda: sf.percentile("i", 0.5), "percentile is none of the functions"),
        (lambda: sf.sum("st"), "cast the column to a number first"),
        (lambda: sf.avg("st"), "cast the column to a number first"),
        (lambda: sf.stddev("st"), "cast the column to a number first"),
        (lambda: sf.sum("iv"), "cast the column to a number first"),
        (lambda: sf.max("a"), "not compared here as Spark compares them"),
        (lambda: sf.count_distinct("i", "a"), "not compared here as Spark compares them"),
        (lambda: sf.collect_set("ax"), "not compared here as Spark compares them"),
        (lambda: sf.min("collated"), "not compared here as Spark compares them"),
    ],
)
def test_what_cannot_equal_spark_is_refused(typed: DataFrame, expr: Callable[[], Any], message: str) -> None:
    frame = sortshuffle.frame(typed.selectExpr("*", "st collate UTF8_LCASE as collated"))
    with pytest.raises(UnsupportedError, match=message):
        OnlyPython(frame).groupBy("g").agg(expr())


def test_spark_aggregates_what_python_cannot(typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    for exprs in (
        [sf.sum(sf.col("h") * 2)],
        [sf.count_distinct("i", "a")],
        [{"i": "approx_count_distinct"}],
    ):
        ours, plain = (each.groupBy("g").agg(*exprs) for each in (frame, typed))
        assert_handed_to_spark(ours, plain, "agg")
    for ours, plain in (
        (
            frame.groupBy((sf.col("by") % 3).alias("j")).count(),
            typed.groupBy((sf.col("by") % 3).alias("j")).count(),
        ),
        (frame.groupBy("a").count(), typed.groupBy("a").count()),
    ):
        assert_handed_to_spark(ours, plain, "count")


def test_spark_s_own_errors_come_through(typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    for job in (
        lambda each: each.groupBy("g").agg(sf.sum("bo")),
        lambda each: each.groupBy("g").agg(sf.min("m")),
        lambda each: each.groupBy("g").agg(sf.collect_set("m")),
        lambda each: each.groupBy("g").sum("st"),
        lambda each: each.groupBy("g").max("nope"),
    ):
        for each in (frame, typed):
            with pytest.raises(AnalysisException):
                job(each)


def test_calls_that_make_no_sense_are_refused(spark: SparkSession, typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    grouped = OnlyPython(frame).groupBy("g")
    with pytest.raises(UsageError, match="agg\\(\\) takes aggregate Columns"):
        grouped.agg()
    with pytest.raises(UsageError, match="agg\\(\\) takes aggregate Columns"):
        grouped.agg("i")
    with pytest.raises(UsageError, match="a dict of column names and function names"):
        grouped.agg({"i": 3})
    with pytest.raises(UnsupportedError, match="none of the functions"):
        grouped.agg({"i": "nope"})
    with pytest.raises(ColumnError, match="there is no column 'nope'"):
        grouped.agg(sf.sum("nope"))
    with pytest.raises(UnsupportedError, match=r"several columns are named sum\(i\)"):
        grouped.agg(sf.sum("i"), sf.sum("i"))
    legacy = confs(spark, {"spark.sql.legacy.statisticalAggregate": "true"})
    with legacy, pytest.raises(UnsupportedError, match=r"legacy.statisticalAggregate to false"):
        grouped.agg(sf.stddev("i"))


@pytest.mark.parametrize(
    "exprs", [(), ("i",), ({"i": 3},), ({"i": "nope"},), (sf.sum,)], ids=["none", "str", "int", "nope", "def"]
)
def test_wrong_calls_are_pysparks_to_judge(typed: DataFrame, exprs: tuple[Any, ...]) -> None:
    assert_same_error(lambda each: each.groupBy("g").agg(*exprs), sortshuffle.frame(typed), typed)
