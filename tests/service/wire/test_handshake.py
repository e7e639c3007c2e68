"""The greeting of two peers: who is let in, who is not, and that nobody waits for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from consumers import PATIENCE, together
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.wire.handshake import ServerGreeting, greet
from sortshuffle.service.wire.protocol import HELLO_BYTES, MAGIC, PROOF_BYTES, VERSION, Hello, Sender, proof

SECRET = b"a secret"
NONCE = bytes(range(32))
CLIENT_HELLO = Hello(NONCE).pack()


def served(secret: bytes | None, segment_bytes: int = 4096) -> Callable[[socket.socket], bytes]:
    """A server's side of a greeting, which returns what follows it."""

    def serve(peer: socket.socket) -> bytes:
        greeting = ServerGreeting(secret, segment_bytes)
        try:
            while not greeting.is_done:
                data = peer.recv(4096)
                if not data:
                    return b""
                peer.sendall(greeting.feed(data))
            return greeting.rest
        except (AuthenticationError, ProtocolError):
            return b""
        finally:
            peer.close()

    return serve


@contextmanager
def connected(serve: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    """A client's socket, with this at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        listening.settimeout(PATIENCE)
        client.connect(listening.getsockname())
        with together(lambda: serve(listening.accept()[0])):
            yield client
            client.close()


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_peers_that_agree_know_what_a_credit_is_worth(secret: bytes | None) -> None:
    with connected(served(secret, 12345)) as client:
        client.settimeout(7.0)
        assert greet(client, secret) == 12345
        assert client.gettimeout() == 7.0


@pytest.mark.parametrize(
    ("servers", "clients", "why"),
    [
        (SECRET, b"another", "closed the connection when it was sent"),
        (SECRET, None, "this client has none"),
        (None, SECRET, "asks for no secret"),
    ],
    ids=["other secret", "client has none", "server has none"],
)
def test_who_does_not_know_the_secret_is_not_let_in(
    servers: bytes | None, clients: bytes | None, why: str
) -> None:
    with connected(served(servers)) as client, pytest.raises(AuthenticationError, match=why):
        greet(client, clients)


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    def pretend(peer: socket.socket) -> None:
        with peer:
            hello = peer.recv(HELLO_BYTES, socket.MSG_WAITALL)
            peer.sendall(Hello(NONCE, VERSION, 4096, proof_required=True).pack())
            sent_back = peer.recv(PROOF_BYTES, socket.MSG_WAITALL)
            assert len(hello) == HELLO_BYTES
            peer.sendall(sent_back)  # the client's own proof, as if it were the server's

    with (
        connected(pretend) as client,
        pytest.raises(AuthenticationError, match="does not know this client's"),
    ):
        greet(client, SECRET)


def test_the_wrong_proof_is_refused_and_answered_with_nothing() -> None:
    greeting = ServerGreeting(SECRET, 4096)
    server_hello = greeting.feed(CLIENT_HELLO)
    right = proof(SECRET, "client", CLIENT_HELLO, server_hello)
    with pytest.raises(AuthenticationError, match="does not know this service's secret"):
        greeting.feed(right[:-1] + bytes([right[-1] ^ 1]))
    assert not greeting.is_done


def test_a_proof_is_good_for_one_greeting_only() -> None:
    first, second = ServerGreeting(SECRET, 4096), ServerGreeting(SECRET, 4096)
    seen = proof(SECRET, "client", CLIENT_HELLO, first.feed(CLIENT_HELLO))
    second.feed(CLIENT_HELLO)
    assert first.feed(seen)
    with pytest.raises(AuthenticationError):
        second.feed(seen)


@given(cut=st.integers(0, HELLO_BYTES + PROOF_BYTES + 5))
def test_it_does_not_matter_how_the_bytes_are_cut_and_what_follows_is_kept(cut: int) -> None:
    greeting = ServerGreeting(SECRET, 4096)
    first = CLIENT_HELLO[:cut]
    answer = greeting.feed(first)
    answer += greeting.feed(CLIENT_HELLO[cut:]) if cut < HELLO_BYTES else b""
    hello = Hello.unpack(answer, Sender.SERVER)
    assert (hello.version, hello.segment_bytes, hello.proof_required) == (VERSION, 4096, True)
    rest = proof(SECRET, "client", CLIENT_HELLO, answer) + b"frame"
    within = max(0, cut - HELLO_BYTES)
    proven = greeting.feed(rest[:within])
    proven += greeting.feed(rest[within:]) if not greeting.is_done else b""
    assert proven == proof(SECRET, "server", CLIENT_HELLO, answer)
    assert greeting.is_done
    assert b"frame".startswith(greeting.rest)


def test_first_frames_may_come_with_the_hello() -> None:
    greeting = ServerGreeting(None, 4096)
    assert not Hello.unpack(greeting.feed(CLIENT_HELLO + b"frames"), Sender.SERVER).proof_required
    assert (greeting.is_done, greeting.rest) == (True, b"frames")


def test_a_newer_client_is_answered_with_the_version_that_the_server_speaks() -> None:
    answer = ServerGreeting(None, 4096).feed(Hello(NONCE, version=VERSION + 7).pack())
    assert Hello.unpack(answer, Sender.SERVER).version == VERSION


@given(st.binary(min_size=1, max_size=100).filter(lambda data: not MAGIC.startswith(data[:8])))
def test_another_protocol_is_told_by_its_first_bytes(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak sortshuffle's protocol"):
        ServerGreeting(SECRET, 4096).feed(data)


def test_nonces_differ() -> None:
    answers = [ServerGreeting(None, 1).feed(CLIENT_HELLO) for _ in range(5)]
    assert len({Hello.unpack(answer, Sender.SERVER).nonce for answer in answers}) == 5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request", "does not speak"),
        (Hello(NONCE, VERSION + 1, 4096).pack(), f"version {VERSION + 1}"),
        (Hello(NONCE, VERSION, 0).pack(), "segments of 0 bytes"),
        (Hello(NONCE, VERSION, 1 << 31).pack(), f"segments of {1 << 31} bytes"),
    ],
    ids=["http", "newer", "no segments", "huge segments"],
)
def test_a_server_that_does_not_speak_the_protocol_is_told_apart(answer: bytes, why: str) -> None:
    with connected(lambda peer: peer.sendall(answer)) as client, pytest.raises(ProtocolError, match=why):
        greet(client, None)


def test_a_server_that_closes_is_unavailable() -> None:
    def close(peer: socket.socket) -> None:
        peer.recv(HELLO_BYTES, socket.MSG_WAITALL)
        peer.close()

    with connected(close) as client, pytest.raises(ServiceUnavailableError, match="closed the connection"):
        greet(client, SECRET)


def test_a_silent_server_is_unavailable_after_the_time_out() -> None:
    greeted = threading.Event()
    with (
        connected(lambda peer: greeted.wait(PATIENCE)) as client,
        pytest.raises(ServiceUnavailableError, match=r"did not greet within 0\.05 s"),
    ):
        try:
            greet(client, None, timeout=0.05)
        finally:
            greeted.set()
