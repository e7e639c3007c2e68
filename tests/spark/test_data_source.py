"""`spark.read.format("sortshuffle")`: what a shuffle wrote, as a DataFrame, against the rows that went in."""

from __future__ import annotations

import datetime as dt
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine import ROOT
from map_outputs import ALL_CODECS, Region, write_map
from oracle import confs, data_frame, every_type
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource

import sortshuffle
from sortshuffle.errors import CorruptDataError, MissingDataError, UnsupportedError, UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import RegionKind, WriterInfo
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.spark import data_source
from sortshuffle.spark.data_source import MapOutputSource, Outputs
from sortshuffle.spark.schema import to_arrow
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

ROWS = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "Asia/Tokyo"))])


def rows(*keys: int) -> pa.RecordBatch:
    times = [dt.datetime(2024, 1, 1, key % 24, tzinfo=dt.timezone.utc) for key in keys]
    return pa.record_batch([pa.array(keys), pa.array(times, ROWS.field("t").type)], schema=ROWS)


def write_output(
    directory: Path,
    regions: Sequence[Region],
    *,
    map_index: int = 0,
    attempt: int = 0,
    exchange: int = 1,
    application: str = "app",
    subpartitions: int = 4,
    broadcasts: Sequence[int] = (),
    codec: Codec = Codec.LZ4,
    kind: PayloadKind = PayloadKind.ARROW,
    schema: pa.Schema = ROWS,
) -> PartitionedFile:
    """A map output with exactly these regions; of those in ``broadcasts`` what 0 gets is for all."""
    directory.mkdir(parents=True, exist_ok=True)
    file = PartitionedFile.named(str(directory), exchange, map_index, attempt)
    payload, seconds = ArrowPayload(schema, codec), TaskMetrics().seconds
    header = FileHeader(bytes([map_index, attempt, exchange]) * 5 + b"x", subpartitions, 0, codec, kind)
    writer = PartitionedFileWriter(file, header)
    for number, region in enumerate(regions):
        writer.start_region(RegionKind.BROADCAST if number in broadcasts else RegionKind.UNICAST)
        for target in writer.write_order:
            batches = [payload.encode(batch, seconds) for batch in region.get(target, ())]
            if batches:
                writer.write_extents([(target, batches)])
        writer.finish_region()
    who = WriterInfo(application, exchange, 2, map_index, attempt, "host")
    writer.finish(who, schema.serialize().to_pybytes() if kind is PayloadKind.ARROW else b"")
    return file


def loaded(path: Any, **options: str) -> list[tuple[Any, ...]]:
    """What the source reads, in this process: (subpartition, region, map index, k) in order."""
    source = MapOutputSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    wire = to_arrow(source.schema(), "UTC")
    assert all(batch.schema.equals(wire, check_metadata=True) for batch in batches)
    return [tuple(row.values())[:4] for batch in batches for row in batch.to_pylist()]


# --- what is read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_every_row_comes_with_its_place(tmp_path: Path, codec: Codec) -> None:
    regions: list[Mapping[int, Any]] = [{0: [rows(1, 2), rows(3)], 2: [rows(4)]}, {3: [rows(5)]}]
    file = write_output(tmp_path, regions, map_index=7, codec=codec)
    found = [(0, 0, 7, 1), (0, 0, 7, 2), (0, 0, 7, 3), (2, 0, 7, 4), (3, 1, 7, 5)]
    for path in (file.data_path, file.index_path, f"file://{file.data_path}", tmp_path):
        assert loaded(path) == found
    source = MapOutputSource({"path": str(tmp_path)})
    assert source.schema().simpleString() == (
        "struct<subpartition:int,region:int,map_index:int,k:bigint,t:timestamp>"
    )


def test_a_broadcast_region_is_read_once_and_is_for_no_subpartition(tmp_path: Path) -> None:
    write_output(tmp_path, [{1: [rows(1)]}, {0: [rows(2)]}], broadcasts=[1])
    assert loaded(tmp_path) == [(1, 0, 0, 1), (None, 1, 0, 2)]


def test_large_map_outputs_are_several_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_source, "PARTITION_BYTES", 1000)
    for map_index in (0, 1):
        regions = [{target: [rows(*range(20))] for target in range(3)}, {2: [rows(1)]}]
        write_output(tmp_path / str(map_index), regions, map_index=map_index)
    source = MapOutputSource({"path": str(tmp_path)})
    parts = source.reader(source.schema()).partitions()
    assert [(part.first, part.end) for part in parts] == [(0, 1), (1, 2), (2, 4)] * 2
    assert len(loaded(tmp_path)) == 2 * 61
    assert len(set(loaded(tmp_path))) == 2 * 61 - 2 + 2


def test_map_outputs_without_rows_are_read(tmp_path: Path) -> None:
    write_output(tmp_path, [])
    write_output(tmp_path, [{}], map_index=1)
    assert loaded(tmp_path) == []


def test_columns_of_the_same_names_as_the_places_keep_theirs(tmp_path: Path) -> None:
    schema = pa.schema([("Region", pa.string()), ("_region", pa.int32())])
    batch = pa.record_batch([["north"], pa.array([5], pa.int32())], schema=schema)
    write_output(tmp_path, [{0: [batch]}], schema=schema)
    names = MapOutputSource({"path": str(tmp_path)}).schema().names
    assert names == ["subpartition", "__region", "map_index", "Region", "_region"]
    assert loaded(tmp_path) == [(0, 0, 0, "north")]


def test_one_of_several_exchanges_is_chosen_by_its_number(tmp_path: Path) -> None:
    write_output(tmp_path / "a", [{0: [rows(1)]}], exchange=1)
    write_output(tmp_path / "a", [{0: [rows(2)]}], exchange=3)
    write_output(tmp_path / "b", [{0: [rows(3)]}], exchange=3, application="other")
    with pytest.raises(UsageError, match="several exchanges: 1 of app, 3 of app, 3 of other"):
        loaded(tmp_path)
    assert [row[3] for row in loaded(tmp_path, exchange="1")] == [1]
    assert [row[3] for row in loaded(tmp_path, exchange="3", application="other")] == [3]
    with pytest.raises(UsageError, match=r"no map output .* exchange: there are 1 of app"):
        loaded(tmp_path, exchange="7")


# --- what is refused ------------------------------------------------------------------------------------


def test_what_is_no_map_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.data").write_text("no map output at all")
    with pytest.raises(UsageError, match=r"no map output at .*: load"):
        loaded(tmp_path)
    with pytest.raises(UsageError, match="there is nothing at /nowhere"):
        loaded("/nowhere")
    (tmp_path / "x.txt").touch()
    with pytest.raises(UsageError, match=r"ends neither in \.data nor in \.index"):
        loaded(tmp_path / "x.txt")
    with pytest.raises(UsageError, match="reads one path"):
        MapOutputSource({}).schema()


@pytest.mark.parametrize("kind", [PayloadKind.FRAMES, PayloadKind.PICKLE])
def test_objects_have_no_columns(tmp_path: Path, kind: PayloadKind) -> None:
    file = write_output(tmp_path, [{0: [rows(1)]}], kind=kind)
    with pytest.raises(UnsupportedError, match="which have no columns: `sortshuffle dump --records N"):
        loaded(file.data_path)


def test_unfinished_map_outputs_are_refused_by_name(tmp_path: Path) -> None:
    write_output(tmp_path, [{0: [rows(1)]}])
    file = write_output(tmp_path, [{0: [rows(1)]}], map_index=1)
    Path(file.data_path).rename(file.partial_data_path)
    Path(file.index_path).rename(file.partial_index_path)
    for path in (tmp_path, file.partial_data_path):
        with pytest.raises(UsageError, match=r"map-1-attempt-0\.data\.partial is not finished.*dump"):
            loaded(path)


def test_a_map_task_that_wrote_twice_is_refused(tmp_path: Path) -> None:
    files = [write_output(tmp_path, [{0: [rows(1)]}], attempt=attempt) for attempt in (0, 4)]
    with pytest.raises(UsageError, match=r"map 0 was written twice, .*attempt-0\.data and .*attempt-4\.data"):
        loaded(tmp_path)
    assert len(loaded(files[1].data_path)) == 1


def test_encrypted_outputs_are_refused(tmp_path: Path) -> None:
    file = write_map(tmp_path, ROWS, [{0: [rows(1)]}], key=EncryptionKey(bytes(16))).file
    for path in (tmp_path, Path(file.data_path)):
        with pytest.raises(
            UnsupportedError, match="is encrypted, and this source has no key: `sortshuffle dump"
        ):
            Outputs.find(str(path))


def test_other_schemas_are_refused(tmp_path: Path) -> None:
    write_output(tmp_path, [{0: [rows(1)]}])
    write_output(tmp_path, [], map_index=1, schema=pa.schema([("k", pa.int32())]))
    with pytest.raises(UsageError, match="rows of another schema"):
        loaded(tmp_path)


def test_damage_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = write_output(tmp_path, [{0: [rows(1)]}, {2: [rows(*range(500))]}], codec=Codec.NONE)
    content = bytearray(Path(file.data_path).read_bytes())
    content[-100] ^= 1
    Path(file.data_path).write_bytes(content)
    with pytest.raises(
        CorruptDataError, match=r"\.data, region 1, subpartition 2, offset \d+, written by attempt 0"
    ):
        loaded(tmp_path)
    Path(file.data_path).unlink()
    with pytest.raises(MissingDataError, match=r"\.data"):
        loaded(tmp_path)
    index = bytearray(Path(file.index_path).read_bytes())
    index[80] ^= 1
    Path(file.index_path).write_bytes(index)
    with pytest.raises(CorruptDataError, match=r"\.index"):
        loaded(tmp_path)


# --- in Spark -------------------------------------------------------------------------------------------


def test_a_kept_exchange_of_every_type_is_queried_with_sql(spark: SparkSession, tmp_path: Path) -> None:
    source = data_frame(spark, every_type(seed=11, rows=400)).repartition(2).drop("no")
    settings = {"spark.sortshuffle.keep": "true", "spark.sortshuffle.dir": str(tmp_path)}
    with confs(spark, settings):
        exchanged = sortshuffle.frame(source).repartition(5, "lo", "st")
        placed = exchanged.toDF().select(sf.spark_partition_id().alias("subpartition"), "*").toArrow()
    sortshuffle.register(spark)
    sortshuffle.register(spark)
    df = spark.read.format("sortshuffle").load(str(tmp_path))

    assert df.schema.names[:3] == ["subpartition", "region", "map_index"]
    assert [field.dataType for field in df.schema.fields[3:]] == [field.dataType for field in source.schema]
    found = df.drop("region", "map_index").toArrow()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, placed.to_pylist()))

    df.createOrReplaceTempView("kept")
    counted = spark.sql(
        "select map_index, count(*) n from kept where id < 100 group by 1 order by 1"
    ).collect()
    assert sum(row.n for row in counted) == 100
    assert df.where("subpartition = 2").count() == placed.column("subpartition").to_pylist().count(2)
    assert df.count() == 400  # not what a filter before left

    (file, *_) = tmp_path.rglob("*map-0*.data")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Exception, match=r"CorruptDataError.*map-0.*region 0, subpartition \d"):
        df.collect()
    with pytest.raises(Exception, match=r"UsageError.*there is nothing at /nowhere"):
        spark.read.format("sortshuffle").load("/nowhere")


def test_spark_finds_the_source_where_it_looks_for_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    names = [
        module.name for module in pkgutil.iter_modules([str(ROOT)]) if module.name.startswith("pyspark_")
    ]
    (found,) = (importlib.import_module(name) for name in names)
    assert issubclass(found.DefaultSource, DataSource)
    assert found.DefaultSource.name() == "sortshuffle"
