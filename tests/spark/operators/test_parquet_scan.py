"""`scan_of`: the rows and the schema that Spark reads, or a reason why Spark must read them.

Our side is scanned in this process, by what a worker would run; one test runs workers.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import confs, differences, every_type
from parquet_cases import write, write_by_early_pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle.errors import UsageError
from sortshuffle.spark.frame.frames import frame_of
from sortshuffle.spark.manager.jar import jar_path
from sortshuffle.spark.operators.dataframe_facts import DataFrameFacts
from sortshuffle.spark.operators.parquet_scan import NoScan, scan_of
from sortshuffle.spark.operators.plan_json import Expression
from sortshuffle.spark.plan.chain import FrameContext, Rows
from sortshuffle.spark.plan.origins import DataFrameOrigin, ParquetOrigin
from sortshuffle.spark.worker.stages import PerBatchStep

pytestmark = pytest.mark.skipif(not os.path.exists(jar_path()), reason="there is no jar: tools/jar builds it")


@pytest.fixture(autouse=True)
def in_utc(spark: SparkSession) -> Iterator[None]:
    with confs(spark, {"spark.sql.session.timeZone": "UTC"}):  # as PySpark's toArrow() labels timestamps
        yield


def translate(condition: Expression, names: Mapping[int, str]) -> pc.Expression | None:
    """Comparisons of a column with a literal, and nulls."""
    kinds = [node["class"].rsplit(".", 1)[-1] for node in condition if not node["class"].endswith(".Cast")]
    column = next(pc.field(names[node["exprId"]["id"]]) for node in condition if "exprId" in node)
    if kinds == ["IsNotNull", "AttributeReference"]:
        return column.is_valid()
    if kinds != ["GreaterThan", "AttributeReference", "Literal"]:
        return None
    return column > int(condition[-1]["value"])


def rows_of(df: DataFrame) -> Rows:
    rows = scan_of(df, DataFrameFacts.of(df), FrameContext.of(df.sparkSession), translate)
    assert isinstance(rows, Rows), rows
    return rows


def origin_of(rows: Rows) -> ParquetOrigin:
    assert isinstance(rows.chain.origin, ParquetOrigin)
    return rows.chain.origin


def scanned(rows: Rows) -> pa.Table:
    origin = origin_of(rows)
    opening: Any = origin.opening()
    batches = (batch for split in range(len(origin.splits)) for batch in opening.scan.read(split))
    for step in rows.chain.steps:
        assert isinstance(step, PerBatchStep)
        batches = step(batches)
    return pa.Table.from_batches(batches, rows.chain.wire)


def printed(table: pa.Table) -> list[str]:
    columns = [column.to_pylist() for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True))) if columns else ["()"] * table.num_rows


def same(df: DataFrame) -> list[str]:
    """The rows, which must be the same by Spark and by us."""
    rows = rows_of(df)
    assert rows.schema == df.schema
    assert rows.chain.wire == rows.context.wire(df.schema)
    ours = printed(scanned(rows))
    plain = printed(df.toArrow()) if df.columns else ["()"] * df.count()
    assert ours == plain
    return ours


def reason(df: DataFrame) -> str:
    result = scan_of(df, DataFrameFacts.of(df), FrameContext.of(df.sparkSession))
    assert isinstance(result, NoScan), result
    return result.reason


@pytest.fixture
def two(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Two columns, of two files."""
    write(tmp_path / "two" / "f.parquet", {"a": [1, 2, None], "b": ["x", None, "z"]})
    write(tmp_path / "two" / "g.parquet", {"a": [4], "b": ["y"]})
    return spark.read.parquet(str(tmp_path / "two"))


# --- the same rows as Spark ------------------------------------------------------------------------------


@pytest.mark.usefixtures("generated_code")
def test_every_type(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(every_type(seed=7, rows=500).drop(["iv", "no"]), tmp_path / "f.parquet", row_group_size=99)

    assert len(same(spark.read.parquet(str(tmp_path)))) == 500


def test_types_that_only_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    written = spark.sql(
        "select interval '1 02:03:04.5' day to second i, interval '7' hour h, 1.5BD d, cast(2 as tinyint) t,"
        " timestamp'2024-03-10 02:30:00' ts, timestamp_ntz'2024-03-10 02:30:00' n, x'00ff' b, named_struct("
        "'x', 1, 'y', array(map('k', cast(null as date)))) s"
    )
    written.write.parquet(str(tmp_path / "t"))
    for kind in ("TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        with confs(spark, {"spark.sql.parquet.outputTimestampType": kind}):
            written.write.mode("append").parquet(str(tmp_path / "t"))

    assert len(same(spark.read.parquet(str(tmp_path / "t")))) == 3


@pytest.mark.parametrize(
    "chosen",
    [
        lambda df: df.select("b", "a"),
        lambda df: df.select("b"),
        lambda df: df.select(sf.col("a").alias("b"), sf.col("b").alias("a")),
        lambda df: df.select("a", sf.col("a").alias("again"), sf.col("a").alias("a b.c")),
        lambda df: df.select(),
        lambda df: df.drop("a"),
        lambda df: df.withColumnRenamed("a", "c").select("c").alias("t").select("t.*"),
        lambda df: df.toDF("p", "q").select("q", "p").toDF("p", "q"),
        lambda df: df.withMetadata("a", {"comment": "a key"}),
        lambda df: df.select("B", "A"),
    ],
    ids=lambda _: "",
)
def test_selections_and_names(two: DataFrame, chosen: Callable[[DataFrame], DataFrame]) -> None:
    assert len(same(chosen(two))) == 4


_NAMES = ["a", "b", "p", "x y"]
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(range(9)), st.integers(-1, 6)),
        st.lists(
            st.tuples(st.sampled_from(range(9)), st.sampled_from(_NAMES)), unique_by=lambda pair: pair[1]
        ),
    ),
    max_size=4,
)


@settings(max_examples=20)
@given(steps=_STEPS)
def test_any_selections_and_filters(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("any")
    for at in range(3):
        write(root / f"p={at}" / "f.parquet", {"a": [at, 5, None], "b": [3 - at, None, 4]}, row_group_size=1)
    df = spark.read.parquet(str(root))
    for step in steps:
        columns = [sf.col(f"`{name}`") for name in df.columns]
        if not columns:
            break
        if isinstance(step, tuple):
            df = df.where(columns[step[0] % len(columns)] > step[1])
        else:
            df = df.select(*(columns[at % len(columns)].alias(name) for at, name in step))
    same(df)


def test_sql_of_files(spark: SparkSession, two: DataFrame, tmp_path: Path) -> None:
    assert len(same(spark.sql(f"select b as x, a from parquet.`{tmp_path}/two` t"))) == 4


def test_only_the_needed_columns_are_read(two: DataFrame) -> None:
    assert origin_of(rows_of(two.select("b"))).file_columns == ("b",)
    assert origin_of(rows_of(two.where("a > 1").select("b"))).file_columns == ("b", "a")


def test_filters(two: DataFrame) -> None:
    assert len(same(two.where("a > 1"))) == 2
    assert len(same(two.where("a > 1 and b is not null").select("b"))) == 1
    assert len(same(two.toDF("b", "a").where("b > 1").withColumnRenamed("b", "c").where("c > 2"))) == 1
    assert same(two.where("a > 1").select("b").where("b is not null").select()) == ["()"]
    assert len(same(two.where("b is not null").select("a", sf.col("a").alias("b")))) == 3


def test_each_condition_of_a_conjunction_is_a_filter_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    numbers = pa.array([float(number) for number in range(100)])
    write(tmp_path / "f.parquet", {"k": range(100), "x": numbers}, row_group_size=10)
    df = spark.read.parquet(str(tmp_path)).where("x > 5 and k > 72 and x is not null")

    origin = origin_of(rows_of(df))
    assert len(origin.filters) == 3
    assert [group for split in origin.splits for piece in split for group in piece.row_groups] == [7, 8, 9]
    assert len(same(df)) == 27


def test_rows_that_workers_scan(spark: SparkSession, tmp_path: Path) -> None:
    days = "d=2024-03-10 02%3A30%3A00", "d=2024-11-03 01%3A30%3A00", "d=__HIVE_DEFAULT_PARTITION__"
    for day in days:
        write(tmp_path / day / "f.parquet", {"k": [1, 2, None], "t": pa.array([0, 1, 2], pa.timestamp("us"))})
    with confs(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        df = spark.read.parquet(str(tmp_path)).where("k > 0").select("t", "d", "k")
        ours = frame_of(rows_of(df), spark).repartition(3, "k", "d")

        assert differences(ours, df.repartition(3, "k", "d")) == []


# --- files -----------------------------------------------------------------------------------------------


def test_a_wrapped_scan_is_read_by_the_workers(two: DataFrame) -> None:
    frame = sortshuffle.frame(two.filter("a > 2"))
    assert frame.schema == two.schema
    assert frame.toDF().schema == two.schema
    moved = frame.repartition(3, "a")
    (exchange,) = moved._chain.origin.exchanges()
    assert isinstance(exchange.upstream.origin, ParquetOrigin)
    assert differences(moved, two.filter("a > 2").repartition(3, "a")) == []
    assert moved.filter(frame.a > 3).count() == two.filter("a > 3").count()
    assert frame.count() == two.filter("a > 2").count()


def test_a_wrapped_scan_that_is_cached_is_read_from_the_cache(two: DataFrame) -> None:
    frame = sortshuffle.frame(two.select("*")).cache()
    try:
        assert isinstance(
            frame.repartition(3, "a")._chain.origin.exchanges()[0].upstream.origin, DataFrameOrigin
        )
    finally:
        frame.unpersist()


@pytest.mark.parametrize("cached", ["frame", "dataframe"])
def test_rows_that_are_cached_after_the_first_operator_are_read_from_the_cache(
    two: DataFrame, tmp_path: Path, cached: str
) -> None:
    df = two.select("*")
    frame = sortshuffle.frame(df)
    derived = frame.repartition(2, "a")
    kept = frame if cached == "frame" else df
    kept.cache()
    try:
        assert kept.count() == 4
        shutil.rmtree(tmp_path / "two")
        assert frame.filter("a > 1").count() == 2
        if cached == "frame":
            assert derived.count() == 4
    finally:
        kept.unpersist()


def test_what_is_wrapped_stays_what_it_is_for_spark(two: DataFrame) -> None:
    frame = sortshuffle.frame(two)
    assert frame.toDF() is two
    frame.repartition(3, "a")
    assert frame.toDF() is two


def test_files_are_those_that_spark_listed(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "a b%20é+?"
    for name in ("f.parquet", "_hidden.parquet", ".dot.parquet", "no suffix", "_a=1", "c._COPYING_"):
        write(root / name, {"k": [name]})
    (root / "empty.parquet").touch()
    write(root / "below" / "g.parquet", {"k": ["below"]})
    df = spark.read.parquet(str(root).replace("?", "*"))

    assert same(df) == ["('_a=1',)", "('f.parquet',)", "('no suffix',)"]
    assert len(same(spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path)))) == 4
    assert len(same(spark.read.option("pathGlobFilter", "f.*").parquet(f"{tmp_path}/*"))) == 1
    late = {"modifiedAfter": "2999-01-01T00:00:00"}
    assert same(spark.read.schema("k string").options(**late).parquet(f"{tmp_path}/*")) == []
    write(root / "later.parquet", {"k": ["later"]})
    assert len(same(df)) == 3


def test_files_given_twice_are_read_twice(spark: SparkSession, two: DataFrame, tmp_path: Path) -> None:
    path = str(tmp_path / "two")

    assert len(same(spark.read.parquet(path, path, f"{path}/f.parquet"))) == 4 + 4 + 3


def test_no_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()

    assert same(spark.read.schema("a int, b array<string>").parquet(str(tmp_path / "none"))) == []


def test_a_file_that_has_vanished_is_an_error(two: DataFrame, tmp_path: Path) -> None:
    rows = rows_of(two)
    (tmp_path / "two" / "g.parquet").unlink()

    with pytest.raises(UsageError, match=r"g\.parquet cannot be read"):
        scanned(rows)


# --- schemas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        "b string, a long, c int",
        "A double",
        "a decimal(30,2)",
        "c struct<x:int>, B binary",
        "a short, b string",
    ],
)
def test_a_schema_that_the_user_gives(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    write(tmp_path / "f.parquet", {"a": pa.array([1, -2, None], pa.int32()), "b": ["x", None, "z"]})
    write(tmp_path / "g.parquet", {"b": ["q"]})

    assert len(same(spark.read.schema(schema).parquet(str(tmp_path)))) == 4


def test_nested_fields_that_files_lack(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", {"s": [{"x": 1, "Y": ["a"]}, None], "l": [[{"p": 1}], []]})
    schema = "l array<struct<q:string,p:long>>, s struct<y:array<string>,z:struct<n:int>,x:long>"
    for returned in ("true", "false"):
        name = "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing"
        with confs(spark, {name: returned}):
            same(spark.read.schema(schema).parquet(str(tmp_path)))
            same(spark.read.schema("s struct<n:int>").parquet(str(tmp_path)))


def test_merged_schemas(spark: SparkSession, tmp_path: Path) -> None:
    decimals = [pa.array([Decimal("1.5")], pa.decimal128(precision, 1)) for precision in (5, 12, 25)]
    for at, column in enumerate(decimals):
        write(tmp_path / f"{at}.parquet", {f"only{at}": [at], "d": column, "Case" if at else "case": [at]})

    assert len(same(spark.read.option("mergeSchema", "true").parquet(str(tmp_path)))) == 3
    assert len(same(spark.read.schema("d decimal(25,1)").parquet(str(tmp_path)))) == 3


def test_files_of_other_types_than_the_schema(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"t": pa.array([1, None], pa.timestamp("ms", "UTC")), "i": [1, 2]})
    write(tmp_path / "1.parquet", {"t": pa.array([1, None], pa.timestamp("us")), "i": [1, 2]})
    write(
        tmp_path / "2.parquet",
        {"i": pa.array([1, 2], pa.int16()), "t": pa.array([3, None], pa.timestamp("us"))},
        use_deprecated_int96_timestamps=True,
    )

    assert len(same(spark.read.schema("t timestamp, i long").parquet(str(tmp_path)))) == 6
    assert len(same(spark.read.schema("t timestamp_ntz").parquet(str(tmp_path)))) == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.parquet.binaryAsString", "true"),
        ("spark.sql.parquet.inferTimestampNTZ.enabled", "false"),
        ("spark.sql.legacy.parquet.nanosAsLong", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION"),
    ],
)
def test_settings_for_the_types_of_files(spark: SparkSession, tmp_path: Path, name: str, value: str) -> None:
    columns: dict[str, Any] = {"b": [b"text", None], "t": pa.array([5, None], pa.timestamp("us"))}
    if "nanos" in name:
        columns["n"] = pa.array([1, 2], pa.timestamp("ns"))
    write(tmp_path / "f.parquet", columns)
    with confs(spark, {name: value}):
        assert len(same(spark.read.parquet(str(tmp_path)))) == 2


def test_names_that_differ_in_case(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", {"a": [1], "A": [2], "b.c": [3], "b": [{"c": 4}], "`q`": [5]})
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        df = spark.read.parquet(str(tmp_path))
        assert same(df) == ["(1, 2, 3, {'c': 4}, 5)"]
        assert same(df.select("A", "`b.c`")) == ["(2, 3)"]

    assert "two columns of one name, a and A" in reason(df.select("`b.c`"))


# --- partition columns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-7", "__HIVE_DEFAULT_PARTITION__"], "int"),
        (["99999999999", "1"], "bigint"),
        (["9" * 20, "5"], "decimal(20,0)"),
        (["1.5", "NaN", "-0.0", "Infinity", "1e300"], "double"),
        (["2024-02-29", "1582-10-04", "0001-01-01"], "date"),
        (["2024-03-10 02%3A30%3A00", "1900-01-01 00%3A00%3A00.5"], "timestamp"),
        (["a%2Fb", "x, y]", 'é\n"\\', "__HIVE_DEFAULT_PARTITION__"], "string"),
    ],
)
def test_values_of_directories(spark: SparkSession, tmp_path: Path, texts: list[str], kind: str) -> None:
    for at, text in enumerate(texts):
        write(tmp_path / f"p={text}" / f"q={at}" / "f.parquet", {"a": [at, None]})
    df = spark.read.parquet(str(tmp_path))

    assert df.schema["p"].dataType.simpleString() == kind
    assert len(same(df)) == 2 * len(texts)
    same(df.select("p"))
    same(df.select("q", "a").where("a > 0 and q > 0"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("byte", "7"),
        ("short", "-3"),
        ("float", "0.1"),
        ("boolean", "true"),
        ("decimal(9,2)", "1.50"),
        ("timestamp_ntz", "2024-03-10 02%3A30%3A00"),
        ("string", "007"),
        ("date", "2024-01-01"),
    ],
)
def test_types_that_the_user_gives_directories(
    spark: SparkSession, tmp_path: Path, kind: str, text: str
) -> None:
    for each in (text, "__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / f"p={each}" / "f.parquet", {"a": [1]})

    assert len(same(spark.read.schema(f"p {kind}, a long").parquet(str(tmp_path)))) == 2


def test_values_that_are_all_null(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "p=__HIVE_DEFAULT_PARTITION__" / "f.parquet", {"a": [1]})

    assert "partition column 'p'" in reason(spark.read.parquet(str(tmp_path)).select("a"))


def test_a_column_of_files_and_directories(spark: SparkSession, tmp_path: Path) -> None:
    for value in (1, 2):
        write(tmp_path / f"K={value}" / "f.parquet", {"a": ["x"], "k": ["in the file"], "z": [None]})
    df = spark.read.parquet(str(tmp_path))

    assert df.columns == ["a", "K", "z"]
    assert len(same(df.select("a", "k").where("K > 1"))) == 1
    assert len(same(spark.read.option("basePath", str(tmp_path)).parquet(str(tmp_path / "K=1")))) == 1
    one = spark.read.parquet(str(tmp_path / "K=1"))
    assert same(one.select("k")) == ["('in the file',)"]


def test_a_filter_on_directories_opens_no_other_file(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "p=1" / "f.parquet", {"a": [1]})
    write(tmp_path / "p=2" / "f.parquet", {"a": [2]})
    rows = rows_of(spark.read.parquet(str(tmp_path)).where("p > 1"))
    (tmp_path / "p=1" / "f.parquet").write_bytes(b"no Parquet")

    assert printed(scanned(rows)) == ["(2, 2)"]


# --- tables ----------------------------------------------------------------------------------------------


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    yield f"parquet location '{tmp_path / 'table'}'"
    spark.sql("drop table if exists scanned")


def test_a_table_of_the_catalog(spark: SparkSession, table: str) -> None:
    spark.sql(f"create table scanned (Id int not null comment 'k', b string) using {table}")
    spark.sql("insert into scanned values (1, 'x'), (2, null)")

    assert len(same(spark.table("scanned"))) == 2
    assert len(same(spark.sql("select b, id from scanned s where s.id > 1"))) == 1


@pytest.mark.parametrize(
    ("columns", "layout", "then", "why"),
    [
        ("a int, p int", "partitioned by (p)", "", "CatalogFileIndex"),
        ("a int", "clustered by (a) into 2 buckets", "", "bucketed"),
        ("a char(3)", "", "", "computes columns"),
        ("a varchar(3)", "", "", "'a' is not simply that of the files (__CHAR_VARCHAR_TYPE_STRING)"),
        ("a int", "", "alter table scanned add column b int default 7", "EXISTS_DEFAULT"),
        ("a int", "options (parquet.more='1')", "", "option parquet.more"),
        ("a string collate unicode_ci", "", "", "'a' is of type string collate"),
        ("a struct<v:variant>", "", "", "'a' is of type variant"),
        ("a interval year", "", "", "'a' is of type interval year"),
    ],
)
def test_tables_that_spark_must_read(
    spark: SparkSession, table: str, columns: str, layout: str, then: str, why: str
) -> None:
    kind, location = table.split(" ", 1)
    spark.sql(f"create table scanned ({columns}) using {kind} {layout} {location}")
    if then:
        spark.sql(then)

    assert why in reason(spark.table("scanned"))


# --- plans that are no scan -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda df: df.limit(1), "Limit"),
        (lambda df: df.sample(0.5), "Sample"),
        (lambda df: df.distinct(), "Deduplicate"),
        (lambda df: df.hint("broadcast"), "ResolvedHint"),
        (lambda df: df.sort("a"), "Sort"),
        (lambda df: df.repartition(2), "Repartition"),
        (lambda df: df.union(df), "several sources"),
        (lambda df: df.select(sf.col("a") + 1), "computes columns"),
        (lambda df: df.select(sf.col("a").cast("int")), "computes columns"),
        (lambda df: df.select("s.x"), "computes columns"),
        (lambda df: df.select("_metadata.file_name"), "computes columns"),
        (lambda df: df.select("_metadata"), "metadata columns"),
        (lambda df: df.select("a", "a"), "several columns are named a"),
        (lambda df: df.where("a > 1"), "which rows its filter keeps"),
        (lambda df: df.where("a in (select 1)"), "which rows its filter keeps"),
        (lambda df: df.where("a = (select max(a) from t)"), "which rows its filter keeps"),
        (lambda df: df.sparkSession.range(3), "no relation of files"),
        (lambda df: df.sparkSession.createDataFrame([(1,)]), "no relation of files"),
        (lambda df: df.sparkSession.table("t"), "View"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_plans_that_are_no_scan(
    spark: SparkSession, tmp_path: Path, changed: Callable[[DataFrame], DataFrame], why: str
) -> None:
    path = write(tmp_path / "f.parquet", {"a": [1], "s": [{"x": 1}], "t": [dt.datetime(2024, 1, 1)]})
    df = spark.read.parquet(str(path)).selectExpr("*")
    df.createOrReplaceTempView("t")

    assert why in reason(changed(df))


def test_other_formats_and_readers(spark: SparkSession, two: DataFrame, tmp_path: Path) -> None:
    path = str(tmp_path / "two")

    assert "OrcFileFormat" in reason(spark.read.schema("a int").orc(path))
    assert "no relation of files" in reason(spark.readStream.schema(two.schema).parquet(path))
    with confs(spark, {"spark.sql.sources.useV1SourceList": ""}):
        assert "DataSourceV2" in reason(spark.read.parquet(path))


def test_rows_in_sparks_cache_are_read_from_there(two: DataFrame, tmp_path: Path) -> None:
    rows_of(two)
    two.cache()
    try:
        assert reason(two) == reason(two.select("b")) == "Spark has its rows in its cache"
        assert (
            two._jdf.queryExecution().withCachedData().collectLeaves().head().nodeName() == "InMemoryRelation"
        )
        assert len(same(two.sparkSession.read.parquet(str(tmp_path / "two" / "f.parquet")))) == 3
    finally:
        two.unpersist()


# --- settings and options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.parquet.fieldId.read.enabled", "true"),
        ("spark.sql.parquet.int96TimestampConversion", "true"),
        ("spark.sql.parquet.enableVectorizedReader", "false"),
        ("parquet.crypto.factory.class", "Unknown"),
        ("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem"),
    ],
)
def test_settings_that_spark_must_follow(spark: SparkSession, two: DataFrame, name: str, value: str) -> None:
    with confs(spark, {name: value}):
        assert name in reason(two)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ignoreCorruptFiles", "true", "option ignorecorruptfiles is true"),
        ("ignoreMissingFiles", "true", "option ignoremissingfiles is true"),
        ("somethingElse", "1", "option somethingelse is not known"),
        ("fs.s3a.access.key", "x", "option fs.s3a.access.key is not known"),
    ],
)
def test_options_that_spark_must_follow(
    spark: SparkSession, two: DataFrame, tmp_path: Path, name: str, value: str, why: str
) -> None:
    found = reason(spark.read.option(name, value).parquet(str(tmp_path / "two")))

    assert why in found


def test_options_without_a_consequence(spark: SparkSession, two: DataFrame, tmp_path: Path) -> None:
    options = {"ignoreCorruptFiles": "false", "mergeSchema": "false", "compression": "zstd"}

    assert len(same(spark.read.options(**options).parquet(str(tmp_path / "two")))) == 4


def test_the_old_calendar(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", {"a": [1], "d": [dt.date(1500, 1, 1)], "l": [[dt.date(1, 1, 1)]]})
    read = spark.read.option("datetimeRebaseMode", "LEGACY").parquet(str(path))

    assert "column 'd' may be in the old calendar" in reason(read)
    assert "column 'l' may be in the old calendar" in reason(read.select("l"))
    assert same(read.select("a")) == ["(1,)"]
    assert len(same(spark.read.option("int96RebaseMode", "EXCEPTION").parquet(str(path)))) == 1
    with confs(spark, {"spark.sql.parquet.int96RebaseModeInRead": "LEGACY"}):
        assert "old calendar" in reason(spark.read.parquet(str(path)))


@pytest.mark.parametrize(
    ("notes", "physical"),
    [
        ({"org.apache.spark.version": "2.4.8"}, {}),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, {}),
        (
            {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""},
            {"use_deprecated_int96_timestamps": True},
        ),
    ],
)
@pytest.mark.parametrize("old", ["a", "z"])
def test_files_of_the_old_calendar_at_either_end(
    spark: SparkSession, tmp_path: Path, notes: dict[str, str], physical: dict[str, Any], old: str
) -> None:
    days = pa.table({"s": [{"t": dt.datetime(1500, 1, 1)}], "k": [1]})
    write(tmp_path / "d=m" / "f.parquet", days.replace_schema_metadata({"org.apache.spark.version": "4.0.0"}))
    write(tmp_path / f"d={old}" / "f.parquet", days.replace_schema_metadata(notes), **physical)
    df = spark.read.schema("s struct<t:timestamp>, k long").parquet(str(tmp_path))

    assert f"column 's' of {tmp_path}/d={old}/f.parquet is in the old calendar" in reason(df)
    assert len(same(df.select("k", "d"))) == 2


def test_int96_of_an_early_pyarrow_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """It wrote times before 1970 in a way that pyarrow reads as times 584 years later."""
    moment = dt.datetime(1969, 12, 31, 23, 59, 59)
    write_by_early_pyarrow(tmp_path / "f.parquet", moment)
    df = spark.read.parquet(str(tmp_path))
    assert "column 't' of" in reason(df)
    assert "an early pyarrow wrote as INT96" in reason(df)
    assert df.selectExpr("t = timestamp'1969-12-31 23:59:59'").collect() == [(True,)]
    assert same(df.select("n")) == ["(1,)"]


def test_files_that_the_workers_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", {"a": pa.array([3_000_000_000], pa.uint32()), "b": ["x"]})
    df = spark.read.schema("a double, b string").parquet(str(tmp_path))

    assert "column 'a' cannot be read as it should be" in reason(df)
    assert same(df.select("b")) == ["('x',)"]
    (tmp_path / "g.parquet").write_bytes(b"no Parquet")
    assert "g.parquet cannot be read" in reason(spark.read.schema("b string").parquet(str(tmp_path)))


def test_a_file_between_others_that_the_workers_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    for at, kind in enumerate([pa.float64(), pa.float64(), pa.uint32(), pa.float64()]):
        write(tmp_path / f"{at}.parquet", {"a": pa.array([3], kind)})

    assert "column 'a' cannot be read as it should be" in reason(
        spark.read.schema("a double").parquet(str(tmp_path))
    )


def test_file_systems_of_hadoop(spark: SparkSession, two: DataFrame, tmp_path: Path) -> None:
    with confs(spark, {"fs.viewfs.mounttable.scanned.link./two": (tmp_path / "two").as_uri()}):
        df = spark.read.parquet("viewfs://scanned/two")
        assert "its files are on viewfs" in reason(df)
        frame = sortshuffle.frame(df).mapInArrow(lambda batches: batches, df.schema)
        assert printed(frame.toArrow()) == printed(two.toArrow())
