"""Task reports: how the driver learns what its tasks did.

Each task adds one report to a Spark accumulator under the number of its stage and its partition; a later
attempt of the same task replaces the earlier one's, so that retries are not counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from sortshuffle.metrics import TaskMetrics

Key = tuple[int, int]
"""(stage number of the frame, partition)."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one task did. ``wall``: seconds from its first batch to its last. ``directory``: where its map
    output is, empty for a task that wrote none."""

    metrics: TaskMetrics
    wall: float
    directory: str = ""


Reports = dict[Key, TaskReport]


class _Merge(AccumulatorParam[Reports]):  # type: ignore[misc]  # mypy does not look into pyspark
    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        value1.update(value2)
        return value1


def report_accumulator(context: SparkContext) -> Accumulator[Reports]:
    """An accumulator for the reports of one frame's tasks."""
    return context.accumulator({}, _Merge())


@dataclass(slots=True)
class StageTotals:
    """The tasks of one stage, summed."""

    stage: int
    tasks: int = 0
    wall: float = 0.0
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    directories: set[str] = field(default_factory=set)

    def add(self, report: TaskReport) -> None:
        self.tasks += 1
        self.wall += report.wall
        self.metrics.merge(report.metrics)
        if report.directory:
            self.directories.add(report.directory)


def stage_totals(reports: Iterable[tuple[Key, TaskReport]]) -> list[StageTotals]:
    """One total per stage, in stage order."""
    totals: dict[int, StageTotals] = {}
    for (stage, _), report in reports:
        totals.setdefault(stage, StageTotals(stage)).add(report)
    return [totals[stage] for stage in sorted(totals)]
