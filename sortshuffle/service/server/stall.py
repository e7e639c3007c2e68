"""`Stall`: tracks whether a client takes the bytes sent to it, and bounds the memory it holds if not.

    taking --(the socket's buffer is full)--> blocked --(`Limits.stall`)--> copied --(`Limits.gone`)--> gone
      ^                                         |                             |
      +---------(everything was taken)----------+-----------------------------+

A stalled client delays no other: if it takes no bytes for `Limits.stall` seconds, the unsent rest of the last
turn is copied, and the read memory goes back to the pool. If the copies of all clients together exceed
`Limits.kept`, the connection ends, and the client requests the missing bytes again. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortshuffle.errors import ProtocolError
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits


@dataclass(slots=True)
class Copies:
    """``size``: bytes copied for the stalled clients of a server, in total."""

    size: int = 0


class Stall:
    """The stall of one client. ``since``: when the client last took bytes while more waited; None if no bytes
    wait for it. While it is set, the connection watches for the socket to be writable."""

    __slots__ = ("_copies", "_limits", "_size", "since")

    def __init__(self, limits: Limits, copies: Copies) -> None:
        self.since: float | None = None
        self._limits = limits
        self._copies = copies
        self._size = 0  # bytes copied of the current turn

    def all_sent(self) -> None:
        """Note that the client took everything."""
        self.since = None
        if self._size:
            self._count(0)

    def some_sent(self, size: int, now: float) -> None:
        """Note that the client took ``size`` bytes, and not all."""
        if size or self.since is None:
            self.since = now

    def is_long(self, now: float) -> bool:
        """Return whether the client is stalled. Raises `ProtocolError` if it counts as gone."""
        if self.since is None:
            return False
        if now - self.since > self._limits.gone:
            raise ProtocolError(f"it took nothing for {now - self.since:.0f} s")
        return now - self.since > self._limits.stall

    def copy(self, sending: GatheredSend) -> None:
        """Copy the unsent bytes, once. Raises `ProtocolError` if the copies of all clients are too large."""
        if not self._size:
            self._count(sending.size)
            sending.keep_copy()

    def end(self) -> None:
        """Count no copy for this client."""
        self._count(0)

    def _count(self, size: int) -> None:
        kept = self._copies.size - self._size + size
        if kept > self._limits.kept:
            raise ProtocolError(f"it takes nothing, and {self._copies.size} bytes are kept for such clients")
        self._size, self._copies.size = size, kept
