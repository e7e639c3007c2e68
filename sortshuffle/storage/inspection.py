"""What a pair of files holds, whatever state it is in: finished, unfinished, damaged or half missing.

The engine's reader (`storage.reader`) gives nothing of a file that is not whole. This module is for people
who want to know what is there all the same. It never raises for what the bytes are: whatever is wrong becomes
a `Fault` with its place. Used by the command line. Knows no records: who does passes a `RecordCounter`.

* `inspect` reads the index and both headers, not the data: cheap, whatever the size of the file.
* `check_data` reads all the data: every buffer, every extent, and every byte that no extent covers.

Rules
* Of a finished index nothing is believed unless all of it verifies. A partial index has no checksum: of it
  those regions count that lie exactly one behind the other in the data file, where a writer would put them.
* The index is read before the data, because a live writer appends in the other order.
* Memory is bounded: a few MiB, or the largest single buffer that fits where it is said to be.
* Files are opened for reading only. Locks are tried, and let go at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.errors import Place, UsageError
from sortshuffle.format.buffer import ALIGNMENT, StoredBuffer, raw_size, scan_buffer, sealed_size
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.index import (
    ENTRY,
    ENTRY_BYTES,
    Entries,
    RegionKind,
    Writer,
    unpack_entries,
    unpack_index,
)
from sortshuffle.format.malformed import CutShort, Malformed
from sortshuffle.options import MIB
from sortshuffle.storage.extents import Extent, extent_of
from sortshuffle.storage.lifetime import is_locked
from sortshuffle.storage.partitioned_file import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    PartitionedFile,
)

PART_BYTES = 8 * MIB
_VERSION_OFFSET = 8  # in a file header
_SIZE_FIELD = slice(4, 8)  # in a buffer header

Int64s = npt.NDArray[np.int64]

_DIGITS = re.compile(r"(\d+)")


# ---- who knows records ---------------------------------------------------------------------------------


class ExtentCounter(Protocol):
    """Counts the records of one extent, whose verified buffers it is given in order."""

    def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
        """How many records end in a buffer. Raises `Malformed` if it cannot be decoded."""

    def finish(self) -> None:
        """The extent ends here. Raises `Malformed` if that is within a record."""


class RecordCounter(Protocol):
    """Knows what the payloads of a pair hold."""

    def of_extent(self) -> ExtentCounter:
        """For the next extent, in the order of the index."""

    def alone(self, memory: pa.Buffer, buffer: StoredBuffer) -> int | None:
        """How many records end in a buffer of which nothing else is known; None if that cannot be told.
        Raises `Malformed` if it cannot be decoded."""

    def finish(self) -> None:
        """The pair is finished and sound, and has no more extents. Raises `Malformed` if it must have."""


# ---- what is found --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    place: Place
    what: str
    expected: object = None
    found: object = None

    @property
    def where(self) -> str:
        """The place within the file; empty if the fault is the file's as a whole."""
        return str(self.place).removeprefix(self.place.file).removeprefix(", ")

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.expected is not None:
            text += f": expected {self.expected}, found {self.found}"
        return text


class State(Enum):
    """What a pair is, as a whole."""

    COMPLETE = "complete"
    BEING_WRITTEN = "being written"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of a pair. ``bytes``: its size. ``header``: None if it cannot be believed."""

    path: str
    bytes: int
    header: FileHeader | None


@dataclass(frozen=True, slots=True)
class RegionTable:
    """The entries of all regions that are known, shape (regions, subpartitions), and the regions' kinds."""

    entries: Entries
    kinds: tuple[RegionKind, ...]

    def extents(self, subpartition: int | None = None) -> Iterator[Extent]:
        """Every extent once, empty ones too, in the order of regions; a broadcast region's as subpartition
        0's. With ``subpartition``: those that its consumer reads."""
        for region, kind in enumerate(self.kinds):
            if subpartition is not None:
                yield extent_of(self.entries[region, subpartition], region, subpartition)
                continue
            for number, entry in enumerate(_owned(self.entries[region], kind)):
                yield extent_of(entry, region, number)

    def is_broadcast(self, region: int) -> bool:
        return self.kinds[region] is RegionKind.BROADCAST

    def per_subpartition(self, field: str) -> Int64s:
        """What each consumer gets: a field of the entries summed over regions, shape (subpartitions,)."""
        return np.asarray(self.entries[field].sum(axis=0), np.int64)

    @property
    def totals(self) -> Totals:
        """Of everything in the file, a broadcast region counted once."""
        owned = [_owned(row, kind) for row, kind in zip(self.entries, self.kinds, strict=True)]
        return Totals.of(np.concatenate(owned) if owned else np.empty(0, ENTRY))

    @property
    def end(self) -> int:
        """The offset at which the last region ends."""
        return int((self.entries["offset"] + self.entries["bytes"]).max(initial=HEADER_BYTES))


def _owned(row: Entries, kind: RegionKind) -> Entries:
    """The entries of a region that have an extent of their own."""
    return row[:1] if kind is RegionKind.BROADCAST else row


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over extents. ``bytes``: as stored, headers and padding included."""

    extents: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    buffers: int = 0
    records: int = 0

    @staticmethod
    def of(entries: Entries) -> Totals:
        """Of entries in any shape; empty extents do not count as extents."""
        return Totals(
            int((entries["bytes"] > 0).sum()),
            int(entries["bytes"].sum()),
            int(entries["raw_bytes"].sum()),
            int(entries["buffers"].sum()),
            int(entries["records"].sum()),
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.extents + other.extents,
            self.bytes + other.bytes,
            self.raw_bytes + other.raw_bytes,
            self.buffers + other.buffers,
            self.records + other.records,
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly something is spread over subpartitions. ``largest``: the subpartition that has the most."""

    least: int
    median: float
    most: int
    largest: int
    empty: int

    @staticmethod
    def of(amounts: Int64s) -> Spread:
        """Of the amount that each subpartition has; there is at least one."""
        return Spread(
            int(amounts.min()),
            float(np.median(amounts)),
            int(amounts.max()),
            int(amounts.argmax()),
            int((amounts == 0).sum()),
        )


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is known of a pair without reading its data.

    ``base``: its path without suffixes. ``data``, ``index``: None if missing. ``header``: of either file.
    ``table``: None if no index can be believed. ``writer``, ``schema`` (an Arrow IPC message) stand in the
    tail of an index and so are missing until it is finished. ``unfinished``: a name ends in ``.partial``;
    ``being_written``: and a process holds its lock. ``is_known_version``: if not, nothing else is known.
    ``is_pair``: the two headers agree, as far as both are there.
    """

    base: str
    data: FoundFile | None
    index: FoundFile | None
    header: FileHeader | None
    table: RegionTable | None
    writer: Writer | None
    schema: bytes
    unfinished: bool
    being_written: bool
    is_known_version: bool
    is_pair: bool
    faults: tuple[Fault, ...]

    def state(self, more_faults: tuple[Fault, ...] = ()) -> State:
        """What the pair is, given also the faults that `check_data` found."""
        if self.faults or more_faults:
            return State.DAMAGED
        if self.unfinished:
            return State.BEING_WRITTEN if self.being_written else State.UNFINISHED
        return State.COMPLETE


@dataclass(frozen=True, slots=True)
class FoundBuffer:
    """A verified buffer in the data file. ``bytes``: with header and padding. ``memory`` holds it, and
    ``stored`` says where in that."""

    offset: int
    bytes: int
    raw_bytes: int
    checksum: int
    memory: pa.Buffer
    stored: StoredBuffer


@dataclass(frozen=True, slots=True)
class LooseBuffer:
    """A verified buffer that no index entry covers. ``records``: None if they were not counted."""

    offset: int
    bytes: int
    raw_bytes: int
    data_type: str
    records: int | None


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What reading all the data found. ``stopped_at``: the offset from which on nothing can be told, because
    the region being written breaks off there, or because it is not known where the next buffer begins."""

    faults: tuple[Fault, ...] = ()
    loose: tuple[LooseBuffer, ...] = ()
    stopped_at: int | None = None

    def faulty_extents(self) -> frozenset[tuple[int, int | None]]:
        """(region, subpartition) of damaged extents; the subpartition is None in a broadcast region."""
        places = (fault.place for fault in self.faults)
        return frozenset((at.region, at.subpartition) for at in places if at.region is not None)


# ---- finding pairs --------------------------------------------------------------------------------------


def find_pairs(directory: str, on_error: Callable[[OSError], None] | None = None) -> Iterator[str]:
    """One path of each pair at or below a directory, sorted with numbers as numbers.

    Symbolic links are not followed. Other programs' files with the same suffixes (Spark's own shuffle files
    stand beside ours) are passed over: a file is ours by its name or by its magic. ``on_error`` is told of
    directories that cannot be listed.
    """
    for parent, directories, names in os.walk(directory, onerror=on_error):
        directories.sort(key=_natural)
        found: dict[str, str] = {}
        for name in sorted(names, key=_natural):
            path = os.path.join(parent, name)
            file = PartitionedFile.of(path)
            if file is not None and not os.path.islink(path) and os.path.isfile(path) and _is_ours(path):
                found.setdefault(file.base, path)
        yield from found.values()


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def _is_ours(path: str) -> bool:
    file = PartitionedFile.of(path)
    return (file is not None and file.attempt is not None) or _magic(path) in (DATA_MAGIC, INDEX_MAGIC)


def _magic(path: str) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read(len(DATA_MAGIC))
    except OSError:
        return b""


@dataclass(frozen=True, slots=True)
class _Names:
    """Which files make up the pair. ``data``, ``index``: None if there is none."""

    base: str
    data: str | None
    index: str | None

    @staticmethod
    def of(path: str) -> _Names:
        """The pair that a file belongs to. Where finished and partial names are both there, those of the
        same kind as ``path`` go first. Raises `UsageError` if the file is not ours."""
        path = os.path.abspath(path)
        if not os.path.isfile(path):
            raise UsageError(f"{path} is not a file")
        file = PartitionedFile.of(path)
        if file is None:
            is_index = _magic(path) == INDEX_MAGIC
            names = _Names(path, None if is_index else path, path if is_index else None)
        else:
            names = _Names._of_pair(file, path.endswith(PARTIAL_SUFFIX))
        if not any(_is_ours(each) for each in (names.data, names.index) if each is not None):
            raise UsageError(
                f"{path} is not a file of sortshuffle: neither its name nor its first bytes are those of a"
                " data or index file"
            )
        return names

    @staticmethod
    def _of_pair(file: PartitionedFile, partial_first: bool) -> _Names:
        data = [file.data_path, file.partial_data_path]
        index = [file.index_path, file.partial_index_path]
        if partial_first:
            data, index = data[::-1], index[::-1]
        return _Names(file.base, _first_file(data), _first_file(index))

    def now(self) -> _Names:
        """The names that the pair has by now. Raises `UsageError` if it is gone."""
        if all(path is None or os.path.isfile(path) for path in (self.data, self.index)):
            return self
        names = _Names._of_pair(PartitionedFile(self.base), self.unfinished)
        if names.data is None and names.index is None:
            raise UsageError(f"{self.base} has been removed")
        return names

    @property
    def missing(self) -> tuple[str, str] | None:
        """(kind, path) of the file that is not there."""
        if self.data is None:
            return "data", self.base + DATA_SUFFIX
        if self.index is None:
            return "index", self.base + INDEX_SUFFIX
        return None

    @property
    def unfinished(self) -> bool:
        return any(path is not None and path.endswith(PARTIAL_SUFFIX) for path in (self.data, self.index))


def _first_file(paths: list[str]) -> str | None:
    return next((path for path in paths if os.path.isfile(path)), None)


# ---- what the index and the headers say -----------------------------------------------------------------


def inspect(path: str) -> Inspection:
    """Everything about the pair that a data or index file belongs to, but for the data itself.

    Raises `UsageError` if it is not a file, or not one of ours.
    """
    names = _Names.of(path)
    found = _Inspector(names).inspect()
    names_now = names.now()
    # a task that finishes renames its files under our hands
    return found if names_now == names else _Inspector(names_now).inspect()


class _Inspector:
    """Collects what can be known of one pair, and the faults met on the way."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        # of a pair that is just being made, the index is missing or empty for a moment
        self._is_written = names.unfinished and names.data is not None and is_locked(names.data)
        self._faults: list[Fault] = []
        self._table: RegionTable | None = None
        self._writer: Writer | None = None
        self._schema = b""
        self._data_bytes: int | None = None  # that the index promises
        self._is_known_version = True
        self._is_pair = True

    def inspect(self) -> Inspection:
        names = self._names
        if names.missing is not None and not self._is_written:
            kind, path = names.missing
            self._fault(path, f"the {kind} file is missing")
        index, content = self._index_file()
        data = self._data_file()
        headers = [each.header for each in (index, data) if each is not None and each.header is not None]
        header = headers[0] if headers else None
        if index is not None and header is not None:
            self._read_table(index, content, header)
        if index is not None and data is not None:
            self._compare(index, data)
        return Inspection(
            names.base,
            data,
            index,
            header,
            self._table,
            self._writer,
            self._schema,
            names.unfinished,
            self._is_written,
            # if the other header is sound, a version that is not known is damage
            self._is_known_version or header is not None,
            self._is_pair,
            tuple(self._faults),
        )

    def _index_file(self) -> tuple[FoundFile | None, bytes]:
        path = self._names.index
        if path is None:
            return None, b""
        try:
            with open(path, "rb") as opened:
                content = opened.read()
        except OSError as error:
            self._fault(path, f"the file cannot be read: {error.strerror}")
            return FoundFile(path, 0, None), b""
        return FoundFile(path, len(content), self._header(path, content, INDEX_MAGIC)), content

    def _data_file(self) -> FoundFile | None:
        path = self._names.data
        if path is None:
            return None
        try:
            with open(path, "rb") as opened:
                start = opened.read(HEADER_BYTES)
                size = os.fstat(opened.fileno()).st_size
        except OSError as error:
            self._fault(path, f"the file cannot be read: {error.strerror}")
            return FoundFile(path, 0, None)
        return FoundFile(path, size, self._header(path, start, DATA_MAGIC))

    def _header(self, path: str, content: bytes, magic: bytes) -> FileHeader | None:
        if not content:
            if not self._is_written:
                self._fault(path, "the file is empty")
            return None
        try:
            return FileHeader.unpack(content[:HEADER_BYTES], magic)
        except Malformed as problem:
            self._fault(path, problem.what, problem.offset, problem.expected, problem.found)
            if problem.offset == _VERSION_OFFSET and len(content) >= HEADER_BYTES:
                self._is_known_version = False
            return None

    def _read_table(self, index: FoundFile, content: bytes, header: FileHeader) -> None:
        """``header`` may be the data file's, where the index has lost its own."""
        problem = self._read_finished(index.path, content) if index.header is not None else None
        if self._table is not None:
            return
        if index.path.endswith(PARTIAL_SUFFIX):
            self._table = completed_regions(content, header)
        elif problem is not None:
            self._fault(index.path, problem.what, problem.offset, problem.expected, problem.found)

    def _read_finished(self, path: str, content: bytes) -> Malformed | None:
        try:
            index = unpack_index(content)
        except Malformed as problem:
            return problem
        self._table = RegionTable(index.entries, index.kinds)
        self._writer, self._schema, self._data_bytes = index.writer, index.schema, index.data_bytes
        self._faults += misplaced(self._table, index.header, path)
        if self._table.end != index.data_bytes:
            what = "the extents do not end where the data file should"
            self._fault(path, what, None, index.data_bytes, self._table.end)
        return None

    def _compare(self, index: FoundFile, data: FoundFile) -> None:
        if index.header is not None and data.header is not None and index.header != data.header:
            self._is_pair = False
            expected, found = index.header.file_id.hex(), data.header.file_id.hex()
            what = "the data file is not the one that the index describes"
            self._fault(data.path, what, None, f"id {expected}", f"id {found}")
        if self._data_bytes is not None and data.bytes != self._data_bytes:
            what = "cut short" if data.bytes < self._data_bytes else "longer than its index says"
            expected = f"{self._data_bytes} bytes"
            self._fault(data.path, f"the data file is {what}", None, expected, data.bytes)

    def _fault(
        self,
        path: str,
        what: str,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        self._faults.append(Fault(Place(path, offset=offset), what, expected, found))


def completed_regions(content: bytes, header: FileHeader) -> RegionTable:
    """The regions of a partial index, which has no tail yet.

    The last row may be cut, or be the beginning of a tail: regions count as long as each begins in the data
    file where the one before it ended. Their kinds follow: only in a broadcast region are entries equal.
    """
    rows = max(0, len(content) - HEADER_BYTES) // (ENTRY_BYTES * header.subpartitions)
    if rows == 0:
        return RegionTable(np.empty((0, header.subpartitions), ENTRY), ())
    entries = unpack_entries(content[HEADER_BYTES:], rows, header.subpartitions)
    kinds: list[RegionKind] = []
    position = HEADER_BYTES
    for row in entries:
        kind = _inferred_kind(row)
        owned = _in_write_order(row, kind, header)
        if _misplaced_entries(owned, position).any() or not owned["bytes"].any():
            break
        kinds.append(kind)
        position = _end(owned)
    return RegionTable(entries[: len(kinds)], tuple(kinds))


def misplaced(table: RegionTable, header: FileHeader, path: str) -> list[Fault]:
    """Entries that leave a gap or overlap: the extents must lie one behind the other, from the header to the
    end of the data file."""
    faults: list[Fault] = []
    position = HEADER_BYTES
    for region, kind in enumerate(table.kinds):
        row = table.entries[region]
        if kind is RegionKind.BROADCAST and (row != row[0]).any():
            faults.append(Fault(Place(path, region), "the entries of a broadcast region differ"))
        owned = _in_write_order(row, kind, header)
        for at in np.flatnonzero(_misplaced_entries(owned, position)).tolist():
            number = (at + header.first_subpartition) % header.subpartitions
            place = Place(path, region, None if kind is RegionKind.BROADCAST else number)
            faults.append(Fault(place, f"the extent is out of its place, at offset {owned['offset'][at]}"))
        position = _end(owned)
    return faults


def _inferred_kind(row: Entries) -> RegionKind:
    shared = len(row) > 1 and bool(row[0]["bytes"]) and bool((row == row[0]).all())
    return RegionKind.BROADCAST if shared else RegionKind.UNICAST


def _in_write_order(row: Entries, kind: RegionKind, header: FileHeader) -> Entries:
    return np.roll(_owned(row, kind), -header.first_subpartition)


def _misplaced_entries(owned: Entries, position: int) -> npt.NDArray[np.bool_]:
    """Which of a region's entries, in write order, no writer that is at ``position`` can have made."""
    starts = np.concatenate(([np.uint64(position)], (owned["offset"] + owned["bytes"])[:-1]))
    is_empty = owned["bytes"] == 0
    return np.asarray(
        (owned["offset"] != starts)
        | (owned["bytes"] % ALIGNMENT != 0)
        | (is_empty != (owned["buffers"] == 0))
        | (owned["reserved"] != 0)
    )


def _end(owned: Entries) -> int:
    return (int(owned["offset"][-1]) + int(owned["bytes"][-1])) % 2**64  # as the array's sums are


# ---- what the data is -----------------------------------------------------------------------------------


def check_data(
    inspection: Inspection,
    counter: RecordCounter | None = None,
    advance: Callable[[int], None] = lambda size: None,
) -> DataCheck:
    """Read and verify the whole data file of a pair. ``advance`` is told of bytes as they are done.

    One fault for each damaged extent, at its first bad buffer. Data of another format version is left alone.
    """
    data = inspection.data
    if data is None or data.bytes <= HEADER_BYTES or not inspection.is_known_version:
        return DataCheck()
    try:
        with open_data(data.path) as descriptor:
            return _Checker(inspection, data, descriptor, counter, advance).check()
    except OSError as error:
        return DataCheck((Fault(Place(data.path), f"the file cannot be read: {error.strerror}"),))


@contextmanager
def open_data(path: str) -> Iterator[int]:
    """A descriptor for positioned reads. A partial file is found also if it was finished meanwhile."""
    if not os.path.lexists(path):
        path = path.removesuffix(PARTIAL_SUFFIX)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walk(descriptor: int, start: int, end: int) -> Iterator[FoundBuffer]:
    """The buffers from offset ``start`` to ``end``, each verified before it is given.

    Raises `Malformed` at the first that is wrong, with its offset in the file; OSError if reading fails.
    """
    position, wanted = start, PART_BYTES
    while position < end:
        asked = min(wanted, end - position)
        memory = _read(descriptor, position, asked)
        start_of_part = position
        try:
            for found in _buffers_in(memory, start_of_part):
                yield found
                position = found.offset + found.bytes
            wanted = PART_BYTES
        except CutShort as problem:
            needed = problem.expected  # bytes from `position` on
            if memory.size < asked or position + needed > end:
                raise _moved(problem, start_of_part) from None
            wanted = max(PART_BYTES, needed)
        except Malformed as problem:
            raise _moved(problem, start_of_part) from None


def _buffers_in(memory: pa.Buffer, start: int) -> Iterator[FoundBuffer]:
    """The buffers in ``memory``, which stands at ``start`` in the file. Raises `Malformed`."""
    view = memoryview(memory)
    position = 0
    while position < len(view) or position == 0:
        scan = scan_buffer(view, position)
        stored = scan.buffer
        raw = raw_size(view, stored) if stored.compressed else stored.size
        yield FoundBuffer(start + position, scan.end - position, raw, scan.checksum, memory, stored)
        position = scan.end


def _moved(problem: Malformed, start: int) -> Malformed:
    return type(problem)(problem.what, start + problem.offset, problem.expected, problem.found)


def _read(descriptor: int, offset: int, size: int) -> pa.Buffer:
    """``size`` bytes, fewer at the end of the file. Payloads are aligned in memory as in the file."""
    memory = pa.allocate_buffer(HEADER_BYTES + size)
    view = memoryview(memory).cast("B")[HEADER_BYTES:]
    done = 0
    while done < size:
        # an entry may name any offset, the system takes only those that files can have
        got = os.preadv(descriptor, [view[done:]], offset + done) if offset < 2**62 else 0
        if got == 0:
            break
        done += got
    return memory.slice(HEADER_BYTES, done)


class _Checker:
    """One pass over a data file: the extents that the index knows, then what lies behind them."""

    def __init__(
        self,
        inspection: Inspection,
        data: FoundFile,
        descriptor: int,
        counter: RecordCounter | None,
        advance: Callable[[int], None],
    ) -> None:
        self._inspection = inspection
        self._data = data
        self._descriptor = descriptor
        self._counter = counter
        self._advance = advance
        self._faults: list[Fault] = []
        self._loose: list[LooseBuffer] = []
        self._stopped_at: int | None = None

    def check(self) -> DataCheck:
        table = self._inspection.table if self._inspection.is_pair else None
        if table is not None:
            for extent in table.extents():
                if extent.bytes:
                    self._check_extent(extent, table.is_broadcast(extent.region))
                    self._advance(extent.bytes)
            self._check_end()
        self._walk_loose(HEADER_BYTES if table is None else table.end)
        return DataCheck(tuple(self._faults), tuple(self._loose), self._stopped_at)

    def _check_extent(self, extent: Extent, is_broadcast: bool) -> None:
        place = Place(
            self._data.path, extent.region, None if is_broadcast else extent.subpartition, extent.offset
        )
        if extent.offset >= self._data.bytes:
            self._faults.append(Fault(place, "the extent lies behind the end of the file"))
            return
        checksums: list[int] = []
        raw_bytes = records = 0
        counter = self._counter.of_extent() if self._counter is not None else None
        end = extent.offset + extent.bytes
        try:
            for found in walk(self._descriptor, extent.offset, end):
                checksums.append(found.checksum)
                raw_bytes += found.raw_bytes
                if counter is not None:
                    with _at(found.offset):
                        records += counter.count(found.memory, found.stored)
            if counter is not None:
                with _at(end):
                    counter.finish()
        except Malformed as problem:
            place = replace(place, offset=problem.offset)
            self._faults.append(Fault(place, problem.what, problem.expected, problem.found))
            return
        comparisons = (
            ("buffers", extent.buffers, len(checksums)),
            ("checksum", f"{extent.checksum:#018x}", f"{checksum_of_checksums(checksums):#018x}"),
            ("raw bytes", extent.raw_bytes, raw_bytes),
            ("records", extent.records, extent.records if counter is None else records),
        )
        for what, expected, got in comparisons:
            if expected != got:
                self._faults.append(Fault(place, f"the extent has other {what}", expected, got))
                return

    def _check_end(self) -> None:
        is_whole = not (self._faults or self._inspection.faults or self._inspection.unfinished)
        if self._counter is None or not is_whole:
            return
        try:
            self._counter.finish()
        except Malformed as problem:
            place = Place(self._data.path, offset=self._data.bytes)
            self._faults.append(Fault(place, problem.what, problem.expected, problem.found))

    def _walk_loose(self, start: int) -> None:
        """List the buffers that no entry covers.

        Past a bad one the walk goes on where its size says that the next begins, if a good one does.
        """
        problem = self._list_buffers(start)
        while problem is not None:
            if isinstance(problem, CutShort) and self._inspection.unfinished:
                self._stopped_at = problem.offset  # a task that is stopped leaves its file cut anywhere
                return
            place = Place(self._data.path, offset=problem.offset)
            self._faults.append(Fault(place, problem.what, problem.expected, problem.found))
            behind = self._claimed_end(problem.offset)
            if behind != self._data.bytes and not self._begins_buffer(behind):
                self._stopped_at = problem.offset
                return
            problem = self._list_buffers(behind)

    def _list_buffers(self, start: int) -> Malformed | None:
        """Add the buffers from ``start`` on; gives what ended that before the end of the file."""
        try:
            for found in walk(self._descriptor, start, self._data.bytes):
                kind, records = found.stored.data_type.name, self._records_alone(found)
                self._loose.append(LooseBuffer(found.offset, found.bytes, found.raw_bytes, kind, records))
                self._advance(found.bytes)
        except Malformed as problem:
            return problem
        return None

    def _begins_buffer(self, offset: int) -> bool:
        try:
            return next(walk(self._descriptor, offset, self._data.bytes), None) is not None
        except Malformed:
            return False

    def _claimed_end(self, offset: int) -> int:
        size = os.pread(self._descriptor, _SIZE_FIELD.stop, offset)[_SIZE_FIELD]
        return offset + sealed_size(int.from_bytes(size, "little"))

    def _records_alone(self, found: FoundBuffer) -> int | None:
        if self._counter is None:
            return None
        with _at(found.offset):
            return self._counter.alone(found.memory, found.stored)


@contextmanager
def _at(offset: int) -> Iterator[None]:
    """What a counter finds wrong is wrong there in the file."""
    try:
        yield
    except Malformed as problem:
        raise Malformed(problem.what, offset, problem.expected, problem.found) from None
