"""Which row groups are scanned, from the files' footers, and how large they are.

A condition leaves out whole directories by the values of partition columns, and row groups by their
statistics. Statistics count only where a file has the columns as the condition means them: a column that is
converted, or that is called otherwise, says nothing of what the condition is about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.file_schema import file_fields, leaf_owners
from sortshuffle.spark.parquet.finding import FoundParquetFile, parent_of
from sortshuffle.spark.parquet.fitting import Fit
from sortshuffle.spark.parquet.merging import folded
from sortshuffle.spark.parquet.pruning import known, may_hold, unpruned, uses
from sortshuffle.spark.parquet.scanning import ScanSource, readable


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Those of one file that are scanned. ``groups``: path, number and compressed bytes of each."""

    groups: list[tuple[str, int, int]] = field(default_factory=list)
    column_bytes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Pruning:
    """A condition, None for none, and what it says without a file being opened.

    ``used``: the columns of files that it is about, by their wire types. ``partitions``: what each directory
    says of its columns; ``kept``: whether it can have rows for which the condition is true.
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
        """``constants``: of each directory, the values of the partition columns; ``wire``: the columns that
        the condition is about."""
        if condition is None or wire is None:
            return Pruning(source)
        own = source.partition_columns
        used = [column for at, column in enumerate(wire) if uses(condition, wire, at)]
        partitions = {
            directory: [
                (name, pa.scalar(value, wire.field(name).type))
                for name, value in zip(own, values, strict=True)
                if name in wire.names
            ]
            for directory, values in constants.items()
        }
        kept = {directory: may_hold(condition, known(each), wire) for directory, each in partitions.items()}
        in_files = tuple(column for column in used if column.name not in own)
        return Pruning(source, condition, in_files, partitions, kept)

    def keeps(self, directory: str) -> bool:
        """Whether anything in a directory can be wanted."""
        return self.kept.get(directory, True)

    def row_groups(self, file: FoundParquetFile, filesystem: Any) -> RowGroups:
        """Those of a file that the condition does not exclude. Raises `UsageError` if it is no Parquet."""
        partition = self.partitions.get(parent_of(file.path), ())
        guarantee = known(partition)
        how: dict[str, Any] = {} if guarantee is None else {"partition_expression": guarantee}
        fragment = ds.ParquetFileFormat().make_fragment(file.path, filesystem, **how)
        with readable(file.path):
            metadata = fragment.metadata
        wanted: Sequence[int] = range(metadata.num_row_groups)
        if self.condition is not None and self._is_about(metadata, file.path):
            columns = [pa.field(name, value.type) for name, value in partition]
            wanted = unpruned(fragment, self.condition, columns)
        return self._sized(file.path, metadata, wanted)

    def _is_about(self, metadata: Any, path: str) -> bool:
        """Whether the file has the columns as the condition means them, so that its statistics count."""
        fitting, fields = self.source.fitting(metadata, path), file_fields(metadata.schema)
        for used in self.used:
            try:
                found = fitting.column(used.name, fields, self.source.columns[used.name].dataType, used.type)
            except UsageError:
                return False  # the worker says so, should it come to that
            if found is None or found[0] != used.name or not _is_plain(found[1]):
                return False
        return True

    def _sized(self, path: str, metadata: Any, wanted: Sequence[int]) -> RowGroups:
        case_sensitive = self.source.rules.case_sensitive
        owners = [folded(name, case_sensitive) for name in leaf_owners(metadata.schema)]
        found = RowGroups()
        for number in wanted:
            row_group = metadata.row_group(number)
            sizes = [row_group.column(at).total_compressed_size for at in range(row_group.num_columns)]
            found.groups.append((path, number, sum(sizes)))
            for owner, size in zip(owners, sizes, strict=True):
                found.column_bytes[owner] += size
        return found


def _is_plain(fit: Fit) -> bool:
    return fit.convert is None and len(fit.paths) == 1
