"""What stages need of Spark's planner, whatever kind of session it is: the `Planner` protocol.

    planner.ClassicPlanner        a JVM in reach: plans become RDDs, once, whose shuffles all frames share
    plain_planner.PlainPlanner    Spark Connect: nothing but the DataFrame API

Each frame's context holds the planner of its session (`spark.session.planner_choice`). What one of them
cannot do it says in its attributes, and whoever needs it asks those, never what kind of session this is.
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
    """The control rows of one exchange. What ``rows`` are, behind Spark's shuffle or before it, only the
    planner knows that made them. ``subpartitions``: of the exchange."""

    rows: DataFrame
    subpartitions: int


class Planner(Protocol):
    """Puts stages into Spark's plans."""

    @property
    def keeps(self) -> bool:
        """Whether the map stage of an exchange runs once, however many frames and actions read it."""

    @property
    def zips(self) -> bool:
        """Whether `zipped` is there: not over Spark Connect."""

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        """The control rows that a map stage gives, of one exchange after the other: those of the first go to
        the first partitions of one shuffle. ``label``: what Spark's UI calls it."""

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        """Control rows in the partitions of their subpartitions; of several exchanges, which have equally
        many, partition s holds those of subpartition s of each.

        ``numbered``: among them, in each partition, is one that has no map output and says no more than the
        partition's number.
        """

    def zipped(self, frames: Sequence[DataFrame]) -> DataFrame:
        """One frame whose partition s holds the rows of partition s of each of these, in their order. They
        are of one schema and have equally many partitions; nothing is shuffled."""

    def share(self, frame: DataFrame) -> DataFrame:
        """The same rows and partitions, planned once where the planner keeps plans."""

    def partitions(self, frame: DataFrame) -> int | None:
        """How many partitions a frame has; None if that is not known before it runs."""

    def is_reproducible(self, frame: DataFrame) -> bool:
        """Whether a task of this plan that runs again is known to give the same rows in the same order."""

    def is_indeterminate(self, frame: DataFrame) -> bool:
        """Whether such a task may give other rows, as far as is known: Spark then runs all tasks again."""

    def parallelism(self) -> int:
        """How many tasks Spark makes of what does not say how many."""


def number_rows(like: DataFrame, subpartitions: int, tasks: int | None = None) -> DataFrame:
    """For each subpartition a control row without a map output. ``like``: a frame of control rows; ``tasks``:
    None for one for each subpartition, in its partition."""
    named = {MARK: sf.col("id"), "subpartition": sf.col("id")}
    columns = [
        named.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name) for field in like.schema
    ]
    numbers = like.sparkSession.range(0, subpartitions, 1, tasks or subpartitions)
    return numbers.select(*columns)
