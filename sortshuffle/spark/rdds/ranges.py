"""Ranges of keys for `sortByKey`: bounds from a sample, and the selector that looks keys up among the bounds.

The sample is PySpark's, record for record: the same records in the same partitions give the same bounds.
PySpark counts all records in one job and samples in another, because the fraction to sample depends on the
count. Here one job does both, because the random number of a record does not depend on the count: each task
sends about as many keys as the sample has, those with the smallest numbers, and the driver takes those below
the fraction. That is about as many samples as there are partitions: if these would be more than `MOST_DRAWN`
keys, there are two jobs, as in PySpark.

With a ``keyfunc``, PySpark compares results of ``keyfunc`` with bounds that are keys, so its RDD is not
always sorted. Here the bounds are results of ``keyfunc``, too.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
from pyspark.rddsampler import RDDSamplerBase

from sortshuffle.partitioner.selector import Ids, id_dtype
from sortshuffle.spark.rdds.aggregations import converting_stop_iteration

KeyFunction: TypeAlias = "Callable[[Any], Any] | None"
"""Keys are compared by the function's results, or directly if it is None."""

KEYS_PER_PARTITION = 20.0  # keys to sample; this and the seed are PySpark's
SEED = 1
# Keys that tasks send to the driver so that one job is enough. 800,000 keys of 1.35 KB are more than Spark's
# default for `spark.driver.maxResultSize`, 1 GiB. This many keep below it with keys of up to 10 KB
MOST_DRAWN = 100_000

Draws: TypeAlias = "tuple[int, list[tuple[float, Any]]]"
"""The number of records in a partition, and some of their keys with random numbers."""

Draw: TypeAlias = "Callable[[Callable[[int, Iterable[Any]], Iterator[Draws]]], list[Draws]]"
"""Runs a job that calls a function for each partition, and collects its results."""


@dataclass(frozen=True, slots=True)
class RangeKeySelector:
    """Places keys by ranges. ``bounds``: results of ``keyfunc``, ascending."""

    is_broadcast: ClassVar[bool] = False

    bounds: Sequence[Any]
    keyfunc: KeyFunction
    ascending: bool
    subpartitions: int

    def assign(self, keys: Sequence[Any]) -> Ids:
        """Return one id per key. Raises TypeError for keys that cannot be compared."""
        with converting_stop_iteration():
            compared = keys if self.keyfunc is None else [self.keyfunc(key) for key in keys]
        ids = np.fromiter(map(partial(bisect_left, self.bounds), compared), np.int64, len(keys))
        return (ids if self.ascending else self.subpartitions - 1 - ids).astype(id_dtype(self.subpartitions))


class Ranges:
    """A partition function whose bounds are sampled when they are first needed, and pickled with it.

    ``partitions``: the number of partitions in which ``draw`` runs.
    """

    def __init__(
        self, draw: Draw, partitions: int, subpartitions: int, keyfunc: KeyFunction, ascending: bool
    ) -> None:
        self._draw = draw
        self._partitions = partitions
        self._subpartitions = subpartitions
        self._keyfunc = keyfunc
        self._ascending = ascending
        self._selector: RangeKeySelector | None = None
        self._lock = threading.Lock()

    @property
    def direction(self) -> str:
        return "ascending" if self._ascending else "descending"

    def selector(self) -> RangeKeySelector:
        """Sample the bounds on the first call. Raises TypeError for keys that cannot be compared."""
        with self._lock:
            if self._selector is None:
                most = KEYS_PER_PARTITION * self._subpartitions
                keys = sample_of(self._draws(most), most)
                bounds = bounds_of(keys, self._subpartitions, self._keyfunc)
                self._selector = RangeKeySelector(bounds, self._keyfunc, self._ascending, self._subpartitions)
            return self._selector

    def _draws(self, most: float) -> list[Draws]:
        """Draw the keys that may belong to a sample of ``most`` keys."""
        if self._partitions * most <= MOST_DRAWN:
            return self._draw(partial(draw_keys, most, 1.0))
        total = sum(count for count, _ in self._draw(count_pairs))
        return self._draw(partial(draw_keys, most, fraction_of(most, total)))

    def __call__(self, key: Any) -> int:
        return int(self.selector().assign([key])[0])

    def __reduce__(self) -> Any:
        return _BoundedRanges, (self.selector(),)


@dataclass(frozen=True, slots=True)
class _BoundedRanges:
    """The form of `Ranges` in other processes, where the bounds are known."""

    selector: RangeKeySelector

    def __call__(self, key: Any) -> int:
        return int(self.selector.assign([key])[0])


def draw_keys(most: float, below: float, split: int, pairs: Iterable[Any]) -> Iterator[Draws]:
    """Draw the keys of a partition that may belong to a sample of ``most`` keys of all partitions. ``below``:
    an upper bound for the random numbers of that sample."""
    random = _random_of(split)
    count = 0
    kept: list[tuple[float, Any]] = []
    for count, pair in enumerate(pairs, 1):  # one by one: a pair's value may be large
        draw = random()
        if draw < below:
            kept.append((draw, pair[0]))
            if len(kept) > 2 * most:
                below = min(below, fraction_of(most, count))
                kept = _below(below, kept)
    yield count, _below(fraction_of(most, count), kept)


def count_pairs(split: int, pairs: Iterable[Any]) -> Iterator[Draws]:
    """Count the pairs of a partition, and draw none."""
    yield sum(1 for _ in pairs), []


def sample_of(partitions: Sequence[Draws], most: float) -> list[Any]:
    """Return the keys that PySpark would sample, out of the draws of all partitions."""
    fraction = fraction_of(most, sum(count for count, _ in partitions))
    return [key for _, kept in partitions for draw, key in kept if draw < fraction]


def fraction_of(most: float, count: int) -> float:
    """Return the fraction of ``count`` keys to sample, to get about ``most``."""
    return min(most / max(count, 1), 1.0)


def _below(fraction: float, draws: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    return [each for each in draws if each[0] < fraction]


def _random_of(split: int) -> Callable[[], float]:
    """Return PySpark's random numbers for the records of a partition."""
    sampler = RDDSamplerBase(False, SEED)
    sampler.initRandomGenerator(split)
    random: Callable[[], float] = sampler.getUniformSample
    return random


def bounds_of(keys: Sequence[Any], subpartitions: int, keyfunc: KeyFunction) -> list[Any]:
    """Return the bounds between ``subpartitions`` ranges; none if there are no keys."""
    ordered = sorted(keys if keyfunc is None else map(keyfunc, keys))
    if not ordered:
        return []
    return [ordered[len(ordered) * (at + 1) // subpartitions] for at in range(subpartitions - 1)]
