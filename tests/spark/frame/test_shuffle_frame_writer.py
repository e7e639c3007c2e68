"""`frame.write.parquet(path)`: what Spark reads back equals the frame, in every mode, and the target is as a
whole either written or as it was before.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import confs, data_frame, every_type, jobs, rows_in_order
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import UnsupportedError, UsageError

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


# --- what is written ------------------------------------------------------------------------------------


def test_rows_and_schema_of_every_type_are_read_back_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    df = data_frame(spark, every_type(seed=2, rows=2000)).drop("iv")  # which Parquet has not
    target = tmp_path / "out"
    sortshuffle.frame(df).repartition(3, "st").write.parquet(str(target))
    found = spark.read.parquet(str(target))

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


# --- modes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "default", "ERROR"])
def test_an_existing_target_is_refused_by_default(
    frame: ShuffleFrame, tmp_path: Path, mode: str | None
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r'out exists: choose mode\("overwrite"\), "append" or "ignore"'):
        frame.write.parquet(str(tmp_path / "out"), mode)

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


# --- refused --------------------------------------------------------------------------------------------


def test_appending_to_a_file_is_refused_and_leaves_it(frame: ShuffleFrame, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match="out is not a directory"):
        frame.write.mode("append").parquet(str(tmp_path / "out"))

    assert (tmp_path / "out").read_text() == "a file"


def test_unknown_modes_options_and_codecs_are_refused_with_those_there_are(
    spark: SparkSession, frame: ShuffleFrame, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"mode 'upsert' is not one of error, .*append, overwrite, ignore"):
        frame.write.mode("upsert")
    with pytest.raises(UsageError, match="no option 'maxRecordsPerFile': there is compression"):
        frame.write.option("maxRecordsPerFile", "5")
    with pytest.raises(UsageError, match=r"compression 'lzo' is not one of none, .*snappy"):
        frame.write.option("compression", "lzo")
    with (
        confs(spark, {"spark.sql.parquet.compression.codec": "lzo"}),
        pytest.raises(UsageError, match="compression 'lzo' is not one of"),
    ):
        frame.write.parquet(str(tmp_path / "out"))
    assert names(tmp_path) == []


def test_other_than_local_paths_are_refused_with_the_way_out(frame: ShuffleFrame) -> None:
    with pytest.raises(UnsupportedError, match=r"s3://bucket/out is not a local path: use frame.toDF\(\)"):
        frame.write.parquet("s3://bucket/out")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select interval '1' day as i", "column i of type interval day"),
        ("select named_struct('v', array(null)) as s", "column s.v.element of type void"),
        ("select map('a', interval '1' day) as m", "column m.value of type interval day"),
    ],
)
def test_types_that_parquet_has_not_are_refused_by_their_path(
    spark: SparkSession, tmp_path: Path, sql: str, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        sortshuffle.frame(spark.sql(sql)).write.parquet(str(tmp_path / "out"))
    with pytest.raises(UnsupportedError, match="the frame has no columns"):
        sortshuffle.frame(spark.sql(sql)).select().write.parquet(str(tmp_path / "out"))

    assert names(tmp_path) == []


def test_a_file_url_is_a_local_path(frame: ShuffleFrame, tmp_path: Path) -> None:
    frame.write.parquet(f"file://{tmp_path}/new/out")

    assert ids(tmp_path / "new" / "out") == list(range(1000))
