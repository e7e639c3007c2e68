"""`MapOutputs`: the map outputs of an application on this host, as its engine reads and writes them.

    `new`           begins a map output, in a shared home that has room
    `keep_written`  keeps the records of a small map output that is complete
    `open`          returns a map output to read: a known one, or one found by its name in a shared home
    `reader`        opens the data file of one that was found and is no longer kept
    `remove`        forgets and deletes all finished map outputs of a shuffle

`MapOutputCache` keeps map outputs for later requests: the verified index and the open data file of each, or
the records of a small one. A map output of this host that turns out to be damaged or gone is forgotten at
once; the next request looks for it again.

Rules
* A name alone proves nothing: an opened map output must carry the file id that the request names.
* The list of shared homes is fetched anew for each call: new executors bring new directories.
* A home that fails is skipped for a while (`homes.home_failures`).
* A home at a URL is the only one. Its map outputs are written and removed here, and read by `StoredBlocks`.

Lock order: the lock is a leaf; files are opened, closed and deleted while no lock is held.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from sortshuffle import calls
from sortshuffle.errors import DataLossError, MissingDataError, Place
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import FileHeader
from sortshuffle.format.index import Index
from sortshuffle.homes.directories import Directories
from sortshuffle.service.jvm.small_outputs import SmallOutputRecords, is_small, read_small
from sortshuffle.storage.files.partitioned_file import INDEX_SUFFIX, PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.files.urls import is_url, retry
from sortshuffle.storage.stored.stored_cleaning import remove_exchange
from sortshuffle.storage.writer import PartitionedFileWriter

# bytes of indexes to keep: the index of a map output with 1,000 subpartitions takes 56 KB
MOST_INDEX_BYTES = 32 << 20
# bytes of small map outputs to keep: 1,000 with 1,000 short records each, one per subpartition, take 36 MB
MOST_SMALL_BYTES = 48 << 20
MOST_FILES = 2048  # data files to keep open, at most a quarter of the process's limit
# seconds without a read after which a small map output makes room for another. Those of one stage must not
# displace each other: reading one whole pays only if all of its subpartitions are then read from memory
IDLE = 10.0

Homes = Callable[[], Sequence[str]]
"""Returns the shared homes of the application, always in the same order."""


@dataclass(frozen=True, slots=True)
class WrittenPair:
    """The state of a map output's files: for each its inode, its size in bytes, its change time in ns."""

    data: tuple[int, int, int]
    index: tuple[int, int, int]

    @staticmethod
    def of(file: PartitionedFile) -> WrittenPair:
        """Return the state of the files now. Raises OSError."""
        return WrittenPair(_stamp(file.data_path), _stamp(file.index_path))

    def is_unchanged(self, file: PartitionedFile) -> bool:
        """Return whether both files are unchanged. A system error counts as a change: the files are read."""
        try:
            return WrittenPair.of(file) == self
        except OSError:
            return False


class SmallMapOutput:
    """A finished map output, of this host or from elsewhere, with its records in memory (``small``).
    ``written``: the state of its files, if this engine wrote them and no request has checked them yet."""

    __slots__ = ("file", "file_id", "kept_bytes", "small", "subpartitions", "used_at", "written")

    def __init__(
        self,
        file: PartitionedFile,
        file_id: bytes,
        small: SmallOutputRecords,
        written: WrittenPair | None = None,
    ) -> None:
        self.file = file
        self.file_id = file_id
        self.small = small
        self.written = written
        self.subpartitions = small.subpartitions
        self.kept_bytes = small.bytes
        self.used_at = 0.0


class IndexedMapOutput:
    """A finished map output of this host that is open and read extent by extent. ``reader``: reads its data
    file, which has ``data_bytes`` bytes; ``entries``: of its index, shape (regions, subpartitions);
    ``writer``: who wrote it.

    Owns the reader. The last reference closes it: a map output that was forgotten may still be in use.
    """

    def __init__(self, file: PartitionedFile, index: Index, reader: PartitionedFileReader) -> None:
        self.file = file
        self.file_id = index.header.file_id
        self.codec = index.header.codec
        self.subpartitions = index.header.subpartitions
        self.data_bytes = index.data_bytes
        self.reader = reader
        self.writer = str(index.writer)
        self.entries = index.entries
        self.kept_bytes = self.entries.nbytes
        self.used_at = 0.0

    def is_there(self) -> bool:
        """Return whether both files have their names, and the data file is still complete. Reads nothing of
        them. A system error counts as no."""
        try:
            self.reader.expect_size(self.data_bytes)
            calls.stat(self.file.index_path)
            named, opened = calls.stat(self.file.data_path), calls.fstat(self.reader.fileno())
            return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
        except (OSError, DataLossError):
            return False

    def __del__(self) -> None:
        self.reader.close()


MapOutput: TypeAlias = SmallMapOutput | IndexedMapOutput


def _load(file: PartitionedFile, file_id: bytes, reads_small: bool, key: EncryptionKey | None) -> MapOutput:
    """Open a finished map output; if ``reads_small``, read a small one whole. Raises as `MapOutputs.open`."""
    index = read_index(file, file_id)
    reader = PartitionedFileReader(file, file_id, str(index.writer), key=key)
    try:
        reader.expect_size(index.data_bytes)
        if not (reads_small and is_small(index)):
            return IndexedMapOutput(file, index, reader)
        small = SmallMapOutput(file, file_id, read_small(reader, index))
    except BaseException:
        reader.close()
        raise
    reader.close()
    return small


class MapOutputCache:
    """Map outputs that were read, and small ones that were written, by file id. Beyond a limit, the least
    recently used map output with an index is dropped. Small map outputs are dropped only after `IDLE` seconds
    without a read. ``clock``: returns seconds."""

    def __init__(
        self,
        most_index_bytes: int = MOST_INDEX_BYTES,
        most_small_bytes: int = MOST_SMALL_BYTES,
        most_files: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_index_bytes = most_index_bytes
        self._most_small_bytes = most_small_bytes
        self._most_files = _files_allowed() if most_files is None else most_files
        self._clock = clock
        self._lock = threading.Lock()
        self._indexed: OrderedDict[bytes, IndexedMapOutput] = OrderedDict()  # the least recently used first
        self._small: OrderedDict[bytes, SmallMapOutput] = OrderedDict()
        self._index_bytes = self._small_bytes = 0

    def get_all(self, file_ids: Sequence[bytes]) -> list[MapOutput | None]:
        """Return each map output, or None where it is not known."""
        now = self._clock()
        with self._lock:
            return [self._touch(file_id, now) for file_id in file_ids]

    def _touch(self, file_id: bytes, now: float) -> MapOutput | None:
        small = self._small.get(file_id)
        if small is not None:
            small.used_at = now
            self._small.move_to_end(file_id)
            return small
        indexed = self._indexed.get(file_id)
        if indexed is not None:
            self._indexed.move_to_end(file_id)
        return indexed

    def has_room_for_small(self) -> bool:
        """Return whether there is room to keep another small map output."""
        with self._lock:
            idle = self._drop_idle()
            has_room = self._small_bytes < self._most_small_bytes
        del idle  # freed while no lock is held
        return has_room

    def keep(self, output: MapOutput) -> None:
        with self._lock:
            dropped = [self._drop(output.file_id)]  # another thread may have opened the same one
            output.used_at = self._clock()
            if isinstance(output, SmallMapOutput):
                self._small[output.file_id] = output
                self._small_bytes += output.kept_bytes
            else:
                self._indexed[output.file_id] = output
                self._index_bytes += output.kept_bytes
            while len(self._indexed) > 1 and self._has_too_many():
                dropped.append(self._drop(next(iter(self._indexed))))
        del dropped  # closes files, while no lock is held, unless a thread reads them

    def forget(self, file_id: bytes) -> None:
        with self._lock:
            dropped = self._drop(file_id)
        del dropped

    def forget_all(self, prefix: str) -> None:
        """Forget all map outputs whose file names begin with ``prefix``."""
        with self._lock:
            known: list[MapOutput] = [*self._indexed.values(), *self._small.values()]
            names = [each.file_id for each in known if _name(each.file).startswith(prefix)]
        del known
        for file_id in names:
            self.forget(file_id)

    def _drop(self, file_id: bytes) -> MapOutput | None:
        indexed, small = self._indexed.pop(file_id, None), self._small.pop(file_id, None)
        self._index_bytes -= indexed.kept_bytes if indexed is not None else 0
        self._small_bytes -= small.kept_bytes if small is not None else 0
        return indexed or small

    def _drop_idle(self) -> list[MapOutput | None]:
        dropped = []
        before = self._clock() - IDLE
        while self._small and self._small_bytes >= self._most_small_bytes:
            oldest = next(iter(self._small.values()))
            if oldest.used_at > before:
                break
            dropped.append(self._drop(oldest.file_id))
        return dropped

    def _has_too_many(self) -> bool:
        return self._index_bytes > self._most_index_bytes or len(self._indexed) > self._most_files


class MapOutputs:
    """``homes``: where finished map outputs are. ``writable``: where new ones go; None for the same homes.
    ``key``: returns the application's key, or None if its files are not encrypted."""

    def __init__(
        self,
        homes: Homes,
        known: MapOutputCache | None = None,
        writable: Homes | None = None,
        key: Callable[[], EncryptionKey | None] = lambda: None,
    ) -> None:
        self._key = key
        self._homes = homes
        self._writable = writable or homes
        # a new object at the beginning and the end of each removal; a map output opened meanwhile is not kept
        self._last_removal = object()
        self._known = known or MapOutputCache()

    def new(self, shuffle: int, map_index: int, map_id: int, header: FileHeader) -> PartitionedFileWriter:
        """Return the writer of a new map output. Successive ones rotate over the homes that have room. A home
        at a URL is the only one: if it fails, nothing is written elsewhere.

        Raises `OutOfDiskError` if no home has room, OSError if none can be used.
        """

        def create(home: str) -> PartitionedFileWriter:
            file = PartitionedFile.named(home, shuffle, map_index, map_id)
            # the driver makes the home at a URL: if it is missing, the mount or the application is gone
            return PartitionedFileWriter(file, header, makes_directory=False, key=self._key())

        homes = tuple(self._writable())
        if is_url(homes[0]):
            return create(homes[0])
        return Directories(homes).create(map_id, create)

    def known(self, file_ids: Sequence[bytes]) -> list[MapOutput | None]:
        """Return the known map outputs with these ids, None for each that must be opened."""
        return [
            each if each is not None and self._is_unchanged(each) else None
            for each in self._known.get_all(file_ids)
        ]

    def open(self, shuffle: int, map_index: int, map_id: int, file_id: bytes) -> MapOutput:
        """Return the map output that carries the id.

        Raises `MissingDataError` if there is none, `CorruptDataError` if the file of that name is damaged,
        OSError for errors that say nothing about the file.
        """
        known = self.known((file_id,))[0]
        if known is None:
            last_removal = self._last_removal
            known = self._find(shuffle, map_index, map_id, file_id)
            self._keep(known, last_removal)
        return known

    def kept(self, file_id: bytes) -> IndexedMapOutput | None:
        """Return the map output if it is kept and read extent by extent. Its file stays open as long as the
        caller has it."""
        (known,) = self._known.get_all((file_id,))
        return known if isinstance(known, IndexedMapOutput) else None

    def reader(
        self, file: PartitionedFile, file_id: bytes, writer: str, data_bytes: int
    ) -> PartitionedFileReader:
        """Return a reader of a map output that `open` has returned and that nobody has kept. The caller
        closes it. Raises `DataLossError` if the file is gone or another one, OSError."""
        reader = PartitionedFileReader(file, file_id, writer, key=self._key())
        try:
            reader.expect_size(data_bytes)
        except BaseException:
            reader.close()
            raise
        return reader

    def keep_written(self, file: PartitionedFile, file_id: bytes, small: SmallOutputRecords) -> None:
        """Keep the records of a map output that has just been finished."""
        last_removal = self._last_removal
        if not self._known.has_room_for_small():
            return
        try:
            # `StoredBlocks` reads map outputs at a URL and does not compare files
            written = None if is_url(file.base) else WrittenPair.of(file)
        except OSError:
            return  # the map output was removed already
        self._keep(SmallMapOutput(file, file_id, small, written), last_removal)

    def _keep(self, output: MapOutput, last_removal: object) -> None:
        """Keep a map output, unless one was removed since ``last_removal``: it may be gone, and would be kept
        for ever. It is kept first, so that a removal after the comparison forgets it."""
        self._known.keep(output)
        if last_removal is not self._last_removal:
            self._known.forget(output.file_id)

    def forget(self, file_id: bytes) -> None:
        """Forget a map output that is damaged or gone: the next request looks for it again."""
        self._known.forget(file_id)

    def forget_gone(self, file_ids: Sequence[bytes]) -> None:
        """Forget those of these map outputs whose files are gone or cut, and whose records are not in
        memory."""
        for known in self._known.get_all(file_ids):
            if isinstance(known, IndexedMapOutput) and not known.is_there():
                self.forget(known.file_id)

    def remove(self, shuffle: int) -> None:
        """Delete all finished map outputs that a shuffle has now. A reader that has one open can go on
        reading; what it has still to open is lost. Unfinished ones stay, as Spark may already run the shuffle
        again: their writers finish or abandon them."""
        failures: list[OSError] = []
        self._last_removal = object()
        for home in self._homes():
            _remove_from(home, shuffle, failures)
        self._last_removal = object()
        self._known.forget_all(PartitionedFile.prefix_of(shuffle))
        if failures:
            raise failures[0]

    def _is_unchanged(self, output: MapOutput) -> bool:
        """Return whether the files of a map output that this engine wrote are unchanged. Checks only once."""
        if isinstance(output, IndexedMapOutput) or output.written is None:
            return True
        if not output.written.is_unchanged(output.file):
            self.forget(output.file_id)
            return False
        output.written = None
        return True

    def _find(self, shuffle: int, map_index: int, map_id: int, file_id: bytes) -> MapOutput:
        homes = self._homes()
        for home in homes:
            file = PartitionedFile.named(home, shuffle, map_index, map_id)
            try:
                return _load(file, file_id, self._known.has_room_for_small(), self._key())
            except MissingDataError:
                continue  # this home has no such file, or one with another id
        file = PartitionedFile.named(homes[0] if homes else "", shuffle, map_index, map_id)
        what = f"none of the application's directories on this host has the map output ({', '.join(homes)})"
        raise MissingDataError(Place(file.data_path), what, expected=f"id {file_id.hex()}")


def _stamp(path: str) -> tuple[int, int, int]:
    found = calls.stat(path)
    return found.st_ino, found.st_size, found.st_ctime_ns


def _files_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else max(1, min(MOST_FILES, soft // 4))


def _name(file: PartitionedFile) -> str:
    return os.path.basename(file.base)


def _remove_from(home: str, shuffle: int, failures: list[OSError]) -> None:
    """Delete all finished map outputs of a shuffle in a home. If one cannot be deleted, the
    others still are."""
    with _noting(failures):
        if is_url(home):
            retry(partial(remove_exchange, home, shuffle))
            return
        for file in _files(home, PartitionedFile.prefix_of(shuffle)):
            with _noting(failures):
                file.delete()


@contextmanager
def _noting(failures: list[OSError]) -> Iterator[None]:
    """Note an OSError in the block, and go on after it."""
    try:
        yield
    except OSError as error:
        failures.append(error)


def _files(home: str, prefix: str) -> Iterator[PartitionedFile]:
    """Yield the finished map outputs. A finished one has an index, because the index gets its name last."""
    try:
        names = calls.listdir(home)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(prefix) and name.endswith(INDEX_SUFFIX):
            yield PartitionedFile(os.path.join(home, name.removesuffix(INDEX_SUFFIX)))
