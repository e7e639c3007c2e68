"""`GatheredSend`: pieces of many channels that a connection sends together, if possible in one call.

    empty --add--> filled --send, once or more--> empty, all portions recycled
                    |  ^
                    +--+ keep_copy: recycles the portions, keeps a copy of the pieces

Each connection has one, and empties it before it adds the next turn: the bytes of a frame must be contiguous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from sortshuffle.service.server.server_channel import Portion
from sortshuffle.service.server.transport import IOV_MAX, Transport


class GatheredSend:
    """One turn of a connection. ``size``: bytes that are not sent yet."""

    __slots__ = ("_pieces", "_portions", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: deque[memoryview] = deque()
        self._portions: list[Portion] = []

    def add(self, pieces: Iterable[bytes | memoryview], portion: Portion | None = None) -> None:
        """Add pieces to send, and recycle ``portion`` when everything is sent."""
        for piece in pieces:
            self._pieces.append(memoryview(piece))
            self.size += len(piece)
        if portion is not None:
            self._portions.append(portion)

    def send(self, transport: Transport) -> int:
        """Send as much as possible now, and return the number of bytes sent. Raises OSError."""
        done = 0
        while self._pieces:
            views = list(islice(self._pieces, IOV_MAX))
            offered = sum(map(len, views))
            sent = transport.send(views)
            self._drop(sent)
            done += sent
            if sent < offered:
                return done
        self._recycle()
        return done

    def keep_copy(self) -> None:
        """Copy the unsent bytes, and recycle the portions that they came from."""
        # piece by piece: TLS must get the same piece again
        self._pieces = deque(memoryview(bytes(piece)) for piece in self._pieces)
        self._recycle()

    def abandon(self) -> None:
        """Drop the unsent bytes and recycle everything."""
        self._pieces.clear()
        self.size = 0
        self._recycle()

    def _drop(self, size: int) -> None:
        self.size -= size
        while self._pieces and size >= len(self._pieces[0]):
            size -= len(self._pieces.popleft())
        if size:
            self._pieces[0] = self._pieces[0][size:]

    def _recycle(self) -> None:
        portions, self._portions = self._portions, []
        for portion in portions:
            portion.recycle()
