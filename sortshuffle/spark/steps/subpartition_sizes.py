"""Sizes of an exchange's subpartitions, summed up by tasks from control rows for `plan.measured_sizes`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from sortshuffle.spark.control_rows import channels
from sortshuffle.spark.session.service import HostService
from sortshuffle.spark.worker.reach import ClusterReach
from sortshuffle.spark.worker.task import report_loss_to_spark

SIZES = "exchange int, subpartition int, map_index int, bytes long"
_WIRE = pa.schema(
    [
        ("exchange", pa.int32()),
        ("subpartition", pa.int32()),
        ("map_index", pa.int32()),
        ("bytes", pa.int64()),
    ]
)


def sum_sizes(batches: Iterator[pa.RecordBatch], service: HostService) -> Iterator[pa.RecordBatch]:
    """Sum the raw bytes of subpartitions. ``batches``: all control rows of each. Yield a row of `SIZES` per
    map output of a subpartition above ``skew_threshold``, and one with a null map index of any other."""
    sizes: dict[tuple[int, int], dict[int, int]] = {}
    reach = ClusterReach(service)
    try:
        with closing(reach):
            # a Python loop is fast enough: it runs per control row, not per row of data
            for batch in batches:
                keys = zip(
                    *(batch.column(name).to_pylist() for name in ("exchange", "subpartition")), strict=True
                )
                for key, channel in zip(keys, channels(iter([batch]), reach), strict=True):
                    size = sum(extent.raw_bytes for extent in channel.extents)
                    sizes.setdefault(key, {})[channel.map_index] = size
    except Exception as error:  # an index file that is not inline in its control row may be lost
        report_loss_to_spark(error, reach, service.settings.served_by_spark, service.options.directories)
        raise
    threshold = service.options.skew_threshold
    rows: list[tuple[int, int, int | None, int]] = []
    for key, by_map in sizes.items():
        total = sum(by_map.values())
        rows += [(*key, *each) for each in by_map.items()] if total > threshold else [(*key, None, total)]
    columns = list(zip(*rows, strict=True)) or [()] * len(_WIRE)
    yield pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, _WIRE, strict=True)], schema=_WIRE
    )
