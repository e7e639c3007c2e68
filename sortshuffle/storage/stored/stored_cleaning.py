"""Finds what applications have left on storage that every host sees, and removes it.

Map outputs of frames are not deleted there one at a time. The driver removes those of its application when
the application ends (`spark.session.shared_storage`); `sortshuffle clean` removes what the driver could not.
The shuffle manager's map outputs, in a separate directory (`homes.shared_home`), are deleted when Spark
unregisters a shuffle, and when the application ends. Removed are

* map outputs, ``<URL>/<application>-<token>/exchange-E-map-M-attempt-A.{data,index}`` and ``.partial``;
* on S3, their uncompleted uploads: they are billed, but no listing shows them.

Nothing else is touched, whatever its name, and nothing in directories below an application's.

In this module an application is the name of its directory. Only ``remains_below`` also takes an id, which
means all directories of that id.

Run as a program, ``python -m sortshuffle.storage.stored.stored_cleaning URL APPLICATION`` removes what the
application left: for a driver that is ending (`spark.session.shared_storage`). A third argument, the path of
a file, is for callers that do not wait (`service.host.rendezvous`): the program tries for some minutes, and
if anything is left, it writes the reason to the file.
"""

from __future__ import annotations

import errno
import os
import posixpath
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sortshuffle import calls
from sortshuffle.errors import SortShuffleError
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX, PartitionedFile
from sortshuffle.storage.files.private import make_private
from sortshuffle.storage.files.urls import (
    application_of,
    application_url,
    mounted_path,
    open_store,
    retry,
    store_error,
    store_errors,
)
from sortshuffle.storage.stored.stored_listing import StoredFile, directories_in, files_in

# Attempts at a removal that no caller waits for. The waits between them are 8.5 minutes in total; if a store
# is away for longer, `sortshuffle clean` removes the rest
ATTEMPTS_IN_BACKGROUND = 11


@dataclass(frozen=True, slots=True)
class Remains:
    """What one application has below a URL. ``changed``: when the last of it was written, in seconds since
    1970. ``foreign``: the name of a file in its directory that is not ours."""

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
class _Remnant:
    """A file or an unfinished upload. ``path``: in its file system. ``upload``: its id, empty for a file."""

    path: str
    application: str
    bytes: int
    changed: float
    upload: str = ""

    @property
    def file(self) -> PartitionedFile | None:
        """The map output to which the file belongs, according to its name; None for other files."""
        file = PartitionedFile.of(self.path)
        return None if file is None or file.attempt is None else file


def remains_below(root: str, application: str | None = None) -> list[Remains]:
    """Return what applications have left below a URL. ``application``: take only directories of this id, or
    with this name. Raises OSError if the URL cannot be listed."""
    by_application: dict[str, list[_Remnant]] = {}
    for found in _remnants_below(root, application):
        by_application.setdefault(found.application, []).append(found)
    return [
        _remains(root, name, found)
        for name, found in sorted(by_application.items())
        if any(each.file is not None for each in found)
    ]


def remove_remains(root: str, application: str) -> None:
    """Remove what an application has below a URL. Raises OSError if the store does not allow it."""
    url = application_url(root, application)
    with store_errors("removing map outputs", url):
        filesystem, _ = open_store(root)
        refusal: Exception | None = None
        try:
            for upload in _uploads_of(root, application):
                if upload.file is not None:
                    _abort_upload(filesystem, upload)
        except Exception as error:  # without the right to list uploads, the files can still be removed
            refusal = error
        _remove_files(
            filesystem,
            lambda: [each.path for each in _remnant_files(root, application) if each.file is not None],
        )
        _remove_empty(filesystem, url)
        if refusal is not None:
            raise store_error("giving up unfinished uploads", url, refusal) from refusal


def clean_command(root: str, application: str) -> str:
    """Return the command that removes the remains once the storage can be used again."""
    return f"sortshuffle clean {root} --application {application}"


def sizes_of_exchange(directory: str, exchange: int) -> dict[str, int]:
    """Return the bytes of an exchange's finished files, by name, in an application's directory. Makes one
    request per thousand files. Raises OSError if the directory cannot be listed."""
    return {file.name: file.bytes for file in _files_of_exchange(directory, exchange)}


def remove_exchange(directory: str, exchange: int) -> None:
    """Remove an exchange's finished map outputs in an application's directory. Raises OSError on refusal."""
    with store_errors("removing map outputs", directory):
        filesystem, _ = open_store(directory)
        _remove_files(filesystem, lambda: [file.path for file in _files_of_exchange(directory, exchange)])


def _files_of_exchange(directory: str, exchange: int) -> list[StoredFile]:
    with store_errors("listing map outputs", directory):
        found = files_in(directory, PartitionedFile.prefix_of(exchange))
    return [file for file in found if not file.name.endswith(PARTIAL_SUFFIX)]


def _remains(root: str, application: str, remnants: list[_Remnant]) -> Remains:
    ours = [each for each in remnants if each.file is not None]
    return Remains(
        root,
        application,
        len({each.file for each in ours if not each.upload}),
        sum(bool(each.upload) for each in ours),
        sum(each.bytes for each in ours),
        max(each.changed for each in ours),
        next((posixpath.basename(each.path) for each in remnants if each.file is None), None),
    )


def _remnants_below(root: str, application: str | None) -> Iterator[_Remnant]:
    with store_errors("listing map outputs", root):
        for name in directories_in(root):
            if _is_of(name, application):
                yield from _remnant_files(root, name, is_named=application is not None)
        for upload in _uploads_of(root, None):  # also in directories that have nothing else
            if _is_of(upload.application, application):
                yield upload


def _is_of(name: str, application: str | None) -> bool:
    return application is None or application in (name, application_of(name))


def _remnant_files(root: str, name: str, is_named: bool = True) -> Iterator[_Remnant]:
    with store_errors("listing map outputs", application_url(root, name)):
        for file in _files_of(root, name, is_named):
            yield _Remnant(file.path, name, file.bytes, file.changed)


def _uploads_of(root: str, application: str | None) -> Iterator[_Remnant]:
    """Yield the unfinished uploads of one application below a URL, or of all if ``application`` is None."""
    filesystem, path = open_store(root if application is None else application_url(root, application))
    _, root_path = open_store(root)
    for found in _uploads_below(filesystem, path):
        owner = _application(root_path, found.path)
        if owner:
            yield replace(found, application=owner)


def _files_of(root: str, application: str, is_named: bool) -> list[StoredFile]:
    try:
        return files_in(application_url(root, application))
    except PermissionError:
        if is_named:
            raise
        return []  # another user's directory, for that user to remove


def _application(root_path: str, path: str) -> str:
    """Return the application whose directory directly contains a path; empty for other paths."""
    below = path.removeprefix(root_path.rstrip("/")).lstrip("/").split("/")
    return below[0] if len(below) == 2 else ""


def _uploads_below(filesystem: Any, path: str) -> Iterator[_Remnant]:
    """Yield unfinished uploads, which only S3 has. s3fs's own call lists a whole bucket, and only 1000."""
    if not hasattr(filesystem, "call_s3"):
        return
    bucket, key, _ = filesystem.split_path(path)
    prefix = f"{key}/" if key else ""
    after: dict[str, str] = {}
    while True:
        answer = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        for upload in answer.get("Uploads") or ():
            began = upload["Initiated"].timestamp()
            yield _Remnant(f"{bucket}/{upload['Key']}", "", 0, began, upload["UploadId"])
        if not answer.get("IsTruncated"):
            return
        after = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def _remove_files(filesystem: Any, list_paths: Callable[[], list[str]]) -> None:
    """Remove the listed files. Others may remove the same ones. Raises OSError if some stay."""
    paths = list_paths()
    if not paths:
        return
    if not filesystem.async_impl:  # not all of these remove several files at a time
        _remove_one_by_one(filesystem, paths)
        return
    try:
        filesystem.rm(paths)  # in as few requests as the store allows
    except FileNotFoundError:
        _remove_one_by_one(filesystem, paths)
    # s3fs drops S3's errors for single objects: that one may not be deleted, or that S3 is too busy
    if left := set(paths).intersection(list_paths()):
        raise OSError(errno.EIO, f"{len(left)} of {len(paths)} objects stay, {min(left)} for one")


def _remove_one_by_one(filesystem: Any, paths: list[str]) -> None:
    for path in paths:
        try:
            filesystem.rm_file(path)
        except FileNotFoundError:
            continue


def _abort_upload(filesystem: Any, found: _Remnant) -> None:
    bucket, key, _ = filesystem.split_path(found.path)
    try:
        filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=found.upload)
    except FileNotFoundError:
        pass  # it was completed or given up meanwhile


def _remove_empty(filesystem: Any, url: str) -> None:
    """Remove an application's directory, if the storage has directories and this one is empty."""
    if filesystem.async_impl:
        return  # an object store: a directory without objects does not exist
    path = mounted_path(url) or open_store(url)[1]
    try:
        if not filesystem.ls(path, detail=False):  # some file systems remove a directory with its contents
            filesystem.rmdir(path)
    except OSError:
        pass  # it does not exist, or something else is in it


def main(url: str, application: str, left: str = "") -> None:
    if not left:
        retry(lambda: remove_remains(url, application))
        return
    try:
        retry(lambda: remove_remains(url, application), attempts=ATTEMPTS_IN_BACKGROUND)
    except (OSError, SortShuffleError) as error:
        # the caller may have removed the directory
        make_private(os.path.dirname(left))
        with calls.open_file(left, "w", encoding="utf-8") as opened:
            opened.write(f"{error}\nRemove what is left with: {clean_command(url, application)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
