"""What the columns of a file are to Spark, by its own reader."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import confs
from parquet_cases import found, ours, plain, same, write, write_annotated
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.file_schema import SPARK_NOTE, file_fields

MOMENT = dt.datetime(2024, 7, 1, 12)
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2])
IMAGE = pa.fixed_shape_tensor(pa.uint8(), [2])  # whose elements are converted
OF_ARROW = {
    "u8": pa.array([1, None], pa.uint8()),
    "u16": pa.array([1, None], pa.uint16()),
    "u32": pa.array([2**32 - 1, None], pa.uint32()),
    "u64": pa.array([2**64 - 1, None], pa.uint64()),
    "i8": pa.array([1, None], pa.int8()),
    "f": pa.array([1.5, None], pa.float32()),
    "b": pa.array([True, None]),
    "text": pa.array(["x", None], pa.large_string()),
    "codes": pa.array(["x", None]).dictionary_encode(),
    "bytes": pa.array([b"x", None], pa.large_binary()),
    "byte_codes": pa.array([b"x", None]).dictionary_encode(),
    "fixed": pa.array([b"xx", None], pa.binary(2)),
    "day": pa.array([dt.date(2020, 1, 2), None], pa.date64()),
    "s": pa.array([1, None], pa.timestamp("s")),
    "ms": pa.array([1, None], pa.timestamp("ms")),
    "us": pa.array([1, None], pa.timestamp("us")),
    "utc": pa.array([1, None], pa.timestamp("us", "UTC")),
    "zone": pa.array([1, None], pa.timestamp("ms", "Asia/Tokyo")),
    "seconds": pa.array([5, None], pa.duration("s")),
    "nothing": pa.nulls(2),
    "list": pa.array([[1], None], pa.large_list(pa.uint8())),
    "pair": pa.array([[1, 2], [3, None]], pa.list_(pa.int8(), 2)),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.uint16())),
    "struct": pa.array(
        [{"x": 1, "y": ["z"], "s": 7}, None],
        pa.struct([("x", pa.uint8()), ("y", pa.list_(pa.string())), ("s", pa.duration("ms"))]),
    ),
    "structs": pa.array([[{"x": 1}, None], []], pa.list_(pa.struct([("x", pa.uint64())]))),
    "between": pa.array(pd.arrays.IntervalArray.from_tuples([(0, 1), None])),
    "tensor": pa.ExtensionArray.from_storage(TENSOR, pa.array([[1.5, 2.5], None], TENSOR.storage_type)),
    "image": pa.ExtensionArray.from_storage(IMAGE, pa.array([[1, 255], None], IMAGE.storage_type)),
    "dec": pa.array([Decimal("1.20"), None], pa.decimal128(5, 2)),
    "wide": pa.array([Decimal("1.20"), None], pa.decimal256(20, 2)),
    "dotted.name": pa.array([1, None]),
    "dotted": pa.array([{"name": "x"}, None]),
}
ANNOTATED = {
    "enum": ("binary enum (ENUM)", b"ab"),
    "json": ("binary json (JSON)", b'{"a": 1}'),
    "bson": ("binary bson (BSON)", b"\x00\xff"),
    "bytes": ("binary bytes", b"\xff"),
    "d32": ("int32 d32 (DECIMAL(9,2))", -150),
    "d64": ("int64 d64 (DECIMAL(18,2))", 1 << 40),
    "db": ("binary db (DECIMAL(20,2))", b"\xff\x01"),
    "df": ("fixed_len_byte_array(9) df (DECIMAL(20,2))", b"\xff" * 8 + b"\x01"),
    "fixed": ("fixed_len_byte_array(2) fixed", b"\x00\xff"),
    "i8": ("int32 i8 (INTEGER(8,true))", -7),
    "u32": ("int32 u32 (INTEGER(32,false))", -1),
    "ms": ("int64 ms (TIMESTAMP(MILLIS,true))", 1 << 40),
    "nms": ("int64 nms (TIMESTAMP(MILLIS,false))", 1 << 40),
    "nus": ("int64 nus (TIMESTAMP(MICROS,false))", 1 << 50),
}


def test_what_arrow_writes_is_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", OF_ARROW)
    assert same(spark, tmp_path).schema.names == list(OF_ARROW)


def test_what_arrow_does_not_write_is_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    write_annotated(spark, tmp_path / "f.parquet", ANNOTATED)
    kinds = {field.name: field.dataType.simpleString() for field in same(spark, tmp_path).schema}
    assert (kinds["enum"], kinds["json"], kinds["bson"]) == ("string", "string", "binary")


@pytest.mark.parametrize(
    "setting",
    [
        {"spark.sql.parquet.binaryAsString": "true", "spark.sql.parquet.inferTimestampNTZ.enabled": "false"},
        {"spark.sql.legacy.parquet.nanosAsLong": "true"},
    ],
    ids=str,
)
def test_settings_of_the_session_decide_as_in_spark(
    spark: SparkSession, tmp_path: Path, setting: dict[str, str]
) -> None:
    columns = {"bytes": pa.array([b"x"]), "us": OF_ARROW["us"][:1], "fixed": OF_ARROW["fixed"][:1]}
    nanos = {
        "ns": pa.array([MOMENT], pa.timestamp("ns")),
        "nz": pa.array([MOMENT], pa.timestamp("ns", "UTC")),
    }
    write(tmp_path / "f.parquet", columns | (nanos if "nanosAsLong" in str(setting) else {}))
    with confs(spark, setting):
        same(spark, tmp_path)


def test_layouts_of_other_writers_are_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    def numbers(field: str):  # type: ignore[no-untyped-def]
        def fill(row):  # type: ignore[no-untyped-def]
            group = row.addGroup(field)
            group.add(0, 1)
            group.add(0, 2)

        return fill

    def groups(field: str):  # type: ignore[no-untyped-def]
        def fill(row):  # type: ignore[no-untyped-def]
            group = row.addGroup(field)
            group.addGroup(0).add(0, 1)
            group.addGroup(0).add(0, 2)

        return fill

    def entry(field: str):  # type: ignore[no-untyped-def]
        def fill(row):  # type: ignore[no-untyped-def]
            pair = row.addGroup(field).addGroup(0)
            pair.add(0, "k")
            pair.add(1, 7)

        return fill

    one = "repeated group {0} {{ required int32 x; }}"
    columns = {
        "a": ("group a (LIST) { repeated int32 element; }", numbers("a")),
        "b": (f"group b (LIST) {{ {one.format('array')} }}", groups("b")),
        "c": (f"group c (LIST) {{ {one.format('c_tuple')} }}", groups("c")),
        "d": ("group d (LIST) { repeated group list { optional int32 element; } }", groups("d")),
        "e": ("group e (LIST) { repeated group bag { optional int32 array; } }", groups("e")),
        "f": ("group f (LIST) { repeated group array { optional int32 array; } }", groups("f")),
        "g": (
            "group g (LIST) { repeated group element { required int32 x; optional int32 y; } }",
            groups("g"),
        ),
        "m": (
            "group m (MAP) { repeated group map (MAP_KEY_VALUE)"
            " { required binary key (UTF8); optional int32 value; } }",
            entry("m"),
        ),
        "n": (
            "group n (MAP_KEY_VALUE) { repeated group map"
            " { required binary key (UTF8); optional int32 value; } }",
            entry("n"),
        ),
        "o": (
            "group o (MAP) { repeated group key_value { required binary k (UTF8); required int32 v; } }",
            entry("o"),
        ),
    }
    write_annotated(spark, tmp_path / "f.parquet", columns)
    assert len(same(spark, tmp_path).rows) == 2
    narrow = (
        "g array<struct<y:int,x:bigint>>, b array<struct<x:bigint>>, m map<string,double>, d array<bigint>"
    )
    assert len(same(spark, tmp_path, schema=narrow).rows) == 2


def test_what_spark_writes_is_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    columns = (
        "timestamp'2024-07-01 12:00:00' ts, timestamp_ntz'2024-07-01 12:00:00' ntz, 1 i,"
        " 'a' collate UTF8_LCASE c, array(timestamp'2024-07-01 12:00:00') ats,"
        " named_struct('t', timestamp'2024-07-01 12:00:00') st,"
        " map('k', timestamp'2024-07-01 12:00:00') m, interval '1' day d, array(1, null) a,"
        " cast(1.5 as decimal(5,2)) d5, cast(1.5 as decimal(15,2)) d15, cast('x' as varchar(3)) v"
    )
    ways = [
        {"spark.sql.parquet.outputTimestampType": "INT96", "spark.sql.parquet.writeLegacyFormat": "true"},
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    ]
    for number, way in enumerate(ways):
        with confs(spark, way):
            spark.sql(f"select {columns}").write.parquet(str(tmp_path / str(number)))
        (file,) = (tmp_path / str(number)).glob("*.parquet")
        assert SPARK_NOTE in pq.read_metadata(file).metadata
    read = same(spark, tmp_path / "0", tmp_path / "1")
    assert read.schema["c"].dataType == st.StringType("UTF8_LCASE")
    assert len(set(read.rows)) == 1


def test_int96_are_instants_wherever_they_are(spark: SparkSession, tmp_path: Path) -> None:
    late = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)  # which nanoseconds of 64 bits cannot hold
    columns = {"ts": [MOMENT, late], "ats": [[MOMENT], None], "st": [{"t": late, "n": 1}, None]}
    write(tmp_path / "f.parquet", columns, use_deprecated_int96_timestamps=True)
    leaves = [
        leaf
        for field in file_fields(pq.ParquetFile(tmp_path / "f.parquet").schema)
        for leaf in field.leaves()
    ]
    assert [leaf.physical for leaf in leaves] == ["INT96", "INT96", "INT96", "INT64"]
    same(spark, tmp_path)
    # a clock's reading and an instant in one struct are told apart
    stored = pa.array(
        [{"wall": MOMENT, "sure": MOMENT}],
        pa.struct([("wall", pa.timestamp("us")), ("sure", pa.timestamp("us", "UTC"))]),
    )
    write(tmp_path / "g.parquet", {"s": stored})
    same(spark, tmp_path / "g.parquet")


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        (pa.array([MOMENT], pa.timestamp("ns")), "TIMESTAMP.*nanoseconds"),
        (pa.array([1], pa.time32("ms")), "INT32 TIME"),
        (pa.array([1], pa.time64("us")), "INT64 TIME"),
        (pa.array([np.float16(1.5)]), "FLOAT16"),
        (pa.array([b"x" * 16], pa.uuid()), "UUID"),
        (pa.array([Decimal(1)], pa.decimal256(50, 2)), "DECIMAL"),
        (pa.array([[np.float16(1.5)]]), "'c.element'.*FLOAT16"),
    ],
    ids=str,
)
def test_what_spark_does_not_read_is_refused_but_can_be_left_out(
    spark: SparkSession, tmp_path: Path, column: pa.Array, stored: str
) -> None:
    path = write(tmp_path / "f.parquet", {"ok": [1], "c": column})
    with pytest.raises(
        UnsupportedError, match=rf"column 'c.*stored as .*{stored.split('*')[-1]}.*schema\(\)"
    ):
        found(spark, path)
    assert ours(spark, path, schema="ok long").rows == ["(1,)"]


def test_an_interval_of_months_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = write_annotated(
        spark, tmp_path / "f.parquet", {"c": ("fixed_len_byte_array(12) c (INTERVAL)", b"\x01" * 12)}
    )
    with pytest.raises(UnsupportedError, match="stored as FIXED_LEN_BYTE_ARRAY INTERVAL"):
        found(spark, path)


def test_int96_are_refused_where_the_session_reads_them_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(tmp_path / "f.parquet", {"t": [MOMENT]}, use_deprecated_int96_timestamps=True)
    for setting in (
        {"spark.sql.parquet.int96AsTimestamp": "false"},
        {"spark.sql.parquet.int96TimestampConversion": "true"},
    ):
        with confs(spark, setting), pytest.raises(UnsupportedError, match=r"column 't' .* stored as INT96"):
            found(spark, path)


def test_a_note_that_cannot_be_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    note = b'{"type":"struct","fields":[{"name":"c","nullable":true,"metadata":{},"type":{"type":"udt",'
    note += b'"class":"a.B","pyClass":"no_such_module.B","sqlType":"long"}}]}'
    path = write(tmp_path / "f.parquet", pa.table({"c": [1]}).replace_schema_metadata({SPARK_NOTE: note}))
    with pytest.raises(
        UnsupportedError, match=r"f\.parquet cannot be read.*no_such_module.*spark\.read\.parquet"
    ):
        found(spark, path)


def test_two_columns_of_one_name_are_refused_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    tables = {
        "case": pa.table({"a": [1], "A": [2]}),
        "same": pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]),
        "nested": pa.table({"s": pa.array([[{"a": 1, "A": 2}]])}),
    }
    for name, table in tables.items():
        path = write(tmp_path / f"{name}.parquet", table)
        with pytest.raises(UsageError, match=r"two columns of one name, a and [aA].*schema\(\)"):
            found(spark, path)
        with pytest.raises(AnalysisException, match="COLUMN_ALREADY_EXISTS"):
            spark.read.parquet(str(path))
    with pytest.raises(UsageError, match="the schema has two columns of one name"):
        found(spark, tmp_path / "case.parquet", schema="a long, A long")
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        same(spark, tmp_path / "case.parquet")


# --- several files --------------------------------------------------------------------------------------


def test_schemas_are_merged_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    deep = pa.map_(pa.string(), pa.struct([("x", pa.int64())]))
    other = pa.map_(pa.string(), pa.struct([("w", pa.int64())]))
    write(
        tmp_path / "0.parquet",
        {
            "B": [1],
            "s": [{"x": 1, "y": "a"}],
            "a": [[{"x": 1}]],
            "m": pa.array([[("k", {"x": 1})]], deep),
            "d": pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
            "u": pa.array([1], pa.uint32()),
        },
    )
    write(
        tmp_path / "1.parquet",
        {
            "late": [True],
            "d": pa.array([Decimal("2.50")], pa.decimal128(20, 2)),
            "u": pa.array([1], pa.int64()),
            "m": pa.array([[("k", {"w": 1})]], other),
            "a": [[{"w": 1}, None]],
            "s": [{"Y": "b", "z": 2.5}],
            "b": [2],
        },
    )
    write(tmp_path / "2.parquet", {"late": [None, False], "later": [1, 2]})
    merged = same(spark, tmp_path, mergeSchema="true")
    assert merged.schema.names == ["B", "s", "a", "m", "d", "u", "late", "later"]
    with confs(spark, {"spark.sql.parquet.mergeSchema": "true"}):
        assert ours(spark, tmp_path) == merged
        assert found(spark, tmp_path, mergeSchema=False).schema.names == merged.schema.names[:6]


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [
        (
            pa.array([1], pa.int32()),
            pa.array([1], pa.int64()),
            "column 'c' is bigint in .*1.parquet, and int",
        ),
        (
            pa.array([Decimal(1)], pa.decimal128(5, 2)),
            pa.array([Decimal(1)], pa.decimal128(5, 1)),
            "decimal",
        ),
        (pa.array([[{"x": 1}]]), pa.array([[{"x": "a"}]]), "column 'c.element.x' is string"),
        (pa.array([{"x": 1}]), pa.array(["a"]), "string"),
    ],
    ids=["int", "decimal", "nested", "struct"],
)
def test_schemas_that_spark_does_not_merge_are_not_merged(
    spark: SparkSession, tmp_path: Path, left: pa.Array, right: pa.Array, says: str
) -> None:
    write(tmp_path / "0.parquet", {"c": left})
    write(tmp_path / "1.parquet", {"c": right})
    with pytest.raises(UsageError, match=f"cannot be merged: .*{says}"):
        found(spark, tmp_path, mergeSchema="true")
    with pytest.raises(Exception, match="CANNOT_MERGE_SCHEMAS"):
        plain(spark, tmp_path, mergeSchema="true")


def test_names_that_differ_by_case_are_two_columns_where_case_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "0.parquet", {"a": [1], "B": [2]})
    write(tmp_path / "1.parquet", {"A": [3], "b": [4]})
    assert same(spark, tmp_path).rows == ["(1, 2)", "(3, 4)"]
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        assert same(spark, tmp_path, mergeSchema="true").schema.names == ["a", "B", "A", "b"]
        assert same(spark, tmp_path, schema="A long, b long").rows == ["(3, 4)", "(None, None)"]
