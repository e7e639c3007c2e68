"""The steps that hold records: what was shuffled becomes one record for each key, a group, or sorted.

They are where `merging` and `sorting` meet a task, its files and its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from pyspark.resultiterable import ResultIterable

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.pickled import Chunk, Pairs, PickledPayload
from sortshuffle.spark.rdds.aggregations import Group, GroupTable, PairAggregation, Table
from sortshuffle.spark.rdds.merging import Merging
from sortshuffle.spark.rdds.sorting import GIVEN, Key, Sorting, by_key
from sortshuffle.spark.rdds.spilling import batches
from sortshuffle.spark.rdds.steps import HoldingStep
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class MergeValues(HoldingStep):
    """One record for each key: what its values and combiners become."""

    aggregation: PairAggregation

    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(self.aggregation.table, task, memory).merged([chunks])) as merged:
            for (table,) in merged:
                for keys, results in table.batches():
                    yield Pairs(keys, results)

    def describe(self) -> str:
        return f"merge: {self.aggregation.describe()}"


@dataclass(frozen=True)
class GroupValues(HoldingStep):
    """A pair for each key, whose value is an iterable of its values, as in PySpark."""

    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(GroupTable, task, memory).merged([chunks])) as merged:
            for (table,) in merged:
                for keys, groups in table.batches():
                    yield Pairs(keys, list(map(ResultIterable, groups)))

    def describe(self) -> str:
        return f"merge: {Group().describe()}"


@dataclass(frozen=True)
class SortPairs(HoldingStep):
    """Pairs in the order of their keys. ``keyfunc``: of a key; None for the key itself."""

    keyfunc: Key | None
    ascending: bool

    def run(self, chunks: Iterator[Chunk], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        payload = cast(PickledPayload, PickledPayload.of(task.options))
        sorting = Sorting(
            by_key(self.keyfunc), not self.ascending, task.new_merge_file, payload, memory, task.metrics
        )
        yield from sorting.sorted(chunks)

    def describe(self) -> str:
        return f"sort: {'ascending' if self.ascending else 'descending'} keys"


@dataclass(frozen=True)
class CoGroup:
    """What is made of the groups that a key has in each of several inputs."""

    def run(self, inputs: Sequence[Iterable[Chunk]], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(GroupTable, task, memory).merged(inputs)) as merged:
            for tables in merged:
                yield from map(self.chunk, cogroups(cast("list[GroupTable]", tables)))

    def chunk(self, groups: list[tuple[Any, list[Any]]]) -> Chunk:
        """Records of some keys and their groups, one for each input."""
        return [(key, tuple(map(ResultIterable, of))) for key, of in groups]

    def describe(self) -> str:
        return "cogroup"


@dataclass(frozen=True)
class Join(CoGroup):
    """Every value of a key on one side with every one on the other. ``keeps``: for each side whether its
    values stay, beside None, where the other has none."""

    keeps: tuple[bool, bool]

    def run(self, inputs: Sequence[Iterable[Chunk]], task: Task, memory: MemoryBudget) -> Iterator[Chunk]:
        with closing(merging(GroupTable, task, memory).merged(inputs)) as merged:
            for tables in merged:
                for groups in cogroups(cast("list[GroupTable]", tables)):
                    yield from self._joined(groups)

    def _joined(self, groups: list[tuple[Any, list[Any]]]) -> Iterator[list[Any]]:
        keeps_left, keeps_right = self.keeps
        nothing = (None,)
        joined: list[Any] = []
        for key, (left, right) in groups:
            if not right and keeps_left:
                right = nothing
            elif not left and keeps_right:
                left = nothing
            if len(left) * len(right) <= GIVEN:
                joined += [(key, (value, other)) for value in left for other in right]
            else:
                yield from batches(((key, (value, other)) for value in left for other in right), GIVEN)
            if len(joined) >= GIVEN:
                yield joined
                joined = []
        yield joined

    def describe(self) -> str:
        return {
            (False, False): "join",
            (True, False): "leftOuterJoin",
            (False, True): "rightOuterJoin",
            (True, True): "fullOuterJoin",
        }[self.keeps]


def cogroups(tables: list[GroupTable]) -> Iterator[list[tuple[Any, list[Any]]]]:
    """The keys of all tables, some at a time, each with its groups: an empty one where it has none."""
    for at, first in enumerate(tables):
        others = [table.groups for table in tables[at + 1 :]]
        before: list[Any] = [[]] * at
        for keys, groups in first.batches():
            # taken out of the others, whose turn comes later
            yield [
                (key, [*before, group, *(other.pop(key, ()) for other in others)])
                for key, group in zip(keys, groups, strict=True)
            ]


def merging(table: Callable[[], Table], task: Task, memory: MemoryBudget) -> Merging:
    payload = cast(PickledPayload, PickledPayload.of(task.options))
    return Merging(table, task.new_merge_file, payload, memory, task.metrics)
