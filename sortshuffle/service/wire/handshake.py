"""The greeting: both sides prove that they know the secret, and the server sends the size of one credit.

`ServerGreeting` is the server's half, without I/O: the connection feeds it received bytes and sends its
answers. `greet` is the client's half, on a blocking socket.

    server   hello --(ClientHello)--> proof --(ClientProof)--> done     with a secret
             hello --(ClientHello)--> done                              without

Rules
* A side that has a secret insists on it. A client with a secret rejects a server that asks for no proof: it
  could be an impostor.
* Proofs are compared in constant time. Each covers both nonces and the role of its sender, so that none can
  be replayed or reflected.
* A greeting takes at most `GREETING_TIMEOUT` seconds. (The server's connection times its own half.)
* A client may send its first frames right after the greeting: `ServerGreeting.rest`.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time

from sortshuffle import calls
from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.wire.protocol import (
    HELLO_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    VERSION,
    Hello,
    Sender,
    proof,
)

# seconds; two round trips and two hashes: only an overloaded peer, or one of another protocol, takes longer
GREETING_TIMEOUT = 10.0
_REMEDY = (
    "give both sides the same secret (spark.sortshuffle.service.secret.file for external services,"
    " spark.authenticate.secret where spark.authenticate is on)"
)


class ServerGreeting:
    """The server's half. ``secret``: None to admit every client. ``segment_bytes``: bytes of one credit."""

    def __init__(self, secret: bytes | None, segment_bytes: int) -> None:
        self._secret = secret
        self._segment_bytes = segment_bytes
        self._pending = bytearray()
        self._hellos: tuple[bytes, bytes] | None = None
        self.is_done = False

    @property
    def rest(self) -> bytes:
        """The bytes after the greeting, once the greeting is done."""
        return bytes(self._pending)

    def feed(self, data: bytes | memoryview) -> bytes:
        """Process bytes of the client and return the answer to send. Not to be called after `is_done`.

        Raises `ProtocolError` for a peer that does not speak the protocol, `AuthenticationError` for one that
        does not know the secret. Then the caller closes the connection.
        """
        self._pending += data
        answer = b""
        if self._hellos is None:
            _expect_magic(self._pending)
            if len(self._pending) >= HELLO_BYTES:
                answer = self._answer_hello(self._take(HELLO_BYTES))
        if self._hellos is not None and not self.is_done and len(self._pending) >= PROOF_BYTES:
            answer += self._answer_proof(self._take(PROOF_BYTES), self._hellos)
        return answer

    def _take(self, size: int) -> bytes:
        taken = bytes(self._pending[:size])
        del self._pending[:size]
        return taken

    def _answer_hello(self, client_hello: bytes) -> bytes:
        version = min(VERSION, Hello.unpack(client_hello, Sender.CLIENT).version)
        hello = Hello(
            secrets.token_bytes(NONCE_BYTES), version, self._segment_bytes, proof_required=bool(self._secret)
        ).pack()
        self._hellos = client_hello, hello
        self.is_done = not self._secret
        return hello

    def _answer_proof(self, client_proof: bytes, hellos: tuple[bytes, bytes]) -> bytes:
        secret = self._secret or b""
        if not hmac.compare_digest(client_proof, proof(secret, "client", *hellos)):
            raise AuthenticationError(f"a client does not know this service's secret: {_REMEDY}")
        self.is_done = True
        return proof(secret, "server", *hellos)


def greet(server: socket.socket, secret: bytes | None, timeout: float = GREETING_TIMEOUT) -> int:
    """Do the client's half on a connected, blocking socket, and return the bytes of one credit. ``timeout``:
    seconds for the whole greeting. The socket keeps its own time-out.

    Raises `AuthenticationError` if the sides do not have the same secret, `ProtocolError` if the peer does
    not speak the protocol, `ServiceUnavailableError` if it does not answer or the connection breaks.
    """
    before, until = server.gettimeout(), time.monotonic() + timeout
    try:
        return _greet(server, secret, until)
    except OSError as error:
        # our own errors are OSErrors, too, and say everything already
        if isinstance(error, AuthenticationError | ProtocolError | ServiceUnavailableError):
            raise
        raise ServiceUnavailableError(
            f"the shuffle service at {_peer(server)} did not greet within {timeout:g} s: {error}"
        ) from error
    finally:
        server.settimeout(before)


def _greet(server: socket.socket, secret: bytes | None, until: float) -> int:
    client_hello = Hello(secrets.token_bytes(NONCE_BYTES)).pack()
    _send(server, client_hello, until)
    server_hello = _receive(server, HELLO_BYTES, until)
    try:
        hello = Hello.unpack(server_hello, Sender.SERVER)
    except ProtocolError as error:
        raise ProtocolError(f"the greeting of {_peer(server)}: {error}") from None
    if hello.proof_required or secret:
        if not (hello.proof_required and secret):
            who = (
                "asks for a secret, and this client has none"
                if hello.proof_required
                else "asks for no secret"
            )
            raise AuthenticationError(f"the shuffle service at {_peer(server)} {who}: {_REMEDY}")
        _exchange_proofs(server, secret, (client_hello, server_hello), until)
    return hello.segment_bytes


def _exchange_proofs(server: socket.socket, secret: bytes, hellos: tuple[bytes, bytes], until: float) -> None:
    _send(server, proof(secret, "client", *hellos), until)
    try:
        server_proof = _receive(server, PROOF_BYTES, until)
    except ServiceUnavailableError as error:
        raise AuthenticationError(
            f"the shuffle service at {_peer(server)} closed the connection when it was sent this client's"
            f" proof of the secret: {_REMEDY}"
        ) from error
    if not hmac.compare_digest(server_proof, proof(secret, "server", *hellos)):
        raise AuthenticationError(
            f"the shuffle service at {_peer(server)} does not know this client's secret: {_REMEDY}"
        )


def _send(server: socket.socket, data: bytes, until: float) -> None:
    server.settimeout(_left(until))
    calls.sendall(server, data)


def _receive(server: socket.socket, size: int, until: float) -> bytes:
    received = b""
    while len(received) < size:
        server.settimeout(_left(until))
        part = calls.recv(server, size - len(received))
        if not part:
            raise ServiceUnavailableError(
                f"the shuffle service at {_peer(server)} closed the connection during the greeting"
            )
        received += part
        if len(received) < HELLO_BYTES == size:
            _expect_magic(received)
    return received


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("it is silent")
    return left


def _expect_magic(begin: bytes | bytearray) -> None:
    """Raise `ProtocolError` if the bytes do not begin like a hello. A peer of another protocol may never send
    a whole one."""
    if not MAGIC.startswith(bytes(begin[: len(MAGIC)])):
        raise ProtocolError(
            f"the peer does not speak sortshuffle's protocol: it begins with {bytes(begin[: len(MAGIC)])!r}"
        )


def _peer(server: socket.socket) -> str:
    try:
        host, port = calls.getpeername(server)[:2]
    except OSError:
        return "an address that is gone"
    return f"{host}:{port}"
