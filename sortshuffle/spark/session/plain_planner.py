"""The `Planner` of Spark Connect, where nothing but the DataFrame API is in reach.

* A plan is sent anew with every action: map stages run again for each, and exchanges of the same rows are not
  written in one pass, because nothing could keep what they share.
* Control rows go through one shuffle also where they are of several exchanges: the map stages are united
  before it. So they are shuffled once, and a lost executor costs the map tasks that it ran, as ever.
* Spark must not refuse to go on when a re-run map task returns other control bytes (see
  `spark.session.classic_planner`). That is a setting of the session, which only its user may change: it is
  checked where a shuffle is put into the plan.
* Adaptive execution does no harm: it leaves a shuffle by id with the partitions that were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.control import MARK
from sortshuffle.spark.session.planner import ControlRows, number_rows
from sortshuffle.spark.session.requirements import check_no_rollback

_SPLITS = re.compile(r"splits=(\d+)")


class PlainPlanner:
    """Plans with the DataFrame API alone."""

    keeps = False
    zips = False

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        check_no_rollback(self._spark)
        (count,) = subpartitions  # what does not keep has no map stages of several exchanges
        return [ControlRows(rows, count)]

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        count = control[0].subpartitions
        rows = [each.rows for each in control]
        if numbered:
            rows.append(number_rows(rows[0], count, tasks=1))
        return reduce(DataFrame.unionAll, rows).repartitionById(count, MARK)

    def zipped(self, frames: Sequence[DataFrame]) -> DataFrame:
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
        """As Spark plans a range of numbers: the only place where its default shows."""
        found = _SPLITS.search(self._spark.range(1)._explain_string())
        return int(found[1]) if found else 1
