"""Where the rows of an exchange go: a `Scheme` on the driver, the `Placement` that it ships to the tasks.

A scheme is what the user asked for; when the exchange is built it may ask the plan something, or run a job. A
placement is a small picklable object from which each task makes its own `ChannelSelector`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa

from sortshuffle.partitioner import (
    BroadcastSelector,
    ChannelSelector,
    GlobalSelector,
    HashSelector,
    IdSelector,
    RangeSelector,
    RoundRobinSelector,
    RowHashSelector,
    SortKey,
)
from sortshuffle.spark.sampling import Sampling

if TYPE_CHECKING:
    from sortshuffle.spark.exchange import Exchange
    from sortshuffle.spark.plan import Chain

GOLDEN_RATIO = 0.6180339887498949  # turns by it spread any number of points evenly around a circle


class Placement(Protocol):
    """What a task is told. Into a single subpartition all placements send rows by a `GlobalSelector`, or
    broadcast them, which is the same."""

    def count(self, asked: int) -> int:
        """How many subpartitions there are where the user asked for so many."""

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector: ...


class Scheme(Protocol):
    """What the user asked for. ``describe`` is its name in `explain()`, given the names of all columns.

    ``samples``: `placement` runs a job on the upstream's rows. ``awaits``: exchanges of other rows that it
    makes sure are placed before.
    """

    @property
    def samples(self) -> bool: ...

    @property
    def awaits(self) -> Sequence[Exchange]: ...

    def placement(self, upstream: Chain) -> Placement: ...

    def describe(self, names: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class HashPlacement:
    """Spark's hash of the columns at these positions. Its own scheme: there is nothing to ask."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[Exchange, ...]] = ()

    keys: tuple[int, ...]

    def placement(self, upstream: Chain) -> Placement:
        return self

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return GlobalSelector() if subpartitions == 1 else HashSelector(self.keys, subpartitions)

    def describe(self, names: Sequence[str]) -> str:
        return f"hash({', '.join(names[key] for key in self.keys)})"


@dataclass(frozen=True, slots=True)
class IdPlacement:
    """The number in the column at this position. Its own scheme."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[Exchange, ...]] = ()

    column: int

    def placement(self, upstream: Chain) -> Placement:
        return self

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return GlobalSelector() if subpartitions == 1 else IdSelector(self.column, subpartitions)

    def describe(self, names: Sequence[str]) -> str:
        return f"id({names[self.column]})"


@dataclass(frozen=True, slots=True)
class RoundRobinPlacement:
    """Even placement. ``reproducible``: a task that runs again sees its rows in the same order, so they
    may be counted out; otherwise each row's own hash decides."""

    reproducible: bool

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        if subpartitions == 1:
            return GlobalSelector()
        if not self.reproducible:
            return RowHashSelector(subpartitions)
        return RoundRobinSelector(subpartitions, turn(map_index, subpartitions))


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The scheme of `RoundRobinPlacement`, which asks the plan whether positions may be counted."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[Exchange, ...]] = ()

    def placement(self, upstream: Chain) -> Placement:
        return RoundRobinPlacement(upstream.is_reproducible())

    def describe(self, names: Sequence[str]) -> str:
        return "round robin"


@dataclass(frozen=True, slots=True)
class RangePlacement:
    """Ranges of keys. ``bounds``: the key columns of the rows that end a range, None for a single range."""

    keys: tuple[SortKey, ...]
    bounds: pa.RecordBatch | None

    def count(self, asked: int) -> int:
        """As in Spark only the ranges that the sample could tell apart."""
        return 1 if self.bounds is None else int(self.bounds.num_rows) + 1

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        if self.bounds is None or subpartitions == 1:
            return GlobalSelector(subpartitions)
        return RangeSelector(self.keys, self.bounds, subpartitions)


@dataclass(frozen=True, slots=True)
class Range:
    """The scheme of `RangePlacement`, which runs a job to find the bounds.

    ``keys``: columns of the upstream, each once. ``stage``: number of the stage that samples them.
    ``key_rows``: the upstream's key columns alone, in the order of ``keys``, to be sampled in its stead.
    """

    awaits: ClassVar[tuple[Exchange, ...]] = ()

    keys: tuple[SortKey, ...]
    subpartitions: int
    stage: int
    key_rows: Chain | None = None

    @property
    def samples(self) -> bool:
        return self.subpartitions > 1

    def placement(self, upstream: Chain) -> Placement:
        if self.subpartitions == 1:
            return RangePlacement(self.keys, None)
        keys = [replace(key, column=position) for position, key in enumerate(self.keys)]
        if self.key_rows is not None:
            sampling = Sampling(self.key_rows, tuple(range(len(keys))), self.stage)
        else:
            sampling = Sampling(upstream, tuple(key.column for key in self.keys), self.stage)
        return RangePlacement(self.keys, sampling.bounds(keys, self.subpartitions))

    def describe(self, names: Sequence[str]) -> str:
        return f"range({', '.join(key.describe(names[key.column]) for key in self.keys)})"


@dataclass(frozen=True, slots=True)
class BroadcastPlacement:
    """Every row to each of ``partitions`` subpartitions."""

    partitions: int

    def count(self, asked: int) -> int:
        return self.partitions

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return BroadcastSelector(subpartitions)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The scheme of `BroadcastPlacement`. ``partitions``: says how many the frame has that the rows are for,
    when its plan is made. ``awaits``: the exchanges that this frame reads."""

    samples: ClassVar[bool] = False

    partitions: Callable[[], int]
    awaits: tuple[Exchange, ...] = ()

    def placement(self, upstream: Chain) -> Placement:
        return BroadcastPlacement(max(1, self.partitions()))  # a frame without partitions reads none of it

    def describe(self, names: Sequence[str]) -> str:
        return "broadcast"


def turn(map_index: int, subpartitions: int) -> int:
    """Where a map task begins, so that neighbours begin far apart."""
    return int(map_index * GOLDEN_RATIO % 1.0 * subpartitions)
