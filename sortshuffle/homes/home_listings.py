"""`HomeListings`: what is in homes, and which task attempts Spark knows, for repeated sweeps.

A sweep looks only at changes since the last one: directories that did not change are not listed, known names
are not parsed again, and a file is not looked at if Spark has its own file of the same attempt.

Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sortshuffle.homes.listings import Listings
from sortshuffle.storage.files.partitioned_file import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    PartitionedFile,
)

BLOCK_DIRECTORY_DIGITS = 2  # hexadecimal, of the directories in which Spark's DiskBlockManager puts its files

# Spark's index file of a task attempt's shuffle output, which Spark writes first. A checksum file does not
# show that Spark still knows the attempt: its external service leaves the checksums of what it removes
_CONTROL_INDEX = re.compile(r"shuffle_\d+_(\d+)_0\.index")


@dataclass(slots=True)
class _HomeNames:
    """The names in a home. ``finished``: of finished files, with the task attempts in them."""

    names: set[str] = field(default_factory=set)
    partial: set[str] = field(default_factory=set)
    finished: dict[str, int] = field(default_factory=dict)


class HomeListings:
    """Listings for one thread. A new instance lists everything."""

    def __init__(self) -> None:
        self._homes: Listings[_HomeNames] = Listings(_home_names)
        self._local: Listings[list[str]] = Listings(_block_directories)
        self._blocks: Listings[frozenset[int]] = Listings(_attempts)

    def partial(self, home: str) -> list[PartitionedFile]:
        """Return the unfinished pairs of a home. Raises OSError."""
        found = self._homes.list_if_changed(home)
        return [] if found is None else _files(home, found.partial)

    def finished(self, home: str) -> list[PartitionedFile]:
        """Return the finished pairs of a home, and halves of pairs. Raises OSError."""
        found = self._homes.list_if_changed(home)
        return [] if found is None else _files(home, found.finished)

    def has_finished(self, home: str) -> bool:
        """Return whether a home has any finished pair, or half of one. Raises OSError."""
        found = self._homes.list_if_changed(home)
        return found is not None and bool(found.finished)

    def forget_unvisited(self) -> None:
        """Forget directories that were not looked at since the last call: executors come and go."""
        for listings in (self._homes, self._local, self._blocks):
            listings.forget_unvisited()

    def forgotten(self, home: str, local_directories: Iterable[str]) -> list[PartitionedFile]:
        """Return the finished pairs that Spark has forgotten: no local directory of the executor has Spark's
        index file of their task attempt. Raises OSError if something cannot be read."""
        found = self._homes.list_if_changed(home)  # first: a pair that is finished meanwhile is not in it
        if found is None or not found.finished:
            return []
        known = self._known_to_spark(local_directories)
        return _files(home, [name for name, attempt in found.finished.items() if attempt not in known])

    def _known_to_spark(self, local_directories: Iterable[str]) -> set[int]:
        blocks = [
            os.path.join(directory, name)
            for directory in local_directories
            for name in self._local.list_if_changed(directory) or ()
        ]
        return set().union(*(self._blocks.list_if_changed(each) or () for each in blocks))


def _home_names(names: list[str], before: _HomeNames | None) -> _HomeNames:
    known, now = before or _HomeNames(), set(names)
    for name in known.names - now:
        known.partial.discard(name)
        known.finished.pop(name, None)
    for name in now - known.names:
        if name.endswith(PARTIAL_SUFFIX):
            known.partial.add(name)
        elif name.endswith((DATA_SUFFIX, INDEX_SUFFIX)):
            file = PartitionedFile.of(name)
            if file is not None and file.attempt is not None:
                known.finished[name] = file.attempt
    known.names = now
    return known


def _block_directories(names: list[str], before: list[str] | None) -> list[str]:
    return [name for name in names if len(name) == BLOCK_DIRECTORY_DIGITS]


def _attempts(names: list[str], before: frozenset[int] | None) -> frozenset[int]:
    return frozenset(int(match[1]) for match in map(_CONTROL_INDEX.fullmatch, names) if match)


def _files(home: str, names: Iterable[str]) -> list[PartitionedFile]:
    found: Iterator[PartitionedFile | None] = (PartitionedFile.of(os.path.join(home, name)) for name in names)
    return sorted({file for file in found if file is not None}, key=lambda file: file.base)
