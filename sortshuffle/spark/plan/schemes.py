"""`Scheme`s: what the user asked for, where the rows of an exchange are to go. Only the driver has them.

When its exchange is built a scheme makes the `Placement` that is shipped to the tasks
(`spark.worker.placements`). For that it may ask the plan something, or run a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from sortshuffle.partitioner import SortKey
from sortshuffle.spark.plan.chain import Chain, ShuffleDependency
from sortshuffle.spark.plan.sampling import Sampling
from sortshuffle.spark.worker.placements import (
    BroadcastPlacement,
    HashPlacement,
    IdPlacement,
    Placement,
    RangePlacement,
    RoundRobinPlacement,
)


class Scheme(Protocol):
    """What the user asked for. ``describe`` is its name in `explain()`, given the names of all columns.

    ``samples``: `placement` runs a job on the upstream's rows. ``awaits``: exchanges of other rows that it
    makes sure are placed before.
    """

    @property
    def samples(self) -> bool: ...

    @property
    def awaits(self) -> Sequence[ShuffleDependency]: ...

    def placement(self, upstream: Chain) -> Placement: ...

    def describe(self, names: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class Hash:
    """The scheme of `HashPlacement`. There is nothing to ask."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

    keys: tuple[int, ...]

    def placement(self, upstream: Chain) -> Placement:
        return HashPlacement(self.keys)

    def describe(self, names: Sequence[str]) -> str:
        return f"hash({', '.join(names[key] for key in self.keys)})"


@dataclass(frozen=True, slots=True)
class Id:
    """The scheme of `IdPlacement`. There is nothing to ask."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

    column: int

    def placement(self, upstream: Chain) -> Placement:
        return IdPlacement(self.column)

    def describe(self, names: Sequence[str]) -> str:
        return f"id({names[self.column]})"


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The scheme of `RoundRobinPlacement`, which asks the plan whether positions may be counted."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

    def placement(self, upstream: Chain) -> Placement:
        return RoundRobinPlacement(upstream.is_reproducible())

    def describe(self, names: Sequence[str]) -> str:
        return "round robin"


@dataclass(frozen=True, slots=True)
class Range:
    """The scheme of `RangePlacement`, which runs a job to find the bounds.

    ``keys``: columns of the upstream, each once. ``stage``: number of the stage that samples them.
    ``key_rows``: the upstream's key columns alone, in the order of ``keys``, to be sampled in its stead.
    """

    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

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
class Broadcast:
    """The scheme of `BroadcastPlacement`. ``partitions``: says how many the frame has that the rows are for,
    when its plan is made. ``awaits``: the exchanges that this frame reads."""

    samples: ClassVar[bool] = False

    partitions: Callable[[], int]
    awaits: tuple[ShuffleDependency, ...] = ()

    def placement(self, upstream: Chain) -> Placement:
        return BroadcastPlacement(max(1, self.partitions()))  # a frame without partitions reads none of it

    def describe(self, names: Sequence[str]) -> str:
        return "broadcast"
