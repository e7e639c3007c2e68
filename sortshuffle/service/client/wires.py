"""`PlainWire`, `TlsWire`: how a client's connected socket moves bytes: one thread receives, one sends.

Receiving returns every tick, so that the caller can check whether the service makes progress. Sending fails
when the service has taken nothing for ``patience`` seconds.

A waiting thread is woken for every 64 KiB that arrive. On a virtual machine that may cost more than copying
them: a bare sender took 0.39 s for a GB, and 0.14 s when its receiver was woken for each MiB. So a plain wire
is woken when a whole body is there, or `WAKE_BYTES` of it.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from typing import Protocol

from sortshuffle import calls

# bytes that must have arrived before a receiver that waits for so many or more is woken. CPU of service and
# client per GB in 16 channels: 0.57 and 0.46 s if woken at once, 0.56 and 0.46 with 64 KiB, 0.51 and 0.42
# with 256 KiB, 0.50 and 0.40 with 1 MiB, which is also what a service sends at a time
WAKE_BYTES = 1 << 20


class Wire(Protocol):
    """A connected socket, used by one receiving thread and one sending thread."""

    def receive(self, view: memoryview) -> int:
        """Receive some bytes; return how many, 0 at the end. Raises TimeoutError after a tick, OSError."""

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError."""

    def send_now(self, data: bytes) -> None:
        """Send as much as is possible without waiting. Raises OSError."""


class PlainWire:
    """Takes what has arrived. If that is nothing, waits until enough is there (SO_RCVLOWAT).

    The wait is a poll, not a blocking receive: that would take the beginning of a body, and then wait for a
    rest that may be smaller than what it is to be woken at. If a tick passes and only some bytes are there,
    the wire waits for fewer from then on: the service is slow, or the system has no memory for more (Linux
    wakes the waiting thread then; before 5.12 it may not)."""

    def __init__(self, connected: socket.socket, tick: float, patience: float) -> None:
        connected.settimeout(None)
        calls.setsockopt(connected, socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(patience))
        self._socket = connected
        self._descriptor = connected.fileno()
        self._tick = tick
        self._wakes_at = 1  # bytes; the system's default
        self._most = WAKE_BYTES  # bytes to wait for

    def receive(self, view: memoryview) -> int:
        try:
            return self._take(view)
        except BlockingIOError:
            wanted = min(len(view), self._most)
            is_there = self._wait_for(wanted)
        try:
            got = self._take(view)
        except BlockingIOError:
            raise TimeoutError from None
        if not is_there and got < wanted:  # else it came just after the tick
            self._most = max(1, got // 2)
        return got

    def send(self, data: bytes) -> None:
        calls.sendall(self._socket, data)

    def send_now(self, data: bytes) -> None:
        calls.send(self._socket, data, socket.MSG_DONTWAIT)

    def _take(self, view: memoryview) -> int:
        return calls.recv_into(self._socket, view, len(view), socket.MSG_DONTWAIT)

    def _wait_for(self, size: int) -> bool:
        if size != self._wakes_at:
            calls.setsockopt(self._socket, socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._wakes_at = size
        return _wait(self._descriptor, select.POLLIN, self._tick)


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
                ready = _wait(self._descriptor, select.POLLIN, self._tick)
            except ssl.SSLWantWriteError:
                ready = _wait(self._descriptor, select.POLLOUT, self._tick)
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
                ready = _wait(self._descriptor, select.POLLIN, self._patience)
            except ssl.SSLWantWriteError:
                ready = _wait(self._descriptor, select.POLLOUT, self._patience)
            if not ready:
                raise TimeoutError("the service takes nothing")

    def send_now(self, data: bytes) -> None:
        with self._lock:
            calls.send(self._socket, data)


def _wait(descriptor: int, event: int, seconds: float) -> bool:
    return calls.poll(descriptor, event, max(1, int(seconds * 1000)))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, max(1, int((seconds - whole) * 1e6)))
