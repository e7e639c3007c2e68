"""`ClientConnection`: one TCP connection of a client to a shuffle service, with TLS or without.

Used by `ServiceLink`, which has at most one at a time. One thread connects and then receives; any thread
sends. Bodies are received straight into memory that the caller gives.

    new --connect--> open --(cut | abort)--> dead          abort: from any thread, in any state

Rules
* Nothing waits for ever: finding the address, connecting and greeting have time-outs. Receiving looks every
  tick whether anything is expected at all, and ends where the service does not get on (`Liveness`).
* Without a secret only a service on this host is spoken to: any other could be anybody, and what it sends is
  unpickled. The server's side has the same rule (`service.server.shuffle_service`).
* Frames go out in the order in which they were posted. Posting is cheap and may be done under a lock; whoever
  posts flushes when it holds none.
* A failure to send is not told to the sender: the receiving thread finds the connection dead.

Lock order: `_sending`, then the TLS stream's own.
"""

from __future__ import annotations

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
from sortshuffle.service.client.wires import PlainWire, TlsWire, Wire
from sortshuffle.service.wire.address import is_loopback, split_address
from sortshuffle.service.wire.handshake import GREETING_TIMEOUT, greet
from sortshuffle.service.wire.protocol import HEADER_BYTES, Header, Sender

CONNECT_TIMEOUT = 5.0  # seconds; a host that is there answers within one, also over long lines
# seconds; the system's resolver asks its second name server when the first has not answered for 5. An answer
# that comes later is the next attempt's
RESOLVE_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Dial:
    """How a service is reached. ``silence``: seconds in which a service that owes something does not get on,
    after which a connection is as good as cut. A connection is made in as many, or not at all."""

    address: str
    secret: bytes | None = field(repr=False)
    tls: ClientTls | None
    silence: float


class ClientConnection:
    """``is_expecting``: asked in the receiving thread, whether the service owes anything. Nothing is opened
    before `connect`."""

    def __init__(
        self, dial: Dial, is_expecting: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dial = dial
        self.liveness = Liveness(dial.silence, is_expecting, clock)
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
        """Whether it was connected, and not aborted since. It may be cut all the same."""
        return self._wire is not None and not self._aborted

    def connect(self) -> None:
        """Connect and greet, which takes ``silence`` at most, all steps together. Raises OSError if that
        fails, of which `AuthenticationError` and `ProtocolError` are special cases. Whoever calls it calls
        `close` in any case."""
        host, port = split_address(self._dial.address)
        until = self._clock() + self._dial.silence
        self._reach(host, port, until)
        connected = self._kept()
        calls.setsockopt(connected, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._dial.tls is not None:
            connected.settimeout(self._left(until, GREETING_TIMEOUT))
            connected = self._encrypted(connected, self._dial.tls, host)
        self.segment_bytes = greet(connected, self._dial.secret, self._left(until, GREETING_TIMEOUT))
        if isinstance(connected, ssl.SSLSocket):
            self._wire = TlsWire(connected, self.liveness.tick, self._dial.silence)
        else:
            self._wire = PlainWire(connected, self.liveness.tick, self._dial.silence)
        self.liveness.got_on()

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
        return Header.unpack(self._header, Sender.SERVER)

    def fill(self, view: memoryview) -> None:
        """Receive exactly so many bytes; ``received`` counts them as they come. Raises
        `ServiceUnavailableError` if the connection is cut, or the service does not get on where it must."""
        wire = self._wire
        assert wire is not None, "not connected"
        size = len(view)
        while size:
            try:
                got = wire.receive(view)
            except TimeoutError:
                self.liveness.look()
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

    def _send_posted(self, wire: Wire) -> None:
        frames = b"".join(self._outbox.popleft() for _ in range(len(self._outbox)))
        if self._aborted:
            return
        try:
            wire.send(frames)
        except (OSError, ValueError):  # ValueError: closed meanwhile
            self.abort()

    def _left(self, until: float, most: float) -> float:
        """Seconds for the next step of connecting, above 0."""
        left = until - self._clock()
        if left <= 0:
            raise ServiceUnavailableError(f"it was not reached within {self._dial.silence:g} s")
        return min(left, most)

    def _reach(self, host: str, port: int, until: float) -> None:
        """Connect to one of the addresses that the name leads to: the first that takes the connection."""
        addresses = self._trusted(resolve(host, self._left(until, RESOLVE_TIMEOUT)))
        until = self._clock() + self._left(until, CONNECT_TIMEOUT)
        error: OSError = ServiceUnavailableError("its name leads to no address")
        for number, address in enumerate(addresses):
            left = until - self._clock()
            if left <= 0 or self._aborted:
                break
            try:
                # one that answers nothing leaves the others their share
                self._keep(calls.create_connection((address, port), left / (len(addresses) - number)))
                return
            except OSError as failure:
                error = failure
        self._expect_wanted()
        raise error

    def _trusted(self, addresses: Sequence[str]) -> Sequence[str]:
        """Those that may be spoken to."""
        if self._dial.secret:
            return addresses
        here = [each for each in addresses if is_loopback(each)]
        if here:
            return here
        raise AuthenticationError(
            f"the shuffle service at {self._dial.address} is on another host, and without a secret that could"
            " be anybody: give services and clients one with spark.sortshuffle.service.secret.file"
        )

    def _keep(self, connected: socket.socket) -> None:
        """From now on the socket is closed with the connection."""
        with self._lock:
            self._socket = connected
        self._kept()

    def _expect_wanted(self) -> None:
        if self._aborted:
            raise ServiceUnavailableError("the client was closed")

    def _kept(self) -> socket.socket:
        self._expect_wanted()
        assert self._socket is not None
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


def _shut_down(connected: socket.socket) -> None:
    try:
        # of the TCP connection itself: an SSLSocket would only forget its encryption
        calls.shutdown_tcp(connected, socket.SHUT_RDWR)
    except OSError:
        return  # not connected any more
