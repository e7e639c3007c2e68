"""Where the rows of an exchange go: a `Scheme` on the driver, the `Placement` that it ships to the tasks.

A scheme is what the user asked for; it may ask the plan something when the exchange is built. A placement is
a small picklable object from which each task makes its own `ChannelSelector`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sortshuffle.partitioner import ChannelSelector, HashSelector, RoundRobinSelector, RowHashSelector

if TYPE_CHECKING:
    from sortshuffle.spark.plan import Chain

GOLDEN_RATIO = 0.6180339887498949  # turns by it spread any number of points evenly around a circle


class Placement(Protocol):
    """What a task is told."""

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector: ...


class Scheme(Protocol):
    """What the user asked for. ``describe`` is its name in `explain()`, given the names of all columns."""

    def placement(self, upstream: Chain) -> Placement: ...

    def describe(self, names: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class HashPlacement:
    """Spark's hash of the columns at these positions. Its own scheme: there is nothing to ask."""

    keys: tuple[int, ...]

    def placement(self, upstream: Chain) -> Placement:
        return self

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return HashSelector(self.keys, subpartitions)

    def describe(self, names: Sequence[str]) -> str:
        return f"hash({', '.join(names[key] for key in self.keys)})"


@dataclass(frozen=True, slots=True)
class RoundRobinPlacement:
    """Even placement. ``reproducible``: a task that runs again sees its rows in the same order, so they
    may be counted out; otherwise each row's own hash decides."""

    reproducible: bool

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        if not self.reproducible:
            return RowHashSelector(subpartitions)
        return RoundRobinSelector(subpartitions, turn(map_index, subpartitions))


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The scheme of `RoundRobinPlacement`, which asks the plan whether positions may be counted."""

    def placement(self, upstream: Chain) -> Placement:
        return RoundRobinPlacement(upstream.is_reproducible())

    def describe(self, names: Sequence[str]) -> str:
        return "round robin"


def turn(map_index: int, subpartitions: int) -> int:
    """Where a map task begins, so that neighbours begin far apart."""
    return int(map_index * GOLDEN_RATIO % 1.0 * subpartitions)
