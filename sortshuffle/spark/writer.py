"""`frame.write.parquet(path)`: files written by the Python workers, committed as a whole or not at all.

Each task writes one file into a staging directory beside the target, and returns its name as a row. Spark
keeps exactly one attempt's row per partition, so the rows that arrive at the driver are the manifest: what
is not in it is deleted, and then one rename makes the staging directory the target. Appending moves the
files one by one, and takes them all back if one cannot be moved.

The paths are local to every worker (one machine, or a shared mount).
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import ArrayType, DataType, DayTimeIntervalType, MapType, NullType, StructType

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.options import MIB
from sortshuffle.spark.plan import Chain, next_number
from sortshuffle.spark.stages import Batches, Task

MODES = ("error", "errorifexists", "append", "overwrite", "ignore")
CODECS = ("none", "uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli")
ROW_GROUP_BYTES = 64 * MIB  # of rows in memory; about what Spark's own writer makes of its 128 MiB blocks
SPARK_SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"


@dataclass(frozen=True)
class FrameWriter:
    """What `ShuffleFrame.write` gives. Immutable: each setting gives another writer."""

    chain: Chain
    how: str = "error"
    codec: str | None = None

    def mode(self, saveMode: str) -> FrameWriter:
        """What to do if the target exists: error (the default), append, overwrite, ignore."""
        if saveMode not in MODES:
            raise UsageError(f"mode {saveMode!r} is not one of {', '.join(MODES)}")
        return replace(self, how=saveMode)

    def option(self, key: str, value: str) -> FrameWriter:
        """The one option there is: ``compression``."""
        if key != "compression":
            raise UsageError(f"the Parquet writer has no option {key!r}: there is compression")
        if str(value).lower() not in CODECS:
            raise UsageError(f"compression {value!r} is not one of {', '.join(CODECS)}")
        return replace(self, codec=str(value).lower())

    def parquet(self, path: str, mode: str | None = None, compression: str | None = None) -> None:
        """Run the frame and write its rows as Parquet files below ``path``, one per non-empty partition.

        Raises `UsageError` if the target exists and the mode forbids that, `UnsupportedError` for other
        than local paths and for column types that Parquet in Spark has not.
        """
        writer = self if mode is None else self.mode(mode)
        writer = writer if compression is None else writer.option("compression", compression)
        target = _local(path)
        for each in self.chain.schema:
            _check_type(each.name, each.dataType)
        if os.path.lexists(target):
            if writer.how in ("error", "errorifexists"):
                raise UsageError(f'{target} exists: choose mode("overwrite"), "append" or "ignore"')
            if writer.how == "ignore":
                return
        writer._write(target)

    def _write(self, target: str) -> None:
        job = uuid.uuid4().hex[:12]
        staging = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.writing-{job}")
        os.makedirs(staging)
        try:
            names = self._run(staging, job)
            for name in set(os.listdir(staging)) - set(names):
                os.unlink(os.path.join(staging, name))
            _commit(staging, target, names, append=self.how == "append")
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _run(self, staging: str, job: str) -> list[str]:
        spark = self.chain.context.spark
        codec = self.codec or str(spark.conf.get("spark.sql.parquet.compression.codec"))
        closing = WriteParquet(staging, job, codec.replace("uncompressed", "none"), self._file_schema())
        rows = self.chain.frame(next_number(), closing, "name string").collect()
        return [row.name for row in rows]

    def _file_schema(self) -> pa.Schema:
        return self.chain.wire.with_metadata({SPARK_SCHEMA_KEY: self.chain.schema.json()})


@dataclass(frozen=True)
class WriteParquet:
    """Closing of a stage: one file per task that has rows; Spark gets its name."""

    directory: str
    job: str
    codec: str
    schema: pa.Schema

    def close(self, batches: Batches, task: Task) -> Batches:
        name = f"part-{task.partition:05d}-{task.attempt}-{self.job}.{self.codec}.parquet"
        path = os.path.join(self.directory, name)
        group = _RowGroup(min(ROW_GROUP_BYTES, task.writing.limit // 2), task)
        writer: Any = None
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                writer = writer or pq.ParquetWriter(
                    path, self.schema, compression=self.codec, store_schema=False
                )
                if group.add(batch):
                    group.write(writer)
            if writer is not None:
                group.write(writer)
                writer.close()
        except BaseException:
            if os.path.exists(path):
                os.unlink(path)
            raise
        if writer is not None:
            yield pa.record_batch([pa.array([name])], names=["name"])


@dataclass(slots=True)
class _RowGroup:
    """Rows that wait to become a row group, charged to the task."""

    limit: int
    task: Task
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take a batch; true when there is enough for a row group."""
        self.batches.append(batch)
        self.size += batch.nbytes
        self.task.writing.charge(batch.nbytes)
        return self.size >= self.limit

    def write(self, writer: Any) -> None:
        if self.batches:
            with self.task.metrics.step("write"):
                table = pa.Table.from_batches(self.batches)
                writer.write_table(table, row_group_size=table.num_rows)
        self.task.writing.release(self.size)
        self.batches, self.size = [], 0


def _commit(staging: str, target: str, names: Sequence[str], *, append: bool) -> None:
    with open(os.path.join(staging, "_SUCCESS"), "w", encoding="ascii"):
        pass
    if append and os.path.isdir(target):
        _move_into(staging, target, [*names, "_SUCCESS"])
        return
    if not os.path.lexists(target):
        os.rename(staging, target)
        return
    replaced = f"{staging}.replaced"
    os.rename(target, replaced)
    try:
        os.rename(staging, target)
    except BaseException:
        os.rename(replaced, target)
        raise
    if os.path.isdir(replaced):
        shutil.rmtree(replaced)
    else:
        os.unlink(replaced)


def _move_into(staging: str, target: str, names: Sequence[str]) -> None:
    moved: list[str] = []
    try:
        for name in names:
            os.rename(os.path.join(staging, name), os.path.join(target, name))
            moved.append(name)
    except BaseException:
        for name in moved:
            os.unlink(os.path.join(target, name))
        raise


def _local(path: str) -> str:
    plain = path.removeprefix("file://")
    if "://" in plain:
        raise UnsupportedError(f"{path} is not a local path: use frame.toDF().write.parquet(...) for it")
    return os.path.abspath(plain)


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, NullType | DayTimeIntervalType):
        raise UnsupportedError(
            f"column {name} of type {kind.simpleString()} cannot be written to Parquet: cast it first"
        )
    if isinstance(kind, ArrayType):
        _check_type(f"{name}.element", kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(f"{name}.key", kind.keyType)
        _check_type(f"{name}.value", kind.valueType)
    elif isinstance(kind, StructType):
        for each in kind:
            _check_type(f"{name}.{each.name}", each.dataType)
