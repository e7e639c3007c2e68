"""A client's plain wire: it is woken when enough is there, and never waits for more than what will come."""

from __future__ import annotations

import fcntl
import socket
import termios
import threading
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from consumers import PATIENCE
from engine import eventually

from sortshuffle import calls
from sortshuffle.service.client.wires import WAKE_BYTES, PlainWire

BODY = 100_000  # bytes: more than arrive at once, less than `WAKE_BYTES`
TICK = 0.01  # seconds


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(listening.getsockname()))
        yield ours, stack.enter_context(listening.accept()[0])


def wakes_at(one: socket.socket) -> int:
    return one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def arrived(one: socket.socket) -> int:
    """Bytes that can be received at once."""
    size = array("i", [0])
    fcntl.ioctl(one, termios.FIONREAD, size)
    return size[0]


def filled(wire: PlainWire, view: memoryview) -> None:
    while view:
        view = view[wire.receive(view) :]


def test_a_wait_ends_when_all_of_a_body_is_there() -> None:
    with connected() as (ours, _):
        wire = PlainWire(ours, TICK, PATIENCE)
        for size in (BODY, 24, BODY):
            with pytest.raises(TimeoutError):
                wire.receive(memoryview(bytearray(size)))
            assert wakes_at(ours) == size


def test_a_wait_for_a_large_body_ends_earlier() -> None:
    with connected() as (ours, _):
        wire = PlainWire(ours, TICK, PATIENCE)
        with pytest.raises(TimeoutError):
            wire.receive(memoryview(bytearray(3 * WAKE_BYTES)))
        assert BODY < wakes_at(ours) <= WAKE_BYTES  # a system with small buffers sets less


def test_the_rest_of_a_body_is_waited_for_as_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tick is longer than the test may take: waiting for a whole body again would fail it."""
    with connected() as (ours, peer):
        wire = PlainWire(ours, PATIENCE, PATIENCE)
        waits: list[int] = []
        body = bytes(range(250)) * (BODY // 250)
        rest = memoryview(body)[-1000:]

        def polled(descriptor: int, event: int, milliseconds: int) -> bool:
            waits.append(wakes_at(ours))
            peer.sendall(rest)
            return poll(descriptor, event, milliseconds)

        poll = calls.poll
        monkeypatch.setattr(calls, "poll", polled)
        peer.sendall(memoryview(body)[:-1000])
        got = bytearray(BODY)
        eventually(lambda: arrived(ours) == BODY - 1000, "most of a body arrives")
        filled(wire, memoryview(got))
        assert got == body
        assert waits == [1000]


def test_after_a_tick_that_brought_little_less_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes come while the wire waits for more of them. It takes what is there at the tick."""
    with connected() as (ours, peer):
        wire = PlainWire(ours, TICK, PATIENCE)
        to_send = [b"some bytes"]
        waits: list[tuple[int, bool]] = []

        def polled(descriptor: int, event: int, milliseconds: int) -> bool:
            if to_send:
                peer.sendall(to_send.pop())
                eventually(lambda: arrived(ours) > 0, "bytes arrive")
            waits.append((wakes_at(ours), poll(descriptor, event, milliseconds)))
            return waits[-1][1]

        poll = calls.poll
        monkeypatch.setattr(calls, "poll", polled)
        view = memoryview(bytearray(BODY))
        assert wire.receive(view) == 10
        assert view[:10] == b"some bytes"
        to_send = [b"some more"]
        assert wire.receive(view) == 9
        assert waits == [(BODY, False), (5, True)]


def test_what_comes_just_after_a_tick_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may wait for Python's lock after the tick, until all is there."""
    with connected() as (ours, peer):
        wire = PlainWire(ours, TICK, PATIENCE)

        def polled(descriptor: int, event: int, milliseconds: int) -> bool:
            is_there = poll(descriptor, event, milliseconds)
            if arrived(ours) == 0:
                peer.sendall(bytes(24))
                eventually(lambda: arrived(ours) == 24, "a header arrives")
            return is_there

        poll = calls.poll
        monkeypatch.setattr(calls, "poll", polled)
        assert wire.receive(memoryview(bytearray(24))) == 24
        monkeypatch.setattr(calls, "poll", poll)
        with pytest.raises(TimeoutError):
            wire.receive(memoryview(bytearray(BODY)))
        assert wakes_at(ours) == BODY


@pytest.mark.parametrize("ends", ["the peer closes", "ours is shut down"])
def test_the_end_wakes_who_waits_for_more(ends: str) -> None:
    with connected() as (ours, peer):
        wire = PlainWire(ours, PATIENCE, PATIENCE)
        got: list[int] = []
        waiting = threading.Thread(target=lambda: got.append(wire.receive(memoryview(bytearray(BODY)))))
        waiting.start()
        if ends == "the peer closes":
            peer.close()
        else:
            ours.shutdown(socket.SHUT_RDWR)
        waiting.join(PATIENCE)
        assert got == [0]
