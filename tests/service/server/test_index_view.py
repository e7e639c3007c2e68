"""The index file as a channel streams it: for credit, from anywhere, and told when it goes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from consumers import random_pair
from engine import open_files, write_pair
from serving import no_descriptor_left

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, MissingDataError, UsageError
from sortshuffle.service.server.index_view import IndexView
from sortshuffle.storage.files.partitioned_file import PartitionedFile

SEGMENT = 512
ALL = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return write_pair(tmp_path, random_pair(60, 1, 1))


def taken(view: IndexView, credits: int, most: int = ALL) -> tuple[bytes, int, int, bool]:
    portion = view.poll(credits, most)
    assert portion is not None
    data = b"".join(map(bytes, (piece for run in portion.runs for piece in run)))
    portion.recycle()
    return data, portion.credits, portion.backlog, portion.end_of_partition


def test_it_is_sent_for_credit_and_ends_once(file: PartitionedFile) -> None:
    index = Path(file.index_path).read_bytes()
    segments = -(-len(index) // SEGMENT)
    view = IndexView(file, SEGMENT)
    assert not view.is_available(0)
    assert view.poll(0, ALL) is None
    assert taken(view, 2) == (index[: 2 * SEGMENT], 2, segments - 2, False)
    left = -(-(len(index) - 1724) // SEGMENT)
    assert taken(view, 100, most=700) == (index[1024:1724], 2, left, False)
    rest, _, backlog, ended = taken(view, 100)
    assert (rest, backlog, ended) == (index[1724:], 0, True)
    assert view.poll(100, ALL) is None
    assert not view.is_available(0)
    assert open_files(Path(file.base).parent) == []


def test_it_begins_anywhere_and_the_end_is_free(file: PartitionedFile) -> None:
    index = Path(file.index_path).read_bytes()
    assert taken(IndexView(file, SEGMENT, 100), 100)[0] == index[100:]
    at_end = IndexView(file, SEGMENT, len(index))
    assert at_end.is_available(0)
    assert taken(at_end, 0) == (b"", 0, 0, True)
    with pytest.raises(UsageError, match="are to be skipped"):
        IndexView(file, SEGMENT, len(index) + 1)


def test_an_index_that_goes_is_missing(file: PartitionedFile) -> None:
    view = IndexView(file, SEGMENT)
    os.unlink(file.index_path)
    assert view.poll(1, ALL) is None
    assert isinstance(view.cause, MissingDataError)
    assert view.is_available(0)
    with pytest.raises(MissingDataError):
        IndexView(file, SEGMENT)


def test_an_index_that_cannot_be_opened_for_want_of_descriptors_is_not_missing(file: PartitionedFile) -> None:
    view = IndexView(file, SEGMENT)
    with no_descriptor_left():
        portion = view.poll(1, ALL)
    assert portion is None
    assert isinstance(view.cause, OSError) and view.cause.errno == errno.EMFILE


def test_an_index_that_is_cut_short_is_damaged(file: PartitionedFile) -> None:
    view = IndexView(file, SEGMENT)
    os.truncate(file.index_path, 100)
    assert view.poll(1, ALL) is None
    assert isinstance(view.cause, CorruptDataError)
    assert view.cause.place.file == file.index_path


def test_whose_size_the_system_cannot_tell_for_now_is_not_missing(
    file: PartitionedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(path: str) -> os.stat_result:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)

    monkeypatch.setattr(calls, "stat", no_memory)
    with pytest.raises(OSError) as caught:
        IndexView(file, SEGMENT)
    assert caught.value.errno == errno.ENOMEM
    assert not isinstance(caught.value, MissingDataError)


def test_an_index_of_which_the_system_gives_a_little_at_a_time_is_whole(
    file: PartitionedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = IndexView(file, SEGMENT)
    monkeypatch.setattr(calls, "pread", lambda descriptor, size, at: os.pread(descriptor, min(size, 100), at))
    assert taken(view, 100)[0] == Path(file.index_path).read_bytes()


def test_what_is_released_gives_nothing(file: PartitionedFile) -> None:
    view = IndexView(file, SEGMENT)
    view.release()
    assert view.poll(1, ALL) is None
    assert view.cause is None
