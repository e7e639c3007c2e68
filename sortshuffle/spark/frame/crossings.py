"""What `explain()` and the log tell of the two sides: `Crossing`, rows that go from Spark to Python or back,
and `SparkFunction`, a Python function that Spark runs on its own rows because Python's side refuses it.

Both belong to the frame of the call, and to all frames derived from that. They are logged once, when they
first occur. Of one frame, two that read the same are one. A crossing that an action causes belongs to no
frame: `explain()` does not show it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sortshuffle.spark.session.application_report import note_crossing

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


@dataclass(frozen=True, slots=True)
class SparkFunction:
    """A Python function that Spark runs on rows of its own. ``operator``: the call, such as "mapInArrow".
    ``reason``: why it does not run on Python's side."""

    operator: str
    reason: str

    def describe(self) -> str:
        return f"{self.operator}(): Spark runs the function: {self.reason}"


Note: TypeAlias = Crossing | SparkFunction


def log(note: Note) -> None:
    """Log a crossing or a function, at INFO, and note it for the report on the application."""
    _log.info("%s", note.describe())
    note_crossing(note.describe())


def united(notes: Iterable[tuple[Note, ...]]) -> tuple[Note, ...]:
    """Return the notes of several frames, each once, in their order."""
    return tuple(dict.fromkeys(each for part in notes for each in part))
