"""`GatheredSend`: what a connection is sending: pieces from many channels, in one call where the system takes
them.

    empty --add--> filled --send, once or more often--> empty, and everything recycled
                     +------keep_copy: the memory goes back, a copy waits

At most one is under way on a connection, because the bytes of a frame must follow each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from sortshuffle.service.server.server_channel import Portion
from sortshuffle.service.server.transport import IOV_MAX, Transport


class GatheredSend:
    """``size``: bytes that wait."""

    __slots__ = ("_pieces", "_portions", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: deque[memoryview] = deque()
        self._portions: list[Portion] = []

    def add(self, pieces: Iterable[bytes | memoryview], portion: Portion | None = None) -> None:
        """Send these too, and recycle ``portion`` when everything is sent."""
        for piece in pieces:
            self._pieces.append(memoryview(piece))
            self.size += len(piece)
        if portion is not None:
            self._portions.append(portion)

    def send(self, transport: Transport) -> int:
        """Send what can be sent now; returns its bytes. Raises OSError."""
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
        """Give the memory of others back: what was not sent yet is sent from a copy."""
        # cut as before: TLS must be given the piece again that it has not taken
        self._pieces = deque(memoryview(bytes(piece)) for piece in self._pieces)
        self._recycle()

    def abandon(self) -> None:
        """Nothing of it is sent any more."""
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
