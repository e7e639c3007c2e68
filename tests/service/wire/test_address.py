"""By which address other hosts reach this one, and sockets that listen there."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.service.wire import address
from sortshuffle.service.wire.address import (
    address_of_host,
    is_loopback,
    join_address,
    listen_at_host,
    listen_on,
    listen_on_path,
    split_address,
)


@pytest.fixture(autouse=True)
def without_sparks_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_HOSTNAME", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)


@given(st.sampled_from(["10.0.0.1", "host", "host.example.org", "::1", "fe80::1"]), st.integers(1, 65535))
def test_an_address_is_taken_apart_as_it_was_put_together(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", ":7", "host:0", "host:65536", "host:-1", "host:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a service: give host:port"):
        split_address(text)


def test_what_spark_was_told_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.1.2.3")
    assert address_of_host("127.0.0.1") == "10.1.2.3"
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "worker-3")
    assert address_of_host("127.0.0.1") == "worker-3"


def test_else_it_is_the_address_on_the_way_to_the_driver() -> None:
    assert address_of_host("127.0.0.1") == "127.0.0.1"
    assert address_of_host("localhost") in ("127.0.0.1", "::1")


@pytest.mark.parametrize("way_out", ["10.1.2.3", ""], ids=["a way out", "none"])
def test_a_name_that_only_here_is_this_machine_is_not_taken_at_its_word(
    way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian gives a machine's own name the address 127.0.1.1: on the driver's host, its name leads there."""
    monkeypatch.setattr(address, "_local_addresses", {})
    monkeypatch.setattr(address, "_local_address", {"driver-1": "127.0.0.1", address._ELSEWHERE: way_out}.get)
    assert address_of_host("driver-1") == (way_out or "127.0.0.1")


def test_the_way_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task asks, and a name may take seconds to resolve."""
    assert address_of_host("127.0.0.7") == "127.0.0.1"
    monkeypatch.setattr(calls, "getaddrinfo", None)
    assert address_of_host("127.0.0.7") == "127.0.0.1"


@pytest.mark.parametrize("driver", ["", "no.such.host.invalid"], ids=["unknown", "nowhere"])
def test_else_it_is_what_its_own_name_leads_to(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert address_of_host(driver) == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    assert address_of_host(driver) == "no.such.host.invalid"


def test_a_socket_listens_where_others_come_to() -> None:
    with listen_at_host("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection((host, port), 5):
            pass


def test_where_the_port_is_taken_it_takes_another() -> None:
    with listen_on("127.0.0.1", 0) as first, listen_at_host("127.0.0.1", first.getsockname()[1]) as second:
        assert second.getsockname()[1] != first.getsockname()[1]


def test_a_taken_port_is_no_matter_there_either() -> None:
    with listen_on("0.0.0.0", 0) as first, listen_at_host("192.0.2.1", first.getsockname()[1]) as second:
        assert second.getsockname()[0] == "0.0.0.0"
        assert second.getsockname()[1] != first.getsockname()[1]


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"], ids=["not its own", "unknown"])
def test_a_host_known_by_another_address_listens_everywhere(host: str) -> None:
    with listen_at_host(host, 0) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "::1%lo", "::ffff:127.0.0.1"])
def test_what_listens_there_is_reached_by_this_host_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "fe80::1%eth0", "::ffff:192.0.2.1"])
def test_what_listens_there_is_reached_by_others(host: str) -> None:
    assert not is_loopback(host)


# Unix sockets


def test_a_unix_socket_is_this_users_alone(short_path: Path) -> None:
    path = str(short_path / "socket")
    with listen_on_path(path) as listening:
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"x")
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.recv(1) == b"x"


@pytest.mark.parametrize("what", ["socket", "file", "link"])
def test_another_of_its_name_goes(short_path: Path, what: str) -> None:
    path = short_path / "socket"
    (short_path / "file").write_text("stays")
    if what == "socket":
        listen_on_path(str(path)).close()  # which leaves its name
    elif what == "file":
        path.touch()
    else:
        path.symlink_to(short_path / "file")
    with listen_on_path(str(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert (short_path / "file").read_text() == "stays"


def test_a_path_has_as_many_bytes_as_java_takes(short_path: Path) -> None:
    longest = 106 - len(f"{short_path}/")
    with listen_on_path(str(short_path / ("s" * longest))):
        pass
    for name in ("s" * (longest + 1), "ö" * (longest // 2 + 1)):
        with pytest.raises(
            UsageError, match=r"too long for a Unix socket, which takes 106 bytes: set TMPDIR"
        ):
            listen_on_path(str(short_path / name))
    assert os.listdir(short_path) == ["s" * longest]


def test_where_no_socket_can_be_made_nothing_stays_open(short_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        listen_on_path(str(short_path / "gone" / "socket"))
    (short_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        listen_on_path(str(short_path / "directory"))
    assert len(os.listdir("/proc/self/fd")) <= len(before)
