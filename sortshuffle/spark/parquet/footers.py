"""Which row groups of a file are scanned, and their sizes, from the file's footer.

A condition excludes whole directories by the values of partition columns, and row groups by their statistics.
Statistics are used only if the file stores the condition's columns under the same names and without
conversion: otherwise they describe other values than those that the condition compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.file_schema import file_fields
from sortshuffle.spark.parquet.finding import FoundParquetFile
from sortshuffle.spark.parquet.fitting import Fit
from sortshuffle.spark.parquet.packing import FileState
from sortshuffle.spark.parquet.paths import parent_of
from sortshuffle.spark.parquet.pruning import can_match, kept_row_groups, known_values, uses
from sortshuffle.spark.parquet.scanning import ScanSource, readable


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The scanned row groups of one file. ``groups``: number and compressed bytes of each one."""

    path: str
    state: FileState
    groups: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Pruning:
    """A condition on a scan, or None, and its consequences that need no file.

    ``used``: the columns in files that the condition uses, with their wire types. ``partitions``: names and
    values of the partition columns, by directory. ``kept``: whether a directory can hold wanted rows.
    """

    source: ScanSource
    condition: Any = None
    used: tuple[pa.Field, ...] = ()
    partitions: Mapping[str, Sequence[tuple[str, pa.Scalar]]] = field(default_factory=dict)
    kept: Mapping[str, bool] = field(default_factory=dict)

    @staticmethod
    def of(
        source: ScanSource,
        constants: Mapping[str, tuple[Any, ...]],
        condition: Any,
        wire: pa.Schema | None,
    ) -> Pruning:
        """Evaluate a condition for all directories. ``constants``: the values of the partition columns, by
        directory. ``wire``: the schema of the condition's columns."""
        if condition is None or wire is None:
            return Pruning(source)
        partition_columns = source.partition_columns
        used = [column for at, column in enumerate(wire) if uses(condition, wire, at)]
        partitions = {
            directory: [
                (name, pa.scalar(value, wire.field(name).type))
                for name, value in zip(partition_columns, values, strict=True)
                if name in wire.names
            ]
            for directory, values in constants.items()
        }
        kept = {
            directory: can_match(condition, known_values(pairs), wire)
            for directory, pairs in partitions.items()
        }
        in_files = tuple(column for column in used if column.name not in partition_columns)
        return Pruning(source, condition, in_files, partitions, kept)

    def keeps(self, directory: str) -> bool:
        """Return whether a directory can hold rows that satisfy the condition."""
        return self.kept.get(directory, True)

    def row_groups(self, file: FoundParquetFile, filesystem: Any) -> RowGroups:
        """Return a file's row groups that may hold wanted rows. Raises `UsageError` if it is not Parquet."""
        partition = self.partitions.get(parent_of(file.path), ())
        guarantee = known_values(partition)
        options: dict[str, Any] = {} if guarantee is None else {"partition_expression": guarantee}
        # here, because it loads pandas: 0.4 s of a session that may need neither
        import pyarrow.dataset as ds

        fragment = ds.ParquetFileFormat().make_fragment(file.path, filesystem, **options)
        with readable(file.path):
            metadata = fragment.metadata
        wanted: Sequence[int] = range(metadata.num_row_groups)
        if self.condition is not None and self._statistics_apply(metadata, file.path):
            columns = [pa.field(name, value.type) for name, value in partition]
            wanted = kept_row_groups(fragment, self.condition, columns)
        return RowGroups(file.path, FileState.of(metadata), [(at, _size(metadata, at)) for at in wanted])

    def _statistics_apply(self, metadata: Any, path: str) -> bool:
        """Return whether the file stores the condition's columns by the same names and without conversion."""
        fitting, fields = self.source.fitting(metadata, path), file_fields(metadata.schema)
        for used in self.used:
            try:
                fitted = fitting.column(used.name, fields, self.source.columns[used.name].dataType, used.type)
            except UsageError:
                return False  # a worker raises this error if it scans the file
            if fitted is None or fitted[0] != used.name or not _is_plain(fitted[1]):
                return False
        return True


def _size(metadata: Any, number: int) -> int:
    """Return the compressed bytes of a row group."""
    group = metadata.row_group(number)
    return sum(group.column(at).total_compressed_size for at in range(group.num_columns))


def _is_plain(fit: Fit) -> bool:
    return fit.convert is None and len(fit.paths) == 1
