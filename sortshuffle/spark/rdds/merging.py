"""Merging after a shuffle: all values of a key are aggregated or grouped, in bounded memory.

    chunks -> table --full--> three measures
              --all chunks read, no buckets--> results
              --all chunks read, buckets-----> each bucket in the same way, one level deeper

Terms: a group is *long* if it takes a 16th of the memory. A *bucket* holds the keys with the same five bits
of their hash. When the table is full, three measures follow, each only if those before freed too little:

1. values of long groups go to a file;
2. all other keys go to 32 buckets of another file;
3. if long groups still hold an 8th of the memory, all their values go to their file.

All aggregations and groups use it. `cogroup` and joins have several inputs: a bucket of one input is merged
together with the same bucket of the others. So the caller sees each key once, with its results from each
input (`tables`).

Each level of buckets uses five other bits of the hash. So data that do not fit at one level are 32 times
smaller at the next. At the deepest level only values of long groups are spilled: the remaining keys share one
hash, or are so few that the memory is too small in any case. So one combiner, or one key's share of a table,
must fit; groups need not.

A long group stays in its table when the others go to buckets, since otherwise its values would be read and
written again at each level. After all chunks it goes to the bucket of its key, without values in memory, and
is merged with those that were spilled before it became long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.pickled import Chunk, Pairs, PickledPayload
from sortshuffle.spark.rdds.aggregations import BATCH, GroupTable, Table
from sortshuffle.spark.rdds.grouping import LongGroup
from sortshuffle.spark.rdds.key_selectors import MAY_BE_NAN
from sortshuffle.spark.rdds.spilling import NewFile, RecordSpillFile, SpilledPart
from sortshuffle.spark.rdds.streams import tuples_of

BUCKET_BITS = 5
BUCKETS = 1 << BUCKET_BITS
DEEPEST = 6  # levels of buckets: 30 bits of the hash
CHUNK_BYTES = 64 * KIB
LONG_SHARE = 16  # a group is long if it takes a 16th of the memory
# If spilling the long groups frees an 8th of the memory, nothing else is spilled; another 8th must then fill
# before the next spill
WORTH_A_SPILL = 8

Residents: TypeAlias = "dict[Any, LongGroup]"


@dataclass(frozen=True, slots=True)
class Merging:
    """Merges the chunks of one or more inputs. ``table``: makes an empty table for an input."""

    table: Callable[[], Table]
    new_file: NewFile
    payload: PickledPayload
    memory: MemoryBudget
    metrics: TaskMetrics

    def tables(self, inputs: Sequence[Iterable[Chunk]]) -> Generator[list[Table], None, None]:
        """Yield one table per input, together holding all values of some keys; then tables of other keys. The
        caller owns the tables until it asks for the next ones, and may empty them."""
        yield from self._tables(inputs, [{} for _ in inputs], 0)

    def _tables(
        self, inputs: Sequence[Iterable[Chunk]], residents: Sequence[Residents], level: int
    ) -> Generator[list[Table], None, None]:
        with ExitStack() as stack:
            tables = [self._table(each) for each in residents]
            stack.callback(self.memory.release_all)
            spill = stack.enter_context(_Spill(self, tables, level))
            for table, chunks in zip(tables, inputs, strict=True):
                for chunk in chunks:
                    table.add(chunk if isinstance(chunk, Pairs) else tuples_of(chunk))
                    spill.make_room()
            self.metrics.add(merge_passes=1)
            buckets = spill.finish()
            if buckets is None:
                yield tables
                return
        for bucket in buckets:
            if any(bucket.parts) or any(bucket.residents):
                chunks_of = [_chunks(parts) for parts in bucket.parts]
                yield from self._tables(chunks_of, bucket.residents, level + 1)

    def _table(self, residents: Residents) -> Table:
        return GroupTable(residents) if residents else self.table()


@dataclass(frozen=True, slots=True)
class _Bucket:
    """One bucket of all inputs: for each input its spilled parts and its long groups."""

    parts: list[list[SpilledPart]]
    residents: list[Residents]


class _Spill:
    """The spill files of the tables of one level. Leaving the context deletes unfinished files."""

    def __init__(self, merging: Merging, tables: Sequence[Table], level: int) -> None:
        self._merging = merging
        self._memory = merging.memory
        self._tables = tables
        self._level = level
        self._buckets: list[RecordSpillFile | None] = [None] * len(tables)
        self._long: RecordSpillFile | None = None
        self._least = 0  # bytes to hold before the next spill
        self._files = ExitStack()

    def make_room(self) -> None:
        """Spill contents of the tables, if they are too large."""
        held = self._charge()
        if held <= self._memory.limit or held < self._least:
            return
        limit = self._memory.limit
        worth = limit // WORTH_A_SPILL
        if self._put_aside_long(limit // LONG_SHARE) < worth and self._level < DEEPEST:
            for at, table in enumerate(self._tables):
                self._put_aside(at, table)
            # of very many long groups the last values, too, would fill the memory
            if self._charge() > worth:
                self._put_aside_long(1)
        self._least = self._charge() + worth

    def finish(self) -> list[_Bucket] | None:
        """Spill the rest and return the buckets, or return None if all keys are still in the tables."""
        if not any(self._buckets):
            if self._long is not None:
                self._long.finish()
            return None
        for at, table in enumerate(self._tables):
            self._put_aside(at, table)
        self._put_aside_long(1)  # the next level does not count what long groups have in memory
        if self._long is not None:
            self._long.finish()
        parts: list[list[list[SpilledPart]]] = [
            file.finish() if file is not None else [[]] * BUCKETS for file in self._buckets
        ]
        residents = [self._by_bucket(_residents(table)) for table in self._tables]
        return [
            _Bucket([of[bucket] for of in parts], [of[bucket] for of in residents])
            for bucket in range(BUCKETS)
        ]

    def __enter__(self) -> _Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _charge(self) -> int:
        held = sum(table.held for table in self._tables)
        self._memory.release_all()
        self._memory.charge(held)
        return held

    def _put_aside_long(self, least: int) -> int:
        """Spill the values that long groups have in memory, if they take ``least`` bytes. Return how many
        bytes that freed, estimated. After `_put_aside` the tables have no other groups."""
        groups = [table for table in self._tables if isinstance(table, GroupTable)]
        return sum(table.put_aside_long(least, self._file_of_long) for table in groups)

    def _file_of_long(self) -> RecordSpillFile:
        if self._long is None:
            self._long = self._file(1)
        return self._long

    def _put_aside(self, at: int, table: Table) -> None:
        """Spill all keys but those of long groups into buckets."""
        if len(table) > len(_residents(table)):
            file = self._buckets[at]
            if file is None:
                file = self._buckets[at] = self._file(BUCKETS)
            file.write(self._bucket_chunks(table))
        table.clear()

    def _bucket_chunks(self, table: Table) -> Iterator[tuple[int, Chunk]]:
        residents = _residents(table)
        keys = list(filterfalse(residents.__contains__, table.keys()))
        buckets = self._bucket_of(keys)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(BUCKETS), "right").tolist()
        start = 0
        for bucket, end in enumerate(ends):
            if start < end:
                part = list(map(keys.__getitem__, order[start:end].tolist()))
                for first in range(0, len(part), BATCH):
                    yield bucket, table.pairs(part[first : first + BATCH])
            start = end

    def _by_bucket(self, residents: Residents) -> list[Residents]:
        buckets: list[Residents] = [{} for _ in range(BUCKETS)]
        for bucket, (key, group) in zip(self._bucket_of(list(residents)), residents.items(), strict=True):
            buckets[bucket][key] = group
        return buckets

    def _bucket_of(self, keys: list[Any]) -> npt.NDArray[np.uint8]:
        """Return this level's bits of a hash of each key. Python's hash of an int is the int itself, so the
        finalizer of splitmix64 (Steele, Lea, Flood, 2014) mixes the bits: each then depends on all."""
        mixed = np.fromiter(_hashes(keys), np.int64, len(keys)).view(np.uint64)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        shift = np.uint64(64 - BUCKET_BITS * (self._level + 1))
        buckets: npt.NDArray[np.uint8] = (mixed >> shift & np.uint64(BUCKETS - 1)).astype(np.uint8)
        return buckets

    def _file(self, subpartitions: int) -> RecordSpillFile:
        merging = self._merging
        file = RecordSpillFile(merging.new_file, merging.payload, subpartitions, CHUNK_BYTES, merging.metrics)
        return self._files.enter_context(file)


def _residents(table: Table) -> Residents:
    return table.long if isinstance(table, GroupTable) else {}


def _chunks(parts: Sequence[SpilledPart]) -> Iterator[Chunk]:
    for part in parts:
        yield from part.chunks()


def _hashes(keys: Sequence[Any]) -> Iterable[int]:
    """Return a hash of each key, equal for equal keys. Python hashes None and NaN by their addresses. Here
    their hashes, and those of tuples with them, do not depend on the process: keys come bucket by bucket, and
    a task that runs again must return them in the same order."""
    types = set(map(type, keys))
    if not any(each is type(None) or _is_plain_tuple(each) or issubclass(each, MAY_BE_NAN) for each in types):
        return map(hash, keys)
    return (position if (found := _hash(key)) is None else found for position, key in enumerate(keys))


def _hash(key: Any) -> int | None:
    """Return the hash of one key. None for one with NaN: it equals no other, so it may go to any bucket."""
    if key is None:
        return 0
    if _is_plain_tuple(type(key)):
        parts = [_hash(each) for each in key]
        if None in parts:
            return None
        is_stable = all(part == hash(each) for part, each in zip(parts, key, strict=True))
        return hash(key) if is_stable else hash(tuple(parts))
    # a subclass may define its equality alone, without `!=`
    is_nan = isinstance(key, MAY_BE_NAN) and not key == key  # noqa: SIM201
    return None if is_nan else hash(key)


def _is_plain_tuple(kind: type) -> bool:
    """Return whether this is a type of tuples that are equal if their parts are."""
    equality: Any = kind.__eq__
    own: Any = kind.__hash__
    return equality is tuple.__eq__ or own is tuple.__hash__
