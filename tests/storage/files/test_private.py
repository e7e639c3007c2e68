"""Directories that are made for one user are so from the first one that was missing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sortshuffle import calls
from sortshuffle.storage.files.private import make_private


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_all_that_is_made_is_for_one_user(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(umask)
    try:
        make_private(str(tmp_path / "a" / "b" / "c"))
        make_private(str(tmp_path / "a" / "b" / "d"))
    finally:
        os.umask(before)
    made = ["a", "a/b", "a/b/c", "a/b/d"]
    assert [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in made] == [0o700] * 4
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_what_is_there_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    make_private(str(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        make_private(str(tmp_path / "file" / "below"))


def test_what_others_remove_above_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who removes the last home of an application removes the empty directories above, too."""
    above = tmp_path / "sortshuffle" / "app-1"
    times = 0

    def mkdir(path: str, mode: int) -> None:
        nonlocal times
        if path.endswith("home") and times < 2:
            times += 1
            os.removedirs(above)
            tmp_path.mkdir(exist_ok=True)
        os.mkdir(path, mode)

    monkeypatch.setattr(calls, "mkdir", mkdir)
    make_private(str(above / "home"))
    assert times == 2
    assert (above / "home").is_dir()


def test_what_others_have_made_and_remove_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when it is to be made, and gone, with what is above, when that is looked at."""
    above = tmp_path / "sortshuffle" / "app-1"
    (above / "home").mkdir(parents=True)
    times = 0

    def mkdir(path: str, mode: int) -> None:
        nonlocal times
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            times += 1
            os.removedirs(path)
            tmp_path.mkdir(exist_ok=True)
            raise

    monkeypatch.setattr(calls, "mkdir", mkdir)
    make_private(str(above / "home"))
    assert times == 1
    assert (above / "home").is_dir()


def test_what_is_removed_again_and_again_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(path: str, mode: int) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(calls, "mkdir", mkdir)
    with pytest.raises(FileNotFoundError):
        make_private(str(tmp_path / "home"))
