"""The steps of a `ShuffleRDD`'s chain. They do what PySpark's methods of the same names do.

A `RecordStep` maps the records of one partition to others: ``step(split, records)``; ``split`` is the number
of the partition. It is called once for each partition. Iterables are passed from step to step unchanged, so a
chain is one pass, and as lazy as its functions. A `HoldingStep` takes chunks and holds records, within its
own memory (`spark.rdds.holding`).

A StopIteration out of a user's function would end the stream as if there were no more records. PySpark wraps
each call to find it. Here the generator around the loop does, at no cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, TypeAlias

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.pickled import Chunk
from sortshuffle.spark.rdds.aggregations import stopped
from sortshuffle.spark.worker.task import Task


class RecordStep(Protocol):
    """``describe`` is its line in `explain()`."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]: ...

    def describe(self) -> str: ...


class HoldingStep(ABC):
    """``memory``: what it may hold."""

    @abstractmethod
    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]: ...

    @abstractmethod
    def describe(self) -> str: ...


Step: TypeAlias = "RecordStep | HoldingStep"


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
        function = self.function
        try:
            for record in records:
                yield function(record)
        except StopIteration as error:
            raise stopped(error) from error

    def describe(self) -> str:
        return f"map({_name(self.function)})"


@dataclass(frozen=True)
class FlatMap:
    """Everything in ``function(record)`` for each."""

    function: Callable[[Any], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        try:
            for record in records:
                yield from function(record)
        except StopIteration as error:
            raise stopped(error) from error

    def describe(self) -> str:
        return f"flatMap({_name(self.function)})"


@dataclass(frozen=True)
class FilterRecords:
    """The records for which ``function(record)`` is true."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        try:
            for record in records:
                if function(record):
                    yield record
        except StopIteration as error:
            raise stopped(error) from error

    def describe(self) -> str:
        return f"filter({_name(self.function)})"


@dataclass(frozen=True)
class MapValues:
    """Pairs with ``function(value)`` for their values."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        try:
            for pair in records:
                yield pair[0], function(pair[1])
        except StopIteration as error:
            raise stopped(error) from error

    def describe(self) -> str:
        return f"mapValues({_name(self.function)})"


@dataclass(frozen=True)
class FlatMapValues:
    """A pair for everything in ``function(value)``."""

    function: Callable[[Any], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        try:
            for pair in records:
                key = pair[0]
                for value in function(pair[1]):
                    yield key, value
        except StopIteration as error:
            raise stopped(error) from error

    def describe(self) -> str:
        return f"flatMapValues({_name(self.function)})"


@dataclass(frozen=True)
class Element:
    """One element of each record. ``method``: its name in PySpark."""

    position: int
    method: str

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        position = self.position
        return (record[position] for record in records)

    def describe(self) -> str:
        return f"{self.method}()"


@dataclass(frozen=True)
class KeyBy:
    """Pairs of ``function(record)`` and the record. ``method``: its name in PySpark."""

    function: Callable[[Any], Any]
    method: str = "keyBy"

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        try:
            for record in records:
                yield function(record), record
        except StopIteration as error:
            raise stopped(error) from error

    def describe(self) -> str:
        return f"{self.method}({_name(self.function)})"


@dataclass(frozen=True)
class AsKeys:
    """Pairs of a record and a value. ``method``: its name in PySpark."""

    value: Any
    method: str

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return zip(records, repeat(self.value), strict=False)

    def describe(self) -> str:
        return f"{self.method}: records as keys"


@dataclass(frozen=True)
class OnlyFirst:
    """Of keys with two groups: the pairs of the first group, if the second is empty."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return ((key, value) for key, (here, there) in records if not there for value in here)

    def describe(self) -> str:
        return "subtractByKey: keys that are not there"


@dataclass(frozen=True)
class InAll:
    """Of keys with their groups: those without an empty group."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return (pair for pair in records if all(pair[1]))

    def describe(self) -> str:
        return "intersection: keys that are in all"


@dataclass(frozen=True)
class Glom:
    """One list of all records."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        yield list(records)

    def describe(self) -> str:
        return "glom()"


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
