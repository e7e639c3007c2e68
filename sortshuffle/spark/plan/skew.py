"""Skew: divides subpartitions that are much larger than the rest among several tasks.

The option ``spark.sortshuffle.skew.factor`` turns this on. When a stage that reads exchanges is put into a
plan, a small job first runs their map stages and measures their subpartitions (`spark.plan.measured_sizes`).
A subpartition that is larger than factor times the median, and larger than
``spark.sortshuffle.skew.threshold``, is then read in slices of about the threshold or the median, whichever
is larger. Each slice has a separate task, which receives the control rows of the whole subpartition and reads
the map outputs of its slice.

    subpartition   0      1 (large)                      2
    task           0      1         2         3          4
    map outputs    all    0..7      8..11     12..15     all

A slice is a range of map outputs. So its rows do not depend on their places in a map task's files, which may
change when the task runs again; the slices in sequence give the rows in the order of a single task; and the
output of one map task cannot be divided.

Slicing is allowed where a partition is just a share of the rows. Between the exchange and the end of the
stage there may be selections, filters and the user's functions on batches (mapInArrow, mapInPandas), but
nothing that needs all rows of a key or of a partition together: groups, aggregates, orders, limits, samples.
One input of a `CombineLegs` may be sliced if its `sliceable`, a bool for each input, says so: each slice
meets the whole subpartitions of the other inputs. A sliced frame has more partitions than requested, and rows
of one key in several of them. So its placement is not claimed (`spark.plan.hints` compares the numbers).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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

SHOWN = 10  # large subpartitions that `explain()` lists: a frame with more has too few subpartitions


# ---- which slices there are -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SkewedSubpartition:
    """A large subpartition of an exchange, and its slices. ``size``, ``median``: bytes."""

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
    """Divide map indexes into at most ``count`` ranges of about equal bytes. A map output belongs to the
    range that contains the middle of its bytes."""
    maps = sorted(by_map)
    sizes = np.array([by_map[each] for each in maps], np.float64)
    middles = np.cumsum(sizes) - sizes / 2
    numbers = (middles * count / sizes.sum()).astype(np.int64)
    firsts = [maps[at] for at in np.flatnonzero(np.diff(numbers)) + 1]
    return list(itertools.pairwise([0, *firsts, ALL_MAPS]))


def _large(exchange: ShuffleDependency, options: Options) -> dict[int, SkewedSubpartition]:
    sizes = exchange.sizes()
    target = max(sizes.median, options.skew_threshold)
    larges = {}
    for number in sizes.large(options):
        size = sizes.totals[number]
        ranges = cut(sizes.by_map[number], math.ceil(size / target))
        slices = tuple(Slice(number, exchange.number, first, end) for first, end in ranges)
        larges[number] = SkewedSubpartition(exchange.number, number, size, sizes.median, slices)
    return larges


def _larges(exchanges: Sequence[ShuffleDependency], options: Options) -> list[SkewedSubpartition]:
    """Return the large subpartitions, in order. If several exchanges are read together, only one is sliced
    per subpartition: the largest that can be divided, because every slice reads the others whole."""
    chosen: dict[int, SkewedSubpartition] = {}
    for exchange in exchanges:
        for number, large in _large(exchange, options).items():
            other = chosen.get(number)
            if other is None or (len(large.slices) > 1, large.size) > (len(other.slices) > 1, other.size):
                chosen[number] = large
    return [chosen[number] for number in sorted(chosen)]


# ---- where it is allowed --------------------------------------------------------------------------------


def sliceable(chain: Chain) -> list[ShuffleDependency]:
    """Return the exchanges whose subpartitions may be sliced for this chain; none if slicing is off."""
    if not chain.context.options.skew_factor or not runs_on_any_part(chain.steps):
        return []
    if not chain.context.planner.keeps:
        return []  # each reader writes the map outputs anew, so measuring would waste a run
    return chain.origin.sliceable()


def runs_on_any_part(steps: Sequence[Step]) -> bool:
    """Return whether these steps may run on any part of the rows, without seeing the rest."""
    return all(isinstance(step, MapFunction | PerBatchStep) for step in steps)


# ---- how it is put into the plan ------------------------------------------------------------------------


def sliced_origin(chain: Chain) -> Origin:
    """Return a chain's origin with large subpartitions in slices. May run the map stages of its exchanges."""
    exchanges = sliceable(chain)
    if not exchanges:
        return chain.origin
    larges = {large.subpartition: large for large in _larges(exchanges, chain.context.options)}
    if not _are_sliced(larges.values()):
        return chain.origin
    tasks: list[Slice] = []
    for number in range(exchanges[0].placed_partitions()):
        tasks += larges[number].slices if number in larges else (Slice(number),)
    return SlicedOrigin(chain.origin, tuple(tasks))


def is_sliced(chain: Chain) -> bool:
    """Return whether it is known that large subpartitions are sliced for this chain. Runs nothing."""
    exchanges = sliceable(chain)
    measured = bool(exchanges) and all(exchange.is_measured for exchange in exchanges)
    return measured and _are_sliced(_larges(exchanges, chain.context.options))


def _are_sliced(larges: Iterable[SkewedSubpartition]) -> bool:
    return any(len(large.slices) > 1 for large in larges)


def lines(chain: Chain) -> list[str]:
    """Return the lines of `explain()` on a chain's slices or, if not measured yet, on the limits for them."""
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
    """An origin of exchanges some of whose subpartitions several tasks read. ``tasks``: the slice of each."""

    tasks: tuple[Slice, ...]

    def rows(self) -> DataFrame:
        rows = planner.pick_partitions(self.origin.rows(), [task.subpartition for task in self.tasks])
        # the rows carry the task's number: in a plan that coalesces or unites these partitions, a Spark task
        # may read several of them, or have another partition number
        return rows.withColumn(TASK, sf.spark_partition_id())

    def opening(self) -> Opening:
        return ReadSlices(self.origin.opening(), self.tasks)

    def partitions(self) -> int:
        return len(self.tasks)
