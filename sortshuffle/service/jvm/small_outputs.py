"""Small map outputs, kept whole: one read, or none, yields the records of a thousand subpartitions.

A stage of a thousand map tasks and a thousand reduce tasks has a million extents of a few bytes each.
Fetching, verifying and delivering them one at a time costs 17 us of Python for each. So the first request for
a small map output reads and verifies all of it and keeps the decompressed records by subpartition, and each
consumer gets a slice. If this engine wrote the map output, it keeps the records at once: opening a map output
of one row takes 0.2 ms, checking that its files are as written 0.03 ms.

Rules
* Only a map output of one region is small: one with more regions is larger than that.
* Only records that were verified, or that this engine wrote, are kept.
* Records that were kept when they were written are used only if both files are unchanged (`WrittenPair`): a
  map output that has since been deleted, cut short or changed is lost, like any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.format.buffer import (
    BUFFER_HEADER_BYTES,
    ENCRYPTED_DATA,
    TAG_BYTES,
    StoredBuffer,
    raw_bytes_of,
    scan_extent,
)
from sortshuffle.format.checksum import CHECKSUM_BYTES, BytesLike
from sortshuffle.format.extent_run import checksums_of, checksums_of_single
from sortshuffle.format.index import Index, RegionKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.storage.files.extents import Extent, ExtentReader, extent_of

# The most bytes of memory for one kept map output. Extents of larger ones are worth a read each
MOST_BYTES = 256 << 10
BYTES_OF_A_SUBPARTITION = 16  # two numbers
OVERHEAD_BYTES = 2400  # of the objects that hold one small map output, measured with tracemalloc
# From this many extents on, NumPy checks all at once; fewer are faster one at a time
LEAST_AT_ONCE = 8
_WORD = 8
_FIRST_HALF = np.uint64(0xFFFFFFFF)

Int64s = npt.NDArray[np.int64]


class SmallOutputRecords:
    """The records of a whole map output. ``ends``: where each subpartition ends in them; ``stored``: bytes of
    each in the file. ``bytes``: the memory that the object takes. ``subpartitions``: their number."""

    __slots__ = ("_bounds", "_records", "_stored", "bytes", "subpartitions")

    def __init__(self, records: BytesLike, ends: Int64s, stored: Int64s) -> None:
        self._records = memoryview(records)
        self._bounds = np.concatenate(([0], ends)).data
        self._stored = np.concatenate(([0], np.cumsum(stored))).data
        self.subpartitions = len(ends)
        self.bytes = OVERHEAD_BYTES + kept_bytes(len(self._records), len(ends))

    def stored_bytes(self, first: int, end: int) -> int:
        """Return how many bytes the subpartitions ``first..end-1`` take in the file."""
        return int(self._stored[end] - self._stored[first])

    def records(self, first: int, end: int) -> memoryview:
        """Return the records of the subpartitions ``first..end-1``, in that order."""
        return self._records[self._bounds[first] : self._bounds[end]]


def kept_bytes(record_bytes: int, subpartitions: int) -> int:
    """Return the memory that a map output takes while it is kept, without `OVERHEAD_BYTES`."""
    return record_bytes + BYTES_OF_A_SUBPARTITION * subpartitions


def is_small(index: Index) -> bool:
    """Return whether a map output is read whole."""
    if index.regions != 1 or index.kinds[0] is not RegionKind.UNICAST or index.header.first_subpartition:
        return False
    # in floating point, which does not overflow
    raw_bytes = int(index.entries["raw_bytes"].sum(dtype=np.float64))
    return index.data_bytes <= MOST_BYTES and kept_bytes(raw_bytes, index.header.subpartitions) <= MOST_BYTES


def read_small(reader: ExtentReader, index: Index) -> SmallOutputRecords:
    """Read and verify a whole map output. Raises `CorruptDataError`."""
    entries = index.entries[0]
    filled = np.flatnonzero(entries["bytes"])
    decoder = RecordBytesPayload(index.header.codec).decoder(defaultdict(float))
    pieces: list[bytes | memoryview] = []
    if len(filled):
        rows = entries[filled]
        whole = Extent(0, int(filled[0]), int(rows["offset"][0]), int(rows["bytes"].sum()), 0, 0, 0, 0)
        # 1. one read for all extents
        memory = reader.fetch(whole.bytes, whole)
        starts = (rows["offset"] - rows["offset"][0]).astype(np.int64)
        # 2. find the extents that are one sound, uncompressed buffer: nearly all are
        sizes = np.full(len(filled), -1)
        if len(filled) >= LEAST_AT_ONCE:
            sizes = _single_sizes(np.frombuffer(memory, np.uint8), starts, rows, reader.decrypts)
        places = list(zip(starts.tolist(), sizes.tolist(), filled.tolist(), strict=True))
        singles = _payloads(reader, memory, [each for each in places if each[1] >= 0], whole.offset)
        # 3. collect the records in order; scan the other extents one at a time
        for start, size, subpartition in places:
            if size >= 0:
                pieces.append(next(singles))
                continue
            # skipped by step 2, compressed, of several buffers, or damaged: the scan tells
            extent = extent_of(entries[subpartition], 0, subpartition)
            part = memory.slice(start, extent.bytes)
            with reader.damage(extent.offset, extent):
                found_buffers = scan_extent(memoryview(part), extent.checksum, extent.buffers)
                part, buffers = reader.plain(part, list(found_buffers), extent)
                _expect_raw_bytes(part, buffers, extent.raw_bytes)
                pieces.append(b"".join(decoder.decode(part, each) for each in buffers))
    lengths = np.zeros(len(entries), np.int64)
    lengths[filled] = [len(piece) for piece in pieces]
    return SmallOutputRecords(b"".join(pieces), np.cumsum(lengths), entries["bytes"].astype(np.int64))


def _expect_raw_bytes(part: pa.Buffer, buffers: list[StoredBuffer], expected: int) -> None:
    """Raise `Malformed` before any buffer is decompressed: a few bytes may decompress to gigabytes."""
    view = memoryview(part)
    found = sum(raw_bytes_of(view, each) for each in buffers)
    if found != expected:
        raise Malformed("the extent has other raw bytes", 0, expected, found)


def _payloads(
    reader: ExtentReader, memory: pa.Buffer, singles: list[tuple[int, int, int]], offset: int
) -> Iterator[memoryview]:
    """Yield the plain payloads of extents that `_single_sizes` found to be one sound, uncompressed buffer.
    ``singles``: of each its start in ``memory``, the size of its payload, and its subpartition."""
    if reader.decrypts:
        return iter(reader.plain_singles(memory, singles, offset, 0))
    view = memoryview(memory)
    begins = ((start + BUFFER_HEADER_BYTES, size) for start, size, _ in singles)
    return (view[begin : begin + size] for begin, size in begins)


def _single_sizes(
    data: npt.NDArray[np.uint8], starts: Int64s, entries: npt.NDArray[np.void], is_encrypted: bool
) -> Int64s:
    """Return the payload size of each extent that is one sound, uncompressed data buffer; -1 for other
    extents. With encryption the size includes the tag."""
    # the first word of an extent is the header: flags, then the payload's size
    flags, tag = (ENCRYPTED_DATA, TAG_BYTES) if is_encrypted else (0, 0)
    words = np.frombuffer(data, "<u8", len(data) // _WORD)
    ends = starts + entries["bytes"].astype(np.int64)
    headers = words[starts // _WORD]
    sizes = (headers >> np.uint64(32)).astype(np.int64)
    # the checksum is the last word
    digests = checksums_of(data, starts, ends - CHECKSUM_BYTES)
    is_single = (headers & _FIRST_HALF == flags) & (entries["buffers"] == 1)
    is_single &= sizes + BUFFER_HEADER_BYTES + CHECKSUM_BYTES <= ends - starts
    is_single &= sizes - tag == entries["raw_bytes"].astype(np.int64)
    is_single &= digests == words[ends // _WORD - 1]
    is_single &= checksums_of_single(digests) == entries["checksum"]
    return np.where(is_single, sizes, -1)
