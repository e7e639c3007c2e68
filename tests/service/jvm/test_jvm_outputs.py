"""Which map outputs of the application are on this host: found by name and id, kept for the next request
within limits, forgotten and deleted with their shuffle."""

from __future__ import annotations

import errno
import os
import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from engine import WRITER, names, open_files
from serving import no_descriptor_left

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, MissingDataError
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import ENTRY
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.service.jvm import outputs as module
from sortshuffle.service.jvm.block_reader import BlockReader
from sortshuffle.service.jvm.lost_blocks import LostBlocksError
from sortshuffle.service.jvm.outputs import (
    IDLE,
    IndexedMapOutput,
    MapOutput,
    MapOutputCache,
    MapOutputs,
    SmallMapOutput,
    WrittenPair,
)
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.jvm.small_outputs import OVERHEAD_BYTES, SmallOutputRecords
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.writing.placed_partition import PlacedResultPartition
from sortshuffle.writing.placed_records import PlacedRecords, RecordBytesLayout

SMALL, LARGE = 100, 300 * KIB
SHUFFLE = 3


class Nowhere:
    """No map output is elsewhere."""

    def blocks(self, request: ReadRequest, numbered: object) -> NoReturn:
        raise AssertionError("all map outputs are here")


NOWHERE = Nowhere()


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def id_of(map_id: int) -> bytes:
    return map_id.to_bytes(16, "big")


def write(
    outputs: MapOutputs, map_id: int, size: int, subpartitions: int = 2, shuffle: int = SHUFFLE
) -> PartitionedFile:
    """A map output with one record of a size for each subpartition."""
    header = FileHeader(id_of(map_id), subpartitions, 0, Codec.NONE, PayloadKind.RECORD_BYTES)
    writer = outputs.new(shuffle, 0, map_id, header)
    layout = RecordBytesLayout(RecordBytesPayload(Codec.NONE), subpartitions)
    with PlacedResultPartition(writer, layout, MemoryBudget(64 << 20), TaskMetrics()) as partition:
        ids = np.arange(subpartitions, dtype=np.int32)
        data = random.Random(map_id).randbytes(size * subpartitions)
        partition.write(PlacedRecords(ids, (ids + 1) * np.int32(size), data))
        return partition.finish(WRITER)


def _records_of(map_id: int, size: int, subpartitions: int, first: int, end: int) -> bytes:
    data = random.Random(map_id).randbytes(size * subpartitions)
    return data[first * size : end * size]


def known(outputs: MapOutputs, map_id: int, shuffle: int = SHUFFLE) -> MapOutput:
    return outputs.open(shuffle, 0, map_id, id_of(map_id))


@pytest.fixture
def homes(tmp_path: Path) -> list[str]:
    made = [tmp_path / name for name in "ab"]
    for each in made:
        each.mkdir()
    return list(map(str, made))


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()


# Finding


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_that_was_found_is_known(homes: list[str], size: int) -> None:
    outputs = MapOutputs(lambda: homes)
    files = [write(outputs, map_id, size) for map_id in range(4)]
    assert [os.path.dirname(file.base) for file in files] == [homes[0], homes[1]] * 2
    for map_id, file in enumerate(files):
        found = known(outputs, map_id)
        assert (found.file, found.file_id, found.subpartitions) == (file, id_of(map_id), 2)
        assert known(outputs, map_id) is found


def test_a_request_holds_some_entries_of_each_index_and_no_open_file(
    homes: list[str], tmp_path: Path
) -> None:
    """A reduce task may want 2,000 map outputs, whose indexes take more memory than the engine has."""
    subpartitions, count = 4000, 20
    outputs = MapOutputs(lambda: homes, MapOutputCache(most_index_bytes=0, most_files=1))
    for map_id in range(count):
        write(outputs, map_id, 100, subpartitions)  # 400 KB of records: too large to be kept whole
    blocks = tuple(Block(map_id, 0, 7, 9, 0, id_of(map_id)) for map_id in range(count))
    reader = BlockReader(ReadRequest(SHUFFLE, ("here:1",), blocks), outputs, "here:1", NOWHERE)
    tracemalloc.start()
    try:
        reader.locate()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    entries = subpartitions * ENTRY.itemsize
    assert peak > entries, "indexes are counted"
    assert held < 2 * entries  # of the one map output that is kept; all together take 20 times as much
    assert len(open_files(tmp_path)) <= 1

    data = b"".join(map(bytes, reader.pieces()))
    assert data == b"".join(_records_of(map_id, 100, subpartitions, 7, 9) for map_id in range(count))
    assert reader.totals().local_blocks == count
    reader.close()


def test_what_is_lost_while_a_request_holds_only_a_part_of_its_index_is_lost(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes, MapOutputCache(most_index_bytes=0, most_files=1))
    files = [write(outputs, map_id, LARGE) for map_id in range(4)]
    blocks = tuple(Block(map_id, 0, 0, 2, 0, id_of(map_id)) for map_id in range(4))
    reader = BlockReader(ReadRequest(SHUFFLE, ("here:1",), blocks), outputs, "here:1", NOWHERE)
    reader.locate()
    for at in (1, 2):
        os.unlink(files[at].data_path)
    with pytest.raises(LostBlocksError) as caught:
        list(reader.pieces())
    assert caught.value.blocks == (1, 2)


def test_homes_are_asked_for_anew_each_time(homes: list[str]) -> None:
    asked = homes[:1]
    outputs = MapOutputs(lambda: asked)
    asked = homes[1:]
    write(outputs, 1, SMALL)
    asked = homes[:1]
    with pytest.raises(MissingDataError, match="none of the application's directories on this host"):
        known(outputs, 1)
    asked = homes
    assert known(outputs, 1).file_id == id_of(1)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_has_the_name_and_is_no_map_output_is_an_error(homes: list[str], size: int) -> None:
    outputs = MapOutputs(lambda: homes)
    file = write(outputs, 0, size)
    with pytest.raises(MissingDataError, match="none of the application's directories on this host"):
        outputs.open(SHUFFLE, 0, 0, id_of(9))
    Path(file.index_path).write_bytes(b"no index")
    with pytest.raises(CorruptDataError):
        known(outputs, 0)
    os.unlink(file.index_path)
    os.symlink("nowhere", file.index_path)
    with pytest.raises(MissingDataError):
        known(outputs, 0)
    assert open_files(homes[0]) == []


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_process_that_can_open_nothing_has_lost_nothing(homes: list[str], size: int) -> None:
    outputs = MapOutputs(lambda: homes)
    write(outputs, 0, size)
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files") as caught:
        known(outputs, 0)
    assert not isinstance(caught.value, MissingDataError)
    assert known(outputs, 0).file_id == id_of(0)


# What is kept


def test_data_files_of_large_ones_are_kept_open_up_to_a_number(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1], MapOutputCache(most_files=3))
    files = [write(outputs, map_id, LARGE) for map_id in range(5)]
    for map_id in (0, 1, 2, 0, 3, 4):
        known(outputs, map_id)
    assert open_files(homes[0]) == sorted(files[at].data_path for at in (0, 3, 4)), "the longest unused goes"
    for map_id in range(5):
        assert known(outputs, map_id).file_id == id_of(map_id)
        assert len(open_files(homes[0])) == 3


def test_indexes_are_kept_up_to_a_size(homes: list[str]) -> None:
    """56 bytes an extent."""
    outputs = MapOutputs(lambda: homes[:1], MapOutputCache(most_index_bytes=3 * 56 * 1000))
    files = [write(outputs, map_id, KIB, subpartitions=1000) for map_id in range(5)]
    for map_id in range(5):
        known(outputs, map_id)
    assert open_files(homes[0]) == sorted(file.data_path for file in files[2:])


def test_one_index_is_kept_however_large(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1], MapOutputCache(most_index_bytes=0, most_files=0))
    files = [write(outputs, map_id, LARGE) for map_id in range(2)]
    for map_id in range(2):
        assert known(outputs, map_id) is known(outputs, map_id)
        assert open_files(homes[0]) == [files[map_id].data_path]


def test_no_file_of_a_small_one_stays_open(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1])
    for map_id in range(5):
        write(outputs, map_id, SMALL)
        assert isinstance(known(outputs, map_id), SmallMapOutput)
    assert open_files(homes[0]) == []


def test_small_ones_give_way_only_when_they_were_not_read_for_a_while(homes: list[str], clock: Clock) -> None:
    """Those that find no room are read extent by extent, and do not drive out the others."""
    outputs = MapOutputs(
        lambda: homes[:1], MapOutputCache(most_small_bytes=2 * (2 * SMALL + OVERHEAD_BYTES), clock=clock)
    )
    for map_id in range(4):
        write(outputs, map_id, SMALL)
    first, second = known(outputs, 0), known(outputs, 1)
    assert isinstance(first, SmallMapOutput)
    assert isinstance(second, SmallMapOutput)
    assert isinstance(known(outputs, 2), IndexedMapOutput)
    clock.now += IDLE - 1
    assert known(outputs, 1) is second
    clock.now += 2
    assert isinstance(known(outputs, 3), SmallMapOutput), "the first was not read for a while"
    assert known(outputs, 1) is second
    assert known(outputs, 0) is not first


RECORDS = SmallOutputRecords(b"abc", np.array([1, 3]), np.array([48, 56]))


def test_a_small_one_that_was_written_here_is_read_from_memory(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1])
    file = write(outputs, 0, SMALL)
    outputs.keep_written(file, id_of(0), RECORDS)
    found = known(outputs, 0)
    assert isinstance(found, SmallMapOutput)
    assert (found.file, found.small, found.subpartitions) == (file, RECORDS, 2)
    assert known(outputs, 0) is found
    assert open_files(homes[0]) == []


@pytest.mark.parametrize("suffix", [".data", ".index"])
@pytest.mark.parametrize("change", ["deleted", "cut short", "changed", "another"])
def test_one_that_is_not_as_it_was_written_is_read_from_its_files(
    homes: list[str], suffix: str, change: str
) -> None:
    """And so it is found lost, or damaged."""
    outputs = MapOutputs(lambda: homes[:1])
    outputs.keep_written(write(outputs, 0, SMALL), id_of(0), RECORDS)
    path = Path(homes[0], f"exchange-{SHUFFLE}-map-0-attempt-0{suffix}")
    content = bytearray(path.read_bytes())
    if change in ("deleted", "another"):
        path.unlink()
    content[-1] ^= 1
    before = stamp(path)
    while change != "deleted" and stamp(path) == before:  # an older system's clock of files ticks every 4 ms
        path.write_bytes(content[:-8] if change == "cut short" else content)
    for _ in range(2):
        with pytest.raises(MissingDataError if change == "deleted" else CorruptDataError):
            known(outputs, 0)


def stamp(path: Path) -> int | None:
    return path.stat().st_ctime_ns if path.exists() else None


def test_one_that_was_written_is_not_kept_where_there_is_no_room(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1], MapOutputCache(most_small_bytes=0))
    outputs.keep_written(write(outputs, 0, SMALL), id_of(0), RECORDS)
    assert isinstance(known(outputs, 0), IndexedMapOutput)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_one_that_is_removed_when_it_is_to_be_kept_is_not_kept(
    homes: list[str], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MapOutputCache()
    outputs = MapOutputs(lambda: homes[:1], kept)
    file = write(outputs, 0, SMALL)

    def of(written: PartitionedFile) -> WrittenPair:
        found = look(written)
        outputs.remove(SHUFFLE)
        return found

    look = WrittenPair.of
    if when == "before":
        outputs.remove(SHUFFLE)
    else:
        monkeypatch.setattr(WrittenPair, "of", of)
    outputs.keep_written(file, id_of(0), RECORDS)
    monkeypatch.undo()
    assert kept.get_all([id_of(0)]) == [None]
    with pytest.raises(MissingDataError):
        known(outputs, 0)


def test_one_that_is_read_stays_open_when_it_is_forgotten(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1])
    file = write(outputs, 0, LARGE)
    found = known(outputs, 0)
    assert isinstance(found, IndexedMapOutput)
    outputs.forget(id_of(0))
    outputs.forget(id_of(0))
    assert open_files(homes[0]) == [file.data_path]
    os.preadv(found.reader.fileno(), [bytearray(8)], 0)
    del found
    assert open_files(homes[0]) == []
    assert known(outputs, 0).file == file


def test_of_two_that_find_one_at_once_none_stays_open(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1])
    file = write(outputs, 0, LARGE)
    together = threading.Barrier(8)

    def find() -> None:
        together.wait()
        known(outputs, 0)

    threads = [threading.Thread(target=find) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert open_files(homes[0]) == [file.data_path]
    outputs.forget(id_of(0))
    assert open_files(homes[0]) == []


# Removing


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_shuffle_is_removed_from_all_homes(homes: list[str], size: int) -> None:
    outputs = MapOutputs(lambda: homes)
    for map_id in range(4):
        write(outputs, map_id, size)
        known(outputs, map_id)
    other = write(outputs, 7, size, shuffle=33)
    outputs.remove(SHUFFLE)
    left = [name for home in homes for name in names(home)]
    assert left == [os.path.basename(path) for path in (other.data_path, other.index_path)]
    assert [path for home in homes for path in open_files(home)] == []
    with pytest.raises(MissingDataError):
        known(outputs, 0)
    assert known(outputs, 7, shuffle=33).file == other


def test_unfinished_ones_stay_because_the_shuffle_may_run_again(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: homes[:1])
    header = FileHeader(id_of(1), 1, 0, Codec.NONE, PayloadKind.RECORD_BYTES)
    unfinished = outputs.new(SHUFFLE, 0, 1, header)
    write(outputs, 2, SMALL)
    Path(homes[0], "something else").touch()
    before = ["exchange-3-map-0-attempt-1.data.partial", "exchange-3-map-0-attempt-1.index.partial"]
    outputs.remove(SHUFFLE)
    assert names(homes[0]) == [*before, "something else"]
    file = unfinished.finish(WRITER)
    assert known(outputs, 1).file == file
    outputs.remove(SHUFFLE)
    assert names(homes[0]) == ["something else"]


def test_one_that_cannot_be_deleted_keeps_no_other_one(
    homes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = MapOutputs(lambda: homes[:1])
    files = [write(outputs, map_id, SMALL) for map_id in range(5)]

    def unlink(path: str) -> None:
        if path == files[2].index_path:
            raise OSError(errno.EIO, "the disk fails", path)
        os.unlink(path)

    monkeypatch.setattr(calls, "unlink", unlink)
    with pytest.raises(OSError, match="the disk fails"):
        outputs.remove(SHUFFLE)
    assert names(homes[0]) == [os.path.basename(files[2].index_path)]


def test_a_home_that_is_gone_has_nothing_to_remove(homes: list[str]) -> None:
    outputs = MapOutputs(lambda: [*homes, "/nowhere"])
    write(outputs, 0, SMALL)
    outputs.remove(SHUFFLE)
    assert [names(home) for home in homes] == [[], []]


@pytest.mark.parametrize("when", ["when it was found", "before it is kept"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_that_is_found_while_its_shuffle_is_removed_is_not_kept(
    homes: list[str], size: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk space would stay taken for as long as it is known."""
    outputs = MapOutputs(lambda: homes)
    write(outputs, 0, size)

    def slow(*how: Any, **more: Any) -> MapOutput:
        found = opened(*how, **more)
        outputs.remove(SHUFFLE)
        return found

    opened, keep = module._load, MapOutputCache.keep

    def remove_and_keep(self: MapOutputCache, output: MapOutput) -> None:
        outputs.remove(SHUFFLE)
        keep(self, output)

    if when == "when it was found":
        monkeypatch.setattr(module, "_load", slow)
    else:
        monkeypatch.setattr(MapOutputCache, "keep", remove_and_keep)
    found = known(outputs, 0)
    assert found.file_id == id_of(0), "who has found it may read it"
    del found
    assert open_files(homes[0]) == []
    with pytest.raises(MissingDataError):
        known(outputs, 0)
