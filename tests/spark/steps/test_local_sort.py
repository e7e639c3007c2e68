"""`LocalSort`: a task's rows come in order, within the memory that the step is given, and nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sortshuffle.format.header import FileHeader
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import KIB, MIB, Options
from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.spark.steps.local_sort import LocalSort
from sortshuffle.spark.worker.stages import TaskStep, apply_step, holders_of
from sortshuffle.spark.worker.task import Task
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

SCHEMA = pa.schema([("key", pa.int64()), ("position", pa.int64())])
ORDER = RowOrder((SortKey(0, descending=True),))
STEP = LocalSort(ORDER, SCHEMA, ORDER.describe(SCHEMA.names))
ROWS = 100_000


@dataclass(slots=True)
class TaskAlone(Task):
    """A task outside of Spark, whose files are in a directory of the test."""

    home_of_files: Path = Path()

    def new_merge_file(self, header: FileHeader) -> PartitionedFileWriter:
        return PartitionedFileWriter(PartitionedFile(str(self.home_of_files / "merge")), header)


def task_with(memory: int, directory: Path) -> TaskAlone:
    """``memory``: bytes that its one step may hold."""
    budget = MemoryBudget(2 * memory)
    shares = budget.share(memory, "read"), budget.share(memory, "write")
    return TaskAlone(Options(), "app", 3, 0, 0, budget, *shares, holders=1, home_of_files=directory)


def rows() -> pa.RecordBatch:
    keys = np.random.default_rng(11).integers(0, 50, ROWS)
    return pa.record_batch([pa.array(keys), pa.array(np.arange(ROWS))], schema=SCHEMA)


def batches() -> Iterator[pa.RecordBatch]:
    whole = rows()
    return iter([whole.slice(first, 1000) for first in range(0, ROWS, 1000)])


@pytest.mark.parametrize(("memory", "spills"), [(32 * MIB, False), (512 * KIB, True)])
def test_rows_come_in_order_with_ties_as_they_came(memory: int, spills: bool, tmp_path: Path) -> None:
    task = task_with(memory, tmp_path)
    found = pa.Table.from_batches(apply_step(STEP, batches(), task), SCHEMA)

    whole = rows()
    expected = whole.take(pa.array(np.argsort(-np.asarray(whole["key"]), kind="stable")))
    assert found.equals(pa.Table.from_batches([expected]))
    assert bool(task.metrics.counts["bytes_spilled"]) == spills
    assert 0 < task.memory.peak <= memory
    assert task.memory.used == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", [32 * MIB, 512 * KIB])
def test_whoever_stops_early_leaves_nothing(memory: int, tmp_path: Path) -> None:
    task = task_with(memory, tmp_path)
    found = apply_step(STEP, batches(), task)
    assert len(list(itertools.islice(found, 1))) == 1
    found.close()  # type: ignore[attr-defined]  # it is a generator

    assert task.memory.used == 0
    assert list(tmp_path.iterdir()) == []


def test_it_holds_rows_and_says_by_what_it_sorts() -> None:
    assert isinstance(STEP, TaskStep)
    assert holders_of([STEP]) == 1
    assert STEP.describe() == f"sort({ORDER.describe(SCHEMA.names)[0]})"


def test_no_rows_are_in_order(tmp_path: Path) -> None:
    assert list(apply_step(STEP, iter(()), task_with(MIB, tmp_path))) == []
