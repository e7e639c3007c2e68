"""What a stage does to the worker process that runs it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import sortshuffle


def test_workers_keep_their_imports_out_of_every_garbage_collection(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"objects": gc.get_freeze_count()}])

    rows = sortshuffle.frame(spark.range(0, 2, 1, 2)).mapInArrow(frozen, "objects long").collect()

    assert len(rows) == 2
    assert min(row.objects for row in rows) > 10_000
