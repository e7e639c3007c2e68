"""What this host is called, and which names are its own."""

from __future__ import annotations

import socket

import pytest

from sortshuffle.homes.host import host_name, is_this_host


@pytest.fixture(autouse=True)
def without_sparks_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_HOSTNAME", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)


def test_it_is_called_what_spark_was_told_or_else_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_name() == socket.gethostname()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
    assert host_name() == "127.0.0.2"
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "worker-3")
    assert host_name() == "worker-3"
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "")
    assert host_name() == "127.0.0.2"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        (socket.gethostname(), True),
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("192.0.2.7", False),
        ("elsewhere", False),
        ("", False),
        ("a\0b", False),
    ],
    ids=["name", "address", "other address", "address elsewhere", "name elsewhere", "none", "no name"],
)
def test_its_own_names_and_addresses_are_known(name: str, own: bool) -> None:
    assert is_this_host(name) is own
