"""The `Planner` of Spark Connect, where only the DataFrame API is available.

* Every action sends its plan anew. So map stages run again for each action, and exchanges of the same rows
  are not written in one pass: nothing could keep the result that they share.
* Control rows of several exchanges go through one shuffle: the map stages are united before it. A lost
  executor still costs only the map tasks that it ran. The number of a map task then says nothing about its
  rows (`spark.worker.numbered`).
* Spark must not refuse to go on when a re-run map task returns other control bytes
  (`spark.session.classic_planner`). That is a setting of the session, which only its user may change, so it
  is checked when a shuffle is put into the plan.
* Adaptive execution does no harm: it keeps the number of partitions of a shuffle by id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.control_rows import MARK
from sortshuffle.spark.session.planner import ControlRows, number_rows
from sortshuffle.spark.session.requirements import check_no_rollback

_SPLITS = re.compile(r"splits=(\d+)")


class ConnectPlanner:
    """The `Planner` of a Spark Connect session, which uses only the DataFrame API."""

    keeps = False
    zips = False

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        check_no_rollback(self._spark)
        (count,) = subpartitions  # `keeps` is false, so a map stage has one exchange
        return [ControlRows(rows, count)]

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        count = control[0].subpartitions
        rows = [each.rows for each in control]
        if numbered:
            rows.append(number_rows(rows[0], count, tasks=1))
        return reduce(DataFrame.unionAll, rows).repartitionById(count, MARK)

    def zip_partitions(self, frames: Sequence[DataFrame]) -> DataFrame:
        raise UnsupportedError("Spark Connect cannot put the partitions of several DataFrames side by side")

    def share(self, frame: DataFrame) -> DataFrame:
        return frame

    def partitions(self, frame: DataFrame) -> int | None:
        return None

    def is_reproducible(self, frame: DataFrame) -> bool:
        return False

    def is_indeterminate(self, frame: DataFrame) -> bool:
        return True

    def parallelism(self) -> int:
        """Return the number of tasks that Spark plans for a range: the default shows nowhere else."""
        found = _SPLITS.search(self._spark.range(1)._explain_string())
        return int(found[1]) if found else 1
