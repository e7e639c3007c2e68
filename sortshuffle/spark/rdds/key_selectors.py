"""Selectors of `ShuffleRDD`: the subpartition of each key of a batch, the same as by PySpark's `partitionBy`.

A key goes to ``partitionFunc(key) % numPartitions``. The usual function, `pyspark.rdd.portable_hash`, looks
into the environment for every key and for every element of a tuple: most of the cost of a shuffle of small
pairs in PySpark. Here that check is made once for each batch. Then plain keys are hashed by Python's own
`hash`, as `portable_hash` does.

=========================  =========================================================
``PortableHashSelector``   ``partitionBy(n)``, and all that groups by key
``FunctionKeySelector``    ``partitionBy(n, function)``
``RangeKeySelector``       ``sortByKey``, ``sortBy`` (`ranges`)
``DealSelector``           ``repartition(n)``: any records, evenly
=========================  =========================================================

All are `writing.record_writer.KeySelector`s: picklable and, but for the last, without state.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pyspark.core.rdd import portable_hash

from sortshuffle.partitioner.selector import Ids, id_dtype
from sortshuffle.spark.rdds.ranges import RangeKeySelector, Ranges


def selector_of(function: Callable[[Any], int], subpartitions: int) -> KeySelectors:
    """The selector that places as this partition function does. For ranges that runs a job."""
    if function is portable_hash:
        return PortableHashSelector(subpartitions)
    if isinstance(function, Deal):
        return DealSelector(subpartitions)
    if isinstance(function, Ranges):
        return function.selector()
    return FunctionKeySelector(function, subpartitions)


@dataclass(frozen=True, slots=True)
class PortableHashSelector:
    """Places each key by `portable_hash`."""

    is_broadcast: ClassVar[bool] = False

    subpartitions: int

    def assign(self, keys: Sequence[Any]) -> Ids:
        """One id per key. Raises TypeError for a key that cannot be hashed, and what `portable_hash` raises
        in a process whose hashes are not those of the others."""
        portable_hash(None)
        hashes = np.fromiter(_portable_hashes(keys), np.int64, len(keys))
        return (hashes % self.subpartitions).astype(id_dtype(self.subpartitions))


@dataclass(frozen=True, slots=True)
class FunctionKeySelector:
    """Places each key by a function of it, which gives any int."""

    is_broadcast: ClassVar[bool] = False

    function: Callable[[Any], int]
    subpartitions: int

    def assign(self, keys: Sequence[Any]) -> Ids:
        """One id per key. Raises what the function raises, and `struct.error`, as PySpark does, where it
        gives something else than an int."""
        function, count = self.function, self.subpartitions
        ids = [function(key) % count for key in keys]
        packed = struct.pack(f"={len(ids)}q", *ids)
        # the remainder of another number type may be outside the range; the JVM takes one more, too
        return (np.frombuffer(packed, np.int64) % count).astype(id_dtype(count))


def to_first(key: Any) -> int:
    """A partition function for one partition: keys need no hash."""
    return 0


class Deal:
    """In place of a partition function: records are placed in turn."""

    __qualname__ = "round robin"


@dataclass(slots=True)
class DealSelector:
    """Places any records in turn; the same records in the same order always alike. ``first``: the place of
    the first record; the task sets it, so that not all begin at one place."""

    is_broadcast: ClassVar[bool] = False

    subpartitions: int
    first: int = 0

    def assign(self, keys: Sequence[Any]) -> Ids:
        ids = (np.arange(len(keys)) + self.first) % self.subpartitions
        self.first = (self.first + len(keys)) % self.subpartitions
        return ids.astype(id_dtype(self.subpartitions))


KeySelectors = PortableHashSelector | FunctionKeySelector | RangeKeySelector | DealSelector


def _portable_hashes(keys: Sequence[Any]) -> Iterable[int]:
    types = set(map(type, keys))
    if any(issubclass(each, tuple) for each in types):
        return map(_portable_hash, keys)
    if type(None) in types:
        return (0 if key is None else hash(key) for key in keys)
    return map(hash, keys)


def _portable_hash(key: Any) -> int:
    """What `portable_hash` gives, without its look at the environment. The hash of a tuple is CPython 2.7's
    (Objects/tupleobject.c), without its changing multiplier."""
    if key is None:
        return 0
    if not isinstance(key, tuple):
        return hash(key)
    mixed = 0x345678
    for each in key:
        mixed = ((mixed ^ _portable_hash(each)) * 1000003) & sys.maxsize
    return mixed ^ len(key)
