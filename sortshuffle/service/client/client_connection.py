"""`ClientConnection`: one TCP connection of a client to a shuffle service, with or without TLS.

Used by `ServiceLink`, which has at most one at a time. One thread connects and then receives; any thread
sends. Bodies are received straight into the caller's memory.

    new --connect--> open --(cut | abort)--> dead          abort: from any thread, in any state

Rules
* Nothing waits for ever: resolving, connecting and greeting have time-outs. The receiving thread checks every
  tick whether anything is expected, and stops if the service makes no progress (`Liveness`).
* Without a secret a client talks only to a service on its own host: any other could be an impostor, and what
  it sends is unpickled. The server has the same rule (`service.server.shuffle_service`).
* Frames are sent in the order in which they were posted. Posting is cheap and may be done under a lock; the
  thread that posted calls `flush` when it holds none.
* A sender does not learn that sending failed: the receiving thread finds the connection dead.

Lock order: `_sending`; then `_lock`, or the TLS wire's own.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sortshuffle import calls
from sortshuffle.errors import AuthenticationError, ServiceUnavailableError
from sortshuffle.service.client.client_settings import ClientTls
from sortshuffle.service.client.liveness import Liveness
from sortshuffle.service.client.resolution import resolve
from sortshuffle.service.client.shortage import is_own_shortage
from sortshuffle.service.client.wires import PlainWire, TlsWire, Wire
from sortshuffle.service.wire.address import is_loopback, split_address
from sortshuffle.service.wire.handshake import GREETING_TIMEOUT, greet
from sortshuffle.service.wire.protocol import HEADER_BYTES, Header, Sender

CONNECT_TIMEOUT = 5.0  # seconds; a host that is up answers within one, even over long distances
# seconds; the system's resolver asks its second name server when the first has not answered for 5. The next
# attempt uses an answer that comes later
RESOLVE_TIMEOUT = 10.0
DISCARD_PORT = 9  # any port does: nothing is sent


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """How to reach a service. ``silence``: seconds that a service which owes something may go without
    progress before the connection counts as cut. Connecting may take as long, too."""

    address: str
    secret: bytes | None = field(repr=False)
    tls: ClientTls | None
    silence: float


class ClientConnection:
    """A connection, which opens nothing before `connect`. ``is_expecting``: returns whether the service owes
    anything; called in the receiving thread."""

    def __init__(
        self,
        endpoint: ServiceEndpoint,
        is_expecting: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self.liveness = Liveness(endpoint.silence, is_expecting, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False
        self._wire: Wire | None = None
        self._outbox: deque[bytes] = deque()
        self._header = bytearray(HEADER_BYTES)
        self.segment_bytes = 0
        self.received = 0

    @property
    def is_open(self) -> bool:
        """Whether it was connected and not aborted since. The connection may be cut nevertheless."""
        return self._wire is not None and not self._aborted

    def connect(self) -> None:
        """Connect and greet, in ``silence`` seconds at most. Raises OSError if that fails, of which
        `AuthenticationError` and `ProtocolError` are special cases. The caller calls `close` in any case."""
        host, port = split_address(self._endpoint.address)
        until = self._clock() + self._endpoint.silence
        self._reach(host, port, until)
        connected = self._live_socket()
        calls.setsockopt(connected, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._endpoint.tls is not None:
            connected.settimeout(self._left(until, GREETING_TIMEOUT))
            connected = self._encrypted(connected, self._endpoint.tls, host)
        self.segment_bytes = greet(connected, self._endpoint.secret, self._left(until, GREETING_TIMEOUT))
        if isinstance(connected, ssl.SSLSocket):
            self._wire = TlsWire(connected, self.liveness.tick, self._endpoint.silence)
        else:
            self._wire = PlainWire(connected, self.liveness.tick, self._endpoint.silence)
        self.liveness.progress()

    def post(self, frame: bytes) -> None:
        """Queue a frame for the next `flush`, after those posted before."""
        self._outbox.append(frame)

    def flush(self) -> None:
        """Send the posted frames; any thread may call this. If another thread is sending, that thread sends
        these frames too, and the call returns at once. Blocks only while the service takes nothing."""
        # check again after each release: threads that posted meanwhile left their frames to this one
        while self._outbox and self._wire is not None and self._sending.acquire(blocking=False):
            try:
                self._send_posted(self._wire)
            finally:
                self._sending.release()

    def receive_header(self) -> Header:
        """Receive the next frame's header. Raises as `fill` does, and `ProtocolError`."""
        self.fill(memoryview(self._header))
        return Header.unpack(self._header, Sender.SERVER)

    def fill(self, view: memoryview) -> None:
        """Fill the view; ``received`` counts the bytes as they come. Raises `ServiceUnavailableError` if the
        connection is cut, or the service owes something and makes no progress."""
        wire = self._wire
        assert wire is not None, "not connected"
        size = len(view)
        while size:
            try:
                got = wire.receive(view)
            except TimeoutError:
                self.liveness.check()
                continue
            except (OSError, ValueError) as error:  # ValueError: closed meanwhile
                raise ServiceUnavailableError(f"the connection broke: {error}") from error
            if not got:
                raise ServiceUnavailableError("the connection was closed by the service")
            self.received += got
            self.liveness.count(got)
            if got == size:
                return
            view = view[got:]
            size -= got

    def leave(self, frame: bytes) -> None:
        """Send a last frame, if that is possible without waiting, and abort."""
        if self._wire is not None and self._sending.acquire(blocking=False):
            try:
                self._wire.send_now(b"".join((*self._outbox, frame)))
            except (OSError, ValueError):
                pass  # then the service sees the connection end
            finally:
                self._sending.release()
        self.abort()

    def abort(self) -> None:
        """End the connection: threads that send or receive on it fail. May be called again."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                _shut_down(self._socket)

    def close(self) -> None:
        """Close the socket. Called by the receiving thread when it has stopped receiving."""
        self.abort()
        with self._sending, self._lock:
            if self._socket is not None:
                self._socket.close()

    def _send_posted(self, wire: Wire) -> None:
        frames = b"".join(self._outbox.popleft() for _ in range(len(self._outbox)))
        if self._aborted:
            return
        try:
            wire.send(frames)
        except (OSError, ValueError):  # ValueError: closed meanwhile
            self.abort()

    def _left(self, until: float, most: float) -> float:
        """Return the seconds for the next step of connecting: above 0, and ``most`` at most."""
        left = until - self._clock()
        if left <= 0:
            raise ServiceUnavailableError(f"it was not reached within {self._endpoint.silence:g} s")
        return min(left, most)

    def _reach(self, host: str, port: int, until: float) -> None:
        """Connect to the first of the host's addresses that accepts the connection. If none does, raise the
        error that decides (`_rank`)."""
        addresses = self._trusted(resolve(host, self._left(until, RESOLVE_TIMEOUT)))
        until = self._clock() + self._left(until, CONNECT_TIMEOUT)
        failures: list[tuple[int, OSError]] = []
        for number, address in enumerate(addresses):
            left = until - self._clock()
            if left <= 0 or self._aborted:
                break
            try:
                # an address that does not answer leaves the others their share of the time
                self._set_socket(calls.create_connection((address, port), left / (len(addresses) - number)))
                return
            except OSError as failure:
                failures.append((_rank(address, failure), failure))
        self._expect_not_aborted()
        if not failures:
            raise ServiceUnavailableError("its name leads to no address")
        raise min(failures, key=lambda each: each[0])[1]

    def _trusted(self, addresses: Sequence[str]) -> Sequence[str]:
        """Select the addresses that may be talked to: without a secret, those of this host."""
        if self._endpoint.secret:
            return addresses
        here = [each for each in addresses if is_loopback(each)]
        if here:
            return here
        raise AuthenticationError(
            f"the shuffle service at {self._endpoint.address} is on another host, and without a secret that"
            " could be anybody: give services and clients one with spark.sortshuffle.service.secret.file"
        )

    def _set_socket(self, connected: socket.socket) -> None:
        """Keep the socket, to be closed with the connection. Raises if the connection was aborted."""
        with self._lock:
            self._socket = connected
        self._live_socket()

    def _expect_not_aborted(self) -> None:
        if self._aborted:
            raise ServiceUnavailableError("the client was closed")

    def _live_socket(self) -> socket.socket:
        self._expect_not_aborted()
        assert self._socket is not None
        return self._socket

    def _encrypted(self, connected: socket.socket, tls: ClientTls, host: str) -> socket.socket:
        try:
            context = tls.context()
        except OSError as error:
            if is_own_shortage(error):  # then the files may be as they should
                raise
            raise AuthenticationError(
                f"the files of spark.sortshuffle.service.tls.* cannot be used: {error} ({tls})"
            ) from error
        try:
            encrypted = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
            self._set_socket(encrypted)
            encrypted.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(
                f"the certificate of the shuffle service at {self._endpoint.address} is not trusted: {error}."
                " Give this host the authority that signed it (spark.sortshuffle.service.tls.authority), and"
                " the service a certificate for the name or address that it is reached by"
            ) from error
        return encrypted


def _rank(address: str, failure: OSError) -> int:
    """Rank what a failure to connect to an address decides. 0: this process lacks something, so the address
    may be the right one; a service listens at one of a name's addresses, and the others refuse. 1: the host's
    own answer, or silence. 2 and 3: nothing, because this host has no way to addresses of this kind, such as
    IPv6. Without IPv6 its addresses may also fail as if all ports were in use."""
    if failure.errno in (errno.ENETUNREACH, errno.EAFNOSUPPORT):
        return 2
    if failure.errno == errno.EADDRNOTAVAIL and ":" in address and not _has_way_to(address):
        return 3
    return 0 if is_own_shortage(failure) else 1


def _has_way_to(address: str) -> bool:
    """Return whether this host has a source address for an address of IPv6. It connects a UDP socket, which
    sends nothing: all ports of TCP may be in use. An error that says nothing counts as yes."""
    try:
        with calls.new_socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            calls.connect(probe, (address, DISCARD_PORT))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT)
    return True


def _shut_down(connected: socket.socket) -> None:
    try:
        # the TCP connection itself: an SSLSocket's own method would also drop its encryption state
        calls.shutdown_tcp(connected, socket.SHUT_RDWR)
    except OSError:
        return  # no longer connected
