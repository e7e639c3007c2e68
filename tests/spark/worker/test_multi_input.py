"""Several inputs in one stage: unions of unions, joins and what is coalesced; and what becomes of the inputs
of a `Combine`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lifetimes import watched_numbers
from oracle import confs, partition_count
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import MIB, Options
from sortshuffle.spark.control_rows import SCHEMA as CONTROL
from sortshuffle.spark.steps.broadcast_join import _control_and_own_rows
from sortshuffle.spark.worker.multi_input import ChainInput, Leg, ReadTogether, ReadUnion
from sortshuffle.spark.worker.stages import ReadExchange, SparkRows
from sortshuffle.spark.worker.task import Task

ROWS = 400


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """400 rows in 4 partitions."""
    return spark.range(0, ROWS, 1, 4).selectExpr("id", "id % 7 as k")


def ids(frame: ShuffleFrame) -> list[int]:
    return [row.id for row in frame.collect()]


# --- together -------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """Rows that know whether they were closed."""

    rows: Iterator[pa.RecordBatch]
    closed: bool = False

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self.rows)

    def close(self) -> None:
        self.closed = True


@dataclass
class Watching:
    """A step that gives `Watched` rows."""

    given: list[Watched] = field(default_factory=list)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Watched:
        self.given.append(Watched(batches))
        return self.given[-1]

    def describe(self) -> str:
        return "watching"


@dataclass
class Unread:
    """Reads none of its legs."""

    fails: bool = False

    def run(self, legs: Sequence[Leg], task: Task, memory: MemoryBudget) -> Iterator[pa.RecordBatch]:
        if self.fails:
            raise LookupError("no rows")
        return iter([pa.record_batch({"legs": [leg.raw_bytes for leg in legs]})] * 2)

    def describe(self) -> str:
        return "unread"


@pytest.mark.parametrize("fails", [False, True])
def test_inputs_that_nobody_reads_are_closed(fails: bool) -> None:
    step, budget = Watching(), MemoryBudget(8 * MIB)
    read = ReadExchange(pa.schema([("id", pa.int64())]), None, "lz4")
    opening = ReadTogether((ChainInput(1, read, (step,)), ChainInput(2, read, (step, step))), Unread(fails))
    task = Task(Options(), "app", 5, 0, 0, budget, budget.share(MIB, "read"), budget, opening.holders)
    nothing = pa.RecordBatch.from_pylist([], CONTROL)
    rows = opening.open(iter([nothing]), task)
    if fails:
        with pytest.raises(LookupError, match="no rows"):
            next(rows)
    else:
        assert next(rows).to_pydict() == {"legs": [0, 0]}
        assert not any(each.closed for each in step.given)
        rows.close()  # type: ignore[attr-defined]  # it is a generator
    assert [each.closed for each in step.given] == [True] * 3
    assert budget.used == 0


@pytest.mark.parametrize("kind", ["union", "broadcast join"])
def test_the_first_rows_do_not_live_until_the_last(kind: str) -> None:
    numbers, alive = watched_numbers(1000)
    wrapped = [pa.StructArray.from_arrays([numbers], ["id"]), *[pa.array([{"id": 1}, {"id": 2}])] * 2]
    del numbers
    rows: Iterator[pa.RecordBatch]
    if kind == "union":
        received = (pa.record_batch([[0] * len(wrapped[0]), wrapped.pop(0)], ["id", "own"]) for _ in range(3))
        budget = MemoryBudget(8 * MIB)
        task = Task(Options(), "app", 5, 0, 0, budget, budget, budget)
        union = ReadUnion(((SparkRows(pa.schema([("id", pa.int64())])), ()),), (1,))
        rows, expected = union.open(received, task), [999, 2]  # the first row only has the partition's number
    else:
        none = pa.nulls(1000, pa.struct(CONTROL))
        own = (wrapped.pop(0) for _ in range(3))
        received = (pa.record_batch([none[: len(each)], each], ["control", "rows"]) for each in own)
        (_, rows), expected = _control_and_own_rows(received), [1000, 2]
    assert [next(rows).num_rows for _ in range(2)] == expected
    assert alive() is None


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_inputs_may_be_written_with_different_codecs(spark: SparkSession, codec: str) -> None:
    """A frame's settings are those of the time when it was made."""
    rows = spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k")
    one = sortshuffle.frame(rows).repartition(3, "id")
    with confs(spark, {"spark.sortshuffle.codec": codec}):
        other = sortshuffle.frame(rows).repartition(3, "id").select("id", sf.col("k").alias("j"))
    for frame in (one.join(other, "id"), other.join(one, "id"), one.join(sortshuffle.broadcast(other), "id")):
        assert frame.filter("k = j and j = id % 7").count() == 20_000
    assert Counter(ids(one.union(other).coalesce(2))) == dict.fromkeys(range(20_000), 2)


# --- one by one -----------------------------------------------------------------------------------------


def test_unions_of_one_frame_of_joins_and_of_what_is_coalesced(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    """Each input brings rows of its own: 1 for each id of a join, 10 of an exchange, and so on."""
    pq.write_table(numbers.toArrow(), tmp_path / "numbers.parquet")
    frame = sortshuffle.frame(numbers)
    moved = frame.repartition(3, "k")
    few = frame.filter(pc.field("id") < 7).repartition(3, "k").select("k", sf.col("id").alias("j"))
    joined = moved.join(few, "k").select("id", "k")
    nothing = sortshuffle.read(spark).parquet(str(tmp_path)).filter(pc.field("id") > ROWS)
    kept = moved.filter(pc.field("id") < 10).persist()
    inner = joined.union(joined.coalesce(2)).union(moved).coalesce(4)
    united = inner.union(nothing).union(moved.union(moved)).union(kept).union(kept.filter(pc.field("id") < 5))

    assert partition_count(united) == 4 + 1 + 3 + 3 + 3 + 3
    counts = Counter(ids(united.repartition(2, "id").coalesce(1)))
    assert counts == {id: 5 + (id < 10) + (id < 5) for id in range(ROWS)}
    kept.unpersist()


def test_what_has_no_rows_or_no_partitions_may_be_united_coalesced_and_joined(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    pq.write_table(numbers.toArrow(), tmp_path / "numbers.parquet")
    scan = sortshuffle.read(spark).parquet(str(tmp_path)).filter(pc.field("id") > ROWS)
    none = sortshuffle.frame(numbers.where("false"))
    assert partition_count(none) == 0
    frame = sortshuffle.frame(numbers)
    some = sortshuffle.broadcast(frame.select("id"))
    assert none.union(none).collect() == scan.union(scan).coalesce(1).collect() == []
    assert none.join(some, "id").union(scan.join(some, "id")).collect() == []
    assert ids(none.union(frame).union(scan)) == list(range(ROWS))


def test_a_union_keeps_the_partitions_that_its_inputs_had_when_it_was_first_read(
    spark: SparkSession, numbers: DataFrame
) -> None:
    groups = numbers.groupBy("k").agg(sf.count("*").alias("rows"))
    united = sortshuffle.frame(groups).union(sortshuffle.frame(numbers))
    few = sortshuffle.broadcast(sortshuffle.frame(numbers.select("k").distinct()))
    joined = united.union(united).join(few, "k")
    expected = Counter(map(tuple, groups.union(numbers).collect()))
    for partitions in (8, 4, 12):
        with confs(spark, {"spark.sql.shuffle.partitions": str(partitions)}):
            assert Counter(map(tuple, united.collect())) == expected
            assert joined.count() == 2 * sum(n for (k, _), n in expected.items() if k < 7)
    groups.persist().count()
    try:
        assert Counter(map(tuple, united.collect())) == expected
    finally:
        groups.unpersist()


def test_a_sample_of_sparks_rows_is_the_same_in_fewer_partitions(
    spark: SparkSession, numbers: DataFrame
) -> None:
    frame = sortshuffle.frame(numbers)
    keys = sortshuffle.broadcast(frame.select("k").distinct())
    one, two = frame.sample(0.5, 3), frame.union(frame).sample(0.5, 3)
    for sampled in (one, two, one.join(keys, "k")):
        found = sorted(ids(sampled))
        assert partition_count(sampled.coalesce(2)) == 2
        assert sorted(ids(sampled.coalesce(2))) == sorted(ids(sampled.coalesce(1))) == found
    assert ids(sortshuffle.frame(numbers.where("false")).sample(0.5, 3).coalesce(1)) == []


def test_a_sample_is_the_same_however_its_partitions_are_read(numbers: DataFrame) -> None:
    sampled = sortshuffle.frame(numbers).repartition(3, "k").sample(0.5, 3)
    found = ids(sampled)
    assert 150 < len(found) < 250  # 200 expected, standard deviation 10
    assert ids(sampled.coalesce(1).union(sampled)) == [*found, *found]


def test_partitions_that_spark_joins_are_all_reported(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers).repartition(3, "k")
    assert frame.toDF().coalesce(1).count() == ROWS
    written, read = frame.stage_totals()
    assert (written.metrics.counts["rows_in"], read.metrics.counts["rows_in"]) == (ROWS, ROWS)
    assert (written.tasks, read.tasks) == (4, 1)
