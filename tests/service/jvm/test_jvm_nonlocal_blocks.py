"""What an engine keeps of map outputs elsewhere: how much, and for how long; and how it looks for many."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest
from consumers import PATIENCE
from engine import eventually

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import ENTRY, Index, WriterInfo
from sortshuffle.service.jvm import nonlocal_blocks
from sortshuffle.service.jvm.nonlocal_blocks import NonLocalCache, map_in_threads
from sortshuffle.service.jvm.outputs import MapOutputCache, SmallMapOutput
from sortshuffle.service.jvm.small_outputs import SmallOutputRecords
from sortshuffle.storage.files.partitioned_file import PartitionedFile


def index_of(number: int, subpartitions: int, shuffle: int = 1) -> Index:
    header = FileHeader(number.to_bytes(16, "big"), subpartitions, 0, Codec.NONE, PayloadKind.RECORD_BYTES)
    writer = WriterInfo(exchange=shuffle)
    return Index(header, np.zeros((1, subpartitions), ENTRY), (), b"", writer, 0)


def test_what_is_known_of_a_removed_shuffle_is_forgotten() -> None:
    known = NonLocalCache(MapOutputCache())
    for shuffle in (1, 2):
        known.indexes.keep(index_of(shuffle, 10, shuffle))
        records = SmallOutputRecords(b"record", np.array([6]), np.array([6]))
        known.small.keep(SmallMapOutput(file_of(shuffle), bytes([shuffle]), records))
    ids = [index_of(1, 10).header.file_id, index_of(2, 10).header.file_id, bytes([1]), bytes([2])]
    assert list(known.get_all(ids)) == ids
    known.forget_all(1)
    assert list(known.get_all(ids)) == [ids[1], ids[3]]


def file_of(shuffle: int) -> PartitionedFile:
    return PartitionedFile.named("directory", shuffle, 0, 0)


def start_only(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The system has only so many threads for this process."""
    start, left = threading.Thread.start, iter(range(count))

    def start_or_fail(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_what_is_called_in_threads_returns_in_the_order_of_the_items(threads: int) -> None:
    assert map_in_threads(str, range(20), threads, "looking") == [str(number) for number in range(20)]
    assert map_in_threads(str, [], threads, "looking") == []


@pytest.mark.parametrize(("count", "stay"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_where_there_are_too_few_threads_half_of_them_end_and_the_callers_own_calls(
    monkeypatch: pytest.MonkeyPatch, count: int, stay: int
) -> None:
    """A call may need a thread itself, and waits for one: it would not get those that wait with it."""
    together = threading.Barrier(stay + 1)
    names: set[str] = set()

    def look(number: int) -> tuple[int, str]:
        name = threading.current_thread().name
        if name not in names:  # each thread has a part
            names.add(name)
            together.wait(PATIENCE)
        return number, name

    with monkeypatch.context() as patch:
        start_only(patch, count)
        found = map_in_threads(look, range(20), 4, "looking")
    assert [number for number, _ in found] == list(range(20))
    assert {name for _, name in found} == names
    assert threading.current_thread().name in names
    assert len(names) == stay + 1
    assert not any(thread.name.startswith("looking") for thread in threading.enumerate())


def test_a_call_gets_a_thread_that_others_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has one thread for this process, which the first look takes."""
    start, others = threading.Thread.start, threading.active_count()

    def start_or_fail(thread: threading.Thread) -> None:
        if threading.active_count() > others:
            raise RuntimeError("can't start new thread")
        start(thread)

    def has_started(thread: threading.Thread) -> bool:
        try:
            thread.start()
        except RuntimeError:
            return False
        thread.join()
        return True

    def look(number: int) -> int:
        link = threading.Thread(target=int)
        eventually(lambda: has_started(link), "there is a thread for the call")
        return number

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    assert map_in_threads(look, range(3), 4, "looking") == [0, 1, 2]


def test_what_a_call_in_a_thread_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda number: 1 // number, [1, 0, 1], 2, "looking")


def test_after_an_error_no_further_call_begins_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    called, cleared = [], threading.Event()

    class Watched(deque[object]):
        def clear(self) -> None:
            super().clear()
            cleared.set()

    def look(number: int) -> None:
        called.append(number)
        if number == 1:
            raise KeyError("a bug")
        assert cleared.wait(PATIENCE)

    monkeypatch.setattr(nonlocal_blocks, "deque", Watched)
    with pytest.raises(KeyError):
        map_in_threads(look, range(20), 2, "looking")
    assert sorted(called) == [0, 1]
