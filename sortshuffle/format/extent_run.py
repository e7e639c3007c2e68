"""Many small extents sealed at once.

A map output with a thousand subpartitions has a thousand extents of some bytes each. Sealing and placing
one by one costs some 6 us of Python for each; here headers, offsets, index entries and the extents'
checksums are NumPy's. What is left is a copy and a checksum, together 0.4 us.
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
    """Extents of one uncompressed data buffer each, one behind the other in ``data``.

    ``subpartitions``: of each, in the write order. ``bytes``: in the file; ``raw_bytes``: of its payload;
    ``records``: in it; ``checksums``: of the extent. All of shape (extents,).
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
    """Extents of these payloads, which stand one behind the other in ``payloads``. ``sizes``: bytes of each,
    at most `MAX_PAYLOAD_BYTES`; ``records``: in each. All of one shape."""
    lengths, data = laid_out(sizes)
    starts = np.cumsum(lengths) - lengths
    view, source, position = data.data, memoryview(payloads).cast("B"), 0
    for start, size in zip((starts + BUFFER_HEADER_BYTES).tolist(), sizes.tolist(), strict=True):
        view[start : start + size] = source[position : position + size]
        position += size
    return ExtentRun(subpartitions, lengths, sizes, records, checksummed(data, lengths), data.data)


def laid_out(sizes: Int64s, header: int = 0) -> tuple[Int64s, Bytes]:
    """How long extents of one buffer each are, and memory for them with the buffers' headers. ``sizes``: of
    their payloads. ``header``: the lower half of each header; 0 is that of plain data."""
    lengths = -(-(sizes + BUFFER_HEADER_BYTES + CHECKSUM_BYTES) // ALIGNMENT) * ALIGNMENT
    ends = np.cumsum(lengths)
    words = np.zeros(int(ends[-1]) // _WORD, "<u8")
    words[(ends - lengths) // _WORD] = sizes.astype(np.uint64) << np.uint64(32) | np.uint64(header)
    return lengths, words.view(np.uint8)


def checksummed(data: Bytes, lengths: Int64s) -> UInt64s:
    """Put the checksum of each buffer behind it. Those of the extents."""
    ends = np.cumsum(lengths)
    buffers = checksums_of(data, ends - lengths, ends - CHECKSUM_BYTES)
    data.view("<u8")[ends // _WORD - 1] = buffers
    return checksums_of_single(buffers)


def checksums_of(data: Any, starts: Int64s, ends: Int64s) -> UInt64s:
    """The checksum of each of these pieces of ``data``. A loop, because there is no vectorized XXH3."""
    view, digest = memoryview(data), xxhash.xxh3_64_intdigest
    pieces = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([digest(view[start:end]) for start, end in pieces], np.uint64)


def checksums_of_single(buffers: UInt64s) -> UInt64s:
    """The checksum of each extent that has one buffer, by the buffer's.

    XXH3-64 of 8 bytes is some operations on one word (XXH3_len_4to8 of the xxHash specification, seed 0):
    16 us for 1000 extents, where a loop took 140.
    """
    mixed: UInt64s = _rotated(buffers, 32) ^ _XXH3_SECRET
    mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
    mixed *= _XXH3_PRIME
    mixed ^= (mixed >> np.uint64(35)) + np.uint64(_WORD)
    mixed *= _XXH3_PRIME
    mixed ^= mixed >> np.uint64(28)
    return mixed


def _rotated(words: UInt64s, bits: int) -> UInt64s:
    """Rotated to the left."""
    rotated: UInt64s = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated
