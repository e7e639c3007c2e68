"""Small map outputs, read whole: their records are those that are read extent by extent; nothing of one that
is damaged anywhere is kept."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engine import WRITER, arrow_memory, changed, end_region, open_files
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import CorruptDataError, DataLossError
from sortshuffle.format.buffer import SealedBuffer, seal, seal_compressed
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.record_bytes import LEAST_COMPRESSED, RecordBytesPayload
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.jvm.block_reader import BlockReader
from sortshuffle.service.jvm.outputs import IndexedMapOutput, MapOutputCache, MapOutputs, SmallMapOutput
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.jvm.remote import RemoteSettings
from sortshuffle.service.jvm.small_outputs import MOST_BYTES, OVERHEAD_BYTES, is_small, read_small
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.placed_partition import PlacedResultPartition
from sortshuffle.writing.placed_records import PlacedRecords, RecordBytesLayout

ID = bytes(range(16))
REMOTE = RemoteSettings.of("app-1", ClientSettings())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)


def write(
    home: str, sizes: list[int | None], codec: Codec = Codec.NONE, regions: int = 1, memory: int = 64 * MIB
) -> tuple[PartitionedFile, list[bytes]]:
    """A map output with one record of a size for each subpartition (None: no record), or one in each region;
    what each subpartition has. Every other record compresses well."""
    chosen = random.Random(1)
    file = PartitionedFile.named(home, 3, 17, 204)
    header = FileHeader(ID, len(sizes), 0, codec, PayloadKind.RECORD_BYTES)
    layout = RecordBytesLayout(RecordBytesPayload(codec), len(sizes))
    writer = PartitionedFileWriter(file, header)
    wanted = [b""] * len(sizes)
    with PlacedResultPartition(writer, layout, MemoryBudget(memory), TaskMetrics()) as partition:
        for _ in range(regions):
            ids = [at for at, size in enumerate(sizes) if size is not None]
            data = [chosen.randbytes(sizes[at] or 0) if at % 2 else bytes(sizes[at] or 0) for at in ids]
            if ids:
                ends = np.cumsum([len(each) for each in data], dtype=np.int32)
                partition.write(PlacedRecords(np.array(ids, np.int32), ends, b"".join(data)))
                end_region(partition)
            for at, each in zip(ids, data, strict=True):
                wanted[at] += each
        partition.finish(WRITER)
    return file, wanted


def read(outputs: MapOutputs, first: int, end: int) -> bytes:
    block = Block(map_id=204, map_index=17, first=first, end=end, service=0, file_id=ID)
    reader = BlockReader(ReadRequest(3, ("here",), (block,)), outputs, "here", REMOTE)
    try:
        reader.locate()
        return b"".join(map(bytes, reader.pieces()))
    finally:
        reader.close()


SIZE = st.one_of(
    st.none(),
    st.integers(0, 70),
    st.sampled_from([LEAST_COMPRESSED - 1, LEAST_COMPRESSED, LEAST_COMPRESSED + 1, 5000]),
)


@given(
    st.sampled_from(Codec),
    st.lists(SIZE, min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), min_size=1, max_size=6),
    st.sampled_from([64 * MIB, 4 * KIB]),
)
def test_they_are_what_is_read_extent_by_extent(
    tmp_path: Path, codec: Codec, sizes: list[int | None], ranges: list[tuple[int, int]], memory: int
) -> None:
    """With little memory an extent has several buffers."""
    file, wanted = write(str(tmp_path), sizes, codec, memory=memory)
    try:
        whole = MapOutputs(lambda: [str(tmp_path)])
        by_extent = MapOutputs(lambda: [str(tmp_path)], MapOutputCache(most_small_bytes=0))
        is_empty = all(size is None for size in sizes)
        assert isinstance(whole.open(3, 17, 204, ID), SmallMapOutput) == (not is_empty)
        assert isinstance(by_extent.open(3, 17, 204, ID), IndexedMapOutput)
        for at, count in ranges:
            first = at % len(sizes)
            end = min(len(sizes), first + count)
            assert read(whole, first, end) == b"".join(wanted[first:end])
            assert read(by_extent, first, end) == b"".join(wanted[first:end])
    finally:
        file.delete()


@pytest.mark.parametrize("codec", Codec)
def test_damage_anywhere_is_found_when_it_is_opened(home: str, codec: Codec) -> None:
    file, wanted = write(home, [5, None, 700, 0, 60, 3, 2, 1, 9, 11, 10, 8], codec)
    outputs = MapOutputs(lambda: [home])
    for offset in range(os.path.getsize(file.data_path)):
        with changed(file.data_path, offset, 1 << (offset % 8)), pytest.raises(DataLossError):
            outputs.open(3, 17, 204, ID)
    assert read(outputs, 0, 12) == b"".join(wanted)
    assert open_files(home) == []


def test_the_place_of_damage_is_told(home: str) -> None:
    file, _ = write(home, [5, None, 700, 9])
    at = int(read_index(file).entries[0, 2]["offset"])
    with changed(file.data_path, at + 20, 1), pytest.raises(CorruptDataError) as caught:
        MapOutputs(lambda: [home]).open(3, 17, 204, ID)
    place = caught.value.place
    assert (place.file, place.region, place.subpartition, place.offset) == (file.data_path, 0, 2, at)
    assert place.writer == "attempt 204 of map 17 on host"


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.99])
def test_one_that_is_cut_short_is_damaged(home: str, kept: float) -> None:
    file, _ = write(home, [50] * 100)
    os.truncate(file.data_path, int(kept * os.path.getsize(file.data_path)))
    with pytest.raises(CorruptDataError, match=r"cut short|another size"):
        MapOutputs(lambda: [home]).open(3, 17, 204, ID)


def test_only_those_of_one_region_and_few_bytes_are_small(home: str) -> None:
    for sizes, codec, regions, small in (
        ([100] * 10, Codec.LZ4, 1, True),
        ([100] * 10, Codec.LZ4, 2, False),
        ([], Codec.LZ4, 0, False),
        ([MOST_BYTES - 5000], Codec.NONE, 1, True),
        ([MOST_BYTES + 1], Codec.NONE, 1, False),
        ([MOST_BYTES], Codec.NONE, 1, False),  # with what stands around the records
        ([MOST_BYTES + 1], Codec.LZ4, 1, False),  # a few KiB in the file
    ):
        file, _ = write(home, [*sizes, None], codec, regions)
        assert is_small(read_index(file)) is small, (len(sizes), codec, regions)
        file.delete()


def test_what_keeping_one_takes_is_reckoned(home: str) -> None:
    file, _ = write(home, [100] * 1000)
    with PartitionedFileReader(file, ID) as reader:
        small = read_small(reader, read_index(file))
    assert small.bytes == OVERHEAD_BYTES + 100 * 1000 + 16 * 1000
    assert small.stored_bytes(0, 1000) == 1000 * small.stored_bytes(3, 4) == 1000 * 128
    assert bytes(small.records(0, 1000)) == b"".join(bytes(small.records(at, at + 1)) for at in range(1000))


def test_nothing_is_decompressed_that_its_entry_does_not_promise(home: str) -> None:
    """A file that somebody made: of a few KiB, which decompress to gigabytes."""
    block = pa.Codec("zstd").compress(bytes(64 * MIB))
    bomb = replace(seal_compressed(block, block.size, records=1, raw_bytes=64 * MIB), raw_bytes=100)
    file = write_sealed(home, [bomb])
    index = read_index(file)
    assert is_small(index)
    with arrow_memory() as memory, PartitionedFileReader(file, ID) as reader:
        with pytest.raises(CorruptDataError, match="other raw bytes") as caught:
            read_small(reader, index)
        assert (memory.max_memory() or 0) < MIB
    assert (caught.value.expected, caught.value.found) == (100, 64 * MIB)
    assert caught.value.place.offset == int(index.entries[0, 0]["offset"])


def test_sizes_that_together_are_more_than_a_number_holds_are_not_small(home: str) -> None:
    half = replace(seal(b"x" * 100, 100, records=1), raw_bytes=1 << 63)
    assert not is_small(read_index(write_sealed(home, [half, half])))


def write_sealed(home: str, buffers: list[SealedBuffer]) -> PartitionedFile:
    """A map output of one extent of one buffer for each subpartition."""
    file = PartitionedFile.named(home, 3, 17, 204)
    header = FileHeader(ID, len(buffers), 0, Codec.ZSTD, PayloadKind.RECORD_BYTES)
    with PartitionedFileWriter(file, header) as writer:
        writer.start_region(RegionKind.UNICAST)
        writer.write_extents([(at, [each]) for at, each in enumerate(buffers)])
        writer.finish_region()
        return writer.finish(WRITER)
