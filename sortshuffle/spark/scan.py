"""Scanning Parquet in Python: no JVM rows between the file and the user's function.

Driver: `pyarrow.dataset` finds the files and reads their footers; row groups that a filter excludes by their
statistics are dropped; the rest is packed into splits the way Spark packs files (`maxPartitionBytes`,
`openCostInBytes`, default parallelism), but along row groups.

Worker: a split's row groups are read in order, only the columns asked for, in batches of one unit. Read through
`ParquetFile` without pre-buffering: 170 MB in 3 row groups took 0.14 s and 75 MiB of memory, through a dataset
scanner 0.13 s and 260 MiB.

The order of rows is fixed by the files, so a scan is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
        protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
        arrow_filesystem = _arrow_filesystem(protocol, filesystem)
        source: Any = found[0] if len(found) == 1 else found
        if len(found) > 1:
            source = [file for path in found for file in _files_of(filesystem, path)]
        dataset = ds.dataset(source, format="parquet", filesystem=arrow_filesystem)
        if not dataset.files:
            raise UsageError(f"there is no Parquet file at {', '.join(paths)}")
        _refuse_partition_directories(dataset.files, found)
        return ParquetFiles(protocol, dataset, ", ".join(paths))

    @property
    def int96(self) -> frozenset[str]:
        """Columns that the first file holds as INT96 timestamps."""
        first = pq.ParquetFile(self.dataset.files[0], filesystem=self.dataset.filesystem)
        with first:
            return int96_columns(first.schema)

    def splits(self, filter_by: Any, packing: Packing) -> list[tuple[Piece, ...]]:
        """The row groups that ``filter_by`` does not exclude, one tuple of pieces per task."""
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            sized = pool.map(lambda fragment: _sized_row_groups(fragment, filter_by), self._fragments())
            return pack([group for groups in sized for group in groups], packing)

    def _fragments(self) -> Iterator[Any]:
        return iter(self.dataset.get_fragments())


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
                piece.path, filesystem=filesystem, pre_buffer=False, buffer_size=READ_BUFFER
            ) as file:
                for batch in file.iter_batches(
                    BATCH_ROWS, list(piece.row_groups), list(self.columns), use_threads=False
                ):
                    yield from self._shaped(batch)

    def _shaped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        present = set(batch.schema.names)
        arrays = [
            batch.column(name) if name in present else pa.nulls(batch.num_rows, field.type)
            for name, field in zip(self.columns, self.schema, strict=True)
        ]
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, names=self.schema.names)
        for conformed in conform(batch, self.schema, "the Parquet scan"):
            yield conformed if self.filter_by is None else conformed.filter(self.filter_by)


def pack(groups: Sequence[tuple[str, int, int]], packing: Packing) -> list[tuple[Piece, ...]]:
    """Row groups (path, number, compressed bytes) into splits of about equal size, in file order.

    Spark's rule: a split is filled up to ``min(largest, max(open cost, total / parallelism))``, each file
    counting its open cost.
    """
    total = sum(size + packing.open_cost for _, _, size in groups)
    target = min(packing.largest_split, max(packing.open_cost, -(-total // packing.parallelism)))
    splits: list[list[tuple[str, int]]] = []
    filled = target
    for path, number, size in groups:
        opens = not splits or not splits[-1] or splits[-1][-1][0] != path
        cost = size + (packing.open_cost if opens else 0)
        if filled + cost > target and (filled > 0 or not splits):
            splits.append([])
            filled = 0
            cost = size + packing.open_cost
        splits[-1].append((path, number))
        filled += cost
    return [tuple(_pieces(split)) for split in splits]


def _pieces(groups: Sequence[tuple[str, int]]) -> Iterator[Piece]:
    by_path: dict[str, list[int]] = {}
    for path, number in groups:
        by_path.setdefault(path, []).append(number)
    for path, numbers in by_path.items():
        yield Piece(path, tuple(numbers))


def _sized_row_groups(fragment: Any, filter_by: Any) -> list[tuple[str, int, int]]:
    kept = fragment if filter_by is None else fragment.subset(filter_by)
    metadata = fragment.metadata
    return [(fragment.path, group.id, _compressed(metadata.row_group(group.id))) for group in kept.row_groups]


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
    if not filesystem.isdir(path):
        return [path]
    files = sorted(filesystem.find(path))
    return [file for file in files if not file.rsplit("/", 1)[-1].startswith(("_", "."))]


def _arrow_filesystem(protocol: str, filesystem: Any) -> Any:
    if protocol in ("file", "local"):
        return pa.fs.LocalFileSystem()
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(filesystem or fsspec.filesystem(protocol)))


def _refuse_partition_directories(files: Sequence[str], roots: Sequence[str]) -> None:
    for file in files:
        root = next((root for root in roots if file.startswith(root)), "")
        named = [part for part in file.removeprefix(root).split("/")[:-1] if "=" in part]
        if named:
            raise UnsupportedError(
                f"{file} lies in a partition directory ({named[0]}), whose columns this scan does not add:"
                " use sortshuffle.frame(spark.read.parquet(...))"
            )
