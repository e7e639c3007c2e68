"""What a directory of a file system holds.

File systems of fsspec list links in different ways: as of type ``link`` or ``other``, or with a mark
``islink``. A link counts here as what it leads to. As in Spark, a link that leads nowhere is left out.
Whatever else cannot be looked at is an error, so that no file is missing silently.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.parquet.paths import name_of, redact

_PLAIN_TYPES = ("file", "directory")
_LEADS_NOWHERE = (errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of links that lead to themselves, and to names that no file can have."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory. ``path``: without a slash at its end. ``size``: bytes; of directories 0."""

    path: str
    size: int
    is_directory: bool
    is_link: bool


def entries(
    filesystem: Any,
    directory: str,
    listed: Iterable[Mapping[str, Any]],
    is_wanted: Callable[[str], object],
) -> Iterator[Entry]:
    """Yield what a directory holds. ``listed``: the answer of the file system's `ls`. ``is_wanted``: whether
    to yield a name; links of other names are not followed. Yields nothing if the path is that of a file,
    which many file systems list as itself."""
    itself = directory.strip("/")
    for info in listed:
        path = str(info["name"]).rstrip("/")
        if path.strip("/") != itself and is_wanted(name_of(path)):
            entry = _entry(filesystem, path, info)
            if entry is not None:
                yield entry


def entry_at(filesystem: Any, path: str, is_link: bool = False) -> Entry:
    """Look at an existing path; if it is a link, at what it leads to. ``is_link``: of the entry returned."""
    if filesystem.isdir(path):
        return Entry(path, 0, True, is_link)
    info = filesystem.info(path)
    # fsspec's caches look up a path in the listing again, so they say of no link where it leads
    if info["type"] not in _PLAIN_TYPES and _lists_others(filesystem, path):
        return Entry(path, 0, True, is_link)
    return Entry(path, size_of(filesystem, path, info), False, is_link)


def size_of(filesystem: Any, path: str, info: Mapping[str, Any]) -> int:
    """Return the bytes of a file. ``info``: what a listing says of it. Raises `UnsupportedError` if the file
    system does not know: the file would be taken for an empty one."""
    size = info["size"]
    if size is None:  # listings over http have no sizes
        size = filesystem.info(path)["size"]
    if size is None:
        raise UnsupportedError(
            f"the size of {redact(path)} cannot be found out. Copy it to another file system, and read it"
            " there"
        )
    return int(size)


def _entry(filesystem: Any, path: str, info: Mapping[str, Any]) -> Entry | None:
    if info["type"] in _PLAIN_TYPES and not info.get("islink"):
        holds = info["type"] == "directory"
        return Entry(path, 0 if holds else size_of(filesystem, path, info), holds, False)
    try:
        return entry_at(filesystem, path, is_link=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return None
        raise


def _lists_others(filesystem: Any, path: str) -> bool:
    """Return whether a listing of a path has more than the path itself, so that it is a directory."""
    return [str(each).strip("/") for each in filesystem.ls(path, detail=False)] != [path.strip("/")]
