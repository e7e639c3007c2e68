"""What a stage does to the worker process that runs it."""

from __future__ import annotations

import gc
import sys
import types
import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import sortshuffle

SCHEMA = pa.schema([("walked", pa.bool_())])


def test_workers_keep_their_imports_out_of_every_garbage_collection(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"objects": gc.get_freeze_count()}])

    rows = sortshuffle.frame(spark.range(0, 2, 1, 2)).mapInArrow(frozen, "objects long").collect()

    assert len(rows) == 2
    assert min(row.objects for row in rows) > 10_000


def test_modules_that_a_task_imports_are_frozen_before_the_next_task(spark: SparkSession) -> None:
    """Pandas is one of them: its objects made every later task of the worker 12 ms longer."""
    name = f"imported_by_a_task_{uuid.uuid4().hex}"

    def state(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        module, walked = sys.modules.get(name), None
        if module is None:
            module = sys.modules[name] = types.ModuleType(name)
            module.objects = [[]]  # type: ignore[attr-defined]
        else:
            walked = any(each is module.objects for each in gc.get_objects())  # of those that are not frozen
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"walked": walked}], SCHEMA)

    # more tasks than there are idle workers, so that each of these has several
    frame = sortshuffle.frame(spark.range(0, 32, 1, 32)).mapInArrow(state, "walked boolean")
    states = [row.walked for _ in range(2) for row in frame.collect()]

    assert len(states) == 64
    assert set(states) == {None, False}  # None: the first task of a worker
