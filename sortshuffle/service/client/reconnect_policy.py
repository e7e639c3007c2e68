"""`ReconnectPolicy`: decides after a failure of a client's connection when to reconnect, or to give up.

    calm --failed--> in trouble --failed, too long--> given up, and calm again
      ^                  |
      +-----progress-----+

Rules
* A broken connection is replaced after a growing delay (`Backoff`), until a time-out without progress.
* A secret or certificate that is not accepted is final at once, except where the service may only have ended.
  So are `MOST_PROTOCOL_ERRORS` breaches of the protocol in a row that are blamed on no channel.

Arithmetic only: the caller waits. Used under the link's lock.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.request_table import MOST_PROTOCOL_ERRORS, BreachError


class ReconnectPolicy:
    """Decides for one link. ``timeout``: seconds without progress before giving up."""

    def __init__(self, timeout: float, clock: Callable[[], float]) -> None:
        self._backoff = Backoff(timeout, clock)
        self._protocol_errors = 0
        self._rejections = 0

    @property
    def lasted(self) -> float:
        """Seconds since the trouble began, 0 if there is none."""
        return self._backoff.lasted

    def is_final(self, error: OSError) -> bool:
        """Count this failure, and return whether trying again will not help."""
        if isinstance(error, ProtocolError) and not isinstance(error, BreachError):
            self._protocol_errors += 1
            return self._protocol_errors >= MOST_PROTOCOL_ERRORS
        if isinstance(error, AuthenticationError):
            # a service that ends at this very moment looks like one that rejects the proof: retry once
            self._rejections += 1
            return self._rejections > 1 or not isinstance(error.__cause__, ServiceUnavailableError)
        return False

    def failed(self, since: float) -> float | None:
        """Return the seconds to wait before reconnecting, or None to give up. ``since``: when the failed
        connection last made progress."""
        return self._backoff.failed(since)

    def greeted(self) -> None:
        """Record that the service accepted the secret."""
        self._rejections = 0

    def progress(self) -> None:
        """Record that something requested has arrived."""
        self._backoff.progress()
        self._protocol_errors = 0

    def end(self) -> None:
        """End the trouble, because it is given up or no consumer waits: the next failure is new trouble."""
        self._backoff.progress()
