"""The files that paths stand for, as in Spark.

* A path is a file, a directory or a pattern. Each path is a root, and so is every match of a pattern.
* All files below a root are listed except hidden ones: names that begin with ``_`` or ``.``, unless the ``_``
  is that of a partition directory (``_a=1``), and names that end in ``._COPYING_``. Parquet's summary files
  are listed too: they hold no rows, but they hold the schema.
* Without partition directories only the files directly in a root are read (see `FoundFiles.in_roots`), unless
  the lookup is recursive.
* An empty file is not a Parquet file, and is skipped. So is an empty summary file, with which Spark fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.globs import is_pattern, matching, name_matches
from sortshuffle.spark.parquet.listing import entries, entry_at, size_of
from sortshuffle.spark.parquet.paths import below, name_of, parent_of, redact

_SUMMARIES = ("_common_metadata", "_metadata")
MOST_LINKS = 8  # on the way to a file


@dataclass(frozen=True, slots=True)
class FoundParquetFile:
    """A listed file. ``size``: bytes."""

    path: str
    size: int

    @property
    def directory(self) -> str:
        return parent_of(self.path)

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def is_data(self) -> bool:
        """Whether the file is one whose rows are read, unlike a summary."""
        name = self.name
        return not ((name.startswith("_") and "=" not in name) or name.startswith("."))


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """All files below some roots, by path, each once. ``roots``: in the order given, where one may repeat.
    ``data_directories``: those with data files, even if only empty ones or ones of other names, sorted."""

    roots: tuple[str, ...]
    files: dict[str, FoundParquetFile]
    data_directories: tuple[str, ...]

    def in_roots(self) -> list[FoundParquetFile]:
        """Return the files that are roots or directly in one, once for each such root."""
        by_directory: dict[str, list[FoundParquetFile]] = {}
        for file in self.files.values():
            by_directory.setdefault(file.directory, []).append(file)
        files: list[FoundParquetFile] = []
        for root in self.roots:
            files += [self.files[root]] if root in self.files else by_directory.get(root, [])
        return files


def find_files(filesystem: FileSystem, paths: Sequence[str], name_glob: str | None = None) -> FoundFiles:
    """List the files at and below these paths. ``name_glob``: list only files whose names match it.

    Raises `UsageError` for a path that does not exist, or a pattern without a match.
    """
    _innermost(filesystem.fsspec).invalidate_cache()  # others may have written since this process last looked
    roots = tuple(root for given in paths for root in _roots(filesystem, given))
    listed = {file.path: file for root in dict.fromkeys(roots) for file in _listing(filesystem.fsspec, root)}
    kept = {
        path: file
        for path, file in sorted(listed.items())
        if name_glob is None or name_matches(name_glob, file.name)
    }
    # As in Spark, the types of partition columns do not depend on the names of files
    directories = sorted({file.directory for file in listed.values() if file.is_data})
    return FoundFiles(roots, kept, tuple(directories))


def schema_files(files: Sequence[FoundParquetFile], merge: bool) -> list[FoundParquetFile]:
    """Return the files whose footers define the schema. If ``merge`` is true: all, the summaries last; else
    one summary, or the first file by path if there is none."""
    by_path = sorted((file for file in files if file.size), key=lambda file: file.path)
    by_kind = [[file for file in by_path if file.name == name] for name in _SUMMARIES]
    data = [file for file in by_path if file.name not in _SUMMARIES]
    if merge:
        common, full = by_kind
        return [*data, *full, *common]
    return next(([kind[0]] for kind in (*by_kind, data) if kind), [])


def _roots(filesystem: FileSystem, given: str) -> list[str]:
    path = filesystem.path(given)
    if is_pattern(path):
        roots = matching(filesystem.fsspec, path)
    else:
        roots = [path] if filesystem.fsspec.exists(path) else []
    if not roots:
        raise UsageError(f"there is nothing at {redact(given)}")
    return roots


def _listing(filesystem: Any, root: str) -> Iterator[FoundParquetFile]:
    entry = entry_at(filesystem, root)
    if entry.is_directory:
        yield from _found(filesystem, root) if _can_search(filesystem) else _walk(filesystem, root)
    elif not _is_hidden(name_of(root)):
        yield FoundParquetFile(root, entry.size)


def _innermost(filesystem: Any) -> Any:
    """Return the file system whose directories a `DirFileSystem` shows, or else this one."""
    while isinstance(filesystem, DirFileSystem):
        filesystem = filesystem.fs
    return filesystem


def _can_search(filesystem: Any) -> bool:
    """Return whether the file system itself finds all files below a directory, as object stores do. fsspec's
    own `find` lists one directory after another; it follows no links, and skips what it cannot list."""
    kind = type(_innermost(filesystem))
    searches = kind.find is not AbstractFileSystem.find
    return searches or getattr(kind, "_find", AsyncFileSystem._find) is not AsyncFileSystem._find


def _found(filesystem: Any, directory: str) -> Iterator[FoundParquetFile]:
    """Yield the files below a directory, in as few requests as the file system can."""
    for path, info in filesystem.find(directory, detail=True).items():
        names = below(path, directory)  # some file systems also find what only begins with the path
        is_marker = path.endswith("/")  # an empty object that stands for a directory
        if names and not is_marker and not any(map(_is_hidden, names)):
            yield FoundParquetFile(path, size_of(filesystem, path, info))


def _walk(filesystem: Any, directory: str, links: int = 0) -> Iterator[FoundParquetFile]:
    """Yield the files below a directory, from one listing after another. Hidden directories are not listed.
    Links to directories are followed, as in Spark. ``links``: how many lead here. Raises `UsageError` if they
    lead in a circle, in which Spark goes round until the system stops it."""
    if links > MOST_LINKS:
        raise UsageError(
            f"links to directories lead in a circle, or more than {MOST_LINKS} lead to {redact(directory)}"
        )
    listed = filesystem.ls(directory, detail=True)
    for entry in entries(filesystem, directory, listed, lambda name: not _is_hidden(name)):
        if entry.is_directory:
            yield from _walk(filesystem, entry.path, links + entry.is_link)
        else:
            yield FoundParquetFile(entry.path, entry.size)


def _is_hidden(name: str) -> bool:
    hidden = (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
    return hidden and not name.startswith(_SUMMARIES)
