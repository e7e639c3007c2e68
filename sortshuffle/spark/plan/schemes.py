"""`Scheme`s: the ways in which a user can ask to place the rows of an exchange. Only the driver has them.

When its exchange is built, a scheme makes the `Placement` that is shipped to the tasks
(`spark.worker.placements`). To do so it may examine the plan or run a job.
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
    """Makes a placement. ``describe`` returns its text in `explain()`, given the names of all columns.

    ``samples``: whether `placement` runs a job on the upstream. ``awaits``: exchanges that it places first.
    """

    @property
    def samples(self) -> bool: ...

    @property
    def awaits(self) -> Sequence[ShuffleDependency]: ...

    def placement(self, upstream: Chain) -> Placement: ...

    def describe(self, names: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class Hash:
    """The scheme of `HashPlacement`, which needs nothing but its keys."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

    keys: tuple[int, ...]

    def placement(self, upstream: Chain) -> Placement:
        return HashPlacement(self.keys)

    def describe(self, names: Sequence[str]) -> str:
        return f"hash({', '.join(names[key] for key in self.keys)})"


@dataclass(frozen=True, slots=True)
class Id:
    """The scheme of `IdPlacement`, which needs nothing but its column."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

    column: int

    def placement(self, upstream: Chain) -> Placement:
        return IdPlacement(self.column)

    def describe(self, names: Sequence[str]) -> str:
        return f"id({names[self.column]})"


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The scheme of `RoundRobinPlacement`. It asks the plan whether rows come in a reproducible order."""

    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[ShuffleDependency, ...]] = ()

    def placement(self, upstream: Chain) -> Placement:
        return RoundRobinPlacement(upstream.is_reproducible())

    def describe(self, names: Sequence[str]) -> str:
        return "round robin"


@dataclass(frozen=True, slots=True)
class Range:
    """The scheme of `RangePlacement`. It runs a job to find the bounds.

    ``keys``: columns of the upstream, each once. ``stage``: the number of the stage that samples them.
    ``key_rows``: the upstream's key columns alone, in the order of ``keys``, to sample in its place.
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
    """The scheme of `BroadcastPlacement`. ``partitions``: returns the number of partitions of the frame that
    receives the rows. ``awaits``: the exchanges that this frame reads."""

    samples: ClassVar[bool] = False

    partitions: Callable[[], int]
    awaits: tuple[ShuffleDependency, ...] = ()

    def placement(self, upstream: Chain) -> Placement:
        return BroadcastPlacement(max(1, self.partitions()))  # a frame without partitions reads none of it

    def describe(self, names: Sequence[str]) -> str:
        return "broadcast"
