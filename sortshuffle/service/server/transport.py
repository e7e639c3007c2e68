"""Non-blocking transports for the server's connections: plain TCP, and TLS.

`open_transport` makes one from an accepted socket; the connection uses it until the peer is gone, then closes
it.

Rules
* Nothing blocks. `receive` and `send` do what is possible now; their results say how much that was.
* TLS may have to write before it can read (`needs_write`). Then call `receive` when the socket is writable.
* TLS may hold decrypted bytes that the selector does not see. `has_pending` says whether `receive` left any.
* Any fault that TLS finds in a peer is an OSError (`ssl.SSLError`), like a broken connection.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sortshuffle import calls

RECEIVE_BYTES = 64 << 10  # clients send frames of some 100 bytes; one read may return many of them
# Bytes per call of TLS, four records. TLS reports progress only when it has taken them all, and the progress
# of a slow peer must show
TLS_BYTES = 64 << 10
IOV_MAX = os.sysconf("SC_IOV_MAX")  # pieces that one gathered send takes; 1024 on Linux

# seconds: on an idle connection, a vanished host is noticed after 60. (TCP_USER_TIMEOUT would override this,
# and end connections to healthy peers that do not read; see `Limits.gone`)
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = 30, 10, 3


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Paths of PEM files. ``certificate``: this service's, with the chain to the authority that its clients
    trust. ``key``: the certificate's private key."""

    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """Return a server context. Raises OSError if a file cannot be read or is invalid."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context


class Transport(Protocol):
    """One accepted connection."""

    needs_write: bool
    """Whether `receive` cannot go on until the socket is writable."""

    def fileno(self) -> int:
        """Return the descriptor, for the selector."""

    def receive(self) -> bytes | None:
        """Return received bytes; None if there are none yet, ``b""`` if the peer closed. Raises OSError."""

    @property
    def has_pending(self) -> bool:
        """Whether there are more bytes to receive that the selector does not know of."""

    def send(self, views: Sequence[memoryview]) -> int:
        """Send as much as possible now, in order, and return the number of bytes taken. Raises OSError."""

    def close(self) -> None:
        """End the connection. May be called again."""


def open_transport(accepted: socket.socket, tls: ssl.SSLContext | None) -> Transport:
    """Return a transport that owns the socket. Raises OSError, after closing the socket."""
    try:
        _set_up(accepted)
        return PlainTransport(accepted) if tls is None else TlsTransport(accepted, tls)
    except BaseException:
        accepted.close()
        raise


class PlainTransport:
    """Plain TCP, or a Unix socket."""

    has_pending = False
    needs_write = False

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def fileno(self) -> int:
        return self._peer.fileno()

    def receive(self) -> bytes | None:
        try:
            return calls.recv(self._peer, RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, views: Sequence[memoryview]) -> int:
        try:
            return calls.sendmsg(self._peer, views[:IOV_MAX])
        except (BlockingIOError, InterruptedError):
            return 0

    def close(self) -> None:
        self._peer.close()


class TlsTransport:
    """TLS over the socket. The handshake is part of the first calls of `receive`."""

    def __init__(self, peer: socket.socket, context: ssl.SSLContext) -> None:
        self._peer = context.wrap_socket(
            peer, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        self._peer.setblocking(False)
        self._is_greeted = False
        self.needs_write = False

    def fileno(self) -> int:
        return self._peer.fileno()

    @property
    def has_pending(self) -> bool:
        return self._is_greeted and self._peer.pending() > 0

    def receive(self) -> bytes | None:
        self.needs_write = False
        try:
            self._greet()
            return calls.recv(self._peer, RECEIVE_BYTES)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.needs_write = True
            return None
        except ssl.SSLZeroReturnError:
            return b""

    def send(self, views: Sequence[memoryview]) -> int:
        # after "want write" OpenSSL must get the same bytes again. It does: the caller drops only bytes that
        # were taken
        taken = 0
        try:
            for view in views:
                for part in _parts(view):
                    sent = calls.send(self._peer, part)
                    taken += sent
                    if sent < len(part):
                        return taken
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return taken

    def close(self) -> None:
        self._peer.close()

    def _greet(self) -> None:
        if not self._is_greeted:
            self._peer.do_handshake()
            self._is_greeted = True


def _parts(view: memoryview) -> Iterator[memoryview]:
    return (view[start : start + TLS_BYTES] for start in range(0, len(view), TLS_BYTES))


def _set_up(accepted: socket.socket) -> None:
    accepted.setblocking(False)
    if accepted.family not in (socket.AF_INET, socket.AF_INET6):
        return
    tcp = socket.IPPROTO_TCP
    calls.setsockopt(accepted, tcp, socket.TCP_NODELAY, 1)
    calls.setsockopt(accepted, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):  # Linux has all of them, other systems some
            calls.setsockopt(accepted, tcp, getattr(socket, name), value)
