"""`PartitionedFileWriter`: appends regions to a data file, and their entries to an index file.

    created --start_region--> in a region --finish_region--> between regions --finish--> finished
       a call that fails --> failed; nothing but abandon is left, because what was placed may not be written
       any state --abandon--> abandoned (both files deleted)

Rules
* `finish()` or `abandon()`, nothing between; used as a context manager, an exception abandons.
* A subpartition's buffers in a region come together, in one part or several: coming back to one is a
  `StateError`.
* Subpartitions come in the file's order (`write_order`), so that empty ones can be given the offset where
  they would have been.
* Where the bytes go is the affair of a `NewPair`: files of this host (`storage.local_pair`) or, if the base
  path is a URL, objects of a store (`storage.stored_pair`). Until `finish()` neither has its name.
* A region is one gathered append (several, past `PIECES_AT_ONCE`). No fsync: like Spark's own shuffle
  files these do not outlive the machine's crash, and a damaged one is found by its checksums.

Single-threaded. Owns the new pair. Does not own the buffers: they may be freed when a call returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from sortshuffle.errors import StateError
from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.checksum import BytesLike, checksum_of_checksums
from sortshuffle.format.extent_run import ExtentRun
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.index import ENTRY, Entries, RegionKind, Writer, pack_tail
from sortshuffle.storage.local_pair import IOV_MAX, LocalPair
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.stored_files import is_url, mounted
from sortshuffle.storage.stored_pair import StoredPair

PIECES_AT_ONCE = IOV_MAX  # that are gathered for one append; no more go into one write to a local file
_PIECES_PER_BUFFER = 3


class NewPair(Protocol):
    """The two files of a result partition while they are written. `commit` or `discard` is the last call; a
    `commit` that fails is followed by `discard`."""

    def append_data(self, pieces: Sequence[BytesLike]) -> None: ...

    def append_index(self, data: bytes) -> None: ...

    def commit(self) -> None:
        """Let both be seen under their names, the index last."""

    def discard(self) -> None:
        """Leave nothing of either."""


class _State(Enum):
    BETWEEN_REGIONS = "between regions"
    IN_REGION = "in a region"
    FAILED = "half written after a failed call"
    FINISHED = "finished"
    ABANDONED = "abandoned"


@dataclass(slots=True)
class _OpenExtent:
    """What an index entry says of an extent, while buffers are appended to it. ``offset``: of its begin."""

    offset: int
    bytes: int = 0
    raw_bytes: int = 0
    records: int = 0
    checksums: list[int] = field(default_factory=list)

    def add(self, buffer: SealedBuffer) -> None:
        self.bytes += buffer.bytes
        self.raw_bytes += buffer.raw_bytes
        self.records += buffer.records
        self.checksums.append(buffer.checksum)

    def entry(self) -> tuple[int, ...]:
        """The fields of `ENTRY`."""
        digest = checksum_of_checksums(self.checksums)
        return (self.offset, self.bytes, self.raw_bytes, self.records, digest, len(self.checksums), 0)


class PartitionedFileWriter:
    """Writes one result partition. Raises `OutOfDiskError` when the disk is full, `StateError` when
    called out of order, FileExistsError when this attempt's file is there already (a store is not asked),
    OSError with the URL when a store fails."""

    def __init__(self, file: PartitionedFile, header: FileHeader) -> None:
        self.file = file
        self.header = header
        self.regions = 0
        self.data_bytes = HEADER_BYTES
        self.records = 0
        self.buffers = 0
        self._kinds: list[RegionKind] = []
        self._entries: Entries = np.empty(0, ENTRY)
        self._written = -1  # position in the write order of the last subpartition of this region
        self._extent = _OpenExtent(0)  # its extent, which may go on
        self._is_extent_open = False
        self._index_digest = xxhash.xxh3_64()
        self._index_bytes = 0
        self._state = _State.BETWEEN_REGIONS
        self._pair = _new_pair(file)
        try:
            self._pair.append_data([header.pack(DATA_MAGIC)])
            self._append_index(header.pack(INDEX_MAGIC))
        except BaseException:
            self.abandon()
            raise

    @property
    def write_order(self) -> list[int]:
        """Subpartitions in the order in which their extents must come."""
        first, count = self.header.first_subpartition, self.header.subpartitions
        return [*range(first, count), *range(first)]

    def start_region(self, kind: RegionKind = RegionKind.UNICAST) -> None:
        """Begin a region. In a broadcast region the one extent is written as subpartition 0's."""
        self._expect(_State.BETWEEN_REGIONS)
        self._entries = np.zeros(self.header.subpartitions, ENTRY)
        self._kinds.append(kind)
        self._written = -1
        self._state = _State.IN_REGION

    def write_extents(self, extents: Sequence[tuple[int, list[SealedBuffer]]]) -> None:
        """Append extents of these subpartitions, or parts of them, in the write order."""
        self._expect(_State.IN_REGION)
        with self._or_failed():
            pieces: list[BytesLike] = []
            for subpartition, buffers in extents:
                if not buffers:
                    continue
                self._place(subpartition, buffers)
                for buffer in buffers:
                    pieces += (buffer.header, buffer.payload, buffer.tail)
                if len(pieces) + _PIECES_PER_BUFFER > PIECES_AT_ONCE:
                    self._pair.append_data(pieces)
                    pieces = []
            if pieces:
                self._pair.append_data(pieces)

    def write_run(self, run: ExtentRun) -> None:
        """Append whole extents of a unicast region at once, in the write order, each the only data of its
        subpartition."""
        self._expect(_State.IN_REGION)
        first, count = self.header.first_subpartition, self.header.subpartitions
        with self._or_failed():
            positions = self._positions_of(run)
            self._end_extent()
            ends = self.data_bytes + np.cumsum(run.bytes)
            # between the last extent and the run's last an empty one stands where the one before it ends
            between = np.arange(self._written + 1, int(positions[-1]) + 1)
            before = np.searchsorted(positions, between)  # extents of the run that stand before it
            offsets = np.concatenate(([self.data_bytes], ends))[before]
            self._entries["offset"][(between + first) % count] = offsets
            for name in ("bytes", "raw_bytes", "records"):
                self._entries[name][run.subpartitions] = getattr(run, name)
            self._entries["checksum"][run.subpartitions] = run.checksums
            self._entries["buffers"][run.subpartitions] = 1
            self._written, self._is_extent_open = int(positions[-1]), False
            self.data_bytes = int(ends[-1])
            self.records += int(run.records.sum())
            self.buffers += len(run)
            self._pair.append_data([run.data])

    def finish_region(self) -> None:
        """End the region; one without any bytes leaves no trace."""
        self._expect(_State.IN_REGION)
        self._state = _State.BETWEEN_REGIONS
        if self._written < 0:
            self._kinds.pop()
            return
        self._end_extent()
        if self._kinds[-1] is RegionKind.BROADCAST:
            self._entries[:] = self._entries[0]
        else:
            self._place_empty(self._written + 1, self.header.subpartitions)
        self.regions += 1
        with self._or_failed():
            self._append_index(self._entries.tobytes())

    def finish(self, writer: Writer, schema: bytes = b"") -> PartitionedFile:
        """Complete the index and let both files be seen. Raises `StateError` inside a region."""
        self._expect(_State.BETWEEN_REGIONS)
        with self._or_failed():
            self._append_tail(writer, schema)
            self._pair.commit()
        self._state = _State.FINISHED
        return self.file

    def abandon(self) -> None:
        """Delete both files. Does nothing after `finish()` or a second time."""
        if self._state in (_State.FINISHED, _State.ABANDONED):
            return
        self._state = _State.ABANDONED
        self._pair.discard()

    def __enter__(self) -> PartitionedFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _positions_of(self, run: ExtentRun) -> npt.NDArray[np.int64]:
        """Where a run's subpartitions stand in the write order. Raises `StateError` unless they come there in
        their order, behind what is written."""
        first, count = self.header.first_subpartition, self.header.subpartitions
        numbers = run.subpartitions
        if len(numbers) and int(numbers.min()) >= 0 and int(numbers.max()) < count:
            positions = (numbers - first) % count
            is_ordered = bool((np.diff(positions) > 0).all()) and int(positions[0]) > self._written
            if is_ordered and self._kinds[-1] is RegionKind.UNICAST:
                return positions
        raise StateError(f"a run of extents comes out of order in region {len(self._kinds) - 1}")

    def _place(self, subpartition: int, buffers: list[SealedBuffer]) -> None:
        """Count buffers that are about to be appended in the entry of their extent."""
        first, count = self.header.first_subpartition, self.header.subpartitions
        position = (subpartition - first) % count
        if not 0 <= subpartition < count or position != self._written or not self._is_extent_open:
            self._begin_extent(subpartition, position)
        for buffer in buffers:
            self._extent.add(buffer)
            self.data_bytes += buffer.bytes

    def _begin_extent(self, subpartition: int, position: int) -> None:
        if self._kinds[-1] is RegionKind.BROADCAST and subpartition != 0:
            raise StateError(
                f"subpartition {subpartition} in broadcast region {len(self._kinds) - 1}: its one extent is"
                " written as subpartition 0's"
            )
        if not 0 <= subpartition < self.header.subpartitions or position <= self._written:
            raise StateError(
                f"subpartition {subpartition} comes out of order in region {len(self._kinds) - 1}: its data"
                " must come together, in the write order"
            )
        self._end_extent()
        self._place_empty(self._written + 1, position)
        self._written, self._is_extent_open = position, True
        self._extent = _OpenExtent(self.data_bytes)

    def _end_extent(self) -> None:
        """Fill in the entry of the extent that was begun last."""
        if self._is_extent_open:
            self._is_extent_open = False
            subpartition = (self._written + self.header.first_subpartition) % self.header.subpartitions
            self._entries[subpartition] = self._extent.entry()
            self.records += self._extent.records
            self.buffers += len(self._extent.checksums)

    def _place_empty(self, start: int, end: int) -> None:
        """Give the empty subpartitions at write positions ``start..end-1`` the offset reached so far."""
        empty = (np.arange(start, end) + self.header.first_subpartition) % self.header.subpartitions
        self._entries["offset"][empty] = self.data_bytes

    def _append_tail(self, writer: Writer, schema: bytes) -> None:
        body, footer = pack_tail(
            head_and_entries=self._index_bytes,
            subpartitions=self.header.subpartitions,
            kinds=tuple(self._kinds),
            schema=schema,
            writer=writer.pack(),
            data_bytes=self.data_bytes,
            records=self.records,
            buffers=self.buffers,
        )
        self._append_index(body)
        self._append_index(footer)
        digest = int(self._index_digest.intdigest())
        self._append_index(digest.to_bytes(8, "little") + INDEX_MAGIC)

    def _append_index(self, data: bytes) -> None:
        self._index_digest.update(data)
        self._index_bytes += len(data)
        self._pair.append_index(data)

    def _expect(self, state: _State) -> None:
        if self._state is not state:
            raise StateError(f"{self.file.base} is {self._state.value}, which does not allow this call")

    @contextmanager
    def _or_failed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._state = _State.FAILED
            raise


def _new_pair(file: PartitionedFile) -> NewPair:
    if not is_url(file.base):
        return LocalPair(file)
    local = mounted(file)
    return StoredPair(file) if local is None else LocalPair(local, mounted=True)
