"""Selectors of `ShuffleRDD`. They place each key in the same subpartition as PySpark's `partitionBy`.

A key goes to ``partitionFunc(key) % numPartitions``. The usual function, `pyspark.rdd.portable_hash`, reads
an environment variable for every key and every element of a tuple: most of the cost of a shuffle of small
pairs in PySpark. Here the variable is checked once for each batch. Then plain keys are hashed by Python's own
`hash`, as `portable_hash` does.

=========================  =========================================================
``PortableHashSelector``   ``partitionBy(n)``, and all that groups by key
``FunctionKeySelector``    ``partitionBy(n, function)``
``RangeKeySelector``       ``sortByKey``, ``sortBy`` (`ranges`)
``RoundRobinKeySelector``  ``repartition(n)``: any records, round robin
=========================  =========================================================

All are `writing.record_writer.KeySelector`s: picklable and, but for the last, without state.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
from pyspark.core.rdd import portable_hash

from sortshuffle.partitioner.selector import Ids, id_dtype
from sortshuffle.spark.rdds.ranges import RangeKeySelector, Ranges


def selector_of(function: Callable[[Any], int], subpartitions: int) -> KeySelectors:
    """Return a selector that places keys as a partition function does. For `Ranges`, this runs a job."""
    if function is portable_hash:
        return PortableHashSelector(subpartitions)
    if isinstance(function, EvenSpread):
        return RoundRobinKeySelector(subpartitions)
    if isinstance(function, Ranges):
        return function.selector()
    return FunctionKeySelector(function, subpartitions)


@dataclass(frozen=True, slots=True)
class PortableHashSelector:
    """Places each key by `portable_hash`."""

    is_broadcast: ClassVar[bool] = False

    subpartitions: int

    def assign(self, keys: Sequence[Any]) -> Ids:
        """Return one id per key. Raises TypeError for an unhashable key, and what `portable_hash` raises in
        a process without PYTHONHASHSEED, whose hashes differ from those of others."""
        portable_hash(None)
        hashes = np.fromiter(portable_hashes(keys), np.int64, len(keys))
        return (hashes % self.subpartitions).astype(id_dtype(self.subpartitions))


@dataclass(frozen=True, slots=True)
class FunctionKeySelector:
    """Places each key by a function that returns any int."""

    is_broadcast: ClassVar[bool] = False

    function: Callable[[Any], int]
    subpartitions: int

    def assign(self, keys: Sequence[Any]) -> Ids:
        """Return one id per key. Raises whatever the function raises, and `struct.error`, as PySpark does, if
        the function returns anything but an int."""
        function, count = self.function, self.subpartitions
        ids = [function(key) % count for key in keys]
        packed = struct.pack(f"={len(ids)}q", *ids)
        # remainders of a user's number type may be out of range; the JVM takes the remainder again, too
        return (np.frombuffer(packed, np.int64) % count).astype(id_dtype(count))


class EvenSpread:
    """Stands in for a partition function where records are placed round robin."""

    __qualname__ = "round robin"


@dataclass(slots=True)
class RoundRobinKeySelector:
    """Places any records round robin, always alike for the same records in the same order. ``first``: the
    subpartition of the first record, which the task sets so that not all tasks begin at the same one."""

    is_broadcast: ClassVar[bool] = False

    subpartitions: int
    first: int = 0

    def assign(self, keys: Sequence[Any]) -> Ids:
        ids = (np.arange(len(keys)) + self.first) % self.subpartitions
        self.first = (self.first + len(keys)) % self.subpartitions
        return ids.astype(id_dtype(self.subpartitions))


# whose NaN, or NaT, has another hash in each process
MAY_BE_NAN = (float, complex, Decimal, np.floating, np.complexfloating, np.datetime64, np.timedelta64)

KeySelectors = PortableHashSelector | FunctionKeySelector | RangeKeySelector | RoundRobinKeySelector


def portable_hashes(keys: Sequence[Any]) -> Iterable[int]:
    """Return PySpark's `portable_hash` of each key, the same in every process. That of NaN is 0. Python's
    differs from object to object, so with PySpark's a task that runs again would place it elsewhere."""
    types = set(map(type, keys))
    if types == {float}:
        return (hash(key) if key == key else 0 for key in keys)
    if any(issubclass(each, (tuple, *MAY_BE_NAN)) for each in types):
        return map(_portable_hash, keys)
    if type(None) in types:
        return (0 if key is None else hash(key) for key in keys)
    return map(hash, keys)


def _portable_hash(key: Any) -> int:
    """Compute one hash, without PySpark's look at the environment. The hash of a tuple is CPython 2.7's
    (Objects/tupleobject.c), without its changing multiplier."""
    if key is None:
        return 0
    if not isinstance(key, tuple):
        is_nan = isinstance(key, MAY_BE_NAN) and key != key
        return 0 if is_nan else hash(key)
    mixed = 0x345678
    for each in key:
        mixed = ((mixed ^ _portable_hash(each)) * 1000003) & sys.maxsize
    return mixed ^ len(key)
