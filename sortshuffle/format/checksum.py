"""The checksum of both files: XXH3-64, seed 0.

It was chosen by measurement on one core (4 MiB in cache): XXH3-64 87 GB/s, zlib's CRC-32 7 GB/s. Writing and
reading a byte costs the engine about 0.3 ns; CRC-32 twice would have added another 0.3 ns.

Source: XXH3 by Yann Collet, through the `xxhash` package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import xxhash

BytesLike: TypeAlias = Any
"""Any object with the buffer protocol: bytes, memoryview, a pyarrow Buffer."""

CHECKSUM_BYTES = 8


def checksum(data: BytesLike) -> int:
    """Return the XXH3-64 of ``data`` as an unsigned integer."""
    return int(xxhash.xxh3_64_intdigest(data))


def checksum_of_parts(*parts: BytesLike) -> int:
    """Return the XXH3-64 of ``parts`` joined."""
    return checksum_of_pieces(parts)


def checksum_of_pieces(parts: Iterable[BytesLike]) -> int:
    """Return the same for an iterable, whose parts need not all be in memory."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return int(state.intdigest())


def checksum_of_checksums(checksums: Sequence[int]) -> int:
    """Return an extent's checksum: that of its buffers' checksums, 8 little-endian bytes each, in order."""
    return checksum(struct.pack(f"<{len(checksums)}Q", *checksums))
