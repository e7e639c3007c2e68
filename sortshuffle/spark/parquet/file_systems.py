"""Which file system paths are on, and how it travels to the workers.

An fsspec file system pickles as its class and the options it was made with, so what a user gave for it
reaches the workers with the scan, whatever the protocol. Options may be credentials: nothing here prints
them, nor the user and password that a URL may carry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pyarrow.fs

from sortshuffle.errors import UnsupportedError, UsageError

_LOCAL = ("file", "local")
_USER_INFO = re.compile(r"(?<=://)[^/@]*@")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """One file system. ``protocol``: fsspec's name of it."""

    protocol: str
    fsspec: Any = field(repr=False)

    @staticmethod
    def of(paths: Sequence[str], storage: Mapping[str, Any]) -> FileSystem:
        """The file system that all of these paths are on. ``storage``: options for it.

        Raises `UsageError` if there is none of that name or if it refuses the options, `UnsupportedError` if
        paths are on several.
        """
        found = [_opened(path, storage) for path in paths]
        if any(each is not found[0] and each != found[0] for each in found):
            raise UnsupportedError(
                f"these paths are on several file systems: {', '.join(map(shown, paths))}. Read them apart,"
                " and union() the frames"
            )
        return FileSystem(_protocol(found[0]), found[0])

    @property
    def is_local(self) -> bool:
        return self.protocol in _LOCAL

    def path(self, given: str) -> str:
        """What a path is called inside the file system, without protocol and trailing slash."""
        stripped = str(self.fsspec._strip_protocol(given))
        return stripped.rstrip("/") or "/"

    def arrow(self) -> Any:
        """For pyarrow's readers."""
        if self.is_local:
            return pyarrow.fs.LocalFileSystem()
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.fsspec))


def shown(path: str) -> str:
    """A path or URL as messages and plans show it: without user and password."""
    return _USER_INFO.sub("", path)


def _opened(path: str, storage: Mapping[str, Any]) -> Any:
    try:
        return fsspec.core.url_to_fs(path, **storage)[0]
    except (ValueError, ImportError, TypeError) as error:
        # the error may quote the options: its kind is all that is passed on
        names = ", ".join(f"fsspec.{name}" for name in storage) or "no options"
        raise UsageError(
            f"no file system for {shown(path)} could be made with {names} ({type(error).__name__}): install"
            " fsspec's package for it, and see there for its options"
        ) from None


def _protocol(filesystem: Any) -> str:
    protocol = filesystem.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])
