"""`sortshuffle.session`: everything that makes DataFrames makes frames, rows cross only where they must, and
the rest of PySpark works on frames."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import confs
from pyspark import cloudpickle
from pyspark.errors import PySparkException, PythonException
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.testing import assertDataFrameEqual

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import OptionError, SchemaMismatchError, UsageError
from sortshuffle.spark.frame.classic_frame import ClassicFrame
from sortshuffle.spark.frame.crossings import LOGGER
from sortshuffle.spark.operators.partition_counts import BYTES, FEW_BYTES, TASKS_PER_CORE

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def with_size(group: pd.DataFrame) -> pd.DataFrame:
    return group.assign(n=len(group))


def sides(frame: DataFrame) -> list[str]:
    """Where rows cross: the operators, and the sides they cross to."""
    return [f"{each.operator} to {each.to}" for each in frame._crossings]


# ---- what makes frames ------------------------------------------------------------------------------------


def test_everything_that_makes_a_dataframe_makes_a_frame(job: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"a": 1}\n')
    job.range(3).write.parquet(str(tmp_path / "numbers"))
    job.range(3).createOrReplaceTempView("numbers")
    made = {
        "range": job.range(3),
        "rows": job.createDataFrame([(1, "a")], ["n", "s"]),
        "pandas": job.createDataFrame(pd.DataFrame({"n": [1]})),
        "sql": job.sql("select 1 one"),
        "table": job.table("numbers"),
        "json": job.read.json(str(tmp_path / "lines")),
        "parquet": job.read.format("parquet").load(str(tmp_path / "numbers")),
        "tvf": job.tvf.range(3),
        "stream": job.readStream.format("rate").load(),
        "rdd": job.sparkContext.parallelize([(1,)]).toDF(["n"]),
        "select": job.range(3).select("id"),
        "split": job.range(3).randomSplit([0.5, 0.5], 1)[0],
        "pivot": job.range(3).groupBy("id").pivot("id", [1]).count(),
        "rollup": job.range(3).rollup("id").count(),
        "describe": job.range(3).describe(),
        "na": job.range(3).na.drop(),
        "checkpoint": job.range(3).localCheckpoint(),
        "alias": job.range(3).alias("a"),
        "transform": job.range(3).transform(lambda df: df.limit(1)),
        "new session": job.newSession().range(3),
        "same session": job.range(3).sparkSession.range(3),
    }
    assert {name for name, frame in made.items() if not isinstance(frame, ShuffleFrame)} == set()


def test_the_plain_session_stays_plain(job: SparkSession) -> None:
    plain = SparkSession.builder.getOrCreate()
    assert not isinstance(plain.range(3), ShuffleFrame)
    assert job.conf.get("spark.sql.shuffle.partitions") == plain.conf.get("spark.sql.shuffle.partitions")


def of_wrong_rows(session: SparkSession) -> None:
    with pytest.raises(PySparkException):
        session.createDataFrame([(1, "a")], "n int")


@pytest.mark.parametrize(
    "make",
    [
        lambda session: session.createDataFrame([(1, "a")], ["n", "s"]),
        lambda session: session.createDataFrame(pd.DataFrame({"n": [1]})),
        lambda session: session.sparkContext.parallelize([(1,)]).toDF(["n"]),
        of_wrong_rows,
    ],
    ids=["rows", "pandas", "rdd", "wrong rows"],
)
def test_the_active_session_is_pysparks_own(spark: SparkSession, make: Callable[[SparkSession], Any]) -> None:
    make(sortshuffle.session(spark))  # a new one, because `RDD.toDF` uses the session that is made last
    assert SparkSession.getActiveSession() is spark
    assert SparkSession.active() is spark


def test_a_new_session_that_makes_rows_is_active(job: SparkSession) -> None:
    java: Any = job.newSession()
    assert isinstance(java.createDataFrame([(1,)]), ShuffleFrame)
    active: Any = SparkSession.getActiveSession()
    job.createDataFrame([(1,)])
    assert type(active) is SparkSession
    assert active._jsparkSession.equals(java._jsparkSession)


def test_a_session_of_a_session_is_of_the_same_plain_one(job: SparkSession, spark: SparkSession) -> None:
    again = sortshuffle.session(job)
    assert again._plain_session is spark
    assert isinstance(again.range(1), ShuffleFrame)


@pytest.mark.parametrize("wrong", [None, "local[2]", 3, SparkSession, SparkSession.Builder], ids=repr)
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a SparkSession is needed, not"):
        sortshuffle.session(wrong)


def test_a_context_is_no_session(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="a SparkSession is needed, not SparkContext"):
        sortshuffle.session(spark.sparkContext)


# ---- where rows are ---------------------------------------------------------------------------------------


def test_rows_stay_in_spark_without_a_python_function(job: SparkSession) -> None:
    frame = job.range(10).filter("id > 2").groupBy("id").count().join(job.range(5), "id").orderBy("id")
    assert sides(frame) == []
    assert [row.id for row in frame.collect()] == [3, 4]


def test_a_python_function_takes_rows_and_what_follows_stays_with_them(job: SparkSession) -> None:
    numbers = job.range(20).withColumn("k", sf.col("id") % 3)
    frame = numbers.groupBy("k").applyInPandas(with_size, "id long, k long, n long").repartition(3, "k")
    counted = frame.groupBy("k").agg(sf.max("n").alias("n")).sort("k")

    assert sides(counted) == ["applyInPandas to Python"]
    assert list(map(tuple, counted.collect())) == [(0, 7), (1, 7), (2, 6)]


def test_what_python_refuses_spark_does(job: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        frame = job.range(6).mapInPandas(same, "id long").groupBy("id").agg(sf.corr("id", "id").alias("c"))
        crossed = frame.rollup("id").count()

    assert sides(crossed) == ["mapInPandas to Python", "agg to Spark"]
    assert crossed.count() == 7
    assert [record.message.partition(":")[0] for record in caplog.records] == ["mapInPandas()", "agg()"]


def test_methods_that_only_pyspark_has_run_in_spark(job: SparkSession) -> None:
    frame = job.range(6).mapInPandas(same, "id long")
    assert sides(frame.intersect(job.range(3))) == ["mapInPandas to Python", "intersect to Spark"]
    assert frame.intersect(job.range(3)).count() == 3


def test_explain_says_where_rows_cross(job: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    job.range(6).mapInPandas(same, "id long").crossJoin(job.range(2)).explain()
    printed = capsys.readouterr().out
    assert "Rows cross between Spark and Python:\n  mapInPandas(): rows go to Python: " in printed
    assert "  crossJoin(): rows go to Spark: only Spark has this method" in printed


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        (lambda f, g: g.join(f, "id"), "join"),
        (lambda f, g: g.crossJoin(f), "crossJoin"),
        (lambda f, g: g.filter("id > 1").union(f), "union"),
        (lambda f, _: f.describe(), "describe"),
        (lambda f, _: f.unpivot("id", ["id"], "name", "value"), "unpivot"),
        (lambda f, _: f.randomSplit([0.5, 0.5])[0], "randomSplit"),
    ],
)
def test_rows_that_go_to_spark_are_logged_and_explained(
    job: SparkSession,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    call: Any,
    operator: str,
) -> None:
    frame = job.range(6).mapInPandas(same, "id long")
    with caplog.at_level(logging.INFO, LOGGER):
        made = call(frame, job.range(3))
    assert sides(made) == ["mapInPandas to Python", f"{operator} to Spark"]
    assert f"{operator}(): rows go to Spark: " in "\n".join(record.message for record in caplog.records)
    made.explain()
    assert f"  {operator}(): rows go to Spark: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda frame: frame.mapInPandas(same, "id long", barrier=True),
            "mapInPandas(): Spark runs the function: barrier stages, ",
        ),
        (
            lambda frame: frame.observe("seen", sf.count("*")).mapInPandas(same, "id long").filter("id > 1"),
            "mapInPandas(): Spark runs the function: Spark reports what observe() asks for only of ",
        ),
        (
            lambda frame: frame.groupBy(sf.col("id") % 2).applyInPandas(lambda group: group, "id long"),
            "applyInPandas(): Spark runs the function: Column<'%(id, 2)'> is an expression: ",
        ),
    ],
    ids=["barrier", "observe", "groups"],
)
def test_functions_that_are_left_to_spark_are_logged_and_explained(
    job: SparkSession,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    call: Any,
    line: str,
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        made = call(job.range(6))
    assert (sides(made), made._is_in_python) == ([], False)
    assert [record.message for record in caplog.records if record.message.startswith(line)]
    made.explain()
    assert f"\nPython functions that are left to Spark:\n  {line}" in capsys.readouterr().out


def test_a_function_that_is_left_to_spark_is_told_once(
    job: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        left = job.range(6).mapInPandas(same, "id long", barrier=True)
        again = left.mapInPandas(same, "id long", barrier=True)
        frame = job.range(6).mapInPandas(same, "id long")
        made = [frame.union(left), frame.intersect(left), left.union(frame), again.filter("id > 1")]
    (note,) = left._spark_functions
    assert [each._spark_functions for each in (again, *made)] == [(note,)] * 5
    assert [record.message for record in caplog.records].count(note.describe()) == 1


def test_crossings_that_read_the_same_are_one(job: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    def on_both_sides(frame: Any) -> Any:
        return frame.mapInPandas(same, "id long").randomSplit([0.5, 0.5])[0]

    with caplog.at_level(logging.INFO, LOGGER):
        once = on_both_sides(job.range(6))
        twice = on_both_sides(once)
    assert sides(once) == sides(twice) == ["mapInPandas to Python", "randomSplit to Spark"]
    messages = [record.message for record in caplog.records if record.name == LOGGER]
    assert messages == [each.describe() for each in once._crossings]


def test_a_crossing_of_a_cogroup_is_told_once(job: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    right = job.range(6).mapInPandas(same, "id long")
    left = job.range(6).groupBy(sf.col("id") % 2)
    with caplog.at_level(logging.INFO, LOGGER):
        made = left.cogroup(right.groupBy("id")).applyInPandas(lambda own, other: own, "id long")
    assert [each.operator for each in made._spark_functions] == ["cogroup"]
    messages = [record.message for record in caplog.records]
    assert [each.partition(":")[0] for each in messages] == ["cogroup()", "cogroup()"]
    assert len(set(messages)) == 2  # rows of the right go to Spark; Spark runs the function


def test_actions_that_spark_does_are_logged(job: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    frame = job.range(3).mapInPandas(same, "id long")
    with caplog.at_level(logging.INFO, LOGGER):
        frame.foreach(lambda row: None)
        frame.toPandas()
        assert frame.rdd is frame.rdd
        frame.collect()
        frame.first()
        frame.count()
    found = [record.message for record in caplog.records]
    assert [each.partition(":")[0] for each in found if "rows go to Spark" in each] == [
        "rdd()",  # of foreach()
        "toPandas()",
        "collect()",
        "take()",  # of first()
    ]


def test_a_transformation_of_the_users_is_no_crossing(job: SparkSession) -> None:
    frame = job.range(6).mapInPandas(same, "id long").transform(lambda own: own.filter("id > 1"))
    assert sides(frame) == ["mapInPandas to Python"]


def test_an_exchange_before_a_function_is_pythons(job: SparkSession) -> None:
    """Spark does not tell Python how its own exchanges place rows: they would be exchanged twice."""
    numbers = job.range(20).withColumn("k", sf.col("id") % 3)
    groups = numbers.repartition(4, "k").groupBy("k").applyInPandas(with_size, "id long, k long, n long")

    (exchange,) = groups._chain.exchanges()
    assert exchange.subpartitions == 4
    assert sides(groups) == ["repartition to Python"]
    assert groups.filter("n = 7").count() == 14


def test_parquet_files_are_scanned_by_the_workers(job: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    job.range(100).withColumn("k", sf.col("id") % 3).write.partitionBy("k").parquet(path)
    numbers = job.read.parquet(path).filter("k < 2 and id >= 10").select("id")
    for frame in (numbers.mapInPandas(same, "id long"), numbers.repartition(3).mapInPandas(same, "id long")):
        assert sides(frame) == []
        assert sorted(row.id for row in frame.collect()) == [n for n in range(10, 100) if n % 3 < 2]


def write_numbers(path: Path, count: int, row_group: int) -> None:
    pq.write_table(pa.table({"k": range(count), "v": range(count)}), path, row_group_size=row_group)


def test_files_that_are_written_again_are_read_whole_or_not_at_all(
    job: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    file, path = tmp_path / "numbers.parquet", str(tmp_path)
    for read, row_group in ((job.read, 500), (sortshuffle.read(spark), 5000)):
        write_numbers(file, 1000, 250)
        groups = read.parquet(path).groupBy("k").applyInArrow(lambda group: group, "k long, v long")
        rows = read.parquet(path).mapInPandas(same, "k long, v long")
        assert rows.count() == 1000
        write_numbers(file, 5000, row_group)
        assert groups.count() == 5000  # planned only now
        with pytest.raises(UsageError, match=r"numbers\.parquet has changed since .* Make the frame again"):
            rows.count()  # its row groups are chosen
        assert read.parquet(path).mapInPandas(same, "k long, v long").count() == 5000


def test_a_file_written_again_is_noticed_where_a_filter_leaves_row_groups_out(
    job: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "numbers.parquet"
    for again, condition, count in (
        (range(999, -1, -1), "k < 250", 250),  # all sizes in the two files are the same
        (range(5000, 6000), "k >= 5000", 0),  # no row group of the first file is read
    ):
        pq.write_table(pa.table({"k": list(range(1000))}), file, row_group_size=250)
        readers = (job.read, sortshuffle.read(spark))
        frames = [
            read.parquet(str(tmp_path)).filter(condition).mapInPandas(same, "k long") for read in readers
        ]
        assert [rows.count() for rows in frames] == [count, count]
        pq.write_table(pa.table({"k": list(again)}), file, row_group_size=250)
        for rows in frames:
            with pytest.raises(UsageError, match=r"numbers\.parquet has changed since"):
                rows.count()


def test_to_group_the_rows_of_files_reads_no_footer_that_is_not_needed(
    job: SparkSession, tmp_path: Path
) -> None:
    for number in range(40):
        write_numbers(tmp_path / f"{number:02}.parquet", 10, 10)
    frame = job.read.parquet(str(tmp_path))
    (tmp_path / "17.parquet").unlink()  # not among those of which a footer is read to see if Python can scan
    groups = frame.groupBy("k").applyInArrow(lambda group: group, "k long, v long")
    with pytest.raises(UsageError, match=r"17\.parquet cannot be read"):
        groups.count()


def test_why_spark_scans_is_said(job: SparkSession, tmp_path: Path) -> None:
    job.range(3).write.orc(str(tmp_path / "numbers"))
    frame = job.read.orc(str(tmp_path / "numbers")).mapInPandas(same, "id long")
    (crossing,) = frame._crossings
    assert crossing.reason.startswith("Spark makes them, because its files are not read as Parquet, but by ")


def test_the_exchange_before_several_functions_is_one(job: SparkSession) -> None:
    placed = job.range(20).repartition(4, "id")
    one, other = (placed.mapInPandas(same, "id long") for _ in range(2))
    assert list(one._chain.exchanges()) == list(other._chain.exchanges())


def partitions_of_groups(frame: DataFrame) -> list[int]:
    groups = frame.groupBy("id").applyInPandas(with_size, "id long, n long")
    return [exchange.subpartitions for exchange in groups._chain.exchanges()]


def test_small_rows_are_exchanged_into_few_partitions(job: SparkSession, spark: SparkSession) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "64"}):
        assert partitions_of_groups(job.range(1000)) == [1]
        assert partitions_of_groups(job.range(FEW_BYTES // 8)) == [1]
        assert partitions_of_groups(job.range(FEW_BYTES // 8 + 1)) == [TASKS_PER_CORE * 2]
        assert partitions_of_groups(job.range(9).mapInPandas(same, "id long")) == [TASKS_PER_CORE * 2]
        assert partitions_of_groups(job.range(BYTES // 8 * 20)) == [20]
        assert partitions_of_groups(job.range(BYTES * 1000)) == [64]
        assert partitions_of_groups(sortshuffle.frame(spark.range(1000))) == [1]
        assert partitions_of_groups(job.range(1000).repartition(50, "id")) == [50]
        numbers = job.range(9).mapInPandas(same, "id long")  # made before the setting
        with confs(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
            assert partitions_of_groups(job.range(1000)) == [64]
            assert partitions_of_groups(numbers) == [64]


def test_rows_that_a_plan_may_add_are_not_few(job: SparkSession, spark: SparkSession) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "64"}):
        few, default = job.range(3), TASKS_PER_CORE * 2
        exploded = few.select(sf.explode(sf.sequence(sf.lit(1), sf.lit(10_000_000))).alias("id"))
        assert partitions_of_groups(exploded) == [default]
        assert partitions_of_groups(exploded.cache()) == [default]
        exploded.unpersist()
        sent = job.createDataFrame([(1,), (2,)], "id long")
        many = sent.select(sf.explode(sf.sequence("id", sf.lit(10_000_000))).alias("id"))
        assert partitions_of_groups(many.localCheckpoint(eager=False)) == [64]  # of unknown size to Spark
        made = few.groupBy("id").applyInPandas(with_size, "id long, n long").where("hash(n) > 5")
        assert partitions_of_groups(made) == [default]
        assert partitions_of_groups(few.join(job.range(4, 6).withColumnRenamed("id", "n"))) == [default]
        assert partitions_of_groups(few.sample(withReplacement=True, fraction=100.0)) == [default]
        for none_added in (
            few.sample(0.5),
            few.offset(1),
            few.join(sent, "id", "left_semi"),
            few.subtract(job.range(2)),
            few.where("id > 1"),
            few.union(few),
            few.distinct(),
            few.repartition(3),
            few.sort("id"),
        ):
            assert partitions_of_groups(none_added)[-1] == 1


def test_a_large_side_does_not_follow_a_small_one_into_few_partitions(
    job: SparkSession, spark: SparkSession
) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "64", "spark.sql.autoBroadcastJoinThreshold": "-1"}):
        large = job.range(BYTES * 1000).mapInPandas(same, "id long")
        small = job.range(9)
        placed = small.repartition("id")._to_python("test")
        assert [each.subpartitions for each in placed._chain.exchanges()] == [1]
        asked = small.repartition(2, "id")._to_python("test")

        def counts(frame: DataFrame) -> list[int]:
            return sorted(each.subpartitions for each in frame._chain.exchanges())

        assert counts(large.join(placed, "id")) == [1, 64, 64]
        assert counts(placed.join(large, "id")) == [1, 64, 64]
        assert counts(large.join(asked, "id")) == [2, 2]  # as the user said
        assert counts(large.repartition("id").join(placed, "id")) == [1, 64, 64]
        both = large.groupBy("id").cogroup(placed.groupBy("id")).applyInPandas(lambda a, b: a, "id long")
        assert counts(both) == [1, 64, 64]
        assert counts(small.repartition("id")._to_python("test").join(placed, "id")) == [1, 1]


def test_rows_stay_where_they_are_if_the_rows_to_join_would_get_no_more_partitions(
    job: SparkSession, spark: SparkSession
) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "64", "spark.sql.autoBroadcastJoinThreshold": "-1"}):
        rows = job.range(20 * BYTES // 8).mapInPandas(same, "id long")
        placed, small = rows.repartition("id"), job.range(9).mapInPandas(same, "id long")

        def counts(frame: DataFrame) -> list[int]:
            return [each.subpartitions for each in frame._chain.exchanges()]

        assert counts(placed) == [20]
        assert counts(placed.join(placed.select("id"), "id")) == [20]
        assert counts(placed.join(rows.repartition("id"), "id")) == [20, 20]
        assert counts(placed.join(small, "id")) == counts(small.join(placed, "id")) == [20, 20]
        both = placed.groupBy("id").cogroup(small.groupBy("id"))
        assert counts(both.applyInPandas(lambda a, b: a, "id long")) == [20, 20]
        sums = rows.groupBy("id").agg(sf.sum("id").alias("sum"))
        (count,) = counts(sums)
        assert counts(sums.join(rows.groupBy("id").count(), "id")) == [count, count]


def test_rows_of_the_driver_are_small_although_spark_knows_no_size(
    job: SparkSession, spark: SparkSession
) -> None:
    context = spark.sparkContext
    local = job.createDataFrame([(number,) for number in range(1000)], "id long")
    large = job.createDataFrame([(number, "x" * 8000) for number in range(1000)], "id long, text string")
    unknown = job.createDataFrame(context.textFile(__file__).map(lambda line: (len(line),)), "id long")
    made = context.parallelize([(1,)]).flatMap(lambda row: [row] * 100_000).toDF("id long")
    with confs(spark, {"spark.sql.shuffle.partitions": "64"}):
        assert partitions_of_groups(made) == [64]
        assert partitions_of_groups(made.where("id > 0")) == [64]
        assert partitions_of_groups(local) == [1]
        assert partitions_of_groups(context.parallelize([(1,)]).toDF("id long")) == [1]
        assert partitions_of_groups(local.where("id > 5").union(local)) == [1]
        assert 6 < partitions_of_groups(large)[0] < 10  # MiB
        assert partitions_of_groups(unknown) == [64]
        assert partitions_of_groups(local.union(unknown)) == [64]
        assert partitions_of_groups(sortshuffle.frame(spark.createDataFrame([(1,)], "id long"))) == [64]


def test_what_a_users_function_made_outside_of_the_session_is_not_measured(
    job: SparkSession, spark: SparkSession
) -> None:
    """Few numbers were sent, and the function makes any number of rows of each."""
    numbers = spark.sparkContext.parallelize([(1,)]).flatMap(lambda row: [row] * 100_000)
    made = spark.createDataFrame(numbers, "id long")
    local = job.createDataFrame([(1,)], "id long")
    with confs(spark, {"spark.sql.shuffle.partitions": "64"}):
        assert partitions_of_groups(sortshuffle.frame(made)) == [64]
        assert partitions_of_groups(sortshuffle.frame(made).union(sortshuffle.frame(made))) == [64]
        assert partitions_of_groups(local.union(made)) == [64]


def test_small_rows_of_the_driver_joined_with_each_other_are_few_tasks(
    job: SparkSession, spark: SparkSession
) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "200"}):  # pairs of partitions would be 40000
        grouped = (
            job.createDataFrame([(1, 2)], "id long, n long")
            .groupBy("id")
            .applyInPandas(with_size, "id long, n long")
        )
        assert [tuple(row) for row in grouped.join(grouped).collect()] == [(1, 1, 1, 1)]


def test_the_session_can_leave_functions_to_spark(job: SparkSession) -> None:
    job.conf.set("spark.sortshuffle.session.python", "off")
    try:
        frame = job.range(6).mapInPandas(same, "id long")
        assert frame._own_rows is None
        assert sides(frame) == []
        assert [each.reason for each in frame._spark_functions] == ["spark.sortshuffle.session.python is off"]
        assert frame.count() == 6
        assert sortshuffle.frame(job.range(6)).mapInPandas(same, "id long")._own_rows is not None
        job.conf.set("spark.sortshuffle.session.python", "perhaps")
        with pytest.raises(OptionError, match=r"spark.sortshuffle.session.python.*perhaps"):
            job.range(6).mapInPandas(same, "id long")
    finally:
        job.conf.unset("spark.sortshuffle.session.python")


def logging_group(group: pd.DataFrame) -> pd.DataFrame:
    logging.getLogger("groups").warning(f"{len(group)} rows")
    return group


def test_functions_whose_logs_spark_keeps_are_left_to_spark(job: SparkSession, spark: SparkSession) -> None:
    java: Any = job
    with confs(spark, {"spark.sql.pyspark.worker.logging.enabled": "true"}):
        frame = job.range(2).groupBy("id").applyInPandas(logging_group, "id long")
        assert sorted(row.id for row in frame.collect()) == [0, 1]
        logs = job.tvf.python_worker_logs().where("logger = 'groups'").select("msg", "context.func_name")
        try:
            # Spark names functions that it calls itself
            assert [tuple(row) for row in logs.collect()] == [("1 rows", "logging_group")] * 2
        finally:
            java._jsparkSession.cleanupPythonWorkerLogs()


def test_a_barrier_stage_runs_after_an_exchange_of_sparks(job: SparkSession) -> None:
    """As docs/spark.md advises, where another exchange of the same rows is in the way."""
    rows = job.range(9).mapInPandas(same, "id long")
    groups = rows.groupBy("id").applyInPandas(with_size, "id long, n long")
    moved = rows.toDF().repartition(2).mapInPandas(same, "id long", barrier=True)
    assert sorted(row.id for row in moved.collect()) == list(range(9))
    assert groups.count() == 9


PROFILER = "spark.sql.pyspark.udf.profiler"


def profiled(session: Any) -> list[bool]:
    """Whether Spark's profiler has seen the user's function, on partitions and on groups."""
    maps = session.range(2).mapInPandas(same, "id long")
    groups = session.range(2).groupBy("id").applyInPandas(with_size, "id long, n long")
    seen = []
    for frame, function in ((maps, same), (groups, with_size)):
        session.profile.clear()
        assert frame.count() == 2
        results = session._profiler_collector._perf_profile_results.values()
        seen.append(function.__name__ in {name for each in results for _, _, name in each.stats})
    return seen


def test_functions_that_spark_profiles_are_left_to_spark(job: SparkSession, spark: SparkSession) -> None:
    with confs(spark, {PROFILER: "PERF"}):
        assert sides(job.range(2).mapInPandas(same, "id long")) == []
    with confs(spark, {PROFILER: "memory"}):
        frame: Any = job.range(2).mapInPandas(same, "id long")
        assert not frame._is_in_python
    with confs(spark, {PROFILER: "perf"}):
        assert profiled(job) == profiled(spark) == [True, True]
    spark.profile.clear()
    own: Any = job.range(2).mapInPandas(same, "id long")
    assert own._is_in_python


# ---- the rest of PySpark ----------------------------------------------------------------------------------


def test_rows_are_written_where_they_are(job: SparkSession, spark: SparkSession, tmp_path: Path) -> None:
    frame = job.range(6).mapInPandas(same, "id long").select(sf.col("id").alias("n"), "id")
    for number, write in enumerate(
        [
            lambda path: frame.write.parquet(path),
            lambda path: frame.write.mode("overwrite").format("parquet").save(path),
            lambda path: frame.write.format("json").save(path),
            lambda path: frame.write.partitionBy("n").parquet(path),
            lambda path: frame.write.option("header", True).csv(path),
        ]
    ):
        write(str(tmp_path / str(number)))
    read = spark.read.schema("n long, id long").option("header", True)
    kinds = ["parquet", "parquet", "json", "parquet", "csv"]
    found = [read.format(kind).load(str(tmp_path / str(number))) for number, kind in enumerate(kinds)]
    rows = [df.select(sf.lit(number), "n", "id") for number, df in enumerate(found)]
    assert sorted(map(tuple, functools.reduce(DataFrame.union, rows).collect())) == [
        (number, n, n) for number in range(len(kinds)) for n in range(6)
    ]
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        frame.write.parquet(str(tmp_path / "0"))


def test_batches_of_streams_are_frames(job: SparkSession, tmp_path: Path) -> None:
    job.range(5).write.parquet(str(tmp_path / "in"))
    found: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        groups = batch.groupBy("id").applyInPandas(with_size, "id long, n long")
        found.append((isinstance(batch, ShuffleFrame), sides(groups), groups.count()))
        others = [batch.sparkSession.range(1), batch.sparkSession.sparkContext.parallelize([(1,)]).toDF()]
        found.extend(type(each) for each in others)

    stream = job.readStream.schema("id long").parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(take).trigger(availableNow=True).start()
    query.awaitTermination()
    assert found == [(True, ["applyInPandas to Python"], 5), ClassicFrame, ClassicFrame]
    assert isinstance(job.sparkContext.parallelize([(1,)]).toDF(), ShuffleFrame)
    job.createDataFrame([(1,)])  # makes the session the active one again, which is now the batch's


def test_observations_arrive(job: SparkSession) -> None:
    observation = Observation()
    observed = job.range(10).observe(observation, sf.max("id").alias("most"))
    groups = observed.select("id").groupBy("id").applyInPandas(with_size, "id long, n long")
    assert sides(groups) == []
    assert groups.count() == 10
    assert observation.get == {"most": 9}


def test_functions_of_streams_stay_in_spark(job: SparkSession) -> None:
    stream = job.readStream.format("rate").load().mapInPandas(same, "timestamp timestamp, value long")
    assert stream.isStreaming
    assert isinstance(stream, ShuffleFrame)


def test_a_function_of_rows_with_vectors_is_sparks(job: SparkSession) -> None:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["id"])

    vectors = VectorAssembler(inputCols=["id"], outputCol="features").transform(job.range(5))
    left = vectors.mapInArrow(counted, "id long")
    assert (left._is_in_python, sides(left)) == (False, [])
    assert [each.operator for each in left._spark_functions] == ["mapInArrow"]
    assert "features" in left._spark_functions[0].reason
    assert sorted(row.id for row in left.collect()) == list(range(5))
    kept = vectors.drop("features").mapInArrow(counted, "id long")
    assert (kept._is_in_python, kept._spark_functions) == (True, ())


def test_scalar_functions_are_sparks(job: SparkSession) -> None:
    def squares(values: pd.Series) -> pd.Series:
        return values * values

    double, square = sf.udf(lambda value: value * 2, "long"), sf.pandas_udf(squares, "long")
    for rows, crossings in ((job.range(5), []), (job.range(5).mapInPandas(same, "id long"), ["Spark"])):
        called = rows.select(double("id").alias("d"), square("id").alias("s"))
        assert not called._is_in_python
        assert [each.to for each in called._crossings][-1:] == crossings
        assert sorted(map(tuple, called.collect())) == [(2 * n, n * n) for n in range(5)]


def test_pandas_on_spark_and_machine_learning_take_frames(job: SparkSession) -> None:
    frame = job.range(10).mapInPandas(same, "id long").withColumn("y", sf.col("id") * 2.0)
    assert frame.pandas_api()["y"].sum() == 90.0
    vectors = VectorAssembler(inputCols=["id"], outputCol="features").transform(frame)
    model = LinearRegression(labelCol="y").fit(vectors)
    assert round(model.coefficients[0], 6) == 2.0


def test_what_machine_learning_makes_of_frames_are_frames(job: SparkSession, spark: SparkSession) -> None:
    rows = job.range(24).selectExpr("id", "id * 2.0D + 1 as y", "id % 3 as k")
    assembler = VectorAssembler(inputCols=["id"], outputCol="features")
    regression = LinearRegression(labelCol="y")
    grid = ParamGridBuilder().addGrid(regression.regParam, [0.0]).build()
    search = CrossValidator(
        estimator=regression, estimatorParamMaps=grid, evaluator=RegressionEvaluator(labelCol="y"), numFolds=2
    )
    fitted = Pipeline(stages=[assembler, search]).fit(rows)
    predicted = fitted.transform(rows)
    groups = predicted.select("id", "k").groupBy("k").applyInPandas(with_size, "id long, k long, n long")

    assert fitted.stages[1].avgMetrics[0] < 1e-6  # the error of both folds
    assert isinstance(predicted, ShuffleFrame)
    assert sides(groups) == ["applyInPandas to Python"]
    assert groups.filter("n = 8").count() == 24
    assert {round(row.prediction - row.y, 6) for row in predicted.collect()} == {0.0}
    assert not isinstance(assembler.transform(spark.range(3)), ShuffleFrame)


def wrong(group: pd.DataFrame) -> pd.DataFrame:
    return group.assign(id="text")


@pytest.mark.parametrize("action", ["collect", "count", "first", "toPandas", "write"])
def test_errors_of_tasks_are_ours_and_pysparks(job: SparkSession, tmp_path: Path, action: str) -> None:
    frame = job.range(6).groupBy("id").applyInPandas(wrong, "id long")
    call = getattr(frame, action) if action != "write" else lambda: frame.write.parquet(str(tmp_path / "out"))
    with pytest.raises(SchemaMismatchError, match="applyInPandas") as raised:
        call()
    assert isinstance(raised.value, PythonException)
    assert isinstance(raised.value, ValueError)


def test_frames_compare_with_dataframes(job: SparkSession, spark: SparkSession) -> None:
    assertDataFrameEqual(job.range(5).mapInPandas(same, "id long"), spark.range(5))


def test_duplicate_names_and_other_results_that_arrow_cannot_carry_are_sparks(job: SparkSession) -> None:
    frame = job.range(4).mapInPandas(same, "id long")
    counted = frame.groupBy("id").count().groupBy("count").count()
    assert counted.columns == ["count", "count"]
    assert list(map(tuple, counted.collect())) == [(1, 4)]
    joined = frame.join(job.range(3), frame.id == sf.lit(1))
    assert joined.columns == ["id", "id"]
    assert joined.count() == 3


# ---- jobs without Python functions ------------------------------------------------------------------------


def ran(spark: SparkSession) -> dict[int, int]:
    """The number of stages of each of the last jobs, by the job's id."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    found = [jobs.apply(at) for at in range(jobs.length())]
    return {each.jobId(): each.stageIds().length() for each in found}


def python_free_jobs(session: SparkSession, directory: str) -> None:
    """Actions on rows that stay with Spark: of every kind of operator, reader and writer."""
    df = session.range(40).selectExpr("id", "id % 7 as k", "string(id % 3) as s")
    df.write.mode("overwrite").parquet(directory)
    files = session.read.parquet(directory)
    sums = files.groupBy("k").agg(sf.sum("id").alias("total"), sf.countDistinct("s"))
    joined = files.join(sf.broadcast(sums), "k").repartition(3, "k").sortWithinPartitions("id")
    assert joined.count() == 40
    joined.orderBy("id").limit(3).collect()
    df.repartition(3).groupBy("k").count().join(df.repartition(3), "k").orderBy("id").collect()
    files.distinct().toPandas()
    files.union(df).dropDuplicates(["k"]).show()
    files.cache().count()
    files.filter("k = 1").first()
    files.unpersist()
    df.createOrReplaceTempView("python_free")
    session.sql("select k, count(*) from python_free group by k order by k").take(2)
    files.describe("id").collect()
    files.stat.crosstab("k", "s").collect()
    files.groupBy("k").pivot("s", ["1", "2"]).count().toArrow()
    files.repartitionByRange(4, "id").rdd.glom().count()
    for _ in files.toLocalIterator():
        pass


def test_a_job_without_python_functions_runs_the_jobs_and_stages_of_plain_pyspark(
    spark: SparkSession, job: SparkSession, tmp_path: Path
) -> None:
    counts = []
    for name, session in (("plain", spark), ("ours", job)):
        before = ran(spark).keys()
        with confs(spark, {"spark.sql.shuffle.partitions": "2"}):
            python_free_jobs(session, str(tmp_path / name))
        counts.append([stages for number, stages in sorted(ran(spark).items()) if number not in before])
    assert counts[0] == counts[1]
    assert len(counts[0]) > 20
