"""How a server's connection moves bytes without ever waiting: over plain TCP, or over TLS.

    opened by `open_transport` --receive, send, until the peer is gone--> close

Rules
* Nothing blocks. `receive` and `send` do what can be done now; what they gave or took says how much that was.
* TLS may have to write in order to read (`needs_write`): then it is asked to receive when it can write.
* TLS may hold decrypted bytes that no selector sees, so `receive` gives all there is, up to a bound that
  `has_pending` tells of.
* Whatever TLS finds wrong with a peer is an OSError (`ssl.SSLError`), like a connection that breaks.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sortshuffle import calls

RECEIVE_BYTES = 64 << 10  # clients send frames of some 100 bytes; many consumers may come in one read
# What TLS is given at a time, four records: how much it took is not known before it has taken all of it, and
# a peer that takes something must be seen to
TLS_BYTES = 64 << 10
IOV_MAX = os.sysconf("SC_IOV_MAX")  # pieces that one gathered send takes; 1024 on Linux

# seconds: a host that vanished is noticed after 60 when nothing is under way. (TCP_USER_TIMEOUT would take
# the place of that, and ends connections to peers that are well but do not read; see `Limits.gone`)
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = 30, 10, 3


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files. ``certificate``: of this service, with the chain to the authority that its clients trust.
    ``key``: the certificate's."""

    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """Raises OSError if a file cannot be read or is not what it should be."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context


class Transport(Protocol):
    """One accepted connection."""

    needs_write: bool
    """Whether nothing more can be received until something can be written."""

    def fileno(self) -> int:
        """The descriptor, for the selector."""

    def receive(self) -> bytes | None:
        """What came. None if nothing did; nothing, if the peer has closed. Raises OSError."""

    @property
    def has_pending(self) -> bool:
        """Whether there is more to receive that the selector does not know of."""

    def send(self, views: Sequence[memoryview]) -> int:
        """Bytes of these that were taken, from the first on; 0 if none can be now. Raises OSError."""

    def close(self) -> None:
        """End the connection. May be called again."""


def open_transport(accepted: socket.socket, tls: ssl.SSLContext | None) -> Transport:
    """Takes the socket over. Raises OSError."""
    try:
        _set_up(accepted)
        return PlainTransport(accepted) if tls is None else TlsTransport(accepted, tls)
    except BaseException:
        accepted.close()
        raise


class PlainTransport:
    """TCP as it is."""

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
    """TLS on top. The handshake is part of the first `receive`."""

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
        # after "want write" OpenSSL must be given the same bytes again, which holds because they only change
        # when some of them were taken
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
