"""`frame.write.parquet(path)`: what Spark reads back equals the frame, in every mode, and the target is as a
whole either written or as it was before.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import assert_same_error, confs, data_frame, every_type, jobs, rows_in_order
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.frame.parquet_job import SPARK_SCHEMA_KEY, ParquetJob, _is_int96

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id`` and a key ``k`` of 7 values."""
    return spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 as k")


@pytest.fixture(scope="module")
def frame(numbers: DataFrame) -> ShuffleFrame:
    return sortshuffle.frame(numbers).repartition(3, "k")


def ids(path: Path) -> list[int]:
    return sorted(pq.read_table(path).column("id").to_pylist())


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def data_files(path: Path) -> list[str]:
    return [name for name in names(path) if name.endswith(".parquet")]


def python_job(frame: ShuffleFrame, target: object, *args: str) -> ParquetJob:
    """What Python writes. It raises what Python refuses, where `write` lets Spark write."""
    return ParquetJob.of(frame._chain, frame._new_run, str(target), *args)


def writers(path: Path) -> set[str]:
    """Who wrote the files: Spark or the Python workers, which write by pyarrow."""
    made = (str(pq.read_metadata(file).created_by) for file in path.rglob("*.parquet"))
    return {"Spark" if each.startswith("parquet-mr") else "Python" for each in made}


# --- what is written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_out", ["nt", "ts"])
def test_rows_and_schema_of_every_type_are_read_back_by_spark(
    spark: SparkSession, tmp_path: Path, left_out: str
) -> None:
    """Not of both kinds of timestamps in one file, which Spark writes."""
    df = data_frame(spark, every_type(seed=2, rows=2000)).drop("iv", left_out)  # Parquet has no intervals
    df = df.drop("xx") if left_out == "ts" else df
    target = tmp_path / "out"
    sortshuffle.frame(df).repartition(3, "st").write.parquet(str(target))
    found = spark.read.parquet(str(target))

    assert writers(target) == {"Python"}
    assert found.schema == df.schema
    assert list(map(repr, found.orderBy("id").collect())) == list(map(repr, df.orderBy("id").collect()))


def test_there_is_one_file_for_each_partition_with_rows(frame: ShuffleFrame, tmp_path: Path) -> None:
    frame.filter(pc.field("k") == 1).write.parquet(str(tmp_path / "one"))
    frame.write.parquet(str(tmp_path / "all"))

    assert len(data_files(tmp_path / "one")) == 1
    assert len(data_files(tmp_path / "all")) == len({row.split(":")[0] for row in rows_in_order(frame)}) == 3
    assert "_SUCCESS" in names(tmp_path / "all")
    assert ids(tmp_path / "all") == list(range(1000))


def test_a_frame_without_rows_gives_a_file_with_the_schema(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    target = tmp_path / "empty"
    frame.filter(pc.field("id") < 0).write.parquet(str(target))

    assert spark.read.parquet(str(target)).schema.simpleString() == frame.schema.simpleString()
    assert spark.read.parquet(str(target)).collect() == []
    assert sortshuffle.read(spark).parquet(str(target)).repartition(2, "k").collect() == []


@pytest.mark.parametrize(
    "codec", ["none", "uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw", "brotli"]
)
def test_compression_is_as_asked_for(frame: ShuffleFrame, tmp_path: Path, codec: str) -> None:
    target = tmp_path / codec
    frame.write.option("compression", codec).parquet(str(target))
    metadata = pq.ParquetFile(next(target.glob("*.parquet"))).metadata
    used = metadata.row_group(0).column(0).compression

    assert used == {"none": "UNCOMPRESSED", "lz4_raw": "LZ4"}.get(codec, codec.upper())
    assert ids(target) == list(range(1000))


def test_compression_is_the_sessions_where_none_is_asked_for(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    with confs(spark, {"spark.sql.parquet.compression.codec": "zstd"}):
        frame.write.parquet(str(tmp_path / "out"))
        frame.write.parquet(str(tmp_path / "gzip"), compression="GZIP")
    for name, codec in (("out", "ZSTD"), ("gzip", "GZIP")):
        metadata = pq.ParquetFile(next((tmp_path / name).glob("*.parquet"))).metadata

        assert metadata.row_group(0).column(0).compression == codec


def test_row_groups_are_no_larger_than_half_of_the_memory_to_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    with confs(spark, {"spark.sortshuffle.memory": "1m"}):
        source = sortshuffle.frame(spark.range(0, 300_000, 1, 1)).repartition(1, "id")
    source.write.parquet(str(tmp_path / "out"))
    metadata = pq.ParquetFile(next((tmp_path / "out").glob("*.parquet"))).metadata

    assert metadata.num_rows == 300_000
    assert metadata.num_row_groups >= 300_000 * 8 // (1 << 20)
    assert max(metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)) < 150_000


def test_writing_runs_one_job_of_the_frames_stages(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    with jobs(spark) as run:
        frame.write.parquet(str(tmp_path / "out"))

    assert run.stages == [2]


def test_ancient_days_are_read_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    days = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1582, 10, 15)]
    df = spark.createDataFrame([(day,) for day in days], "day date").coalesce(1)
    sortshuffle.frame(df).repartition(1).write.parquet(str(tmp_path / "out"))

    assert sorted(row.day for row in spark.read.parquet(str(tmp_path / "out")).collect()) == days


# --- what readers find is what they find in Spark's files -----------------------------------------------

TIMESTAMP = "select timestamp'2024-01-02 03:04:05.678901' t, id from range(2)"
LOCAL = "select timestamp_ntz'2024-01-02 03:04:05.678901' t, id from range(2)"
OLD = "select date'1500-01-01' d, timestamp'1500-01-01 00:00:00' t from range(2)"
BOTH = "select timestamp'2024-01-02 03:04:05' t, timestamp_ntz'2024-01-02 03:04:05' n from range(2)"
FOUND: dict[str, tuple[str, dict[str, str], str]] = {
    "timestamps": (TIMESTAMP, {}, "Python"),
    "timestamps in microseconds": (
        TIMESTAMP,
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
        "Python",
    ),
    "timestamps in milliseconds": (
        TIMESTAMP,
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
        "Spark",
    ),
    "local timestamps": (LOCAL, {}, "Python"),
    "both timestamps": (BOTH, {}, "Spark"),
    "days before the calendar": (OLD, {}, "Python"),
    "days of the old calendar": (
        OLD,
        {
            "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
            "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        },
        "Spark",
    ),
    "decimals and other numbers": (
        "select id::tinyint b, id::decimal(5,2) s, id::decimal(15,2) m, id::decimal(38,2) l from range(2)",
        {},
        "Python",
    ),
    "the legacy format": (
        "select id::decimal(5,2) s, array(1, null) a from range(2)",
        {"spark.sql.parquet.writeLegacyFormat": "true"},
        "Spark",
    ),
    "no mark of success": (
        "select id from range(2)",
        {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"},
        "Spark",
    ),
    "a setting of Hadoop's": ("select id from range(2)", {"parquet.enable.dictionary": "false"}, "Spark"),
    "no rows": ("select id, 'a' s from range(0)", {}, "Python"),
}


def found_by_readers(path: Path) -> dict[str, Any]:
    """What pyarrow and pandas find in a directory of files."""
    file = pq.ParquetFile(next(path.glob("*.parquet")))
    metadata = {key.decode(): value for key, value in file.metadata.metadata.items()}
    return {
        "columns": str(file.schema).split("\n", 2)[2].strip(),
        "types": file.schema_arrow.remove_metadata(),
        "spark's schema": json.loads(metadata.pop(SPARK_SCHEMA_KEY)),
        "metadata": metadata,
        "rows": sorted(map(str, pq.read_table(path).to_pylist())),
        "pandas": pd.read_parquet(path).dtypes.to_dict(),
        "marks": [name for name in names(path) if name.startswith("_")],
    }


@pytest.mark.parametrize(("sql", "settings", "writer"), FOUND.values(), ids=FOUND.keys())
def test_readers_find_what_they_find_in_sparks_files(
    spark: SparkSession, tmp_path: Path, sql: str, settings: dict[str, str], writer: str
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    df = spark.sql(sql)
    with confs(spark, settings):
        sortshuffle.frame(df).repartition(1).write.parquet(str(ours))
        df.repartition(1).write.parquet(str(theirs))

    assert writers(ours) == {writer}
    assert found_by_readers(ours) == found_by_readers(theirs)
    assert spark.read.parquet(str(ours)).collect() == spark.read.parquet(str(theirs)).collect()


def test_spark_finds_nan_in_what_python_has_written(spark: SparkSession, tmp_path: Path) -> None:
    """Spark skips row groups by their statistics, in which pyarrow leaves NaN out."""
    df = spark.sql(
        "select d, float(d) f, struct(d, id) s, array(d) a, map(id, d) m, id from"
        " values (1, 1D), (2, 1D), (3, double('NaN')) t(id, d)"
    )
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    sortshuffle.frame(df).repartition(1).write.parquet(str(ours))
    df.repartition(1).write.parquet(str(theirs))
    for condition in ("d > 5", "d != 1", "d = double('NaN')", "f > 5", "s.d > 5", "s.id > 2", "id > 2"):
        found, wanted = (
            spark.read.parquet(str(path)).filter(condition).select("id").collect() for path in (ours, theirs)
        )
        assert found == wanted == [(3,)], condition

    (file,) = data_files(ours)
    group = pq.read_metadata(ours / file).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {each.path_in_schema: each.is_stats_set for each in columns} == {
        "d": False,
        "f": False,
        "s.d": False,
        "s.id": True,
        "a.list.element": False,
        "m.key_value.key": True,
        "m.key_value.value": False,
        "id": True,
    }


@pytest.mark.parametrize(("release", "writes"), [("22.0.0", False), ("23.0.0", True)])
def test_spark_writes_int96_if_pyarrow_would_write_early_times_wrong(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, release: str, writes: bool
) -> None:
    monkeypatch.setattr(pa, "__version__", release)
    schema = spark.sql("select timestamp'1969-12-31 23:59:59' t").schema
    if writes:
        assert _is_int96(spark, schema)
    else:
        with pytest.raises(UnsupportedError, match="only Spark writes INT96"):
            _is_int96(spark, schema)


def test_comments_and_texts_of_limited_length_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("create table limited (c char(5) comment 'short', v varchar(9)) using parquet")
    try:
        df = spark.table("limited")
        for made, name in ((sortshuffle.frame(df), "ours"), (df, "theirs")):
            made.write.parquet(str(tmp_path / name))
    finally:
        spark.sql("drop table limited")

    assert writers(tmp_path / "ours") == {"Python"}
    found, expected = (spark.read.parquet(str(tmp_path / name)).schema for name in ("ours", "theirs"))
    assert expected["c"].metadata["comment"] == "short"
    assert [field.metadata for field in found] == [field.metadata for field in expected]


def test_field_ids_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(2).withMetadata("id", {"parquet.field.id": 7})
    sortshuffle.frame(df).write.parquet(str(tmp_path / "out"))
    assert "field_id=7 id" in str(pq.ParquetFile(next((tmp_path / "out").glob("*.parquet"))).schema)


def test_names_that_only_differ_in_case_are_refused_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("select id as a, id as A from range(2)")
    target = str(tmp_path / "out")
    assert_same_error(lambda each: each.write.parquet(target), sortshuffle.frame(df), df)
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        sortshuffle.frame(df).write.parquet(target)
        assert writers(Path(target)) == {"Python"}
        assert spark.read.parquet(target).columns == ["a", "A"]


# --- modes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "default", "ERROR"])
def test_an_existing_target_is_refused_by_default(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path, mode: str | None
) -> None:
    (tmp_path / "out").mkdir()
    with jobs(spark) as run, pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        frame.write.parquet(str(tmp_path / "out"), mode)
    with pytest.raises(UsageError, match=r'out exists: choose mode\("overwrite"\), "append" or "ignore"'):
        python_job(frame, tmp_path / "out", *([] if mode is None else [mode]))

    assert run.ids == []
    assert names(tmp_path / "out") == []


def test_appending_twice_keeps_all_rows(spark: SparkSession, frame: ShuffleFrame, tmp_path: Path) -> None:
    target = tmp_path / "out"
    for _ in range(3):
        frame.write.mode("append").parquet(str(target))

    assert ids(target) == sorted(3 * list(range(1000)))
    assert spark.read.parquet(str(target)).count() == 3000
    assert names(tmp_path) == ["out"]


def test_overwriting_replaces_a_directory_and_a_file(frame: ShuffleFrame, tmp_path: Path) -> None:
    directory, file = tmp_path / "directory", tmp_path / "file"
    frame.write.parquet(str(directory))
    (directory / "strange").write_text("not of a frame")
    file.write_text("a file")
    for target in (directory, file):
        frame.filter(pc.field("id") < 10).write.mode("overwrite").parquet(str(target))

        assert ids(target) == list(range(10))
    assert "strange" not in names(directory)
    assert names(tmp_path) == ["directory", "file"]


def test_a_frame_may_overwrite_the_files_it_is_read_from(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    frame.write.parquet(str(target))
    half = sortshuffle.read(spark).parquet(str(target)).filter(pc.field("id") < 500)
    half.write.mode("overwrite").parquet(str(target))

    assert ids(target) == list(range(500))


def test_ignoring_leaves_an_existing_target_and_runs_nothing(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with jobs(spark) as run:
        frame.write.mode("ignore").parquet(str(tmp_path / "out"))
    assert run.ids == []
    assert names(tmp_path / "out") == []

    frame.write.mode("ignore").parquet(str(tmp_path / "new"))
    assert ids(tmp_path / "new") == list(range(1000))


def test_a_link_to_a_directory_stays_one(frame: ShuffleFrame, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    frame.write.mode("overwrite").parquet(str(tmp_path / "link"))

    assert (tmp_path / "link").is_symlink()
    assert ids(tmp_path / "real") == list(range(1000))
    assert names(tmp_path) == ["link", "real"]


# --- as a whole or not at all ---------------------------------------------------------------------------


def unlucky(batches: Batches) -> Batches:
    for batch in batches:
        yield batch
        if 3 in batch["k"].to_pylist():
            raise ZeroDivisionError("at 3")


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_a_failing_task_leaves_the_target_as_it_was(frame: ShuffleFrame, tmp_path: Path, mode: str) -> None:
    target = tmp_path / "out"
    if mode != "error":
        frame.filter(pc.field("id") < 10).write.parquet(str(target))
    before = names(tmp_path), names(target) if target.exists() else None
    with pytest.raises(PythonException, match="ZeroDivisionError: at 3"):
        frame.mapInArrow(unlucky, frame.schema).write.mode(mode).parquet(str(target))

    assert (names(tmp_path), names(target) if target.exists() else None) == before


def test_what_an_attempt_that_does_not_count_has_written_is_not_in_the_target(
    frame: ShuffleFrame, tmp_path: Path
) -> None:
    directory = str(tmp_path)

    def beside(batches: Batches) -> Batches:
        """Leaves a file where tasks write theirs, as an attempt does that is killed when another has won."""
        (attempts,) = Path(directory).glob(".out.writing-*/attempts")
        (attempts / f"part-lost-{os.getpid()}.parquet").write_bytes(b"half a file")
        yield from batches

    frame.mapInArrow(beside, frame.schema).write.parquet(str(tmp_path / "out"))

    assert not [name for name in names(tmp_path / "out") if "lost" in name]
    assert ids(tmp_path / "out") == list(range(1000))
    assert names(tmp_path) == ["out"]


# --- what Python refuses and Spark writes ---------------------------------------------------------------


def test_appending_to_a_file_is_refused_and_leaves_it(
    frame: ShuffleFrame, numbers: DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match="out is not a directory"):
        python_job(frame, tmp_path / "out", "append")
    assert_same_error(lambda each: each.write.mode("append").parquet(str(tmp_path / "out")), frame, numbers)

    assert (tmp_path / "out").read_text() == "a file"


def test_unknown_modes_and_codecs_are_refused(
    spark: SparkSession, frame: ShuffleFrame, numbers: DataFrame, tmp_path: Path
) -> None:
    target = str(tmp_path / "out")
    with pytest.raises(UsageError, match=r"mode 'upsert' is not one of error, .*append, overwrite, ignore"):
        python_job(frame, target, "upsert")
    with pytest.raises(UsageError, match=r"compression 'lzop' is not one of none, .*snappy"):
        python_job(frame, target, "error", "lzop")
    assert_same_error(lambda each: each.write.mode("upsert").parquet(target), frame, numbers)
    assert_same_error(lambda each: each.write.option("compression", "lzop").parquet(target), frame, numbers)
    with (
        confs(spark, {"spark.sql.parquet.compression.codec": "lzo"}),
        pytest.raises(UsageError, match="compression 'lzo' is not one of"),
    ):
        python_job(frame, target)
    assert names(tmp_path) == []


WRONG_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "a mode": lambda df: df.write.mode("bogus"),
    "a number of buckets": lambda df: df.write.bucketBy("x", "k"),
    "a bucket's column": lambda df: df.write.bucketBy(2, 3),
    "columns to sort by": lambda df: df.write.bucketBy(2, "k").sortBy(["k"], "id"),
    "no columns to sort by": lambda df: df.write.bucketBy(2, "k").sortBy(3),
}


@pytest.mark.parametrize("setting", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS.keys())
def test_a_wrong_setting_is_refused_at_once(
    frame: ShuffleFrame, numbers: DataFrame, setting: Callable[[Any], Any]
) -> None:
    assert_same_error(setting, frame, numbers)


def test_a_setting_is_checked_without_the_columns(frame: ShuffleFrame) -> None:
    """To make the shadow of a long chain of calls takes long."""
    selected: Any = frame.select("id")
    selected.write.mode("append").partitionBy("id").option("compression", "zstd")
    assert selected._shadow._made is None


def test_settings_are_those_of_the_call(
    spark: SparkSession, frame: ShuffleFrame, numbers: DataFrame, tmp_path: Path
) -> None:
    for name, rows in (("ours", frame), ("plain", numbers)):
        columns = ["k"]
        writer = rows.write.partitionBy(columns)
        columns.append("id")
        writer.parquet(str(tmp_path / name))
    assert names(tmp_path / "ours") == names(tmp_path / "plain")
    assert spark.read.parquet(str(tmp_path / "ours")).count() == numbers.count()


WRITTEN_BY_SPARK: dict[str, Callable[[Any, str], None]] = {
    "an option": lambda df, path: df.write.option("maxRecordsPerFile", 5).parquet(path),
    "options": lambda df, path: df.write.options(maxRecordsPerFile=5).format("parquet").save(path),
    "directories of values": lambda df, path: df.write.partitionBy("k").parquet(path),
    "directories in the call": lambda df, path: df.write.parquet(path, "append", partitionBy=["k"]),
    "sorted directories": lambda df, path: df.write.save(
        path, "parquet", partitionBy="k", compression="gzip"
    ),
    "no format": lambda df, path: df.write.mode("overwrite").save(path),
}


@pytest.mark.parametrize("write", WRITTEN_BY_SPARK.values(), ids=WRITTEN_BY_SPARK.keys())
def test_spark_writes_by_the_settings_that_python_has_not(
    spark: SparkSession,
    frame: ShuffleFrame,
    numbers: DataFrame,
    tmp_path: Path,
    write: Callable[[Any, str], None],
) -> None:
    small, plain = frame.filter(pc.field("id") < 60), numbers.where("id < 60").repartition(3, "k")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(small, str(ours))
    write(plain, str(theirs))

    assert writers(ours) == {"Spark"}
    found, expected = ([path.relative_to(out) for path in out.rglob("*.parquet")] for out in (ours, theirs))
    assert sorted(map(nameless, found)) == sorted(map(nameless, expected))
    read = spark.read.parquet(str(ours))
    assert read.schema == spark.read.parquet(str(theirs)).schema
    assert sorted(read.select("id", "k").collect()) == sorted(plain.collect())


def nameless(path: Path) -> str:
    """The directory and the ending of a file whose name holds an id of the job."""
    return f"{path.parent}/{path.name.split('-')[0]}.{path.name.split('.', 1)[1]}"


def test_spark_writes_other_formats_and_tables(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    small = frame.filter(pc.field("id") < 60)
    small.write.csv(str(tmp_path / "csv"), header=True)
    small.write.mode("append").format("json").save(str(tmp_path / "json"))
    small.write.option("path", str(tmp_path / "table")).saveAsTable("written_by_spark")
    try:
        for df in (
            spark.read.csv(str(tmp_path / "csv"), header=True, schema="id long, k long"),
            spark.read.schema("id long, k long").json(str(tmp_path / "json")),
            spark.table("written_by_spark"),
        ):
            assert sorted(row.id for row in df.collect()) == list(range(60))
    finally:
        spark.sql("drop table written_by_spark")


def test_python_writes_by_every_way_to_name_parquet(frame: ShuffleFrame, tmp_path: Path) -> None:
    frame.write.parquet(str(tmp_path / "1"))
    frame.write.format("parquet").mode("append").save(str(tmp_path / "2"))
    frame.write.save(str(tmp_path / "3"), "parquet", "overwrite", compression="zstd")
    frame.write.options(Compression="gzip").parquet(str(tmp_path / "4"), mode="ignore")

    for name in "1234":
        assert writers(tmp_path / name) == {"Python"}, name
        assert ids(tmp_path / name) == list(range(1000))


def test_a_handed_over_write_is_logged(
    frame: ShuffleFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sortshuffle.frame"):
        frame.write.partitionBy("k").parquet(str(tmp_path / "out"))

    assert [record.message for record in caplog.records if record.name == "sortshuffle.frame"] == [
        "write(): rows go to Spark: only Spark writes into a directory for each value of a column"
    ]


def test_only_local_paths_are_pythons(frame: ShuffleFrame, numbers: DataFrame) -> None:
    with pytest.raises(UnsupportedError, match=r"s3://bucket/out is not a local path, and only Spark writes"):
        python_job(frame, "s3://bucket/out")
    assert_same_error(lambda each: each.write.parquet("nowhere://bucket/out"), frame, numbers)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select interval '1' day as i", "column i of type interval day"),
        ("select named_struct('v', array(null)) as s", "column s.v.element of type void"),
        ("select map('a', interval '1' day) as m", "column m.value of type interval day"),
    ],
)
def test_types_that_pyarrow_cannot_write_as_spark_are_refused_by_their_path(
    spark: SparkSession, tmp_path: Path, sql: str, words: str
) -> None:
    frame = sortshuffle.frame(spark.sql(sql))
    with pytest.raises(UnsupportedError, match=words):
        python_job(frame, tmp_path / "out")
    with pytest.raises(UnsupportedError, match="the frame has no columns"):
        python_job(frame.select(), tmp_path / "out")

    assert names(tmp_path) == []


def test_spark_writes_types_that_pyarrow_cannot_write_as_spark(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("select interval '1' day as i, array(null) as v")
    frame = sortshuffle.frame(df)
    frame.write.parquet(str(tmp_path / "out"))

    assert writers(tmp_path / "out") == {"Spark"}
    assert spark.read.parquet(str(tmp_path / "out")).collect() == df.collect()
    target = str(tmp_path / "none")
    assert_same_error(lambda each: each.select().write.parquet(target), frame, df)


def test_a_file_url_is_a_local_path(frame: ShuffleFrame, tmp_path: Path) -> None:
    frame.write.parquet(f"file://{tmp_path}/new/out")

    assert ids(tmp_path / "new" / "out") == list(range(1000))
