"""The file system of a scan's paths, in a form that travels to the workers.

An fsspec file system pickles as its class and the options it was made with. So the options that a user gives
reach the workers with the scan, whatever the protocol. Options may be credentials: nothing here prints them,
nor the user and password that a URL may carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pyarrow.fs

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.paths import normal, redact

_LOCAL = ("file", "local")
_CACHES = ("blockcache", "cached", "filecache", "simplecache")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system. ``protocol``: fsspec's name for its kind."""

    protocol: str
    fsspec: Any = field(repr=False)

    @staticmethod
    def of(paths: Sequence[str], storage: Mapping[str, Any]) -> FileSystem:
        """Make the file system that holds all of these paths. ``storage``: options for it.

        Raises `UsageError` if none can be made with this protocol and these options, or a path is empty;
        `UnsupportedError` if the paths are on several file systems, or one is a chained URL.
        """
        if "" in paths:
            raise UsageError("a path is empty: give the path of a file or directory, such as . for this one")
        for path in paths:
            _check_unchained(path)
        opened = [_file_system(path, storage) for path in paths]
        if any(each is not opened[0] and each != opened[0] for each in opened):
            raise UnsupportedError(
                f"these paths are on several file systems: {', '.join(map(redact, paths))}. Read them apart,"
                " and union() the frames"
            )
        return FileSystem(_protocol(opened[0]), opened[0])

    @property
    def is_local(self) -> bool:
        return self.protocol in _LOCAL

    def path(self, given: str) -> str:
        """Return a path in the file system's form: without protocol, in its one spelling."""
        return normal(str(self.fsspec._strip_protocol(given)))

    def arrow(self) -> Any:
        """Return the file system as pyarrow's readers take it."""
        if self.is_local:
            return pyarrow.fs.LocalFileSystem()
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.fsspec))


def _check_unchained(path: str) -> None:
    first, *others = path.split("::")
    if len(others) > 1 or (others and first not in _CACHES):
        raise UnsupportedError(
            f"{redact(path)} is a chained URL. Only those of fsspec's caches can be read, such as"
            " simplecache::s3://bucket/directory. Copy the files to a file system, and read them there"
        )


def _file_system(path: str, storage: Mapping[str, Any]) -> Any:
    try:
        return fsspec.core.url_to_fs(path, **storage)[0]
    except (ValueError, ImportError, TypeError) as error:
        # the message shows only the error's type: its text may quote the options
        names = ", ".join(f"fsspec.{name}" for name in storage) or "no options"
        raise UsageError(
            f"no file system for {redact(path)} could be made with {names} ({type(error).__name__}): install"
            " fsspec's package for it, and see there for its options"
        ) from None


def _protocol(filesystem: Any) -> str:
    protocol = filesystem.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])
