"""`Scan`: the opening of a stage that reads Parquet files.

It stands apart from the other openings because the modules that read Parquet take long to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sortshuffle.spark.parquet.scanning import ParquetScan
from sortshuffle.spark.worker.stages import Batches
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class Scan:
    """Scans row groups in this worker. Each received row is the number of a split to scan."""

    scan: ParquetScan
    holders: ClassVar[int] = 0
    needs_number: ClassVar[bool] = False

    def open(self, received: Batches, task: Task) -> Batches:
        for batch in received:
            for split in batch.column(0).to_pylist():
                with task.metrics.step("open"):
                    rows = self.scan.read(split)
                yield from task.metrics.timed(rows, "scan")
