"""`PlainWire`, `TlsWire`: how a client's connected socket moves bytes: one thread receives, one sends.

Receiving returns every tick, so that the caller can check whether the service makes progress. Sending fails
when the service has taken nothing for ``patience`` seconds.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from typing import Protocol

from sortshuffle import calls


class Wire(Protocol):
    """A connected socket, used by one receiving thread and one sending thread."""

    def receive(self, view: memoryview) -> int:
        """Receive some bytes; return how many, 0 at the end. Raises TimeoutError after a tick, OSError."""

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError."""

    def send_now(self, data: bytes) -> None:
        """Send as much as is possible without waiting. Raises OSError."""


class PlainWire:
    """Uses blocking calls with the system's time-outs: one call for each body that arrives in time."""

    def __init__(self, connected: socket.socket, tick: float, patience: float) -> None:
        connected.settimeout(None)
        calls.setsockopt(connected, socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(tick))
        calls.setsockopt(connected, socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(patience))
        self._socket = connected

    def receive(self, view: memoryview) -> int:
        try:
            return calls.recv_into(self._socket, view, len(view), socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError from None

    def send(self, data: bytes) -> None:
        calls.sendall(self._socket, data)

    def send_now(self, data: bytes) -> None:
        calls.send(self._socket, data, socket.MSG_DONTWAIT)


class TlsWire:
    """Never blocks inside OpenSSL, which allows one thread at a time in a connection: receiving must not keep
    others from sending. So threads wait outside the lock."""

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
                    return calls.recv_into(self._socket, view, len(view))
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
                    left = left[calls.send(self._socket, left) :]
                continue
            except ssl.SSLWantReadError:
                ready = self._wait(select.POLLIN, self._patience)
            except ssl.SSLWantWriteError:
                ready = self._wait(select.POLLOUT, self._patience)
            if not ready:
                raise TimeoutError("the service takes nothing")

    def send_now(self, data: bytes) -> None:
        with self._lock:
            calls.send(self._socket, data)

    def _wait(self, event: int, seconds: float) -> bool:
        return calls.poll(self._descriptor, event, max(1, int(seconds * 1000)))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, max(1, int((seconds - whole) * 1e6)))
