"""One pass of a stage that feeds several exchanges: what is computed once, what is written for whom, and that
each exchange is what it would be alone.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from job_process import run_job
from oracle import confs, differences, jobs, partition_count, rows_in_order
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.origins import ExchangeOrigin
from sortshuffle.spark.plan.schemes import Hash
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
ROWS, INPUTS = 1000, 4


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id`` and keys ``k`` of 7 values and ``j`` of 3."""
    return spark.range(0, ROWS, 1, INPUTS).selectExpr("id", "id % 7 as k", "id % 3 as j")


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Where the map outputs of frames made in the test are."""
    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path / "shuffle")}):
        yield tmp_path / "shuffle"


@dataclass(frozen=True)
class Calls:
    """Counts the runs of functions, by a file that each of them leaves in a directory."""

    directory: Path

    def counting(self, name: str) -> Callable[[Batches], Batches]:
        directory = str(self.directory)

        def function(batches: Batches) -> Batches:
            context: Any = TaskContext.get()
            with open(f"{directory}/{name}-{context.partitionId()}-{context.taskAttemptId()}", "x"):
                pass
            yield from batches

        return function

    def of(self, name: str) -> dict[int, int]:
        """How often it ran, by partition."""
        return Counter(int(path.name.split("-")[1]) for path in self.directory.glob(f"{name}-*"))


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    (tmp_path / "calls").mkdir()
    return Calls(tmp_path / "calls")


ONCE = dict.fromkeys(range(INPUTS), 1)
TWICE = dict.fromkeys(range(INPUTS), 2)


def parsed(numbers: DataFrame, calls: Calls) -> ShuffleFrame:
    return sortshuffle.frame(numbers).mapInArrow(calls.counting("parse"), numbers.schema)


def exchange_of(frame: ShuffleFrame) -> Exchange:
    origin = frame._chain.origin
    assert isinstance(origin, ExchangeOrigin)
    return origin.exchange


def written(directory: Path) -> dict[int, list[PartitionedFile]]:
    """The map outputs below a directory, by exchange."""
    found: dict[int, list[PartitionedFile]] = {}
    for path in sorted(directory.rglob("exchange-*.data")):
        file = PartitionedFile.of(str(path))
        assert file is not None
        found.setdefault(int(path.name.split("-")[1]), []).append(file)
    return found


def rows_in(file: PartitionedFile) -> int:
    return int(read_index(file).once()["records"].sum())


def whole(table: pa.Table) -> pa.Table:
    return table


# --- computed once --------------------------------------------------------------------------------------


def test_a_frame_that_two_exchanges_read_is_computed_once(
    spark: SparkSession, numbers: DataFrame, calls: Calls, directory: Path, tmp_path: Path
) -> None:
    pq.write_table(numbers.toArrow(), tmp_path / "f.parquet", row_group_size=ROWS // INPUTS)
    with confs(spark, {"spark.sql.files.maxPartitionBytes": "4096"}):
        source = sortshuffle.read(spark).parquet(str(tmp_path / "f.parquet"))
        inputs = partition_count(source)
    assert inputs > 1
    f = source.mapInArrow(calls.counting("parse"), source.schema)
    a = f.repartition(8, "k")
    b = f.repartition(4, "j")
    with jobs(spark) as run:
        joined = a.toDF().alias("a").join(b.toDF().alias("b"), sf.col("a.id") == sf.col("b.id"))
        rows = joined.selectExpr("a.id", "b.j").collect()

    assert sorted((row.id, row.j) for row in rows) == [(at, at % 3) for at in range(ROWS)]
    assert calls.of("parse") == dict.fromkeys(range(inputs), 1)
    assert len(run.ids) >= 1
    # and not again for what else is made of them
    assert (a.count(), b.count()) == (ROWS, ROWS)
    assert differences(a, numbers.repartition(8, "k")) == []
    assert differences(b, numbers.repartition(4, "j")) == []
    assert calls.of("parse") == dict.fromkeys(range(inputs), 1)


def test_each_exchange_has_its_own_files_of_the_same_attempt(
    numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    f = parsed(numbers, calls)
    a, b = f.repartition(8, "k"), f.repartition(4, "j")
    a.count()

    outputs = written(directory)
    assert list(outputs) == [exchange_of(a).number, exchange_of(b).number]
    assert {file.attempt for file in outputs[exchange_of(a).number]} == {
        file.attempt for file in outputs[exchange_of(b).number]
    }
    for frame, subpartitions in ((a, 8), (b, 4)):
        number = exchange_of(frame).number
        assert len(outputs[number]) == INPUTS
        indices = [read_index(file) for file in outputs[number]]
        assert {index.header.subpartitions for index in indices} == {subpartitions}
        assert {index.writer.exchange for index in indices} == {number}
        assert sum(rows_in(file) for file in outputs[number]) == ROWS
    b.count()
    assert written(directory) == outputs


def test_the_source_itself_can_be_what_is_computed_once(numbers: DataFrame, calls: Calls) -> None:
    counted = numbers.mapInArrow(calls.counting("source"), numbers.schema)
    source = sortshuffle.frame(counted)
    a, b = source.repartition(3, "k"), source.repartition(2)

    assert (a.count(), b.count()) == (ROWS, ROWS)
    assert calls.of("source") == ONCE


def test_three_exchanges_of_other_schemes_are_what_they_would_be_alone(
    numbers: DataFrame, calls: Calls
) -> None:
    f = parsed(numbers, calls)
    a, b, c = f.repartition(1, "id"), f.repartition(6), f.repartition(300, "j", "k")
    alone = sortshuffle.frame(numbers).mapInArrow(lambda batches: batches, numbers.schema).repartition(6)

    assert rows_in_order(b) == rows_in_order(alone)
    assert differences(a, numbers.repartition(1, "id")) == []
    assert differences(c, numbers.repartition(300, "j", "k")) == []
    assert calls.of("parse") == ONCE


def test_selections_and_filters_before_the_exchange_are_each_its_own(
    numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    f = parsed(numbers, calls)
    a = f.select("k", "id").repartition(5, "k")
    b = f.filter(pc.field("id") < 100).drop("k").repartition(3, "j")
    c = f.repartition(2)

    assert differences(a, numbers.select("k", "id").repartition(5, "k")) == []
    assert differences(b, numbers.where("id < 100").drop("k").repartition(3, "j")) == []
    assert c.count() == ROWS
    assert calls.of("parse") == ONCE
    records = {number: sum(map(rows_in, files)) for number, files in written(directory).items()}
    assert records == {
        exchange_of(a).number: ROWS, exchange_of(b).number: 100, exchange_of(c).number: ROWS
    }  # fmt: skip
    schema = pa.ipc.read_schema(pa.py_buffer(read_index(written(directory)[exchange_of(a).number][0]).schema))
    assert schema.names == ["k", "id"]


def test_what_all_exchanges_filter_is_filtered_once(numbers: DataFrame, calls: Calls) -> None:
    g = parsed(numbers, calls).filter(pc.field("id") < 500)
    a, b = g.repartition(3, "k"), g.select("j").repartition(2, "j")

    stage = exchange_of(a).stage()
    assert [step.describe() for step in stage.steps] == ["mapInArrow(function)", "filter((id < 500))"]
    assert [[step.describe() for step in branch.steps] for branch in stage.branches] == [[], ["select(j)"]]
    assert (a.count(), b.count()) == (500, 500)
    assert calls.of("parse") == ONCE


def test_groups_by_different_keys_are_sorted_each_in_its_own_exchange(
    numbers: DataFrame, calls: Calls
) -> None:
    f = parsed(numbers, calls)

    def rows(key: str) -> ShuffleFrame:
        def count(table: pa.Table) -> pa.Table:
            return pa.table([table[key][:1], [table.num_rows]], names=[key, "n"])

        return f.groupBy(key).applyInArrow(count, f"{key} long, n long")

    by_k, by_j = rows("k"), rows("j")
    assert sorted(map(tuple, by_k.collect())) == sorted(map(tuple, numbers.groupBy("k").count().collect()))
    assert sorted(map(tuple, by_j.collect())) == sorted(map(tuple, numbers.groupBy("j").count().collect()))
    assert calls.of("parse") == ONCE
    assert (exchange_of(by_k).order, exchange_of(by_j).order) == (RowOrder((1,)), RowOrder((2,)))


def test_an_exchange_and_its_twin_of_another_order_are_written_in_one_pass(
    numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    placed = parsed(numbers, calls).repartition(3, "k")
    by_k = placed.groupBy("k").applyInArrow(whole, placed.schema)
    by_j = placed.groupBy("j", "k").applyInArrow(whole, placed.schema)

    def keys(frame: ShuffleFrame, *names: str) -> list[tuple[Any, ...]]:
        rows = frame.mapInArrow(lambda batches: batches, frame.schema).toDF()
        found = rows.select(sf.spark_partition_id(), *names).collect()
        return [tuple(row) for row in found]

    for frame, names in ((by_k, ("k",)), (by_j, ("j", "k"))):
        found = keys(frame, *names)
        assert len(found) == ROWS
        assert found == sorted(found)
    assert calls.of("parse") == ONCE
    assert len(written(directory)) == 2


def test_an_order_that_was_written_once_is_there_for_whoever_asks_again(
    numbers: DataFrame, calls: Calls
) -> None:
    placed = parsed(numbers, calls).repartition(3, "k")
    assert placed.count() == ROWS
    for _ in range(3):  # each time a frame that nobody keeps
        assert placed.groupBy("k").applyInArrow(whole, placed.schema).count() == ROWS

    assert calls.of("parse") == TWICE


def test_fan_outs_follow_one_another(numbers: DataFrame, calls: Calls) -> None:
    f = parsed(numbers, calls)
    a, b = f.repartition(3, "k"), f.repartition(2, "j")
    g = a.mapInArrow(calls.counting("second"), a.schema)
    c, d = g.repartition(4, "id"), g.select("id", "j").repartition(5, "j")
    h = c.mapInArrow(calls.counting("third"), c.schema)
    e = h.repartition(2, "k")

    assert differences(e, numbers.repartition(2, "k")) == []
    assert differences(d, numbers.select("id", "j").repartition(5, "j")) == []
    assert differences(b, numbers.repartition(2, "j")) == []
    assert calls.of("parse") == ONCE
    assert calls.of("second") == {0: 1, 1: 1, 2: 1}
    assert calls.of("third") == {0: 1, 1: 1, 2: 1, 3: 1}


def test_building_starts_no_job_and_whoever_comes_together_gets_the_same(
    spark: SparkSession, numbers: DataFrame, calls: Calls
) -> None:
    f = parsed(numbers, calls)
    f.count()  # which asks a worker what it has, once for the application
    a, b = f.repartition(3, "k"), f.repartition(2, "j")
    with ThreadPoolExecutor(4) as pool, jobs(spark) as building:
        controls = list(pool.map(lambda frame: exchange_of(frame).control(), (a, b, a, b)))
    assert building.ids == []
    assert calls.of("parse") == ONCE

    assert [control is controls[at % 2] for at, control in enumerate(controls)] == [True] * 4
    assert exchange_of(a).stage() is exchange_of(b).stage()
    assert [control.rdd.getNumPartitions() for control in controls[:2]] == [3, 2]
    assert (a.count(), b.count()) == (ROWS, ROWS)
    assert calls.of("parse") == TWICE


@pytest.mark.parametrize("whole_first", [False, True])
def test_a_broadcast_for_what_is_made_of_the_same_rows_is_written_after_that(
    numbers: DataFrame, calls: Calls, whole_first: bool
) -> None:
    """Into how many partitions is known when ranges are, and these when the first exchange was read."""
    f = parsed(numbers, calls)
    ranges = f.repartition(3, "k").mapInArrow(calls.counting("second"), f.schema).repartitionByRange(2, "id")
    few = f.filter(pc.field("id") < 7).select("k", sf.col("id").alias("first"))
    joined = ranges.join(sortshuffle.broadcast(few), "k")
    stages = [exchange.stage() for exchange in joined._chain.exchanges()]
    assert all(len(stage.branches) == 1 for stage in stages)
    if whole_first:
        assert ranges.count() == ROWS
    assert sorted(row.id for row in joined.select("id").collect()) == list(range(ROWS))
    assert calls.of("parse") == TWICE
    assert calls.of("second") == dict.fromkeys(range(3), 2)  # once for the sample


def test_threads_that_broadcast_to_each_others_rows_do_not_wait_for_each_other(
    spark: SparkSession, numbers: DataFrame
) -> None:
    f, g = sortshuffle.frame(numbers), sortshuffle.frame(spark.range(0, ROWS, 2, 2))
    one = f.repartition(4, "k").join(sortshuffle.broadcast(g), "id")
    other = g.repartition(3, "id").join(sortshuffle.broadcast(f), "id")
    both = threading.Barrier(2)

    def counted(frame: ShuffleFrame) -> int:
        both.wait(PATIENCE)
        return partition_count(frame)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(counted, (one, other))) == [4, 3]
    assert [each.count() for each in (one, other)] == [ROWS // 2] * 2


# --- and what is not ------------------------------------------------------------------------------------


def test_an_exchange_that_is_made_after_the_first_was_built_has_a_pass_of_its_own(
    numbers: DataFrame, calls: Calls
) -> None:
    f = parsed(numbers, calls)
    a = f.repartition(3, "k")
    a.toDF()
    b = f.repartition(2, "j")

    assert (a.count(), b.count()) == (ROWS, ROWS)
    assert calls.of("parse") == TWICE


def test_rows_that_go_to_spark_directly_are_computed_for_it(numbers: DataFrame, calls: Calls) -> None:
    f = parsed(numbers, calls)
    a = f.repartition(3, "k")

    assert (a.count(), f.count()) == (ROWS, ROWS)
    assert calls.of("parse") == TWICE


def test_functions_that_only_look_the_same_are_computed_for_each(numbers: DataFrame, calls: Calls) -> None:
    source = sortshuffle.frame(numbers)
    function = calls.counting("parse")
    a = source.mapInArrow(function, numbers.schema).repartition(3, "k")
    b = source.mapInArrow(function, numbers.schema).repartition(2, "j")

    assert (a.count(), b.count()) == (ROWS, ROWS)
    assert calls.of("parse") == TWICE


def test_an_exchange_that_nobody_holds_is_not_written(
    numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    f = parsed(numbers, calls)
    a = f.repartition(3, "k")
    unwanted = f.repartition(2, "j")
    twin = a.groupBy("k").applyInArrow(whole, a.schema), a.groupBy("j", "k").applyInArrow(whole, a.schema)
    del unwanted, twin

    assert a.count() == ROWS
    assert list(written(directory)) == [exchange_of(a).number]


def test_an_exchange_that_is_held_is_written_also_if_it_is_never_read(
    numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    f = parsed(numbers, calls)
    a, unread = f.repartition(3, "k"), f.repartition(2, "j")
    a.count()

    assert list(written(directory)) == [exchange_of(a).number, exchange_of(unread).number]


def test_exchanges_and_what_they_share_go_with_their_frames(numbers: DataFrame, calls: Calls) -> None:
    f = parsed(numbers, calls)
    fan_outs = f._chain.context.fan_outs
    gc.collect()
    gc.disable()  # nothing of this may be in a circle
    try:
        a = f.repartition(3, "k")
        b = a.mapInArrow(calls.counting("second"), a.schema).repartition(2, "j")
        assert len(fan_outs) == 2
        b.toDF()
        del b
        assert len(fan_outs) == 1
        del a
        assert len(fan_outs) == 0
    finally:
        gc.enable()


# --- empty, uneven, failing -----------------------------------------------------------------------------


def test_exchanges_without_rows_have_no_files(
    spark: SparkSession, numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    f = parsed(numbers, calls)
    none, some = f.filter(pc.field("id") < 0).repartition(3, "k"), f.repartition(2, "j")
    assert (none.count(), some.count()) == (0, ROWS)
    assert partition_count(none) == 3
    assert list(written(directory)) == [exchange_of(some).number]

    nothing = sortshuffle.frame(spark.createDataFrame([], "k long"))
    a, b = nothing.repartition(2, "k"), nothing.repartition(3)
    assert (a.collect(), b.collect()) == ([], [])
    assert len(written(directory)) == 1


def test_only_the_tasks_that_have_rows_for_an_exchange_write_it(
    numbers: DataFrame, calls: Calls, directory: Path
) -> None:
    f = parsed(numbers, calls)
    few, all_rows = f.filter(pc.field("id") < ROWS // INPUTS).repartition(3, "k"), f.repartition(2, "j")
    assert (few.count(), all_rows.count()) == (ROWS // INPUTS, ROWS)

    counts = {number: len(files) for number, files in written(directory).items()}
    assert counts == {exchange_of(few).number: 1, exchange_of(all_rows).number: INPUTS}


@dataclass(frozen=True)
class Failing:
    """A placement that fails in a task, at its first rows or when it is asked for a selector."""

    is_broadcast: ClassVar[bool] = False
    samples: ClassVar[bool] = False
    awaits: ClassVar[tuple[Exchange, ...]] = ()

    at_once: bool
    subpartitions: int = 2

    def placement(self, upstream: Any) -> Failing:
        return self

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> Failing:
        if self.at_once:
            raise LookupError("no selector")
        return self

    def assign(self, batch: pa.RecordBatch) -> Any:
        raise LookupError("no ids")

    def describe(self, names: Sequence[str]) -> str:
        return "failing"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_if_one_exchange_cannot_be_written_none_is(
    numbers: DataFrame, calls: Calls, directory: Path, at_once: bool, first: bool
) -> None:
    chain = parsed(numbers, calls)._chain
    schemes = [Hash((1,)), Failing(at_once)]
    exchanges = [Exchange(chain, 2, scheme) for scheme in (reversed(schemes) if first else schemes)]

    with pytest.raises(PythonException, match="LookupError: no "):
        exchanges[0].control().collect()
    # an unfinished file of a task that Spark killed for the failure of another is the janitor's
    assert [each for each in directory.rglob("exchange-*") if each.suffix != ".partial"] == []


# --- told -----------------------------------------------------------------------------------------------


def test_explain_shows_one_stage_that_feeds_several_exchanges(
    numbers: DataFrame, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    f = parsed(numbers, calls)
    a, b = f.repartition(8, "k"), f.filter(pc.field("id") < 100).select("j").repartition(4, "j")
    one, two = exchange_of(a).number, exchange_of(b).number
    b.explain()
    plan = (
        f"Stage {one}, writes 2 exchanges in one pass\n"
        "    rows of DataFrame[id, k, j]\n"
        "    mapInArrow(function)\n"
        f"    -> exchange {one}: hash(k) into 8 subpartitions\n"
        "        filter((id < 100))\n"
        "        select(j)\n"
        f"    -> exchange {two}: hash(j) into 4 subpartitions\n"
    )
    assert capsys.readouterr().out == plan + f"Result stage\n    exchange {two}\n    -> rows\n"

    assert a.count() == ROWS
    del b  # what was written for it is told still
    a.explain()
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("       wrote 1,000 rows, ")
    assert lines[7] == f"    -> exchange {two}: hash(j) into 4 subpartitions"
    assert lines[8].startswith("       wrote 100 rows, ")
    assert lines[9].startswith("    4 tasks, ")
    assert lines[10:13] == ["Result stage", f"    exchange {one}", "    -> rows"]


# --- sessions of their own ------------------------------------------------------------------------------

PATIENCE = 240  # seconds for a step that a test waits for
JOBS = Path(__file__).parents[1] / "jobs"


def test_a_failed_attempt_and_a_lost_executor_cost_both_exchanges_only_the_tasks_concerned(
    tmp_path: Path,
) -> None:
    found = run_job(JOBS / "lose_fan_out.py", str(tmp_path))

    assert found["first"] == 60_000
    # one map output for each task and exchange, none unfinished or of the attempt that failed
    assert len(found["before"]) == 2 * 6
    assert all(name.endswith(".data") for name in found["before"])
    assert (found["keys"], found["groups"]) == (100, [600])
    assert found["total"] == sum(range(60_000))
    assert found["victims"], "the executor that was killed had run no map task"
    assert found["runs"] == {str(p): 2 if p in found["victims"] else 1 for p in range(6)}


def test_map_outputs_of_one_pass_live_as_long_as_any_of_its_exchanges(tmp_path: Path) -> None:
    found = run_job(JOBS / "forget_fan_out.py", str(tmp_path), "60")

    assert len(found["made"]) == 2 * 2
    assert found["held"] == found["after"] == found["made"]
    assert found["rows"] == 1000
    assert found["left"] == []
