"""Many clients of one server: who is let in, that none keeps another waiting, that it outlives them all."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from consumers import PATIENCE, one, stored, together
from engine import open_files
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import SEGMENT, SMALL, Client, Disk, id_of, make_disk, serving, until

from sortshuffle import calls
from sortshuffle.errors import AuthenticationError, ServiceUnavailableError
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.protocol import PROOF_BYTES, Hello

SECRET = b"a secret of some length"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return make_disk(tmp_path)


def connect(service: ShuffleService) -> socket.socket:
    host, port = service.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def is_closed(peer: socket.socket) -> bool:
    """Whether the server closes this connection, having said nothing."""
    try:
        return peer.recv(1000) == b""
    except ConnectionError:
        return True


# Who is let in


def test_only_who_knows_the_secret_is_served(disk: Disk) -> None:
    file, output = disk.write_random()
    with serving(disk.root, replace(SMALL, secret=SECRET)) as service:
        for wrong in (b"another secret", None):
            with pytest.raises(AuthenticationError):
                Client(service.address, wrong)
        with Client(service.address, SECRET) as client:
            assert bytes(client.fetch(output).data) == stored(file, one(0))
        until(lambda: service.status().connections == ())
        status = service.status()
        assert status.authenticated
        assert status.connections_total == 3
        assert status.connections_refused_total == 1  # the other one went by itself


@settings(max_examples=30)
@given(garbage=st.binary(min_size=PROOF_BYTES, max_size=200), with_hello=st.booleans())
def test_garbage_for_a_proof_costs_one_connection(disk: Disk, garbage: bytes, with_hello: bool) -> None:
    with serving(disk.root, replace(SMALL, secret=SECRET)) as service:
        with connect(service) as stranger:
            stranger.sendall(Hello(bytes(32)).pack() + garbage if with_hello else garbage + bytes(48))
            until(lambda: is_closed(stranger))  # behind the server's hello, at most
        with Client(service.address, SECRET) as client:
            assert client.segment_bytes == SEGMENT
        assert service.status().connections_refused_total == 1


def test_a_client_with_a_secret_does_not_talk_to_a_server_without(disk: Disk) -> None:
    with serving(disk.root) as service, pytest.raises(AuthenticationError, match="asks for no secret"):
        Client(service.address, SECRET)


def test_a_silent_stranger_is_closed_after_a_time(disk: Disk) -> None:
    with serving(disk.root, limits=Limits(greeting=0.1)) as service, connect(service) as stranger:
        assert is_closed(stranger)
        assert service.status().connections_refused_total == 1


def test_strangers_take_no_more_than_their_places(disk: Disk) -> None:
    _, output = disk.write_random()
    with serving(disk.root, limits=Limits(strangers=2)) as service:
        strangers = [connect(service) for _ in range(2)]
        until(lambda: service.status().connections_total == 2)
        with connect(service) as third:
            assert is_closed(third)
        for stranger in strangers:
            stranger.close()
        until(lambda: service.status().connections == ())
        with Client(service.address) as client:
            assert client.fetch(output).ended


def test_connections_are_bounded(disk: Disk) -> None:
    _, output = disk.write_random()
    with serving(disk.root, limits=Limits(connections=2)) as service:
        with Client(service.address) as first, Client(service.address):
            with connect(service) as third:
                assert is_closed(third)
            assert first.fetch(output).ended
        until(lambda: service.status().connections == ())
        assert service.status().connections_refused_total == 1
        with Client(service.address) as again:
            assert again.fetch(output).ended


def test_when_no_file_is_left_for_a_connection_the_others_go_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, output = disk.write_random()
    real, failed = calls.accept, threading.Event()

    def accept(listening: socket.socket) -> tuple[socket.socket, object]:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(listening)

    with serving(disk.root) as service, Client(service.address) as first:
        monkeypatch.setattr(calls, "accept", accept)
        with Client(service.address) as second:  # taken a little later
            assert failed.is_set()
            assert first.fetch(output).ended
            assert second.fetch(output).ended


# Nobody waits for anybody


def test_a_consumer_that_never_reads_keeps_nobody_waiting(disk: Disk) -> None:
    file, output = disk.write_random(subpartitions=21, regions=2, payload=200_000)
    few = replace(SMALL, memory=8 * SEGMENT, limits=Limits(stall=0.2))
    with serving(disk.root, few) as service, Client(service.address) as silent:
        for channel in range(5):
            silent.request(channel, output, 20, credit=4096 if channel else 0)

        def consume(subpartition: int) -> None:
            with Client(service.address) as client:
                data = client.fetch(output, subpartition, credit=2).data
                assert bytes(data) == stored(file, one(subpartition))

        with together(*[lambda s=s: consume(s) for s in range(20)]):
            pass
        silent.add_credit(0, 10)
        silent.read()
        for stream in silent.streams.values():
            assert bytes(stream.data) == stored(file, one(20))


def test_two_hundred_consumers_at_once(disk: Disk) -> None:
    files = [disk.write_random(subpartitions=10, regions=3, payload=5_000, attempt=n) for n in range(20)]
    expected = {(n, s): stored(file, one(s)) for n, (file, _) in enumerate(files) for s in range(10)}
    with serving(disk.root) as service:
        clients = [Client(service.address) for _ in range(200)]
        for number, client in enumerate(clients):
            for channel in range(4):
                client.request(channel, files[(number + channel) % 20][1], number % 10, credit=2)
        assert len(service.status().connections) == 200
        for number, client in enumerate(clients):
            client.read()
            for channel in range(4):
                wanted = expected[(number + channel) % 20, number % 10]
                assert bytes(client.streams[channel].data) == wanted
            client.close()
        until(lambda: service.status().connections == ())
        status = service.status()
        assert status.pool_segments_free == status.pool_segments
        assert status.buffers_sent_total > 200 * 4 * 3
    assert open_files(disk.home) == []


# It ends and begins again


def test_a_service_that_is_made_anew_serves_what_the_last_one_did(disk: Disk) -> None:
    file, output = disk.write_random(payload=100_000)
    with serving(disk.root) as service, Client(service.address) as client:
        stream = client.request(1, output, 2, credit=3)
        client.receive()
        so_far = bytes(stream.data)
        service.stop()
        assert client.is_cut_off()
    with serving(disk.root) as service, Client(service.address) as client:
        rest = client.fetch(output, 2, skip=len(so_far))
        assert so_far + bytes(rest.data) == stored(file, one(2))


def test_what_is_written_while_it_serves_is_found(disk: Disk) -> None:
    with serving(disk.root) as service, Client(service.address) as client:
        for attempt in range(3):
            file, output = disk.write_random(attempt=attempt)
            assert output.file_id == id_of(attempt)
            assert bytes(client.fetch(output).data) == stored(file, one(0))
        [application] = service.status().applications
        assert (application.homes, application.map_outputs) == (1, 3)


def test_stopping_in_the_middle_of_everything_leaves_nothing(disk: Disk) -> None:
    files = [disk.write_random(subpartitions=2, regions=3, payload=100_000, attempt=n)[1] for n in range(10)]
    with serving(disk.root) as service:
        clients = [Client(service.address) for _ in range(10)]
        for client in clients:
            for channel, output in enumerate(files):
                client.request(channel, output, channel % 2, credit=channel)
        clients[0].receive()
        service.stop()
        for client in clients:
            assert client.is_cut_off()
            client.close()
    assert open_files(disk.home) == []


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def encrypted(authority: trustme.CA, tmp_path: Path) -> ServerSettings:
    issued = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    for each in issued.cert_chain_pems:
        each.write_to_path(str(chain), append=True)
    issued.private_key_pem.write_to_path(str(key))
    return replace(SMALL, secret=SECRET, tls=ServerTls(str(chain), str(key)))


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_everything_goes_through_tls(disk: Disk, authority: trustme.CA, encrypted: ServerSettings) -> None:
    file, output = disk.write_random(subpartitions=8, regions=3, payload=150_000)
    with serving(disk.root, encrypted) as service:
        assert service.status().encrypted
        with Client(service.address, SECRET, trusting(authority)) as client:
            assert client.segment_bytes == SEGMENT
            for channel in range(8):
                client.request(channel, output, channel, credit=5)
            client.read()
            for channel in range(8):
                assert bytes(client.streams[channel].data) == stored(file, one(channel))


def test_a_stalled_tls_client_goes_on_where_it_was(
    disk: Disk, authority: trustme.CA, encrypted: ServerSettings
) -> None:
    file, output = disk.write_random(subpartitions=1, regions=3, payload=6 << 20)
    quick = replace(encrypted, memory=512 * SEGMENT, limits=Limits(stall=0.1))
    with serving(disk.root, quick) as service, Client(service.address, SECRET, trusting(authority)) as client:
        client.request(1, output, credit=4096)
        until(lambda: any(each.stalled > 0.3 for each in service.status().connections), "the stall")
        until(lambda: service.status().pool_segments_free == 512)
        client.read()
        assert bytes(client.streams[1].data) == stored(file, one(0))


def test_who_speaks_no_tls_is_closed(disk: Disk, encrypted: ServerSettings) -> None:
    with serving(disk.root, encrypted) as service:
        with pytest.raises(ServiceUnavailableError):
            Client(service.address, SECRET)
        with connect(service) as garbage:
            garbage.sendall(os.urandom(500))
            until(lambda: is_closed(garbage))  # behind an alert
        until(lambda: service.status().connections_refused_total == 2)
