"""Opaque frames and pickled chunks: compressed where it saves and never otherwise; decoded buffer by buffer
into the frames that end there, or an event; counted without unpickling."""

from __future__ import annotations

import pickle
import struct
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import arrow_memory
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.buffer import DataType, SealedBuffer, StoredBuffer, scan_buffer, seal, seal_compressed
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.events import END_OF_DATA, Barrier, seal_event
from sortshuffle.payload.frames import FrameDecoder, FrameDecoding, FramesPayload
from sortshuffle.payload.pickled import (
    Pairs,
    PickledPayload,
    count_objects,
    pack_chunk,
    pack_content,
    unpack_chunk,
)
from sortshuffle.payload.spanning import pack_length

CODECS = [Codec.LZ4, Codec.ZSTD]
NOISE = np.random.default_rng(5).bytes(4000)
Seconds = defaultdict[str, float]


def stored(sealed: SealedBuffer) -> tuple[pa.Buffer, StoredBuffer]:
    """A buffer as a reader finds it."""
    memory = pa.py_buffer(sealed.header + bytes(sealed.payload) + sealed.tail)
    return memory, scan_buffer(memoryview(memory), 0).buffer


def decoder(payload: FramesPayload | None = None) -> FrameDecoder:
    return FrameDecoding(payload or FramesPayload(Codec.NONE), no_spill).decoder(Seconds(float))


def no_spill() -> Any:
    raise AssertionError("no frame is that large")


def data(stream: bytes) -> SealedBuffer:
    return seal(stream, len(stream), records=0)


def decoded(decoder: FrameDecoder, *buffers: SealedBuffer) -> list[Any]:
    found: list[Any] = []
    for each in buffers:
        item = decoder.decode(*stored(each))
        found.append([bytes(frame) for frame in item] if isinstance(item, list) else item)
    return found


# Compression


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "slice"])
def test_what_is_compressed_comes_back(codec: Codec, whole: bool) -> None:
    payload = FramesPayload(codec)
    seconds = Seconds(float)
    memory = memoryview(b"abcdefgh" * 1000)
    part = memory if whole else memory[3:5000]
    sealed = payload.compress(part, 7, seconds)
    assert sealed is not None
    assert sealed.bytes < len(part) // 10
    assert (sealed.records, sealed.raw_bytes) == (7, len(part))
    buffer = stored(sealed)
    assert buffer[1].compressed
    assert payload.decompress(*buffer) == part
    assert set(seconds) == {"compress", "checksum"}


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_that_would_not_save_a_twentieth_is_compressed(codec: Codec) -> None:
    payload = FramesPayload(codec)
    for size in (0, 1, 100, len(NOISE)):
        assert payload.compress(memoryview(NOISE)[:size], 1, Seconds(float)) is None
    assert payload.compress(memoryview(NOISE + bytes(100)), 1, Seconds(float)) is None
    assert payload.compress(memoryview(NOISE + bytes(400)), 1, Seconds(float)) is not None


def test_without_a_codec_nothing_is_compressed_or_decompressed() -> None:
    payload = FramesPayload(Codec.NONE)
    assert payload.compress(memoryview(bytes(1000)), 1, Seconds(float)) is None
    sealed = FramesPayload(Codec.LZ4).compress(memoryview(bytes(1000)), 1, Seconds(float))
    assert sealed is not None
    with pytest.raises(Malformed, match="without a codec"):
        payload.decompress(*stored(sealed))


def test_an_uncompressed_payload_is_a_view_of_what_was_read() -> None:
    memory, buffer = stored(data(b"as it is"))
    view = FramesPayload(Codec.LZ4).decompress(memory, buffer)
    assert (bytes(view), view.readonly) == (b"as it is", True)
    assert np.frombuffer(view, np.uint8).ctypes.data == memory.address + buffer.start


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_is_no_block_is_malformed(codec: Codec) -> None:
    wrong = seal_compressed(NOISE[:100], 100, records=1, raw_bytes=5000)
    with pytest.raises(Malformed, match="cannot be decompressed"):
        FramesPayload(codec).decompress(*stored(wrong))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 5, 1000, 1 << 20, 1 << 26])
def test_what_compresses_best_is_within_what_a_block_is_believed(codec: Codec, size: int) -> None:
    payload = FramesPayload(codec)
    zeros = memoryview(bytes(size))
    sealed = payload.compress(zeros, 1, Seconds(float))
    if sealed is not None:
        assert payload.decompress(*stored(sealed)) == zeros
    assert (sealed is None) == (size < 20)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [10**10, 2**62, 2**64 - 1])
def test_a_size_that_a_block_cannot_have_is_not_allocated(codec: Codec, size: int) -> None:
    block = pa.compress(bytes(1000), {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd"}[codec])
    wrong = stored(seal_compressed(block, block.size, records=1, raw_bytes=size))
    with arrow_memory() as pool:
        with pytest.raises(Malformed, match="more than it can") as caught:
            FramesPayload(codec).decompress(*wrong)
        assert pool.max_memory() == 0
    assert caught.value.found == size


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [999, 0])
def test_a_size_below_what_a_block_has_is_malformed(codec: Codec, size: int) -> None:
    block = pa.compress(bytes(1000), {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd"}[codec])
    with pytest.raises(Malformed, match="cannot be decompressed"):
        FramesPayload(codec).decompress(
            *stored(seal_compressed(block, block.size, records=1, raw_bytes=size))
        )


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_is_kept_where_the_caller_says(codec: Codec) -> None:
    payload = FramesPayload(codec)
    memory = bytearray(b"-" * 200)

    def keep(block: pa.Buffer) -> memoryview:
        kept = memoryview(memory)[10 : 10 + block.size]
        kept[:] = memoryview(block).cast("B")
        return kept

    sealed = payload.compress(memoryview(bytes(1000)), 1, Seconds(float), keep)
    assert sealed is not None
    assert payload.decompress(*stored(sealed)) == bytes(1000)
    memory[:] = bytes(200)
    assert bytes(sealed.payload) == bytes(len(sealed.payload)), "it is not a copy"


def test_a_compressed_buffer_too_short_for_its_size_is_malformed() -> None:
    memory, buffer = stored(data(b"1234567"))
    short = StoredBuffer(buffer.start, buffer.size, DataType.DATA, True)
    with pytest.raises(Malformed, match="has no size"):
        FramesPayload(Codec.LZ4).decompress(memory, short)


# Decoding


def test_each_buffer_gives_the_frames_that_end_in_it() -> None:
    stream = b"".join(pack_length(len(frame)) + frame for frame in (b"one", b"", b"three", b"four"))
    decoding = decoder()
    parts = [stream[:5], stream[5:12], stream[12:20], stream[20:]]
    assert decoded(decoding, *map(data, parts)) == [[], [b"one", b""], [b"three"], [b"four"]]
    decoding.finish()
    assert decoding.records == 4


def test_events_come_in_their_place() -> None:
    one, two = pack_length(3) + b"one", pack_length(3) + b"two"
    barrier = Barrier(1, 2, b"three")
    decoding = decoder()
    found = decoded(decoding, data(one), seal_event(barrier), data(two), seal_event(END_OF_DATA))
    decoding.finish()
    assert found == [[b"one"], barrier, [b"two"], END_OF_DATA]
    assert decoding.records == 2


def test_an_event_within_a_frame_is_malformed() -> None:
    with pytest.raises(Malformed, match="cut short"):
        decoded(decoder(), data(pack_length(5) + b"cut"), seal_event(END_OF_DATA))


def test_a_compressed_event_is_malformed() -> None:
    memory, _ = stored(seal_event(END_OF_DATA))
    with pytest.raises(Malformed, match="an event is compressed"):
        decoder(FramesPayload(Codec.LZ4)).decode(memory, StoredBuffer(8, 0, DataType.END_OF_DATA, True))


def test_an_extent_that_ends_within_a_frame_is_malformed() -> None:
    decoding = decoder()
    decoded(decoding, data(pack_length(5) + b"cut"))
    with pytest.raises(Malformed, match="cut short"):
        decoding.finish()


# Pickled chunks

objects = st.recursive(
    st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(objects, max_size=20))
def test_any_objects_come_back(wanted: list[Any]) -> None:
    chunk = memoryview(bytes(pack_chunk(wanted)))
    assert unpack_chunk(chunk) == wanted
    assert count_objects(chunk) == len(wanted)
    assert PickledPayload(Codec.NONE).records(chunk) == wanted


def test_a_chunk_is_a_number_and_a_pickle_of_a_list() -> None:
    chunk = bytes(pack_chunk((1, "two")))
    assert chunk[:4] == struct.pack("<I", 2)
    assert chunk[4:] == pickle.dumps([1, "two"], 5)


class Bomb:
    """Says when it is unpickled."""

    unpickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, ()


def _explode() -> None:
    Bomb.unpickled += 1


def test_objects_are_counted_without_unpickling_them() -> None:
    chunk = bytes(pack_chunk([Bomb(), Bomb(), 3]))
    payload = PickledPayload(Codec.NONE)
    decoding = decoder(payload)
    assert decoded(decoding, data(pack_length(len(chunk)) + chunk)) == [[chunk]]
    assert (decoding.records, payload.kind) == (3, PayloadKind.PICKLE)
    assert Bomb.unpickled == 0
    assert payload.records(memoryview(chunk)) == [None, None, 3]
    assert Bomb.unpickled == 2


@pytest.mark.parametrize(
    "wrong",
    [b"", b"\x01\x00\x00", b"\x01\x00\x00\x00", bytes(pack_chunk([1])) + b"x", b"\x01\x00\x00\x00xyz"],
)
def test_a_chunk_without_a_pickle_or_with_more_than_one_is_malformed(wrong: bytes) -> None:
    for read in (count_objects, unpack_chunk):
        with pytest.raises(Malformed, match="no pickle or has bytes behind it"):
            read(memoryview(wrong))


@pytest.mark.parametrize(
    ("chunk", "found"),
    [
        (struct.pack("<I", 3) + pickle.dumps([1, 2], 5), 2),
        (struct.pack("<I", 1) + pickle.dumps("no list", 5), "str"),
    ],
)
def test_a_chunk_that_holds_something_else_than_it_says_is_malformed(chunk: bytes, found: object) -> None:
    with pytest.raises(Malformed, match="another number of objects") as caught:
        unpack_chunk(memoryview(chunk))
    assert caught.value.found == found


@pytest.mark.parametrize(
    "pairs",
    [
        Pairs([], []),
        Pairs([1, None, "k"], [b"a", (1, 2), [3]]),
        Pairs([1, 2], [{1}, {2}], combined=True),
        Pairs(["a", "b", "c"], [1, 2, 3, 4], counts=[1, 0, 3]),
    ],
)
def test_pairs_come_back_as_they_are(pairs: Pairs) -> None:
    chunk = memoryview(bytes(pack_content(len(pairs), pairs.content)))
    assert count_objects(chunk) == len(pairs)
    assert unpack_chunk(chunk) == pairs
    assert PickledPayload(Codec.NONE).records(chunk) == pairs


def test_pairs_are_iterated_over_with_what_each_key_has() -> None:
    assert list(Pairs([1, 2], "ab")) == [(1, "a"), (2, "b")]
    assert list(Pairs([1, 2, 3], [4, 5, 6], counts=[2, 0, 1])) == [(1, [4, 5]), (2, []), (3, [6])]


@pytest.mark.parametrize(
    "content",
    [
        ([1, 2], [1]),
        ([1], [1, 2], None),
        ([1, 2], [1, 2], [1]),
        ([1, 2], [1, 2], [1, 2]),
        ([1, 2],),
        ([1, 2], (1, 2)),
        ([1], [1]),
        "ab",
        [1],
    ],
)
def test_pairs_that_do_not_fit_together_are_malformed(content: object) -> None:
    with pytest.raises(Malformed):
        unpack_chunk(memoryview(bytes(pack_content(2, content))))
