"""Seals many small extents at once.

A map output with a thousand subpartitions may have a thousand extents of some bytes each. Sealing and placing
them one by one costs 6 us of Python for each. Here NumPy makes the headers, offsets, index entries and
extents' checksums. Each extent then costs one copy and one checksum, together 0.4 us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sortshuffle.format.buffer import ALIGNMENT, BUFFER_HEADER_BYTES
from sortshuffle.format.checksum import CHECKSUM_BYTES, BytesLike

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
_WORD = 8
_XXH3_SECRET = np.uint64(0xC73AB174C5ECD5A2)  # bytes 8 to 15 of the default secret, and 16 to 23: XOR
_XXH3_PRIME = np.uint64(0x9FB21C651E98DF25)  # PRIME_MX2


@dataclass(frozen=True, slots=True)
class ExtentRun:
    """Extents of one uncompressed data buffer each, contiguous in ``data``.

    The arrays have shape (extents,): ``subpartitions`` in the write order; ``bytes`` of the extents in the
    file; ``raw_bytes`` of the payloads; ``records``; ``checksums`` of the extents.
    """

    subpartitions: Int64s
    bytes: Int64s
    raw_bytes: Int64s
    records: Int64s
    checksums: UInt64s
    data: BytesLike

    def __len__(self) -> int:
        return len(self.subpartitions)


def seal_run(payloads: BytesLike, subpartitions: Int64s, sizes: Int64s, records: Int64s) -> ExtentRun:
    """Return extents of the payloads that lie contiguously in ``payloads``. ``sizes``: bytes of each, at most
    `MAX_PAYLOAD_BYTES`. All arrays have the same shape."""
    # headers, then payloads, then checksums
    lengths, data = allocate_extents(sizes)
    starts = np.cumsum(lengths) - lengths
    view, source, position = data.data, memoryview(payloads).cast("B"), 0
    for start, size in zip((starts + BUFFER_HEADER_BYTES).tolist(), sizes.tolist(), strict=True):
        view[start : start + size] = source[position : position + size]
        position += size
    return ExtentRun(subpartitions, lengths, sizes, records, fill_checksums(data, lengths), data.data)


def allocate_extents(sizes: Int64s, header: int = 0) -> tuple[Int64s, Bytes]:
    """Return the lengths of extents of one buffer each, and memory for the extents that has their headers.
    ``sizes``: of their payloads. ``header``: the lower half of each header; 0 is plain data."""
    lengths = -(-(sizes + BUFFER_HEADER_BYTES + CHECKSUM_BYTES) // ALIGNMENT) * ALIGNMENT
    ends = np.cumsum(lengths)
    words = np.zeros(int(ends[-1]) // _WORD, "<u8")
    words[(ends - lengths) // _WORD] = sizes.astype(np.uint64) << np.uint64(32) | np.uint64(header)
    return lengths, words.view(np.uint8)


def fill_checksums(data: Bytes, lengths: Int64s) -> UInt64s:
    """Write each buffer's checksum to its last 8 bytes. Returns the extents' checksums."""
    ends = np.cumsum(lengths)
    buffers = checksums_of(data, ends - lengths, ends - CHECKSUM_BYTES)
    data.view("<u8")[ends // _WORD - 1] = buffers
    return checksums_of_single(buffers)


def checksums_of(data: Any, starts: Int64s, ends: Int64s) -> UInt64s:
    """Return the checksum of each piece ``data[start:end]``. A loop: there is no vectorized XXH3."""
    view, digest = memoryview(data), xxhash.xxh3_64_intdigest
    pieces = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([digest(view[start:end]) for start, end in pieces], np.uint64)


def checksums_of_single(buffers: UInt64s) -> UInt64s:
    """Return the checksums of extents of one buffer each, from the buffers' checksums.

    This is XXH3-64 of 8 bytes (XXH3_len_4to8 of the xxHash specification, seed 0): 16 us for 1000 extents,
    where a loop took 140.
    """
    # the input, its halves swapped, with the secret
    mixed: UInt64s = _rotate_left(buffers, 32) ^ _XXH3_SECRET
    # XXH3_rrmxmx: two rotations; then multiply, shift and add the length; then multiply and shift again
    mixed ^= _rotate_left(mixed, 49) ^ _rotate_left(mixed, 24)
    mixed *= _XXH3_PRIME
    mixed ^= (mixed >> np.uint64(35)) + np.uint64(_WORD)
    mixed *= _XXH3_PRIME
    mixed ^= mixed >> np.uint64(28)
    return mixed


def _rotate_left(words: UInt64s, bits: int) -> UInt64s:
    rotated: UInt64s = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated
