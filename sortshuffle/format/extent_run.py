"""Many small extents sealed at once.

A map output with a thousand subpartitions has a thousand extents of some bytes each. Sealing and placing
one by one costs some 13 us of Python for each; here headers, offsets and index entries are NumPy's, and
what is left is a copy and two checksums, together 1 to 2 us.
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
_WORD = 8


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
    checksums: npt.NDArray[np.uint64]
    data: BytesLike

    def __len__(self) -> int:
        return len(self.subpartitions)


def seal_run(payloads: BytesLike, subpartitions: Int64s, sizes: Int64s, records: Int64s) -> ExtentRun:
    """Extents of these payloads, which stand one behind the other in ``payloads``. ``sizes``: bytes of each,
    below 4 GiB; ``records``: in each. All of one shape."""
    lengths = -(-(sizes + BUFFER_HEADER_BYTES + CHECKSUM_BYTES) // ALIGNMENT) * ALIGNMENT
    ends = np.cumsum(lengths)
    starts = ends - lengths
    words = np.zeros(int(ends[-1]) // _WORD, "<u8")
    # the header: data type 0, no flags, and the size in the upper half of the word
    words[starts // _WORD] = sizes.astype(np.uint64) << np.uint64(32)
    data = words.view(np.uint8)
    view, source, position = data.data, memoryview(payloads).cast("B"), 0
    for start, size in zip((starts + BUFFER_HEADER_BYTES).tolist(), sizes.tolist(), strict=True):
        view[start : start + size] = source[position : position + size]
        position += size
    buffers = words[ends // _WORD - 1] = checksums_of(data, starts, ends - CHECKSUM_BYTES)
    return ExtentRun(subpartitions, lengths, sizes, records, checksums_of_single(buffers), data.data)


def checksums_of(data: Any, starts: Int64s, ends: Int64s) -> npt.NDArray[np.uint64]:
    """The checksum of each of these pieces of ``data``. A loop, because there is no vectorized XXH3."""
    view, digest = memoryview(data), xxhash.xxh3_64_intdigest
    pieces = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([digest(view[start:end]) for start, end in pieces], np.uint64)


def checksums_of_single(buffers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The checksum of each extent that has one buffer, by the buffer's."""
    stored = np.ascontiguousarray(buffers, "<u8")
    starts = np.arange(0, _WORD * len(stored), _WORD)
    return checksums_of(stored.view(np.uint8), starts, starts + _WORD)
