"""Debug mode of the memory: recycled memory is poisoned, and what is never given back is named with the place
that took it.

Switched on by the environment variable ``SORTSHUFFLE_DEBUG_MEMORY=1`` (read once, when this module is
imported; Python workers inherit it). The test suite runs in it, and fails a test that leaves
anything behind. Off, it costs a call each time a segment is taken or given back: 0.1 us of the 2 us that both
take (on: 8 us, most of it poisoning 32 KiB and finding the place).

What is followed: segments from when a pool hands them out until they come home, and local pools from when
they are created until they are closed. A network or read pool that is destroyed logs a warning for each
segment it misses. A local pool that is closed does not: its segments may come home later, which is no leak.

Any thread may call anything here: the one dictionary changes by single, atomic operations, so that finalizers
can give memory back at any point. What is followed is kept alive until it is given back or forgotten.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

from sortshuffle.memory.segment import MemorySegment

VARIABLE = "SORTSHUFFLE_DEBUG_MEMORY"
POISON = 0xDB
PLACE_FRAMES = 6  # callers named for each leak: enough to get from a pool's user into the test or stage

_log = logging.getLogger(__name__)
_PACKAGE = __name__.rpartition(".")[0]
_enabled = os.environ.get(VARIABLE, "") not in ("", "0")


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that was taken from its owner and not given back. ``place``: ``file:line in function``, of
    the caller and its callers."""

    what: str
    owner: object
    place: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}, taken at " + " < ".join(self.place)


_taken: dict[object, Leak] = {}


def enabled() -> bool:
    """Whether the debug mode is on."""
    return _enabled


def _here() -> tuple[str, ...]:
    """The callers outside this package, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    place: list[str] = []
    while frame is not None and len(place) < PLACE_FRAMES:
        place.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(place)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE + ".")


def took(owner: object, things: Iterable[object], what: object) -> None:
    """Follow these from now on: ``owner`` has just handed them out to the caller."""
    if _enabled:
        place = _here()
        for thing in things:
            _taken[thing] = Leak(str(what), owner, place)


def gave_back(things: Iterable[object]) -> None:
    """Follow these no longer, and poison segments. To be called while nobody else can have them yet."""
    if _enabled:
        for thing in things:
            if isinstance(thing, MemorySegment):
                thing.fill(POISON)
            _taken.pop(thing, None)


def outstanding(owner: object | None = None) -> list[Leak]:
    """What was taken and not given back (from this owner), oldest first."""
    return [leak for leak in _taken.copy().values() if owner is None or leak.owner is owner]


def forget() -> list[Leak]:
    """Follow nothing that was taken so far any more. Returns what that was."""
    leaks = outstanding()
    _taken.clear()
    return leaks


def report(owner: object) -> None:
    """Log what this owner, which ends now, misses."""
    if _enabled:
        for leak in outstanding(owner):
            _log.warning("never recycled: %s", leak)
