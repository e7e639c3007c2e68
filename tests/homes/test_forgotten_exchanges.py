"""What tasks leave word of is what the host's service finds, and nothing is taken back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from engine import names

from sortshuffle import calls
from sortshuffle.homes import forgotten_exchanges
from sortshuffle.homes.forgotten_exchanges import read_exchanges, record_exchanges


def test_what_was_told_is_found_by_driver(tmp_path: Path) -> None:
    assert read_exchanges(str(tmp_path)) == set()
    record_exchanges(str(tmp_path), "0a0b", [3, 5])
    record_exchanges(str(tmp_path), "0c0d", [3])
    assert read_exchanges(str(tmp_path)) == {("0a0b", 3), ("0a0b", 5), ("0c0d", 3)}


def test_what_is_told_later_comes_to_what_is_there(tmp_path: Path) -> None:
    """Tasks run in another order than their stages were planned in."""
    record_exchanges(str(tmp_path), "0a0b", [3, 5])
    record_exchanges(str(tmp_path), "0a0b", [3])
    record_exchanges(str(tmp_path), "0a0b", [9])
    assert read_exchanges(str(tmp_path)) == {("0a0b", 3), ("0a0b", 5), ("0a0b", 9)}
    assert names(tmp_path) == ["forgotten-0a0b.json"]


def test_of_two_that_tell_at_once_both_are_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes when the first has read what is there, and goes as far as it can."""
    replace, flock = calls.replace, calls.flock
    others: list[threading.Thread] = []
    goes_on = threading.Event()

    def second() -> None:
        record_exchanges(str(tmp_path), "0a0b", [5])
        goes_on.set()

    def locking(descriptor: int, how: int) -> None:
        if others:
            goes_on.set()  # it waits, from here on
        flock(descriptor, how)

    def replacing(partial: str, path: str) -> None:
        if not others:
            others.append(threading.Thread(target=second))
            others[0].start()
            assert goes_on.wait(20)
        replace(partial, path)

    monkeypatch.setattr(calls, "flock", locking)
    monkeypatch.setattr(calls, "replace", replacing)
    monkeypatch.setattr(os, "getpid", threading.get_ident)  # as two processes have names of their own
    record_exchanges(str(tmp_path), "0a0b", [3])
    others[0].join()
    assert read_exchanges(str(tmp_path)) == {("0a0b", 3), ("0a0b", 5)}
    assert names(tmp_path) == ["forgotten-0a0b.json"]


def test_a_holder_that_was_stopped_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgotten_exchanges, "LOCK_PATIENCE", 0.02)
    with forgotten_exchanges._locked(str(tmp_path)), pytest.raises(TimeoutError, match="hold the lock"):
        record_exchanges(str(tmp_path), "0a0b", [3])
    record_exchanges(str(tmp_path), "0a0b", [4])
    assert read_exchanges(str(tmp_path)) == {("0a0b", 4)}


def test_a_process_that_was_forked_meanwhile_keeps_no_lock(tmp_path: Path) -> None:
    with forgotten_exchanges._locked(str(tmp_path)):
        copies = [os.dup(int(name)) for name in os.listdir("/proc/self/fd") if _is(name, tmp_path)]
    try:
        record_exchanges(str(tmp_path), "0a0b", [3])
    finally:
        for each in copies:
            os.close(each)
    assert copies
    assert read_exchanges(str(tmp_path)) == {("0a0b", 3)}


def _is(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False


@pytest.mark.parametrize("text", ["", "{", "7", '["a"]', "[[1]]"])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "forgotten-0a0b.json").write_text(text)
    (tmp_path / "owner.json").write_text("[3]")
    assert read_exchanges(str(tmp_path)) == set()
    record_exchanges(str(tmp_path), "0a0b", [3])
    assert read_exchanges(str(tmp_path)) == {("0a0b", 3)}


def test_a_home_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record_exchanges(str(tmp_path / "gone"), "0a0b", [3])
    with pytest.raises(FileNotFoundError):
        read_exchanges(str(tmp_path / "gone"))
