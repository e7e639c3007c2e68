"""`ByteStream`: the bytes of one connection of a JVM, received and sent in few system calls.

    received, fill   small messages through a buffer: one call receives what the JVM wrote at once
                     large ones without it, into the caller's memory
    send             several pieces in one call, behind those of send_later

Each system call releases Python's lock and may wait for it afterwards, which takes longer than the call.

Single-threaded. Does not own the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from sortshuffle import calls
from sortshuffle.format.checksum import BytesLike
from sortshuffle.options import KIB

BUFFER_BYTES = 64 * KIB  # a tiny map task's frame and FINISH fit


class StreamEndedError(Exception):
    """The JVM closed the connection. It may at any time."""


class ByteStream:
    """Raises `StreamEndedError` where the connection ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._held = self._buffer[:0]  # bytes that were received and not yet asked for
        self._unsent: list[BytesLike] = []

    def received(self, size: int) -> bytearray:
        """The next bytes."""
        data = bytearray(size)
        self.fill(memoryview(data))
        return data

    def fill(self, view: memoryview) -> None:
        """Receive as many bytes as the view has."""
        while len(view):
            if not self._held:
                if len(view) >= BUFFER_BYTES:
                    view = view[self._receive(view, socket.MSG_WAITALL) :]
                    continue
                self._held = self._buffer[: self._receive(self._buffer)]
            count = min(len(view), len(self._held))
            view[:count] = self._held[:count]
            view, self._held = view[count:], self._held[count:]

    def has_received(self, data: bytes) -> bool:
        """Whether these bytes are known to come next."""
        return self._held[: len(data)] == data

    def send_later(self, piece: BytesLike) -> None:
        """Send it with what is sent next, ahead of that."""
        self._unsent.append(piece)

    def send(self, pieces: Sequence[BytesLike]) -> None:
        """Send pieces, 1024 at most: a system call takes no more."""
        if self._unsent:
            pieces, self._unsent = [*self._unsent, *pieces], []
        try:
            sent = calls.sendmsg(self._socket, pieces)
            if sent == sum(map(len, pieces)):
                return
            for piece in pieces:
                if sent < len(piece):
                    calls.sendall(self._socket, memoryview(piece)[sent:])
                sent = max(0, sent - len(piece))
        except OSError as error:
            raise StreamEndedError from error

    def _receive(self, view: memoryview, flags: int = 0) -> int:
        try:
            count = calls.recv_into(self._socket, view, len(view), flags)
        except OSError as error:
            raise StreamEndedError from error
        if not count:
            raise StreamEndedError
        return count
