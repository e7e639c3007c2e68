"""The `Planner` protocol: what stages need from Spark's planner, in every kind of session.

    classic_planner.ClassicPlanner    with a JVM: a plan becomes an RDD once, whose shuffles all frames share
    connect_planner.ConnectPlanner    Spark Connect: only the DataFrame API

Each frame's context holds the planner of its session (`spark.session.planner_choice`). A planner's attributes
say what it can do. Callers check these attributes, never the kind of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sortshuffle.spark.control_rows import MARK
from sortshuffle.spark.session.control_shuffles import ControlShuffle


@dataclass(frozen=True, eq=False, slots=True)
class ControlRows:
    """The control rows of one exchange. ``rows``: before or after Spark's shuffle; only the planner that made
    them knows which. ``subpartitions``: number of subpartitions in the exchange. ``shuffle``: what is removed
    when no exchange has it; None over Spark Connect."""

    rows: DataFrame
    subpartitions: int
    shuffle: ControlShuffle | None = None


class Planner(Protocol):
    """Puts stages into Spark's plans."""

    @property
    def keeps(self) -> bool:
        """Whether an exchange's map stage runs only once, however many frames and actions read it."""

    @property
    def zips(self) -> bool:
        """Whether `zip_partitions` is supported. Over Spark Connect it is not."""

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        """Return a map stage's control rows for each of its exchanges. They go through one shuffle, whose
        partitions belong to the exchanges in order. ``label``: the shuffle's name in Spark's UI."""

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        """Return control rows, in the partitions of their subpartitions: partition s holds the rows of
        subpartition s of each exchange. All exchanges must have equally many. ``numbered``: each partition
        also has a row without a map output, only with the number of the partition."""

    def zip_partitions(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return a frame whose partition s holds the rows of partition s of each of ``frames``, in order. The
        frames must have one schema and equally many partitions. Nothing is shuffled."""

    def share(self, frame: DataFrame) -> DataFrame:
        """Return the same rows and partitions, planned only once if the planner `keeps` plans."""

    def partitions(self, frame: DataFrame) -> int | None:
        """Return the number of partitions of a frame; None if it is unknown before the frame runs."""

    def is_reproducible(self, frame: DataFrame) -> bool:
        """Return whether tasks are known to give the same rows, in the same order, if they run again."""

    def is_indeterminate(self, frame: DataFrame) -> bool:
        """Return whether tasks may give other rows if they run again. Spark then runs all tasks again."""

    def parallelism(self) -> int:
        """Return Spark's default number of tasks."""


def number_rows(like: DataFrame, subpartitions: int, tasks: int | None = None) -> DataFrame:
    """Return a control row without a map output for each subpartition. ``like``: a frame of control rows.
    ``tasks``: number of partitions of the result; None: each row in the partition of its subpartition."""
    named = {MARK: sf.col("id"), "subpartition": sf.col("id")}
    columns = [
        named.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name) for field in like.schema
    ]
    numbers = like.sparkSession.range(0, subpartitions, 1, tasks or subpartitions)
    return numbers.select(*columns)
