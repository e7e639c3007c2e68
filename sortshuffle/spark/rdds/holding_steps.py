"""The steps that hold records: they aggregate, group or sort the records of an exchange.

They give `merging` and `sorting` the files and the memory of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from pyspark.resultiterable import ResultIterable

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.pickled import Chunk, Pairs, PickledPayload
from sortshuffle.spark.rdds.aggregations import Group, GroupTable, PairAggregation, Table
from sortshuffle.spark.rdds.grouping import LongGroup
from sortshuffle.spark.rdds.merging import Merging
from sortshuffle.spark.rdds.sorting import PIECE_RECORDS, Key, Sorting, by_key
from sortshuffle.spark.rdds.spilling import batches
from sortshuffle.spark.rdds.steps import HoldingStep
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class MergeValues(HoldingStep):
    """Yields one record for each key, with its aggregated value."""

    aggregation: PairAggregation

    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(self.aggregation.table, task, memory).tables([chunks])) as merges:
            for (table,) in merges:
                for keys, results in table.batches():
                    yield Pairs(keys, results)

    def describe(self) -> str:
        return f"merge: {self.aggregation.describe()}"


@dataclass(frozen=True)
class GroupValues(HoldingStep):
    """Yields a pair of each key and an iterable of its values, as PySpark does."""

    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(GroupTable, task, memory).tables([chunks])) as merges:
            for (table,) in merges:
                for keys, groups in table.batches():
                    yield Pairs(keys, list(map(ResultIterable, groups)))

    def describe(self) -> str:
        return f"merge: {Group().describe()}"


@dataclass(frozen=True)
class SortPairs(HoldingStep):
    """Sorts pairs by ``keyfunc(key)``, or by key if ``keyfunc`` is None."""

    keyfunc: Key | None
    ascending: bool

    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        payload = cast(PickledPayload, PickledPayload.of(task.options))
        sorting = Sorting(
            by_key(self.keyfunc), not self.ascending, task.new_merge_file, payload, memory, task.metrics
        )
        yield from sorting.sort(chunks)

    def describe(self) -> str:
        return f"sort: {'ascending' if self.ascending else 'descending'} keys"


@dataclass(frozen=True)
class CoGroup:
    """Yields one record for each key, with the key's group from each input."""

    def run(self, inputs: Sequence[Iterable[Chunk]], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(GroupTable, task, memory).tables(inputs)) as merges:
            for tables in merges:
                yield from map(self.chunk, cogroups(cast("list[GroupTable]", tables)))

    def chunk(self, groups: list[tuple[Any, list[Any]]]) -> Chunk:
        """Make the records of some keys. Each key comes with its groups, one for each input."""
        return [(key, tuple(map(ResultIterable, of))) for key, of in groups]

    def describe(self) -> str:
        return "cogroup"


@dataclass(frozen=True)
class Join(CoGroup):
    """Pairs each value of a key on one side with each value on the other. ``keeps``: for each side, whether
    values without a match stay, paired with None."""

    keeps: tuple[bool, bool]

    def run(self, inputs: Sequence[Iterable[Chunk]], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(GroupTable, task, memory).tables(inputs)) as merges:
            for tables in merges:
                for groups in cogroups(cast("list[GroupTable]", tables)):
                    yield from self._pairs(groups)

    def _pairs(self, groups: list[tuple[Any, list[Any]]]) -> Iterator[list[Any]]:
        keeps_left, keeps_right = self.keeps
        nothing = (None,)
        records: list[Any] = []
        for key, (left, right) in groups:
            if not right and keeps_left:
                right = nothing
            elif not left and keeps_right:
                left = nothing
            if not left or not right:
                continue  # so that a group on disk is not read for nothing
            if len(left) * len(right) <= PIECE_RECORDS and not isinstance(right, LongGroup):
                records += [(key, (value, other)) for value in left for other in right]
            else:
                yield from batches(_matches(key, left, right), PIECE_RECORDS)
            if len(records) >= PIECE_RECORDS:
                yield records
                records = []
        yield records

    def describe(self) -> str:
        return {
            (False, False): "join",
            (True, False): "leftOuterJoin",
            (False, True): "rightOuterJoin",
            (True, True): "fullOuterJoin",
        }[self.keeps]


def _matches(key: Any, left: Collection[Any], right: Collection[Any]) -> Iterator[Any]:
    """Pair each value of ``left`` with each of ``right``. The inner group is read again for each value of the
    outer one, so a group on disk is the outer one if the other is in memory."""
    if isinstance(right, LongGroup) and not isinstance(left, LongGroup):
        return ((key, (value, other)) for other in right for value in left)
    return ((key, (value, other)) for value in left for other in right)


def cogroups(tables: list[GroupTable]) -> Iterator[list[tuple[Any, list[Any]]]]:
    """Yield the keys of all tables, in batches. Each key has a group for each table, which may be empty."""
    for at, first in enumerate(tables):
        others = [table.groups for table in tables[at + 1 :]]
        before: list[Any] = [[]] * at
        for keys, groups in first.batches():
            # keys are removed from later tables, so that each key is yielded once
            yield [
                (key, [*before, group, *(other.pop(key, ()) for other in others)])
                for key, group in zip(keys, groups, strict=True)
            ]


def merging(table: Callable[[], Table], task: Task, memory: MemoryBudget) -> Merging:
    payload = cast(PickledPayload, PickledPayload.of(task.options))
    return Merging(table, task.new_merge_file, payload, memory, task.metrics)
