"""Scanning Parquet in Python: no JVM rows between the file and the user's function.

Driver: `pyarrow.dataset` finds the files and reads their footers; row groups that a filter excludes by their
statistics are dropped; the rest is packed into splits the way Spark packs files (`maxPartitionBytes`,
`openCostInBytes`, default parallelism), but along row groups.

Worker: a split's row groups are read in order, only the columns asked for, in batches of one unit. Read
through `ParquetFile` without pre-buffering: 170 MB in 3 row groups took 0.14 s and 75 MiB of memory, through
a dataset scanner 0.13 s and 260 MiB.

The order of rows is fixed by the files, so a scan is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.options import MIB
from sortshuffle.spark.schema import conform, int96_columns

BATCH_ROWS = 65_536
READ_BUFFER = MIB  # bytes read from a file at a time; local files and object stores both do well with it
FOOTER_THREADS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of one file, ascending."""

    path: str
    row_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Spark's settings for how much one task scans, all in bytes but ``parallelism``."""

    largest_split: int
    open_cost: int
    parallelism: int


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """A set of Parquet files as found on the driver. ``protocol``: fsspec's name of their file system."""

    protocol: str
    dataset: Any
    label: str

    @staticmethod
    def find(paths: Sequence[str]) -> ParquetFiles:
        """Files, directories and globs. Raises `UsageError` if there is nothing, `UnsupportedError` for
        directories named ``column=value``."""
        if not paths:
            raise UsageError("parquet() needs at least one path")
        filesystem, _ = fsspec.core.url_to_fs(paths[0])
        found = [path for given in paths for path in _expanded(filesystem, given)]
        files = [file for path in found for file in _files_of(filesystem, path)]
        if not files:
            raise UsageError(f"there is no Parquet file at {', '.join(paths)}")
        protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
        with _readable(files[0]):
            dataset = ds.dataset(files, format="parquet", filesystem=_arrow_filesystem(protocol, filesystem))
        return ParquetFiles(protocol, dataset, ", ".join(paths))

    @property
    def int96(self) -> frozenset[str]:
        """Columns that the first file holds as INT96 timestamps."""
        first = pq.ParquetFile(self.dataset.files[0], filesystem=self.dataset.filesystem)
        with first:
            return int96_columns(first.schema)

    def splits(self, prune_by: Any, packing: Packing) -> list[tuple[Piece, ...]]:
        """The row groups whose statistics ``prune_by`` does not exclude, one tuple of pieces per task."""
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            sized = pool.map(
                lambda fragment: _sized_row_groups(fragment, prune_by), self.dataset.get_fragments()
            )
            return pack([group for groups in sized for group in groups], packing)


@dataclass(frozen=True, slots=True)
class ParquetScan:
    """Reads splits in a worker. ``columns``: file columns in the order of ``schema``; ``filter_by``: an Arrow
    expression over these columns, or None."""

    protocol: str
    splits: tuple[tuple[Piece, ...], ...]
    columns: tuple[str, ...]
    schema: pa.Schema
    filter_by: Any

    def read(self, split: int) -> Iterator[pa.RecordBatch]:
        """The rows of a split, in file order."""
        filesystem = _arrow_filesystem(self.protocol, None)
        for piece in self.splits[split]:
            with pq.ParquetFile(
                piece.path,
                filesystem=filesystem,
                pre_buffer=False,
                buffer_size=READ_BUFFER,
                coerce_int96_timestamp_unit="us",  # by default ns, in which the year 9999 becomes 1816
            ) as file:
                for batch in file.iter_batches(
                    BATCH_ROWS, list(piece.row_groups), list(self.columns), use_threads=False
                ):
                    yield from self._shaped(batch, piece.path)

    def _shaped(self, batch: pa.RecordBatch, path: str) -> Iterator[pa.RecordBatch]:
        present = set(batch.schema.names)
        arrays = [
            batch.column(name) if name in present else pa.nulls(batch.num_rows, field.type)
            for name, field in zip(self.columns, self.schema, strict=True)
        ]
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, names=self.schema.names)
        for conformed in conform(batch, self.schema, f"the scan of {path}"):
            yield conformed if self.filter_by is None else conformed.filter(self.filter_by)


def pack(groups: Sequence[tuple[str, int, int]], packing: Packing) -> list[tuple[Piece, ...]]:
    """Row groups (path, number, compressed bytes) into splits of about equal size, in file order.

    Spark's rule: a split is filled up to ``min(largest, max(open cost, total / parallelism))``, each file but
    the last counting its open cost.
    """
    total = sum(size for _, _, size in groups) + packing.open_cost * len({path for path, _, _ in groups})
    target = min(packing.largest_split, max(packing.open_cost, -(-total // packing.parallelism)))
    splits: list[list[tuple[str, int]]] = []
    filled = 0
    for path, number, size in groups:
        if splits and splits[-1][-1][0] != path:
            filled += packing.open_cost
        if not splits or filled + size > target:
            splits.append([])
            filled = 0
        splits[-1].append((path, number))
        filled += size
    return [tuple(_pieces(split)) for split in splits]


def _pieces(groups: Sequence[tuple[str, int]]) -> Iterator[Piece]:
    by_path: dict[str, list[int]] = {}
    for path, number in groups:
        by_path.setdefault(path, []).append(number)
    for path, numbers in by_path.items():
        yield Piece(path, tuple(numbers))


def binds(condition: Any, schema: pa.Schema) -> bool:
    """Whether an expression is a boolean one over columns of this schema."""
    try:
        pa.RecordBatch.from_pylist([], schema=schema).filter(condition)
    except (pa.ArrowException, TypeError, ValueError, KeyError):
        return False
    return True


def uses(condition: Any, schema: pa.Schema, column: int) -> bool:
    """Whether an expression over this schema cannot do without the column at this position."""
    return not binds(condition, schema.remove(column))


def may_prune(condition: Any, schema: pa.Schema) -> bool:
    """Whether row groups may be left out by their statistics for this condition.

    Not where it is about floating point columns: statistics know nothing of NaN, so that ``~(x <= 5)``
    would lose the NaNs of a row group whose x are otherwise from 1 to 5.
    """
    return not any(
        _holds_floats(field.type) and uses(condition, schema, at) for at, field in enumerate(schema)
    )


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_floats(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _sized_row_groups(fragment: Any, prune_by: Any) -> list[tuple[str, int, int]]:
    with _readable(fragment.path):
        metadata = fragment.metadata
    kept = _unpruned(fragment, prune_by)
    return [(fragment.path, group, _compressed(metadata.row_group(group))) for group in kept]


def _unpruned(fragment: Any, prune_by: Any) -> Sequence[int]:
    everything = range(fragment.metadata.num_row_groups)
    if prune_by is None:
        return everything
    try:
        return [group.id for group in fragment.subset(prune_by).row_groups]
    except (pa.ArrowException, TypeError, ValueError):
        return everything  # this file lacks the column, or has it as another type: its rows will be filtered


def _compressed(row_group: Any) -> int:
    return sum(row_group.column(at).total_compressed_size for at in range(row_group.num_columns))


def _expanded(filesystem: Any, given: str) -> list[str]:
    path = str(filesystem._strip_protocol(given))
    if any(sign in path for sign in "*?["):
        found = sorted(filesystem.glob(path))
    else:
        found = [path] if filesystem.exists(path) else []
    if not found:
        raise UsageError(f"there is nothing at {given}")
    return [str(each) for each in found]


def _files_of(filesystem: Any, path: str) -> list[str]:
    """The files below a directory but for hidden ones and those in hidden directories."""
    if not filesystem.isdir(path):
        return [path]
    files = []
    for file in sorted(filesystem.find(path)):
        parts = str(file).removeprefix(path).strip("/").split("/")
        if not any(part.startswith(("_", ".")) for part in parts):
            _refuse_partition_directories(file, parts[:-1])
            files.append(str(file))
    return files


def _arrow_filesystem(protocol: str, filesystem: Any) -> Any:
    if protocol in ("file", "local"):
        return pa.fs.LocalFileSystem()
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(filesystem or fsspec.filesystem(protocol)))


def _refuse_partition_directories(file: str, directories: Sequence[str]) -> None:
    named = [part for part in directories if "=" in part]
    if named:
        raise UnsupportedError(
            f"{file} lies in a partition directory ({named[0]}), whose columns this scan does not add:"
            " use sortshuffle.frame(spark.read.parquet(...))"
        )


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read as a Parquet file: {error}") from error
