"""Columns that a selection dropped resolve on Python's side as in Spark. So do aggregates of grouped rows.
Long chains of calls need no deep stack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import assert_same_error
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import ColumnError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "id long, k long, v long"
DEEP = 400  # calls, each of which would take several levels of Python's stack
Call: TypeAlias = Callable[[DataFrame, DataFrame], DataFrame]

HIDDEN: dict[str, Call] = {
    "filter": lambda f, _: f.select("id").filter(f.k == 1),
    "filter by name": lambda f, _: f.select("id").filter("k = 1"),
    "sort": lambda f, _: f.select(f.id.alias("x")).sort(f.v.desc()),
    "renamed beside dropped": lambda f, _: (s := f.select(f.id.alias("x"), "v")).filter(
        (f.k == 1) & (s.x > 2)
    ),
    "after a drop": lambda f, _: f.drop("k").filter(f.k == 1),
    "behind an exchange": lambda f, _: f.repartition(3, "k").select("id").filter(f.k == 1),
    "behind a limit": lambda f, _: f.sort("id").limit(4).select("id").filter(f.k == 1),
    "through a limit": lambda f, _: f.select("v").limit(99).filter(f.k == 1),
    "through duplicates": lambda f, _: f.drop("k").dropDuplicates(["v"]).sort(f.k, "id"),
    "of the other side": lambda f, g: f.join(g, "id", "left").filter(g.k.isNull()),
    "of a key that is joined": lambda f, g: f.join(g, "id", "left").select(f.v, g.id, g.k),
    "of both sides": lambda f, g: f.join(g, f.id == g.id).select(f.v).filter((f.k + g.k) > 1),
    "of a self join": lambda f, _: f.alias("l").join(f.alias("r"), "k").select("l.v").filter("r.id = 1"),
    "condition on groups": lambda f, _: f.groupBy("k").agg(sf.sum("v").alias("t")).filter(sf.count("*") > 2),
    "order of groups": lambda f, _: f.groupBy("k").count().sort(sf.max("v").desc()),
}
"""Calls that use columns which their frames no longer have."""


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def rows_of(session: SparkSession, frame: Callable[[SparkSession], DataFrame]) -> list[Row]:
    """Return the sorted rows of a frame that is made in the session, and clear the cache."""
    try:
        return sorted(frame(session).collect())
    finally:
        session.catalog.clearCache()


def numbers(session: SparkSession, count: int) -> DataFrame:
    """Return a frame of Python's side in a session of `sortshuffle.session`."""
    source = session.range(count).select("id", (sf.col("id") % 3).alias("k"), (sf.col("id") * 2).alias("v"))
    return source.mapInArrow(same, SCHEMA)


@pytest.mark.parametrize("call", HIDDEN.values(), ids=HIDDEN.keys())
def test_hidden_columns_resolve(job: SparkSession, spark: SparkSession, call: Call) -> None:
    ours, plain = (call(numbers(session, 7), numbers(session, 4)) for session in (job, spark))
    assert ours.schema == plain.schema
    assert sorted(ours.collect()) == sorted(plain.collect())


@pytest.mark.parametrize("call", HIDDEN.values(), ids=HIDDEN.keys())
def test_hidden_columns_of_kept_frames_resolve(job: SparkSession, spark: SparkSession, call: Call) -> None:
    def of_kept(session: SparkSession) -> DataFrame:
        return call(*(numbers(session, count).select("id", "k", "v").persist() for count in (7, 4)))

    found, wanted = (rows_of(session, of_kept) for session in (job, spark))
    assert found == wanted != []


KEPT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "selected": lambda f: f.select("id").persist().filter(f.k == 1),
    "twice": lambda f: f.select("id", "k").persist().select("id").persist().filter(f.v > 4),
    "condition on groups": lambda f: (
        f.groupBy("k").agg(sf.sum("v").alias("t")).persist().filter(sf.count("*") > 2)
    ),
    "order of groups": lambda f: f.groupBy("k").count().persist().sort(sf.max("v").desc()),
    "kept after it was used": lambda f: (s := f.select("id"), s.filter(f.k == 1), s.persist())[2].filter(
        f.k == 1
    ),
}


@pytest.mark.parametrize("call", KEPT.values(), ids=KEPT.keys())
def test_hidden_columns_behind_a_kept_frame_resolve(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame], DataFrame]
) -> None:
    found, wanted = (rows_of(session, lambda session: call(numbers(session, 7))) for session in (job, spark))
    assert found == wanted != []


def test_spark_knows_what_a_kept_frame_is(job: SparkSession) -> None:
    kept = numbers(job, 7).select("id", "k").persist()
    try:
        kept.createOrReplaceTempView("kept")
        assert job.catalog.isCached("kept")
        assert kept.toDF().storageLevel == kept.storageLevel
        derived = kept.select("k", "id").filter(sf.soundex(kept.k.cast("string")) != "1")
        assert "InMemoryTableScan" in derived._jdf.queryExecution().executedPlan().toString()
        job.catalog.uncacheTable("kept")
        assert not kept.storageLevel.useMemory
    finally:
        kept.unpersist()


def test_hidden_columns_resolve_after_their_frame_was_planned_for_spark(job: SparkSession) -> None:
    f, g = numbers(job, 7), numbers(job, 4)
    chosen, joined = f.select("id"), f.join(g, "id", "left")
    for frame in (chosen, joined):
        frame.toDF()
    assert sorted(row.id for row in chosen.filter(f.k == 1).collect()) == [1, 4]
    assert sorted(row.id for row in joined.filter(g.k.isNull()).collect()) == [4, 5, 6]


SOURCES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "kept": lambda session: numbers(session, 7).select("id", "k", "v").persist(),
    "kept function": lambda session: numbers(session, 7).persist(),
    "coalesced": lambda session: numbers(session, 7).select("id", "k", "v").coalesce(1),
    "wrapped": lambda session: wrapped(session),
    "wrapped and exchanged": lambda session: wrapped(session).repartition(3, "k"),
    "wrapped and kept": lambda session: wrapped(session).persist(),
    "wrapped and coalesced": lambda session: wrapped(session).coalesce(1),
    "wrapped beside a broadcast": lambda session: wrapped(session).join(
        sf.broadcast(numbers(session, 7).select("k").distinct()), "k", "left_semi"
    ),
}


def wrapped(session: SparkSession) -> DataFrame:
    """Return rows of Spark's, as a frame of Python's side in a session of `sortshuffle.session`."""
    source = session.range(7).select("id", (sf.col("id") % 3).alias("k"), (sf.col("id") * 2).alias("v"))
    return sortshuffle.frame(source) if isinstance(source, ShuffleFrame) else source


def test_a_kept_frame_is_not_made_again_for_hidden_columns(job: SparkSession) -> None:
    made = job.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made.add(batch.num_rows)
            yield batch

    kept = numbers(job, 7).mapInArrow(counted, SCHEMA).select("id", "k").persist()
    try:
        assert sorted(row.id for row in kept.select("id").filter(kept.k == 1).collect()) == [1, 4]
        assert sorted(row.id for row in kept.select("id").filter(kept.k == 2).collect()) == [2, 5]
        assert made.value == 7
    finally:
        kept.unpersist()


BEHIND: dict[str, Call] = {
    "own column": lambda source, made: made.filter(sf.soundex(made.k.cast("string")) != "1"),
    "new column": lambda source, made: made.withColumn("u", sf.soundex(made.k.cast("string"))),
    "column of the source": lambda source, made: made.filter(sf.soundex(source.k.cast("string")) != "1"),
    "dropped column": lambda source, made: made.filter(sf.soundex(source.v.cast("string")) != "4"),
    "groups": lambda source, made: made.groupBy(source.k).agg(sf.max(made.id)),
    "join": lambda source, made: source.filter("id < 3").join(made.filter("k = 1"), "id"),
    "a frame that was made before": lambda source, made: (
        (d := made.filter("id > 1")),
        made.toDF(*made.columns),
        d.groupBy(made.k).agg(sf.max(source.id)),
    )[2],
    "computed beside": lambda source, made: made.crossJoin(d := made.withColumn("x", sf.lit(1))).select(d.x),
}
"""Calls on a frame and on what a selection has made of it."""


@pytest.mark.parametrize(
    "then",
    [lambda frame: None, lambda frame: frame.createOrReplaceTempView("made"), DataFrame.persist],
    ids=["new", "planned", "kept"],
)
@pytest.mark.parametrize("call", BEHIND.values(), ids=BEHIND.keys())
def test_columns_of_frames_behind_a_kept_one(
    job: SparkSession, spark: SparkSession, call: Call, then: Callable[[DataFrame], object]
) -> None:
    """The plan of the second begins with that of the first. ``then``: what is done with the second first."""

    def behind(session: SparkSession) -> DataFrame:
        kept = numbers(session, 7).select("id", "k", "v").persist()
        made = kept.select("k", "id")
        then(made)
        return call(kept, made)

    found, wanted = (rows_of(session, behind) for session in (job, spark))
    assert found == wanted != []


@pytest.mark.parametrize("call", BEHIND.values(), ids=BEHIND.keys())
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_columns_of_frames_whose_plan_is_below(
    job: SparkSession, spark: SparkSession, source: Callable[[SparkSession], DataFrame], call: Call
) -> None:
    def above(session: SparkSession) -> DataFrame:
        below = source(session)
        return call(below, below.select("k", "id"))

    found, wanted = (rows_of(session, above) for session in (job, spark))
    assert found == wanted != []


@pytest.mark.parametrize(
    "keep",
    [
        lambda frame: frame.select("id", "k"),
        lambda frame: frame.repartition(3, "k"),
        lambda frame: frame.sort("k"),
        lambda frame: frame.groupBy("k").agg(sf.max("id").alias("id")),
        lambda frame: sortshuffle.frame(frame.toDF().select("k", sf.col("id").alias("id"))),
    ],
    ids=["selection", "exchange", "sort", "groups", "wrapped"],
)
def test_frames_behind_a_kept_one_read_the_cache(
    job: SparkSession, keep: Callable[[DataFrame], DataFrame]
) -> None:
    kept = keep(numbers(job, 7)).persist()
    try:
        derived = kept.select("k", "id").filter(sf.soundex(kept.k.cast("string")) != "x")
        assert "InMemoryTableScan" in derived._jdf.queryExecution().executedPlan().toString()
        assert {row.k for row in derived.collect()} == {0, 1, 2}
    finally:
        kept.unpersist()


def test_a_plan_whose_column_ids_spark_cannot_renew(job: SparkSession) -> None:
    numbers(job, 3).createOrReplaceTempView("some")
    tables = job.sql("SHOW TABLES").withColumn("upper", sf.upper("tableName"))
    sortshuffle.frame(tables).filter("upper <> 'OTHER'").createOrReplaceTempView("tables")
    assert "SOME" in {row["upper"] for row in job.table("tables").collect()}


def test_a_column_of_another_frame_beside_an_arrow_expression(job: SparkSession) -> None:
    f, g = numbers(job, 7), numbers(job, 4).select("k")
    joined = f.join(g, "k", "full")
    with pytest.raises(ColumnError, match="another DataFrame"):
        joined.withColumns({"n": pc.field("v"), "of g": g.k})


def test_hidden_columns_of_rows_that_only_python_selects(job: SparkSession) -> None:
    frame = numbers(job, 9)
    chosen = frame.filter(pc.field("k") > 0)
    assert [row.id for row in chosen.select("id").filter(frame.v > 6).sort("id").collect()] == [4, 5, 7, 8]
    doubled = frame.withColumn("k", pc.add(pc.field("k"), pc.field("k")))
    assert {row.id for row in doubled.select("id").filter(doubled.k == 4).collect()} == {2, 5, 8}


def test_hidden_columns_do_not_pass_what_only_python_selects(job: SparkSession) -> None:
    frame = numbers(job, 9)
    with pytest.raises(AnalysisException, match="MISSING_ATTRIBUTES"):
        frame.select("id").filter(pc.field("id") > 1).filter(frame.k == 1)


SAMPLED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sample": lambda f: f.select("id").sample(0.5, 7),
    "without a seed": lambda f: f.select("id").sample(0.5),
    "kept": lambda f: f.select("id").sample(0.5, 7).persist(),
    "narrowed": lambda f: f.select("id").sample(0.5, 7).filter("id > 3").limit(400),
}


@pytest.mark.parametrize("sample", SAMPLED.values(), ids=SAMPLED.keys())
def test_hidden_columns_do_not_pass_a_sample(
    job: SparkSession, sample: Callable[[DataFrame], DataFrame]
) -> None:
    """Spark would draw another sample."""
    frame = numbers(job, 1000)
    sampled = sample(frame)
    try:
        with pytest.raises(AnalysisException, match="MISSING_ATTRIBUTES") as caught:
            sampled.filter(frame.k == 1)
        if sys.version_info >= (3, 11):
            assert "Drop the column later." in caught.value.__notes__[0]
    finally:
        job.catalog.clearCache()


def test_a_selection_of_a_sample_has_its_rows(job: SparkSession) -> None:
    sample = numbers(job, 1000).sample(0.5, 7)
    wanted = sorted(row.id for row in sample.collect() if row.k != 1)
    # only Spark has soundex(), which leaves digits as they are
    by_spark = sample.select("id", "k").filter(sf.soundex(sample.k.cast("string")) != "1")
    assert sorted(row.id for row in by_spark.collect()) == wanted


SELF_JOINED: dict[str, Call] = {
    "select": lambda g, j: j.select("v", g.id),
    "groups": lambda g, j: j.groupBy(g.id).count(),
    "aggregate": lambda g, j: j.groupBy("v").agg(sf.max(g.id)),
    "function": lambda g, j: j.groupBy(g.id).applyInArrow(
        lambda table: table, "id long, k long, v long, w long"
    ),
    "sort": lambda g, j: j.sort(g.id.desc()),
    "exchange": lambda g, j: j.repartition(3, g.id),
    "exchange by ranges": lambda g, j: j.repartitionByRange(3, g.id),
    "drop": lambda g, j: j.drop(g.id),
    "own column": lambda g, j: j.select(j.id, j.w),
    "column of one side": lambda g, j: j.select("id", g.w),
}
"""Calls with columns of one side of a self join."""


@pytest.mark.parametrize("call", SELF_JOINED.values(), ids=SELF_JOINED.keys())
def test_columns_of_one_side_of_a_self_join(job: SparkSession, spark: SparkSession, call: Call) -> None:
    def joined(session: SparkSession) -> DataFrame:
        frame = numbers(session, 7)
        other = frame.filter("id < 3").select("id", frame.v.alias("w"))
        return call(other, frame.join(other, "id", "left"))

    found, wanted = (sorted(joined(session).collect(), key=str) for session in (job, spark))
    assert found == wanted != []


ZIPPED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "selections": lambda f: f.select("id").zip(f.select("v", (sf.col("k") + 1).alias("n"))),
    "selections of a kept frame": lambda f: (p := f.persist()).select("id").zip(p.select("v")),
    "what Spark computes": lambda f: (h := f.filter("id > 1")).zip(h.withColumn("n", sf.col("k") + 1)),
    "what only Spark computes": lambda f: (h := f.filter("id > 1")).zip(
        h.withColumn("n", sf.soundex(sf.col("id").cast("string")))
    ),
    "a frame with what only Spark computes": lambda f: (
        (h := f.filter("id > 1")).withColumn("n", sf.soundex(sf.col("id").cast("string"))).zip(h)
    ),
}
"""Pairs of frames that were made of one."""

needs_zip = pytest.mark.skipif(not hasattr(DataFrame, "zip"), reason="PySpark has no zip() before 4.3")


@needs_zip
@pytest.mark.parametrize("call", ZIPPED.values(), ids=ZIPPED.keys())
def test_selections_of_one_frame_are_zipped(
    job: SparkSession, spark: SparkSession, call: Callable[[DataFrame], DataFrame]
) -> None:
    found, wanted = (rows_of(session, lambda session: call(numbers(session, 7))) for session in (job, spark))
    assert found == wanted != []


@needs_zip
def test_frames_of_other_rows_are_not_zipped(job: SparkSession, spark: SparkSession) -> None:
    ours = numbers(job, 7)
    assert isinstance(ours, ShuffleFrame)
    assert_same_error(
        lambda frame: frame.zip(numbers(frame.sparkSession, 4)).collect(), ours, numbers(spark, 7)
    )


@pytest.mark.parametrize(
    "narrow",
    [lambda f: f.select("id").persist(), lambda f: f.select("id").limit(99)],
    ids=["kept", "limit"],
)
def test_a_base_that_hidden_columns_passed_is_none_any_more(
    job: SparkSession, spark: SparkSession, narrow: Callable[[DataFrame], DataFrame]
) -> None:
    def joined(session: SparkSession) -> DataFrame:
        f, g = numbers(session, 7), numbers(session, 7)
        return g.join(narrow(f).filter(f.k == 1), "id").select("id").filter(g.v > 2)

    found, wanted = (rows_of(session, joined) for session in (job, spark))
    assert found == wanted != []


def test_hidden_columns_are_those_of_the_sample(job: SparkSession) -> None:
    frame = numbers(job, 1000)
    sample = frame.sample(0.5, 7)
    wanted = [row.id for row in sample.collect() if row.k == 1]
    assert sorted(row.id for row in sample.select("id").filter(sample.k == 1).collect()) == sorted(wanted)


COALESCED: dict[str, Call] = {
    "alone": lambda f, _: f.coalesce(3),
    "its column": lambda f, _: (c := f.coalesce(1)).filter(c.k + f.k > 1),
    "its name": lambda f, _: f.coalesce(1).alias("c").filter("c.k > 1 and k + 0 > 1").select("c.v"),
    "hidden": lambda f, _: f.coalesce(2).select("id").filter(f.k == 1),
}
"""Frames that begin with Spark's plan of another frame."""


@pytest.mark.parametrize("call", COALESCED.values(), ids=COALESCED.keys())
def test_coalesced_frames_keep_their_rows(job: SparkSession, spark: SparkSession, call: Call) -> None:
    ours, plain = (call(numbers(session, 7), numbers(session, 4)) for session in (job, spark))
    assert sorted(ours.collect()) == sorted(plain.collect())


def test_a_column_that_was_never_there_is_pysparks_error(job: SparkSession, spark: SparkSession) -> None:
    def wrong(frame: DataFrame) -> None:
        frame.select("id").filter(numbers(frame.sparkSession, 4).k == 1)

    ours = numbers(job, 4)
    assert isinstance(ours, ShuffleFrame)
    assert_same_error(wrong, ours, numbers(spark, 4))


def test_rows_stay_in_python_without_hidden_columns(job: SparkSession) -> None:
    frame = numbers(job, 4)
    computed = frame.select("id", "k").withColumn("u", sf.upper(sf.lit("a")) + frame.k)
    assert isinstance(computed, ShuffleFrame)
    assert "MapInArrow sortshuffle stage" in computed._jdf.queryExecution().analyzed().toString()


def renamed(frame: DataFrame, last: str) -> Iterator[DataFrame]:
    """Yield frames, each of which has one more name for the column that ``frame`` calls ``last``."""
    for number in range(DEEP):
        frame = frame.withColumnRenamed(last, f"n{number}")
        last = f"n{number}"
        yield frame


def test_long_chains_on_pythons_side(job: SparkSession) -> None:
    *_, frame = renamed(numbers(job, 6), "v")
    column = frame[frame.columns[-1]]
    assert frame.filter(column > 4).filter(f"{frame.columns[-1]} % 4 = 0").count() == 1


def test_hidden_columns_behind_a_long_chain(job: SparkSession) -> None:
    frame = numbers(job, 6)
    *_, last = renamed(frame, "v")
    assert sorted(row.id for row in last.drop("k").filter(frame.k == 1).collect()) == [1, 4]


def test_long_chains_that_are_remembered(job: SparkSession) -> None:
    source = job.range(6).repartition(2, "id")
    (frame,) = islice(renamed(source, "id"), DEEP - 1, None)
    made = frame.mapInArrow(same, frame.schema)
    assert sorted(row[0] for row in made.collect()) == list(range(6))
