"""Sorting the records of a partition in bounded memory.

    records -> a list --full--> sorted, a run in a file of its own
                      --end---> sorted; with the runs, merged

Runs are merged by pieces, not record by record. One piece of each run is loaded. All records up to the first
end among the pieces are known: they are put together and sorted. For sorted pieces one behind the other that
is a merge in C (timsort finds the runs). 63 runs of pairs: 0.5 us a record, where `heapq.merge` takes 0.75; 8
runs: 0.4 and 0.6.

`FAN_IN` runs are merged into one run of the next level. So a record is written about log(runs) / log(FAN_IN)
times.

The order is that of `sorted(records, key, reverse)`: records with equal keys keep their order, whatever the
memory.
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
from sortshuffle.spark.rdds.aggregations import stopped_by_user
from sortshuffle.spark.rdds.heap import POINTER, mean_bytes
from sortshuffle.spark.rdds.spilling import NewFile, RecordSpillFile, SpilledPart

FAN_IN = 64  # runs that are merged at a time
MOST_CHUNK, LEAST_CHUNK = 64 * KIB, 512  # bytes of a pickled piece of a run
HEAP_PER_PICKLED = 8  # as in `writing.pickled_sizes`
PIECE_RECORDS = 4096  # of a sorted list, yielded together

Key: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Sorting:
    """``key``: a function of a record; records are ordered by its result."""

    key: Key
    reverse: bool
    new_file: NewFile
    payload: PickledPayload
    memory: MemoryBudget
    metrics: TaskMetrics

    def sort(self, chunks: Iterable[Chunk]) -> Iterator[list[Any]]:
        """The records in order. Raises what comparing them raises."""
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
        with self.metrics.step("sort"), stopped_by_user():
            records.sort(key=self.key, reverse=self.reverse)

    def _charge(self, held: int) -> None:
        self.memory.release_all()
        self.memory.charge(held)

    def merge(self, runs: Sequence[Iterator[list[Any]]]) -> Iterator[list[Any]]:
        """Merge sorted runs. Of equal records those of the first run come first."""
        heads = [_Head(run, self.key) for run in runs]
        while heads := [head for head in heads if head.has_more or head.load()]:
            if len(heads) == 1:
                yield from heads[0].rest()
                return
            with self.metrics.step("merge"), stopped_by_user():
                piece = self._next_piece(heads)
            yield piece

    def _next_piece(self, heads: Sequence[_Head]) -> list[Any]:
        """All loaded records that come before any record that is not loaded."""
        ends = [head.keys[-1] for head in heads]
        nearest = max if self.reverse else min
        first = nearest(range(len(ends)), key=ends.__getitem__)
        piece: list[Any] = []
        for at, head in enumerate(heads):
            # the run with this end may have more equal records, which come before those of later runs
            piece += head.take(self._up_to(head, ends[first], at <= first))
        piece.sort(key=self.key, reverse=self.reverse)
        return piece

    def _up_to(self, head: _Head, end: Any, or_equal: bool) -> int:
        """The position of the first record behind ``end``; with ``or_equal`` equal ones count as before
        it."""
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
    """The loaded piece of a run. ``start``: the position of the first record that was not taken."""

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
        """Load the next piece. Whether there was one."""
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
    """The runs that were put aside, by level; the oldest are at the highest."""

    def __init__(self, sorting: Sorting) -> None:
        self._sorting = sorting
        self._levels: list[list[SpilledPart]] = []
        share = sorting.memory.limit // (2 * FAN_IN * HEAP_PER_PICKLED)
        self._chunk_bytes = max(LEAST_CHUNK, min(MOST_CHUNK, share))

    def __bool__(self) -> bool:
        return bool(self._levels)

    def put_aside(self, records: Iterable[list[Any]], level: int = 0) -> None:
        """Write a run."""
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
        """Merge all runs, with these records behind them."""
        runs = [run for level in reversed(self._levels) for run in level]
        while len(runs) > FAN_IN:  # neighbours, the smallest
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
    """A list piece by piece."""
    return (records[start : start + PIECE_RECORDS] for start in range(0, len(records), PIECE_RECORDS))


def by_key(keyfunc: Key | None) -> Key:
    """The function that pairs are ordered by. ``keyfunc``: a function of the key; None for the key itself."""
    return itemgetter(0) if keyfunc is None else _KeyOf(keyfunc)


@dataclass(frozen=True, slots=True)
class _KeyOf:
    keyfunc: Key

    def __call__(self, pair: Any) -> Any:
        return self.keyfunc(pair[0])
