"""`Stall`: whether a client takes what it is sent, since when it does not, and what that costs.

    taking --(the system takes nothing more)--> blocked --(`Limits.stall`)--> copied --(`Limits.gone`)--> gone
      ^                                           |                             |
      +----------(everything was taken)-----------+-----------------------------+

A silent client delays nobody: when it takes no bytes for `Limits.stall` seconds, what the system did not take
of the last turn is copied, so that the memory that it was read into goes back to the pool. Where too much is
kept like that, of all clients together, the connection ends, and the client asks again for what it has not
got. No input or output here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortshuffle.errors import ProtocolError
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits


@dataclass(slots=True)
class Copies:
    """``size``: bytes that are kept for silent clients of a server, of all together."""

    size: int = 0


class Stall:
    """Of one client. ``since``: when it last took anything while some waited, None if none do: the
    selector says when it takes something again."""

    __slots__ = ("_copies", "_limits", "_size", "since")

    def __init__(self, limits: Limits, copies: Copies) -> None:
        self.since: float | None = None
        self._limits = limits
        self._copies = copies
        self._size = 0  # bytes copied of a turn that is not taken

    def took_all(self) -> None:
        """Nothing waits for the client."""
        self.since = None
        if self._size:
            self._count(0)

    def took_some(self, size: int, now: float) -> None:
        """The client took so many bytes, and not all."""
        if size or self.since is None:
            self.since = now

    def is_long(self, now: float) -> bool:
        """Whether it has taken nothing for too long. Raises `ProtocolError` if it counts as gone."""
        if self.since is None:
            return False
        if now - self.since > self._limits.gone:
            raise ProtocolError(f"it took nothing for {now - self.since:.0f} s")
        return now - self.since > self._limits.stall

    def copy(self, sending: GatheredSend) -> None:
        """Keep what waits as a copy, once. Raises `ProtocolError` where too much is kept."""
        if not self._size:
            self._count(sending.size)
            sending.keep_copy()

    def end(self) -> None:
        """Nothing is kept any more."""
        self._count(0)

    def _count(self, size: int) -> None:
        kept = self._copies.size - self._size + size
        if kept > self._limits.kept:
            raise ProtocolError(f"it takes nothing, and {self._copies.size} bytes are kept for such clients")
        self._size, self._copies.size = size, kept
