"""`WriteParquet`: the closing of a stage whose tasks write Parquet files, one for each task that has rows.

It writes into the directory that `frame.parquet_job` chose, and sends the names of the files to Spark. That
job then decides which files stay. An attempt that fails removes its own file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as at

from sortshuffle import calls
from sortshuffle.options import MIB
from sortshuffle.spark.worker.stages import Batches
from sortshuffle.spark.worker.task import Task

ROW_GROUP_BYTES = 64 * MIB  # of rows in memory; about a row group of Spark's own writer, with 128 MiB blocks


@dataclass(frozen=True)
class WriteParquet:
    """Writes one file per task that has rows, and sends its name to Spark. ``schema``: of the files, with
    the metadata that they get. ``int96``: write all timestamps as Spark does by default."""

    directory: str
    job: str
    codec: str
    schema: pa.Schema
    int96: bool

    def close(self, batches: Batches, task: Task) -> Batches:
        name = self._name(task.partition, task.attempt)
        path = os.path.join(self.directory, name)
        try:
            has_rows = self._write(path, batches, task)
        except BaseException:
            if calls.exists(path):
                calls.unlink(path)
            raise
        if has_rows:
            yield pa.record_batch([pa.array([name])], names=["name"])

    def write_empty(self) -> str:
        """Write a file without rows. Return its name."""
        name = self._name(0, 0)
        self._open(os.path.join(self.directory, name)).close()
        return name

    def _write(self, path: str, batches: Batches, task: Task) -> bool:
        group = _RowGroup(min(ROW_GROUP_BYTES, task.writing.limit // 2), task, self.schema)
        writer: Any = None
        with ExitStack() as opened:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if writer is None:
                    writer = opened.enter_context(self._open(path))
                if group.add(batch):
                    group.write(writer)
            if writer is not None:
                group.write(writer)
        return writer is not None

    def _open(self, path: str) -> Any:
        writer = pq.ParquetWriter(
            path,
            self.schema,
            compression=self.codec,
            use_deprecated_int96_timestamps=self.int96,
            store_schema=False,  # Arrow's types, which Spark's files lack
            write_statistics=_columns_with_statistics(self.schema),
            store_decimal_as_integer=True,
        )
        # the schema's metadata are left out with the schema
        writer.add_key_value_metadata(self.schema.metadata)
        return writer

    def _name(self, partition: int, attempt: int) -> str:
        return f"part-{partition:05d}-{attempt}-{self.job}.{self.codec}.parquet"


def _columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of all leaves but floating-point ones. pyarrow leaves NaN out of the least and
    the largest value, and Spark, which skips row groups by these, would lose rows. Spark's own writer counts
    NaN, and its readers then ignore such statistics."""
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    floats = {path for path, kind in leaves if at.is_floating(kind)}
    return [path for path, _ in leaves if path not in floats]


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the Parquet path and the type of each leaf of a column."""
    if at.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif at.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif at.is_list(kind) or at.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


@dataclass(slots=True)
class _RowGroup:
    """Rows waiting to be written as a row group, charged to the task."""

    limit: int
    task: Task
    schema: pa.Schema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add a batch. Return True when the rows are enough for a row group."""
        self.batches.append(batch)
        self.size += batch.nbytes
        self.task.writing.charge(batch.nbytes)
        return self.size >= self.limit

    def write(self, writer: Any) -> None:
        if self.batches:
            with self.task.metrics.step("write"):
                columns = pa.Table.from_batches(self.batches).columns
                table = pa.Table.from_arrays(columns, schema=self.schema)  # for columns without nulls
                writer.write_table(table, row_group_size=table.num_rows)
        self.task.writing.release(self.size)
        self.batches, self.size = [], 0
