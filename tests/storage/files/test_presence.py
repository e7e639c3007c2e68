"""Whether a file is there and its writer works on it: known for certain, or else taken to be so."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from sortshuffle import calls
from sortshuffle.storage.files.presence import is_gone, is_locked


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


def test_a_lock_is_seen_while_it_is_held(file: Path) -> None:
    assert not is_locked(str(file))
    with open(file) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert is_locked(str(file))
    assert not is_locked(str(file))
    assert not is_locked(str(file) + "-gone")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS], ids=errno.errorcode.get)
def test_where_locks_cannot_be_asked_for_a_file_counts_as_locked(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on Lustre, mounted without flock."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(calls, "flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    assert is_locked(str(file))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_locked(str(tmp_path / "pipe"))


def test_a_path_of_which_the_system_says_nothing_counts_as_there_and_locked(tmp_path: Path) -> None:
    too_long = str(tmp_path / ("n" * 300))
    assert not is_gone(too_long)
    assert is_locked(too_long)
