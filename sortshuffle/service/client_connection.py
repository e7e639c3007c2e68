"""`ClientConnection`: one TCP connection of a client to a shuffle service, with TLS or without.

Used by `ServiceClient`, which has at most one at a time. One thread connects and then receives; any thread
sends. Bodies are received straight into memory that the caller gives.

    new --connect--> open --(cut | abort)--> dead          abort: from any thread, in any state

Rules
* Nothing waits for ever: connecting and greeting have time-outs, receiving looks up every `tick` whether
  anything is expected at all, and ends where nothing came for too long.
* Frames go out in the order in which they were posted. Posting is cheap and may be done under a lock; whoever
  posts flushes when it holds none.
* A failure to send is not told to the sender: the receiving thread finds the connection dead.

Lock order: `_sending`, then the TLS stream's own.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sortshuffle.errors import AuthenticationError, ServiceUnavailableError
from sortshuffle.service.address import split_address
from sortshuffle.service.handshake import GREETING_TIMEOUT, greet
from sortshuffle.service.protocol import HEADER_BYTES, MOST_RESPONSE_BYTES, Header

CONNECT_TIMEOUT = 5.0  # seconds; a host that is there answers within one, also over long lines
MOST_TICK = 1.0  # seconds between two looks at whether a silent connection should not be silent
TICKS = 10  # at least so many looks before it is given up


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Paths of PEM files: the authority that is trusted, and the client's own certificate if it has one."""

    authority: str
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Raises OSError for files that cannot be read or used."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authority)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True)
class Dial:
    """How a service is reached. ``silence``: seconds without a byte that is expected, after which a
    connection is as good as cut."""

    address: str
    secret: bytes | None = field(repr=False)
    tls: ClientTls | None
    silence: float


class _Wire(Protocol):
    """A connected socket in use by one receiving thread and one that sends."""

    def receive(self, view: memoryview) -> int:
        """Some bytes, 0 at the end. Raises TimeoutError if none came in a tick, OSError."""

    def send(self, data: bytes) -> None:
        """All of it. Raises OSError."""

    def send_now(self, data: bytes) -> None:
        """What can be sent without waiting. Raises OSError."""


class ClientConnection:
    """``is_expecting``: asked in the receiving thread, whether the service owes anything. Nothing is opened
    before `connect`."""

    def __init__(
        self, dial: Dial, is_expecting: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dial = dial
        self._is_expecting = is_expecting
        self._clock = clock
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False
        self._wire: _Wire | None = None
        self._outbox: deque[bytes] = deque()
        self._header = bytearray(HEADER_BYTES)
        self.segment_bytes = 0
        self.received = 0
        self.heard = clock()

    @property
    def is_open(self) -> bool:
        """Whether it was connected, and not aborted since. It may be cut all the same."""
        return self._wire is not None and not self._aborted

    def connect(self) -> None:
        """Connect and greet. Raises OSError if that fails, of which `AuthenticationError` and
        `ProtocolError` are special cases. Whoever calls it calls `close` in any case."""
        host, port = split_address(self._dial.address)
        self._keep(socket.create_connection((host, port), min(CONNECT_TIMEOUT, self._dial.silence)))
        connected = self._kept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._dial.tls is not None:
            connected = self._encrypted(connected, self._dial.tls, host)
        self.segment_bytes = greet(connected, self._dial.secret, min(GREETING_TIMEOUT, self._dial.silence))
        tick = min(MOST_TICK, self._dial.silence / TICKS)
        if isinstance(connected, ssl.SSLSocket):
            self._wire = _TlsWire(connected, tick, self._dial.silence)
        else:
            self._wire = _PlainWire(connected, tick, self._dial.silence)
        self.heard = self._clock()

    def post(self, frame: bytes) -> None:
        """Send it with the next `flush`, behind what was posted before."""
        self._outbox.append(frame)

    def flush(self) -> None:
        """Send what was posted, by any thread; nobody waits for another who is sending, and then sends this
        too. Blocks only as long as the service takes nothing."""
        # looks again when it has let go: what was posted meanwhile is nobody else's to send
        while self._outbox and self._wire is not None and self._sending.acquire(blocking=False):
            try:
                self._send_posted(self._wire)
            finally:
                self._sending.release()

    def receive_header(self) -> Header:
        """The next frame's. Raises as `fill` does, and `ProtocolError`."""
        self.fill(memoryview(self._header))
        return Header.unpack(self._header, MOST_RESPONSE_BYTES)

    def fill(self, view: memoryview) -> None:
        """Receive exactly so many bytes; ``received`` counts them as they come. Raises
        `ServiceUnavailableError` if the connection is cut, or silent where it must not be."""
        wire = self._wire
        assert wire is not None, "not connected"
        size = len(view)
        while size:
            try:
                got = wire.receive(view)
            except TimeoutError:
                self._expect_no_silence()
                continue
            except (OSError, ValueError) as error:  # ValueError: closed meanwhile
                raise ServiceUnavailableError(f"the connection broke: {error}") from error
            if not got:
                raise ServiceUnavailableError("the connection was closed by the service")
            self.heard = self._clock()
            self.received += got
            if got == size:
                return
            view = view[got:]
            size -= got

    def leave(self, frame: bytes) -> None:
        """Say goodbye, if that can be done without waiting, and abort."""
        if self._wire is not None and self._sending.acquire(blocking=False):
            try:
                self._wire.send_now(b"".join((*self._outbox, frame)))
            except (OSError, ValueError):
                pass  # then the service sees the connection end
            finally:
                self._sending.release()
        self.abort()

    def abort(self) -> None:
        """End it: whoever sends or receives fails. May be called again."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                _shut_down(self._socket)

    def close(self) -> None:
        """Let go of the socket. For the receiving thread, when it receives no more."""
        self.abort()
        with self._sending, self._lock:
            if self._socket is not None:
                self._socket.close()

    def _send_posted(self, wire: _Wire) -> None:
        frames = b"".join(self._outbox.popleft() for _ in range(len(self._outbox)))
        if self._aborted:
            return
        try:
            wire.send(frames)
        except (OSError, ValueError):  # ValueError: closed meanwhile
            self.abort()

    def _keep(self, connected: socket.socket) -> None:
        """From now on the socket is closed with the connection."""
        with self._lock:
            self._socket = connected
        self._kept()

    def _kept(self) -> socket.socket:
        if self._aborted or self._socket is None:
            raise ServiceUnavailableError("the client was closed")
        return self._socket

    def _encrypted(self, connected: socket.socket, tls: ClientTls, host: str) -> socket.socket:
        try:
            context = tls.context()
        except OSError as error:
            raise AuthenticationError(
                f"the files of spark.sortshuffle.service.tls.* cannot be used: {error} ({tls})"
            ) from error
        try:
            encrypted = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
            self._keep(encrypted)
            encrypted.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(
                f"the certificate of the shuffle service at {self._dial.address} is not trusted: {error}."
                " Give this host the authority that signed it (spark.sortshuffle.service.tls.authority), and"
                " the service a certificate for the name or address that it is reached by"
            ) from error
        return encrypted

    def _expect_no_silence(self) -> None:
        if not self._is_expecting():
            self.heard = self._clock()
        elif self._clock() - self.heard >= self._dial.silence:
            raise ServiceUnavailableError(f"it sent nothing for {self._clock() - self.heard:.1f} s")


class _PlainWire:
    """Blocking calls with the system's own time-outs: one system call for each body that comes in time."""

    def __init__(self, connected: socket.socket, tick: float, patience: float) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(tick))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(patience))
        self._socket = connected

    def receive(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError from None

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_now(self, data: bytes) -> None:
        self._socket.send(data, socket.MSG_DONTWAIT)


class _TlsWire:
    """OpenSSL allows one thread at a time in a connection, and receiving must not keep others from sending:
    so nobody blocks in it, and waiting is done outside."""

    def __init__(self, connected: ssl.SSLSocket, tick: float, patience: float) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._descriptor = connected.fileno()
        self._tick = tick
        self._patience = patience
        self._lock = threading.Lock()

    def receive(self, view: memoryview) -> int:
        while True:
            try:
                with self._lock:
                    return self._socket.recv_into(view, len(view))
            except ssl.SSLWantReadError:
                ready = self._wait(select.POLLIN, self._tick)
            except ssl.SSLWantWriteError:
                ready = self._wait(select.POLLOUT, self._tick)
            if not ready:
                raise TimeoutError

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                with self._lock:
                    left = left[self._socket.send(left) :]
                continue
            except ssl.SSLWantReadError:
                ready = self._wait(select.POLLIN, self._patience)
            except ssl.SSLWantWriteError:
                ready = self._wait(select.POLLOUT, self._patience)
            if not ready:
                raise TimeoutError("the service takes nothing")

    def send_now(self, data: bytes) -> None:
        with self._lock:
            self._socket.send(data)

    def _wait(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, event)
        return bool(poll.poll(max(1, int(seconds * 1000))))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, max(1, int((seconds - whole) * 1e6)))


def _shut_down(connected: socket.socket) -> None:
    try:
        # of the TCP connection itself: an SSLSocket would only forget its encryption
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:
        return  # not connected any more
