"""One consumer's view of one map output: fetched whole or streamed in parts, its batches are the same;
whatever is wrong with the file is an error that says where; neither memory nor descriptors stay behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engine import changed, open_files
from map_outputs import ALL_CODECS, MapOutput, rows_of, write_map, write_sealed

from sortshuffle.errors import CorruptDataError, DataLossError, MissingDataError
from sortshuffle.format.buffer import TAG_BYTES, StoredBuffer, seal, sealed_size
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.channel import Fetch
from sortshuffle.storage.files.extents import Extent

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
ENOUGH = 1 << 30
KEY = EncryptionKey(bytes(range(32)))


def batch(start: int, rows: int) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch([list(numbers), [f"row {n}" for n in numbers]], schema=SCHEMA)


MESSAGES = [batch(start, rows) for start, rows in [(0, 10), (10, 2000), (2010, 1), (2011, 500), (2511, 77)]]
REGIONS = [{0: MESSAGES[:3]}, {0: MESSAGES[3:4]}, {0: MESSAGES[4:]}]


@pytest.fixture(params=ALL_CODECS)
def output(tmp_path: Path, request: pytest.FixtureRequest) -> MapOutput:
    """Three regions with 3, 1 and 1 messages."""
    return write_map(tmp_path, SCHEMA, REGIONS, codec=request.param, map_index=7)


def fetch_of(output: MapOutput, change: Callable[[Extent], Extent] = lambda extent: extent) -> Fetch:
    channel = output.channel()
    return Fetch(channel, tuple(change(extent) for extent in channel.extents))


def run(fetch: Fetch, output: MapOutput) -> list[pa.RecordBatch]:
    return fetch.run(output.payload).batches


def stream(fetch: Fetch, output: MapOutput, part: int = 1 << 20) -> list[pa.RecordBatch]:
    """All batches of the stream, behind which nothing may stay open or charged, whatever happens."""
    directory = os.path.dirname(output.file.base)
    opened = open_files(directory)
    budget = MemoryBudget(ENOUGH)
    try:
        return list(fetch.stream(output.payload, part, budget, TaskMetrics()))
    finally:
        assert budget.used == 0
        assert open_files(directory) == opened


BOTH_WAYS = pytest.mark.parametrize("read", [run, stream])


# --- what is read ------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_the_messages_come_as_they_were_written(
    output: MapOutput, read: Callable[[Fetch, MapOutput], list[pa.RecordBatch]]
) -> None:
    assert read(fetch_of(output), output) == MESSAGES


@pytest.mark.parametrize("part", [1, 64, 1000, 5000, 1 << 20])
def test_a_stream_is_the_same_whatever_its_parts(output: MapOutput, part: int) -> None:
    assert stream(fetch_of(output), output, part) == MESSAGES


@BOTH_WAYS
def test_only_the_extents_asked_for_are_read(
    output: MapOutput, read: Callable[[Fetch, MapOutput], list[pa.RecordBatch]]
) -> None:
    channel = output.channel()
    assert read(Fetch(channel, channel.extents[1:2]), output) == MESSAGES[3:4]
    assert read(Fetch(channel, ()), output) == []


def test_a_subpartition_has_its_own_extents(tmp_path: Path) -> None:
    regions = [{0: MESSAGES[:1], 2: MESSAGES[1:2]}, {1: MESSAGES[2:3], 2: MESSAGES[3:]}]
    output = write_map(tmp_path, SCHEMA, regions, subpartitions=3, map_index=1)
    assert [run(Fetch(c, c.extents), output) for c in map(output.channel, range(3))] == [
        MESSAGES[:1],
        MESSAGES[2:3],
        [MESSAGES[1], *MESSAGES[3:]],
    ]


def test_what_was_read_is_counted(output: MapOutput) -> None:
    fetch = fetch_of(output)
    streaming = TaskMetrics()
    list(fetch.stream(output.payload, 1000, MemoryBudget(ENOUGH), streaming))
    expected = {
        "rows_read": 2588,
        "bytes_read": sum(extent.bytes for extent in fetch.extents),
        "raw_bytes_read": sum(message.serialize().size for message in MESSAGES),
        "buffers_read": 5,
        "extents_read": 3,
    }
    assert fetch.run(output.payload).metrics.counts == streaming.counts == expected
    assert set(streaming.seconds) == {"read", "decompress", "decode"}


def test_batches_outlive_the_file(output: MapOutput) -> None:
    fetched, streamed = run(fetch_of(output), output), stream(fetch_of(output), output, 1000)
    output.file.delete()
    assert rows_of(fetched) == rows_of(streamed) == rows_of(MESSAGES)


def test_uncompressed_payloads_are_read_onto_64_byte_boundaries_and_used_there(tmp_path: Path) -> None:
    output = write_map(tmp_path, SCHEMA, REGIONS, codec=Codec.NONE)
    with output.reader() as reader:
        for extent in output.channel().extents:
            for part in (reader.read_extent(extent), *reader.read_parts(extent, 1 << 20)):
                assert len(part.buffers) == extent.buffers
                for buffer in part.buffers:
                    start = part.memory.address + buffer.start
                    assert start % 64 == 0
                    decoded = output.payload.decode(part.memory, buffer, Counter())
                    for piece in filter(None, (b for c in decoded.columns for b in c.buffers())):
                        assert start <= piece.address <= start + buffer.size - piece.size


# --- memory ------------------------------------------------------------------------------------------------


class CountingPayload(ArrowPayload):
    """Counts what it decodes."""

    decoded = 0

    def decode(self, extent: pa.Buffer, buffer: StoredBuffer, seconds: Counter[str]) -> pa.RecordBatch:
        self.decoded += 1
        return super().decode(extent, buffer, seconds)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_a_stream_decodes_no_batch_before_it_is_asked_for(tmp_path: Path, codec: Codec) -> None:
    """A part of a few KB may decompress to a hundred times of that, so no part is decoded as a whole."""
    zeros = [pa.record_batch([np.zeros(10_000, np.int64)], ["zero"])] * 50
    output = write_map(tmp_path, zeros[0].schema, [{0: zeros}], codec=codec)
    payload = CountingPayload(zeros[0].schema, codec)
    batches = fetch_of(output).stream(payload, 1 << 20, MemoryBudget(ENOUGH), TaskMetrics())
    for number, found in enumerate(batches, 1):
        assert found == zeros[0]
        assert payload.decoded == number
    assert payload.decoded == 50


def test_a_stream_charges_the_part_it_holds(output: MapOutput) -> None:
    fetch = fetch_of(output)
    budget = MemoryBudget(ENOUGH)
    held = []
    for _ in fetch.stream(output.payload, 1 << 20, budget, TaskMetrics()):
        held.append(budget.used)
    first, second, third = (extent.bytes for extent in fetch.extents)
    assert held == [first, first, first, second, third]
    assert budget.used == 0


def test_a_fetch_says_what_it_holds_at_most(output: MapOutput) -> None:
    fetch = fetch_of(output)
    raw = sum(message.serialize().size for message in MESSAGES)
    assert fetch.memory(output.payload) == raw + sum(extent.bytes for extent in fetch.extents)


def test_a_stream_that_is_closed_in_the_middle_leaves_nothing_open(output: MapOutput, tmp_path: Path) -> None:
    budget = MemoryBudget(ENOUGH)
    batches = fetch_of(output).stream(output.payload, 1000, budget, TaskMetrics())
    assert next(batches) == MESSAGES[0]
    assert open_files(tmp_path) == [output.file.data_path]
    assert budget.used > 0
    batches.close()
    assert open_files(tmp_path) == []
    assert budget.used == 0


def test_a_stream_opens_its_file_when_it_is_asked_for_a_batch(output: MapOutput, tmp_path: Path) -> None:
    batches = fetch_of(output).stream(output.payload, 1000, MemoryBudget(ENOUGH), TaskMetrics())
    assert open_files(tmp_path) == []
    assert next(batches) == MESSAGES[0]
    batches.close()


# --- what can be wrong -------------------------------------------------------------------------------------


@BOTH_WAYS
def test_a_file_that_is_gone_is_missing(
    output: MapOutput, read: Callable[[Fetch, MapOutput], object]
) -> None:
    fetch = fetch_of(output)
    output.file.delete()
    with pytest.raises(MissingDataError) as caught:
        read(fetch, output)
    assert caught.value.place.file == output.file.data_path
    assert caught.value.place.writer == "attempt 7 of map 7"


@BOTH_WAYS
def test_a_file_with_another_id_is_missing(
    output: MapOutput, read: Callable[[Fetch, MapOutput], object]
) -> None:
    channel = replace(output.channel(), file_id=bytes(16))
    with pytest.raises(MissingDataError, match="another one") as caught:
        read(Fetch(channel, channel.extents), output)
    assert (caught.value.expected, caught.value.found) == (bytes(16).hex(), output.file_id.hex())


@BOTH_WAYS
@pytest.mark.parametrize("region", [0, 1, 2])
def test_damage_is_placed_by_file_region_subpartition_offset_and_writer(
    output: MapOutput, read: Callable[[Fetch, MapOutput], object], region: int
) -> None:
    fetch = fetch_of(output)
    extent = fetch.extents[region]
    for offset in (extent.offset + 20, extent.offset + extent.bytes - 70):
        with changed(output.file.data_path, offset, 0x10), pytest.raises(CorruptDataError) as caught:
            read(fetch, output)
        place = caught.value.place
        assert (place.file, place.region, place.subpartition) == (output.file.data_path, region, 0)
        assert place.offset is not None
        assert extent.offset <= place.offset <= offset
        assert place.writer == "attempt 7 of map 7"


@BOTH_WAYS
def test_a_file_cut_short_is_damage(output: MapOutput, read: Callable[[Fetch, MapOutput], object]) -> None:
    fetch = fetch_of(output)
    os.truncate(output.file.data_path, fetch.extents[-1].offset + 100)
    with pytest.raises(CorruptDataError) as caught:
        read(fetch, output)
    assert (caught.value.place.region, caught.value.place.subpartition) == (2, 0)


@BOTH_WAYS
@pytest.mark.parametrize("wrong", [{"records": 501}, {"raw_bytes": 10**9}])
def test_rows_and_raw_bytes_are_held_against_the_entry(
    output: MapOutput, read: Callable[[Fetch, MapOutput], object], wrong: dict[str, int]
) -> None:
    fetch = fetch_of(output, lambda extent: replace(extent, **wrong) if extent.region == 1 else extent)
    with pytest.raises(CorruptDataError, match="another number of rows or raw bytes") as caught:
        read(fetch, output)
    extent = fetch.extents[1]
    assert (caught.value.place.region, caught.value.place.offset) == (1, extent.offset)
    assert caught.value.expected == f"{extent.records} rows in {extent.raw_bytes} bytes"
    assert caught.value.found == f"500 rows in {MESSAGES[3].serialize().size} bytes"


@BOTH_WAYS
def test_no_more_is_decompressed_than_the_entry_says(
    output: MapOutput, read: Callable[[Fetch, MapOutput], object]
) -> None:
    """What a fetch may hold is known from the entries: a buffer that says more is not believed."""
    first, second = (message.serialize().size for message in MESSAGES[:2])
    fetch = fetch_of(
        output, lambda each: each if each.region else replace(each, raw_bytes=first + second - 1)
    )
    payload = CountingPayload(output.payload.schema, output.payload.codec)
    with pytest.raises(CorruptDataError, match="another number of rows or raw bytes") as caught:
        read(fetch, replace(output, payload=payload))
    assert caught.value.found == f"at least {first + second} bytes"
    assert (caught.value.place.region, caught.value.place.offset) == (0, fetch.extents[0].offset)
    assert payload.decoded == 1


@BOTH_WAYS
@pytest.mark.parametrize("wrong", [{"buffers": 4}, {"checksum": 1}])
def test_buffers_and_checksum_are_held_against_the_entry(
    output: MapOutput, read: Callable[[Fetch, MapOutput], object], wrong: dict[str, int]
) -> None:
    fetch = fetch_of(output, lambda extent: replace(extent, **wrong) if extent.region == 0 else extent)
    with pytest.raises(CorruptDataError) as caught:
        read(fetch, output)
    assert caught.value.place.region == 0


@BOTH_WAYS
def test_a_bad_message_behind_encrypted_ones_is_placed_where_it_stands_in_the_file(
    tmp_path: Path, read: Callable[[Fetch, MapOutput], object]
) -> None:
    payload = ArrowPayload(SCHEMA, Codec.NONE)
    sound = [payload.encode(each, Counter()) for each in MESSAGES]
    garbage = seal(b"\xff" * 100, 100, records=5)
    stored = sum(sealed_size(each.raw_bytes + TAG_BYTES) for each in sound)
    assert stored != sum(each.bytes for each in sound)
    output = write_sealed(tmp_path, payload, [{0: [*sound, garbage]}], map_index=7, key=KEY)
    with pytest.raises(CorruptDataError, match="cannot be decoded") as caught:
        read(fetch_of(output), output)
    assert caught.value.place.offset == 56 + stored


@BOTH_WAYS
@pytest.mark.parametrize("codec", ALL_CODECS)
def test_a_buffer_that_verifies_but_is_no_message_is_placed(
    tmp_path: Path, codec: Codec, read: Callable[[Fetch, MapOutput], object]
) -> None:
    payload = ArrowPayload(SCHEMA, codec)
    first = payload.encode(MESSAGES[1], Counter())
    garbage = seal(b"\xff" * 100, 100, records=5)
    output = write_sealed(tmp_path, payload, [{0: [first, garbage]}], map_index=7)
    with pytest.raises(CorruptDataError, match="cannot be decoded") as caught:
        read(fetch_of(output), output)
    assert caught.value.place.offset == 56 + first.bytes
    assert (caught.value.place.region, caught.value.place.subpartition) == (0, 0)
    assert caught.value.place.writer == "attempt 7 of map 7"


def test_a_stream_delivers_what_stands_before_the_damage(output: MapOutput) -> None:
    fetch = fetch_of(output)
    delivered = []
    with changed(output.file.data_path, fetch.extents[2].offset + 20, 0x10), pytest.raises(DataLossError):
        for found in fetch.stream(output.payload, 1 << 20, MemoryBudget(ENOUGH), TaskMetrics()):
            delivered.append(found)
    assert delivered == MESSAGES[:4]
