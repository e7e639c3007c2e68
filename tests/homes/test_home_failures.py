"""Homes that failed are remembered for a while: by the process, and in the home for the executor's others."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import names, printed

from sortshuffle.errors import OutOfDiskError
from sortshuffle.homes import home_failures
from sortshuffle.homes.home_failures import MARKER_FILE, SKIP_SECONDS

BROKEN = OSError(errno.EIO, "Input/output error")


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    """What other tests made this process remember does not count, nor is it lost."""
    failures, known = dict(home_failures._failures), set(home_failures._known)
    home_failures._failures.clear()
    home_failures._known.clear()
    yield
    home_failures._failures.clear()
    home_failures._failures.update(failures)
    home_failures._known.clear()
    home_failures._known.update(known)


def forget() -> None:
    """As another process."""
    home_failures._failures.clear()


def test_a_home_that_did_not_fail_is_not_known_to_have(tmp_path: Path) -> None:
    for home in (str(tmp_path), str(tmp_path / "gone")):
        assert home_failures.failed_at(home) is None
        assert home_failures.last_error(home) is None


def test_a_failure_is_remembered_with_its_reason(tmp_path: Path) -> None:
    home_failures.remember(str(tmp_path), BROKEN)
    assert home_failures.failed_at(str(tmp_path)) is not None
    found = home_failures.last_error(str(tmp_path))
    assert (type(found), str(found)) == (OSError, str(BROKEN))
    assert (tmp_path / MARKER_FILE).read_text() == "[Errno 5] Input/output error\n"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "gone", "/home/file"),
        OSError("no number"),
        OutOfDiskError("/home", 10, 5),
    ],
)
def test_what_is_remembered_holds_nothing_of_the_call_that_failed(tmp_path: Path, error: OSError) -> None:
    """Nor what was going on when the error was raised again by somebody who looked it up."""
    try:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise error from cause
    except OSError as caught:
        home_failures.remember(str(tmp_path), caught)
    for _ in range(2):
        found = home_failures.last_error(str(tmp_path))
        assert found is not None
        assert (type(found), str(found), found.filename) == (type(error), str(error), error.filename)
        assert (found.__traceback__, found.__cause__, found.__context__) == (None, None, None)
        with pytest.raises(OSError):
            raise found


def test_other_processes_see_it_in_the_home(tmp_path: Path) -> None:
    home_failures.remember(str(tmp_path), BROKEN)
    forget()
    assert home_failures.failed_at(str(tmp_path)) == os.stat(tmp_path / MARKER_FILE).st_mtime
    program = "import sys; from sortshuffle.homes import home_failures as homes"
    program += "; print(homes.failed_at(sys.argv[1]))"
    assert printed(program, str(tmp_path)) == [str(home_failures.failed_at(str(tmp_path)))]


def test_a_home_that_takes_no_file_is_remembered_by_the_process(tmp_path: Path) -> None:
    home = str(tmp_path / "gone")
    home_failures.remember(home, BROKEN)
    assert home_failures.failed_at(home) is not None
    forget()
    assert home_failures.failed_at(home) is None


def test_it_is_forgotten_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_failures.remember(str(tmp_path), BROKEN)
    at = home_failures.failed_at(str(tmp_path))
    assert at is not None
    monkeypatch.setattr(home_failures.time, "time", lambda: at + SKIP_SECONDS - 1)
    assert home_failures.failed_at(str(tmp_path)) == at
    monkeypatch.setattr(home_failures.time, "time", lambda: at + SKIP_SECONDS)
    assert home_failures.failed_at(str(tmp_path)) is None


def test_a_clock_that_was_set_back_does_not_prolong_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home_failures.remember(str(tmp_path), BROKEN)
    at = home_failures.failed_at(str(tmp_path))
    assert at is not None
    monkeypatch.setattr(home_failures.time, "time", lambda: at - 3600)
    assert home_failures.failed_at(str(tmp_path)) is None


@pytest.mark.parametrize("of_a_file", [True, False])
def test_an_error_that_names_a_home_or_a_file_in_it_is_the_homes(tmp_path: Path, of_a_file: bool) -> None:
    home = str(tmp_path)
    home_failures.watch((home, "/another"))
    if of_a_file:
        home_failures.note_failure(OSError(errno.EROFS, "Read-only", os.path.join(home, "x.data.partial")))
    else:
        home_failures.note_failure(OutOfDiskError(home, 10, 5))
    assert home_failures.failed_at(home) is not None
    assert home_failures.failed_at("/another") is None


@pytest.mark.parametrize(
    "error",
    [
        OSError("no path"),
        OSError(errno.EIO, "of a descriptor", 7),
        OSError(errno.EIO, "elsewhere", "/elsewhere/x"),
        OutOfDiskError("/elsewhere", 10, 5),
        FileNotFoundError(errno.ENOENT, "the user's", "/data/input.parquet"),
    ],
)
def test_other_errors_are_nobodys(tmp_path: Path, error: OSError) -> None:
    home_failures.watch((str(tmp_path),))
    home_failures.note_failure(error)
    assert home_failures._failures == {}
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EEXIST])
def test_what_is_said_of_the_process_or_of_a_name_is_not_the_homes_fault(tmp_path: Path, code: int) -> None:
    home_failures.watch((str(tmp_path),))
    home_failures.note_failure(OSError(code, os.strerror(code), str(tmp_path / "file")))
    assert home_failures.failed_at(str(tmp_path)) is None
