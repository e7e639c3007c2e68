"""The HTTP server for a shuffle service's pages, and the client that fetches its status.

    /              the status page, for people
    /metrics       for Prometheus
    /status.json   for programs, such as `sortshuffle serve --status`

`StatusServer` answers in its own threads, not in the loop that serves data, and only reads snapshots.

Rules
* Only GET, and only these three paths. No files are served; a path is only compared with these names.
* A request's head has at most `MOST_HEAD_BYTES` and must arrive within `PATIENCE` seconds; the answer may
  take as long again. At most `MOST_REQUESTS` are answered at once; further connections are closed.
* The server asks for no secret, so by default it listens on loopback only. The pages name applications,
  clients and directories, and show no data.
"""

from __future__ import annotations

import io
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from sortshuffle import calls
from sortshuffle.errors import ProtocolError, ServiceUnavailableError, UsageError
from sortshuffle.options import KIB, MIB
from sortshuffle.service.pages.metrics_page import metrics_page
from sortshuffle.service.pages.status import ServiceStatus
from sortshuffle.service.pages.status_json import from_json, to_json
from sortshuffle.service.pages.status_page import status_page
from sortshuffle.service.wire.address import join_address

LOOPBACK = "127.0.0.1"
MOST_HEAD_BYTES = 8 * KIB  # browsers send about 1 KiB
MOST_REQUESTS = 8  # at once: a few browsers and one Prometheus
PATIENCE = 5.0  # seconds
MOST_STATUS_BYTES = 16 * MIB  # of a status in JSON: some 100,000 connections
RATE_WINDOW = 60.0  # seconds over which the page measures throughput, if it was requested before
STOP_POLL = 0.1  # seconds until the server notices `close`

_SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Answer: TypeAlias = "tuple[bytes, str]"
"""A body and its content type."""


class StatusServer:
    """Serves pages from its construction until `close`.

    ``status``: returns the figures of the moment. The server calls it in its threads, several at a time,
    under no lock. Raises OSError if the port is in use.
    """

    def __init__(self, status: Callable[[], ServiceStatus], host: str = LOOPBACK, port: int = 0) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._past: deque[ServiceStatus] = deque()  # within `RATE_WINDOW`, the oldest first
        self._server = _Server((host, port), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL,), name="sortshuffle-status", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port``, with the actual port."""
        host, port = self._server.server_address[:2]
        return join_address(str(host), port)

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    def close(self) -> None:
        """Stop. Answers under way end within `PATIENCE`. May be called again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def answer(self, path: str, accept: str) -> Answer | None:
        """Return the answer to a GET; None for an unknown path."""
        if path not in ("/", "/metrics", "/status.json"):
            return None
        now, before = self._snapshot()
        if path == "/metrics":
            return metrics_page(now, accept)
        if path == "/status.json":
            return to_json(now).encode(), "application/json"
        return status_page(now, before), "text/html; charset=utf-8"

    def _snapshot(self) -> tuple[ServiceStatus, ServiceStatus | None]:
        """Return the figures now, and the oldest ones requested within `RATE_WINDOW`."""
        now = self._status()
        with self._lock:
            while self._past and now.uptime - self._past[0].uptime > RATE_WINDOW:
                self._past.popleft()
            before = self._past[0] if self._past else None
            if before is None or now.uptime - self._past[-1].uptime >= 1:
                self._past.append(now)
            return now, before


class _Server(ThreadingMixIn, TCPServer):
    """One thread for each request, up to `MOST_REQUESTS`."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: StatusServer) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.Semaphore(MOST_REQUESTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a client went away, or was too slow."""


class _Handler(BaseHTTPRequestHandler):
    """One request and one answer; then the connection is closed."""

    server: _Server
    server_version = "sortshuffle"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BytesIO(_head(self.connection))

    def do_GET(self) -> None:
        try:
            found = self.server.pages.answer(urlsplit(self.path).path, self.headers.get("Accept", ""))
        except Exception as error:  # the figures failed: tell the client, and go on serving
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=f"{type(error).__name__}: {error}")
            return
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="There are /, /metrics and /status.json.")
            return
        body, content_type = found
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _SAFE.items():
            self.send_header(name, value)
        self.end_headers()
        self.connection.settimeout(PATIENCE)  # of the whole answer
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a client that polls once a second would fill the log."""


def _head(connection: socket.socket) -> bytes:
    """Receive the head of a request, which has no body. Raises OSError if it is late or too long."""
    deadline = time.monotonic() + PATIENCE
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        if len(head) > MOST_HEAD_BYTES:
            raise OSError("the request is too long")
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (more := calls.recv(connection, MOST_HEAD_BYTES)):
            break
        head += more
    return head


# ---- the client -------------------------------------------------------------------------------------------


def page_of(address: str) -> str:
    """Return the URL of the page at ``address``: host:port, or the URL itself."""
    base = address if "://" in address else f"http://{address}"
    return f"{base.rstrip('/')}/"


def fetch_status(address: str, timeout: float = PATIENCE) -> ServiceStatus:
    """Fetch the figures of the service with its pages at ``address``: host:port, or the page's URL.

    Raises `UsageError` if that is not an address, `ServiceUnavailableError` if nothing answers there, and
    `ProtocolError` if the answer is not that of a shuffle service of this version.
    """
    url = page_of(address) + "status.json"
    if not url.startswith("http://"):
        raise UsageError(f"{address!r} is not the address of a status page: give host:port")
    try:
        # ignore the environment's proxies: the page is mostly on loopback
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=timeout) as answer:
            body = answer.read(MOST_STATUS_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise ProtocolError(f"{url} answers {error.code}: is this the page of a shuffle service?") from None
    except (ValueError, InvalidURL) as error:
        raise UsageError(f"{address!r} is not the address of a status page: {error}") from None
    except OSError as error:
        raise ServiceUnavailableError(
            f"no shuffle service tells its status at {address}: {error}. See that it runs there"
        ) from None
    except HTTPException as error:
        raise ProtocolError(f"{url} does not answer as a shuffle service does: {error!r}") from None
    if len(body) > MOST_STATUS_BYTES:
        raise ProtocolError(f"{url} answers more than {MOST_STATUS_BYTES} bytes")
    return from_json(body)
