"""`ByteStream`: receives and sends the bytes of one connection of a JVM, in few system calls.

    received, fill   small messages go through a buffer: one call receives all that the JVM has written
                     large ones go straight into the caller's memory
    send             sends several pieces in one call, after those that send_later has queued

Each system call releases Python's lock and may then wait to take it again, which lasts longer than the call.

Single-threaded. Does not own the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from sortshuffle import calls
from sortshuffle.format.checksum import BytesLike
from sortshuffle.options import KIB

BUFFER_BYTES = 64 * KIB  # room for the frame and the FINISH of a tiny map task


class StreamEndedError(Exception):
    """The JVM closed the connection. It may at any time."""


class ByteStream:
    """The stream of one connection. Its methods raise `StreamEndedError` when the connection ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._held = self._buffer[:0]  # received, but not yet handed out
        self._unsent: list[BytesLike] = []

    def received(self, size: int) -> bytearray:
        """Return the next ``size`` bytes."""
        data = bytearray(size)
        self.fill(memoryview(data))
        return data

    def fill(self, view: memoryview) -> None:
        """Receive bytes until the view is full."""
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
        """Return whether the next bytes are in the buffer already and equal ``data``."""
        return self._held[: len(data)] == data

    def send_later(self, piece: BytesLike) -> None:
        """Queue a piece. The next `send` sends it in front of its own pieces."""
        self._unsent.append(piece)

    def send(self, pieces: Sequence[BytesLike]) -> None:
        """Send at most 1024 pieces, the limit of the system call. Queued pieces count towards that."""
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
