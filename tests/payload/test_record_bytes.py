"""Record bytes as payloads: what is sealed comes back, whatever the codec; an uncompressed buffer is a slice
of its extent; what is damaged in spite of its checksums is found."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.buffer import DataType, SealedBuffer, StoredBuffer, scan_extent, seal, seal_compressed
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.record_bytes import LEAST_COMPRESSED, RecordBytesPayload

COMPRESSING = [Codec.LZ4, Codec.ZSTD]


def extent_of(sealed: Sequence[SealedBuffer]) -> tuple[pa.Buffer, list[StoredBuffer]]:
    """As it is read from a file: all bytes, and the verified buffers in them."""
    pieces = [bytes(memoryview(part)) for each in sealed for part in (each.header, each.payload, each.tail)]
    memory = pa.py_buffer(b"".join(pieces))
    digest = checksum_of_checksums([each.checksum for each in sealed])
    return memory, list(scan_extent(memoryview(memory), digest, len(sealed)))


@given(
    st.sampled_from(Codec),
    st.lists(
        st.tuples(
            st.one_of(
                st.binary(max_size=400),
                st.builds(bytes.__mul__, st.binary(min_size=1, max_size=9), st.integers(0, 300)),
            ),
            st.integers(0, 99),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_bytes_come_back(codec: Codec, written: list[tuple[bytes, int]]) -> None:
    payload = RecordBytesPayload(codec)
    sealed = [payload.seal(data, records, defaultdict(float)) for data, records in written]
    memory, stored = extent_of(sealed)
    assert [payload.raw(memory, buffer).to_pybytes() for buffer in stored] == [data for data, _ in written]
    assert [(each.raw_bytes, each.records) for each in sealed] == [(len(data), n) for data, n in written]
    assert sum(each.bytes for each in sealed) == memory.size

    seconds: defaultdict[str, float] = defaultdict(float)
    decoder = payload.decoder(seconds)
    assert [decoder.decode(memory, each).to_pybytes() for each in stored] == [data for data, _ in written]
    assert decoder.records is None
    decoder.finish()
    decoder.close()
    assert list(seconds) == ["decompress"]


@pytest.mark.parametrize("codec", COMPRESSING)
def test_what_compresses_well_is_compressed_from_a_size_on(codec: Codec) -> None:
    payload = RecordBytesPayload(codec)
    seconds: defaultdict[str, float] = defaultdict(float)
    small = payload.seal(b"x" * (LEAST_COMPRESSED - 1), 1, seconds)
    large = payload.seal(b"x" * LEAST_COMPRESSED, 1, seconds)
    noise = payload.seal(random.Random(1).randbytes(LEAST_COMPRESSED), 1, seconds)
    _, stored = extent_of([small, large, noise])
    assert [each.compressed for each in stored] == [False, True, False]
    assert large.bytes < small.bytes
    assert sorted(seconds) == ["checksum", "compress"]
    assert min(seconds.values()) > 0


@pytest.mark.parametrize("codec", Codec)
def test_an_uncompressed_buffer_is_never_copied(codec: Codec) -> None:
    payload = RecordBytesPayload(codec)
    data = bytearray(range(100))
    sealed = payload.seal(data, 1, defaultdict(float))
    assert sealed.payload is data
    memory, (stored,) = extent_of([sealed])
    assert payload.raw(memory, stored).address == memory.address + stored.start
    assert payload.copied(1 << 30) == 0


def test_the_kind_and_the_codec_are_what_the_header_says() -> None:
    assert RecordBytesPayload.kind is PayloadKind.RECORD_BYTES
    assert [RecordBytesPayload(codec).codec for codec in Codec] == list(Codec)


def test_a_higher_level_saves_more() -> None:
    data = b"".join(str(number * number).encode() for number in range(20_000))
    levels = [RecordBytesPayload(Codec.ZSTD, level).seal(data, 1, defaultdict(float)) for level in (1, 19)]
    assert levels[1].bytes < levels[0].bytes
    memory, stored = extent_of(levels)
    assert {RecordBytesPayload(Codec.ZSTD).raw(memory, each).to_pybytes() for each in stored} == {data}


def test_an_event_among_record_bytes_is_damage() -> None:
    memory, (stored,) = extent_of([seal(b"", 0, records=0, data_type=DataType.END_OF_DATA)])
    with pytest.raises(Malformed, match="an event among record bytes"):
        RecordBytesPayload(Codec.NONE).decoder(defaultdict(float)).decode(memory, stored)


def test_a_process_that_has_no_memory_for_a_block_has_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, (stored,) = extent_of([seal_compressed(b"x" * 20, 20, records=1, raw_bytes=100)])
    payload = RecordBytesPayload(Codec.LZ4)

    class Short:
        def decompress(self, block: pa.Buffer, size: int) -> pa.Buffer:
            raise pa.ArrowMemoryError(f"malloc of size {size} failed")

    monkeypatch.setattr(payload._compression, "_codec", Short())
    with pytest.raises(MemoryError, match="malloc of size 100"):
        payload.raw(memory, stored)


@pytest.mark.parametrize(
    ("codec", "block", "raw_bytes", "message"),
    [
        (Codec.NONE, b"x" * 20, 20, "in a file without a codec"),
        (Codec.LZ4, b"\xf0" * 20, 100, "cannot be decompressed"),
        (Codec.ZSTD, b"no zstd" * 3, 21, "cannot be decompressed"),
        (Codec.LZ4, b"x" * 20, 1 << 40, "decompresses to more than it can"),
        (Codec.ZSTD, b"x" * 20, 1 << 60, "decompresses to more than it can"),
    ],
)
def test_blocks_that_are_none_are_damage(codec: Codec, block: bytes, raw_bytes: int, message: str) -> None:
    memory, (stored,) = extent_of([seal_compressed(block, len(block), records=1, raw_bytes=raw_bytes)])
    with pytest.raises(Malformed, match=message):
        RecordBytesPayload(codec).raw(memory, stored)
