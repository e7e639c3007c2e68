"""Arrow batches as payloads: what goes into a buffer comes back, of every type and with every codec, is
stored compressed only where that pays, and is not copied where it is not compressed."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from map_outputs import ALL_CODECS
from random_tables import batches

from sortshuffle.format.buffer import SealedBuffer, StoredBuffer, raw_size, scan_buffer, seal, seal_compressed
from sortshuffle.format.header import Codec
from sortshuffle.format.malformed import Malformed
from sortshuffle.options import Options
from sortshuffle.payload.arrow import ArrowPayload

COMPRESSING = [Codec.LZ4, Codec.ZSTD]


def stored(*sealed: SealedBuffer) -> tuple[pa.Buffer, list[StoredBuffer]]:
    """The buffers as an extent in memory, with payloads on 64-byte boundaries as in the file."""
    data = b"".join(
        bytes(piece) for buffer in sealed for piece in (buffer.header, buffer.payload, buffer.tail)
    )
    shifted = pa.allocate_buffer(56 + len(data))
    memoryview(shifted).cast("B")[56:] = data
    memory = shifted.slice(56)
    found: list[StoredBuffer] = []
    position = 0
    while position < len(data):
        scan = scan_buffer(memoryview(memory), position)
        found.append(scan.buffer)
        position = scan.end
    return memory, found


def through(payload: ArrowPayload, batch: pa.RecordBatch) -> pa.RecordBatch:
    memory, (buffer,) = stored(payload.encode(batch, Counter()))
    return payload.decode(memory, buffer, Counter())


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(rows))})


def noise(rows: int) -> pa.RecordBatch:
    return pa.record_batch([np.random.default_rng(1).integers(0, 256, rows, np.uint8)], ["noise"])


def buffers_of(batch: pa.RecordBatch) -> list[pa.Buffer]:
    return [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]


@given(batch=batches())
def test_a_batch_of_any_types_comes_back_equal(batch: pa.RecordBatch) -> None:
    for codec in ALL_CODECS:
        again = through(ArrowPayload(batch.schema, codec), batch)
        again.validate(full=True)
        assert again.equals(batch, check_metadata=True)


@given(batch=batches())
def test_the_buffer_says_what_it_holds(batch: pa.RecordBatch) -> None:
    for codec in ALL_CODECS:
        payload = ArrowPayload(batch.schema, codec)
        sealed = payload.encode(batch, Counter())
        memory, (buffer,) = stored(sealed)
        assert sealed.records == batch.num_rows
        said = raw_size(memoryview(memory), buffer) if buffer.compressed else buffer.size
        assert sealed.raw_bytes == batch.serialize().size == said
        assert sealed.bytes == memory.size


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("rows", [0, 3])
def test_rows_without_columns_keep_their_number(codec: Codec, rows: int) -> None:
    batch = numbers(rows).select([])
    again = through(ArrowPayload(batch.schema, codec), batch)
    assert (again.num_rows, again.num_columns) == (rows, 0)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_floats_come_back_bit_by_bit(codec: Codec) -> None:
    bits = [0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000123, 0x8000000000000000, 1]
    batch = pa.record_batch([np.array(bits, np.uint64).view(np.float64)], ["value"])
    again = through(ArrowPayload(batch.schema, codec), batch)
    assert np.asarray(again.column(0)).view(np.uint64).tolist() == bits


def test_a_slice_is_encoded_without_the_rows_around_it() -> None:
    batch = pa.record_batch({"text": ["x" * 1000] * 1000, "flag": [True, False] * 500})
    payload = ArrowPayload(batch.schema, Codec.NONE)
    part = payload.encode(batch.slice(333, 10), Counter())
    assert part.raw_bytes < 15_000
    memory, (buffer,) = stored(part)
    assert payload.decode(memory, buffer, Counter()).equals(batch.slice(333, 10))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_payload_is_compressed_where_that_makes_it_smaller(codec: Codec) -> None:
    batch = pa.record_batch({"zero": [0] * 10_000})
    sealed = ArrowPayload(batch.schema, codec).encode(batch, Counter())
    assert stored(sealed)[1][0].compressed
    assert sealed.bytes < sealed.raw_bytes // 50


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_payload_that_would_grow_is_stored_as_it_is(codec: Codec) -> None:
    batch = noise(100_000)
    payload = ArrowPayload(batch.schema, codec)
    sealed = payload.encode(batch, Counter())
    memory, (buffer,) = stored(sealed)
    assert not buffer.compressed
    assert buffer.size == sealed.raw_bytes
    assert payload.decode(memory, buffer, Counter()).equals(batch)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_payload_larger_than_lz4_takes_is_stored_as_it_is(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The true limit is 2 GiB, which a test had better not allocate."""
    batch = pa.record_batch({"zero": [0] * 10_000})
    payload = ArrowPayload(batch.schema, codec)
    monkeypatch.setattr("sortshuffle.payload.compression.MOST_COMPRESSED", batch.serialize().size)
    assert stored(payload.encode(batch, Counter()))[1][0].compressed
    monkeypatch.setattr("sortshuffle.payload.compression.MOST_COMPRESSED", batch.serialize().size - 1)
    memory, (buffer,) = stored(payload.encode(batch, Counter()))
    assert not buffer.compressed
    assert payload.decode(memory, buffer, Counter()).equals(batch)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_compressed_and_raw_buffers_stand_in_one_extent(codec: Codec) -> None:
    flat = pa.record_batch([np.zeros(100_000, np.uint8)], ["noise"])
    wanted = [noise(100_000), flat, noise(100_000), flat]
    payload = ArrowPayload(flat.schema, codec)
    memory, buffers = stored(*(payload.encode(batch, Counter()) for batch in wanted))
    assert [buffer.compressed for buffer in buffers] == [False, True, False, True]
    assert [payload.decode(memory, buffer, Counter()) for buffer in buffers] == wanted


def test_an_uncompressed_batch_points_into_the_memory_that_was_read() -> None:
    batch = pa.record_batch({"number": list(range(1000)), "text": [str(n) for n in range(1000)]})
    payload = ArrowPayload(batch.schema, Codec.NONE)
    memory, buffers = stored(*(payload.encode(batch.slice(n * 100, 100), Counter()) for n in range(10)))
    for number, buffer in enumerate(buffers):
        start = memory.address + buffer.start
        assert start % 64 == 0
        again = payload.decode(memory, buffer, Counter())
        assert again.equals(batch.slice(number * 100, 100))
        assert len(buffers_of(again)) == 3
        for piece in buffers_of(again):
            assert start <= piece.address <= piece.address + piece.size <= start + buffer.size


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_compressed_batch_has_memory_of_its_own(codec: Codec) -> None:
    batch = numbers(10_000)
    payload = ArrowPayload(batch.schema, codec)
    memory, (buffer,) = stored(payload.encode(batch, Counter()))
    again = payload.decode(memory, buffer, Counter())
    for piece in buffers_of(again):
        assert not memory.address <= piece.address < memory.address + memory.size


def test_a_batch_keeps_the_memory_it_points_into_alive() -> None:
    batch = numbers(100_000)
    payload = ArrowPayload(batch.schema, Codec.NONE)
    memory, (buffer,) = stored(payload.encode(batch, Counter()))
    kept = payload.decode(memory, buffer, Counter()).slice(50_000, 10)
    del memory
    gc.collect()
    held = pa.total_allocated_bytes()
    assert kept.column(0).to_pylist() == list(range(50_000, 50_010))
    del kept
    gc.collect()
    assert held - pa.total_allocated_bytes() >= 800_000


def test_a_compressed_buffer_in_a_file_without_codec_is_refused() -> None:
    batch = numbers(1000)
    memory, (buffer,) = stored(ArrowPayload(batch.schema, Codec.LZ4).encode(batch, Counter()))
    with pytest.raises(Malformed, match="a file without a codec"):
        ArrowPayload(batch.schema, Codec.NONE).decode(memory, buffer, Counter())


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_bytes_that_are_no_message_are_malformed(codec: Codec) -> None:
    garbage = b"\xff" * 100
    sealed = [seal(garbage, 100, records=1)]
    if codec is not Codec.NONE:
        sealed.append(seal_compressed(garbage, 100, records=1, raw_bytes=5000))
    memory, buffers = stored(*sealed)
    for buffer in buffers:
        with pytest.raises(Malformed):
            ArrowPayload(numbers(1).schema, codec).decode(memory, buffer, Counter())


def test_the_options_choose_codec_and_level() -> None:
    schema = pa.schema([("text", pa.string())])
    batch = pa.record_batch({"text": [f"{n * n % 977} green bottles, {n % 13} walls" for n in range(5000)]})
    assert ArrowPayload.of(schema, Options()).codec is Codec.LZ4
    assert ArrowPayload.of(schema, Options(codec="none")).codec is Codec.NONE
    fast, small = (ArrowPayload.of(schema, Options(codec="zstd", codec_level=level)) for level in (1, 19))
    assert fast.codec is small.codec is Codec.ZSTD
    assert small.encode(batch, Counter()).bytes < fast.encode(batch, Counter()).bytes


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_one_payload_serves_many_threads(codec: Codec) -> None:
    wanted = [pa.record_batch({"number": [seed * n for n in range(20_000)]}) for seed in range(16)]
    payload = ArrowPayload(wanted[0].schema, codec)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda batch: through(payload, batch), wanted)) == wanted


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_the_time_of_each_step_is_told_apart(codec: Codec) -> None:
    batch = numbers(1000)
    payload = ArrowPayload(batch.schema, codec)
    encoding: Counter[str] = Counter()
    decoding: Counter[str] = Counter()
    memory, (buffer,) = stored(payload.encode(batch, encoding))
    payload.decode(memory, buffer, decoding)
    assert set(encoding) == {"encode", "checksum"} | ({"compress"} if codec in COMPRESSING else set())
    assert set(decoding) == {"decompress", "decode"}
