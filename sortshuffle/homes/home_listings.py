"""`HomeListings`: what is in homes, and which task attempts Spark knows, for repeated sweeps.

A sweep looks only at changes since the last one: directories that did not change are not listed, known names
are not parsed again, and a file is not looked at if Spark has its own file of the same attempt.

Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sortshuffle import calls
from sortshuffle.homes.listings import Listings
from sortshuffle.storage.files.partitioned_file import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    PartitionedFile,
)

# The directories in which Spark's DiskBlockManager puts its files have hexadecimal numbers of at least two
# digits: more if spark.diskStore.subDirectories is above 256
_BLOCK_DIRECTORY = re.compile(r"[0-9a-f]{2,}")

# Spark's index file of a task attempt's shuffle output, which Spark writes first. A checksum file does not
# show that Spark still knows the attempt: its external service leaves the checksums of what it removes
_CONTROL_INDEX = re.compile(r"shuffle_\d+_(\d+)_0\.index")


@dataclass(slots=True)
class _HomeNames:
    """The names in a home. ``finished``: of finished files, with the task attempts in them."""

    names: set[str] = field(default_factory=set)
    partial: set[str] = field(default_factory=set)
    finished: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _ControlFiles:
    """Spark's files in a block directory. ``attempts``: those that have an index file."""

    names: set[str] = field(default_factory=set)
    attempts: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Known:
    """What Spark knows of a home's finished pairs, by task attempt. ``now``: the attempts that have an index
    file of Spark's. ``seen``: for each attempt that has had one, the file's directory, and the time of the
    first look that saw it, in seconds since 1970. ``missing``: since when it is missing, on the listings'
    clock. ``version``: of the listings at the last look."""

    now: set[int] = field(default_factory=set)
    seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    missing: dict[int, float] = field(default_factory=dict)
    version: int = 0


class HomeListings:
    """Listings for one thread. A new instance lists everything. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._homes: Listings[_HomeNames] = Listings(_home_names)
        self._local: Listings[list[str]] = Listings(_block_directories)
        self._blocks: Listings[_ControlFiles] = Listings(_control_files)
        self._known: dict[str, _Known] = {}  # by home
        self._clock = clock

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
        self._known = {home: self._known[home] for home in self._homes if home in self._known}

    def forgotten(self, home: str, local_directories: Iterable[str]) -> list[PartitionedFile]:
        """Return the finished pairs that Spark has forgotten: no local directory of the executor has Spark's
        index file of their task attempt. Raises OSError if something cannot be read."""
        finished = self.look(home, local_directories)
        if not finished:
            return []
        known = self._known[home].now
        return _files(home, [name for name, attempt in finished.items() if attempt not in known])

    def look(self, home: str, local_directories: Iterable[str]) -> Mapping[str, int]:
        """Note which finished pairs Spark knows now. Return their names, with the task attempts in them.
        Raises OSError if something cannot be read."""
        found = self._homes.list_if_changed(home)  # first: a pair that is finished meanwhile is not in it
        if found is None or not found.finished:
            self._known.pop(home, None)
            return {}
        blocks = self._known_to_spark(local_directories)
        known = self._known.setdefault(home, _Known())
        version = self._homes.version + self._local.version + self._blocks.version
        if known.version != version:  # otherwise nothing has changed, and there may be many pairs
            known.version = version
            self._note(known, set(found.finished.values()), blocks)
        return found.finished

    def dropped(self, home: str, missing_for: float) -> dict[PartitionedFile, float]:
        """Return the pairs that Spark has known and dropped, as of the last look, with the time at which it
        was first seen that Spark knew them. Each pair is returned once; after that it is like one that Spark
        has never known. ``missing_for``: seconds for which Spark's index file must have been missing, while
        its directory stayed. Raises OSError if something cannot be read."""
        known = self._known.get(home, _Known())
        latest = self._clock() - missing_for
        dropped = {each: known.seen[each] for each, since in known.missing.items() if since <= latest}
        if not dropped:
            return {}
        # kept listings may be stale, so list again before a deletion
        blocks = {block for block, _ in dropped.values()}
        there = set().union(*(_attempts(calls.listdir(block)) for block in blocks))
        found = self._homes.list_if_changed(home)
        finished = {} if found is None else found.finished
        for attempt in dropped:
            del known.seen[attempt], known.missing[attempt]
        gone = dropped.keys() - there
        files = _files(home, [name for name, attempt in finished.items() if attempt in gone])
        return {file: dropped[file.attempt][1] for file in files if file.attempt is not None}

    def _known_to_spark(self, local_directories: Iterable[str]) -> dict[str, set[int]]:
        """Return the task attempts that have an index file of Spark's, by the directory that it is in."""
        known = {}
        for directory in local_directories:
            for name in self._local.list_if_changed(directory) or ():
                block = os.path.join(directory, name)
                found = self._blocks.list_if_changed(block)
                if found is not None:
                    known[block] = found.attempts
        return known

    def _note(self, known: _Known, attempts: set[int], blocks: Mapping[str, set[int]]) -> None:
        """Note which of these attempts, those of a home's finished pairs, Spark knows.

        An executor that ends removes Spark's directories, file by file. So a directory that is gone says
        nothing of the attempts that were seen there.
        """
        known.now = set().union(*blocks.values())
        known.seen = {
            attempt: place
            for attempt, place in known.seen.items()
            if attempt in attempts and place[0] in blocks
        }
        unseen, when = attempts - known.seen.keys(), time.time()
        for directory, found in blocks.items():
            known.seen |= dict.fromkeys(unseen & found, (directory, when))
        missing, now = known.seen.keys() - known.now, self._clock()
        known.missing = {attempt: known.missing.get(attempt, now) for attempt in missing}


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
    return [name for name in names if _BLOCK_DIRECTORY.fullmatch(name)]


def _control_files(names: list[str], before: _ControlFiles | None) -> _ControlFiles:
    known, now = before or _ControlFiles(), set(names)
    known.attempts -= set(_attempts(known.names - now))
    known.attempts |= set(_attempts(now - known.names))
    known.names = now
    return known


def _attempts(names: Iterable[str]) -> Iterator[int]:
    return (int(match[1]) for match in map(_CONTROL_INDEX.fullmatch, names) if match)


def _files(home: str, names: Iterable[str]) -> list[PartitionedFile]:
    found: Iterator[PartitionedFile | None] = (PartitionedFile.of(os.path.join(home, name)) for name in names)
    return sorted({file for file in found if file is not None}, key=lambda file: file.base)
