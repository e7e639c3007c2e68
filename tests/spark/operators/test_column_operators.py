"""`withColumn`, `withColumns` and renaming, against plain PySpark."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import (
    OnlyPython,
    assert_handed_to_spark,
    assert_same_error,
    confs,
    data_frame,
    differences,
    every_type,
)
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import ColumnError, UnsupportedError, UsageError
from sortshuffle.spark.steps.with_columns import WithColumns

field = pc.field


@pytest.fixture(scope="module")
def everything(spark: SparkSession) -> DataFrame:
    return data_frame(spark, every_type(1, 100)).persist()


@pytest.fixture(scope="module")
def small(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, "a", 2.0), (None, None, None)], "k int, S string, v double")


def computed() -> dict[str, tuple[Any, Any]]:
    """What columns are computed by here, and in Spark: Arrow expressions, and Columns that both take."""
    return {
        "sum": (field("sh").cast("int64") + 1, sf.col("sh").cast("long") + 1),
        "I": (field("by").cast("int32") * 2, sf.col("by").cast("int") * 2),  # in the place of i
        "quotient": (field("d") / 3.0, sf.col("d") / 3.0),
        "D": (
            pc.if_else(field("bo"), field("d"), field("f").cast("float64")),
            sf.when(sf.col("bo"), sf.col("d")).when(~sf.col("bo"), sf.col("f").cast("double")),
        ),
        "decimal": (field("ds") + field("ds"), sf.col("ds") + sf.col("ds")),
        "decimal product": (field("ds") * field("ds"), sf.col("ds") * sf.col("ds")),
        "filled": (pc.coalesce(field("st"), pc.scalar("none")), sf.coalesce("st", sf.lit("none"))),
        "length": (pc.utf8_length(field("st")), sf.length("st")),
        "year": (pc.year(field("da")).cast("int32"), sf.year("da")),
        "hour": (pc.hour(field("ts")).cast("int32"), sf.hour("ts")),
        "is null": (pc.is_null(field("m")), sf.col("m").isNull()),
        "field": (field("x", "q"), sf.col("x.q")),
        "list": (pc.list_value_length(field("a")), sf.when(sf.col("a").isNotNull(), sf.size("a"))),
        "duration": (field("iv") + field("iv"), sf.col("iv") + sf.col("iv")),
        "unsigned": (field("sh").cast("uint16", safe=False), ((sf.col("sh").cast("int") + 65536) % 65536)),
        "seconds": (
            pc.floor_temporal(field("nt"), unit="second").cast(pa.timestamp("s")),
            sf.date_trunc("second", "nt").cast("timestamp_ntz"),
        ),
        "copy": (sf.col("xx"), sf.col("xx")),
        "alias": (sf.col("lo").alias("other"), sf.col("lo")),
        "AX": (sf.col("m"), sf.col("m")),  # a column of another type in the place of ax
        "one": (sf.lit(1), sf.lit(1)),
        "long one": (pc.scalar(1), sf.lit(1).cast("long")),
        "text": (sf.lit("x"), sf.lit("x")),
        "half": (sf.lit(0.5), sf.lit(0.5)),
        "exact": (sf.lit(Decimal("1.20")), sf.lit(Decimal("1.20"))),
        "yes": (sf.lit(True), sf.lit(True)),
        "bytes": (sf.lit(b"\x00"), sf.lit(b"\x00")),
        "nothing": (sf.lit(None), sf.lit(None)),
        "nothing in Arrow": (pc.scalar(None), sf.lit(None)),
        "a.b": (field("lo"), sf.col("lo")),
    }


def test_columns_are_computed_as_spark_computes_them(everything: DataFrame) -> None:
    ours = sortshuffle.frame(everything).withColumns({name: each for name, (each, _) in computed().items()})
    plain = everything.withColumns({name: each for name, (_, each) in computed().items()})
    assert ours.columns == plain.columns
    assert differences(ours, plain) == []


@pytest.mark.parametrize(("before", "after"), [("false", "true"), ("true", "false")])
def test_names_match_by_the_setting_of_the_call(spark: SparkSession, before: str, after: str) -> None:
    """Also where rows came to Python under another one."""
    df = spark.createDataFrame([(1,)], "k long")
    with confs(spark, {"spark.sql.caseSensitive": before}):
        frame = sortshuffle.frame(df).repartition(1)
        frame.count()
    with confs(spark, {"spark.sql.caseSensitive": after}):
        ours = frame.withColumn("K", field("k") + 1).collect()
        assert ours == df.withColumn("K", sf.col("k") + 1).collect()
        assert ours[0].__fields__ == (["k", "K"] if after == "true" else ["K"])


def test_a_column_is_replaced_where_it_is_and_others_come_last(small: DataFrame) -> None:
    frame = sortshuffle.frame(small)
    ours = frame.withColumns({"s": field("k"), "new": field("S"), "K": field("v")})
    plain = small.withColumns({"s": sf.col("k"), "new": sf.col("s"), "K": sf.col("v")})
    assert (
        ours.schema.simpleString()
        == plain.schema.simpleString()
        == "struct<K:double,s:int,v:double,new:string>"
    )
    assert differences(ours, plain) == []
    again = frame.withColumn("x", field("k")).withColumn("x", field("x") + 1).withColumn("k", field("x"))
    assert again.toArrow().to_pydict() == {"k": [2, None], "S": ["a", None], "v": [2.0, None], "x": [2, None]}
    with confs(small.sparkSession, {"spark.sql.caseSensitive": "true"}):
        assert sortshuffle.frame(small).withColumn("s", field("S")).columns == ["k", "S", "v", "s"]


def test_nullability_and_metadata_are_those_of_spark(spark: SparkSession) -> None:
    schema = st.StructType(
        [st.StructField("a", st.LongType(), False, {"who": "me"}), st.StructField("b", st.LongType())]
    )
    df = spark.createDataFrame([(1, None)], schema)
    ours = sortshuffle.frame(df).withColumns({"c": sf.col("a"), "d": sf.lit(1), "e": field("a"), "b": df.a})
    plain = df.withColumns({"c": sf.col("a"), "d": sf.lit(1), "e": sf.col("a"), "b": df.a})
    assert [f for f in ours.schema if f.name != "e"] == [f for f in plain.schema if f.name != "e"]
    assert ours.schema["e"] == st.StructField("e", st.LongType())  # Arrow does not tell
    assert ours.collect() == plain.collect()


def test_columns_of_another_dataframe_are_refused_also_beside_arrows(small: DataFrame) -> None:
    other = small.select(sf.col("v") * 1, "k").toDF("v", "k")
    with pytest.raises(ColumnError, match="a column of another DataFrame"):
        sortshuffle.frame(small).withColumns({"x": other.v, "y": field("k")})
    assert sortshuffle.frame(small).withColumns({"x": small.v, "y": field("k")}).collect()[0].x == 2.0
    for frame in (sortshuffle.frame(small), small):
        with pytest.raises(AnalysisException, match="MISSING_ATTRIBUTES"):
            frame.withColumn("x", other.v)


# --- where Arrow is not Spark ---------------------------------------------------------------------------


def test_arrow_decides_what_expressions_mean(spark: SparkSession) -> None:
    """What docs/spark.md says of them."""
    data = [(2**31 - 1, 7, math.nan, -0.0)]
    frame = sortshuffle.frame(spark.createDataFrame(data, "i int, j int, d double, z double"))
    computed = frame.withColumns(
        {
            "literal": field("j") + 1,  # a literal takes the column's type
            "quotient": field("j") / 2,
            "negative": pc.negate(field("j")) / 2,
            "wrapped": pc.add(field("i"), 1),
            "above": field("d") > 1.0,
            "same": field("d") == field("d"),
            "zero": field("z") == 0.0,
        }
    )
    assert computed.schema["literal"].dataType == computed.schema["quotient"].dataType == st.IntegerType()
    (row,) = computed.collect()
    assert (row.literal, row.quotient, row.negative, row.wrapped) == (8, 3, -3, -(2**31))
    assert (row.above, row.same, row.zero) == (False, False, True)
    for name, expression, says in (
        ("x", field("i") + 1, "overflow"),
        ("y", field("j") / 0, "divide by zero"),
        ("z", field("i").cast("int8"), "not in range"),
    ):
        with pytest.raises(PySparkException, match=rf"withColumn\({name} = .*{says}"):
            frame.withColumn(name, expression).collect()


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "error", "says"),
    [
        (
            lambda: sf.col("k") + 1,
            UnsupportedError,
            r"expression of Spark's.*pyarrow\.compute\.field.*mapInArrow",
        ),
        (lambda: sf.upper("s"), UnsupportedError, "expression of Spark's"),
        (lambda: sf.lit(dt.date(2024, 1, 1)), UnsupportedError, "expression of Spark's"),
        (lambda: sf.sum("k"), UnsupportedError, "expression of Spark's"),
        (lambda: "k", UsageError, "not str"),
        (lambda: 5, UsageError, "not int"),
        (lambda: field("q"), UsageError, "no expression over the columns k, S, v"),
        (lambda: field("s"), UsageError, "no expression over"),  # Arrow tells upper from lower case
        (lambda: field("k") + "x", UsageError, "no expression over"),
        (lambda: field(0), UsageError, "by its position"),
        (lambda: field("v").cast("float16"), UnsupportedError, "of type halffloat, which Spark has not"),
        (lambda: sf.col("q"), ColumnError, "no column 'q'"),
        (lambda: sf.col("S.q"), ColumnError, "field inside the column S"),
    ],
)
def test_what_is_no_column_is_refused_beside_one_of_arrows(
    small: DataFrame, column: Any, error: Any, says: str
) -> None:
    """PySpark does not know Arrow's expressions, so such a call is not handed to Spark."""
    with pytest.raises(error, match=f"(?s){says}"):
        sortshuffle.frame(small).withColumns({"x": column(), "y": field("k")})


def test_spark_computes_what_arrow_cannot(small: DataFrame) -> None:
    frame = sortshuffle.frame(small)
    new = {"x": sf.soundex("s"), "K": sf.lit(dt.timedelta(1))}
    with pytest.raises(UnsupportedError, match=r"not known to compute withColumns\(.*soundex"):
        OnlyPython(frame).withColumns(new)
    assert_handed_to_spark(frame.withColumns(new), small.withColumns(new), "withColumns")
    ours, plain = (each.withColumn("x", new["x"]) for each in (frame, small))
    assert_handed_to_spark(ours, plain, "withColumn")


@pytest.mark.parametrize("column", [lambda: "k", lambda: 5, lambda: sf.col("q"), lambda: sf.col("S.q")])
def test_what_is_no_column_in_pyspark_is_an_error_of_pysparks(small: DataFrame, column: Any) -> None:
    assert_same_error(lambda each: each.withColumn("x", column()), sortshuffle.frame(small), small)


def test_names_are_checked_by_spark(small: DataFrame) -> None:
    frame = sortshuffle.frame(small)
    with pytest.raises(AnalysisException, match="COLUMN_ALREADY_EXISTS"):
        frame.withColumns({"x": field("k"), "X": field("k")})
    with pytest.raises(UsageError, match=r"withColumns\(\) takes one dict of names"):
        OnlyPython(frame).withColumns([("x", sf.col("k"))])
    assert_same_error(lambda each: each.withColumns([("x", sf.col("k"))]), frame, small)
    assert_same_error(lambda each: each.withColumnsRenamed([("x", "y")]), frame, small)


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        {"K": "key", "nope": "x"},
        {"s": "S.x", "v": "a b`c"},
        {"k": "s2", "v": "k"},
        {"v": "V"},
        {"nope": "x"},
        {"S": "t", "t": "u"},
    ],
)
def test_renamed_columns_are_those_of_spark(small: DataFrame, names: dict[str, str]) -> None:
    ours, plain = sortshuffle.frame(small).withColumnsRenamed(names), small.withColumnsRenamed(names)
    assert ours.columns == plain.columns
    assert [column.to_pylist() for column in ours.toArrow().columns] == [[1, None], ["a", None], [2.0, None]]


def test_one_column_is_renamed(small: DataFrame) -> None:
    frame = sortshuffle.frame(small)
    assert frame.withColumnRenamed("s", "t").columns == ["k", "t", "v"]
    assert frame.withColumnRenamed("nope", "t").columns == ["k", "S", "v"]
    with pytest.raises(UnsupportedError, match="several columns are named v"):
        OnlyPython(frame).withColumnRenamed("k", "v")
    assert frame.withColumnRenamed("k", "v").collect() == small.withColumnRenamed("k", "v").collect()


# --- where rows stay --------------------------------------------------------------------------------------


def grouped(frame: ShuffleFrame, *keys: str) -> ShuffleFrame:
    return frame.groupBy(*keys).applyInArrow(lambda table: table, frame.schema)


def exchanges(frame: ShuffleFrame) -> int:
    return len(list(frame._chain.exchanges()))


def test_rows_stay_where_they_are_unless_their_keys_are_replaced(spark: SparkSession) -> None:
    numbers = spark.range(0, 300, 1, 3).select((sf.col("id") % 7).alias("k"), "id")
    placed = sortshuffle.frame(numbers).repartition(4, "k")
    behind = placed.withColumn("double", field("id") * 2)
    assert exchanges(grouped(behind, "k")) == 1
    assert exchanges(grouped(behind, "double", "k")) == 1
    assert exchanges(grouped(placed.withColumnRenamed("k", "key"), "key")) == 1
    # with a column of Arrow's beside it, because Spark would take a call of its own expressions alone
    copied = placed.withColumns({"copy": sf.col("k"), "one": pc.scalar(1)})
    assert exchanges(grouped(copied, "k")) == 1
    assert exchanges(grouped(placed.withColumn("k", field("k") + 1), "k")) == 2
    replaced = placed.withColumns({"K": sf.col("k"), "one": pc.scalar(1)})
    assert exchanges(grouped(replaced, "K")) == 1  # the same values
    plain = numbers.repartition(4, "k").withColumn("double", sf.col("id") * 2)
    assert differences(grouped(behind, "double", "k"), grouped(plain, "double", "k")) == []  # type: ignore[arg-type]


def test_frames_with_other_columns_are_written_in_one_pass(spark: SparkSession) -> None:
    source = sortshuffle.frame(spark.range(0, 300, 1, 3))
    one = source.withColumn("k", field("id") / 10).repartition(2, "k")
    two = source.withColumn("j", field("id") / 20).repartition(3, "j")
    assert (one.count(), two.count()) == (300, 300)
    first, second = (next(each._chain.exchanges()) for each in (one, two))
    assert first.stage() is second.stage()


def test_columns_of_a_scan(spark: SparkSession, tmp_path: Any) -> None:
    pq.write_table(pa.table({"a": range(10), "b": range(10), "c": range(10)}), tmp_path / "x.parquet")
    frame = sortshuffle.read(spark).parquet(str(tmp_path)).filter(field("c") > 5)
    computed = frame.withColumnRenamed("a", "A2").withColumn("d", field("A2") + field("b")).select("d", "A2")
    assert sorted(computed.collect()) == [(12, 6), (14, 7), (16, 8), (18, 9)]
    assert computed.count() == 4


# --- the step itself --------------------------------------------------------------------------------------


def test_columns_that_stay_are_not_copied_and_large_batches_are_cut() -> None:
    given = pa.record_batch({"a": pa.array(range(100_000), pa.int64()), "empty": pa.nulls(100_000)})
    wire = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    step = WithColumns((0, field("a") + 1), wire, "withColumn(b)")
    parts = list(step(iter([given.slice(0, 0), given, given.slice(1, 2)])))
    assert [part.num_rows for part in parts[:-1]] == [32768, 32768, 32768, 100_000 - 3 * 32768]
    assert parts[-1].to_pydict() == {"a": [1, 2], "b": [2, 3]}
    assert all(part.schema.equals(wire, check_metadata=True) for part in parts)
    addresses = [part.column(0).buffers()[1].address for part in parts[:4]]
    assert addresses[0] == given.column(0).buffers()[1].address
    assert pa.Table.from_batches(parts[:4])["b"].to_pylist() == list(range(1, 100_001))
    assert (step.source_of(0), step.source_of(1)) == (0, None)


def test_rows_without_columns_get_columns() -> None:
    given = pa.record_batch({"a": [1, 2, 3]}).select([])
    step = WithColumns((pc.scalar(5),), pa.schema([("x", pa.int64())]), "withColumn(x)")
    (part,) = step(iter([given]))
    assert part.to_pydict() == {"x": [5, 5, 5]}
