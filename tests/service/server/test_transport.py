"""Bytes over plain TCP and over TLS, never waiting: what is taken, what is left, what a broken peer costs."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from consumers import PATIENCE, together
from serving import until

from sortshuffle.service.server.transport import IOV_MAX, RECEIVE_BYTES, ServerTls, Transport, open_transport

BIG = os.urandom(1 << 20)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> ServerTls:
    directory = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "both.pem"))
    return ServerTls(str(directory / "both.pem"), str(directory / "both.pem"))


Connect = Callable[[], "tuple[Transport, socket.socket]"]


@pytest.fixture(params=["plain", "tls"])
def connect(
    request: pytest.FixtureRequest, authority: trustme.CA, server_tls: ServerTls
) -> Iterator[Connect]:
    """Makes a transport and the client at its other end, greeted."""
    is_tls = request.param == "tls"
    opened: list[Transport | socket.socket] = []

    def make() -> tuple[Transport, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname(), timeout=PATIENCE)
            transport = open_transport(listening.accept()[0], server_tls.context() if is_tls else None)
        if is_tls:
            context = ssl.create_default_context()
            authority.configure_trust(context)
            wrapped: list[socket.socket] = []
            raw = client
            with together(lambda: wrapped.append(context.wrap_socket(raw, server_hostname="127.0.0.1"))):
                until(lambda: transport.receive() is None and bool(wrapped))
            [client] = wrapped
        opened.extend((transport, client))
        return transport, client

    yield make
    for each in opened:
        each.close()


def received(transport: Transport, size: int) -> bytes:
    data = bytearray()

    def take() -> bool:
        part = transport.receive()
        assert part != b""
        data.extend(part or b"")
        return len(data) >= size

    until(take)
    return bytes(data)


def test_what_a_client_sends_is_received_and_nothing_else(connect: Connect) -> None:
    transport, client = connect()
    assert transport.receive() is None
    client.sendall(b"hello")
    assert received(transport, 5) == b"hello"
    assert transport.receive() is None
    assert not transport.needs_write
    with together(lambda: client.sendall(BIG)):
        assert received(transport, len(BIG)) == BIG


def test_the_end_is_told(connect: Connect) -> None:
    transport, client = connect()
    client.close()
    until(lambda: transport.receive() == b"")


def test_nothing_stays_hidden_behind_what_the_selector_sees(connect: Connect) -> None:
    transport, client = connect()
    client.sendall(bytes(3 * RECEIVE_BYTES))
    left = 3 * RECEIVE_BYTES
    while left:
        until(lambda: transport.has_pending or bool(select.select([transport], [], [], 0)[0]))
        left -= len(transport.receive() or b"")
    assert not transport.has_pending


@pytest.mark.parametrize("pieces", [1, 3, IOV_MAX + 5])
def test_many_pieces_arrive_in_order_without_ever_waiting(connect: Connect, pieces: int) -> None:
    transport, client = connect()
    size = len(BIG) // pieces
    views = [memoryview(BIG)[n * size : (n + 1) * size] for n in range(pieces)]
    total = size * pieces
    received_back = bytearray()
    blocked = threading.Event()

    def read() -> None:
        assert blocked.wait(PATIENCE)
        while len(received_back) < 8 * total:
            received_back.extend(client.recv(1 << 20))

    with together(read):
        for _ in range(8):
            left = list(views)
            while left:
                sent = transport.send(left)
                if not sent:
                    blocked.set()
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]
        blocked.set()
    assert bytes(received_back) == BIG[:total] * 8


def test_what_was_taken_of_a_large_piece_is_told(connect: Connect) -> None:
    transport, client = connect()
    piece = memoryview(BIG * 16)
    sent = transport.send([piece])
    assert 0 < sent < len(piece)
    read_back = bytearray()

    def read() -> None:
        while len(read_back) < len(piece):
            read_back.extend(client.recv(1 << 20))

    def send() -> bool:
        nonlocal sent
        sent += transport.send([piece[sent:]])
        return sent == len(piece)

    with together(read):
        until(send)
    assert read_back == piece


def test_a_peer_that_is_gone_is_an_os_error(connect: Connect) -> None:
    transport, client = connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
    os.close(client.detach())

    def fails() -> bool:
        try:
            transport.send([memoryview(BIG)])
        except OSError:
            return True
        return False

    until(fails)


def test_closing_twice_is_closing_once(connect: Connect) -> None:
    transport, _ = connect()
    transport.close()
    transport.close()
    assert transport.fileno() == -1


def test_garbage_is_no_tls(server_tls: ServerTls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname(), timeout=PATIENCE)
        transport = open_transport(listening.accept()[0], server_tls.context())
    with client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with pytest.raises(ssl.SSLError):
            until(lambda: transport.receive() is not None)
    transport.close()


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_bytes(b"nothing")
    for path in (str(nothing), str(tmp_path / "missing.pem")):
        with pytest.raises(OSError):
            ServerTls(path, path).context()


@contextmanager
def accepted() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        yield listening.accept()[0]


def test_hosts_that_vanish_are_looked_for() -> None:
    with accepted() as peer:
        transport = open_transport(peer, None)
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not peer.getblocking()
        transport.close()
