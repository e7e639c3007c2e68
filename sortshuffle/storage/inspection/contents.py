"""Shows what a pair of files holds, whatever state it is in: finished, unfinished, damaged or half missing.

The engine's reader (`storage.files.reader`) refuses files that are not whole. This module shows people what
such files hold nevertheless. Wrong bytes never raise: they become a `FileFault` with its place. Used by the
command line.

`inspect` reads the index and both headers, not the data: it is cheap, whatever the size of the file.
`storage.inspection.data_check` reads the data.

Rules
* A finished index counts only if all of it verifies. A partial index has no checksum: its regions count as
  long as they follow each other without gaps in the data file, where a writer would put them.
* The index is read before the data, because a live writer appends in the other order.
* Files are opened for reading only. Locks are tried, and released at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from sortshuffle.errors import Place
from sortshuffle.format.buffer import ALIGNMENT
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.index import (
    ENTRY,
    ENTRY_BYTES,
    Entries,
    RegionKind,
    WriterInfo,
    unpack_entries,
    unpack_index,
)
from sortshuffle.format.malformed import Malformed
from sortshuffle.storage.files.extents import Extent, extent_of
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX
from sortshuffle.storage.files.urls import is_url
from sortshuffle.storage.inspection.finding import PairNames
from sortshuffle.storage.inspection.open_files import is_being_written, open_file

_VERSION_OFFSET = 8  # in a file header

Int64s = npt.NDArray[np.int64]


# ---- results -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileFault:
    """One problem in a file, and its place."""

    place: Place
    what: str
    expected: object = None
    found: object = None

    @property
    def where(self) -> str:
        """The place within the file; empty for a fault of the whole file."""
        return str(self.place).removeprefix(self.place.file).removeprefix(", ")

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.expected is not None:
            text += f": expected {self.expected}, found {self.found}"
        return text


class PairState(Enum):
    """The state of a pair as a whole."""

    COMPLETE = "complete"
    BEING_WRITTEN = "being written"
    MAY_BE_WRITTEN = "unfinished, or being written"
    UNFINISHED = "unfinished"
    NOT_ALL_CHECKED = "not all could be checked"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of a pair. ``bytes``: its size. ``header``: None if it is not valid."""

    path: str
    bytes: int
    header: FileHeader | None


@dataclass(frozen=True, slots=True)
class RegionTable:
    """The entries of all known regions, shape (regions, subpartitions), and the regions' kinds."""

    entries: Entries
    kinds: tuple[RegionKind, ...]

    def extents(self, subpartition: int | None = None) -> Iterator[Extent]:
        """Yield every extent once, empty ones too, in the order of regions; a broadcast region's as
        subpartition 0's. With ``subpartition``: the extents that its consumer reads."""
        for region, kind in enumerate(self.kinds):
            if subpartition is not None:
                yield extent_of(self.entries[region, subpartition], region, subpartition)
                continue
            for number, entry in enumerate(_owned(self.entries[region], kind)):
                yield extent_of(entry, region, number)

    def is_broadcast(self, region: int) -> bool:
        return self.kinds[region] is RegionKind.BROADCAST

    def per_subpartition(self, field: str) -> Int64s:
        """Return a field of the entries summed over regions, for each consumer: shape (subpartitions,)."""
        return np.asarray(self.entries[field].sum(axis=0), np.int64)

    @property
    def totals(self) -> Totals:
        """Totals of the file; a broadcast region counts once."""
        owned = [_owned(row, kind) for row, kind in zip(self.entries, self.kinds, strict=True)]
        return Totals.of(np.concatenate(owned) if owned else np.empty(0, ENTRY))

    @property
    def end(self) -> int:
        """The offset at which the last region ends."""
        return int((self.entries["offset"] + self.entries["bytes"]).max(initial=HEADER_BYTES))


def _owned(row: Entries, kind: RegionKind) -> Entries:
    """Return the entries of a region that have separate extents."""
    return row[:1] if kind is RegionKind.BROADCAST else row


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over extents. ``bytes``: as stored, including headers and padding."""

    extents: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    buffers: int = 0
    records: int = 0

    @staticmethod
    def of(entries: Entries) -> Totals:
        """Return the sums over entries in any shape. Empty extents do not count as extents."""
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
    """The distribution of an amount over subpartitions. ``largest``: the subpartition that has the most."""

    least: int
    median: float
    most: int
    largest: int
    empty: int

    @staticmethod
    def of(amounts: Int64s) -> Spread:
        """Return the spread of the amounts of all subpartitions, at least one."""
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
    ``table``: None if no index is valid. ``writer``, ``schema`` (an Arrow IPC message): from the tail of an
    index, so missing until it is finished. ``unfinished``: a name ends in ``.partial``; ``being_written``: in
    addition a process holds its lock; ``may_be_written``: no lock would show it. ``is_known_version``: if
    False, nothing else is known. ``is_pair``: the two headers agree, as far as both exist.
    """

    base: str
    data: FoundFile | None
    index: FoundFile | None
    header: FileHeader | None
    table: RegionTable | None
    writer: WriterInfo | None
    schema: bytes
    unfinished: bool
    being_written: bool
    may_be_written: bool
    is_known_version: bool
    is_pair: bool
    faults: tuple[FileFault, ...]

    def state(self, more_faults: tuple[FileFault, ...] = ()) -> PairState:
        """Return the state of the pair, given also the faults that `check_data` found."""
        if self.faults or more_faults:
            return PairState.DAMAGED
        if self.being_written:
            return PairState.BEING_WRITTEN
        if self.may_be_written:
            return PairState.MAY_BE_WRITTEN
        if self.unfinished:
            return PairState.UNFINISHED
        return PairState.COMPLETE


# ---- reading the index and the headers -----------------------------------------------------------------


def inspect(path: str, keeps_locks: bool = True) -> Inspection:
    """Return all that is known of the pair that a data or index file belongs to, except for the data itself.

    ``keeps_locks``: writers in its directory lock their files, so that a partial file without a lock belongs
    to a dead task. They do not in a directory that other hosts have mounted. A store has no locks.

    Raises `UsageError` if the path is not a file, or not one of ours.
    """
    keeps_locks = keeps_locks and not is_url(path)
    names = PairNames.of(path)
    found = _Inspector(names, keeps_locks).inspect()
    names_now = names.now()
    # a task that finished meanwhile has renamed its files
    return found if names_now == names else _Inspector(names_now, keeps_locks).inspect()


class _Inspector:
    def __init__(self, names: PairNames, keeps_locks: bool) -> None:
        self._names = names
        self._is_written = names.unfinished and names.data is not None and is_being_written(names.data)
        is_unlocked = names.unfinished and names.data is not None and not self._is_written
        self._may_be_written = is_unlocked and not keeps_locks
        # while a writer creates a pair, the index is missing for a moment, and the data file is empty
        self._may_be_new = self._is_written or self._may_be_written
        self._faults: list[FileFault] = []
        self._table: RegionTable | None = None
        self._writer: WriterInfo | None = None
        self._schema = b""
        self._data_bytes: int | None = None  # according to the index
        self._is_known_version = True
        self._is_pair = True

    def inspect(self) -> Inspection:
        names = self._names
        if names.missing is not None and not self._may_be_new:
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
            self._may_be_written,
            # if one header is sound, an unknown version in the other is damage
            self._is_known_version or header is not None,
            self._is_pair,
            tuple(self._faults),
        )

    def _index_file(self) -> tuple[FoundFile | None, bytes]:
        path = self._names.index
        if path is None:
            return None, b""
        try:
            with open_file(path) as file:
                content = file.read(0, file.bytes).to_pybytes()
        except OSError as error:
            self._fault(path, f"the file cannot be read: {error.strerror}")
            return FoundFile(path, 0, None), b""
        return FoundFile(path, len(content), self._header(path, content, INDEX_MAGIC)), content

    def _data_file(self) -> FoundFile | None:
        path = self._names.data
        if path is None:
            return None
        try:
            with open_file(path) as file:
                start = file.read(0, HEADER_BYTES).to_pybytes()
                size = file.bytes
        except OSError as error:
            self._fault(path, f"the file cannot be read: {error.strerror}")
            return FoundFile(path, 0, None)
        return FoundFile(path, size, self._header(path, start, DATA_MAGIC))

    def _header(self, path: str, content: bytes, magic: bytes) -> FileHeader | None:
        if not content:
            # an index stays empty until its first region ends: a task killed earlier leaves it so
            is_begun = magic == INDEX_MAGIC and path.endswith(PARTIAL_SUFFIX)
            if not self._may_be_new and not is_begun:
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
        """Read the entries. ``header`` may be the data file's, if the index's own is damaged."""
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
        self._faults += find_misplaced(self._table, index.header, path)
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
        self._faults.append(FileFault(Place(path, offset=offset), what, expected, found))


def completed_regions(content: bytes, header: FileHeader) -> RegionTable:
    """Return the regions of a partial index, which has no tail yet.

    The last row may be cut, or be the beginning of a tail: regions count as long as each begins in the data
    file where the previous one ended. The kinds follow from the entries, which are all equal only in a
    broadcast region.
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


def find_misplaced(table: RegionTable, header: FileHeader, path: str) -> list[FileFault]:
    """Return faults for entries that leave a gap or overlap: extents must be adjacent, from the header to the
    end of the data file."""
    faults: list[FileFault] = []
    position = HEADER_BYTES
    for region, kind in enumerate(table.kinds):
        row = table.entries[region]
        owned = _in_write_order(row, kind, header)
        for at in np.flatnonzero(_misplaced_entries(owned, position)).tolist():
            number = (at + header.first_subpartition) % header.subpartitions
            place = Place(path, region, None if kind is RegionKind.BROADCAST else number)
            faults.append(
                FileFault(place, f"the extent is out of its place, at offset {owned['offset'][at]}")
            )
        position = _end(owned)
    return faults


def _inferred_kind(row: Entries) -> RegionKind:
    shared = len(row) > 1 and bool(row[0]["bytes"]) and bool((row == row[0]).all())
    return RegionKind.BROADCAST if shared else RegionKind.UNICAST


def _in_write_order(row: Entries, kind: RegionKind, header: FileHeader) -> Entries:
    return np.roll(_owned(row, kind), -header.first_subpartition)


def _misplaced_entries(owned: Entries, position: int) -> npt.NDArray[np.bool_]:
    """Return which of a region's entries, in write order, a writer at ``position`` cannot have made."""
    starts = np.concatenate(([np.uint64(position)], (owned["offset"] + owned["bytes"])[:-1]))
    is_empty = owned["bytes"] == 0
    return np.asarray(
        (owned["offset"] != starts)
        | (owned["bytes"] % ALIGNMENT != 0)
        | (is_empty != (owned["buffers"] == 0))
        | (owned["reserved"] != 0)
    )


def _end(owned: Entries) -> int:
    return (int(owned["offset"][-1]) + int(owned["bytes"][-1])) % 2**64  # wraps as the array's sums do
