"""`PartitionedFile`: the names of one result partition's two files.

A base path names the pair. Only this module derives the four file names from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.storage.files.presence import is_gone

DATA_SUFFIX = ".data"
INDEX_SUFFIX = ".index"
PARTIAL_SUFFIX = ".partial"

_NAME = re.compile(r"exchange-(\d+)-map-(\d+)-attempt-(\d+)$")


@dataclass(frozen=True, slots=True)
class PartitionedFile:
    """The files of one result partition. ``base``: absolute path without a suffix."""

    base: str

    @staticmethod
    def named(directory: str, exchange: int, map_index: int, attempt: int) -> PartitionedFile:
        """Return the file of this attempt of a map task. ``attempt`` is unique in the application."""
        return PartitionedFile(
            os.path.join(directory, f"{PartitionedFile.prefix_of(exchange)}{map_index}-attempt-{attempt}")
        )

    @staticmethod
    def prefix_of(exchange: int) -> str:
        """Return the common prefix of the names of all map outputs of an exchange."""
        return f"exchange-{exchange}-map-"

    @staticmethod
    def of(path: str) -> PartitionedFile | None:
        """Return the result partition of a data or index file, finished or partial; None for other files."""
        stripped = path.removesuffix(PARTIAL_SUFFIX)
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
            if stripped.endswith(suffix):
                return PartitionedFile(stripped.removesuffix(suffix))
        return None

    @property
    def data_path(self) -> str:
        return self.base + DATA_SUFFIX

    @property
    def index_path(self) -> str:
        return self.base + INDEX_SUFFIX

    @property
    def partial_data_path(self) -> str:
        return self.data_path + PARTIAL_SUFFIX

    @property
    def partial_index_path(self) -> str:
        return self.index_path + PARTIAL_SUFFIX

    @property
    def exchange(self) -> int | None:
        """The exchange in the file's name; None if the name has another form."""
        match = _NAME.search(self.base)
        return int(match[1]) if match else None

    @property
    def attempt(self) -> int | None:
        """The task attempt in the file's name; None if the name has another form."""
        match = _NAME.search(self.base)
        return int(match[3]) if match else None

    def delete(self) -> None:
        """Remove all files of the pair, trying each; the index first, so that half a pair never looks
        complete. Raises OSError."""
        _unlink_all([self.index_path, self.data_path, self.partial_index_path, self.partial_data_path])

    def delete_unfinished(self) -> None:
        """Remove what an unfinished writer has left, trying each file. A finished pair of that name stays.
        Raises OSError."""
        paths = [self.partial_index_path, self.partial_data_path]
        if is_gone(self.index_path):  # known for certain: with an index the pair is finished
            paths.append(self.data_path)  # the writer died between the two renames of `finish()`
        _unlink_all(paths)


def _unlink_all(paths: Iterable[str]) -> None:
    """Remove these files, as far as they exist. Raises the first OSError after trying all of them."""
    failed: OSError | None = None
    for path in paths:
        try:
            calls.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed
