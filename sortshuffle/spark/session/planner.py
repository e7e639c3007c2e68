"""The `Planner` protocol: what stages need of Spark's planner, in every kind of session.

    classic_planner.ClassicPlanner    with a JVM: a plan becomes an RDD once, whose shuffles all frames share
    connect_planner.ConnectPlanner    Spark Connect: only the DataFrame API

Each frame's context holds the planner of its session (`spark.session.planner_choice`). The attributes of a
planner say what it can do. Callers ask them, never for the kind of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sortshuffle.spark.control import MARK


@dataclass(frozen=True, eq=False, slots=True)
class ControlRows:
    """The control rows of one exchange. ``rows``: before Spark's shuffle or behind it; only the planner that
    made them knows. ``subpartitions``: of the exchange."""

    rows: DataFrame
    subpartitions: int


class Planner(Protocol):
    """Puts stages into Spark's plans."""

    @property
    def keeps(self) -> bool:
        """Whether the map stage of an exchange runs once, however many frames and actions read it."""

    @property
    def zips(self) -> bool:
        """Whether `zip_partitions` is there: not over Spark Connect."""

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        """The control rows of a map stage, for each of its exchanges. They go through one shuffle; the first
        exchange has its first partitions. ``label``: the shuffle's name in Spark's UI."""

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        """Control rows, in the partitions of their subpartitions. Partition s holds those of subpartition s
        of each exchange; all exchanges have equally many.

        ``numbered``: each partition also has a row without a map output, which only has its number.
        """

    def zip_partitions(self, frames: Sequence[DataFrame]) -> DataFrame:
        """One frame whose partition s holds the rows of partition s of each of these, in their order. The
        frames have one schema and equally many partitions. Nothing is shuffled."""

    def share(self, frame: DataFrame) -> DataFrame:
        """The same rows and partitions, planned only once if the planner keeps plans."""

    def partitions(self, frame: DataFrame) -> int | None:
        """The number of partitions of a frame; None if it is unknown before the frame runs."""

    def is_reproducible(self, frame: DataFrame) -> bool:
        """Whether a task of this plan that runs again is known to give the same rows in the same order."""

    def is_indeterminate(self, frame: DataFrame) -> bool:
        """Whether such a task may give other rows. Then Spark runs all tasks again."""

    def parallelism(self) -> int:
        """Spark's default number of tasks."""


def number_rows(like: DataFrame, subpartitions: int, tasks: int | None = None) -> DataFrame:
    """A control row without a map output for each subpartition. ``like``: a frame of control rows. ``tasks``:
    None: each row in the partition of its subpartition."""
    named = {MARK: sf.col("id"), "subpartition": sf.col("id")}
    columns = [
        named.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name) for field in like.schema
    ]
    numbers = like.sparkSession.range(0, subpartitions, 1, tasks or subpartitions)
    return numbers.select(*columns)
