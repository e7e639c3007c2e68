"""Sorting the records of a partition in bounded memory.

    records -> list --memory full--> sort the list, write it to a file as a run, begin a new list
                    --all read-----> sort the list, merge it with all runs

Runs are merged by pieces, not record by record. One piece of each run is loaded. Records that are not loaded
cannot come before the smallest of the pieces' last records, so all loaded records up to that one are
concatenated and sorted. This is a merge in C, because timsort finds the sorted pieces. 63 runs of pairs take
0.5 us per record, where `heapq.merge` takes 0.75; 8 runs take 0.4 and 0.6.

`FAN_IN` runs are merged into one run of the next level. So a record is written about log(runs) / log(FAN_IN)
times.

The order is that of `sorted(records, key, reverse)`: whatever the memory, records with equal keys keep their
order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.pickled import Chunk, PickledPayload
from sortshuffle.spark.rdds.aggregations import converting_stop_iteration
from sortshuffle.spark.rdds.heap import POINTER, mean_bytes
from sortshuffle.spark.rdds.spilling import NewFile, RecordSpillFile, SpilledPart

FAN_IN = 64  # runs to merge at a time
MOST_CHUNK, LEAST_CHUNK = 64 * KIB, 512  # bytes of a pickled piece of a run
HEAP_PER_PICKLED = 8  # as in `writing.pickled_sizes`
PIECE_RECORDS = 4096  # records of a sorted list to yield together

Key: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Sorting:
    """Sorts records by the result of ``key(record)``."""

    key: Key
    reverse: bool
    new_file: NewFile
    payload: PickledPayload
    memory: MemoryBudget
    metrics: TaskMetrics

    def sort(self, chunks: Iterable[Chunk]) -> Iterator[list[Any]]:
        """Yield the records in order, in pieces. Raises whatever comparing records raises."""
        runs = _Runs(self)
        records: list[Any] = []
        held = 0.0
        try:
            for chunk in chunks:
                start = len(records)
                records += chunk
                held += (len(records) - start) * (POINTER + mean_bytes(records[start:]))
                self._charge(int(held))
                if held > self.memory.limit:
                    self._sort(records)
                    runs.put_aside([records])
                    records, held = [], 0.0
            self._sort(records)
            self.metrics.add(merge_passes=1)
            yield from runs.merge_with(records) if runs else _pieces(records)
        finally:
            self._charge(0)

    def _sort(self, records: list[Any]) -> None:
        with self.metrics.step("sort"), converting_stop_iteration():
            records.sort(key=self.key, reverse=self.reverse)

    def _charge(self, held: int) -> None:
        self.memory.release_all()
        self.memory.charge(held)

    def merge(self, runs: Sequence[Iterator[list[Any]]]) -> Iterator[list[Any]]:
        """Merge sorted runs. Equal records come in the order of their runs."""
        heads = [_Head(run, self.key) for run in runs]
        while heads := [head for head in heads if head.has_more or head.load()]:
            if len(heads) == 1:
                yield from heads[0].rest()
                return
            with self.metrics.step("merge"), converting_stop_iteration():
                piece = self._next_piece(heads)
            yield piece

    def _next_piece(self, heads: Sequence[_Head]) -> list[Any]:
        """Take the loaded records that come before all records that are not loaded, and sort them. Of the run
        whose piece ends first that is all of it. So each step makes progress, also if keys have no total
        order, such as NaN: then a search in them may find nothing."""
        ends = [head.keys[-1] for head in heads]
        nearest = max if self.reverse else min
        first = nearest(range(len(ends)), key=ends.__getitem__)
        piece: list[Any] = []
        for at, head in enumerate(heads):
            # the run whose piece ends first may go on with equal records, which precede those of later runs
            is_whole = at == first
            end = len(head.keys) if is_whole else self._up_to(head, ends[first], at < first)
            piece += head.take(end)
        piece.sort(key=self.key, reverse=self.reverse)
        return piece

    def _up_to(self, head: _Head, end: Any, or_equal: bool) -> int:
        """Return the first position whose key does not precede ``end``, or, with ``or_equal``, follows it."""
        if not self.reverse:
            return (bisect_right if or_equal else bisect_left)(head.keys, end, head.start)
        low, high = head.start, len(head.keys)
        while low < high:
            middle = (low + high) // 2
            key = head.keys[middle]
            if not key < end if or_equal else end < key:
                low = middle + 1
            else:
                high = middle
        return low


class _Head:
    """The loaded piece of a run. ``start``: the position of the first record that was not taken yet."""

    __slots__ = ("_key", "_run", "keys", "records", "start")

    def __init__(self, run: Iterator[list[Any]], key: Key) -> None:
        self._run = run
        self._key = key
        self.records: list[Any] = []
        self.keys: list[Any] = []
        self.start = 0

    @property
    def has_more(self) -> bool:
        return self.start < len(self.records)

    def load(self) -> bool:
        """Load the next piece. Return whether there was one."""
        self.records = next(self._run, [])
        self.keys = [self._key(record) for record in self.records]
        self.start = 0
        return bool(self.records)

    def take(self, stop: int) -> list[Any]:
        taken = self.records[self.start : stop]
        self.start = stop
        return taken

    def rest(self) -> Iterator[list[Any]]:
        yield self.records[self.start :]
        yield from self._run


class _Runs:
    """The runs on disk, by level; the oldest runs are at the highest level."""

    def __init__(self, sorting: Sorting) -> None:
        self._sorting = sorting
        self._levels: list[list[SpilledPart]] = []
        share = sorting.memory.limit // (2 * FAN_IN * HEAP_PER_PICKLED)
        self._chunk_bytes = max(LEAST_CHUNK, min(MOST_CHUNK, share))

    def __bool__(self) -> bool:
        return bool(self._levels)

    def put_aside(self, records: Iterable[list[Any]], level: int = 0) -> None:
        """Write a run, and merge the runs of its level if there are `FAN_IN` of them."""
        run = self._run(records)
        while len(self._levels) <= level:
            self._levels.append([])
        self._levels[level].append(run)
        if len(self._levels[level]) == FAN_IN:
            self._sorting.metrics.add(merge_passes=1)
            merged = self._sorting.merge([_read(run) for run in self._levels[level]])
            self._levels[level] = []
            self.put_aside(merged, level + 1)

    def merge_with(self, last: list[Any]) -> Iterator[list[Any]]:
        """Merge all runs, and the sorted records ``last`` as the latest run."""
        runs = [run for level in reversed(self._levels) for run in level]
        while len(runs) > FAN_IN:  # merge the smallest runs, which are neighbours
            self._sorting.metrics.add(merge_passes=1)
            runs[-FAN_IN:] = [self._run(self._sorting.merge([*map(_read, runs[-FAN_IN:])]))]
        yield from self._sorting.merge([*map(_read, runs), _pieces(last)])

    def _run(self, records: Iterable[list[Any]]) -> SpilledPart:
        sorting = self._sorting
        with RecordSpillFile(
            sorting.new_file, sorting.payload, 1, self._chunk_bytes, sorting.metrics
        ) as file:
            file.write((0, piece) for piece in records)
            ((run,),) = file.finish()
        return run


def _read(run: SpilledPart) -> Iterator[list[Any]]:
    return (list(chunk) for chunk in run.chunks())


def _pieces(records: list[Any]) -> Iterator[list[Any]]:
    return (records[start : start + PIECE_RECORDS] for start in range(0, len(records), PIECE_RECORDS))


def by_key(keyfunc: Key | None) -> Key:
    """Return the function to sort pairs by: ``keyfunc`` of the key, or the key if ``keyfunc`` is None."""
    return itemgetter(0) if keyfunc is None else _KeyOf(keyfunc)


@dataclass(frozen=True, slots=True)
class _KeyOf:
    keyfunc: Key

    def __call__(self, pair: Any) -> Any:
        return self.keyfunc(pair[0])
