"""The steps of a `ShuffleRDD`'s chain. They do what PySpark's methods of the same names do.

A `RecordStep` maps the records of one partition to others. It is called once for each partition, as
``step(split, records)``, where ``split`` is the number of the partition. Iterables are passed from step to
step unchanged, so a chain is one pass, and as lazy as its functions. A `HoldingStep` takes chunks and holds
records, within a budget (`spark.rdds.holding_steps`).

A StopIteration from a user's function would end the stream as if there were no more records. PySpark wraps
each call to catch it. Here the generator around the loop catches it, at no cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, TypeAlias

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.pickled import Chunk
from sortshuffle.spark.rdds.aggregations import converting_stop_iteration
from sortshuffle.spark.worker.task import Task


class RecordStep(Protocol):
    """A step that maps the records of a partition. ``describe``: its line in `explain()`."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]: ...

    def describe(self) -> str: ...


class HoldingStep(ABC):
    """A step that holds records. ``memory``: the budget for the records it holds."""

    @abstractmethod
    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]: ...

    @abstractmethod
    def describe(self) -> str: ...


Step: TypeAlias = "RecordStep | HoldingStep"


@dataclass(frozen=True)
class MapPartitionsWithIndex:
    """Calls ``function(split, records)``."""

    function: Callable[[int, Iterable[Any]], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return self.function(split, records)

    def describe(self) -> str:
        return f"mapPartitionsWithIndex({_name(self.function)})"


@dataclass(frozen=True)
class MapPartitions:
    """Calls ``function(records)``."""

    function: Callable[[Iterable[Any]], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return self.function(records)

    def describe(self) -> str:
        return f"mapPartitions({_name(self.function)})"


@dataclass(frozen=True)
class Map:
    """Maps each record to ``function(record)``."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        with converting_stop_iteration():
            for record in records:
                yield function(record)

    def describe(self) -> str:
        return f"map({_name(self.function)})"


@dataclass(frozen=True)
class FlatMap:
    """Maps each record to all elements of ``function(record)``."""

    function: Callable[[Any], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        with converting_stop_iteration():
            for record in records:
                yield from function(record)

    def describe(self) -> str:
        return f"flatMap({_name(self.function)})"


@dataclass(frozen=True)
class FilterRecords:
    """Keeps the records for which ``function(record)`` is true."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        with converting_stop_iteration():
            for record in records:
                if function(record):
                    yield record

    def describe(self) -> str:
        return f"filter({_name(self.function)})"


@dataclass(frozen=True)
class MapValues:
    """Replaces the value of each pair by ``function(value)``."""

    function: Callable[[Any], Any]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        with converting_stop_iteration():
            for pair in records:
                yield pair[0], function(pair[1])

    def describe(self) -> str:
        return f"mapValues({_name(self.function)})"


@dataclass(frozen=True)
class FlatMapValues:
    """Maps each pair to pairs of its key and the elements of ``function(value)``."""

    function: Callable[[Any], Iterable[Any]]

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        with converting_stop_iteration():
            for pair in records:
                key = pair[0]
                for value in function(pair[1]):
                    yield key, value

    def describe(self) -> str:
        return f"flatMapValues({_name(self.function)})"


@dataclass(frozen=True)
class Element:
    """Takes one element of each record. ``method``: the step's name in PySpark."""

    position: int
    method: str

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        position = self.position
        return (record[position] for record in records)

    def describe(self) -> str:
        return f"{self.method}()"


@dataclass(frozen=True)
class KeyBy:
    """Makes pairs of ``function(record)`` and the record. ``method``: the step's name in PySpark."""

    function: Callable[[Any], Any]
    method: str = "keyBy"

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        function = self.function
        with converting_stop_iteration():
            for record in records:
                yield function(record), record

    def describe(self) -> str:
        return f"{self.method}({_name(self.function)})"


@dataclass(frozen=True)
class PairWithValue:
    """Makes pairs of the record and one value. ``method``: the name of the user's method in PySpark."""

    value: Any
    method: str

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return zip(records, repeat(self.value), strict=False)

    def describe(self) -> str:
        return f"{self.method}: records as keys"


@dataclass(frozen=True)
class SubtractKeys:
    """Takes keys with two groups, and yields the pairs of the first group if the second is empty."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return ((key, value) for key, (here, there) in records if not there for value in here)

    def describe(self) -> str:
        return "subtractByKey: keys that are not there"


@dataclass(frozen=True)
class IntersectKeys:
    """Keeps the keys whose groups are all non-empty."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        return (pair for pair in records if all(pair[1]))

    def describe(self) -> str:
        return "intersection: keys that are in all"


@dataclass(frozen=True)
class Glom:
    """Collects all records in one list."""

    def __call__(self, split: int, records: Iterable[Any]) -> Iterable[Any]:
        yield list(records)

    def describe(self) -> str:
        return "glom()"


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
