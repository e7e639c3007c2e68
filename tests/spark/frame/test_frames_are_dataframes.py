"""A frame is a DataFrame: all public methods of PySpark's with their parameters; and looking at a frame plans
nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from oracle import counter_of_rows
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import (
    DataFrame,
    DataFrameNaFunctions,
    DataFrameStatFunctions,
    Observation,
    Row,
    SparkSession,
)
from pyspark.sql import functions as sf
from pyspark.sql.classic import dataframe as classic
from signatures import differing_signatures, public_names

from sortshuffle import ShuffleFrame
from sortshuffle.errors import UsageError
from sortshuffle.spark.frame.classic_frame import ClassicFrame

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def doubled(job: SparkSession) -> ShuffleFrame:
    """A frame of Python's side that nothing has planned yet."""
    frame = job.range(4).withColumn("k", sf.col("id") % 2).mapInArrow(same, "id long, k long")
    assert isinstance(frame, ShuffleFrame)
    return frame


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_every_public_method_has_pysparks_parameters(job: SparkSession) -> None:
    """Of other releases, and over Spark Connect, in test_oldest.py and test_connect.py."""
    assert differing_signatures(job) == {}


def test_frames_add_one_public_name() -> None:
    assert set(public_names(ClassicFrame)) - set(public_names(classic.DataFrame)) == {"stage_totals"}


def test_na_and_stat_work_on_frames(doubled: ShuffleFrame) -> None:
    assert isinstance(doubled.na, DataFrameNaFunctions)
    assert isinstance(doubled.stat, DataFrameStatFunctions)
    assert isinstance(doubled.na.drop(), ShuffleFrame)
    assert doubled.stat.corr("id", "id") == 1.0


def test_looking_at_a_frame_plans_nothing(doubled: ShuffleFrame) -> None:
    assert isinstance(doubled, DataFrame)
    assert repr(doubled) == str(doubled) == "DataFrame[id: bigint, k: bigint]"
    assert hasattr(doubled, "k")
    assert not hasattr(doubled, "nothing")
    assert {"id", "k", "mapInArrow"} <= set(dir(doubled))
    assert doubled.columns == ["id", "k"]
    assert doubled.dtypes == [("id", "bigint"), ("k", "bigint")]
    assert doubled["k"] is not None
    assert not doubled.isStreaming
    assert repr(doubled.groupBy("k")) == (
        "GroupedData[grouping expressions: [k], value: [id: bigint, k: bigint], type: GroupBy]"
    )
    doubled.printSchema()
    assert doubled._plain is None


def test_columns_of_a_frame_resolve_in_frames_derived_from_it(doubled: ShuffleFrame) -> None:
    derived = doubled.filter(doubled.id > 0).repartition(3, doubled.k)
    rows = derived.select(doubled.id, (doubled.k * 2 + derived.id).alias("sum"))

    assert sorted(map(tuple, rows.collect())) == [(1, 3), (2, 2), (3, 5)]


def test_columns_of_a_frame_that_is_already_planned_resolve(doubled: ShuffleFrame) -> None:
    assert doubled.toDF().count() == 4
    rows = doubled.filter(doubled.id > 1).select((doubled.id + 1).alias("next")).collect()
    assert sorted(row.next for row in rows) == [3, 4]


def test_a_column_of_another_frame_is_pysparks_error(job: SparkSession, doubled: ShuffleFrame) -> None:
    other = job.range(3).mapInArrow(same, "id long")
    with pytest.raises(Exception, match="MISSING_ATTRIBUTES"):
        doubled.filter(other.id > 1)


def test_names_of_frames_qualify_columns(doubled: ShuffleFrame) -> None:
    one, other = doubled.alias("one"), doubled.alias("other")
    joined = one.join(other, sf.col("one.id") == sf.col("other.k")).select("one.id", "other.id")
    assert sorted(map(tuple, joined.collect())) == [(0, 0), (0, 2), (1, 1), (1, 3)]


SELF_JOINS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "the maximum of each group": lambda a: (
        (b := a.groupBy("k").agg(sf.max("v").alias("v"))) and a.join(b, a.k == b.k).select(a.id, b.v)
    ),
    "the rows of the maximum": lambda a: (
        (b := a.groupBy("k").agg(sf.max("v").alias("v"))) and a.join(b, a.v == b.v).select(a.id, b.v)
    ),
    "by name": lambda a: (
        (b := a.groupBy("k").agg(sf.max("v").alias("v"))) and a.join(b, "k").select(a.id, b.v)
    ),
    "by two conditions": lambda a: (
        (m := a.groupBy("k").agg(sf.max("v").alias("m")))
        and a.join(m, (a.k == m.k) & (a.v == m.m)).select(a.id, m.m)
    ),
    "with a column more": lambda a: (
        (b := a.withColumn("w", sf.col("v") * 2)) and a.join(b.select("w"), a.id == b.w).select(a.k, b.w)
    ),
    "with itself renamed": lambda a: (
        (b := a.select(sf.col("id").alias("other"), "k")) and a.join(b, a.id == b.other).select(a.v, b.other)
    ),
}


@pytest.mark.parametrize("call", SELF_JOINS.values(), ids=SELF_JOINS.keys())
def test_columns_of_both_sides_of_a_self_join_resolve(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame], DataFrame]
) -> None:
    def rows(session: SparkSession) -> DataFrame:
        numbers = session.range(60).selectExpr("id", "id % 7 as k", "id * 1.5D as v")
        return numbers.mapInArrow(same, "id long, k long, v double")

    assert sorted(map(tuple, call(rows(job)).collect())) == sorted(map(tuple, call(rows(spark)).collect()))


def test_a_self_join_that_pyspark_finds_ambiguous_gives_rows(job: SparkSession, spark: SparkSession) -> None:
    def joined(session: SparkSession) -> DataFrame:
        f = session.range(4).selectExpr("id", "id % 2 as k")
        g = f.groupBy("id").applyInArrow(lambda group: group, f.schema)
        return g.join(f, g.id == f.k).select(g.id, f.id.alias("other"))

    with pytest.raises(AnalysisException) as raised:
        joined(spark)
    assert raised.value.getCondition() == "_LEGACY_ERROR_TEMP_1182"
    assert sorted(map(tuple, joined(job).collect())) == [(0, 0), (0, 2), (1, 1), (1, 3)]


def test_a_frame_meets_ordinary_dataframes(spark: SparkSession, doubled: ShuffleFrame) -> None:
    plain = spark.range(2)
    assert type(plain) is not ClassicFrame
    assert sorted(map(tuple, plain.join(doubled, "id").collect())) == [(0, 0), (1, 1)]
    assert sorted(map(tuple, doubled.join(plain, "id").collect())) == [(0, 0), (1, 1)]
    assert sorted(map(tuple, doubled.join(sf.broadcast(plain), "id").collect())) == [(0, 0), (1, 1)]
    assert doubled.drop("k").union(plain).count() == plain.union(doubled.drop("k")).count() == 6


def test_sql_sees_frames(job: SparkSession, doubled: ShuffleFrame) -> None:
    doubled.createOrReplaceTempView("doubled")
    assert job.sql("select sum(id) s from doubled").first().s == 6
    assert job.sql("select sum(id) s from {f}", f=doubled).first().s == 6
    assert isinstance(job.table("doubled"), ShuffleFrame)


def test_kept_rows_are_computed_once(job: SparkSession) -> None:
    made, counted = counter_of_rows(job)
    frame = job.range(10).mapInPandas(counted, "id long").cache()
    try:
        assert [frame.count(), frame.filter("id > 4").count(), frame.groupBy("id").count().count()] == [
            10,
            5,
            10,
        ]
        assert made.value == 10
    finally:
        frame.unpersist()


def test_kept_rows_reach_frames_that_were_made_before(job: SparkSession) -> None:
    made, counted = counter_of_rows(job)
    frame = job.range(10).mapInPandas(counted, "id long")
    derived = [
        frame.filter("id > 4"),
        frame.mapInPandas(counted, "id long").filter("id > 4"),
        frame.repartition(2, "id").filter("id > 4"),
        frame.groupBy("id").count().filter("id > 4"),
        frame.join(frame.filter("id > 4"), "id"),
    ]
    equal = frame.alias("equal")
    assert isinstance(frame.cache(), ShuffleFrame)
    try:
        assert frame.count() == 10
        assert [each.count() for each in derived] == [5] * 5
        assert sorted(row.id for row in equal.collect()) == list(range(10))
        assert made.value == 10 + 10
    finally:
        equal.unpersist()
    assert frame.count() == 10
    assert made.value == 10 + 10 + 10


def test_where_rows_are_kept_is_what_spark_says(job: SparkSession, spark: SparkSession) -> None:
    def levels(session: SparkSession) -> list[Any]:
        frame = session.range(4).mapInArrow(same, "id long")
        equal, found = frame.alias("equal"), []
        for change in (lambda: None, frame.cache, lambda: frame.filter("id > 1"), equal.unpersist):
            change()
            found += [frame.storageLevel, equal.storageLevel]
        return found

    assert levels(job) == levels(spark)


def test_looking_for_kept_rows_plans_nothing(doubled: ShuffleFrame) -> None:
    assert not doubled.is_cached
    assert not doubled.storageLevel.useMemory
    doubled.unpersist()
    assert doubled._plain is None


# ---- calls on which a frame once gave other rows than Spark -----------------------------------------------

Sides = Callable[[DataFrame, DataFrame], Any]

CALLS: dict[str, Sides] = {
    "the right key of a left join": lambda a, b: a.join(b, "id", "left").select(b.id),
    "a count of the right key": lambda a, b: a.join(b, "id", "left").groupBy("id").agg(sf.count(b.id)),
    "a count of the hidden right key": lambda a, b: (
        a.join(b.withColumnRenamed("k", "w"), "id", "left").groupBy("k").agg(sf.count(b.id).alias("n"))
    ),
    "a count of the hidden left key": lambda a, b: (
        b.join(a.withColumnRenamed("k", "w"), "id", "right").groupBy("w").agg(sf.count(b.id).alias("n"))
    ),
    "a sum of a column that was replaced": lambda a, b: (
        a.withColumn("k", sf.col("k") + 1).groupBy("id").agg(sf.sum(a.k))
    ),
    "counts of constants": lambda a, b: a.groupBy("k").agg(
        sf.count(sf.lit("x")), sf.count(sf.lit(1)), sf.count(sf.lit(True)), sf.count("*").alias("n")
    ),
    "counts of constants with an alias": lambda a, b: a.groupBy("k").agg(
        sf.count(sf.lit("x")).alias("n"), sf.count(sf.lit(None)).alias("none")
    ),
    "an anti join by nulls": lambda a, b: a.join(b, "id", "left").filter(b.id.isNull()),
    "a drop of the right key": lambda a, b: a.join(b, "id").drop(b.id),
    "a drop of a column that was renamed": lambda a, b: a.select(a.id.alias("k"), a.k.alias("id")).drop(a.id),
    "a drop by a qualified name": lambda a, b: a.alias("a").drop(sf.col("a.k")),
    "a name in another case": lambda a, b: a.select("K"),
    "a key in another case": lambda a, b: a.groupBy("K").count(),
    "metadata": lambda a, b: a.select(a.k.alias("x", metadata={"unit": "s"})),
    "a column of a frame before one that ran": lambda a, b: ran(a.select("id", "k")).filter(a.k == 1),
    "a column before an exchange that ran": lambda a, b: ran(a.repartition(3, "k")).where(a.k == 1),
    "a comparison with its own filter": lambda a, b: (
        (c := a.filter(a.id > 3)) and a.join(c, (a.k == c.k) & (a.id < c.id))
    ),
}


def ran(frame: DataFrame) -> DataFrame:
    frame.collect()
    return frame


def outcome(call: Sides, session: SparkSession) -> Any:
    """Return the schema and the rows that a call gives, or the class and condition of its error."""
    a, b = (
        session.range(count).selectExpr("id", f"id % {keys} as k").mapInArrow(same, "id long, k long")
        for count, keys in ((10, 3), (5, 2))
    )
    try:
        frame = call(a, b)
        return frame.schema, [field.metadata for field in frame.schema], sorted(map(str, frame.collect()))
    except PySparkException as error:
        return type(error), error.getCondition()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_call_gives_what_pyspark_gives(job: SparkSession, spark: SparkSession, call: Sides) -> None:
    assert outcome(call, job) == outcome(call, spark)


def test_a_column_of_another_frame_is_not_looked_up_by_name(job: SparkSession) -> None:
    rows = job.range(9).selectExpr("id", "8 - id as k").mapInArrow(same, "id long, k long")
    swapped = rows.select(rows.id.alias("k"), rows.k.alias("id"))
    assert [row.k for row in swapped.sort(rows.id).collect()] == list(range(9))


def test_arguments_that_change_after_a_call_do_not_change_it(job: SparkSession) -> None:
    names = ["k"]
    frame = job.range(9).selectExpr("id", "id % 3 as k").repartition(3, "k").dropDuplicates(names)
    names.append("id")
    assert frame.count() == frame.mapInArrow(same, "id long, k long").count() == 3


def test_a_sample_is_one_set_of_rows_on_both_sides(job: SparkSession) -> None:
    frame = job.range(100).repartition(3, "id").sample(0.5, seed=3)
    assert sorted(frame.collect()) == sorted(frame.mapInArrow(same, "id long").collect())


def test_threads_share_a_frame(job: SparkSession) -> None:
    frame = job.range(20).mapInArrow(same, "id long")
    with ThreadPoolExecutor(4) as threads:
        columns = list(threads.map(lambda _: frame.id, range(8)))
    assert [frame.filter(column == 3).count() for column in columns] == [1] * 8


def test_a_written_path_is_forgotten_by_the_cache(job: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    job.range(3).write.parquet(path)
    kept = job.read.parquet(path).cache()
    try:
        assert kept.count() == 3
        job.range(3).mapInArrow(same, "id long").write.mode("append").parquet(path)
        assert (kept.count(), job.read.parquet(path).count()) == (6, 6)
    finally:
        kept.unpersist()


@pytest.mark.parametrize("path", ["", "file:", "file:relative"])
def test_a_path_that_is_none_destroys_nothing(
    job: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "mine").write_text("kept")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((PySparkException, UsageError)):
        job.range(3).mapInArrow(same, "id long").write.mode("overwrite").parquet(path)
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_target_that_appears_while_the_job_runs_is_left(job: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "out"

    def meanwhile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target.mkdir(exist_ok=True)
        (target / "theirs").write_text("kept")
        yield from batches

    with pytest.raises(UsageError, match="somebody else has written it meanwhile"):
        job.range(3).mapInArrow(meanwhile, "id long").write.parquet(str(target))
    assert [path.name for path in target.iterdir()] == ["theirs"]


def test_the_first_row_needs_one_partition(job: SparkSession, tmp_path: Path) -> None:
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (tmp_path / str(batch["id"][0])).touch()
            yield batch

    assert job.range(0, 20, 1, 20).mapInArrow(mark, "id long").take(1) == [Row(id=0)]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize("kind", ["ours", "plain"])
def test_an_observed_side_of_a_join_is_sparks(job: SparkSession, spark: SparkSession, kind: str) -> None:
    observation = Observation()
    other = (job if kind == "ours" else spark).range(10).observe(observation, sf.max("id").alias("most"))
    assert job.range(20).mapInArrow(same, "id long").join(other, "id").count() == 10
    assert observation.get == {"most": 9}
