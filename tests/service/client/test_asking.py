"""Many services asked the same: those that answer, those that do not, and a process that gets no threads."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from engine import DRIVER
from failing import no_threads
from scripted_server import Peer, ScriptedServer

from sortshuffle import calls
from sortshuffle.service.client.asking import AT_ONCE, ask_each
from sortshuffle.service.client.client import ServiceClient
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.wire.protocol import FoundOutput, Kind, MapOutputAddress, pack_find_response

WANTED = MapOutputAddress("app", 1, 2, file_id=DRIVER)
MANY = 100_000  # more questions than can be answered in a second
NOBODY = "127.0.0.1:1"  # where nobody listens


def find(client: ServiceClient) -> FoundOutput | None:
    return client.find(WANTED)


def answered(address: str) -> FoundOutput:
    return FoundOutput(b"i" * 16, 5, "/home/exchange-1-map-2-attempt-5", address)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def services(opened: ExitStack, count: int) -> list[str]:
    """Addresses of services that answer with the port that they were asked at."""

    def answer(peer: Peer) -> None:
        while (header := peer.next()[0]).kind is Kind.FIND_REQUEST:
            host, port = peer.socket.getsockname()
            peer.send(pack_find_response(header.channel, answered(f"{host}:{port}")))

    return [opened.enter_context(ScriptedServer(answer)).address for _ in range(count)]


def silent_ones(opened: ExitStack, count: int) -> list[str]:
    """Addresses at which connections are taken, and nothing is ever said."""
    listening = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
    return [f"127.0.0.1:{each.getsockname()[1]}" for each in listening]


def test_silent_services_hold_up_no_others(opened: ExitStack) -> None:
    silent, speaking = silent_ones(opened, AT_ONCE - 1), services(opened, 2 * AT_ONCE)
    answers = ask_each([*silent, NOBODY, *speaking], find, ClientSettings(timeout=2.0), within=60.0)
    assert answers == {
        **dict.fromkeys(silent),
        NOBODY: None,
        **{address: answered(address) for address in speaking},
    }


def test_where_the_time_is_over_nobody_else_is_asked(opened: ExitStack) -> None:
    silent = silent_ones(opened, 2 * AT_ONCE)
    assert ask_each(silent, find, ClientSettings(timeout=600.0), within=0.5) == {}


def test_services_that_did_not_have_all_of_their_time_do_not_count_as_silent(opened: ExitStack) -> None:
    """The last ones are asked when less is left than they may take."""
    silent = silent_ones(opened, 2 * AT_ONCE)
    answers = ask_each(silent, find, ClientSettings(timeout=1.2), within=2.35)
    assert answers == dict.fromkeys(silent[:AT_ONCE])


def test_however_many_questions_there_are_they_end_with_the_time(opened: ExitStack) -> None:
    """Each is answered in time."""
    asked = []

    def find_again_and_again(client: ServiceClient) -> int:
        while len(asked) < MANY:
            asked.append(client.find(WANTED))
        return len(asked)

    assert ask_each(services(opened, 1), find_again_and_again, ClientSettings(), within=1.0) == {}
    assert 0 < len(asked) < MANY


def test_a_process_that_gets_no_thread_gets_no_answer(opened: ExitStack) -> None:
    speaking = services(opened, 3)
    with no_threads():
        assert ask_each(speaking, find, ClientSettings(), within=60.0) == {}
    assert ask_each(speaking, find, ClientSettings(), within=60.0) == {
        address: answered(address) for address in speaking
    }


def test_where_there_is_room_for_a_few_at_once_all_are_asked(opened: ExitStack) -> None:
    room, met, calls_so_far = threading.Semaphore(2), threading.Barrier(AT_ONCE), itertools.count()

    def find_where_there_is_room(client: ServiceClient) -> FoundOutput | None:
        if next(calls_so_far) < AT_ONCE:
            met.wait(60.0)
        if not room.acquire(blocking=False):
            raise MemoryError
        try:
            return find(client)
        finally:
            room.release()

    speaking = services(opened, 4 * AT_ONCE)
    answers = ask_each(speaking, find_where_there_is_room, ClientSettings(), within=60.0)
    assert answers == {address: answered(address) for address in speaking}


def test_where_there_is_no_room_at_all_each_is_tried_once_and_once_by_each_thread() -> None:
    tried = []

    def fail(client: ServiceClient) -> None:
        tried.append(client.address)
        raise MemoryError

    addresses = [f"127.0.0.1:{1 + number}" for number in range(4 * AT_ONCE)]
    assert ask_each(addresses, fail, ClientSettings(), within=60.0) == {}
    assert set(tried) == set(addresses)
    assert len(tried) == len(addresses) + AT_ONCE


@pytest.mark.parametrize("what", ["EMFILE", "ENFILE", "ENOMEM", "EADDRNOTAVAIL"])
def test_nothing_is_said_of_services_that_a_process_has_no_means_to_ask(
    opened: ExitStack, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaking, other = services(opened, 2)
    connect = calls.create_connection

    def failing(address: tuple[str, int], *arguments: Any) -> socket.socket:
        if other.endswith(f":{address[1]}"):
            number = getattr(errno, what)
            raise OSError(number, os.strerror(number))
        return connect(address, *arguments)

    monkeypatch.setattr(calls, "create_connection", failing)
    answers = ask_each([other, NOBODY, speaking], find, ClientSettings(timeout=0.5), within=60.0)
    assert answers == {NOBODY: None, speaking: answered(speaking)}
