"""Columns from directories: types and values against Spark, which infers those of a whole path in one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from oracle import confs
from parquet_cases import ONE_SPLIT, found, ours, plain, same, scanned, write
from pyspark.sql import SparkSession

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.pruning import may_prune
from sortshuffle.spark.schema import to_arrow

NULL = "__HIVE_DEFAULT_PARTITION__"
TEXTS = [
    *(
        "1",
        "-1",
        "+1",
        "007",
        "2147483647",
        "2147483648",
        "-99999999999",
        "99999999999999999999",
        "1e5",
        "5.",
    ),
    *("9" * 38, "9" * 39, "1e38", "1E400", "1.5", "1d", "1f", "1L", "NaN", "nan", "Infinity", "-Infinity"),
    *("0x10", "0x1p3", ".5", "true", "null", NULL, "2024-01-01", "2024-1-1", "2024-01", "2024-02-30"),
    *("2024-01-01 10", "2024-01-01T10:00:00", "2024-01-01 10:00:00", "2024-01-01 10:00:00.5", "+2024-01-01"),
    *("2024-01-01 10:00:00.123", "2024-01-01 10%3A00%3A00", "2024-03-10 02%3A30%3A00", "12345-01-01"),
    *("2024-11-03 01%3A30%3A00", "2024-01-01 24%3A00%3A00", "2024-02-30 10%3A00%3A00", "a%20b", "a%", "%41"),
    *(
        "a%2Fb",
        " 1",
        "1 ",
        "--1",
        "1_000",
        "\u0661",
        "1e-3",
        "100e-2",
        "-0",
        "-0.0",
        "  ",
        "a=b",
        "%C3%A9",
        "é",
    ),
]
PAIRS = [
    *(("1", "99999999999"), ("1", "1.5"), ("99999999999", "1.5"), ("1", "9" * 20), ("1.5", "9" * 20)),
    *(("1", "2024-01-01"), ("2024-01-01", "2024-01-01 10%3A00%3A00"), ("1", "x"), ("1", NULL), (NULL, "1.5")),
    *(("99999999999", "9" * 20), ("2024-01-01", "x%20y"), ("2024-01-01 10%3A00%3A00", "x%3Ay"), (NULL, NULL)),
    *(
        ("1e5", "9" * 20),
        ("1e5", "7"),
        ("007", "x"),
        ("1.50", "x"),
        ("1e5", "2024-01-01"),
        ("9" * 30, "9" * 20),
    ),
]


def write_path(root: Path, texts: list[str]) -> None:
    """One file below a directory for each text: ``p0=.../p1=.../...``."""
    path = root.joinpath(*(f"p{at}={text}" for at, text in enumerate(texts)))
    write(path / "f.parquet", {"a": [len(texts)]})


def test_a_single_value_has_the_type_and_value_that_spark_infers(spark: SparkSession, tmp_path: Path) -> None:
    write_path(tmp_path, TEXTS)
    read = same(spark, tmp_path)
    assert len(read.schema) == len(TEXTS) + 1
    kinds = {field.dataType.simpleString() for field in read.schema}
    assert kinds >= {"int", "bigint", "decimal(20,0)", "double", "date", "timestamp", "string", "void"}


def test_different_values_have_the_type_that_spark_finds_for_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_path(tmp_path, [left for left, _ in PAIRS])
    write_path(tmp_path, [right for _, right in PAIRS])
    assert len(same(spark, tmp_path).rows) == 2


def test_without_inference_values_are_text(spark: SparkSession, tmp_path: Path) -> None:
    write_path(tmp_path, ["1", "2024-01-01", NULL, "a%20b", "10:00:00"])
    with confs(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):
        assert same(spark, tmp_path).rows == ["(5, '1', '2024-01-01', None, 'a b', '10:00:00')"]


def test_timestamps_are_without_a_zone_where_that_is_the_sessions_type(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_path(tmp_path, ["2024-03-10 02%3A30%3A00"])
    with confs(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        assert same(spark, tmp_path).schema["p0"].dataType.simpleString() == "timestamp_ntz"


@pytest.mark.parametrize("text", ["10:00:00", "1:30", "-2024-01-01", "0000-01-01"])
def test_values_that_spark_reads_by_rules_of_its_own_are_refused(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    write_path(tmp_path, [text])
    with pytest.raises(UnsupportedError, match=r"partition column 'p0'.*partitionColumnTypeInference"):
        found(spark, tmp_path)
    assert ours(spark, tmp_path, schema="p0 string").rows == [f"('{text}',)"]


def test_a_users_types_go_before_what_could_be_inferred(spark: SparkSession, tmp_path: Path) -> None:
    write_path(
        tmp_path,
        ["1", "-2", "3", "4", "5", "06", "7", "8", "true", "2024-01-01", "2024-01-01 10%3A00%3A00", NULL],
    )
    schema = (
        "p11 date, a long, P0 tinyint, p1 smallint, p2 int, p3 long, p4 float, p5 string, p6 double,"
        " p8 boolean, p7 binary, p9 date, p10 timestamp, none array<int>"
    )
    read = same(spark, tmp_path, schema=schema)
    # what the user named of the directories stands behind the rest, in the directories' order
    assert read.schema.names[:4] == ["a", "none", "P0", "p1"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("x", "int"), ("300", "tinyint"), ("1", "boolean"), ("2", "date"), ("x", "double"), ("x", "timestamp")],
)
def test_a_value_that_the_users_type_cannot_hold_is_an_error(
    spark: SparkSession, tmp_path: Path, text: str, kind: str
) -> None:
    write_path(tmp_path, [text])
    with pytest.raises(UsageError, match=rf"value '{text}' of the partition column 'p0' .* {kind}"):
        found(spark, tmp_path, schema=f"p0 {kind}")


@pytest.mark.parametrize("kind", ["decimal(5,2)", "array<int>", "interval day to second"])
def test_a_users_type_that_is_not_read_as_spark_reads_it_is_refused(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    write_path(tmp_path, ["1"])
    with pytest.raises(UnsupportedError, match=r"'p0' cannot be read as .*schema\(\)"):
        found(spark, tmp_path, schema=f"p0 {kind}")


# --- which directories are columns ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for name in (
        *("two/a=1/b=x/f", "two/a=2/b=y/f"),
        *("root/a=1/f", "root/f", "plain_inside/a=1/x/f", "plain_between/a=1/x/b=2/f", "plain_above/x/a=1/f"),
        *("temporary/a=1/_temporary/0/f", "temporary/a=2/f", "hidden/a=1/_f", "hidden/a=2/f", "under/_a=1/f"),
        *("equals/a=1=2/f", "escaped/a%20b=1/f", "cases/A=2/f", "cases/a=1/f"),
        *(
            "names/a=1/f",
            "names/b=1/f",
            "plain_beside/a=1/f",
            "plain_beside/x/f",
            "bases/x/a=1/f",
            "bases/y/a=2/f",
        ),
        *("no_value/a=/f", "no_name/=1/f", "twice/a=1/A=2/f", "depths/a=1/f", "depths/a=1/b=2/f"),
    ):
        write(root / f"{name}.parquet", {"v": [name]})
    write(root / "own" / "B=7" / "f.parquet", {"v": [1], "b": [100], "z": [5]})
    return root


@pytest.mark.parametrize(
    ("paths", "options", "names"),
    [
        (["two"], {}, ["v", "a", "b"]),
        (["two/a=1"], {}, ["v", "b"]),
        (["two/a=1/b=x"], {}, ["v"]),
        (["two/a=1/b=x/f.parquet"], {}, ["v"]),
        (["two/*/*/*"], {}, ["v"]),
        (["two/a=1/b=x/f.parquet"], {"basePath": "two"}, ["v", "a", "b"]),
        (["two/a=*"], {"basePath": "two"}, ["v", "a", "b"]),
        (["two"], {"recursiveFileLookup": "true"}, ["v"]),
        (["two", "two"], {}, ["v", "a", "b"]),
        (["root"], {}, ["v", "a"]),
        (["plain_inside"], {}, ["v", "a"]),
        (["plain_between"], {}, ["v", "b"]),
        (["plain_above"], {}, ["v", "a"]),
        (["temporary"], {}, ["v", "a"]),
        (["hidden"], {}, ["v", "a"]),
        (["under"], {}, ["v", "_a"]),
        (["equals"], {}, ["v", "a"]),
        (["escaped"], {}, ["v", "a b"]),
        (["own"], {}, ["v", "B", "z"]),
    ],
    ids=str,
)
def test_columns_are_those_that_spark_finds(
    spark: SparkSession, tables: Path, paths: list[str], options: dict[str, str], names: list[str]
) -> None:
    told = {name: str(tables / value) if name == "basePath" else value for name, value in options.items()}
    read = same(spark, *(tables / path for path in paths), **told)
    assert read.schema.names == names
    assert read.rows


@pytest.mark.parametrize(
    ("paths", "options", "says", "of_spark"),
    [
        (
            ["names"],
            {},
            "name different partition columns: a .*names/a=1.*; b",
            "CONFLICTING_PARTITION_COLUMN",
        ),
        (["depths"], {}, "name different partition columns", "CONFLICTING_PARTITION_COLUMN_NAMES"),
        (["plain_beside"], {}, "conflicting structures.*basePath", "CONFLICTING_DIRECTORY_STRUCTURES"),
        (["bases"], {}, "conflicting structures.*union", "CONFLICTING_DIRECTORY_STRUCTURES"),
        (["two/a=*"], {}, "conflicting structures", "CONFLICTING_DIRECTORY_STRUCTURES"),
        (["two", "under"], {}, "conflicting structures", "CONFLICTING_DIRECTORY_STRUCTURES"),
        (["no_value"], {}, "no value behind its '='", "EMPTY_PARTITION_COLUMN_VALUE"),
        (["no_name"], {}, "no column name in front of its '='", "EMPTY_PARTITION_COLUMN_NAME"),
        (["twice"], {}, "two columns of one name, a and A", "COLUMN_ALREADY_EXISTS"),
        (["two"], {"basePath": "root"}, "is not below it", "Wrong basePath"),
        (["two/a=1"], {"basePath": "two/a="}, "must name a directory", "basePath"),
        (["two/a=1"], {"basePath": "root/f.parquet"}, "must name a directory", "basePath"),
    ],
    ids=str,
)
def test_directories_that_contradict_each_other_are_refused_as_by_spark(
    spark: SparkSession, tables: Path, paths: list[str], options: dict[str, str], says: str, of_spark: str
) -> None:
    given = [tables / path for path in paths]
    told = {name: str(tables / value) for name, value in options.items()}
    with pytest.raises(UsageError, match=says):
        found(spark, *given, **told)
    with pytest.raises(Exception, match=of_spark):
        plain(spark, *given, **told)


def test_letters_case_tells_columns_apart_where_it_counts(spark: SparkSession, tables: Path) -> None:
    # of names that differ by case Spark takes that of whichever directory it lists first
    assert found(spark, tables / "cases").schema.names == ["v", "A"]
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        assert same(spark, tables / "own").schema.names == ["v", "b", "z", "B"]
        assert same(spark, tables / "twice").schema.names == ["v", "a", "A"]
        with pytest.raises(UsageError, match="name different partition columns"):
            found(spark, tables / "cases")


# --- pruning --------------------------------------------------------------------------------------------


def test_directories_that_a_filter_excludes_are_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    for year, city in [(2023, "Oslo"), (2023, "Rome"), (2024, "Oslo"), (2024, NULL)]:
        write(tmp_path / f"year={year}" / f"city={city}" / "f.parquet", {"a": [1, 2, 3]})
    files = found(spark, tmp_path)
    wire = to_arrow(files.schema, "UTC")
    year, city, a = pc.field("year"), pc.field("city"), pc.field("a")

    def directories(condition: Any) -> list[str]:
        splits = files.plan(condition, ONE_SPLIT, wire)
        return [
            piece.path.split("year=")[1].removesuffix("/f.parquet") for split in splits for piece in split
        ]

    assert directories(None) == ["2023/city=Oslo", "2023/city=Rome", "2024/city=Oslo", f"2024/city={NULL}"]
    assert directories(year == 2023) == ["2023/city=Oslo", "2023/city=Rome"]
    assert directories((year > 2023) & (a > 1)) == ["2024/city=Oslo", f"2024/city={NULL}"]
    assert directories((year > 2023) & (a > 5)) == ["2024/city=Oslo", f"2024/city={NULL}"]  # for a check
    assert scanned(files, wire, a > 5, (year > 2023) & (a > 5)) == []
    assert directories(city.is_null()) == [f"2024/city={NULL}"]
    assert directories(city.isin(["Rome", "Bonn"])) == ["2023/city=Rome"]
    assert directories(~(city == "Oslo")) == ["2023/city=Rome"]
    for path in tmp_path.glob("year=2023/*/f.parquet"):
        path.write_bytes(b"no Parquet file any more")
    rows = scanned(files, wire, year == 2024, year == 2024)
    assert rows == sorted(f"({n}, 2024, {city!r})" for n in (1, 2, 3) for city in ("Oslo", None))
    with pytest.raises(UsageError, match=r"f\.parquet cannot be read as a Parquet file"):
        directories(a > 1)


def test_floating_partition_columns_prune_nothing_and_are_filtered(
    spark: SparkSession, tmp_path: Path
) -> None:
    for text in ("1.5", "NaN", NULL):
        write(tmp_path / f"x={text}" / "f.parquet", {"a": [1]})
    files = found(spark, tmp_path)
    wire = to_arrow(files.schema, "UTC")
    condition = ~(pc.field("x") <= 2)
    assert not may_prune(condition, wire)
    assert scanned(files, wire, condition) == ["(1, nan)"]
