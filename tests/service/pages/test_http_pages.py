"""The pages over HTTP, from a real server on loopback: what is served, what is refused, and what a client
that means no good can do."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from engine import eventually
from service_figures import IDLE, STATUS

from sortshuffle.errors import ProtocolError, ServiceUnavailableError, UsageError
from sortshuffle.service.pages import http
from sortshuffle.service.pages.http import MOST_HEAD_BYTES, MOST_REQUESTS, StatusServer, fetch_status
from sortshuffle.service.pages.status import ServiceStatus


@contextmanager
def serving(
    status: Callable[[], ServiceStatus] = lambda: STATUS, host: str = "127.0.0.1"
) -> Iterator[StatusServer]:
    server = StatusServer(status, host)
    try:
        yield server
    finally:
        server.close()


def get(server: StatusServer, path: str, **headers: str) -> tuple[str, bytes]:
    request = urllib.request.Request(server.url.rstrip("/") + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read()


def connected(server: StatusServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer_to(server: StatusServer, request: bytes) -> bytes:
    """All that comes back, until the server closes."""
    with connected(server) as client:
        client.sendall(request)
        found = b""
        while more := client.recv(65_536):
            found += more
        return found


def test_the_three_pages() -> None:
    with serving() as server:
        kind, page = get(server, "/")
        assert kind == "text/html; charset=utf-8"
        assert page.startswith(b"<!DOCTYPE html>")
        assert b"Shuffle service 10.0.0.1:7448" in page
        kind, page = get(server, "/metrics")
        assert kind.startswith("text/plain")
        assert b"\nsortshuffle_service_requests_total 103.0\n" in page
        assert get(server, "/metrics", Accept="application/openmetrics-text")[1].endswith(b"# EOF\n")
        assert fetch_status(server.address) == STATUS
        assert fetch_status(server.url) == STATUS
        assert get(server, "/?since=yesterday")[0] == "text/html; charset=utf-8"


def test_each_answer_is_a_new_snapshot_and_the_page_reckons_from_an_earlier_one() -> None:
    moments = iter(
        [
            replace(IDLE, uptime=10.0, bytes_sent_total=0),
            replace(IDLE, uptime=20.0, bytes_sent_total=50 << 20),
            replace(IDLE, uptime=30.0, bytes_sent_total=90 << 20),
            replace(IDLE, uptime=1_000.0, bytes_sent_total=1_000 << 20),
        ]
    )
    with serving(lambda: next(moments)) as server:
        assert fetch_status(server.address).uptime == 10.0
        assert b"5.0 MiB/s" in get(server, "/")[1]  # 50 MiB in 10 s
        assert b"4.5 MiB/s" in get(server, "/")[1]  # 90 MiB in 20 s
        assert b"1.0 MiB/s" in get(server, "/")[1]  # what was known is too old: 1000 MiB in 1000 s


@pytest.mark.parametrize("path", ["/index.html", "/../../etc/passwd", "/metrics/", "/%2e%2e/", "/status"])
def test_nothing_else_is_there(path: str) -> None:
    with serving() as server, pytest.raises(urllib.error.HTTPError) as refused:
        get(server, path)
    assert refused.value.code == 404
    refused.value.close()


@pytest.mark.parametrize(
    "method", [b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE"], ids=bytes.decode
)
def test_get_only(method: bytes) -> None:
    with serving() as server:
        found = answer_to(server, method + b" / HTTP/1.0\r\n\r\n")
    assert found.startswith(b"HTTP/1.0 501 ")
    assert b"DOCTYPE HTML" in found or method == b"HEAD"
    assert b"10.0.0.1" not in found


def test_the_answer_lets_a_browser_do_nothing_but_show_it() -> None:
    with serving() as server, urllib.request.urlopen(server.url, timeout=10) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Server"].strip() == "sortshuffle"


def test_what_the_service_cannot_tell_is_an_error_of_that_answer() -> None:
    moments: list[ServiceStatus] = []

    def status() -> ServiceStatus:
        return moments.pop()

    with serving(status) as server:
        with pytest.raises(ProtocolError, match="answers 500"):
            fetch_status(server.address)
        moments.append(STATUS)
        assert fetch_status(server.address) == STATUS


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 1_000 + b"\r\n",
        b"GET /" + b"a" * 3 * MOST_HEAD_BYTES + b" HTTP/1.0\r\n\r\n",
        b"GET http://[ HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=["empty", "zeros", "short", "version", "headers", "path", "url", "tls"],
)
def test_garbage_costs_its_own_connection(request_bytes: bytes) -> None:
    with serving() as server:
        try:
            found = answer_to(server, request_bytes)
        except ConnectionError:  # closed while there was more to read
            found = b""
        assert b" 200 " not in found and b"10.0.0.1" not in found
        assert fetch_status(server.address) == STATUS


def test_so_many_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 60.0)
    with serving() as server, ExitStack() as opened:
        idle = [opened.enter_context(connected(server)) for _ in range(MOST_REQUESTS)]
        # who comes beyond that is closed without an answer; the threads are taken when that happens
        eventually(lambda: _is_closed_at_once(server), "all of the server's threads to be busy")
        idle[0].sendall(b"GET /status.json HTTP/1.0\r\n\r\n")
        assert idle[0].recv(100).startswith(b"HTTP/1.0 200 ")
        idle[0].close()
        eventually(lambda: not _is_closed_at_once(server), "a thread to be free again")


def _is_closed_at_once(server: StatusServer) -> bool:
    try:
        return answer_to(server, b"GET /status.json HTTP/1.0\r\n\r\n") == b""
    except ConnectionError:
        return True


def test_who_sends_nothing_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.2)
    with serving() as server:
        assert answer_to(server, b"GET / HTTP/1.0\r\nHost") == b""


def test_close_ends_it() -> None:
    # by identity, not by number: a thread that an earlier test left may end at any time
    before = set(threading.enumerate())
    with serving() as server:
        assert set(threading.enumerate()) - before
        assert fetch_status(server.address) == STATUS
        server.close()
        with pytest.raises(ServiceUnavailableError, match="no shuffle service tells its status at 127"):
            fetch_status(server.address)
    eventually(lambda: not set(threading.enumerate()) - before, "the server's threads to end")


def test_a_port_that_is_taken() -> None:
    with serving() as server, pytest.raises(OSError, match="in use"):
        StatusServer(lambda: STATUS, "127.0.0.1", int(server.address.rpartition(":")[2]))


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with serving(host="::1") as server:
        assert server.address.startswith("[::1]:")
        assert fetch_status(server.address) == STATUS


@pytest.mark.parametrize(
    "address",
    ["host:no", "not a host", "ftp://host/", "file:///etc/passwd", "http://[", "host:1\r\nX: y"],
    ids=range(6),
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a status page"):
        fetch_status(address, timeout=1)


@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.0 200 OK\r\n\r\nHello", b"Hello", b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}"],
    ids=range(3),
)
def test_who_is_no_service(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(1000)
                client.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ProtocolError, match=r"not JSON|does not answer as|other fields"):
            fetch_status(f"127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
