"""How large the subpartitions of an exchange are: a small job sums the bytes of each from the control rows.

The map stage runs for it, if it has not run yet; the control rows are shared, so it does not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from sortshuffle.options import Options
from sortshuffle.spark.control import channels
from sortshuffle.spark.session.naming import call_site
from sortshuffle.spark.session.service import HostService
from sortshuffle.spark.worker.reach import ClusterReach
from sortshuffle.spark.worker.task import tell_of_loss

_SIZES = pa.schema([("subpartition", pa.int32()), ("map_index", pa.int32()), ("bytes", pa.int64())])


@dataclass(frozen=True, slots=True)
class Sizes:
    """Raw bytes of an exchange, by subpartition; and by map index of those above a threshold."""

    totals: tuple[int, ...]
    by_map: Mapping[int, Mapping[int, int]]

    @property
    def median(self) -> int:
        return max(1, int(statistics.median(self.totals)))

    def large(self, options: Options) -> list[int]:
        """The subpartitions that are to be sliced, if they can be."""
        least = max(self.median * options.skew_factor, options.skew_threshold)
        return [number for number, size in enumerate(self.totals) if size > least]


def measured(exchange: int, control: DataFrame, subpartitions: int, service: HostService) -> Sizes:
    """Run a job that sums up control rows. ``exchange``: its number; ``service``: of each task's host."""

    def run(batches: Any) -> Any:
        return _summed(batches, service)

    context = control.sparkSession.sparkContext
    few = max(1, min(subpartitions, context.defaultParallelism))  # the rows of a partition stay together
    with call_site(context, f"sortshuffle sizes of exchange {exchange}"):
        rows = control.coalesce(few).mapInArrow(run, "subpartition int, map_index int, bytes long").collect()
    totals = [0] * subpartitions
    by_map: dict[int, dict[int, int]] = {}
    for subpartition, map_index, size in rows:
        totals[subpartition] += size
        if map_index is not None:
            by_map.setdefault(subpartition, {})[map_index] = size
    return Sizes(tuple(totals), by_map)


def _summed(batches: Iterator[pa.RecordBatch], service: HostService) -> Iterator[pa.RecordBatch]:
    """The bytes of some subpartitions, of which all control rows are here: of those above the threshold a row
    for each map output, of others one, without map index."""
    sizes: dict[int, dict[int, int]] = {}
    reach = ClusterReach(service)
    try:
        with closing(reach):
            # a Python loop: over control rows, not over rows
            for batch in batches:
                numbers = batch.column("subpartition").to_pylist()
                for number, channel in zip(numbers, channels(iter([batch]), reach), strict=True):
                    size = sum(extent.raw_bytes for extent in channel.extents)
                    sizes.setdefault(number, {})[channel.map_index] = size
    except Exception as error:  # of an index file that is not inline in its control row
        tell_of_loss(error, reach, service.settings.served_by_spark)
        raise
    threshold = service.options.skew_threshold
    found: list[tuple[int, int | None, int]] = []
    for number, by_map in sizes.items():
        total = sum(by_map.values())
        found += (
            [(number, *each) for each in by_map.items()] if total > threshold else [(number, None, total)]
        )
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    yield pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, _SIZES, strict=True)], schema=_SIZES
    )
