"""Where a name leads: as the system says, or an error within the time that the caller has."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from engine import eventually
from serving import no_descriptor_left

from sortshuffle.errors import ServiceUnavailableError
from sortshuffle.service.client import resolution
from sortshuffle.service.client.resolution import resolve

NAME = "slow.example"
FOUND = ("127.0.0.7",)


def test_an_address_in_numbers_is_itself() -> None:
    assert resolve("127.0.0.7", 0.0) == FOUND


def test_a_name_is_looked_up() -> None:
    assert set(resolve("localhost", 20.0)) <= {"127.0.0.1", "::1"}


def test_what_no_host_can_be_called_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="not the name of a host"):
        resolve("a" * 70 + ".example", 20.0)


class SlowResolver:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.found: tuple[str, ...] | OSError = FOUND
        self.answer = threading.Event()
        self._system = resolution._ask_system

    def __call__(self, host: str, flags: int = 0) -> tuple[str, ...]:
        if host != NAME or flags:
            return self._system(host, flags)
        self.asked += 1
        assert self.answer.wait(20.0)
        if isinstance(self.found, OSError):
            raise self.found
        return self.found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowResolver]:
    resolver = SlowResolver()
    monkeypatch.setattr(resolution, "_ask_system", resolver)
    yield resolver
    resolver.answer.set()
    eventually(lambda: all(each.answered.is_set() for each in resolution._open.values()), "it was answered")
    resolution._open.clear()


def test_a_resolver_that_does_not_answer_keeps_nobody(slow: SlowResolver) -> None:
    with pytest.raises(
        ServiceUnavailableError, match=r"the address of slow.example was not found within 0.01 s"
    ):
        resolve(NAME, 0.01)


def test_who_asks_again_waits_for_the_same_answer(slow: SlowResolver) -> None:
    for _ in range(3):
        with pytest.raises(ServiceUnavailableError):
            resolve(NAME, 0.01)
    eventually(lambda: slow.asked == 1, "the resolver is asked")
    assert len(resolution._open) == 1  # by one thread, for all three
    slow.answer.set()
    assert resolve(NAME, 20.0) == FOUND
    assert slow.asked == 1


def answered_late(slow: SlowResolver) -> None:
    """Nobody waits any more when the answer comes."""
    with pytest.raises(ServiceUnavailableError):
        resolve(NAME, 0.01)
    slow.answer.set()
    assert resolution._open[NAME].answered.wait(20.0)


def test_an_answer_that_comes_late_is_the_next_ones_and_only_that_ones(slow: SlowResolver) -> None:
    answered_late(slow)
    assert resolve(NAME, 0.0) == FOUND
    assert slow.asked == 1
    assert resolve(NAME, 20.0) == FOUND
    assert slow.asked == 2  # an answer is not kept: hosts move


def test_an_answer_that_nobody_wanted_for_long_is_asked_for_anew(
    slow: SlowResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_late(slow)
    monkeypatch.setattr(resolution, "KEPT", -1.0)
    assert resolve(NAME, 20.0) == FOUND
    assert slow.asked == 2


def test_a_late_error_is_forgotten(slow: SlowResolver) -> None:
    slow.found = OSError("no such name")
    with pytest.raises(ServiceUnavailableError):
        resolve(NAME, 0.01)
    slow.answer.set()
    eventually(lambda: not resolution._open, "the thread has ended")
    slow.found = FOUND
    assert resolve(NAME, 20.0) == FOUND


def test_a_forked_process_begins_anew_whoever_held_the_lock(slow: SlowResolver) -> None:
    with pytest.raises(ServiceUnavailableError):
        resolve(NAME, 0.01)
    with resolution._lock:
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(20)  # or it would hang
                if not resolution._open and resolve("localhost", 10.0):
                    status = 0
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_system_without_a_thread_for_it_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        with pytest.raises(ServiceUnavailableError, match="localhost cannot be asked for: can't start new"):
            resolve("localhost", 20.0)
    assert not resolution._open
    assert resolve("localhost", 20.0)


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure"), MemoryError()], ids=repr
)
def test_a_resolver_that_lacks_memory_says_nothing_of_the_name(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    system = resolution._ask_system

    def lacking(host: str, flags: int = 0) -> tuple[str, ...]:
        if flags:
            return system(host, flags)
        raise error

    monkeypatch.setattr(resolution, "_ask_system", lacking)
    with pytest.raises(OSError) as caught:
        resolve(NAME, 20.0)
    assert caught.value.errno == errno.ENOMEM
    assert caught.value.__cause__ is error


def test_a_resolver_that_lacks_descriptors_says_nothing_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says the same of a name that no host has. The next question is a new one."""
    system = resolution._ask_system

    def unknown(host: str, flags: int = 0) -> tuple[str, ...]:
        if flags:
            return system(host, flags)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(resolution, "_ask_system", unknown)
    with no_descriptor_left(), pytest.raises(OSError) as caught:
        resolve(NAME, 20.0)
    assert caught.value.errno == errno.EMFILE
    assert isinstance(caught.value.__cause__, socket.gaierror)
    with pytest.raises(socket.gaierror, match="Temporary failure"):
        resolve(NAME, 20.0)
