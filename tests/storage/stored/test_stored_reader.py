"""`StoredFileReader` and `read_stored_index`: the same data as from local files, by exactly the ranges that
are needed and no other request; every loss a typed error with its URL; a store that fails for a while is
asked again."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import fsspec
import pytest
from engine import OTHER_ID, SMALL, Pair, Region, read_subpartition, write_pair
from fsspec.implementations.memory import MemoryFileSystem
from stores import Store, object_store_fixture, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.errors import CorruptDataError, DataLossError, MissingDataError
from sortshuffle.options import KIB
from sortshuffle.storage.files import urls
from sortshuffle.storage.files.extents import Extent, extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.stored import stored_reader
from sortshuffle.storage.stored.stored_reader import (
    GAP_BYTES,
    REQUEST_BYTES,
    StoredFileReader,
    planned_requests,
    read_stored_index,
)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "FIRST_WAIT", 0.0)


def extents(file: PartitionedFile, subpartition: int = 0) -> list[Extent]:
    return extents_of(read_stored_index(file), subpartition)


def read(file: PartitionedFile, part_bytes: int | None = None) -> list[list[bytes]]:
    index = read_stored_index(file)
    found = []
    for subpartition in range(index.header.subpartitions):
        with StoredFileReader(file, extents_of(index, subpartition), "attempt 204") as reader:
            found.append(read_subpartition(reader, index, subpartition, part_bytes))  # type: ignore[arg-type]
    return found


# What is read


@pytest.mark.parametrize("part_bytes", [None, 64, 200, 1 << 20])
def test_every_subpartition_is_what_was_written(object_store: Store, part_bytes: int | None) -> None:
    file = write_pair(f"{object_store.root}/app-1", SMALL)
    assert read(file, part_bytes) == SMALL.everything()


def test_the_index_is_that_of_the_pair(store: Store) -> None:
    file = write_pair(f"{store.root}/app-1", SMALL)
    index = read_stored_index(file, SMALL.file_id)
    assert index.schema == b"schema"
    assert [kind.value for kind in index.kinds] == [0, 1, 0]
    with pytest.raises(MissingDataError, match="another one"):
        read_stored_index(file, OTHER_ID)


def test_payloads_stand_on_64_byte_boundaries_in_memory(object_store: Store) -> None:
    file = write_pair(f"{object_store.root}/app-1", SMALL)
    (first, *_) = planned = extents(file)
    with StoredFileReader(file, planned) as reader:
        part = reader.read_extent(first)
    assert [(part.memory.address + buffer.start) % 64 for buffer in part.buffers] == [0, 0]


def test_an_extent_larger_than_a_request_is_put_together(
    object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_reader, "REQUEST_BYTES", 1000)
    pair = Pair(2, 0, [Region({s: [bytes([s, n]) * 200 for n in range(20)] for s in (0, 1)})])
    file = write_pair(f"{object_store.root}/app-1", pair)
    assert read(file) == pair.everything()
    assert read(file, 3000) == pair.everything()


def test_extents_may_be_asked_for_in_any_order_and_again(object_store: Store) -> None:
    file = write_pair(f"{object_store.root}/app-1", SMALL)
    first, second = planned = extents(file)
    with StoredFileReader(file, planned) as reader:
        again = [reader.read_extent(extent).memory.to_pybytes() for extent in (second, first, first, second)]
    assert again[0] == again[3]
    assert again[1] == again[2]
    assert [len(each) for each in again[:2]] == [second.bytes, first.bytes]


# What is asked for


class CountingFileSystem(MemoryFileSystem):
    """fsspec's memory, which notes every call that would be a request, and fails where a test says so."""

    protocol = "counting"
    store: dict[str, object] = {}  # noqa: RUF012  (of the class, as MemoryFileSystem has it)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    calls: list[tuple[object, ...]] = []  # noqa: RUF012
    fail: Callable[[int], Exception | None] = staticmethod(lambda call: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("counting://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: object) -> bytes:
        self.calls.append((start, end))
        error = self.fail(len(self.calls))
        if error is not None:
            raise error
        data: bytes = super().cat_file(path, start, end)
        return data

    def info(self, path: str, **how: object) -> object:
        self.calls.append(("info", path))
        return super().info(path, **how)

    def ls(self, path: str, **how: object) -> object:
        self.calls.append(("ls", path))
        return super().ls(path, **how)

    def _open(self, path: str, mode: str = "rb", **how: object) -> object:
        self.calls.append(("open", mode))
        return super()._open(path, mode, **how)


fsspec.register_implementation("counting", CountingFileSystem, clobber=True)
URL = "counting://bucket/app-1"


@pytest.fixture
def counting() -> Iterator[type[CountingFileSystem]]:
    CountingFileSystem.store.clear()
    yield CountingFileSystem
    CountingFileSystem.store.clear()
    CountingFileSystem.calls.clear()
    CountingFileSystem.fail = staticmethod(lambda call: None)


def written(pair: Pair = SMALL) -> PartitionedFile:
    file = write_pair(URL, pair)
    CountingFileSystem.calls.clear()
    return file


def test_the_index_is_one_request(counting: type[CountingFileSystem]) -> None:
    read_stored_index(written())
    assert counting.calls == [(0, None)]


def test_near_extents_are_one_request_without_any_other(counting: type[CountingFileSystem]) -> None:
    file = written()
    first, second = planned = extents(file)
    counting.calls.clear()
    with StoredFileReader(file, planned) as reader:
        assert counting.calls == []
        for extent in planned:
            reader.read_extent(extent)
    # behind the 128 bytes of subpartition 2 come the first one's two buffers, and then the broadcast region
    assert (first.offset, first.bytes, second.offset, second.bytes) == (184, 128, 312, 64)
    assert counting.calls == [(184, 376)]


def test_extents_that_are_far_apart_are_a_request_each(counting: type[CountingFileSystem]) -> None:
    far = bytes(GAP_BYTES)
    file = written(Pair(2, 0, [Region({0: [b"a"], 1: [far]}), Region({0: [b"b"], 1: [far]})]))
    first, second = planned = extents(file)
    counting.calls.clear()
    with StoredFileReader(file, planned) as reader:
        for extent in planned:
            reader.read_extent(extent)
    assert counting.calls == [(each.offset, each.offset + each.bytes) for each in (first, second)]


def test_only_the_extents_that_it_was_opened_for_are_asked_for(counting: type[CountingFileSystem]) -> None:
    file = written()
    _, second = extents(file)
    counting.calls.clear()
    with StoredFileReader(file, [second]) as reader:
        reader.read_extent(second)
    assert counting.calls == [(second.offset, second.offset + second.bytes)]


def test_each_part_is_one_request(counting: type[CountingFileSystem]) -> None:
    file = written(Pair(1, 0, [Region({0: [bytes(100)] * 5})]))  # buffers of 128 bytes
    (extent,) = extents(file)
    counting.calls.clear()
    with StoredFileReader(file, [extent]) as reader:
        sizes = [part.memory.size for part in reader.read_parts(extent, 300)]
    assert sizes == [300, 300, 128]
    assert counting.calls == [(56, 356), (356, 56 + 556), (56 + 556, 56 + 640)]  # each byte once


# Requests


def extent_at(offset: int, size: int) -> Extent:
    return Extent(0, 0, offset, size, size, 1, 0, 1)


@pytest.mark.parametrize(
    ("places", "ranges"),
    [
        ([(56, 64)], [(56, 120)]),
        ([(56, 64), (120, 64)], [(56, 184)]),
        ([(120, 64), (56, 64)], [(56, 184)]),
        ([(0, 64), (64 + GAP_BYTES, 64)], [(0, 128 + GAP_BYTES)]),
        ([(0, 64), (65 + GAP_BYTES, 64)], [(0, 64), (65 + GAP_BYTES, 129 + GAP_BYTES)]),
        ([(0, REQUEST_BYTES)], [(0, REQUEST_BYTES)]),
        ([(8, REQUEST_BYTES + 1)], [(8, 8 + REQUEST_BYTES), (8 + REQUEST_BYTES, 9 + REQUEST_BYTES)]),
        ([(0, REQUEST_BYTES - 64), (REQUEST_BYTES - 64, 64)], [(0, REQUEST_BYTES)]),
        (
            [(0, REQUEST_BYTES - 64), (REQUEST_BYTES - 64, 128)],
            [(0, REQUEST_BYTES - 64), (REQUEST_BYTES - 64, REQUEST_BYTES + 64)],
        ),
        ([], []),
    ],
)
def test_ranges_join_what_is_near_and_cut_what_is_long(
    places: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    requests = planned_requests([extent_at(*place) for place in places])
    assert [(request.start, request.end) for request in requests] == ranges


# What is lost


def test_a_missing_object_is_missing_data(object_store: Store) -> None:
    file = write_pair(f"{object_store.root}/app-1", SMALL)
    (extent, *_) = extents(file)
    object_store.remove(file.data_path)
    with (
        StoredFileReader(file, [extent], "attempt 204") as reader,
        pytest.raises(MissingDataError, match="the data object is gone") as caught,
    ):
        reader.read_extent(extent)
    assert (caught.value.place.file, caught.value.place.writer) == (file.data_path, "attempt 204")
    object_store.remove(file.index_path)
    with pytest.raises(MissingDataError, match="the index object is gone") as caught:
        read_stored_index(file)
    assert caught.value.place.file == file.index_path


@pytest.mark.parametrize("left", [0, 56, 184, 200, 311, 312, 375])
@pytest.mark.parametrize("part_bytes", [None, 64])
def test_an_object_that_is_cut_short_is_corrupt(
    object_store: Store, left: int, part_bytes: int | None
) -> None:
    file = write_pair(f"{object_store.root}/app-1", SMALL)
    index = read_stored_index(file)
    object_store.put(file.data_path, object_store.get(file.data_path)[:left])
    with (
        StoredFileReader(file, extents_of(index, 0)) as reader,
        pytest.raises(CorruptDataError, match="cut short") as caught,
    ):
        read_subpartition(reader, index, 0, part_bytes)  # type: ignore[arg-type]
    place = caught.value.place
    assert (place.file, place.region, place.offset) == (
        file.data_path,
        *((0, 184) if left < 312 else (1, 312)),
    )


def test_an_object_of_another_map_output_fails_its_checksums(object_store: Store) -> None:
    file = write_pair(f"{object_store.root}/app-1", SMALL)
    planned = extents(file)
    other = replace(SMALL, regions=(Region({0: [b"other", b""], 2: [bytes(50)]}), *SMALL.regions[1:]))
    another = write_pair(f"{object_store.root}/app-2", other)
    object_store.put(file.data_path, object_store.get(another.data_path))
    with StoredFileReader(file, planned) as reader, pytest.raises(CorruptDataError, match="checksum"):
        reader.read_extent(planned[0])


# What is tried again


def test_a_store_that_fails_for_a_while_is_asked_again(counting: type[CountingFileSystem]) -> None:
    file = written(Pair(2, 0, [Region({0: [b"a"], 1: [bytes(GAP_BYTES)]}), Region({0: [b"b"]})]))
    first, second = planned = extents(file)
    counting.calls.clear()
    counting.fail = staticmethod(lambda call: OSError(errno.EIO, "slow down") if call in (2, 3) else None)
    with StoredFileReader(file, planned) as reader:
        assert [reader.read_extent(extent).memory.size for extent in planned] == [64, 64]
    one, two = ((each.offset, each.offset + each.bytes) for each in (first, second))
    assert counting.calls == [one, two, two, two]  # what was answered is not asked for again


def test_a_store_that_goes_on_failing_is_an_error_with_its_url(counting: type[CountingFileSystem]) -> None:
    file = written()
    planned = extents(file)
    counting.calls.clear()
    counting.fail = staticmethod(lambda call: RuntimeError("no route"))
    with (
        StoredFileReader(file, planned) as reader,
        pytest.raises(OSError, match=r"reading ranges failed: no route\. See that this host") as caught,
    ):
        reader.read_extent(planned[0])
    assert not isinstance(caught.value, DataLossError)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, file.data_path)
    assert len(counting.calls) == urls.ATTEMPTS
    with pytest.raises(OSError, match="reading an index failed: no route"):
        read_stored_index(file)


@pytest.mark.parametrize("error", [PermissionError("Forbidden"), FileNotFoundError("gone")])
def test_what_is_final_is_asked_for_once(counting: type[CountingFileSystem], error: OSError) -> None:
    file = written()
    planned = extents(file)
    counting.calls.clear()
    counting.fail = staticmethod(lambda call: error)
    with StoredFileReader(file, planned) as reader, pytest.raises((type(error), MissingDataError)):
        reader.read_extent(planned[0])
    assert len(counting.calls) == 1


def test_a_reader_that_is_given_up_asks_no_more(
    counting: type[CountingFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "FIRST_WAIT", 3600.0)
    file = written()
    planned = extents(file)
    counting.calls.clear()
    with StoredFileReader(file, planned) as reader:

        def fail(call: int) -> Exception:
            reader.give_up()  # as another thread, while the request is under way
            return TimeoutError("slow")

        counting.fail = staticmethod(fail)
        with pytest.raises(OSError, match="the read was abandoned"):
            reader.read_extent(planned[0])
    assert len(counting.calls) == 1


@pytest.mark.parametrize(
    "last", [PermissionError("Forbidden"), TimeoutError("slow"), FileNotFoundError("gone")]
)
@pytest.mark.parametrize("given_up", [False, True])
def test_an_error_that_is_gone_holds_nothing_that_was_read(
    counting: type[CountingFileSystem], monkeypatch: pytest.MonkeyPatch, last: Exception, given_up: bool
) -> None:
    class Piece(bytearray):
        """What a store gives, so that its end can be seen."""

    pieces: list[weakref.ref[Piece]] = []
    read_range = counting.cat_file

    def cat_file(self: CountingFileSystem, path: str, start: int, end: int) -> Piece:
        if pieces and given_up:
            reader.give_up()  # as another thread, while the request is under way
        if pieces:
            raise last.with_traceback(None)
        piece = Piece(read_range(self, path, start, end))
        pieces.append(weakref.ref(piece))
        return piece

    file = written(Pair(2, 0, [Region({0: [b"a"], 1: [bytes(GAP_BYTES)]}), Region({0: [b"b"]})]))
    planned = extents(file)
    gc.collect()
    gc.disable()
    try:
        with StoredFileReader(file, planned) as reader:
            monkeypatch.setattr(counting, "cat_file", cat_file)
            with suppress(OSError, MissingDataError):
                reader.read_extent(planned[0])
            assert len(pieces) == 1
            last.__traceback__ = None  # the test's own
            assert pieces[0]() is None
    finally:
        gc.enable()


def test_waits_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "FIRST_WAIT", 0.5)
    waits: list[float] = []

    def fail() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        urls.retry(fail, waits.append)
    assert waits == [0.5, 1.0]


def test_a_store_that_does_not_serve_ranges_is_refused(counting: type[CountingFileSystem]) -> None:
    file = written()
    planned = extents(file)
    whole = bytes(10 * KIB)
    with StoredFileReader(file, planned) as reader, pytest.raises(OSError, match="one that serves ranges"):
        reader._filesystem.cat_file = lambda *a, **k: whole
        try:
            reader.read_extent(planned[0])
        finally:
            del reader._filesystem.cat_file
