"""Aggregations of the values of a key, and the tables in which they run.

    Reduce        values, reduced two at a time              reduceByKey
    Combine       combiners of values                        combineByKey, aggregateByKey, foldByKey
    Group         lists of values                            groupByKey, cogroup, joins
    Distinct      None, because only keys count              distinct

A `PairAggregation` is plain data that is sent to the tasks. Each task makes `Table`s of it: before the
shuffle to send fewer records (`combining`), and after it to get one result per key (`merging`). Both add
pairs to a table until its memory is full, and then take the results out.

`Table.held` estimates the bytes of the table from samples (`heap`). For groups, each chunk adds the estimated
bytes of its values and new keys. Combiners may grow, so they are measured again whenever the number of
records has grown by a quarter, and extrapolated in between.

The loops here run for every record. A StopIteration from a user's function would end the stream silently.
PySpark wraps each call to catch it, which costs more than most functions. Here the whole loop is wrapped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain, islice, repeat
from types import TracebackType
from typing import Any, ClassVar, Protocol

from pyspark.errors import PySparkRuntimeError

from sortshuffle.payload.pickled import Chunk, Pairs
from sortshuffle.spark.rdds.grouping import LongGroup
from sortshuffle.spark.rdds.heap import (
    DICT_ENTRY,
    POINTER,
    SAMPLE_SIZE,
    bytes_of_each,
    heap_bytes,
    mean_bytes,
    take_sample,
)
from sortshuffle.spark.rdds.spilling import RecordSpillFile

BATCH = 4096  # keys taken out of a table together
MEASURED_COMBINERS = 64  # in one measurement
RECENT_KEYS = 16  # sampled keys of the last chunk whose combiners are checked for very large ones
LARGE = 8  # a combiner above this many times the mean size is very large
MEASURE_AGAIN = 1.25  # times the records at the last measurement
LIST_BYTES = 88  # an empty list, and the space that its first append allocates


class ValueKind(Enum):
    """What a chunk holds beside its keys: values, combiners, or lists of values."""

    PLAIN = auto()
    COMBINED = auto()
    GROUPED = auto()


class PairAggregation(Protocol):
    def table(self) -> Table: ...

    def describe(self) -> str: ...


@dataclass(frozen=True)
class Reduce:
    """Reduces values by ``function(value, value)``."""

    function: Callable[[Any, Any], Any]

    def table(self) -> Table:
        return ReduceTable(self.function)

    def describe(self) -> str:
        return "values reduced"


@dataclass(frozen=True)
class Combine:
    """Combines values by ``create(value)``, ``add(combiner, value)``, ``merge(combiner, combiner)``."""

    create: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]

    def table(self) -> Table:
        return CombineTable(self)

    def describe(self) -> str:
        return "values combined"


@dataclass(frozen=True)
class Group:
    """Collects values in lists."""

    def table(self) -> Table:
        return GroupTable()

    def describe(self) -> str:
        return "values grouped"


@dataclass(frozen=True)
class Distinct:
    """Keeps each key once, with None for its value."""

    def table(self) -> Table:
        return DistinctTable()

    def describe(self) -> str:
        return "duplicates dropped"


class Table(ABC):
    """The results so far, by key. ``held``: estimated bytes of the table. ``kind``: kind of its results."""

    kind: ClassVar[ValueKind]

    def __init__(self) -> None:
        self.held = 0

    @abstractmethod
    def add(self, chunk: Chunk) -> None:
        """Add pairs of keys with values, or with results of a table of this kind. A list must hold tuples.
        Raises whatever unpacking and the user's functions raise, and TypeError for unhashable keys."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def keys(self) -> Collection[Any]: ...

    @abstractmethod
    def results(self, keys: list[Any]) -> list[Any]:
        """Return the results of ``keys``: combiners or groups. They stay in the table."""

    @abstractmethod
    def clear(self) -> None: ...

    def batches(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield all keys, in the order of their first records, and their results."""
        keys = iter(self.keys())
        while batch := list(islice(keys, BATCH)):
            yield batch, self.results(batch)

    def pairs(self, keys: list[Any]) -> Pairs:
        """Return ``keys`` and their results as a chunk for `add`."""
        return pairs_of_kind(self.kind, keys, self.results(keys))


class _CombiningTable(Table):
    """A dict of one combiner for each key."""

    def __init__(self) -> None:
        super().__init__()
        self._combiners: dict[Any, Any] = {}
        self._records = 0
        self._measured_at = 0  # records at the last measurement
        self._measured = 0  # bytes held then
        self._growth = 0.0  # bytes per record between the last two measurements

    def add(self, chunk: Chunk) -> None:
        with converting_stop_iteration():
            self._add(chunk)
        self._records += len(chunk)
        if self._records >= MEASURE_AGAIN * self._measured_at:
            self._measure(chunk)
        self.held = self._measured + int(self._growth * (self._records - self._measured_at))

    @abstractmethod
    def _add(self, chunk: Chunk) -> None: ...

    def __len__(self) -> int:
        return len(self._combiners)

    def keys(self) -> Collection[Any]:
        return self._combiners

    def results(self, keys: list[Any]) -> list[Any]:
        return list(map(self._combiners.__getitem__, keys))

    def clear(self) -> None:
        self._combiners.clear()
        self._records = self._measured_at = self._measured = self.held = 0
        self._growth = 0.0

    def _measure(self, chunk: Chunk) -> None:
        combiners = self._combiners
        # measure neighbours, which are of one age; the start moves through the table
        start = self._records * 7919 % max(1, len(combiners) - MEASURED_COMBINERS)
        seen = list(islice(combiners.items(), start, start + MEASURED_COMBINERS))
        sizes = bytes_of_each(key for key, _ in seen) + bytes_of_each(combiner for _, combiner in seen)
        mean = sum(sizes) / max(1, len(seen))
        recent = dict.fromkeys(_sample(chunk, RECENT_KEYS)[0])
        are_few = len(combiners) <= MEASURED_COMBINERS
        large = [] if are_few else bytes_of_each(combiners[key] for key in recent)
        measured = int(len(combiners) * (DICT_ENTRY + mean))
        measured += sum(size for size in large if size > LARGE * mean)
        if self._measured_at:
            self._growth = max(0.0, (measured - self._measured) / (self._records - self._measured_at))
        else:
            self._growth = measured / max(1, self._records)
        self._measured, self._measured_at = measured, self._records


class ReduceTable(_CombiningTable):
    """A table for `Reduce`, whose combiners are values themselves."""

    kind = ValueKind.PLAIN

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function = function

    def _add(self, chunk: Chunk) -> None:
        values, function = self._combiners, self._function
        for key, value in chunk:
            if key in values:
                values[key] = function(values[key], value)
            else:
                values[key] = value


class CombineTable(_CombiningTable):
    kind = ValueKind.COMBINED

    def __init__(self, functions: Combine) -> None:
        super().__init__()
        self._functions = functions

    def _add(self, chunk: Chunk) -> None:
        combiners = self._combiners
        if isinstance(chunk, Pairs) and chunk.combined:
            merge = self._functions.merge
            for key, combiner in chunk:
                combiners[key] = merge(combiners[key], combiner) if key in combiners else combiner
        else:
            create, add = self._functions.create, self._functions.add
            for key, value in chunk:
                combiners[key] = add(combiners[key], value) if key in combiners else create(value)


class DistinctTable(Table):
    """A set of keys. The first of equal keys stays."""

    kind = ValueKind.PLAIN

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[Any, None] = {}
        self._key_bytes = 0.0

    def add(self, chunk: Chunk) -> None:
        before = len(self._keys)
        keys = chunk.keys if isinstance(chunk, Pairs) else [key for key, _ in chunk]
        self._keys.update(dict.fromkeys(keys))
        self._key_bytes += (len(self._keys) - before) * mean_bytes(keys)
        self.held = int(self._key_bytes) + DICT_ENTRY * len(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Collection[Any]:
        return self._keys

    def results(self, keys: list[Any]) -> list[Any]:
        return list(repeat(None, len(keys)))

    def clear(self) -> None:
        self._keys.clear()
        self._key_bytes = 0.0
        self.held = 0


class GroupTable(Table):
    """Lists of values. ``long``: groups with values in a spill file (`grouping.LongGroup`). Values are added
    to them as to lists, and they stay when the table is cleared."""

    kind = ValueKind.GROUPED

    def __init__(self, long: dict[Any, LongGroup] | None = None) -> None:
        super().__init__()
        self.groups: defaultdict[Any, Any] = defaultdict(list)
        self.long: dict[Any, LongGroup] = long or {}
        self._values = 0
        self._value_bytes = 0.0
        self._key_bytes = 0.0
        self.clear()

    def add(self, chunk: Chunk) -> None:
        groups = self.groups
        before, added = len(groups), len(chunk)
        if not isinstance(chunk, Pairs) or chunk.counts is None:
            for key, value in chunk:
                groups[key].append(value)
        else:
            added = len(chunk.values)
            values = iter(chunk.values)
            for key, count in zip(chunk.keys, chunk.counts, strict=True):
                groups[key].extend(islice(values, count))
        seen_keys, seen_values = _sample(chunk, SAMPLE_SIZE)
        self._values += added
        self._value_bytes += added * (POINTER + mean_bytes(seen_values))
        self._key_bytes += (len(groups) - before) * mean_bytes(seen_keys)
        self._hold()

    def put_aside_long(self, least: int, new_file: Callable[[], RecordSpillFile]) -> int:
        """Spill the values of all groups of at least ``least`` bytes. Return the freed bytes, estimated."""
        mean = self._value_bytes / max(1, self._values)
        if max(map(len, self.groups.values()), default=0) * mean < least:
            return 0  # no group is so long: a quick test for the usual case of many groups
        put_aside = 0
        for key, group in self.groups.items():
            is_long = isinstance(group, LongGroup)
            if (group.in_memory if is_long else len(group)) * mean < least:
                continue
            if not is_long:
                group = self.long[key] = self.groups[key] = LongGroup(group)
            put_aside += group.in_memory
            group.put_aside(new_file())
        freed = put_aside * mean
        self._values -= put_aside
        self._value_bytes -= freed
        self._hold()
        return int(freed)

    def __len__(self) -> int:
        return len(self.groups)

    def keys(self) -> Collection[Any]:
        return self.groups

    def results(self, keys: list[Any]) -> list[Any]:
        return list(map(self.groups.__getitem__, keys))

    def clear(self) -> None:
        mean = self._value_bytes / max(1, self._values)
        self.groups = defaultdict(list, self.long)
        self._values = sum(group.in_memory for group in self.long.values())
        self._value_bytes = self._values * mean
        self._key_bytes = float(sum(map(heap_bytes, self.long)))
        self._hold()

    def _hold(self) -> None:
        self.held = int(self._value_bytes + self._key_bytes) + (DICT_ENTRY + LIST_BYTES) * len(self.groups)


def _sample(chunk: Chunk, most: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """Sample at most ``most`` keys and as many values, spread over the chunk."""
    if isinstance(chunk, Pairs):
        return take_sample(chunk.keys, most), take_sample(chunk.values, most)
    seen = take_sample(chunk, most)
    return [key for key, _ in seen], [value for _, value in seen]


def pairs_of_kind(kind: ValueKind, keys: list[Any], results: list[Any]) -> Pairs:
    """Make a chunk of keys and their results."""
    if kind is ValueKind.GROUPED:
        return Pairs(keys, list(chain.from_iterable(results)), counts=list(map(len, results)))
    return Pairs(keys, results, combined=kind is ValueKind.COMBINED)


class converting_stop_iteration:  # noqa: N801 - used like a function
    """Context that turns a StopIteration from a user's function into PySpark's error. (`contextmanager` does
    not work here: contextlib takes a RuntimeError caused by a StopIteration for one of its own generator.)"""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StopIteration):
            exc = {"exc": str(error)}
            raise PySparkRuntimeError(errorClass="STOP_ITERATION_OCCURRED", messageParameters=exc) from error
