"""The commit of a Parquet job that is interrupted at a rename: the target is as before or wholly written, and
nothing is left beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sortshuffle import calls
from sortshuffle.spark.frame.parquet_job import _commit

OLD, NEW = ["old-1.parquet", "old-2.parquet"], ["new-1.parquet", "new-2.parquet"]


def make(directory: Path, names: list[str]) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text(directory.name)
    return directory


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def fail_at(at: int, error: BaseException, is_done: bool) -> Callable[[str, str], None]:
    """A rename whose call number ``at`` raises. ``is_done``: after it has renamed, as an interrupt may."""
    calls_left = iter(range(at, -1, -1))

    def rename(source: str, target: str) -> None:
        is_last = next(calls_left, None) == 0
        if not is_last or is_done:
            os.rename(source, target)
        if is_last:
            raise error

    return rename


def commit(directory: Path, how: str) -> None:
    staging = directory / "staging"
    _commit(
        str(staging / "whole"),
        str(directory / "out"),
        NEW,
        replaced=str(directory / "replaced"),
        how=how,
    )


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A directory with what is to be committed."""
    (tmp_path / "staging").mkdir()
    make(tmp_path / "staging" / "whole", NEW)
    return tmp_path


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("had", [OLD, [*OLD, "_SUCCESS"]], ids=["unmarked", "marked"])
def test_an_append_that_is_interrupted_appends_nothing(
    staged: Path, monkeypatch: pytest.MonkeyPatch, had: list[str], at: int, is_done: bool
) -> None:
    out = make(staged / "out", had)
    monkeypatch.setattr(calls, "rename", fail_at(at, KeyboardInterrupt(), is_done))
    with pytest.raises(KeyboardInterrupt):
        commit(staged, "append")
    assert names(out) == sorted(had)
    assert names(staged) == ["out", "staging"]


@pytest.mark.parametrize("had", [OLD, None], ids=["a directory", "a file"])
@pytest.mark.parametrize(
    ("at", "is_done", "is_new"),
    [(0, False, False), (0, True, False), (1, False, False), (1, True, True)],
    ids=["before", "old one moved", "old one gone", "new one moved"],
)
def test_an_overwrite_that_is_interrupted_leaves_the_old_or_the_new(
    staged: Path,
    monkeypatch: pytest.MonkeyPatch,
    had: list[str] | None,
    at: int,
    is_done: bool,
    is_new: bool,
) -> None:
    out = staged / "out"
    out.write_text("out") if had is None else make(out, had)
    monkeypatch.setattr(calls, "rename", fail_at(at, KeyboardInterrupt(), is_done))
    with pytest.raises(KeyboardInterrupt):
        commit(staged, "overwrite")
    if is_new:
        assert contents(out) == {**dict.fromkeys(NEW, "whole"), "_SUCCESS": ""}
    elif had is None:
        assert out.read_text() == "out"
    else:
        assert contents(out) == dict.fromkeys(had, "out")
    assert names(staged) == (["out", "staging"])


def test_an_overwrite_that_has_lost_its_files_restores_the_target(staged: Path) -> None:
    out = make(staged / "out", OLD)
    rename = calls.rename

    def lose(source: str, target: str) -> None:
        rename(source, target)
        if source == str(out):
            rename(str(staged / "staging" / "whole"), str(staged / "gone"))

    with pytest.MonkeyPatch.context() as patched, pytest.raises(FileNotFoundError):
        patched.setattr(calls, "rename", lose)
        commit(staged, "overwrite")
    assert contents(out) == dict.fromkeys(OLD, "out")
    assert names(staged) == ["gone", "out", "staging"]


def test_an_overwrite_keeps_the_old_files_if_somebody_else_has_made_the_target_meanwhile(
    staged: Path,
) -> None:
    out = make(staged / "out", OLD)
    rename = calls.rename

    def make_again(source: str, target: str) -> None:
        rename(source, target)
        if source == str(out):
            make(out, ["other.parquet"])

    with pytest.MonkeyPatch.context() as patched, pytest.raises(OSError, match="not empty"):
        patched.setattr(calls, "rename", make_again)
        commit(staged, "overwrite")
    assert names(out) == ["other.parquet"]
    assert names(staged / "replaced") == OLD
