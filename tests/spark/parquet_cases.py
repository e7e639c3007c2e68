"""What the tests of Parquet scans share: files, and the same read by Spark and by us.

Our side is scanned in this process, by what a worker would run, so that most cases cost one Spark job or
none.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.packing import Packing
from sortshuffle.spark.parquet.settings import ReadSettings
from sortshuffle.spark.schema import parse_schema, to_arrow
from sortshuffle.spark.session.requirements import setting_of

ONE_SPLIT = Packing(largest_split=1 << 30, open_cost=0, parallelism=1)


def write(path: Path, columns: Mapping[str, Any] | pa.Table, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(dict(columns)), path, **how)
    return path


def write_by_early_pyarrow(path: Path, moment: dt.datetime | None) -> Path:
    """A file with a time, as pyarrow before release 23 wrote it: with a negative time of the day before 1970
    (Apache Arrow's issue 48246)."""
    columns = {"t": pa.array([moment], pa.timestamp("us")), "n": [1]}
    how = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    write(path, columns, use_deprecated_int96_timestamps=True, **how)
    data = path.read_bytes()
    early = b"parquet-cpp-arrow version 9.0.0".ljust(26 + len(pa.__version__))
    data = data.replace(f"parquet-cpp-arrow version {pa.__version__}".encode(), early)
    if moment is not None and moment < dt.datetime(1970, 1, 1):
        micros = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
        day, of_day = divmod(micros, 86_400_000_000)
        now = struct.pack("<qi", of_day * 1000, 2_440_588 + day)
        then = struct.pack("<qi", (of_day - 86_400_000_000) * 1000, 2_440_588 + day + 1) if of_day else now
        assert data.count(now) == 1
        data = data.replace(now, then)
    path.write_bytes(data)
    return path


def write_annotated(spark: SparkSession, path: Path, columns: Mapping[str, tuple[str, Any]]) -> Path:
    """A file of two rows, the second all null, with Parquet types that pyarrow does not write: by the library
    that Spark has with it. Columns are (type, value), such as ``("int32 c (DATE)", 7)``.
    """
    jvm: Any = spark._jvm
    fields = "".join(f"optional {kind}{'' if kind.endswith('}') else ';'} " for kind, _ in columns.values())
    message = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(f"message m {{ {fields} }}")
    example = jvm.org.apache.parquet.hadoop.example.ExampleParquetWriter
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = example.builder(jvm.org.apache.hadoop.fs.Path(path.as_uri())).withType(message).build()
    full = jvm.org.apache.parquet.example.data.simple.SimpleGroup(message)
    for at, (_, value) in enumerate(columns.values()):
        if callable(value):
            value(full)
        elif isinstance(value, bytes):
            full.add(at, jvm.org.apache.parquet.io.api.Binary.fromConstantByteArray(value))
        else:
            full.add(at, value)
    for row in (full, jvm.org.apache.parquet.example.data.simple.SimpleGroup(message)):
        writer.write(row)
    writer.close()
    return path


@dataclass(frozen=True)
class Read:
    """What was read: rows as they print, sorted."""

    schema: StructType
    rows: list[str]


def settings_of(spark: SparkSession, **options: Any) -> ReadSettings:
    return ReadSettings.of(
        partial(setting_of, spark),
        options,
        case_sensitive=spark.conf.get("spark.sql.caseSensitive") == "true",
        timezone=str(spark.conf.get("spark.sql.session.timeZone")),
    )


def found(
    spark: SparkSession, *paths: Path | str, schema: str | StructType | None = None, **options: Any
) -> ParquetFiles:
    declared = None if schema is None else parse_schema(schema)
    return ParquetFiles.find([str(path) for path in paths], settings_of(spark, **options), declared)


def ours(
    spark: SparkSession, *paths: Path | str, schema: str | StructType | None = None, **options: Any
) -> Read:
    files = found(spark, *paths, schema=schema, **options)
    return Read(
        files.schema, scanned(files, to_arrow(files.schema, "UTC"))
    )  # as PySpark's toArrow() labels it


def scanned(files: ParquetFiles, wire: pa.Schema, filter_by: Any = None, prune_by: Any = None) -> list[str]:
    splits = files.plan(prune_by, ONE_SPLIT, wire)
    scan = files.scan(splits, tuple(wire.names), wire, filter_by)
    batches = [batch for split in range(len(splits)) for batch in scan.read(split)]
    assert all(batch.schema.equals(wire, check_metadata=True) for batch in batches)
    return _printed(pa.Table.from_batches(batches, wire))


def plain(
    spark: SparkSession, *paths: Path | str, schema: str | StructType | None = None, **options: Any
) -> Read:
    reader = spark.read.options(**options)
    df = (reader if schema is None else reader.schema(schema)).parquet(*map(str, paths))
    return Read(df.schema, _printed(df.toArrow()))


def same(
    spark: SparkSession, *paths: Path | str, schema: str | StructType | None = None, **options: Any
) -> Read:
    """Both, which must be equal in schema and rows."""
    by_us = ours(spark, *paths, schema=schema, **options)
    by_spark = plain(spark, *paths, schema=schema, **options)
    assert by_us.schema == by_spark.schema, f"ours {by_us.schema}, plain {by_spark.schema}"
    differing = [pair for pair in zip_longest(by_us.rows, by_spark.rows) if pair[0] != pair[1]]
    assert not differing, f"ours and plain: {differing}"
    return by_us


def files_of_spark(spark: SparkSession, *paths: Path | str, **options: Any) -> set[str]:
    """The files whose rows Spark would read; runs no job. It lists summaries, and empty files, too."""
    uris = spark.read.options(**options).schema("a string").parquet(*map(str, paths)).inputFiles()
    listed = (Path(unquote(uri.removeprefix("file://"))) for uri in uris)
    return {str(path) for path in listed if path.stat().st_size and not path.name.startswith("_metadata")}


def _printed(table: pa.Table) -> list[str]:
    columns: Sequence[list[Any]] = [column.to_pylist() for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True))) if columns else ["()"] * table.num_rows
