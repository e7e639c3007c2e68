"""Small partitions of which nobody asked for the number are read several to a task, by actions alone, and the
rows are the same."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as hs
from oracle import confs, jobs
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession, Window
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import SchemaMismatchError
from sortshuffle.spark.operators import partition_counts
from sortshuffle.spark.plan import coalescing
from sortshuffle.spark.plan.coalescing import TASKS_PER_CORE, neighbours
from sortshuffle.spark.plan.estimated_sizes import exchanged_size

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
ROWS, CORES = 3000, 2
MANY = 9  # partitions; with these keys, six or seven tasks can share them
COALESCING = "spark.sql.adaptive.coalescePartitions.enabled"
OFF = {COALESCING: "false"}


@pytest.fixture(autouse=True)
def many(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few rows there are, they are exchanged into `MANY` partitions."""
    for name, value in (("BYTES", 1), ("BYTES_OF_FILES", 1), ("FEW_BYTES", -1)):
        monkeypatch.setattr(partition_counts, name, value)
    with confs(spark, {"spark.sql.shuffle.partitions": str(MANY), COALESCING: "true"}):
        yield


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 2).selectExpr("id % 101 as k", "id", "cast(id % 7 as string) as s")


def same(batches: Batches) -> Batches:
    yield from batches


def counted(batches: Batches) -> Batches:
    """One row for each call of this function: the number of rows that it got."""
    yield pa.record_batch([pa.array([sum(map(len, batches))], pa.int64())], ["rows"])


def spread(group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": group.k[:1], "spread": [group.id.max() - group.id.min()]})


def tasks(frame: ShuffleFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What `explain` says of tasks that read several partitions."""
    frame.explain()
    return [line.strip() for line in capsys.readouterr().out.splitlines() if "small partitions" in line]


def assert_same_rows(ours: DataFrame, plain: DataFrame) -> None:
    expected = Counter(map(repr, plain.collect()))
    assert expected
    assert Counter(map(repr, ours.collect())) == expected


IN_ONE = f"{MANY} small partitions in 1 tasks"


# ---- the same rows ----------------------------------------------------------------------------------------


def grouped(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").applyInPandas(spread, "k long, spread long")


def aggregated(frame: DataFrame) -> DataFrame:
    return frame.groupBy("s", "k").agg(sf.count("id").alias("n"), sf.sum("id").alias("total"))


def joined(frame: DataFrame) -> DataFrame:
    others = frame.filter("id % 30 = 0").withColumnRenamed("s", "t").withColumnRenamed("id", "j")
    return frame.join(others, "k", "left").select("id", "t", "j")


def cogrouped(frame: DataFrame) -> DataFrame:
    def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"left": [len(left)], "right": [len(right)]})

    right = frame.filter("id % 2 = 0").groupBy("k")
    return frame.groupBy("k").cogroup(right).applyInPandas(both, "left long, right long")


def in_several_exchanges(frame: DataFrame) -> DataFrame:
    return grouped(frame).join(aggregated(frame), "k").groupBy("spread").agg(sf.sum("n").alias("n"))


def sorted_groups(frame: DataFrame) -> DataFrame:
    return grouped(frame).sort(sf.desc("spread"), "k")


def distinct(frame: DataFrame) -> DataFrame:
    return frame.select("k", "s").distinct()


def placed(frame: DataFrame) -> DataFrame:
    return frame.repartition("k").filter("k > 3").mapInArrow(same, "k long, id long, s string")


def test_the_rows_are_sparks(
    numbers: DataFrame, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = (grouped, aggregated, joined, cogrouped, in_several_exchanges, sorted_groups, distinct, placed)
    text = sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"})
    plain = [make(numbers).select(sf.lit(make.__name__), text) for make in cases]
    with confs(spark, {"spark.sql.shuffle.partitions": "2"}):
        expected = Counter(map(tuple, functools.reduce(DataFrame.union, plain).collect()))
    assert len({name for name, _ in expected}) == len(cases)
    found: list[tuple[str, str]] = []
    for make in cases:
        ours: Any = make(sortshuffle.frame(numbers))
        found += [(make.__name__, json.dumps(row.asDict(), separators=(",", ":"))) for row in ours.collect()]
        assert IN_ONE in tasks(ours, capsys), make.__name__
    assert Counter(found) == expected


def test_large_partitions_are_read_by_several_tasks(
    numbers: DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = sortshuffle.frame(numbers).select("k", "id").repartition("k")
    for largest in (2000, 9000):
        monkeypatch.setattr(coalescing, "LARGEST", largest)
        rows = frame.mapInArrow(same, "k long, id long")
        assert rows.count() == ROWS
        (exchange,) = frame._chain.exchanges()
        size = sum(exchange.sizes().totals)
        assert 16 * ROWS <= size < 17 * ROWS + 1000 * MANY  # two longs a row
        count = -(-size // largest)
        assert tasks(rows, capsys) == ([] if count >= MANY else [f"{MANY} small partitions in {count} tasks"])


def test_a_task_of_few_bytes_has_at_least_a_mebibyte(
    numbers: DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = sortshuffle.frame(numbers).repartition("k")
    assert frame.count() == ROWS
    assert tasks(frame, capsys) == [IN_ONE]
    monkeypatch.setattr(coalescing, "SMALLEST", 1)
    assert tasks(frame, capsys) == [f"{MANY} small partitions in {TASKS_PER_CORE * CORES} tasks"]


def test_a_function_is_called_for_each_partition_as_without(numbers: DataFrame, spark: SparkSession) -> None:
    frame = sortshuffle.frame(numbers)
    with confs(spark, OFF):
        expected = frame.repartition("k").mapInArrow(counted, "rows long").collect()
    found = frame.repartition("k").mapInArrow(counted, "rows long").collect()
    assert found == expected
    assert len(found) == MANY


def test_what_depends_on_partitions_is_the_same(numbers: DataFrame, spark: SparkSession) -> None:
    def results() -> list[list[Any]]:
        frame = sortshuffle.frame(numbers).repartition("k")
        made = (frame.sample(0.1, 7), frame.limit(9), frame.select("id"), frame.sortWithinPartitions("id"))
        return [each.collect() for each in made]

    with confs(spark, OFF):
        expected = results()
    assert results() == expected


# ---- actions ----------------------------------------------------------------------------------------------


def rows_written(frame: DataFrame, path: Path) -> list[int]:
    """The rows of each file."""
    frame.write.parquet(str(path))
    return [pq.read_metadata(file).num_rows for file in path.glob("*.parquet")]


def test_every_action_reads_several_partitions_in_a_task(
    numbers: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(frame: ShuffleFrame) -> str:
        frame.show(2)
        return capsys.readouterr().out

    def stored(frame: ShuffleFrame) -> int:
        frame.write.csv(str(tmp_path / "csv"))
        return sum(1 for _ in (tmp_path / "csv").glob("*.csv"))

    actions: dict[str, tuple[Callable[[ShuffleFrame], Any], Any]] = {
        "count": (lambda frame: frame.count(), 900),
        "collect": (lambda frame: len(frame.collect()), 900),
        "take": (lambda frame: len(frame.take(800)), 800),
        "toPandas": (lambda frame: len(frame.toPandas()), 900),
        "toArrow": (lambda frame: len(frame.toArrow()), 900),
        "isEmpty": (lambda frame: frame.isEmpty(), False),
        "tail": (lambda frame: len(frame.tail(5)), 5),
        "toLocalIterator": (lambda frame: sum(1 for _ in frame.toLocalIterator()), 900),
        "first": (lambda frame: frame.first() is not None, True),
        "show": (lambda frame: "only showing top 2 rows" in shown(frame), True),
        "parquet": (lambda frame: rows_written(frame, tmp_path / "parquet"), [900]),
        "csv": (stored, 1),
    }
    for name, (action, expected) in actions.items():
        frame = sortshuffle.frame(numbers.coalesce(1)).repartition("k").filter(pc.field("id") < 900)
        assert action(frame) == expected, name
        assert tasks(frame, capsys) == [IN_ONE], name
        run = [total for total in frame.stage_totals() if total.stage == frame._runs[-1]]
        assert {total.tasks for total in run} <= {1}, name  # a task that is not read to its end tells nothing


def test_a_plan_is_lazy_and_keeps_the_partitions_of_which_spark_is_told(
    numbers: DataFrame, spark: SparkSession
) -> None:
    sortshuffle.frame(numbers).mapInArrow(same, numbers.schema).count()  # workers are checked
    frame = sortshuffle.frame(numbers).repartition("k")
    with jobs(spark) as ran:
        plain = frame.toDF()
        assert plain.rdd.getNumPartitions() == MANY
    assert ran.ids == []
    assert frame.count() == ROWS
    assert frame.toDF().rdd.getNumPartitions() == MANY
    counts = frame.toDF().groupBy("k").count()
    assert "Exchange" not in counts._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert_same_rows(counts, numbers.groupBy("k").count())


@pytest.mark.filterwarnings("ignore:The return type of DataFrame.toJSON")
def test_what_only_prepares_a_read_runs_no_job(numbers: DataFrame, spark: SparkSession) -> None:
    sortshuffle.frame(numbers).mapInArrow(same, numbers.schema).count()  # workers are checked
    frame = sortshuffle.frame(numbers).repartition("k")
    with jobs(spark) as ran:
        writers = [frame.write.bucketBy(2, "k"), frame.write.sortBy("k"), frame.write.clusterBy("k")]
        texts = frame.toJSON()
    assert ran.ids == []
    assert [type(writer).__name__ for writer in writers] == ["ShuffleFrameWriter"] * 3
    assert texts.count() == ROWS


def test_a_bucketed_table_is_written_from_coalesced_partitions(
    numbers: DataFrame, spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    frame = sortshuffle.frame(numbers).repartition("k")
    writer = frame.write.bucketBy(2, "k").sortBy("id")
    with pytest.raises(AnalysisException, match="bucketBy"):
        writer.parquet(str(tmp_path / "files"))
    writer.option("path", str(tmp_path / "table")).saveAsTable("bucketed")
    try:
        assert_same_rows(spark.table("bucketed"), numbers)
        assert tasks(frame, capsys) == [IN_ONE]
    finally:
        spark.sql("DROP TABLE bucketed")


def test_after_an_action_spark_is_told_nothing_that_is_not_so(numbers: DataFrame) -> None:
    """The rows of each partition are sorted, but not those of several."""
    groups: Any = sortshuffle.frame(numbers).groupBy("k").agg(sf.max("id").alias("most"))
    assert len(groups.toPandas()) == 101
    latest = sf.max("most").over(Window.partitionBy("k").orderBy("k"))
    expected = numbers.groupBy("k").agg(sf.max("id").alias("most"))
    assert_same_rows(groups.withColumn("latest", latest), expected.withColumn("latest", latest))


def test_the_map_stage_runs_once(numbers: DataFrame, spark: SparkSession) -> None:
    calls = spark.sparkContext.accumulator(0)

    def noted(batches: Batches) -> Batches:
        for batch in batches:
            calls.add(len(batch))
            yield batch

    frame = sortshuffle.frame(numbers).mapInArrow(noted, numbers.schema).repartition("k")
    found = (frame.count(), len(frame.toPandas()), len(frame.groupBy("k").count().collect()))
    assert found == (ROWS, ROWS, 101)
    assert calls.value == ROWS


# ---- where partitions stay --------------------------------------------------------------------------------


def test_where_partitions_stay(
    numbers: DataFrame, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = sortshuffle.frame(numbers)

    def lines(made: ShuffleFrame) -> list[str]:
        made.count()
        return tasks(made, capsys)

    assert lines(frame.repartition(MANY, "k")) == []
    assert lines(frame.repartition(MANY)) == []
    asked = frame.repartition(MANY, "k")
    assert lines(asked.join(frame.select("k"), "k")) == []
    assert lines(asked.groupBy("k").count()) == []
    for setting in ("spark.sql.adaptive.coalescePartitions.enabled", "spark.sql.adaptive.enabled"):
        with confs(spark, {setting: "false"}):
            assert lines(frame.repartition("k")) == []
    with confs(spark, {"spark.sql.shuffle.partitions": str(TASKS_PER_CORE * CORES)}):
        assert lines(frame.repartition("k")) == []
    assert lines(frame.repartition("k")) == [IN_ONE]


def test_rows_in_sparks_cache_need_no_exchange(numbers: DataFrame, spark: SparkSession) -> None:
    frame = sortshuffle.frame(numbers).repartition("k").persist()
    try:
        assert frame.count() == ROWS
        kept = frame.mapInArrow(same, numbers.schema)
        with jobs(spark) as ran:
            assert kept.count() == ROWS
        assert len(ran.ids) == 1
    finally:
        frame.unpersist()


def test_a_stage_that_reads_sparks_cache_has_its_partitions(
    numbers: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = sortshuffle.frame(numbers).repartition("k")
    after = placed.mapInArrow(same, numbers.schema).repartition("s")
    assert placed.count() == ROWS
    placed.persist()
    try:
        assert after.count() == ROWS
        assert tasks(after, capsys) == [IN_ONE]  # the result stage, not the one that reads the cache
        (exchange,) = after._chain.origin.exchanges()
        (written,) = (total for total in after.stage_totals() if total.stage == exchange.stage().number)
        assert written.tasks == MANY
    finally:
        placed.unpersist()


def test_skewed_partitions_are_divided_and_others_coalesced(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.range(0, ROWS, 1, 6).selectExpr("if(id % 4 < 3, 1, id % 101) as k", "id")
    with confs(spark, {"spark.sortshuffle.skew.factor": "2", "spark.sortshuffle.skew.threshold": "4k"}):
        divided = sortshuffle.frame(rows).repartition("k")
        assert divided.count() == ROWS
        assert tasks(divided, capsys) == []
    with confs(spark, {"spark.sortshuffle.skew.factor": "1000"}):
        even = sortshuffle.frame(rows).repartition("k")
        assert even.count() == ROWS
        assert tasks(even, capsys) == [IN_ONE]


def test_a_function_that_fails_in_a_measured_stage_raises_its_error(
    numbers: DataFrame, tmp_path: Path
) -> None:
    def wrong(batches: Batches) -> Batches:
        yield from (batch.select(["k"]) for batch in batches)

    failing = sortshuffle.frame(numbers.coalesce(1)).mapInArrow(wrong, numbers.schema).repartition("k")
    path = str(tmp_path / "new")
    for action in (
        failing.count,
        failing.collect,
        failing.toPandas,
        failing.show,
        lambda: failing.write.csv(path),
        lambda: failing.write.parquet(path),
        lambda: failing.write.format("csv").save(path),
        lambda: failing.write.partitionBy("s").parquet(path),  # which Python leaves to Spark
    ):
        with pytest.raises(SchemaMismatchError, match=r"mapInArrow\(wrong\)"):
            action()


# ---- groups of neighbours, and what runs when ------------------------------------------------------------


@given(hs.lists(hs.integers(0, 10**9), min_size=1, max_size=60), hs.integers(1, 20))
def test_tasks_read_neighbours_of_about_equal_bytes(sizes: list[int], count: int) -> None:
    ends = neighbours(np.array(sizes, np.float64), count)

    assert 1 <= len(ends) <= count
    assert list(ends) == sorted(set(ends))
    assert ends[-1] == len(sizes)
    groups = [sum(sizes[start:end]) for start, end in itertools.pairwise([0, *ends])]
    share = sum(sizes) / count
    assert all(group <= share + max(sizes) + 1 for group in groups)


def test_the_order_of_rows_is_that_of_the_partitions(
    numbers: DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coalescing, "SMALLEST", 1)
    frame = sortshuffle.frame(numbers).repartition("k")
    found = frame.collect()
    assert tasks(frame, capsys) == [f"{MANY} small partitions in {TASKS_PER_CORE * CORES} tasks"]
    assert found == frame.toDF().collect()


def test_a_write_that_spark_refuses_or_skips_runs_no_stage(
    numbers: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    frame = sortshuffle.frame(numbers).repartition("k")
    numbers.write.saveAsTable("there")
    try:
        with jobs(spark) as ran:
            for write in (frame.write.csv, frame.write.parquet, frame.write.format("json").save):
                with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
                    write(str(tmp_path))
            with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
                frame.write.saveAsTable("there")
            frame.write.mode("ignore").csv(str(tmp_path))
            assert frame.take(0) == []
        assert ran.ids == []
        again = sortshuffle.frame(numbers).repartition("k")
        again.write.mode("overwrite").csv(str(tmp_path))
        again.write.insertInto("there")
        assert len(list(tmp_path.glob("*.csv"))) == 1
        assert spark.table("there").count() == 2 * ROWS
    finally:
        spark.sql("drop table there")


def test_a_writer_looks_at_the_arguments_by_their_names(
    numbers: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    def writer() -> DataFrameWriter:
        return sortshuffle.frame(numbers).repartition("k").write

    there = str(tmp_path)
    numbers.write.saveAsTable("named")
    try:
        with jobs(spark) as ran:
            for write in (
                lambda: writer().csv(mode="error", path=there),
                lambda: writer().mode("overwrite").json(there, mode="error"),
                lambda: writer().saveAsTable(format="parquet", name="named"),
                lambda: writer().mode("append").saveAsTable("named", mode="errorifexists"),
            ):
                with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
                    write()
            with pytest.raises(TypeError, match="path"):
                writer().csv()  # type: ignore[call-arg]
        assert ran.ids == []
        writer().csv(there, mode="overwrite")
        assert len(list(tmp_path.glob("*.csv"))) == 1
        writer().mode("error").csv(there, "append")
        assert len(list(tmp_path.glob("*.csv"))) == 2
    finally:
        spark.sql("drop table named")


def test_sizes_are_those_of_the_ranges_that_there_are(spark: SparkSession) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr("id % 2 as k", "id")
    frame: Any = sortshuffle.frame(rows).repartitionByRange(8, "k")
    (exchange,) = frame._chain.origin.exchanges()
    sizes = exchange.sizes()
    assert len(sizes.totals) == exchange.placed_partitions() == 3  # nothing is above the largest key
    assert 0 == min(sizes.totals) < sizes.median == max(sizes.totals)


def test_the_bytes_that_a_coalesced_stage_wrote_are_known(numbers: DataFrame) -> None:
    frame: Any = sortshuffle.frame(numbers).repartition("k").mapInArrow(same, numbers.schema)
    placed = frame.repartition(4, "s")
    assert placed.count() == ROWS
    (exchange,) = placed._chain.origin.exchanges()
    assert not exchange.is_measured
    assert exchanged_size(exchange) == sum(exchange.sizes().totals)


def test_a_stage_that_was_planned_before_has_its_partitions(
    numbers: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = sortshuffle.frame(numbers).repartition("k")
    counts = placed.groupBy("s").count()
    counts.toDF()
    assert placed.count() == ROWS
    assert tasks(counts, capsys) == []
    assert len(counts.collect()) == 7


def test_a_sort_samples_several_partitions_in_a_task(numbers: DataFrame, spark: SparkSession) -> None:
    sortshuffle.frame(numbers).mapInArrow(same, numbers.schema).count()  # workers are checked
    groups = sortshuffle.frame(numbers).groupBy("k").agg(sf.sum("id").alias("total"))
    with jobs(spark) as ran:
        rows = groups.sort("total").collect()
    assert [row.total for row in rows] == sorted(row.total for row in rows)
    assert len(rows) == 101
    # measured with the map stage, sampled, sorted
    assert len(ran.ids) == 3
    assert ran.tasks[1] == 1


def test_the_map_stages_of_a_join_run_in_one_job(numbers: DataFrame, spark: SparkSession) -> None:
    frame = sortshuffle.frame(numbers)
    assert frame.count() == ROWS
    joined = frame.join(frame.withColumnRenamed("s", "t").drop("id").distinct(), "k")
    sides = joined._chain.origin.exchanges()
    with jobs(spark) as ran:
        assert joined.count() > ROWS
    assert len(sides) == 2
    assert len(ran.ids) == 2 + 1  # distinct() has an exchange of its own
