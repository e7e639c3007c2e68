"""One connection of a client: what it sends comes in order, what it receives goes where it is told, and
nothing keeps it waiting for ever. Over TCP and over TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from consumers import PATIENCE, together
from engine import eventually
from scripted_server import refused_address
from serving import no_descriptor_left

from sortshuffle import calls
from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.client import client_connection
from sortshuffle.service.client.client_connection import ClientConnection, ServiceEndpoint
from sortshuffle.service.client.client_settings import ClientTls
from sortshuffle.service.wire.handshake import ServerGreeting
from sortshuffle.service.wire.protocol import Kind, pack_add_credit, pack_end_of_partition

SEGMENT = 4096
Serve = Callable[[socket.socket], None]


@dataclass
class Endpoint:
    """Where a test's server listens. ``tls``: what clients need, None for plain TCP."""

    tls: ClientTls | None
    context: ssl.SSLContext | None


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["tcp", "tls"])
def endpoint(request: pytest.FixtureRequest, authority: trustme.CA, tmp_path: Path) -> Endpoint:
    if request.param == "tcp":
        return Endpoint(None, None)
    return Endpoint(trusted(authority, tmp_path), server_context(authority, "127.0.0.1"))


def trusted(authority: trustme.CA, directory: Path) -> ClientTls:
    path = directory / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return ClientTls(str(path))


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@contextmanager
def connected(
    endpoint: Endpoint,
    serve: Serve,
    *,
    silence: float = PATIENCE,
    expects: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ClientConnection]:
    """A connection that has greeted, with this at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connection = ClientConnection(ServiceEndpoint(address, None, endpoint.tls, silence), expects, clock)

        def run() -> None:
            accepted, _ = listening.accept()
            accepted.settimeout(PATIENCE)
            if endpoint.context is not None:
                accepted = endpoint.context.wrap_socket(accepted, server_side=True)
            with accepted:
                greet(accepted)
                serve(accepted)

        with together(run):
            try:
                connection.connect()
                yield connection
            finally:
                connection.close()


def greet(accepted: socket.socket) -> None:
    greeting = ServerGreeting(None, SEGMENT)
    while not greeting.is_done:
        accepted.sendall(greeting.feed(accepted.recv(4096)))


def until_gone(accepted: socket.socket) -> bytes:
    data = bytearray()
    try:
        while part := accepted.recv(1 << 16):
            data += part
    except OSError:
        pass
    return bytes(data)


def test_the_greeting_says_what_a_credit_is_worth(endpoint: Endpoint) -> None:
    with connected(endpoint, until_gone) as connection:
        assert connection.segment_bytes == SEGMENT
        assert connection.is_open
    assert not connection.is_open


def test_frames_of_many_threads_come_whole_and_those_of_one_in_order(endpoint: Endpoint) -> None:
    received: list[bytes] = []
    with connected(endpoint, lambda accepted: received.append(until_gone(accepted))) as connection:

        def send(channel: int) -> None:
            for credit in range(1, 201):
                connection.post(pack_add_credit(channel, credit))
                if credit % 3 == 0:
                    connection.flush()
            connection.flush()

        with together(*[lambda n=n: send(n) for n in range(4)]):
            pass
        connection.leave(b"")
    frames = [received[0][start : start + 24] for start in range(0, len(received[0]), 24)]
    assert len(frames) == 800
    for channel in range(4):
        mine = [frame for frame in frames if frame[8] == channel]
        assert mine == [pack_add_credit(channel, credit) for credit in range(1, 201)]


@pytest.mark.parametrize("size", [1, 24, 5000, 3_000_000])
def test_bodies_are_received_where_they_are_wanted(endpoint: Endpoint, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)

    def serve(accepted: socket.socket) -> None:
        accepted.sendall(pack_end_of_partition(7, 9) + data[:size])
        until_gone(accepted)

    with connected(endpoint, serve) as connection:
        header = connection.receive_header()
        assert (header.kind, header.channel, header.sequence) == (Kind.BUFFER_RESPONSE, 7, 9)
        memory = bytearray(size + 2)
        connection.fill(memoryview(memory)[1:-1])
        assert memory == b"\0" + data[:size] + b"\0"
        assert connection.received == 24 + size


def test_what_came_before_a_cut_is_in_place_and_counted(endpoint: Endpoint) -> None:
    with connected(endpoint, lambda accepted: accepted.sendall(b"x" * 1000)) as connection:
        memory = bytearray(5000)
        with pytest.raises(ServiceUnavailableError):
            connection.fill(memoryview(memory))
        assert connection.received == 1000
        assert memory == b"x" * 1000 + bytes(4000)
        connection.post(pack_add_credit(1, 1))
        connection.flush()  # tells nobody


def test_a_connection_is_as_good_as_cut_when_it_is_silent_though_it_must_not_be(endpoint: Endpoint) -> None:
    with (
        connected(endpoint, until_gone, silence=0.2) as connection,
        pytest.raises(ServiceUnavailableError, match=r"it sent nothing for 0\.\d s"),
    ):
        connection.receive_header()


def test_all_steps_of_connecting_share_one_time(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finding the name takes is not there for the greeting."""
    clock, patience = Clock(), []
    getaddrinfo, recv = calls.getaddrinfo, calls.recv

    def slow(host: str, *of: object, flags: int = 0, **others: object) -> object:
        if not flags:
            clock.now += 7.5
        return getaddrinfo(host, *of, flags=flags, **others)

    def noted(server: socket.socket, size: int) -> bytes:
        patience.append(server.gettimeout())
        return recv(server, size)

    monkeypatch.setattr(calls, "getaddrinfo", slow)
    monkeypatch.setattr(calls, "recv", noted)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which says nothing
        endpoint = ServiceEndpoint(f"localhost:{listening.getsockname()[1]}", None, endpoint.tls, 8.0)
        with closing(ClientConnection(endpoint, lambda: True, clock)) as connection:
            with pytest.raises(OSError):
                connection.connect()
            assert connection._socket is not None
            patience.append(connection._socket.gettimeout())
    assert patience[0] is not None
    assert 0 < patience[0] <= 0.5


@dataclass
class Clock:
    """Stands still but for the test."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


END = pack_end_of_partition(1, 0)


def test_a_little_now_and_then_ends_the_connection(endpoint: Endpoint) -> None:
    """What comes is counted, and looked at although no wait for it times out."""

    def serve(accepted: socket.socket) -> None:
        accepted.sendall(END * 40)
        until_gone(accepted)

    clock, frames = Clock(), 0
    with connected(endpoint, serve, silence=30.0, clock=clock) as connection:
        with pytest.raises(ServiceUnavailableError, match=r"it sent only 720 bytes for 30\.0 s"):
            while frames < 40:
                clock.now += 1.0
                connection.receive_header()
                frames += 1
        assert frames == 29


def test_time_in_which_this_process_stood_still_is_not_the_services(endpoint: Endpoint) -> None:
    looked = threading.Event()

    def expects() -> bool:
        looked.set()
        return True

    def serve(accepted: socket.socket) -> None:
        assert looked.wait(PATIENCE)
        accepted.sendall(END)
        until_gone(accepted)

    clock = Clock()
    with connected(endpoint, serve, silence=1.0, expects=expects, clock=clock) as connection:
        clock.now += 61.0
        assert connection.receive_header().channel == 1


@contextmanager
def deaf(address: str, port: int) -> Iterator[None]:
    """Who connects there hears nothing: the queue of those who wait to be accepted is full."""
    with socket.create_server((address, port), backlog=0), ExitStack() as stack:
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name leads there."""
    monkeypatch.setattr(client_connection, "resolve", lambda host, timeout: addresses)


@contextmanager
def greeting_server() -> Iterator[int]:
    """Its port, on the first address of this host."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            with listening.accept()[0] as accepted:
                accepted.settimeout(PATIENCE)
                greet(accepted)
                until_gone(accepted)

        with together(run):
            yield listening.getsockname()[1]


def test_an_address_that_answers_nothing_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.2", "127.0.0.1")
    with greeting_server() as port, deaf("127.0.0.2", port):
        connection = ClientConnection(ServiceEndpoint(f"some.example:{port}", None, None, 1.0), lambda: True)
        with closing(connection):
            connection.connect()
            assert connection.segment_bytes == SEGMENT


@pytest.mark.parametrize("addresses", [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_a_host_that_refuses_is_not_hidden_by_an_address_that_this_host_cannot_use(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, str]
) -> None:
    """As where IPv6 is switched off here, and the host's name has such an address, too."""
    real = calls.create_connection

    def without_ipv6(address: tuple[str, int], *arguments: float) -> socket.socket:
        if ":" in address[0]:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, *arguments)

    named(monkeypatch, *addresses)
    monkeypatch.setattr(calls, "create_connection", without_ipv6)
    monkeypatch.setattr(client_connection, "_has_way_to", lambda address: False)
    with refused_address() as refused:
        port = refused.rpartition(":")[2]
        connection = ClientConnection(
            ServiceEndpoint(f"some.example:{port}", None, None, PATIENCE), lambda: True
        )
        with closing(connection), pytest.raises(ConnectionRefusedError):
            connection.connect()


V4, V6 = "127.0.0.1", "::1"


@pytest.mark.parametrize("turn", [1, -1], ids=["in this order", "in the other order"])
@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ({V6: errno.ENETUNREACH, V4: errno.ECONNREFUSED}, errno.ECONNREFUSED),
        ({V6: errno.EMFILE, V4: errno.ECONNREFUSED}, errno.EMFILE),
        ({V6: errno.ECONNREFUSED, V4: errno.EADDRNOTAVAIL}, errno.EADDRNOTAVAIL),
        ({V4: errno.EADDRNOTAVAIL, V6: errno.ENETUNREACH}, errno.EADDRNOTAVAIL),
        ({V4: errno.EMFILE, V6: errno.EADDRNOTAVAIL}, errno.EMFILE),
        ({V4: errno.EMFILE, V6: errno.EAFNOSUPPORT}, errno.EMFILE),
        ({V6: errno.EADDRNOTAVAIL, V4: errno.ENETUNREACH}, errno.ENETUNREACH),
        ({V6: errno.EADDRNOTAVAIL}, errno.EADDRNOTAVAIL),
        ({V6: errno.EADDRNOTAVAIL, V4: errno.ECONNREFUSED}, errno.ECONNREFUSED),
    ],
    ids=lambda each: (
        " and ".join(f"{errno.errorcode[number]} at {address}" for address, number in each.items())
        if isinstance(each, dict)
        else f"tells {errno.errorcode[each]}"
    ),
)
def test_of_several_addresses_the_error_tells_what_is_short_here_and_else_what_the_host_says(
    monkeypatch: pytest.MonkeyPatch, failures: dict[str, int], told: int, turn: int
) -> None:
    """Whatever comes of an address of IPv6 where this host has no IPv6."""

    def failing(address: tuple[str, int], *_: float) -> socket.socket:
        number = failures[address[0]]
        raise OSError(number, os.strerror(number))

    named(monkeypatch, *list(failures)[::turn])
    monkeypatch.setattr(calls, "create_connection", failing)
    monkeypatch.setattr(client_connection, "_has_way_to", lambda address: False)
    connection = ClientConnection(ServiceEndpoint("some.example:1", None, None, PATIENCE), lambda: True)
    with closing(connection), pytest.raises(OSError) as caught:
        connection.connect()
    assert caught.value.errno == told


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (None, errno.EADDRNOTAVAIL),
        (errno.EADDRNOTAVAIL, errno.ECONNREFUSED),
        (errno.ENETUNREACH, errno.ECONNREFUSED),
        (errno.EMFILE, errno.EADDRNOTAVAIL),
    ],
    ids=["with a way", "without an address", "without a way", "unknown"],
)
def test_where_there_is_a_way_by_ipv6_a_lack_of_ports_is_one(
    monkeypatch: pytest.MonkeyPatch, way: int | None, told: int
) -> None:
    failures = {V6: errno.EADDRNOTAVAIL, V4: errno.ECONNREFUSED}

    def failing(address: tuple[str, int], *_: float) -> socket.socket:
        raise OSError(failures[address[0]], "")

    def new_socket(family: int, kind: int) -> socket.socket:
        assert (family, kind) == (socket.AF_INET6, socket.SOCK_DGRAM)
        return socket.socket(socket.AF_INET, kind)  # a kernel may have no other

    def connect(one: socket.socket, address: tuple[str, int]) -> None:
        assert address[0] == V6
        if way is not None:
            raise OSError(way, "")

    named(monkeypatch, V4, V6)
    for name, call in (("create_connection", failing), ("new_socket", new_socket), ("connect", connect)):
        monkeypatch.setattr(calls, name, call)
    connection = ClientConnection(ServiceEndpoint("some.example:1", None, None, PATIENCE), lambda: True)
    with closing(connection), pytest.raises(OSError) as caught:
        connection.connect()
    assert caught.value.errno == told


def test_a_name_that_was_found_late_leaves_all_its_time_to_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()

    def found_late(host: str, timeout: float) -> Sequence[str]:
        clock.now += client_connection.RESOLVE_TIMEOUT
        return ("127.0.0.1",)

    monkeypatch.setattr(client_connection, "resolve", found_late)
    with greeting_server() as port:
        connection = ClientConnection(
            ServiceEndpoint(f"some.example:{port}", None, None, 30.0), lambda: True, clock
        )
        with closing(connection):
            connection.connect()
            assert connection.segment_bytes == SEGMENT


def test_without_a_secret_a_name_of_this_host_is_spoken_to_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other address is set apart for documentation: who tried it would wait."""
    named(monkeypatch, "192.0.2.1", "::ffff:127.0.0.1")
    asked: list[str] = []
    real = calls.create_connection

    def noted(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address[0])
        return real(address, timeout)

    monkeypatch.setattr(calls, "create_connection", noted)
    with greeting_server() as port:
        connection = ClientConnection(
            ServiceEndpoint(f"this.example:{port}", None, None, PATIENCE), lambda: True
        )
        with closing(connection):
            connection.connect()
    assert asked == ["::ffff:127.0.0.1"]


def test_without_a_secret_only_this_host_is_spoken_to() -> None:
    for address in ("192.0.2.1:7448", "[2001:db8::1]:7448"):  # set apart for documentation: nobody is there
        connection = ClientConnection(ServiceEndpoint(address, None, None, PATIENCE), lambda: True)
        with pytest.raises(AuthenticationError, match=r"spark\.sortshuffle\.service\.secret\.file"):
            connection.connect()
        assert connection._socket is None
        connection.close()


def test_a_connection_may_be_silent_while_nothing_is_expected(endpoint: Endpoint) -> None:
    looks = []
    speak = threading.Event()

    def expects() -> bool:
        looks.append(None)
        if len(looks) == 30:  # three times as many as would end it
            speak.set()
        return False

    def serve(accepted: socket.socket) -> None:
        assert speak.wait(PATIENCE)
        accepted.sendall(pack_end_of_partition(1, 0))
        until_gone(accepted)

    with connected(endpoint, serve, silence=0.1, expects=expects) as connection:
        assert connection.receive_header().channel == 1


def test_aborting_wakes_who_receives(endpoint: Endpoint) -> None:
    with connected(endpoint, until_gone) as connection:
        waiting = threading.Event()

        def receive() -> None:
            waiting.set()
            with pytest.raises(ServiceUnavailableError):
                connection.receive_header()

        with together(receive):
            assert waiting.wait(PATIENCE)
            connection.abort()
            connection.abort()


def test_sending_to_who_takes_nothing_ends_in_time(endpoint: Endpoint) -> None:
    release = threading.Event()

    def serve(accepted: socket.socket) -> None:
        assert release.wait(PATIENCE)

    with connected(endpoint, serve, silence=0.2) as connection:
        connection.post(bytes(64 << 20))
        connection.flush()
        assert not connection.is_open
        release.set()


def test_who_posts_while_another_is_stuck_sending_is_not_stuck(endpoint: Endpoint) -> None:
    received: list[int] = []
    read_on = threading.Event()

    def serve(accepted: socket.socket) -> None:
        assert read_on.wait(PATIENCE)
        received.append(len(until_gone(accepted)))

    with connected(endpoint, serve) as connection:
        connection.post(bytes(64 << 20))
        stuck = threading.Thread(target=connection.flush, daemon=True)
        stuck.start()
        eventually(connection._sending.locked, "somebody sends")
        connection.post(bytes(100))
        connection.flush()
        assert stuck.is_alive()
        read_on.set()
        stuck.join(PATIENCE)
        assert not stuck.is_alive()
        connection.leave(b"")
    assert received == [(64 << 20) + 100]


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        connection = ClientConnection(ServiceEndpoint(address, None, None, 1.0), lambda: True)
        with pytest.raises(OSError, match="refused"):
            connection.connect()
        connection.close()


def test_an_aborted_connection_does_not_connect(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connection = ClientConnection(ServiceEndpoint(address, None, endpoint.tls, 1.0), lambda: True)
        connection.abort()
        with pytest.raises(ServiceUnavailableError, match="closed"):
            connection.connect()
        connection.close()


def test_a_peer_of_another_protocol() -> None:
    def serve(accepted: socket.socket) -> None:
        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(48))
        until_gone(accepted)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connection = ClientConnection(ServiceEndpoint(address, None, None, PATIENCE), lambda: True)
        with together(lambda: serve(listening.accept()[0])):
            with pytest.raises(ProtocolError, match="does not speak sortshuffle's protocol"):
                connection.connect()
            connection.close()


# --- TLS ---------------------------------------------------------------------------------------------------


def refused(tls: ClientTls, context: ssl.SSLContext) -> str:
    """What a client says of a server that it does not trust."""

    def serve(accepted: socket.socket) -> None:
        with pytest.raises((ssl.SSLError, OSError)), accepted:
            context.wrap_socket(accepted, server_side=True).recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connection = ClientConnection(ServiceEndpoint(address, None, tls, PATIENCE), lambda: True)
        with together(lambda: serve(listening.accept()[0])):
            with pytest.raises(AuthenticationError) as caught:
                connection.connect()
            connection.close()
    return str(caught.value)


def test_a_certificate_of_another_authority_is_not_trusted(authority: trustme.CA, tmp_path: Path) -> None:
    told = refused(trusted(authority, tmp_path), server_context(trustme.CA(), "127.0.0.1"))
    assert "is not trusted" in told
    assert "spark.sortshuffle.service.tls.authority" in told


def test_a_certificate_of_another_host_is_not_trusted(authority: trustme.CA, tmp_path: Path) -> None:
    told = refused(trusted(authority, tmp_path), server_context(authority, "127.0.0.9"))
    assert "127.0.0.1" in told


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        endpoint = ServiceEndpoint(address, None, ClientTls(str(tmp_path / "none.pem")), PATIENCE)
        connection = ClientConnection(endpoint, lambda: True)
        with pytest.raises(AuthenticationError, match=r"service\.tls\.\* cannot be used"):
            connection.connect()
        connection.close()


def test_a_lack_of_descriptors_does_not_speak_against_the_files(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot be opened for a moment."""
    tls = trusted(authority, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        opened = socket.create_connection(listening.getsockname())
        monkeypatch.setattr(calls, "create_connection", lambda *_: opened)
        connection = ClientConnection(ServiceEndpoint(address, None, tls, PATIENCE), lambda: True)
        with closing(connection), no_descriptor_left(), pytest.raises(OSError) as caught:
            connection.connect()
    assert (caught.value.errno, isinstance(caught.value, AuthenticationError)) == (errno.EMFILE, False)


def test_a_service_that_asks_for_the_clients_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    context = server_context(authority, "127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    own = authority.issue_cert("client.example")
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    own.cert_chain_pems[0].write_to_path(str(certificate))
    own.private_key_pem.write_to_path(str(key))
    tls = ClientTls(trusted(authority, tmp_path).authority, str(certificate), str(key))
    with connected(Endpoint(tls, context), until_gone) as connection:
        assert connection.segment_bytes == SEGMENT
