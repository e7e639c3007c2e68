"""The number of a partition, which its rows carry to the steps that need it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from lifetimes import watched_numbers

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import MIB, Options
from sortshuffle.spark.steps.row_steps import Limit, Sample
from sortshuffle.spark.worker.multi_input import ChainInput, ReadTogether, ReadUnion
from sortshuffle.spark.worker.numbered import NUMBER, ReadNumbered
from sortshuffle.spark.worker.slices import ReadSlices, Slice
from sortshuffle.spark.worker.stages import ReadExchange, SparkRows, need_number
from sortshuffle.spark.worker.task import Task

SCHEMA = pa.schema([("id", pa.int64())])
SAMPLE = Sample(with_replacement=False, fraction=0.5, seed=7)
TASK = 9


def task() -> Task:
    budget = MemoryBudget(8 * MIB)
    return Task(Options(), "app", 5, TASK, 0, budget, budget, budget)


def received(number: int, counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows of the partition with this number."""
    for count in counts:
        yield pa.record_batch({"id": pa.array(range(count), pa.int64()), NUMBER: [number] * count})


def test_a_task_is_told_the_number_before_the_first_row_is_read() -> None:
    told = task()
    rows = ReadNumbered(SparkRows(SCHEMA)).open(received(3, [0, 2, 4]), told)
    assert (told.row_partition, told.partition) == (3, TASK)
    assert told.metrics.seconds == {}  # a stage counts its input's time after it has opened it
    batches = list(rows)
    assert {batch.schema for batch in batches} == {SCHEMA}
    assert sum(batch.num_rows for batch in batches) == 6


def test_the_first_rows_do_not_live_until_the_last() -> None:
    first, alive = watched_numbers(1000)
    batches = [pa.record_batch({"id": first, NUMBER: [3] * 1000}), *received(3, [2, 2])]
    del first
    rows = ReadNumbered(SparkRows(SCHEMA)).open((batches.pop(0) for _ in range(3)), task())
    assert next(rows).num_rows == 1000
    assert next(rows).num_rows == 2
    assert alive() is None


def test_a_task_without_rows_has_its_own_number() -> None:
    told = task()
    assert sum(batch.num_rows for batch in ReadNumbered(SparkRows(SCHEMA)).open(received(3, [0]), told)) == 0
    assert told.row_partition == TASK


def test_a_task_that_does_the_work_of_another_has_the_number_of_that() -> None:
    told = task()
    told.rows_from = 3
    other = told.of_partition(1)
    assert (other.partition, other.row_partition) == (1, 1)
    assert (told.partition, told.row_partition) == (TASK, 3)


def test_a_sample_is_drawn_by_the_number_of_the_partition() -> None:
    def drawn(number: int | None, partition: int) -> list[int]:
        given = task().of_partition(partition)
        given.rows_from = number
        rows = pa.record_batch({"id": pa.array(range(1000), pa.int64())})
        return [id for each in SAMPLE.run(iter([rows]), given, given.memory) for id in each["id"].to_pylist()]

    assert drawn(3, 9) == drawn(3, 4) == drawn(None, 3) != drawn(None, 4)


def test_only_openings_with_a_sample_need_the_number() -> None:
    read = ReadExchange(SCHEMA, None, "lz4")

    def joined(*steps: Limit | Sample) -> ReadTogether:
        return ReadTogether((ChainInput(1, read, ()), ChainInput(2, read, steps)), combine=None)  # type: ignore[arg-type]

    assert need_number((Limit(3), SAMPLE))
    assert not need_number((Limit(3),))
    assert joined(SAMPLE).needs_number
    assert ReadSlices(joined(SAMPLE), (Slice(0),)).needs_number
    assert not joined(Limit(3)).needs_number
    assert not read.needs_number
    # its rows have numbers in any case
    assert not ReadUnion(((joined(SAMPLE), (SAMPLE,)),), (4,)).needs_number
