"""`sortshuffle.session`: everything that makes DataFrames makes frames, rows cross only where they must, and
the rest of PySpark works on frames."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from oracle import confs
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.testing import assertDataFrameEqual

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import OptionError, SchemaMismatchError, UsageError
from sortshuffle.spark.frame.two_sided import LOGGER
from sortshuffle.spark.operators.partition_counts import BYTES, TASKS_PER_CORE

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def job(spark: SparkSession) -> SparkSession:
    return sortshuffle.session(spark)


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


def test_a_session_of_a_session_is_of_the_same_plain_one(job: SparkSession, spark: SparkSession) -> None:
    again = sortshuffle.session(job)
    assert again._plain_session is spark
    assert isinstance(again.range(1), ShuffleFrame)


@pytest.mark.parametrize("wrong", [None, "local[2]", 3], ids=repr)
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a SparkSession is needed, not"):
        sortshuffle.session(wrong)


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
        assert partitions_of_groups(job.range(1000)) == [TASKS_PER_CORE * 2]
        assert partitions_of_groups(job.range(BYTES // 8 * 20)) == [20]
        assert partitions_of_groups(job.range(BYTES * 1000)) == [64]
        assert partitions_of_groups(sortshuffle.frame(spark.range(1000))) == [64]
        assert partitions_of_groups(job.range(1000).repartition(50, "id")) == [50]
        with confs(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
            assert partitions_of_groups(job.range(1000)) == [64]


def test_the_session_can_leave_functions_to_spark(job: SparkSession) -> None:
    job.conf.set("spark.sortshuffle.session.python", "off")
    try:
        frame = job.range(6).mapInPandas(same, "id long")
        assert frame._own_rows is None
        assert sides(frame) == []
        assert frame.count() == 6
        assert sortshuffle.frame(job.range(6)).mapInPandas(same, "id long")._own_rows is not None
        job.conf.set("spark.sortshuffle.session.python", "perhaps")
        with pytest.raises(OptionError, match=r"spark.sortshuffle.session.python.*perhaps"):
            job.range(6).mapInPandas(same, "id long")
    finally:
        job.conf.unset("spark.sortshuffle.session.python")


def test_a_job_without_python_stages_has_no_job_and_no_stage_more(
    job: SparkSession, spark: SparkSession
) -> None:
    def run(session: SparkSession, group: str) -> tuple[int, int]:
        context = session.sparkContext
        context.setJobGroup(group, group)
        numbers = session.range(100).repartition(3).withColumn("k", sf.col("id") % 7)
        numbers.groupBy("k").count().join(numbers, "k").orderBy("id").collect()
        context.setLocalProperty("spark.jobGroup.id", None)
        tracker = context.statusTracker()
        jobs = tracker.getJobIdsForGroup(group)
        return len(jobs), sum(len(tracker.getJobInfo(number).stageIds) for number in jobs)

    assert run(job, "ours") == run(spark, "plain")


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
    kinds = ["parquet", "parquet", "json", "parquet", "csv"]
    for number, kind in enumerate(kinds):
        found = spark.read.format(kind).option("header", True).load(str(tmp_path / str(number)))
        assert sorted(int(row.n) for row in found.collect()) == list(range(6))
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        frame.write.parquet(str(tmp_path / "0"))


def test_batches_of_streams_are_frames(job: SparkSession, tmp_path: Path) -> None:
    job.range(5).write.parquet(str(tmp_path / "in"))
    found: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        groups = batch.groupBy("id").applyInPandas(with_size, "id long, n long")
        found.append((isinstance(batch, ShuffleFrame), sides(groups), groups.count()))

    stream = job.readStream.schema("id long").parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(take).trigger(availableNow=True).start()
    query.awaitTermination()
    assert found == [(True, ["applyInPandas to Python"], 5)]


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


def test_pandas_on_spark_and_machine_learning_take_frames(job: SparkSession) -> None:
    frame = job.range(10).mapInPandas(same, "id long").withColumn("y", sf.col("id") * 2.0)
    assert frame.pandas_api()["y"].sum() == 90.0
    vectors = VectorAssembler(inputCols=["id"], outputCol="features").transform(frame)
    model = LinearRegression(labelCol="y").fit(vectors)
    assert round(model.coefficients[0], 6) == 2.0


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
