"""Extents that are verified piece by piece: the verdict is that of whoever reads them whole."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sortshuffle.errors import CorruptDataError
from sortshuffle.format.buffer import seal
from sortshuffle.format.checksum import checksum, checksum_of_checksums
from sortshuffle.storage.files.extents import Extent, ExtentReader, aligned_memory

PIECE = 32  # bytes; every buffer is larger


class BytesReader(ExtentReader):
    """Of an extent that is here."""

    def __init__(self, data: bytes) -> None:
        super().__init__("/here", None)
        self._data = data

    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        memory, view = aligned_memory(size)
        view[:] = self._data[position : position + size]
        return memory

    def close(self) -> None:
        """Nothing is open."""


def extent_of_one(payload: bytes, header: dict[int, int]) -> tuple[BytesReader, Extent]:
    """An extent of one buffer with these bytes in its header, and with the checksums of what it is now."""
    made = seal(payload, len(payload), records=1)
    data = bytearray(made.header + payload + made.tail)
    for at, value in header.items():
        data[at] = value
    digest = checksum(bytes(data[:-8]))
    data[-8:] = digest.to_bytes(8, "little")
    extent = Extent(0, 0, 0, len(data), len(payload), 1, checksum_of_checksums([digest]), 1)
    return BytesReader(bytes(data)), extent


@pytest.mark.parametrize("payload", [b"short", bytes(1000)])
def test_a_sound_buffer_is_sound_piece_by_piece(payload: bytes) -> None:
    reader, extent = extent_of_one(payload, {})
    reader.verify(extent, PIECE)
    assert [buffer.size for buffer in reader.read_extent(extent).buffers] == [len(payload)]


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ({0: 6}, "values this release does not know"),
        ({1: 8}, "values this release does not know"),
        ({2: 1}, "values this release does not know"),
        ({1: 2}, "no room for its tag"),
    ],
    ids=["data type", "flags", "reserved", "no room for the tag"],
)
def test_a_header_that_no_reader_takes_is_damage_piece_by_piece(header: dict[int, int], what: str) -> None:
    """However right its checksum is. Called sound, it would be read again and again."""
    reader, extent = extent_of_one(b"short", header)
    with pytest.raises(CorruptDataError, match=what):
        reader.read_extent(extent)
    with pytest.raises(CorruptDataError, match=what):
        reader.verify(extent, PIECE)
