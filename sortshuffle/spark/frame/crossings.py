"""`Crossing`: rows that go from Spark to Python or back, as `explain()` and the log tell it.

A crossing belongs to the frame that needed it, and to all frames derived from that. It is logged once, when
it first occurs. A crossing that an action causes belongs to no frame: `explain()` does not show it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

LOGGER = "sortshuffle.frame"

_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Rows that go from one side to the other. ``operator``: the call that needs them there. ``to``: "Python"
    or "Spark". ``reason``: why they cross."""

    operator: str
    to: str
    reason: str

    def describe(self) -> str:
        return f"{self.operator}(): rows go to {self.to}: {self.reason}"

    def log(self) -> None:
        _log.info("%s", self.describe())


def united(crossings: Iterable[tuple[Crossing, ...]]) -> tuple[Crossing, ...]:
    """Return the crossings of several frames, each once, in their order."""
    return tuple(dict.fromkeys(each for part in crossings for each in part))
