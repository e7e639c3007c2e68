"""Extents as a reader needs them, and the reader that verifies them, wherever their bytes come from.

    ExtentReader            what is handed out was verified; where it lies is in every error
      PartitionedFileReader   a data file that this process can open        (`storage.reader`)
      StoredFileReader        ranges of an object, by fsspec                (`storage.stored_reader`)
      RemoteReader            the shuffle service of another host           (`service.remote_reader`)

A reader of bytes says only how they are fetched (`ExtentReader.fetch`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.format.buffer import ALIGNMENT, StoredBuffer, scan_buffer, scan_extent
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.index import Index
from sortshuffle.format.malformed import CutShort, Malformed

Self = TypeVar("Self", bound="ExtentReader")


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one extent lies and what it must be: an index entry with its region and subpartition."""

    region: int
    subpartition: int
    offset: int
    bytes: int
    raw_bytes: int
    records: int
    checksum: int
    buffers: int


@dataclass(frozen=True, slots=True)
class ExtentPart:
    """Verified buffers of an extent, ``bytes`` together: ``memory`` holds them, ``buffers`` say where."""

    memory: pa.Buffer
    buffers: list[StoredBuffer]
    bytes: int


class ExtentReader(ABC):
    """Reads the extents of one result partition.

    ``path``: of its data file, ``writer``: who wrote it; for errors. The caller closes the reader. Memory
    that is handed out belongs to the pyarrow buffers.
    """

    def __init__(self, path: str, writer: str | None) -> None:
        self.path = path
        self._writer = writer

    @abstractmethod
    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        """``size`` bytes of the extent from ``position`` on, in `aligned_memory`, not verified.

        Positions ascend, but for one thing: what follows the last whole buffer of a part is asked for again.
        Raises `DataLossError` with the place if they cannot be had.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. May be called again."""

    def give_up(self) -> None:  # noqa: B027  # most readers wait for nobody
        """Whoever waits for bytes in another thread waits no longer, and gets an error. For readers that wait
        for somebody; it is closed all the same."""

    def read_extent(self, extent: Extent) -> ExtentPart:
        """The whole extent in one go, all of it verified."""
        return self.verified(self.read_unverified(extent), extent)

    def read_unverified(self, extent: Extent) -> pa.Buffer:
        """The bytes of the extent. They must go through `verified` before anyone else sees them."""
        return self.fetch(extent.bytes, extent)

    def verified(self, memory: pa.Buffer, extent: Extent) -> ExtentPart:
        """What `read_unverified` returned, every checksum verified."""
        with self.damage(extent.offset, extent):
            buffers = list(scan_extent(memoryview(memory), extent.checksum, extent.buffers))
        return ExtentPart(memory, buffers, extent.bytes)

    def read_parts(self, extent: Extent, part_bytes: int) -> Iterator[ExtentPart]:
        """The extent in parts of at most ``part_bytes``, whole buffers each, verified buffer by buffer; a
        larger buffer is a part of its own. That none is lost, doubled or foreign is verified before the last
        part is handed out."""
        position = 0
        checksums: list[int] = []
        wanted = part_bytes = max(part_bytes, ALIGNMENT)
        while position < extent.bytes:
            left = extent.bytes - position
            memory = self.fetch(min(wanted, left), extent, position)
            with self.damage(extent.offset + position, extent):
                buffers, end, needed = _whole_buffers(memory, left, checksums)
            if needed:
                wanted = needed
                continue
            if end == left:
                with self.damage(extent.offset, extent):
                    _check_extent(extent, checksums)
            yield ExtentPart(memory, buffers, end)
            position += end
            wanted = part_bytes

    @contextmanager
    def damage(self, offset: int, extent: Extent | None = None) -> Iterator[None]:
        """Turn `Malformed` bytes read from ``offset`` on into a `CorruptDataError` with its place."""
        try:
            yield
        except Malformed as problem:
            raise self.damaged(problem, offset, extent) from None

    def damaged(self, problem: Malformed, offset: int, extent: Extent | None = None) -> CorruptDataError:
        """The error for `Malformed` bytes that were read from ``offset`` on."""
        place = self.place(offset + problem.offset, extent)
        return CorruptDataError(place, problem.what, expected=problem.expected, found=problem.found)

    def place(self, offset: int | None = None, extent: Extent | None = None) -> Place:
        """Where that is in the data file, for errors."""
        return Place(
            self.path,
            extent.region if extent else None,
            extent.subpartition if extent else None,
            offset,
            self._writer,
        )

    def cut_short(self, extent: Extent, found: int) -> CorruptDataError:
        """The error for an extent of which there are only ``found`` bytes."""
        place = self.place(extent.offset, extent)
        expected = f"{extent.bytes} bytes"
        return CorruptDataError(place, "the data file is cut short", expected=expected, found=found)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def aligned_memory(size: int) -> tuple[pa.Buffer, memoryview]:
    """Memory for bytes of an extent that begin with a buffer, and a view to fill it through: shifted, so that
    payloads stand on 64-byte boundaries in memory as they do in the file."""
    memory = pa.allocate_buffer(HEADER_BYTES + size)
    return memory.slice(HEADER_BYTES), memoryview(memory).cast("B")[HEADER_BYTES:]


def extents_of(index: Index, subpartition: int) -> list[Extent]:
    """The non-empty extents of a subpartition, in region order."""
    entries = index.entries[:, subpartition]
    return [extent_of(entry, region, subpartition) for region, entry in enumerate(entries) if entry["bytes"]]


def extent_of(entry: object, region: int, subpartition: int) -> Extent:
    """An index entry (a scalar of dtype `ENTRY`) as an `Extent`."""
    offset, size, raw, records, digest, buffers, _ = entry.item()  # type: ignore[attr-defined]
    return Extent(region, subpartition, offset, size, raw, records, digest, buffers)


def _whole_buffers(memory: pa.Buffer, left: int, checksums: list[int]) -> tuple[list[StoredBuffer], int, int]:
    """The buffers that lie whole in ``memory``, where the last of them ends, and if there is none how many
    bytes the first one takes. ``left``: bytes of the extent from here on; a buffer must end within them."""
    view = memoryview(memory)
    position = 0
    buffers: list[StoredBuffer] = []
    while position < len(view):
        try:
            scan = scan_buffer(view, position)
        except CutShort as problem:
            if position + problem.expected > left:
                raise
            return buffers, position, 0 if buffers else problem.expected
        checksums.append(scan.checksum)
        buffers.append(scan.buffer)
        position = scan.end
    return buffers, position, 0


def _check_extent(extent: Extent, checksums: list[int]) -> None:
    found = (len(checksums), checksum_of_checksums(checksums))
    if found != (extent.buffers, extent.checksum):
        raise Malformed("the extent fails its checksum", 0, f"{extent.checksum:#018x}", f"{found[1]:#018x}")
