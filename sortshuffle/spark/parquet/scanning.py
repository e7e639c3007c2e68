"""The worker's side of a scan.

A task reads the requested columns of its row groups in order, in batches of up to `BATCH_ROWS` rows and about
`BATCH_BYTES`. It uses `ParquetFile` without pre-buffering: 170 MB in 3 row groups took 0.14 s and 75 MiB of
memory, with a dataset scanner 0.13 s and 260 MiB.

No budget counts this memory: the batch, and for each column a read buffer, a page and a dictionary, which the
writer of the file made of about 1 MiB each. It has room in the share for reading ahead, which a stage that
scans does not use. So the batch and the read buffers of wide tables are limited.

Each file is fitted separately, when it is opened: files of one table may have columns in another order, of
another type, or not at all. The files fix the order of rows, so a scan is reproducible.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as st

from sortshuffle.errors import UsageError
from sortshuffle.options import KIB, MIB
from sortshuffle.spark.conforming import conform
from sortshuffle.spark.parquet.file_schema import file_fields
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.fitting import Calendars, Fit, Fitting, reads_int96
from sortshuffle.spark.parquet.packing import FileState, Piece
from sortshuffle.spark.parquet.paths import redact
from sortshuffle.spark.parquet.settings import FileRules
from sortshuffle.writing.clustering import is_fixed_width

BATCH_ROWS = 65_536
# About the most bytes of a batch: a unit of the write side (`writing.clustering`), which cuts larger ones.
# Arrow allocated for a scan of 200 columns of longs 691 MiB with 65,536 rows (105 MB) in a batch, and 508 MiB
# with 8 MiB; CPU 0.63 and 0.48 s
BATCH_BYTES = 8 * MIB
# Bytes read from a column at a time; local files and object stores both do well with it
READ_BUFFER = MIB
# The most bytes of all columns' read buffers together: up to 32 columns have the buffer above. The same scan
# took 378 MiB with 256 KiB for each column, and 341 MiB with 64 KiB; CPU 0.45 and 0.50 s
READ_BUFFERS = 32 * MIB
LEAST_READ_BUFFER = 64 * KIB  # a smaller read costs as much


@dataclass(frozen=True, slots=True)
class ScanSource:
    """What all tasks of a scan share. ``columns``: all that can be scanned. ``partition_columns``: those of
    them whose values come with each piece, in this order."""

    filesystem: FileSystem
    columns: st.StructType
    partition_columns: tuple[str, ...] = ()
    rules: FileRules = field(default_factory=FileRules)

    def fitting(self, metadata: Any, path: str) -> Fitting:
        """Return the fitting of the file with this metadata."""
        calendars = Calendars.of(metadata.metadata, self.rules)
        place = f"the scan of {redact(path)}"
        return Fitting(self.rules, calendars, place, reads_int96(metadata.created_by))


@dataclass(frozen=True, slots=True)
class ParquetScan:
    """Reads splits in a worker. ``columns``: names of the source's columns, in the order of ``schema``.
    ``filter_by``: an Arrow expression over these columns, or None."""

    source: ScanSource
    splits: tuple[tuple[Piece, ...], ...]
    columns: tuple[str, ...]
    schema: pa.Schema
    filter_by: Any

    def read(self, split: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, in file order. Raises `SchemaMismatchError` for a file whose columns
        cannot be read as the requested types, `UsageError` for a file that has changed, or that cannot be
        read."""
        filesystem = self.source.filesystem.arrow()
        for piece in self.splits[split]:
            with open_parquet(piece.path, filesystem, len(self.columns)) as file:
                _check_unchanged(file, piece)
                if not piece.row_groups:
                    continue
                columns = self._columns(file, piece)
                paths = list(dict.fromkeys(path for column in columns for path in column.paths))
                rows = self._batch_rows([file.metadata.row_group(at) for at in piece.row_groups], columns)
                batches = file.iter_batches(rows, list(piece.row_groups), paths, use_threads=False)
                for batch in _batches(batches, piece.path):
                    yield from self._shaped(batch, columns, piece.path)

    def _columns(self, file: pq.ParquetFile, piece: Piece) -> list[_Column]:
        fitting, fields = self.source.fitting(file.metadata, piece.path), file_fields(file.schema)
        constants = dict(zip(self.source.partition_columns, piece.constants, strict=True))
        columns: list[_Column] = []
        for name, wire in zip(self.columns, self.schema, strict=True):
            if name in constants:
                columns.append(_Column(constant=pa.scalar(constants[name], wire.type)))
                continue
            fitted = fitting.column(name, fields, self.source.columns[name].dataType, wire.type)
            if fitted is None:
                columns.append(_Column(constant=pa.scalar(None, wire.type)))
            else:
                columns.append(_Column(*fitted))
        return columns

    def _batch_rows(self, groups: Sequence[Any], columns: Sequence[_Column]) -> int:
        """Return how many rows a batch may have. ``groups``: the metadata of the row groups. Text that is
        stored as a dictionary takes more than the row groups say; numbers are counted by their width."""
        row_bytes = 0.0
        others: set[str] = set()
        for column, wire in zip(columns, self.schema, strict=True):
            if is_fixed_width(wire.type):
                row_bytes += wire.type.bit_width / 8
            else:
                others.update(column.paths)
        if others:
            # all groups together: the first may be of a few large rows
            row_bytes += _stored_bytes(groups, others) / max(1, sum(group.num_rows for group in groups))
        return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))

    def _shaped(
        self, batch: pa.RecordBatch, columns: Sequence[_Column], path: str
    ) -> Iterator[pa.RecordBatch]:
        if batch.num_rows == 0:
            return
        if columns:
            arrays = [column.of(batch) for column in columns]
            batch = pa.RecordBatch.from_arrays(arrays, names=self.schema.names)
        for conformed in conform(batch, self.schema, f"the scan of {redact(path)}"):
            yield conformed if self.filter_by is None else conformed.filter(self.filter_by)


def _check_unchanged(file: pq.ParquetFile, piece: Piece) -> None:
    """Raise `UsageError` if the file was written again after its row groups were chosen: the others of the
    new file would be missing."""
    if piece.state is not None and FileState.of(file.metadata) != piece.state:
        raise UsageError(
            f"{redact(piece.path)} has changed since its row groups were chosen. Make the frame again, so"
            " that its rows are those of the new file, and better write new data to new files"
        )


_EMPTY_FIT = Fit(())


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the result: either the file's column ``name``, or a ``constant``."""

    name: str = ""
    fit: Fit = _EMPTY_FIT
    constant: pa.Scalar | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return self.fit.paths

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        if self.constant is not None:
            return pa.repeat(self.constant, batch.num_rows)
        array = batch.column(batch.schema.get_field_index(self.name))
        return array if self.fit.convert is None else self.fit.convert(array)


def _stored_bytes(groups: Sequence[Any], paths: Container[str]) -> int:
    """Return the bytes of these columns in all row groups, before compression. There is at least one."""
    first = groups[0]  # the columns of all row groups are in one order
    wanted = [at for at in range(first.num_columns) if first.column(at).path_in_schema in paths]
    return sum(group.column(at).total_uncompressed_size for group in groups for at in wanted)


def open_parquet(path: str, filesystem: Any, columns: int = 1) -> pq.ParquetFile:
    """Open a file to read so many columns; the caller closes it. Raises `UsageError` if it is not a Parquet
    file."""
    with readable(path):
        return pq.ParquetFile(
            path,
            filesystem=filesystem,
            pre_buffer=False,
            buffer_size=max(LEAST_READ_BUFFER, min(READ_BUFFER, READ_BUFFERS // max(1, columns))),
            coerce_int96_timestamp_unit="us",  # the default, ns, turns the year 9999 into 1816
        )


def _batches(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    while True:
        with readable(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn errors of pyarrow and of the file system into a `UsageError` that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        shown = redact(path)
        reason = str(error).replace(path, shown)
        raise UsageError(f"{shown} cannot be read as a Parquet file: {reason}") from error
