"""Finds the files that make up a pair, and the pairs in a directory: finished, unfinished, or half missing.

A file is ours by its name or by its magic. Used by the command line and by Spark's data source.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.format.header import DATA_MAGIC, INDEX_MAGIC
from sortshuffle.storage.files.partitioned_file import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    PartitionedFile,
)
from sortshuffle.storage.files.urls import is_url, open_store, store_errors
from sortshuffle.storage.inspection.open_files import absolute, is_file, open_file

_DIGITS = re.compile(r"(\d+)")


def find_pairs(directory: str, on_error: Callable[[OSError], None] | None = None) -> Iterator[str]:
    """Yield one path of each pair at or below a directory, sorted with numbers as numbers.

    Symbolic links are not followed. Other programs' files with the same suffixes, such as Spark's own shuffle
    files, are skipped: a file is ours by its name or by its magic, in a store by its name only. ``on_error``
    gets the errors of directories that cannot be listed, and of files of which the system does not say what
    they are; a store that cannot be listed raises OSError.
    """
    if is_url(directory):
        yield from _pairs_in_store(directory)
        return
    for parent, directories, names in calls.walk(directory, onerror=on_error):
        directories.sort(key=_natural)
        paths = (os.path.join(parent, name) for name in sorted(names, key=_natural))
        yield from _one_of_each(paths, on_error)


def _pairs_in_store(url: str) -> Iterator[str]:
    """Yield the pairs by their names only: reading the magic would take a request for each file."""
    with store_errors("listing files", url):
        filesystem, top = open_store(url)
        filesystem.invalidate_cache()
        names = [path.removeprefix(top).strip("/") for path in filesystem.find(top)]
    paths = (f"{url.rstrip('/')}/{name}" for name in sorted(names, key=_natural))
    path_by_base: dict[str, str] = {}
    for path in paths:
        file = PartitionedFile.of(path)
        if file is not None and file.attempt is not None:
            path_by_base.setdefault(file.base, path)
    yield from path_by_base.values()


def _one_of_each(paths: Iterable[str], on_error: Callable[[OSError], None] | None) -> Iterable[str]:
    path_by_base: dict[str, str] = {}
    for path in paths:
        file = PartitionedFile.of(path)
        if file is None:
            continue
        try:
            is_regular = stat.S_ISREG(calls.lstat(path).st_mode)
        except FileNotFoundError:
            continue  # it was removed, or has its final name now
        except OSError as error:
            if on_error is not None:
                on_error(error)
            continue
        if is_regular and _is_ours(path):
            path_by_base.setdefault(file.base, path)
    return path_by_base.values()


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def _is_ours(path: str) -> bool:
    file = PartitionedFile.of(path)
    return (file is not None and file.attempt is not None) or _magic(path) in (DATA_MAGIC, INDEX_MAGIC)


def _magic(path: str) -> bytes:
    try:
        with open_file(path) as file:
            return bytes(file.read(0, len(DATA_MAGIC)))
    except OSError:
        return b""


@dataclass(frozen=True, slots=True)
class PairNames:
    """The names of the files that make up a pair. ``data``, ``index``: None if there is none."""

    base: str
    data: str | None
    index: str | None

    @staticmethod
    def of(path: str) -> PairNames:
        """Return the pair that a file belongs to. If the pair has finished and partial files, those of the
        same kind as ``path`` are preferred. Raises `UsageError` if the file is not ours."""
        path = absolute(path)
        if not is_file(path):
            raise UsageError(f"{path} is not a file")
        file = PartitionedFile.of(path)
        if file is None:
            is_index = _magic(path) == INDEX_MAGIC
            names = PairNames(path, None if is_index else path, path if is_index else None)
        else:
            names = PairNames._of_pair(file, path.endswith(PARTIAL_SUFFIX))
        if not any(_is_ours(each) for each in (names.data, names.index) if each is not None):
            raise UsageError(
                f"{path} is not a file of sortshuffle: neither its name nor its first bytes are those of a"
                " data or index file"
            )
        return names

    @staticmethod
    def _of_pair(file: PartitionedFile, partial_first: bool) -> PairNames:
        data = [file.data_path, file.partial_data_path]
        index = [file.index_path, file.partial_index_path]
        if partial_first:
            data, index = data[::-1], index[::-1]
        return PairNames(file.base, _first_file(data), _first_file(index))

    def now(self) -> PairNames:
        """Return the names that the pair has now. Raises `UsageError` if it is gone."""
        if all(path is None or is_file(path) for path in (self.data, self.index)):
            return self
        names = PairNames._of_pair(PartitionedFile(self.base), self.unfinished)
        if names.data is None and names.index is None:
            raise UsageError(f"{self.base} has been removed")
        return names

    @property
    def missing(self) -> tuple[str, str] | None:
        """(kind, path) of the missing file, or None."""
        if self.data is None:
            return "data", self.base + DATA_SUFFIX
        if self.index is None:
            return "index", self.base + INDEX_SUFFIX
        return None

    @property
    def unfinished(self) -> bool:
        return any(path is not None and path.endswith(PARTIAL_SUFFIX) for path in (self.data, self.index))


def _first_file(paths: list[str]) -> str | None:
    return next((path for path in paths if is_file(path)), None)
