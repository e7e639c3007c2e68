"""A buffer as it stands in a file: exact bytes, alignment, no copy of the payload; and that walking an extent
finds every change of a buffer, and every buffer lost, doubled, moved or brought in from elsewhere."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from damaged import refusal, undetected_changes
from engine import buffer_by_hand, xxh3
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.buffer import (
    BUFFER_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    DataType,
    SealedBuffer,
    StoredBuffer,
    raw_size,
    scan_buffer,
    scan_extent,
    seal,
    seal_compressed,
    sealed_size,
)
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.malformed import CutShort, Malformed


def extent_checksum(buffers: list[SealedBuffer]) -> int:
    """What the index entry of an extent of these buffers says."""
    return checksum_of_checksums([buffer.checksum for buffer in buffers])


def bytes_of(*buffers: SealedBuffer) -> bytes:
    return b"".join(bytes(piece) for b in buffers for piece in (b.header, b.payload, b.tail))


def scan(data: bytes, position: int = 0) -> StoredBuffer:
    return scan_buffer(memoryview(data), position).buffer


def sealed(payload: bytes) -> SealedBuffer:
    return seal(payload, len(payload), records=1)


def resealed(buffer: bytes) -> bytes:
    return buffer[:-8] + xxh3(buffer[:-8])


def walk(data: bytes, buffers: list[SealedBuffer]) -> list[bytes]:
    """The payloads of an extent that should hold these buffers."""
    found = scan_extent(memoryview(data), extent_checksum(buffers), len(buffers))
    return [data[b.start : b.start + b.size] for b in found]


def test_the_bytes_are_those_of_the_format_description() -> None:
    body = bytes.fromhex("00 00 00 00 05 00 00 00") + b"hello" + bytes(43)
    assert bytes_of(sealed(b"hello")) == body + xxh3(body)


def test_a_compressed_buffer_has_its_flag_and_its_raw_size_before_the_block() -> None:
    body = bytes.fromhex("00 01 00 00 0d 00 00 00  e8 03 00 00 00 00 00 00") + b"block" + bytes(35)
    buffer = seal_compressed(b"block", 5, records=9, raw_bytes=1000)
    assert bytes_of(buffer) == body + xxh3(body)
    assert (buffer.bytes, buffer.raw_bytes, buffer.records) == (64, 1000, 9)
    stored = scan(bytes_of(buffer))
    assert stored == StoredBuffer(8, 13, DataType.DATA, compressed=True)
    assert raw_size(memoryview(bytes_of(buffer)), stored) == 1000


@pytest.mark.parametrize(
    ("payload", "size"), [(0, 64), (1, 64), (48, 64), (49, 128), (112, 128), (113, 192), (1000, 1024)]
)
def test_a_buffer_takes_header_payload_and_checksum_rounded_up_to_64(payload: int, size: int) -> None:
    assert sealed_size(payload) == size
    buffer = seal(bytes(payload), payload, records=3)
    assert (buffer.bytes, buffer.raw_bytes, buffer.records) == (size, payload, 3)
    assert len(bytes_of(buffer)) == size


@given(st.binary(max_size=300), st.sampled_from(DataType))
def test_any_payload_and_type_is_written_as_described_and_read_back(payload: bytes, kind: DataType) -> None:
    written = bytes_of(seal(payload, len(payload), records=1, data_type=kind))
    assert written == buffer_by_hand(payload, kind)
    found = scan_buffer(memoryview(written), 0)
    assert found.buffer == StoredBuffer(8, len(payload), kind, compressed=False)
    assert (found.end, written[8 : 8 + len(payload)]) == (len(written), payload)
    assert found.checksum == struct.unpack("<Q", written[-8:])[0]


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_every_payload_of_an_extent_starts_on_a_boundary_of_64_bytes_in_the_file(
    payloads: list[bytes],
) -> None:
    buffers = [sealed(payload) for payload in payloads]
    data = bytes_of(*buffers)
    starts = [b.start for b in scan_extent(memoryview(data), extent_checksum(buffers), len(buffers))]
    assert all((HEADER_BYTES + start) % 64 == 0 for start in starts)
    assert walk(data, buffers) == payloads


def test_the_numbers_of_data_types_are_fixed() -> None:
    assert {kind.name: kind.value for kind in DataType} == {
        "DATA": 0,
        "END_OF_DATA": 1,
        "END_OF_PARTITION": 2,
        "SUPERSTEP": 3,
        "BARRIER": 4,
        "USER_EVENT": 5,
    }


def test_a_payload_is_not_copied() -> None:
    payload = pa.py_buffer(bytearray(1 << 20))
    assert seal(payload, payload.size, records=1).payload is payload
    assert seal_compressed(payload, payload.size, records=1, raw_bytes=2 << 20).payload is payload


def test_a_payload_that_with_a_tag_is_above_four_gib_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 4294967279 bytes, not 4294967280"):
        seal(b"", MAX_PAYLOAD_BYTES + 1, records=1)
    with pytest.raises(ValueError, match="at most 4294967279 bytes, not 4294967280"):
        seal_compressed(b"", MAX_PAYLOAD_BYTES - 7, records=1, raw_bytes=1)


def test_a_changed_byte_of_a_buffer_is_refused() -> None:
    good = bytes_of(sealed(bytes(range(60))))
    assert len(good) == 128
    assert undetected_changes(good, scan) == []


def test_every_truncated_buffer_is_cut_short() -> None:
    good = bytes_of(sealed(bytes(range(60))))
    for size in range(len(good)):
        what = "a buffer header is cut short" if size < BUFFER_HEADER_BYTES else "a buffer is cut short"
        found = refusal(scan, good[:size])
        assert isinstance(found, CutShort), f"of {size} bytes"
        assert (found.what, found.offset, found.found) == (what, 0, size)


def test_damage_in_a_later_buffer_is_reported_at_its_offset() -> None:
    data = bytearray(bytes_of(sealed(b"one"), sealed(b"two"), sealed(b"three")))
    data[128 + 8] ^= 1
    with pytest.raises(Malformed, match="a buffer fails its checksum") as caught:
        scan(bytes(data), 128)
    assert caught.value.offset == 128


@pytest.mark.parametrize(("offset", "value"), [(0, 6), (0, 255), (1, 4), (1, 8), (1, 128), (2, 1), (3, 128)])
def test_header_values_that_are_not_known_are_refused_although_the_checksum_is_right(
    offset: int, value: int
) -> None:
    buffer = bytearray(buffer_by_hand(b"hello"))
    buffer[offset] = value
    with pytest.raises(Malformed, match="values this release does not know"):
        scan(resealed(bytes(buffer)))


def test_buffers_before_the_damaged_one_are_given_and_it_is_not() -> None:
    buffers = [sealed(b"one"), sealed(b"two"), sealed(b"three")]
    data = bytearray(bytes_of(*buffers))
    data[64 + 20] ^= 0x80
    given_out = []
    with pytest.raises(Malformed, match="a buffer fails its checksum") as caught:
        for buffer in scan_extent(memoryview(data), extent_checksum(buffers), 3):
            given_out.append(bytes(data[buffer.start : buffer.start + buffer.size]))
    assert given_out == [b"one"]
    assert caught.value.offset == 64


def test_a_lost_buffer_is_found() -> None:
    buffers = [sealed(b"one"), sealed(b"two"), sealed(b"three")]
    for lost in range(3):
        kept = [buffer for position, buffer in enumerate(buffers) if position != lost]
        with pytest.raises(Malformed, match="another number of buffers") as caught:
            walk(bytes_of(*kept), buffers)
        assert (caught.value.expected, caught.value.found) == (3, 2)


@pytest.mark.parametrize(
    ("there", "what"),
    [
        ("one two two", "another number of buffers"),
        ("one one", "the extent fails its checksum"),
        ("two one", "the extent fails its checksum"),
        ("one abc", "the extent fails its checksum"),
    ],
    ids=["one more", "doubled", "exchanged", "of another extent"],
)
def test_buffers_that_are_others_than_the_extents_are_found(there: str, what: str) -> None:
    with pytest.raises(Malformed, match=what):
        walk(bytes_of(*(sealed(each.encode()) for each in there.split())), [sealed(b"one"), sealed(b"two")])


def test_an_extent_without_buffers_holds_nothing() -> None:
    assert walk(b"", []) == []
    with pytest.raises(Malformed, match="another number of buffers"):
        walk(b"", [sealed(b"one")])
