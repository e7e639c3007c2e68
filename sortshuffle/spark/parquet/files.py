"""The driver's side of a scan: its files, their schema, and their row groups.

``parquet()`` lists directories and reads one footer, or all footers if schemas are merged. Row groups are
listed when the scan is put into a plan: threads read the footers of the files that conditions on partition
columns leave (1,000 local files of 20 columns take 0.6 s). No footer is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.file_schema import file_fields, nullable, spark_schema
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.finding import FoundFiles, FoundParquetFile, find_files, schema_files
from sortshuffle.spark.parquet.footers import Pruning
from sortshuffle.spark.parquet.merging import check_names, merge_schemas, with_partitions, without_columns
from sortshuffle.spark.parquet.packing import FileState, Packing, Piece, pack
from sortshuffle.spark.parquet.partitions import Partitioning, find_partitioning
from sortshuffle.spark.parquet.paths import below, parent_of, redact
from sortshuffle.spark.parquet.scanning import ParquetScan, ScanSource, open_parquet
from sortshuffle.spark.parquet.settings import ReadSettings

FOOTER_THREADS = 8
"""Footers read at a time. Local ones are bound by Python; one in an object store takes 20 to 100 ms of
waiting, so 1,000 take some seconds."""


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The files of one scan. ``files``: in the order of their rows. ``constants``: the values of the
    partition columns, by directory. ``label``: the paths, for messages and plans."""

    source: ScanSource
    files: tuple[FoundParquetFile, ...]
    constants: Mapping[str, tuple[Any, ...]]
    label: str

    @staticmethod
    def find(
        paths: Sequence[str],
        settings: ReadSettings | None = None,
        declared: st.StructType | None = None,
    ) -> ParquetFiles:
        """List the files at these paths. ``declared``: the user's schema, None for that of the files.

        Raises `UsageError` if there is nothing at a path, if no file has a schema, or if files or directories
        contradict each other; `UnsupportedError` for files that would not be read as Spark reads them.
        """
        settings = settings or ReadSettings()
        if not paths:
            raise UsageError("parquet() needs at least one path")
        named = [*paths, *([settings.base_path] if settings.base_path is not None else [])]
        filesystem = FileSystem.of(named, settings.storage)
        label = ", ".join(map(redact, paths))
        found = find_files(filesystem, paths, settings.name_glob)
        partitions = None if settings.recursive else _partitions(filesystem, found, settings, declared)
        if partitions is not None:
            listed = [file for file in found.files.values() if file.directory in partitions.values]
        else:
            listed = list(found.files.values()) if settings.recursive else found.in_roots()
        # As in Spark: files that are in no partition, such as summaries in the root, have a say in the schema
        described = listed if partitions is None else list(found.files.values())
        source = ScanSource(filesystem, st.StructType(), (), settings.rules)
        files = tuple(file for file in listed if file.is_data and file.size)
        columns = _columns(source, described, partitions, settings, declared, label)
        check_names(columns, settings.rules.case_sensitive, label)
        if partitions is None:
            return ParquetFiles(replace(source, columns=columns), files, {}, label)
        names = tuple(partitions.columns.names)
        return ParquetFiles(
            replace(source, columns=columns, partition_columns=names), files, partitions.values, label
        )

    @property
    def schema(self) -> st.StructType:
        """The columns, in Spark's types."""
        return self.source.columns

    def kept_by(self, prune_by: Any, wire: pa.Schema | None) -> list[FoundParquetFile]:
        """Return the files that the condition ``prune_by`` does not exclude by the values of partition
        columns. ``wire``: the schema of the condition's columns."""
        return self._kept(Pruning.of(self.source, self.constants, prune_by, wire))

    def _kept(self, pruning: Pruning) -> list[FoundParquetFile]:
        return [file for file in self.files if pruning.keeps(file.directory)]

    def plan(self, prune_by: Any, packing: Packing, wire: pa.Schema | None = None) -> list[tuple[Piece, ...]]:
        """Divide among tasks the row groups that the condition ``prune_by`` does not exclude: return the
        pieces that each task scans. ``wire``: the schema of the condition's columns. Raises `UsageError` for
        a file that cannot be read.

        A file whose row groups are all excluded is given to a task, too, which checks that it has not
        changed: the rows of a new file may be wanted. Spark's tasks open all files as well.
        """
        filesystem = self.source.filesystem.arrow()
        pruning = Pruning.of(self.source, self.constants, prune_by, wire)
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:  # a file that several roots have is scanned for each
            found = list(pool.map(lambda file: pruning.row_groups(file, filesystem), self._kept(pruning)))
        states = {file.path: file.state for file in found}
        groups = [(file.path, number, size) for file in found for number, size in file.groups or ((None, 0),)]
        return [tuple(self._completed(piece, states) for piece in split) for split in pack(groups, packing)]

    def scan(
        self, splits: Sequence[tuple[Piece, ...]], columns: tuple[str, ...], wire: pa.Schema, filter_by: Any
    ) -> ParquetScan:
        """Return the object that reads these splits in the workers."""
        return ParquetScan(self.source, tuple(splits), columns, wire, filter_by)

    def _completed(self, piece: Piece, states: Mapping[str, FileState]) -> Piece:
        constants = self.constants[parent_of(piece.path)] if self.constants else ()
        return replace(piece, constants=constants, state=states[piece.path])


# --- which files, and their schema ----------------------------------------------------------------------


def _partitions(
    filesystem: FileSystem, found: FoundFiles, settings: ReadSettings, declared: st.StructType | None
) -> Partitioning | None:
    if settings.base_path is None:
        bases = {found.files[root].directory if root in found.files else root for root in found.roots}
    else:
        bases = {_base_directory(filesystem, settings.base_path, found.roots)}
    return find_partitioning(found.data_directories, bases, settings, declared)


def _base_directory(filesystem: FileSystem, given: str, roots: Sequence[str]) -> str:
    base = filesystem.path(given)
    if not filesystem.fsspec.isdir(base):
        raise UsageError(f"the option basePath must name a directory, and {redact(given)} is none")
    outside = [root for root in roots if root != base and not below(root, base)]
    if outside:
        raise UsageError(f"the option basePath is {redact(given)}, but {redact(outside[0])} is not below it")
    return base


def _columns(
    source: ScanSource,
    described: Sequence[FoundParquetFile],
    partitions: Partitioning | None,
    settings: ReadSettings,
    declared: st.StructType | None,
    label: str,
) -> st.StructType:
    case_sensitive = settings.rules.case_sensitive
    in_paths = st.StructType() if partitions is None else partitions.columns
    if declared is not None:
        check_names(declared, case_sensitive, "the schema")
        own = nullable(without_columns(declared, in_paths, case_sensitive))
        return with_partitions(own, in_paths, case_sensitive)
    sources = schema_files(described, settings.merge_schema)
    if not sources:
        raise UsageError(
            f"there is no Parquet file at {label}, so there is no schema: name other paths, or a schema() for"
            " what may be empty"
        )
    filesystem = source.filesystem.arrow()
    if len(sources) == 1:
        data = _file_schema(sources[0], filesystem, settings)
    else:
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            schemas = pool.map(lambda file: _file_schema(file, filesystem, settings), sources)
            data = merge_schemas(
                zip((redact(file.path) for file in sources), schemas, strict=True),
                case_sensitive,
            )
    check_names(data, case_sensitive, label)
    return with_partitions(data, in_paths, case_sensitive)


def _file_schema(file: FoundParquetFile, filesystem: Any, settings: ReadSettings) -> st.StructType:
    with open_parquet(file.path, filesystem) as opened:
        metadata = opened.metadata.metadata
        return spark_schema(file_fields(opened.schema), metadata, settings.rules.leaves, redact(file.path))
