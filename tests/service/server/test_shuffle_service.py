"""The service as its user has it: how it is started and stopped, whom it refuses to serve, what it says of
itself."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest
from consumers import PATIENCE, one, stored, together
from serving import APPLICATION, SEGMENT, SMALL, Client, Disk, make_disk, serving, until

import sortshuffle
from sortshuffle.errors import OptionError, StateError, UsageError
from sortshuffle.service.server.shuffle_service import (
    SEGMENT_BYTES,
    ServerSettings,
    ShuffleService,
    listen,
    serve,
)

SECRET = b"sixteen bytes or more"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return make_disk(tmp_path)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("sortshuffle")]


def test_serve_starts_one_on_a_free_port_of_loopback(disk: Disk) -> None:
    file, output = disk.write_random()
    with sortshuffle.serve([str(disk.root)]) as service:
        host, port = service.address.split(":")
        assert host == "127.0.0.1" and int(port) > 0
        with Client(service.address) as client:
            assert client.segment_bytes == SEGMENT_BYTES
            assert bytes(client.fetch(output, 1).data) == stored(file, one(1))
    assert threads() == []
    with pytest.raises(ConnectionError):
        socket.create_connection((host, int(port)), timeout=PATIENCE)


def test_directories_may_come_later(disk: Disk, tmp_path: Path) -> None:
    _, output = disk.write_random()
    roots: list[str] = []
    with serve(lambda: roots) as service, Client(service.address) as client:
        assert client.fetch(output).error is not None
        roots.append(str(disk.root))
        assert client.fetch(output).ended
        assert service.status().roots == (str(disk.root),)


@pytest.mark.parametrize("host", ["0.0.0.0", ""], ids=["IPv4", "all"])
def test_beyond_loopback_a_secret_is_needed(disk: Disk, host: str) -> None:
    with pytest.raises(UsageError, match="would serve anybody who reaches it: give it a secret"):
        serve([str(disk.root)], host=host)
    with serve([str(disk.root)], host=host, secret=SECRET) as service:
        assert service.status().authenticated


def test_an_empty_secret_is_none(disk: Disk) -> None:
    with pytest.raises(UsageError, match="an empty secret"):
        serve([str(disk.root)], secret=b"")


def test_a_port_that_is_taken_is_an_error(disk: Disk) -> None:
    with serve([str(disk.root)]) as service, pytest.raises(OSError):
        serve([str(disk.root)], port=int(service.address.split(":")[1]))


def test_a_pool_without_room_for_a_segment_is_refused_by_the_options_name(disk: Disk) -> None:
    with pytest.raises(OptionError, match=r"spark\.sortshuffle\.service\.memory"):
        serve([str(disk.root)], memory=1000)


def test_it_runs_in_the_callers_thread_until_it_is_stopped(disk: Disk) -> None:
    _, output = disk.write_random()
    service = ShuffleService(listen("127.0.0.1", 0), lambda: [str(disk.root)], SMALL)
    with together(service.run):
        with Client(service.address) as client:
            assert client.fetch(output).ended
        service.stop()
    service.stop()
    assert service.status().connections_total == 1


def test_it_is_started_once(disk: Disk) -> None:
    with serving(disk.root) as service:
        with pytest.raises(StateError, match="started once"):
            service.start()
        with pytest.raises(StateError, match="started once"):
            service.run()


def test_one_that_never_began_lets_go_of_its_socket_too(disk: Disk) -> None:
    listening = listen("127.0.0.1", 0)
    service = ShuffleService(listening, lambda: [str(disk.root)], SMALL)
    service.stop()
    assert listening.fileno() == -1
    assert threads() == []


def test_its_status_says_what_it_does(disk: Disk) -> None:
    file, output = disk.write_random(subpartitions=1, regions=2, payload=20_000)
    size = os.path.getsize(file.data_path)
    with serving(disk.root, replace(SMALL, secret=SECRET)) as service:
        with Client(service.address, SECRET) as client:
            data = client.fetch(output).data
            client.request(2, output, credit=0)
            client.request(3, replace(output, file_id=bytes(16)))
            client.read(3)
            until(lambda: service.status().readers == 1)
            status = service.status()
            [connection] = status.connections
            assert connection.channels == 1
            assert connection.peer == "{}:{}".format(*client.socket.getsockname())
            assert connection.bytes_sent == status.bytes_sent_total > len(data)
            assert (connection.backlog, connection.stalled) == (0, 0.0)
        [application] = status.applications
        assert (application.application, application.homes) == (APPLICATION, 1)
        assert (application.map_outputs, application.bytes) == (1, size)
        assert (status.address, status.pid) == (service.address, os.getpid())
        assert (status.version, status.roots) == (sortshuffle.__version__, (str(disk.root),))
        assert (status.authenticated, status.encrypted) == (True, False)
        assert (status.pool_segments, status.segment_bytes) == (64, SEGMENT)
        assert (status.partitions_open, status.readers) == (1, 1)
        assert (status.connections_total, status.connections_refused_total) == (1, 0)
        assert (status.requests_total, status.errors_total) == (3, 1)
        assert status.bytes_read_total == len(data)
        assert status.reads_total >= 2 and status.buffers_sent_total >= 3


def test_settings_have_defaults_for_everything() -> None:
    assert ServerSettings() == ServerSettings(**{f.name: f.default for f in fields(ServerSettings)})
