"""Indexes are kept for the readers that come next, the last used ones, in bounded memory."""

from __future__ import annotations

import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from consumers import Consumer, Steps, one, random_pair, read_pool, stored
from engine import ID, OTHER_ID, open_files, write_pair

from sortshuffle.errors import MissingDataError
from sortshuffle.format.index import Index, WriterInfo
from sortshuffle.options import MIB
from sortshuffle.reading.index_cache import FIXED_BYTES, IndexCache
from sortshuffle.reading.scheduler import ReadScheduler
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.storage.files.reader import read_index

FEW = 8


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return read_index(write_pair(tmp_path, random_pair(2, 3, 10)))


def of_file(index: Index, number: int) -> Index:
    return replace(index, header=replace(index.header, file_id=number.to_bytes(16, "little")))


def size_of(index: Index) -> int:
    return index.entries.nbytes + sys.getsizeof(index.kinds) + len(index.schema) + FIXED_BYTES


def kept(indexes: IndexCache, files: int) -> list[int]:
    """The files whose indexes are kept."""
    return [number for number in range(files) if indexes.get(number.to_bytes(16, "little")) is not None]


def test_an_index_is_given_for_its_files_only(index: Index) -> None:
    indexes = IndexCache(MIB)
    assert indexes.get(ID) is None
    indexes.keep(index)
    assert indexes.get(ID) is index
    assert indexes.get(OTHER_ID) is None


def test_the_least_recently_used_goes(index: Index) -> None:
    size = size_of(index)
    indexes = IndexCache(FEW * size)
    for number in range(FEW):
        indexes.keep(of_file(index, number))
    assert indexes.size == FEW * size
    assert indexes.get(bytes(16)) is not None  # the first is used again
    indexes.keep(of_file(index, FEW))
    assert kept(indexes, FEW + 1) == [0, *range(2, FEW + 1)]
    assert indexes.size == FEW * size


def test_an_index_that_is_kept_twice_counts_once(index: Index) -> None:
    indexes = IndexCache(MIB)
    indexes.keep(index)
    indexes.keep(of_file(index, 1))
    indexes.keep(index)
    assert indexes.size == 2 * size_of(index)


def test_an_index_for_which_there_is_no_room_is_not_kept(index: Index) -> None:
    large = replace(index, schema=bytes(1000))
    indexes = IndexCache(size_of(large) - 1)
    indexes.keep(of_file(index, 1))
    indexes.keep(large)
    assert indexes.get(ID) is None
    assert kept(indexes, 2) == [1]
    assert indexes.size == size_of(index)
    exactly = IndexCache(size_of(large))
    exactly.keep(large)
    assert exactly.get(ID) is large


def test_the_room_of_forgotten_indexes_is_free_again(index: Index) -> None:
    indexes = IndexCache(2 * size_of(index))
    for number, exchange in ((1, 1), (2, 2)):
        indexes.keep(replace(of_file(index, number), writer=WriterInfo(exchange=exchange)))
    indexes.forget_all(2)
    assert kept(indexes, 4) == [1]
    indexes.keep(of_file(index, 3))
    assert kept(indexes, 4) == [1, 3]
    for _ in range(2):
        indexes.forget((1).to_bytes(16, "little"))
    assert kept(indexes, 4) == [3]
    assert indexes.size == size_of(index)


def test_many_threads_keep_no_more_than_there_is_room_for(index: Index) -> None:
    size = size_of(index)
    indexes = IndexCache(FEW * size)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: indexes.keep(of_file(index, number % 20)), range(2000)))
    assert len(kept(indexes, 20)) == FEW
    assert indexes.size == FEW * size


def test_the_next_reader_does_not_read_the_index_again(tmp_path: Path) -> None:
    file = write_pair(tmp_path, random_pair(2, 2, 5000))
    expected = [stored(file, one(subpartition)) for subpartition in (0, 1)]
    threads = Steps()
    scheduler = ReadScheduler(file, ID, read_pool(64, 4096), threads, indexes=IndexCache(MIB))
    for subpartition in (0, 1):
        consumer = Consumer()
        reader = scheduler.create_reader(one(subpartition), consumer.on_available)
        Path(file.index_path).unlink(missing_ok=True)  # read for the first reader
        while threads.waiting:
            threads.step()
            consumer.drain(reader)
        assert bytes(consumer.data) == expected[subpartition]
        assert open_files(tmp_path) == []


def live_indexes() -> int:
    """The number of indexes that anything in this process refers to."""
    gc.collect()
    return sum(type(each) is Index for each in gc.get_objects())


def test_map_outputs_that_are_open_hold_no_index_beside_those_that_are_kept(
    tmp_path: Path, index: Index
) -> None:
    indexes, pool, threads = IndexCache(FEW * size_of(index)), read_pool(64, 4096), Steps()
    before = live_indexes()
    schedulers, readers = [], []
    for number in range(3 * FEW):
        pair = replace(random_pair(2, 3, 10), file_id=number.to_bytes(16, "little"))
        file = write_pair(tmp_path, pair, attempt=number)
        schedulers.append(ReadScheduler(file, pair.file_id, pool, threads, indexes=indexes))
        readers.append(schedulers[-1].create_reader(one(0), lambda reader: None))
    assert all(each.is_open for each in schedulers)
    assert live_indexes() - before == FEW
    for reader in readers:
        reader.release()
    threads.run()
    assert open_files(tmp_path) == []


def test_a_reader_that_comes_while_the_files_are_open_takes_the_index_that_is_kept(tmp_path: Path) -> None:
    file = write_pair(tmp_path, random_pair(2, 2, 5000))
    expected = [stored(file, one(subpartition)) for subpartition in (0, 1)]
    threads = Steps()
    scheduler = ReadScheduler(file, ID, read_pool(64, 4096), threads, indexes=IndexCache(MIB))
    consumers = [Consumer(), Consumer()]
    first = scheduler.create_reader(one(0), consumers[0].on_available)
    Path(file.index_path).unlink()
    second = scheduler.create_reader(one(1), consumers[1].on_available)
    consume(threads, (first, consumers[0]), (second, consumers[1]))
    assert [bytes(consumer.data) for consumer in consumers] == expected
    assert open_files(tmp_path) == []


def test_an_index_that_is_not_kept_is_read_for_each_reader(tmp_path: Path) -> None:
    file = write_pair(tmp_path, random_pair(2, 2, 5000))
    expected = [stored(file, one(subpartition)) for subpartition in (0, 1)]
    threads = Steps()
    scheduler = ReadScheduler(file, ID, read_pool(64, 4096), threads, indexes=IndexCache(0))
    consumers = [Consumer(), Consumer()]
    readers = [scheduler.create_reader(one(n), consumers[n].on_available) for n in (0, 1)]
    Path(file.index_path).unlink()
    with pytest.raises(MissingDataError):
        scheduler.create_reader(one(0), lambda reader: None)
    consume(threads, *zip(readers, consumers, strict=True))
    assert [bytes(consumer.data) for consumer in consumers] == expected
    assert open_files(tmp_path) == []


def consume(threads: Steps, *opened: tuple[SubpartitionReader, Consumer]) -> None:
    """Let all of them read to their ends."""
    while threads.waiting:
        threads.step()
        for reader, consumer in opened:
            consumer.drain(reader)


def test_data_that_are_gone_are_missing_though_their_index_is_kept(tmp_path: Path) -> None:
    file = write_pair(tmp_path, random_pair(1, 1, 10))
    indexes = IndexCache(MIB)
    indexes.keep(read_index(file))
    scheduler = ReadScheduler(file, ID, read_pool(4, 4096), Steps(), indexes=indexes)
    os.unlink(file.data_path)
    with pytest.raises(MissingDataError):
        scheduler.create_reader(one(0), lambda reader: None)
    assert open_files(tmp_path) == []
