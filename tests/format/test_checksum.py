"""The checksum is XXH3-64 with seed 0, as the reference implementation computes it, however the bytes are
handed over; an extent's checksum is the checksum of its buffers' checksums."""

from __future__ import annotations

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.checksum import CHECKSUM_BYTES, checksum, checksum_of_checksums, checksum_of_parts

# lengths and digests of xxHash's own sanity check (cli/xsum_sanity_check.c, XSUM_XXH3_testdata, seed 0);
# they go through every code path of the algorithm: empty, 1-3, 4-8, 9-16, 17-128, 129-240 and longer
SANITY_CHECK = [
    (0, 0x2D06800538D394C2),
    (1, 0xC44BDFF4074EECDB),
    (6, 0x27B56A84CD2D7325),
    (12, 0xA713DAF0DFBB77E7),
    (24, 0xA3FE70BF9D3510EB),
    (48, 0x397DA259ECBA1F11),
    (80, 0xBCDEFBBB2C47C90A),
    (195, 0xCD94217EE362EC3A),
    (403, 0xCDEB804D65C6DEA4),
    (512, 0x617E49599013CB6B),
    (2048, 0xDD59E2C3A5F038E0),
    (2367, 0xCB37AEB9E5D361ED),
]


def sanity_buffer(length: int) -> bytes:
    """The pseudo-random bytes of that check."""
    generator, made = 2654435761, bytearray()
    for _ in range(length):
        made.append(generator >> 56)
        generator = generator * 11400714785074694797 % 2**64
    return bytes(made)


@pytest.mark.parametrize(("length", "digest"), SANITY_CHECK)
def test_digests_are_those_of_the_reference_implementation(length: int, digest: int) -> None:
    assert checksum(sanity_buffer(length)) == digest


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_parts_give_the_checksum_of_their_concatenation(parts: list[bytes]) -> None:
    assert checksum_of_parts(*parts) == checksum(b"".join(parts))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_every_kind_of_memory_gives_the_same_checksum(kind: type) -> None:
    assert checksum(kind(b"some bytes")) == xxhash.xxh3_64_intdigest(b"some bytes")


def test_an_extents_checksum_is_that_of_its_buffers_checksums_as_little_endian_bytes() -> None:
    stored = bytes.fromhex("010000000000000000000000000000ff")
    assert checksum_of_checksums([1, 0xFF << 56]) == checksum(stored)
    assert checksum_of_checksums([0xFF << 56, 1]) != checksum(stored)


def test_an_extent_without_buffers_has_the_checksum_of_nothing() -> None:
    assert checksum_of_checksums([]) == 0x2D06800538D394C2


def test_a_checksum_takes_eight_bytes() -> None:
    assert CHECKSUM_BYTES == 8
    assert checksum(b"x").bit_length() <= 64
