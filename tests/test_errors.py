"""The error tree: what each class is also caught as, what its message tells, and that errors survive the trip
from a worker to the driver."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from sortshuffle.errors import (
    ColumnError,
    CorruptDataError,
    DataLossError,
    FileAccessError,
    MissingDataError,
    OptionError,
    OutOfDiskError,
    Place,
    ResultOverflowError,
    SchemaMismatchError,
    SortShuffleError,
    StateError,
    UnsupportedError,
    UsageError,
    WorkerSetupError,
)

PLACE = Place("/data/x.data", 3, 17, 4096, "attempt 204 of map 17 on host")


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (UsageError, [ValueError]),
        (OptionError, [UsageError, ValueError]),
        (ColumnError, [UsageError, ValueError, LookupError]),
        (SchemaMismatchError, [UsageError, ValueError, TypeError]),
        (UnsupportedError, [UsageError, ValueError, NotImplementedError]),
        (StateError, [RuntimeError]),
        (ResultOverflowError, [OverflowError, ArithmeticError]),
        (WorkerSetupError, [ImportError]),
        (CorruptDataError, [DataLossError, ValueError]),
        (MissingDataError, [DataLossError, FileNotFoundError, OSError]),
        (OutOfDiskError, [OSError]),
        (FileAccessError, [OSError]),
    ],
)
def test_an_error_is_caught_as_what_the_table_says(kind: type, bases: list[type]) -> None:
    assert issubclass(kind, SortShuffleError)
    for base in bases:
        assert issubclass(kind, base)


def test_what_must_be_told_apart_is_not_caught_as_the_other() -> None:
    assert not issubclass(CorruptDataError, OSError)
    assert not issubclass(OutOfDiskError, DataLossError)
    assert not issubclass(DataLossError, UsageError)
    assert not issubclass(StateError, ValueError)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            PLACE,
            "/data/x.data, region 3, subpartition 17, offset 4096, written by attempt 204 of map 17 on host",
        ),
        (Place("/data/x.data"), "/data/x.data"),
        (Place("/data/x.data", 0, 0, 0), "/data/x.data, region 0, subpartition 0, offset 0"),
        (Place("/data/x.index", offset=8), "/data/x.index, offset 8"),
    ],
)
def test_a_place_tells_what_is_known(place: Place, text: str) -> None:
    assert str(place) == text


@pytest.mark.parametrize("kind", [CorruptDataError, MissingDataError])
def test_data_loss_tells_what_where_expected_found_and_what_to_do(kind: type[DataLossError]) -> None:
    error = kind(PLACE, "a buffer fails its checksum", expected="0x1", found="0x2")
    assert str(error) == (
        f"a buffer fails its checksum ({PLACE}): expected 0x1, found 0x2."
        " The task that wrote it must run again"
    )
    plain = kind(Place("/x"), "the file is gone")
    assert str(plain) == "the file is gone (/x). The task that wrote it must run again"
    assert str(kind(Place("/x"), "short", expected=0)) == (
        "short (/x): expected 0, found None. The task that wrote it must run again"
    )


@pytest.mark.parametrize("kind", [CorruptDataError, MissingDataError])
def test_data_loss_survives_pickling_whole(kind: type[DataLossError]) -> None:
    error = kind(PLACE, "what", expected=(1, 2), found=b"bytes")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.place, copy.what, copy.expected, copy.found) == (PLACE, "what", (1, 2), b"bytes")
    assert str(copy) == str(error)


def test_out_of_disk_tells_path_bytes_wanted_and_free_and_the_option() -> None:
    error = OutOfDiskError("/data", 1000, 10)
    assert (error.errno, error.path, error.wanted, error.free) == (errno.ENOSPC, "/data", 1000, 10)
    assert "no space left for 1000 bytes below /data (10 bytes free)" in str(error)
    assert "spark.sortshuffle.dir" in str(error)


def test_out_of_disk_survives_pickling_whole() -> None:
    error = OutOfDiskError("/data", 1000, 10)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is OutOfDiskError
    assert (copy.errno, copy.path, copy.wanted, copy.free) == (errno.ENOSPC, "/data", 1000, 10)
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EIO, "spark.sortshuffle.dir"), (errno.EMFILE, "ulimit -n"), (errno.ENOMEM, "memory")],
)
def test_a_refused_call_tells_the_path_and_what_helps_and_survives_pickling(number: int, remedy: str) -> None:
    error = FileAccessError(number, "/data/x.data")
    assert (error.errno, error.filename) == (number, "/data/x.data")
    assert os.strerror(number) in str(error)
    assert "/data/x.data" in str(error)
    assert remedy in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is FileAccessError
    assert (copy.errno, copy.filename, str(copy)) == (error.errno, error.filename, str(error))


@pytest.mark.parametrize(
    "kind", [UsageError, OptionError, ColumnError, SchemaMismatchError, UnsupportedError, StateError]
)
def test_plain_errors_are_shown_as_their_message_and_survive_pickling(kind: type[SortShuffleError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what is wrong")))
    assert type(copy) is kind
    assert str(copy) == "what is wrong"
