"""The commit of a Parquet job that is interrupted at a rename: the target is as before or wholly written.
No old files are left beside it, unless another writer is in the way. Then the error says where they are."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sortshuffle import calls
from sortshuffle.spark.frame import parquet_job
from sortshuffle.spark.frame.parquet_job import ParquetJob, _commit

OLD, NEW = ["old-1.parquet", "old-2.parquet"], ["new-1.parquet", "new-2.parquet"]


def make(directory: Path, names: list[str]) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text("" if name == "_SUCCESS" else directory.name)
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


def assert_noted(error: BaseException, text: str) -> None:
    if sys.version_info >= (3, 11):
        assert text in "".join(error.__notes__)


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
    assert contents(out) == {name: "" if name == "_SUCCESS" else "out" for name in had}
    assert names(staged) == ["out", "staging"]


def test_an_append_that_fails_keeps_what_another_writer_has_added_meanwhile(
    staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = make(staged / "out", OLD)

    def rename(source: str, target: str) -> None:
        if target == str(out / NEW[1]):
            (out / "other.parquet").write_text("other")
            (out / "_SUCCESS").write_text("")
            raise KeyboardInterrupt
        os.rename(source, target)

    monkeypatch.setattr(calls, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        commit(staged, "append")
    assert contents(out) == {**dict.fromkeys(OLD, "out"), "other.parquet": "other", "_SUCCESS": ""}


def test_an_append_that_fails_removes_what_it_can_and_says_what_is_left(
    staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = make(staged / "out", OLD)

    def unlink(path: str) -> None:
        if path == str(out / NEW[0]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        os.unlink(path)

    monkeypatch.setattr(calls, "rename", fail_at(2, OSError(errno.ENOSPC, "full"), is_done=False))
    monkeypatch.setattr(calls, "unlink", unlink)
    with pytest.raises(OSError, match="full") as caught:
        commit(staged, "append")
    assert contents(out) == {**dict.fromkeys(OLD, "out"), NEW[0]: "whole"}
    assert_noted(caught.value, NEW[0])
    assert NEW[1] not in "".join(getattr(caught.value, "__notes__", []))


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


@pytest.mark.parametrize("is_made_again", [False, True], ids=["moved away", "made again"])
def test_an_overwrite_whose_target_another_writer_takes_at_once_brings_no_old_rows_back(
    staged: Path, is_made_again: bool
) -> None:
    out = make(staged / "out", OLD)
    whole = staged / "staging" / "whole"
    rename = calls.rename

    def take(source: str, target: str) -> None:
        rename(source, target)
        if source == str(whole):
            rename(str(out), str(staged / "taken"))
            if is_made_again:
                make(out, ["other.parquet"])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "rename", take)
        commit(staged, "overwrite")
    assert contents(staged / "taken") == {**dict.fromkeys(NEW, "whole"), "_SUCCESS": ""}
    assert names(staged) == [*(["out"] if is_made_again else []), "staging", "taken"]


def test_old_files_are_deleted_after_an_interrupt_while_they_are_deleted(staged: Path) -> None:
    out = make(staged / "out", OLD)
    rmtree, left = calls.rmtree, [KeyboardInterrupt()]

    def interrupted(path: str) -> None:
        if left:
            (staged / "replaced" / OLD[0]).unlink()
            raise left.pop()
        rmtree(path)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(calls, "rmtree", interrupted)
        commit(staged, "overwrite")
    assert contents(out) == {**dict.fromkeys(NEW, "whole"), "_SUCCESS": ""}
    assert names(staged) == ["out", "staging"]


def test_old_files_that_cannot_be_deleted_are_named(staged: Path) -> None:
    out = make(staged / "out", OLD)

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(OSError, match="Input/output") as caught:
        patched.setattr(calls, "rmtree", refuse)
        commit(staged, "overwrite")
    assert contents(out) == {**dict.fromkeys(NEW, "whole"), "_SUCCESS": ""}
    assert_noted(caught.value, str(staged / "replaced"))


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

    with pytest.MonkeyPatch.context() as patched, pytest.raises(OSError, match="not empty") as caught:
        patched.setattr(calls, "rename", make_again)
        commit(staged, "overwrite")
    assert names(out) == ["other.parquet"]
    assert names(staged / "replaced") == OLD
    assert_noted(caught.value, str(staged / "replaced"))


def test_old_files_are_not_deleted_if_the_new_ones_are_gone_and_the_target_is_somebody_elses(
    staged: Path,
) -> None:
    out = make(staged / "out", OLD)
    rename = calls.rename

    def lose(source: str, target: str) -> None:
        rename(source, target)
        if source == str(out):
            calls.rmtree(str(staged / "staging" / "whole"))
            make(out, ["other.parquet"])

    with pytest.MonkeyPatch.context() as patched, pytest.raises(FileNotFoundError) as caught:
        patched.setattr(calls, "rename", lose)
        commit(staged, "overwrite")
    assert names(out) == ["other.parquet"]
    assert contents(staged / "replaced") == dict.fromkeys(OLD, "out")
    assert_noted(caught.value, str(staged / "replaced"))


def test_spark_forgets_the_old_files_even_if_an_interrupt_comes_when_the_commit_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(job: ParquetJob, attempts: str) -> list[str]:
        for name in NEW:
            Path(attempts, name).write_text("")
        return NEW

    refreshed: list[str] = []
    monkeypatch.setattr(ParquetJob, "_closing", lambda job, attempts, number: attempts)
    monkeypatch.setattr(ParquetJob, "_run", write)
    monkeypatch.setattr(parquet_job, "_refresh", lambda spark, target: refreshed.append(target))
    monkeypatch.setattr(calls, "rename", fail_at(len(NEW), KeyboardInterrupt(), is_done=True))
    out = tmp_path / "out"
    chain: Any = SimpleNamespace(context=SimpleNamespace(spark=None))
    with pytest.raises(KeyboardInterrupt):
        ParquetJob(chain, lambda: 1, str(out), "overwrite", "none", int96=False).run()
    assert names(out) == sorted([*NEW, "_SUCCESS"])
    assert refreshed == [str(out)]
    assert names(tmp_path) == ["out"]
