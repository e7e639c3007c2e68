"""What applications have left on storage that every host sees, and how it is removed.

Map outputs of frames are not deleted there one at a time. The driver removes what its application wrote when
that ends (`spark.shared_storage`), and `sortshuffle clean` what a driver left that could not. The shuffle
manager's, in a directory of their own (`storage.shared_home`), are deleted when Spark unregisters a shuffle,
and when the application ends. All of these find

* map outputs, ``<URL>/<application>/exchange-E-map-M-attempt-A.{data,index}``, and their ``.partial``;
* on S3, uploads of such that were begun and never completed: they are billed, but no listing shows them.

Nothing else is touched, whatever its name, and nothing in directories below an application's.

Run as a program, ``python -m sortshuffle.storage.stored_cleaning URL APPLICATION`` removes what the
application left: for a driver that is at its own end (`spark.shared_storage`, `service.rendezvous`).
"""

from __future__ import annotations

import posixpath
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sortshuffle.storage.partitioned_file import PARTIAL_SUFFIX, PartitionedFile
from sortshuffle.storage.stored_files import (
    application_url,
    mounted_path,
    open_store,
    patiently,
    store_errors,
)

# under which the file systems of fsspec tell when a file was written
_TIMES = ("LastModified", "mtime", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class Remains:
    """What one application has below a URL. ``changed``: when the last of it was written, seconds since 1970.
    ``foreign``: a name in its directory that is not ours."""

    root: str
    application: str
    map_outputs: int
    uploads: int
    bytes: int
    changed: float
    foreign: str | None

    @property
    def url(self) -> str:
        return application_url(self.root, self.application)


@dataclass(frozen=True, slots=True)
class _Found:
    """A file or an unfinished upload. ``path``: in its file system. ``upload``: its id, empty for a file."""

    path: str
    application: str
    bytes: int
    changed: float
    upload: str = ""

    @property
    def file(self) -> PartitionedFile | None:
        """The map output that it belongs to, if its name says so."""
        file = PartitionedFile.of(self.path)
        return None if file is None or file.attempt is None else file


def remains_below(root: str, application: str | None = None) -> list[Remains]:
    """What applications, or only one, have left below a URL. Raises OSError where it cannot be listed."""
    by_application: dict[str, list[_Found]] = {}
    for found in _found_below(root, application):
        by_application.setdefault(found.application, []).append(found)
    return [
        _remains(root, name, found)
        for name, found in sorted(by_application.items())
        if any(each.file is not None for each in found)
    ]


def remove_remains(root: str, application: str) -> None:
    """Remove what an application has below a URL. Raises OSError where the store does not let it."""
    with store_errors("removing map outputs", application_url(root, application)):
        filesystem, _ = open_store(root)
        ours = [found for found in _found_below(root, application) if found.file is not None]
        paths = [found.path for found in ours if not found.upload]
        _remove_files(filesystem, paths)
        for found in ours:
            if found.upload:
                _give_up(filesystem, found)
        _remove_empty(filesystem, application_url(root, application))


def sizes_of_exchange(directory: str, exchange: int) -> dict[str, int]:
    """The finished files of an exchange in an application's directory: bytes by name. One request for each
    thousand. Raises OSError where it cannot be listed."""
    return {posixpath.basename(path): size for path, size in _files_of_exchange(directory, exchange)}


def remove_exchange(directory: str, exchange: int) -> None:
    """Remove the finished map outputs of an exchange in an application's directory. Raises OSError where the
    store does not let it."""
    with store_errors("removing map outputs", directory):
        paths = [path for path, _ in _files_of_exchange(directory, exchange)]
        _remove_files(open_store(directory)[0], paths)


def _files_of_exchange(directory: str, exchange: int) -> Iterator[tuple[str, int]]:
    prefix = PartitionedFile.prefix_of(exchange)
    with store_errors("listing map outputs", directory):
        filesystem, top = open_store(directory)
        filesystem.invalidate_cache()  # others have written since this process last looked
        # object stores list by prefix; other file systems do not know the argument and list everything
        files: dict[str, dict[str, Any]] = filesystem.find(top, detail=True, prefix=prefix)
    for path, about in files.items():
        name = posixpath.basename(path)
        if name.startswith(prefix) and not name.endswith(PARTIAL_SUFFIX):
            yield path, int(about["size"])


def _remains(root: str, application: str, found: list[_Found]) -> Remains:
    ours = [each for each in found if each.file is not None]
    return Remains(
        root,
        application,
        len({each.file for each in ours if not each.upload}),
        sum(bool(each.upload) for each in ours),
        sum(each.bytes for each in ours),
        max(each.changed for each in ours),
        next((posixpath.basename(each.path) for each in found if each.file is None), None),
    )


def _found_below(root: str, application: str | None) -> Iterator[_Found]:
    top = root if application is None else application_url(root, application)
    with store_errors("listing map outputs", top):
        filesystem, path = open_store(top)
        _, root_path = open_store(root)
        filesystem.invalidate_cache()  # others have written since this process last looked
        depth = 2 if application is None else 1  # what others have further down is not gone through
        files: dict[str, dict[str, Any]] = filesystem.find(path, detail=True, maxdepth=depth)
        for name, about in files.items():
            owner = _application(root_path, name)
            if owner:
                yield _Found(name, owner, int(about["size"]), _changed(about))
        for found in _uploads_below(filesystem, path):
            owner = _application(root_path, found.path)
            if owner:
                yield _Found(found.path, owner, 0, found.changed, found.upload)


def _application(root_path: str, path: str) -> str:
    """Whose directory something lies in, directly; empty for what lies elsewhere."""
    below = path.removeprefix(root_path.rstrip("/")).lstrip("/").split("/")
    return below[0] if len(below) == 2 else ""


def _changed(about: dict[str, Any]) -> float:
    """When a file was written; now, for a store that does not say."""
    told = next((about[name] for name in _TIMES if about.get(name) is not None), None)
    if isinstance(told, datetime):
        return told.timestamp()
    return float(told) if isinstance(told, int | float) else time.time()


def _uploads_below(filesystem: Any, path: str) -> Iterator[_Found]:
    """Unfinished uploads, where the store has such: on S3, for which s3fs has no call that asks for a part of
    the bucket, or for more than a thousand."""
    if not hasattr(filesystem, "call_s3"):
        return
    bucket, key, _ = filesystem.split_path(path)
    prefix = f"{key}/" if key else ""
    after: dict[str, str] = {}
    while True:
        answer = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        for upload in answer.get("Uploads") or ():
            began = upload["Initiated"].timestamp()
            yield _Found(f"{bucket}/{upload['Key']}", "", 0, began, upload["UploadId"])
        if not answer.get("IsTruncated"):
            return
        after = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def _remove_files(filesystem: Any, paths: list[str]) -> None:
    """Together, in as few requests as the store allows. Somebody else may be removing the same ones."""
    try:
        if paths:
            filesystem.rm(paths)
    except FileNotFoundError:
        for path in paths:
            try:
                filesystem.rm_file(path)
            except FileNotFoundError:
                continue


def _give_up(filesystem: Any, found: _Found) -> None:
    bucket, key, _ = filesystem.split_path(found.path)
    try:
        filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=found.upload)
    except FileNotFoundError:
        pass  # it was completed or given up meanwhile


def _remove_empty(filesystem: Any, url: str) -> None:
    """Remove an application's directory, where there are directories and this one is empty."""
    if filesystem.async_impl:
        return  # an object store: what has no objects is not there
    path = mounted_path(url) or open_store(url)[1]
    try:
        filesystem.rmdir(path)
    except OSError:
        pass  # there is none, or there is something else in it


if __name__ == "__main__":
    patiently(lambda: remove_remains(*sys.argv[1:3]))
