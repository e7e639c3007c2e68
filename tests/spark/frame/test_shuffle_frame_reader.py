"""`read(spark).parquet(...)` as a frame: the same rows as `spark.read.parquet`, only the files, columns and
row groups that are needed, and errors at the call.

What files, directories and types mean is tested in `tests/spark/parquet`, mostly without workers.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import confs, differences, every_type, partition_count, rows_in_order
from parquet_cases import write
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.plan.origins import ParquetOrigin

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

UTC = dt.timezone.utc


def origin_of(frame: ShuffleFrame) -> ParquetOrigin:
    origin = frame._chain.origin
    assert isinstance(origin, ParquetOrigin)
    return origin


def row_groups_of(frame: ShuffleFrame) -> list[int]:
    return [group for split in origin_of(frame).splits for piece in split for group in piece.row_groups]


def printed(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


# --- the same rows as Spark's own reader ----------------------------------------------------------------


def test_every_type_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    table = every_type(seed=5, rows=3000).drop(["iv", "no"])
    pq.write_table(table, tmp_path / "typed.parquet", row_group_size=700)
    ours = sortshuffle.read(spark).parquet(str(tmp_path / "typed.parquet"))
    plain = spark.read.parquet(str(tmp_path / "typed.parquet"))

    assert ours.schema == plain.schema
    assert differences(ours.repartition(5, "st", "d"), plain.repartition(5, "st", "d")) == []


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_instants_are_read_in_the_session_time_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    instants = [dt.datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(24)]
    path = write(tmp_path / "t.parquet", {"t": pa.array(instants, pa.timestamp("ms", "UTC"))})
    seen = "t timestamp, seen string"

    def local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = pa.array([str(value) for value in batch["t"].to_pylist()])
            yield pa.record_batch([batch["t"], texts], names=["t", "seen"])

    with confs(spark, {"spark.sql.session.timeZone": zone}):
        ours = sortshuffle.read(spark).parquet(str(path)).mapInArrow(local, seen).repartition(2, "seen")
        plain = spark.read.parquet(str(path)).mapInArrow(local, seen).repartition(2, "seen")

        assert differences(ours, plain) == []


def test_nested_columns_are_selected_and_filtered_whole(spark: SparkSession, tmp_path: Path) -> None:
    structs = [{"x": number, "y": [str(number)]} if number % 3 else None for number in range(100)]
    path = write(
        tmp_path / "n.parquet", {"id": range(100), "s": structs, "a.b": range(100)}, row_group_size=20
    )
    frame = sortshuffle.read(spark).parquet(str(path))
    ours = frame.filter(pc.field("s", "x") > 50).select("`a.b`", "s")

    assert origin_of(frame.select("s")).lines()[0].endswith("n.parquet: s")
    assert (
        differences(
            ours.repartition(2, "`a.b`"),
            spark.read.parquet(str(path)).where("s.x > 50").select("`a.b`", "s").repartition(2, "`a.b`"),
        )
        == []
    )


# --- options, schemas and directories --------------------------------------------------------------------


def test_partitions_schema_and_options_go_all_the_way(spark: SparkSession, tmp_path: Path) -> None:
    for year, city in [(2023, "Oslo"), (2023, "a%2Fb"), (2024, "__HIVE_DEFAULT_PARTITION__")]:
        path = tmp_path / f"year={year}" / f"city={city}" / "f.parquet"
        write(path, {"k": pa.array([1, 2, None], pa.int32()), "t": ["x", None, "z"]})
    write(tmp_path / "year=2024" / "city=Rome" / "g.parquet", {"k": [7], "more": [{"n": 1}]})
    ours = (
        sortshuffle.read(spark)
        .option("mergeSchema", "true")
        .schema("T string, k long, year short, more struct<N:int>")
    )
    ours = ours.options(mergeSchema=None, pathGlobFilter="*.parquet")
    wanted = "T string, k long, year short, more struct<n:bigint>"
    ours = ours.schema(wanted).parquet(str(tmp_path), recursiveFileLookup="false")
    plain = spark.read.schema(wanted).parquet(str(tmp_path))

    assert ours.schema == plain.schema
    assert differences(ours.repartition(3, "k", "city"), plain.repartition(3, "k", "city")) == []
    assert sorted(map(repr, ours.select("city").filter(pc.field("city") != "Oslo").collect())) == sorted(
        map(repr, plain.select("city").where("city <> 'Oslo'").collect())
    )
    late = ours.filter(pc.field("year") == pa.scalar(2024, pa.int16())).select("k")
    assert row_groups_of(late) == [0, 0]
    assert late.count() == 4
    assert ours.select("year").distinct().count() == 2


def test_a_schema_that_forbids_nulls_does_not_deny_those_of_the_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark allows nulls in all that it reads from files. Otherwise its planner would drop them."""
    write(tmp_path / "f.parquet", {"a": pa.array([1, 2, None], pa.int32()), "s": [[{"n": None}], None, []]})
    wanted = "a int not null, s array<struct<n: int not null>> not null, missing string not null"
    ours = sortshuffle.read(spark).schema(wanted).parquet(str(tmp_path))
    plain = spark.read.schema(wanted).parquet(str(tmp_path))
    assert ours.schema == plain.schema
    assert printed(ours.toDF().collect()) == printed(plain.collect())
    assert ours.toDF().filter("a is null").count() == 1
    assert ours.toDF().selectExpr("count(a)", "count(missing)").collect() == [(2, 0)]


def test_options_of_the_file_system_reach_the_workers_and_are_not_shown(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "s3cr3t" / "deep" / "f.parquet", {"a": [1, 2]})
    reader = sortshuffle.read(spark).option("fsspec.path", str(tmp_path / "s3cr3t"))
    frame = reader.options(**{"fsspec.target_protocol": "file"}).parquet("dir://deep/*.parquet")

    assert sorted(row.a for row in frame.collect()) == [1, 2]
    frame.explain()
    shown = capsys.readouterr().out + repr(frame) + repr(origin_of(frame)) + repr(frame._chain)
    assert "dir://deep/*.parquet" in shown
    assert "s3cr3t" not in shown


def test_a_reader_is_changed_by_its_options_as_sparks_is(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "x=1" / "f.parquet", {"a": [1]})
    reader = sortshuffle.read(spark)
    assert reader.option("recursiveFileLookup", True) is reader
    assert reader.parquet(str(tmp_path)).columns == ["a"]
    assert reader.option("RECURSIVEFILELOOKUP", None).parquet(str(tmp_path)).columns == ["a", "x"]
    assert reader.schema("x string") is reader
    assert reader.parquet(str(tmp_path)).schema.simpleString() == "struct<x:string>"


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda reader: reader.parquet(), UsageError, "at least one path"),
        (lambda reader: reader.parquet("/nowhere/at/all"), UsageError, "there is nothing at /nowhere/at/all"),
        (lambda reader: reader.parquet(["a"]), UsageError, r"takes paths, each a string, not \['a'\]"),
        (lambda reader: reader.parquet("a", "memory://b"), UnsupportedError, "several file systems"),
        (
            lambda reader: reader.parquet("a", modifiedAfter="2024"),
            UnsupportedError,
            "no option modifiedAfter",
        ),
        (lambda reader: reader.option(1, 2), UsageError, "the name of an option"),
        (lambda reader: reader.schema("a lonk"), UsageError, "cannot be parsed"),
    ],
    ids=range(7),
)
def test_wrong_calls_are_refused_at_once(
    spark: SparkSession, call: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(sortshuffle.read(spark))


def test_the_memory_of_this_process_is_refused(spark: SparkSession) -> None:
    memory = fsspec.filesystem("memory")
    with memory.open("/reader/f.parquet", "wb") as file:
        pq.write_table(pa.table({"a": [1]}), file)
    try:
        with pytest.raises(UnsupportedError, match="memory:// is the memory of this process"):
            sortshuffle.read(spark).parquet("memory://reader")
    finally:
        memory.rm("/reader", recursive=True)


def test_what_is_no_parquet_file_is_refused_by_its_path(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"a": [1]})
    (tmp_path / "z.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UsageError, match=r"z\.parquet cannot be read as a Parquet file"):
        sortshuffle.read(spark).parquet(str(tmp_path / "z.parquet"))
    several = sortshuffle.read(spark).parquet(f"file://{tmp_path}")
    with pytest.raises(UsageError, match=r"z\.parquet cannot be read as a Parquet file"):
        several.toDF()


# --- files that differ ----------------------------------------------------------------------------------


def test_a_column_that_a_later_file_lacks_is_null_there(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"a": [1, 2], "b": ["x", "y"]})
    write(tmp_path / "1.parquet", {"a": [3, 4]})
    frame = sortshuffle.read(spark).parquet(str(tmp_path))
    plain = spark.read.parquet(str(tmp_path))

    assert printed(frame.collect()) == printed(plain.collect())
    assert printed(frame.select("b").collect()) == printed(plain.select("b").collect())
    # also where the filter asks the statistics of a file that has none of this column
    assert printed(frame.filter(pc.field("b") == "x").collect()) == printed(plain.where("b = 'x'").collect())
    assert printed(frame.filter(pc.field("b").is_null()).collect()) == printed(
        plain.where("b is null").collect()
    )


def test_a_column_of_another_type_in_a_later_file_names_file_column_and_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "0.parquet", {"a": pa.array([1], pa.int64())})
    write(tmp_path / "1.parquet", {"a": pa.array(["x"])})
    with pytest.raises(
        PythonException,
        match=r"SchemaMismatchError: the scan of .*1\.parquet: column 'a' .*\(expected bigint, found string",
    ):
        sortshuffle.read(spark).parquet(str(tmp_path)).collect()


def test_files_without_rows_or_row_groups_have_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    pq.ParquetWriter(tmp_path / "0.parquet", schema).close()
    write(tmp_path / "1.parquet", {"a": pa.array([], pa.int64())})
    empty = sortshuffle.read(spark).parquet(str(tmp_path))

    assert empty.columns == ["a"]
    assert empty.count() == 0
    assert empty.collect() == []
    assert partition_count(empty.repartition(3, "a")) == 3
    assert empty.repartition(3, "a").collect() == []
    write(tmp_path / "2.parquet", {"a": [7]})
    assert [row.a for row in sortshuffle.read(spark).parquet(str(tmp_path)).repartition(2).collect()] == [7]


# --- only what is needed --------------------------------------------------------------------------------


@pytest.fixture
def wide(spark: SparkSession, tmp_path: Path) -> ShuffleFrame:
    """1000 rows in 10 row groups: ``id`` ascending, ``k``, ``s``, ``d``, and ``broken``, whose pages are."""
    path = write(
        tmp_path / "wide.parquet",
        {
            "id": np.arange(1000),
            "k": np.arange(1000) % 7,
            "s": [f"{at:04}" for at in range(1000)],
            "d": np.arange(1000) / 10,
            "broken": [f"text {at}" * 20 for at in range(1000)],
        },
        row_group_size=100,
        compression="snappy",
        use_dictionary=False,
        write_page_checksum=False,
    )
    metadata = pq.ParquetFile(path).metadata
    content = bytearray(path.read_bytes())
    for group in range(10):
        column = metadata.row_group(group).column(4)
        start = column.data_page_offset
        content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    return sortshuffle.read(spark).parquet(str(path))


def test_only_selected_columns_are_read(wide: ShuffleFrame) -> None:
    with pytest.raises(PythonException):  # the control: reading that column fails
        wide.select("broken").collect()

    assert len(wide.select("s", "id").collect()) == 1000
    assert len(wide.drop("broken").collect()) == 1000
    assert wide.count() == 1000
    assert origin_of(wide.select("s", "id")).file_columns == ("s", "id")
    assert origin_of(wide.select("s", "id").select("id")).file_columns == ("id",)


def test_columns_of_a_filter_are_read_and_left_out(wide: ShuffleFrame) -> None:
    ours = wide.filter(pc.field("k") == 3).filter(pc.field("d") < 50).select("s")

    assert origin_of(ours).file_columns == ("s", "k", "d")
    assert ours.columns == ["s"]
    assert sorted(row.s for row in ours.collect()) == [f"{at:04}" for at in range(500) if at % 7 == 3]
    assert (
        ours.count()
        == wide.select("k", "d").filter((pc.field("k") == 3) & (pc.field("d") < 50)).count()
        == 71
    )


def test_a_filter_behind_a_selection_is_of_the_selected_columns(wide: ShuffleFrame) -> None:
    ours = wide.select("s", "k").filter(pc.field("k") == 3)

    assert origin_of(ours).file_columns == ("s", "k")
    assert len(ours.collect()) == 143
    with pytest.raises(UsageError, match="over the columns s, k"):
        ours.filter(pc.field("id") == 3)


def test_row_groups_that_a_filter_excludes_are_not_read(wide: ShuffleFrame) -> None:
    assert row_groups_of(wide.filter(pc.field("id") >= 850)) == [8, 9]
    assert row_groups_of(wide.filter((pc.field("s") > "0099") & (pc.field("s") <= "0199"))) == [1]
    assert row_groups_of(wide.filter(pc.field("id") < 250).filter(pc.field("s") > "0150")) == [1, 2]
    assert row_groups_of(wide.filter(pc.field("id") < 0)) == []
    assert row_groups_of(wide) == list(range(10))
    ours = wide.filter(pc.field("id") >= 850).select("id")
    assert sorted(row.id for row in ours.collect()) == list(range(850, 1000))
    assert ours.filter(pc.field("id") < 0).collect() == []


def test_a_filter_on_floating_point_numbers_excludes_no_row_group(wide: ShuffleFrame) -> None:
    # statistics do not know NaN, so they cannot say that no row is not at or below a number
    assert row_groups_of(wide.filter(pc.field("d") >= 85.0)) == list(range(10))
    assert row_groups_of(wide.filter(pc.field("d") >= 85.0).filter(pc.field("id") >= 850)) == [8, 9]


def test_nan_passes_a_filter_that_the_statistics_of_its_row_group_exclude(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(tmp_path / "nan.parquet", {"x": [1.0, 2.0, math.nan]})
    frame = sortshuffle.read(spark).parquet(str(path))

    assert repr(frame.filter(~(pc.field("x") <= 5)).collect()) == "[Row(x=nan)]"


def test_a_filter_on_int96_timestamps_finds_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 6, 1), None], pa.timestamp("us"))
    path = write(tmp_path / "t.parquet", {"t": times, "a": [1, 2, 3]}, use_deprecated_int96_timestamps=True)
    march = pa.scalar(dt.datetime(2024, 3, 1, tzinfo=UTC))
    ours = sortshuffle.read(spark).parquet(str(path)).filter(pc.field("t") > march).select("a")

    assert [row.a for row in ours.collect()] == [2]


def test_sparks_settings_decide_how_much_a_task_scans(spark: SparkSession, tmp_path: Path) -> None:
    path = write(
        tmp_path / "f.parquet", {"id": np.random.default_rng(1).integers(0, 2**62, 8000)}, row_group_size=1000
    )
    with confs(spark, {"spark.sql.files.maxPartitionBytes": "20000", "spark.sql.files.openCostInBytes": "0"}):
        small = sortshuffle.read(spark).parquet(str(path))
        assert partition_count(small) == 4
    with confs(spark, {"spark.sql.files.minPartitionNum": "1"}):
        whole = sortshuffle.read(spark).parquet(str(path))
        assert partition_count(whole) == 1
    # decided with the plan: another setting later must not take row groups from under it
    assert small.count() == whole.count() == 8000
    assert sorted(row.split(": ")[1] for row in rows_in_order(small)) == sorted(
        row.split(": ")[1] for row in rows_in_order(whole)
    )
