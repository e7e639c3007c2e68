"""Files whose columns are of another type than is wanted: what Spark's reader converts is converted alike,
and what it refuses is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from oracle import confs
from parquet_cases import ONE_SPLIT, found, ours, plain, same, write, write_annotated, write_by_early_pyarrow
from pyspark.sql import SparkSession

from sortshuffle.errors import SchemaMismatchError, UnsupportedError
from sortshuffle.spark.parquet.fitting import reads_int96
from sortshuffle.spark.schema import to_arrow

MOMENT = dt.datetime(2024, 7, 1, 12)
NUMBERS = ["tinyint", "smallint", "int", "bigint", "double"]
WIDE = ["decimal(10,0)", "decimal(18,2)", "decimal(38,4)"]
STORED: dict[str, tuple[pa.Array, list[str]]] = {
    "i8": (pa.array([1, -7, None], pa.int8()), [*NUMBERS, *WIDE]),
    "i16": (pa.array([1, -700, None], pa.int16()), [*NUMBERS, *WIDE]),
    "i32": (pa.array([1, -70_000, None], pa.int32()), [*NUMBERS, *WIDE]),
    "i64": (
        pa.array([1, -(2**40), None]),
        ["bigint", "decimal(20,0)", "decimal(38,4)", "interval day to second"],
    ),
    "u8": (pa.array([1, 250, None], pa.uint8()), NUMBERS),
    "u16": (pa.array([1, 65_000, None], pa.uint16()), NUMBERS),
    "u32": (pa.array([1, 2**32 - 2, None], pa.uint32()), NUMBERS[:-1]),
    "u64": (pa.array([1, 2**63 + 5, None], pa.uint64()), ["decimal(20,0)", "bigint"]),
    "f32": (pa.array([1.5, -0.0, None], pa.float32()), ["float", "double"]),
    "f64": (pa.array([1.5, -0.0, None]), ["double"]),
    "bo": (pa.array([True, False, None]), ["boolean"]),
    "d": (
        pa.array([Decimal("1.50"), Decimal("-9999999.99"), None], pa.decimal128(9, 2)),
        ["decimal(9,2)", "decimal(12,3)", "decimal(18,2)", "decimal(38,4)"],
    ),
    "day": (pa.array([MOMENT.date(), dt.date(1969, 12, 31), None]), ["date", "timestamp_ntz"]),
    "ms": (pa.array([MOMENT, MOMENT, None], pa.timestamp("ms", "UTC")), ["timestamp", "timestamp_ntz"]),
    "us": (pa.array([MOMENT, MOMENT, None], pa.timestamp("us")), ["timestamp", "timestamp_ntz"]),
    "ns": (pa.array([MOMENT, MOMENT, None], pa.timestamp("ns")), ["bigint"]),
    "st": (pa.array(["ab", "é", None]), ["string", "binary"]),
    "codes": (pa.array(["ab", "é", None]).dictionary_encode(), ["string", "binary"]),
    "bi": (pa.array([b"ab", b"", None]), ["string", "binary"]),
    "fx": (pa.array([b"ab", b"cd", None], pa.binary(2)), ["binary"]),
    "no": (pa.nulls(3), ["tinyint", "int", "bigint", "double", "date"]),
    "l": (pa.array([[1], [None, 2], None], pa.list_(pa.int32())), ["array<bigint>", "array<double>"]),
    "m": (
        pa.array([[(1, 1)], [], None], pa.map_(pa.int32(), pa.int32())),
        ["map<bigint,double>", "map<int,bigint>", "map<double,int>"],
    ),
    "s": (
        pa.array(
            [{"x": 1, "y": "a"}, {"x": None, "y": None}, None],
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
        ),
        ["struct<Y:string,X:bigint>", "struct<x:int>", "struct<y:string,q:array<int>>", "struct<q:int>"],
    ),
    "ls": (
        pa.array(
            [[{"x": 1, "y": 2}], [None, {"x": None, "y": 3}], None],
            pa.list_(pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ),
        ["array<struct<y:bigint>>", "array<struct<z:int,x:double>>", "array<struct<y:int,x:int>>"],
    ),
}
REFUSED = {
    "i32": ["string", "decimal(9,0)", "float", "timestamp"],
    "i64": ["int", "double", "decimal(19,0)", "string", "timestamp"],
    "u64": ["int", "decimal(38,0)"],
    "f32": ["int", "string"],
    "f64": ["float", "bigint"],
    "bo": ["int", "string"],
    "d": ["decimal(9,3)", "decimal(8,2)", "decimal(10,0)", "double", "string"],
    "day": ["timestamp", "string"],
    "ms": ["date", "string"],
    "ns": ["timestamp", "timestamp_ntz"],
    "st": ["int", "date", "array<string>"],
    "fx": ["string"],
    "l": ["int", "struct<x:int>", "map<int,int>"],
    "m": ["array<struct<key:int,value:int>>", "int"],
    "s": ["int", "array<int>", "struct<x:string>"],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("stored") / "f.parquet",
        {name: array for name, (array, _) in STORED.items()},
        # Spark fails on an unsigned column with a dictionary that it reads as bytes
        use_dictionary=["codes", "st"],
    )


def test_columns_are_converted_as_by_spark(spark: SparkSession, stored: Path) -> None:
    for turn in range(max(len(kinds) for _, kinds in STORED.values())):
        wanted = [f"{name} {kinds[turn]}" for name, (_, kinds) in STORED.items() if turn < len(kinds)]
        same(spark, stored, schema=", ".join([*wanted, f"missing{turn} array<struct<a:int>>"]))


def test_structs_of_which_nothing_is_there_are_null_where_the_session_says_so(
    spark: SparkSession, stored: Path
) -> None:
    with confs(spark, {"spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "true"}):
        same(spark, stored, schema="s struct<q:int>, ls array<struct<q:int,r:string>>")
        same(spark, stored, schema="s struct<q:int,y:string>, ls array<struct<z:int,x:int>>")


@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_refuses_to_convert_is_refused(spark: SparkSession, stored: Path, name: str) -> None:
    for kind in REFUSED[name]:
        with pytest.raises(
            SchemaMismatchError, match=rf"f\.parquet: column '{name}.*'.*\(expected .*, found .*\)"
        ):
            ours(spark, stored, schema=f"{name} {kind}")
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        plain(spark, stored, schema=f"{name} {REFUSED[name][0]}")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("u32", "double"), ("d", "int"), ("day", "int"), ("i32", "date"), ("ms", "bigint"), ("day", "double")],
)
def test_stored_numbers_are_not_taken_for_what_they_are_not(
    spark: SparkSession, stored: Path, name: str, kind: str
) -> None:
    # Spark gives the unscaled number of a decimal, the days of a date, and so on
    with pytest.raises(SchemaMismatchError, match=rf"column '{name}'"):
        ours(spark, stored, schema=f"{name} {kind}")


def test_stored_uuids_are_bytes_for_who_says_so(spark: SparkSession, tmp_path: Path) -> None:
    columns = {
        "u": ("fixed_len_byte_array(16) u (UUID)", bytes(range(16))),
        "j": ("binary j (JSON)", b"{}"),
        "e": ("binary e (ENUM)", b"x"),
        "t": ("int32 t (TIME(MILLIS,true))", 5),
    }
    path = write_annotated(spark, tmp_path / "f.parquet", columns)
    same(spark, path, schema="u binary, j binary, e binary")
    with pytest.raises(SchemaMismatchError, match="found INT32 TIME"):
        ours(spark, path, schema="t int")


def test_bytes_are_taken_for_text_without_a_look(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", {"b": [b"\xff\xfe", None]})
    files = found(spark, path, schema="b string")
    (split,) = files.plan(None, ONE_SPLIT)
    (batch,) = files.scan([split], ("b",), to_arrow(files.schema, "UTC"), None).read(0)
    assert batch.column(0).type == pa.string()
    assert batch.column(0).view(pa.binary()).to_pylist() == [b"\xff\xfe", None]


def test_files_of_one_table_are_each_converted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"k": pa.array([1], pa.int64()), "t": ["x"], "only": [1]})
    write(tmp_path / "1.parquet", {"T": pa.array([b"y"]), "K": pa.array([2], pa.int32())})
    write(tmp_path / "2.parquet", {"other": [1, 2]})
    assert same(spark, tmp_path).rows == [
        "(1, 'x', 1)",
        "(2, 'y', None)",
        "(None, None, None)",
        "(None, None, None)",
    ]


def test_a_file_with_several_columns_that_could_be_meant_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "0.parquet", {"c": [1], "s": [{"x": 1}]})
    write(tmp_path / "1.parquet", {"c": [1], "C": [2], "s": [{"x": 1, "X": 2}]})
    for columns in ("c", "s"):
        with pytest.raises(
            SchemaMismatchError, match=r"1\.parquet: there are several columns .*caseSensitive"
        ):
            ours(spark, tmp_path, schema="c long" if columns == "c" else "s struct<x:long>")
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        plain(spark, tmp_path, schema="c long")


# --- calendars ------------------------------------------------------------------------------------------

OLD = {
    "d": pa.array([-141_428], pa.int32()).cast(pa.date32()),
    "t": pa.array([-2_208_988_800_000_001], pa.timestamp("us", "UTC")),
    "i": pa.array([-2_208_988_800_001], pa.timestamp("ms", "UTC")),
}
SURE = {
    "d": pa.array([-141_427], pa.int32()).cast(pa.date32()),
    "t": pa.array([-2_208_988_800_000_000], pa.timestamp("us", "UTC")),
    "i": pa.array([-2_208_988_800_000], pa.timestamp("ms", "UTC")),
    "n": pa.array([-(10**16)], pa.timestamp("us")),
}


def test_dates_of_an_unknown_calendar_are_read_by_the_mode(spark: SparkSession, tmp_path: Path) -> None:
    nested = pa.StructArray.from_arrays([OLD["d"]], ["d"])
    old = write(tmp_path / "old.parquet", {**OLD, "s": nested})
    assert len(same(spark, old).rows) == 1
    for mode in ("EXCEPTION", "LEGACY"):
        for kind in ("d date", "t timestamp", "i timestamp", "s struct<d:date>", "d timestamp_ntz"):
            with pytest.raises(
                UnsupportedError, match=r"old\.parquet: column '[dtis.]+' has dates before 1582"
            ):
                ours(spark, old, schema=kind, datetimeRebaseMode=mode)
    with pytest.raises(Exception, match="READ_ANCIENT_DATETIME"):
        plain(spark, old, schema="d date", datetimeRebaseMode="EXCEPTION")
    sure = write(tmp_path / "sure.parquet", SURE)
    for mode in ("EXCEPTION", "LEGACY"):
        assert len(same(spark, sure, datetimeRebaseMode=mode).rows) == 1


def test_int96_of_an_unknown_calendar_have_a_mode_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    old = write(tmp_path / "old.parquet", {"t": OLD["t"]}, use_deprecated_int96_timestamps=True)
    assert same(spark, old, datetimeRebaseMode="EXCEPTION").rows
    with pytest.raises(UnsupportedError, match="int96RebaseMode"):
        ours(spark, old, int96RebaseMode="exception")


@pytest.mark.parametrize(
    ("writer", "is_read"),
    [
        ("parquet-cpp-arrow version 22.0.0", False),
        ("parquet-cpp-arrow version 23.0.0", True),
        ("parquet-cpp version 1.5.1-SNAPSHOT", False),
        ("parquet-mr version 1.13.1 (build 1)", True),
        ("DuckDB version 1.0", True),
        ("", True),
        (None, True),
    ],
)
def test_int96_are_all_read_unless_an_early_pyarrow_wrote_them(writer: str | None, is_read: bool) -> None:
    assert reads_int96(writer) is is_read


EARLY = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)


@pytest.mark.parametrize("moment", [EARLY, dt.datetime(1600, 1, 1, 1), dt.datetime(1300, 6, 1, 12)])
def test_times_that_only_spark_reads_are_refused_with_the_remedy(
    spark: SparkSession, tmp_path: Path, moment: dt.datetime
) -> None:
    path = write_by_early_pyarrow(tmp_path / "f.parquet", moment)
    with pytest.raises(UnsupportedError, match=r"column 't' is stored as INT96 .*Let Spark write"):
        ours(spark, path)
    assert len(same(spark, path, schema="n long").rows) == 1


@pytest.mark.parametrize(
    "moment",
    [dt.datetime(1970, 1, 1), MOMENT, dt.datetime(1950, 5, 5), dt.datetime(9999, 12, 31, 23, 59), None],
)
def test_other_times_of_an_early_pyarrow_are_read(
    spark: SparkSession, tmp_path: Path, moment: dt.datetime | None
) -> None:
    path = write_by_early_pyarrow(tmp_path / "f.parquet", moment)
    assert len(same(spark, path).rows) == 1


@pytest.mark.parametrize("written", ["INT96", "TIMESTAMP_MICROS"])
def test_files_say_themselves_which_calendar_they_are_in(
    spark: SparkSession, tmp_path: Path, written: str
) -> None:
    for mode in ("LEGACY", "CORRECTED"):
        settings = {
            "spark.sql.parquet.outputTimestampType": written,
            "spark.sql.parquet.datetimeRebaseModeInWrite": mode,
            "spark.sql.parquet.int96RebaseModeInWrite": mode,
        }
        with confs(spark, settings):
            spark.sql(
                "select date'1500-03-01' d, timestamp'1500-03-01 00:00:00' t, date'2020-01-01' e,"
                " timestamp_ntz'1500-03-01 00:00:00' n"
            ).write.parquet(str(tmp_path / mode))
    assert same(
        spark, tmp_path / "CORRECTED", datetimeRebaseMode="EXCEPTION", int96RebaseMode="EXCEPTION"
    ).rows
    for kind in ("d date", "t timestamp"):
        with pytest.raises(UnsupportedError, match="by the calendar of Spark before"):
            ours(spark, tmp_path / "LEGACY", schema=kind)
    assert len(same(spark, tmp_path / "LEGACY", schema="e date, n timestamp_ntz").rows) == 1
