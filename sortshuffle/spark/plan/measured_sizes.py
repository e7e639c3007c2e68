"""Measures the subpartitions of an exchange: a small job adds up the bytes in the control rows.

The job runs the map stage if it has not run yet. Control rows are shared, so the stage does not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sortshuffle.options import Options
from sortshuffle.spark.session.naming import call_site
from sortshuffle.spark.session.service import HostService
from sortshuffle.spark.steps.subpartition_sizes import sum_sizes


@dataclass(frozen=True, slots=True)
class Sizes:
    """Raw bytes of an exchange by subpartition, and also by map index for subpartitions above a threshold."""

    totals: tuple[int, ...]
    by_map: Mapping[int, Mapping[int, int]]

    @property
    def median(self) -> int:
        return max(1, int(statistics.median(self.totals)))

    def large(self, options: Options) -> list[int]:
        """Return the subpartitions that are large enough to be sliced."""
        least = max(self.median * options.skew_factor, options.skew_threshold)
        return [number for number, size in enumerate(self.totals) if size > least]


def measure_sizes(exchange: int, control: DataFrame, subpartitions: int, service: HostService) -> Sizes:
    """Add up control rows in a job. ``exchange``: its number. ``service``: that of each task's host."""

    def run(batches: Any) -> Any:
        return sum_sizes(batches, service)

    context = control.sparkSession.sparkContext
    few = max(1, min(subpartitions, context.defaultParallelism))  # a partition's rows stay together
    with call_site(context, f"sortshuffle sizes of exchange {exchange}"):
        rows = control.coalesce(few).mapInArrow(run, "subpartition int, map_index int, bytes long").collect()
    totals = [0] * subpartitions
    by_map: dict[int, dict[int, int]] = {}
    for subpartition, map_index, size in rows:
        totals[subpartition] += size
        if map_index is not None:
            by_map.setdefault(subpartition, {})[map_index] = size
    return Sizes(tuple(totals), by_map)
