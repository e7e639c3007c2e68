"""Measures the subpartitions of exchanges: a small job adds up the bytes in the control rows.

The job runs the map stages that have not run yet. Control rows are shared, so no stage runs again.
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
from sortshuffle.spark.steps.subpartition_sizes import SIZES, sum_sizes


@dataclass(frozen=True, slots=True)
class Sizes:
    """Raw bytes of an exchange by subpartition, and also by map index for subpartitions above a threshold."""

    totals: tuple[int, ...]
    by_map: Mapping[int, Mapping[int, int]]

    @property
    def median(self) -> int:
        return max(1, int(statistics.median(self.totals)))

    def large(self, options: Options) -> list[int]:
        """Return the subpartitions that are large enough to be sliced. ``options``: of the reader. Whoever
        measured them by map index may have had a higher threshold."""
        least = max(self.median * options.skew_factor, options.skew_threshold)
        return [number for number, size in enumerate(self.totals) if size > least and number in self.by_map]


def measure_sizes(
    control: DataFrame, subpartitions: Mapping[int, int], service: HostService
) -> dict[int, Sizes]:
    """Add up the control rows of some exchanges, in one job. ``subpartitions``: how many each has, by number.
    ``service``: that of each task's host."""

    def run(batches: Any) -> Any:
        return sum_sizes(batches, service)

    context = control.sparkSession.sparkContext
    most = max(subpartitions.values())
    few = max(1, min(most, context.defaultParallelism))  # a partition's rows stay together
    numbers = ", ".join(map(str, subpartitions))
    with call_site(context, f"sortshuffle sizes of exchange {numbers}"):
        rows = control.coalesce(few).mapInArrow(run, SIZES).collect()
    totals = {exchange: [0] * count for exchange, count in subpartitions.items()}
    by_map: dict[int, dict[int, dict[int, int]]] = {exchange: {} for exchange in subpartitions}
    for exchange, subpartition, map_index, size in rows:
        totals[exchange][subpartition] += size
        if map_index is not None:
            by_map[exchange].setdefault(subpartition, {})[map_index] = size
    return {exchange: Sizes(tuple(totals[exchange]), by_map[exchange]) for exchange in subpartitions}
