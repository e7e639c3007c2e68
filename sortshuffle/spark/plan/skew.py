"""Skew: a subpartition that is much larger than the rest is read by several tasks.

Asked for by ``spark.sortshuffle.skew.factor``. When a stage that reads exchanges is put into a plan, their
map stages are run first, by a small job that measures their subpartitions (`spark.plan.measured_sizes`). A
subpartition larger than so many times the median, and than ``spark.sortshuffle.skew.threshold``, is then read
in slices of about the threshold or the median, whichever is larger: each by a task of its own, which is given
the control rows of the whole subpartition and reads the map outputs of its slice.

    subpartition   0      1 (large)                      2
    task           0      1         2         3          4
    map outputs    all    0..7      8..11     12..15     all

A slice is a range of map outputs. So its rows do not depend on where in its files a map task put them, which
may be elsewhere when it runs again; slices one after the other give the rows in the order in which one task
would have; and what one map task wrote cannot be divided.

Where it is allowed: where a partition is only a share of the rows. Between the exchange and the end of the
stage there may be selections, filters and the user's functions on batches (mapInArrow, mapInPandas), but
nothing that needs all rows of a key or of a partition together: groups, aggregates, orders, limits, samples.
Of the inputs of a `CombineLegs` one may be sliced where it says so (`sliceable`, a bool for each input): each
slice meets the whole subpartition of the others. What is split that way has more partitions than was asked
for, and rows of one key in several of them: so nothing is claimed of its layout (`spark.plan.hints` compares
their number).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sortshuffle.options import Options, format_size
from sortshuffle.spark.functions.maps import MapFunction
from sortshuffle.spark.plan.chain import Chain, Origin, ShuffleDependency, WrappedOrigin
from sortshuffle.spark.session import classic_planner as planner
from sortshuffle.spark.worker.slices import ALL_MAPS, TASK, ReadSlices, Slice
from sortshuffle.spark.worker.stages import Opening, PerBatchStep, Step

SHOWN = 10  # lines of `explain()`: who has more large subpartitions than that has too few of them


# ---- which slices there are -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Large:
    """A large subpartition of one of the exchanges, and its slices."""

    exchange: int
    subpartition: int
    size: int
    median: int
    slices: tuple[Slice, ...]

    def describe(self) -> str:
        size = f"{format_size(self.size)}, {self.size / self.median:.0f}x the median"
        tasks = (
            f"{len(self.slices)} tasks" if len(self.slices) > 1 else "1 task: one map task wrote most of it"
        )
        return f"exchange {self.exchange}: subpartition {self.subpartition} ({size}) in {tasks}"


def cut(by_map: Mapping[int, int], count: int) -> list[tuple[int, int]]:
    """Ranges of map indexes of about equal bytes, at most ``count``; a map output is in the range that the
    middle of its bytes falls into."""
    maps = sorted(by_map)
    sizes = np.array([by_map[each] for each in maps], np.float64)
    middles = np.cumsum(sizes) - sizes / 2
    numbers = (middles * count / sizes.sum()).astype(np.int64)
    firsts = [maps[at] for at in np.flatnonzero(np.diff(numbers)) + 1]
    return list(itertools.pairwise([0, *firsts, ALL_MAPS]))


def _large(exchange: ShuffleDependency, options: Options) -> dict[int, Large]:
    sizes = exchange.sizes()
    target = max(sizes.median, options.skew_threshold)
    found = {}
    for number in sizes.large(options):
        size = sizes.totals[number]
        ranges = cut(sizes.by_map[number], math.ceil(size / target))
        slices = tuple(Slice(number, exchange.number, first, end) for first, end in ranges)
        found[number] = Large(exchange.number, number, size, sizes.median, slices)
    return found


def _larges(exchanges: Sequence[ShuffleDependency], options: Options) -> list[Large]:
    """The large subpartitions, in order. Where several exchanges are read together, of each subpartition the
    part that is sliced: the largest that can be, because the others are then read by every slice."""
    chosen: dict[int, Large] = {}
    for exchange in exchanges:
        for number, large in _large(exchange, options).items():
            other = chosen.get(number)
            if other is None or (len(large.slices) > 1, large.size) > (len(other.slices) > 1, other.size):
                chosen[number] = large
    return [chosen[number] for number in sorted(chosen)]


# ---- where it is allowed --------------------------------------------------------------------------------


def sliceable(chain: Chain) -> list[ShuffleDependency]:
    """The exchanges whose subpartitions may be sliced for this chain; none, unless that is asked for."""
    if not chain.context.options.skew_factor or not takes_rows_as_they_come(chain.steps):
        return []
    if not chain.context.planner.keeps:
        return []  # what was measured would be written anew for whoever reads it
    return chain.origin.sliceable()


def takes_rows_as_they_come(steps: Sequence[Step]) -> bool:
    """Whether these steps need no rows but those that they are given, whichever these are."""
    return all(isinstance(step, MapFunction | PerBatchStep) for step in steps)


# ---- how it is put into the plan ------------------------------------------------------------------------


def laid_out(chain: Chain) -> Origin:
    """The origin of a chain as it is to be read. May run the map stages of its exchanges."""
    exchanges = sliceable(chain)
    if not exchanges:
        return chain.origin
    larges = {large.subpartition: large for large in _larges(exchanges, chain.context.options)}
    if all(len(large.slices) == 1 for large in larges.values()):
        return chain.origin
    tasks: list[Slice] = []
    for number in range(exchanges[0].placed_partitions()):
        tasks += larges[number].slices if number in larges else (Slice(number),)
    return SlicedOrigin(chain.origin, tuple(tasks))


def lines(chain: Chain) -> list[str]:
    """What `explain()` says of the slices of a chain: which there are or, before that is known, when."""
    exchanges, options = sliceable(chain), chain.context.options
    if not exchanges:
        return []
    above = f"{options.skew_factor:g} times the median and {format_size(options.skew_threshold)}"
    if not all(exchange.is_measured for exchange in exchanges):
        return [f"subpartitions above {above} in several tasks each"]
    larges = [large.describe() for large in _larges(exchanges, options)]
    if len(larges) > SHOWN:
        larges[SHOWN:] = [f"and {len(larges) - SHOWN} more subpartitions in several tasks each"]
    return larges or [f"no subpartition is above {above}"]


@dataclass(frozen=True, eq=False)
class SlicedOrigin(WrappedOrigin):
    """An origin of exchanges of which some subpartitions are read by several tasks. ``tasks``: what each
    reads."""

    tasks: tuple[Slice, ...]

    def rows(self) -> DataFrame:
        rows = planner.pick_partitions(self.origin.rows(), [task.subpartition for task in self.tasks])
        # in the rows themselves: where Spark joins or unites what is built on these partitions, one of its
        # tasks reads several of them, or under another number
        return rows.withColumn(TASK, sf.spark_partition_id())

    def opening(self) -> Opening:
        return ReadSlices(self.origin.opening(), self.tasks)

    def partitions(self) -> int:
        return len(self.tasks)
