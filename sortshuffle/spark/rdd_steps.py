"""The functions that `ShuffleRDD` chains, and what PySpark's methods of the same names do with them.

A step maps the records of one partition to others: ``step(split, records)``, where ``split`` is the number of
the partition. It is called once for each partition, and whatever it is given and gives is passed on as it
is, so that a chain is one pass, and as lazy, as its functions make it.

`fail_on_stopiteration` is PySpark's: where a function is called for each record, a StopIteration out of it
would end the stream as if there were no more records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from pyspark.util import fail_on_stopiteration


class RecordStep(Protocol):
    """``describe`` is its line in `explain()`."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]: ...

    def describe(self) -> str: ...


@dataclass(frozen=True)
class MapPartitionsWithIndex:
    """``function(split, records)``"""

    function: Callable[[int, Iterable[Any]], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return self.function(split, records)

    def describe(self) -> str:
        return f"mapPartitionsWithIndex({_name(self.function)})"


@dataclass(frozen=True)
class MapPartitions:
    """``function(records)``"""

    function: Callable[[Iterable[Any]], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return self.function(records)

    def describe(self) -> str:
        return f"mapPartitions({_name(self.function)})"


@dataclass(frozen=True)
class Map:
    """``function(record)`` for each."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return map(fail_on_stopiteration(self.function), records)

    def describe(self) -> str:
        return f"map({_name(self.function)})"


@dataclass(frozen=True)
class FlatMap:
    """Everything in ``function(record)`` for each."""

    function: Callable[[Any], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return chain.from_iterable(map(fail_on_stopiteration(self.function), records))

    def describe(self) -> str:
        return f"flatMap({_name(self.function)})"


@dataclass(frozen=True)
class Filter:
    """The records for which ``function(record)`` is true."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return filter(fail_on_stopiteration(self.function), records)

    def describe(self) -> str:
        return f"filter({_name(self.function)})"


@dataclass(frozen=True)
class MapValues:
    """Pairs with ``function(value)`` for their values."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = fail_on_stopiteration(self.function)
        return ((pair[0], function(pair[1])) for pair in records)

    def describe(self) -> str:
        return f"mapValues({_name(self.function)})"


@dataclass(frozen=True)
class FlatMapValues:
    """A pair for everything in ``function(value)``."""

    function: Callable[[Any], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = fail_on_stopiteration(self.function)
        return ((pair[0], value) for pair in records for value in function(pair[1]))

    def describe(self) -> str:
        return f"flatMapValues({_name(self.function)})"


@dataclass(frozen=True)
class Element:
    """One element of each record. ``method``: what the user called it by."""

    position: int
    method: str

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        position = self.position
        return (record[position] for record in records)

    def describe(self) -> str:
        return f"{self.method}()"


@dataclass(frozen=True)
class Glom:
    """One list of all records."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        yield list(records)

    def describe(self) -> str:
        return "glom()"


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
