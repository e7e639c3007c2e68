"""Services that did not answer, shared by all workers of an executor.

Workers are processes that may end at any time. So they share a file in the executor's home, which is replaced
as a whole. If two workers replace it at once, one entry is lost, and that service is asked once more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from sortshuffle import calls
from sortshuffle.homes.owner import SILENT_FILE
from sortshuffle.homes.small_files import replace_json

SILENT_FOR = 30.0  # seconds before a service that did not answer is asked again


class Silence:
    """The silent services in one home. ``clock``: seconds, the same in all processes of the host."""

    def __init__(self, home: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = os.path.join(home, SILENT_FILE)
        self._clock = clock

    def others(self, addresses: Iterable[str]) -> list[str]:
        """Return those of the services that may be asked now."""
        silent = self._read()
        return [address for address in addresses if address not in silent]

    def note(self, addresses: Iterable[str]) -> None:
        """Note that services did not answer. If the file cannot be written, no worker will know."""
        until = self._clock() + SILENT_FOR
        silent = {**self._read(), **dict.fromkeys(addresses, until)}
        with suppress(OSError):
            replace_json(self._path, silent)

    def _read(self) -> dict[str, float]:
        """Return the silent services, and the clock's time at which each may be asked again."""
        try:
            with calls.open_file(self._path, encoding="utf-8") as opened:
                found = json.load(opened)
            return {address: float(until) for address, until in found.items() if until > self._clock()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
