"""`Trouble`: what the failures of a client's connections mean: try again, and when, or give up.

    calm --failed--> in trouble --failed, too long--> given up, and calm again
      ^                  |
      +-----progress-----+

Rules
* A connection that breaks is made again after a delay that grows (`Backoff`), until the time-out has passed
  without progress.
* A secret or certificate that is not accepted is final at once, and so is a service that breaks the protocol
  `MOST_PROTOCOL_ERRORS` times in a row, where no channel was blamed.

Arithmetic only: the caller waits. Used under the link's lock.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.request_table import MOST_PROTOCOL_ERRORS, BreachError


class Trouble:
    """``timeout``: seconds without progress after which it is given up."""

    def __init__(self, timeout: float, clock: Callable[[], float]) -> None:
        self._backoff = Backoff(timeout, clock)
        self._protocol_errors = 0
        self._rejections = 0

    @property
    def lasted(self) -> float:
        """Seconds since it began, 0 if there is none."""
        return self._backoff.lasted

    def is_final(self, error: OSError) -> bool:
        """Whether trying again will not help after this."""
        if isinstance(error, ProtocolError) and not isinstance(error, BreachError):
            self._protocol_errors += 1
            return self._protocol_errors >= MOST_PROTOCOL_ERRORS
        if isinstance(error, AuthenticationError):
            # a service that ends at this very moment looks like one that does not believe the proof: once
            self._rejections += 1
            return self._rejections > 1 or not isinstance(error.__cause__, ServiceUnavailableError)
        return False

    def failed(self, since: float) -> float | None:
        """Seconds to wait before the next connection, None when it is to be given up. ``since``: when the
        last one that failed last got on."""
        return self._backoff.failed(since)

    def greeted(self) -> None:
        """The service believes the secret."""
        self._rejections = 0

    def progress(self) -> None:
        """Something that was asked for came."""
        self._backoff.progress()
        self._protocol_errors = 0

    def end(self) -> None:
        """It is given up, or nobody waits for its end: the next one is new."""
        self._backoff.progress()
