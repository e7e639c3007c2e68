"""The 56 bytes that open both files: their exact layout, and that whatever is wrong with them is refused by
name before anything else of the file is believed."""

from __future__ import annotations

import struct

import pytest
from damaged import refusal, undetected_changes
from engine import ID, header_by_hand, xxh3
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, Codec, FileHeader, PayloadKind
from sortshuffle.format.malformed import Malformed

HEADER = FileHeader(ID, 7, 3, Codec.ZSTD, PayloadKind.PICKLE)
GOOD = HEADER.pack(DATA_MAGIC)

headers = st.integers(1, 2**32 - 1).flatmap(
    lambda subpartitions: st.builds(
        FileHeader,
        st.binary(min_size=16, max_size=16),
        st.just(subpartitions),
        st.integers(0, subpartitions - 1),
        st.sampled_from(Codec),
        st.sampled_from(PayloadKind),
    )
)


def resealed(header: bytes) -> bytes:
    """The header with the checksum that its bytes call for."""
    return header[:48] + xxh3(header[:48])


def with_bytes(offset: int, value: bytes) -> bytes:
    return resealed(GOOD[:offset] + value + GOOD[offset + len(value) :])


def test_the_bytes_are_those_of_the_format_description() -> None:
    fields = bytes.fromhex(
        "89 53 53 44 0d 0a 1a 0a"  # magic
        "01 00  38 00  02  02  00 00"  # version, header size, codec, payload kind, reserved
        "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"  # id
        "07 00 00 00  03 00 00 00"  # subpartitions, first subpartition
        "00 00 00 00 00 00 00 00"  # reserved
    )
    assert fields + xxh3(fields) == GOOD
    assert len(GOOD) == HEADER_BYTES == 56


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("kind", PayloadKind)
def test_codecs_and_payload_kinds_have_their_documented_numbers(codec: Codec, kind: PayloadKind) -> None:
    numbers = {"NONE": 0, "LZ4": 1, "ZSTD": 2, "ARROW": 1, "PICKLE": 2, "FRAMES": 3, "RECORD_BYTES": 4}
    by_hand = header_by_hand(b"\x89SSI\r\n\x1a\n", ID, 1, 0, numbers[codec.name], numbers[kind.name])
    assert FileHeader(ID, 1, 0, codec, kind).pack(INDEX_MAGIC) == by_hand


@given(headers, st.sampled_from([DATA_MAGIC, INDEX_MAGIC]))
def test_a_header_is_read_back_as_it_was(header: FileHeader, magic: bytes) -> None:
    assert FileHeader.unpack(header.pack(magic), magic) == header


@given(headers, st.binary(max_size=100))
def test_what_follows_the_header_does_not_matter(header: FileHeader, rest: bytes) -> None:
    assert FileHeader.unpack(header.pack(DATA_MAGIC) + rest, DATA_MAGIC) == header


def test_every_truncated_header_is_refused() -> None:
    for size in range(HEADER_BYTES):
        found = refusal(unpack, GOOD[:size])
        assert found is not None, f"of {size} bytes"
        assert "cut short" in str(found)
        assert (found.offset, found.expected, found.found) == (size, 56, size)


def test_a_changed_byte_is_refused() -> None:
    assert undetected_changes(GOOD, unpack) == []


def unpack(header: bytes) -> FileHeader:
    return FileHeader.unpack(header, DATA_MAGIC)


def test_a_data_file_is_not_taken_for_an_index_nor_the_reverse() -> None:
    for written, wanted in ((DATA_MAGIC, INDEX_MAGIC), (INDEX_MAGIC, DATA_MAGIC)):
        with pytest.raises(Malformed, match="the magic is wrong") as caught:
            FileHeader.unpack(HEADER.pack(written), wanted)
        assert (caught.value.offset, caught.value.expected, caught.value.found) == (0, wanted, written)


@pytest.mark.parametrize(("old", "new"), [(b"\r\n", b"\n"), (b"\n", b"\r\n"), (b"\x1a", b"")])
def test_a_copy_in_text_mode_is_found_by_the_magic(old: bytes, new: bytes) -> None:
    with pytest.raises(Malformed, match="the magic is wrong"):
        FileHeader.unpack(GOOD.replace(old, new) + bytes(8), DATA_MAGIC)


def test_another_version_is_refused_by_number() -> None:
    with pytest.raises(Malformed, match="version") as caught:
        FileHeader.unpack(with_bytes(8, b"\x03\x00"), DATA_MAGIC)
    assert (caught.value.offset, caught.value.expected, caught.value.found) == (8, "1 or 2", 3)


def test_another_version_is_refused_by_number_even_if_its_header_is_checked_otherwise() -> None:
    later = GOOD[:8] + struct.pack("<HH", 513, 72) + bytes(60)
    with pytest.raises(Malformed, match="version") as caught:
        FileHeader.unpack(later, DATA_MAGIC)
    assert (caught.value.expected, caught.value.found) == ("1 or 2", 513)


@pytest.mark.parametrize("offset", [10, 11, 14, 15, *range(40, 48)])
def test_header_size_and_reserved_bytes_are_refused_if_they_are_not_as_written(offset: int) -> None:
    with pytest.raises(Malformed, match="reserved bytes"):
        FileHeader.unpack(with_bytes(offset, b"\x01"), DATA_MAGIC)


@pytest.mark.parametrize(("offset", "value"), [(12, 3), (12, 255), (13, 0), (13, 5), (13, 255)])
def test_a_codec_or_payload_kind_that_is_not_known_is_refused(offset: int, value: int) -> None:
    with pytest.raises(Malformed, match="codec or payload kind is not known"):
        FileHeader.unpack(with_bytes(offset, bytes([value])), DATA_MAGIC)


@pytest.mark.parametrize(("subpartitions", "first"), [(7, 7), (7, 8), (0, 0), (1, 2**32 - 1)])
def test_a_first_subpartition_that_does_not_exist_is_refused(subpartitions: int, first: int) -> None:
    with pytest.raises(Malformed, match="first subpartition is out of range") as caught:
        FileHeader.unpack(with_bytes(32, struct.pack("<II", subpartitions, first)), DATA_MAGIC)
    assert (caught.value.offset, caught.value.found) == (36, first)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_id_of_another_length_is_never_written(size: int) -> None:
    with pytest.raises(ValueError, match=f"16 bytes, not {size}"):
        FileHeader(bytes(size), 1, 0, Codec.NONE, PayloadKind.FRAMES).pack(DATA_MAGIC)
