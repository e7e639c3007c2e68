"""Lists the files and the directories that lie at a URL.

Used to find map outputs that are lost or must be removed (`storage.stored.stored_cleaning`).

Rules
* A directory that cannot be listed is an error, never empty: callers take a file that is not in a list for
  gone. So fsspec's ``ls`` is used, because its ``find`` and ``walk`` skip directories that fail. In an object
  store ``find`` by a prefix is one listing, and fails as ``ls`` does.
* A missing directory is empty. A file that disappears while its directory is listed is skipped, because
  others remove files too.
* In a mounted directory names are compared before the system is asked about a file: over NFS that is a
  request.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sortshuffle import calls
from sortshuffle.storage.files.urls import mounted_path, open_store

# fields in which fsspec's file systems tell when a file was written
_TIMES = ("LastModified", "mtime", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``path``: in its file system. ``changed``: when the file was written, in seconds since 1970."""

    path: str
    bytes: int
    changed: float

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


def files_in(url: str, prefix: str = "") -> list[StoredFile]:
    """Return a directory's files whose names begin with ``prefix``. Raises the store library's errors."""
    directory = mounted_path(url)
    if directory is not None:
        return list(_mounted_files(directory, prefix))
    return [
        StoredFile(about["name"], int(about["size"]), _changed(about))
        for about in _entries(url, prefix)
        if about["type"] == "file" and posixpath.basename(about["name"]).startswith(prefix)
    ]


def directories_in(url: str) -> list[str]:
    """Return the names of the directories in a directory. Raises as `files_in` does."""
    directory = mounted_path(url)
    if directory is not None:
        return sorted(entry.name for entry in _scan(directory) if entry.is_dir(follow_symlinks=False))
    return sorted(
        posixpath.basename(about["name"].rstrip("/"))
        for about in _entries(url)
        if about["type"] == "directory"
    )


def _mounted_files(directory: str, prefix: str) -> Iterator[StoredFile]:
    for entry in _scan(directory):
        if not entry.name.startswith(prefix):
            continue
        try:
            if entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                yield StoredFile(entry.path, found.st_size, found.st_mtime)
        except FileNotFoundError:
            continue


def _scan(directory: str) -> list[os.DirEntry[str]]:
    try:
        with calls.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _entries(url: str, prefix: str = "") -> list[dict[str, Any]]:
    """Return fsspec's entries of a directory in a store; an object store applies ``prefix``."""
    filesystem, path = open_store(url)
    filesystem.invalidate_cache()  # others have written since this process last looked
    try:
        if prefix and filesystem.async_impl:
            return list(filesystem.find(path, detail=True, prefix=prefix).values())
        # an object store may have an empty object in place of the directory, of the same name
        return [each for each in filesystem.ls(path, detail=True) if each["name"].rstrip("/") != path]
    except FileNotFoundError:
        return []


def _changed(about: dict[str, Any]) -> float:
    """Return when a file was written, or the current time if the store does not say."""
    moment = next((about[name] for name in _TIMES if about.get(name) is not None), None)
    if isinstance(moment, datetime):
        return moment.timestamp()
    return float(moment) if isinstance(moment, int | float) else time.time()
