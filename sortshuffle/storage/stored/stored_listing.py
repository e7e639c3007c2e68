"""What lies at a URL: the files of a directory there, and the directories.

Used by whoever looks for map outputs that are lost, or to be removed (`storage.stored.stored_cleaning`).

Rules
* What cannot be listed is an error, never an empty directory: whoever gets a list takes what is not in it for
  gone. So fsspec's ``ls`` is asked, because its ``find`` and ``walk`` pass over directories that fail. Of an
  object store ``find`` by a prefix is one listing, and fails as ``ls`` does.
* A directory that is not there has nothing in it. What goes while it is listed is passed over, because others
  remove files too.
* In a mounted directory names are compared before a file is looked at: over NFS each look is a request.
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

# under which the file systems of fsspec tell when a file was written
_TIMES = ("LastModified", "mtime", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``path``: in its file system. ``changed``: when it was written, seconds since 1970."""

    path: str
    bytes: int
    changed: float

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


def files_in(url: str, prefix: str = "") -> list[StoredFile]:
    """The files of a directory whose names begin like that. Raises what the store's library raises."""
    directory = mounted_path(url)
    if directory is not None:
        return list(_mounted_files(directory, prefix))
    return [
        StoredFile(about["name"], int(about["size"]), _changed(about))
        for about in _entries(url, prefix)
        if about["type"] == "file" and posixpath.basename(about["name"]).startswith(prefix)
    ]


def directories_in(url: str) -> list[str]:
    """The names of the directories in a directory. Raises as `files_in` does."""
    directory = mounted_path(url)
    if directory is not None:
        return sorted(entry.name for entry in _scanned(directory) if entry.is_dir(follow_symlinks=False))
    return sorted(
        posixpath.basename(about["name"].rstrip("/"))
        for about in _entries(url)
        if about["type"] == "directory"
    )


def _mounted_files(directory: str, prefix: str) -> Iterator[StoredFile]:
    for entry in _scanned(directory):
        if not entry.name.startswith(prefix):
            continue
        try:
            if entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                yield StoredFile(entry.path, found.st_size, found.st_mtime)
        except FileNotFoundError:
            continue


def _scanned(directory: str) -> list[os.DirEntry[str]]:
    try:
        with calls.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _entries(url: str, prefix: str = "") -> list[dict[str, Any]]:
    """Of a directory in a store, or of an object store only those that begin like that."""
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
    """When a file was written; now, for a store that does not say."""
    told = next((about[name] for name in _TIMES if about.get(name) is not None), None)
    if isinstance(told, datetime):
        return told.timestamp()
    return float(told) if isinstance(told, int | float) else time.time()
