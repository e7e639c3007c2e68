"""Spark removes a shuffle of control rows, and the janitor its map outputs, once Python has no reader of it;
whatever Spark may still read stays."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine import eventually
from job_process import run_job
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.classic.dataframe import DataFrame

import sortshuffle
from sortshuffle.homes.janitor import is_running
from sortshuffle.spark.session import control_shuffles
from sortshuffle.spark.session.control_shuffles import remove_unused, shuffles_of_spark
from sortshuffle.storage.files import spare_files

ROWS = 200


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unused shuffles are removed without a wait."""
    monkeypatch.setattr(control_shuffles, "UNUSED_FOR", 0.0)
    monkeypatch.setattr(control_shuffles, "JANITORS_START", 0.0)


def exchanged(spark: SparkSession) -> Any:
    return sortshuffle.frame(spark.range(ROWS)).repartition(3, "id")


def shuffle_of(frame: Any) -> int:
    """Spark's number of the shuffle that the last exchange of a frame goes through."""
    *_, exchange = frame._own_rows.chain.exchanges()
    return int(exchange.control_rows().shuffle.number)


def shuffles(spark: SparkSession) -> set[int]:
    return shuffles_of_spark(spark.sparkContext)


def shuffles_that_stay(spark: SparkSession) -> set[int]:
    gc.collect()
    remove_unused(spark.sparkContext)
    return shuffles(spark)


@pytest.mark.usefixtures("at_once")
def test_a_shuffle_goes_with_its_last_reader_when_the_next_stage_is_planned(spark: SparkSession) -> None:
    frame = exchanged(spark)
    assert frame.count() == ROWS
    shuffle = shuffle_of(frame)
    filtered = frame.filter("id < 10")
    del frame
    assert shuffle in shuffles_that_stay(spark)
    assert filtered.count() == 10
    del filtered
    gc.collect()
    assert shuffle in shuffles(spark)
    assert exchanged(spark).count() == ROWS
    assert shuffle not in shuffles(spark)


@pytest.mark.usefixtures("at_once")
def test_what_a_sample_in_fewer_partitions_reads_stays(spark: SparkSession) -> None:
    frame = exchanged(spark)
    plan = frame.union(frame).sample(0.9, 1).coalesce(2).toDF()
    shuffle, count = shuffle_of(frame), plan.count()
    del frame
    assert shuffle in shuffles_that_stay(spark)
    assert plan.rdd.getNumPartitions() == 2
    assert plan.count() == count > ROWS


def test_the_map_outputs_of_unused_shuffles_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Also if jobs are over before the janitor has seen that Spark knows their map outputs."""
    spark.conf.set("spark.sortshuffle.dir", str(tmp_path))
    try:
        first = exchanged(spark)
        assert first.count() == ROWS
        (home,) = {str(path.parent) for path in tmp_path.glob("**/exchange-*")}
        eventually(lambda: is_running(home), "the janitor starts")
        for _ in range(5):
            assert exchanged(spark).count() == ROWS
        del first
    finally:
        spark.conf.unset("spark.sortshuffle.dir")

    def are_deleted() -> bool:
        shuffles_that_stay(spark)
        return not list(tmp_path.glob("**/exchange-*"))

    assert not are_deleted()
    eventually(are_deleted, "the janitor deletes the map outputs")


def test_map_outputs_are_written_over_those_of_unused_shuffles(spark: SparkSession, tmp_path: Path) -> None:
    if spare_files._file_system_of(str(tmp_path)) not in spare_files.FILE_SYSTEMS:
        pytest.skip("no file is written over on this file system")
    rows = 1_000_000  # with random doubles, so that each file is worth keeping
    source = spark.range(0, rows, 1, 2).withColumn("v", sf.rand(7)).localCheckpoint()
    expected = source.agg(sf.sum("id"), sf.count("v")).collect()

    def sums() -> Any:
        return sortshuffle.frame(source).repartition(3, "id").agg(sf.sum("id"), sf.count("v")).collect()

    def inodes(pattern: str) -> set[int]:
        return {path.stat().st_ino for path in tmp_path.glob(pattern)}

    def are_kept() -> bool:
        shuffles_that_stay(spark)
        return bool(inodes("**/spares/*.spare"))

    spark.conf.set("spark.sortshuffle.dir", str(tmp_path))
    try:
        assert sums() == expected
        eventually(are_kept, "the janitor keeps the data files")
        before = inodes("**/spares/*.spare")
        assert sums() == expected
        assert before & inodes("**/exchange-*.data")
    finally:
        spark.conf.unset("spark.sortshuffle.dir")


def test_a_shuffle_stays_for_a_while(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_shuffles, "UNUSED_FOR", 600.0)
    monkeypatch.setattr(control_shuffles, "JANITORS_START", 0.0)
    frame = exchanged(spark)
    assert frame.count() == ROWS
    shuffle = shuffle_of(frame)
    del frame
    assert shuffle in shuffles_that_stay(spark)
    monkeypatch.setattr(control_shuffles, "UNUSED_FOR", 0.0)
    monkeypatch.setattr(control_shuffles, "JANITORS_START", math.inf)  # the session may be of any age
    assert shuffle in shuffles_that_stay(spark)
    monkeypatch.setattr(control_shuffles, "JANITORS_START", 0.0)
    assert shuffle not in shuffles_that_stay(spark)


def test_the_frame_that_an_action_makes_lives_until_its_end(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_shuffles, "UNUSED_FOR", 600.0)
    unused: list[int] = []
    show = DataFrame.show

    def noting(frame: Any, *args: Any, **kwargs: Any) -> None:
        unused.append(unused_now())
        show(frame, *args, **kwargs)

    def unused_now() -> int:
        return len(control_shuffles._unused[spark.sparkContext])

    exchanged(spark).count()
    gc.collect()
    monkeypatch.setattr(DataFrame, "show", noting)
    before = unused_now()
    sortshuffle.frame(spark.range(ROWS)).sort("id").show(3)
    assert unused == [before]


@pytest.mark.usefixtures("at_once")
def test_what_a_living_exchange_was_made_from_stays(spark: SparkSession) -> None:
    """Spark may have to run the stage between again."""
    first = exchanged(spark)
    second = first.mapInArrow(lambda batches: batches, "id long").repartition(2, "id")
    assert second.count() == ROWS
    both = {shuffle_of(first), shuffle_of(second)}
    del first
    assert both <= shuffles_that_stay(spark)
    del second
    assert not both & shuffles_that_stay(spark)


@pytest.mark.usefixtures("at_once")
def test_a_shuffle_of_several_exchanges_stays_for_the_last_one(spark: SparkSession) -> None:
    rows = sortshuffle.frame(spark.range(ROWS)).mapInArrow(lambda batches: batches, "id long")
    one, other = rows.repartition(2, "id"), rows.repartition(3, "id")
    assert one.count() == other.count() == ROWS
    shuffle = shuffle_of(one)
    assert shuffle == shuffle_of(other)
    del one, rows
    assert shuffle in shuffles_that_stay(spark)
    assert other.count() == ROWS
    del other
    assert shuffle not in shuffles_that_stay(spark)


def _iterated(frame: Any) -> Any:
    iterator = frame.toLocalIterator()
    next(iterator)
    return iterator


def _view(frame: Any) -> str:
    frame.createOrReplaceTempView("exchanged")
    return "exchanged"


KEPT_BY_SPARK: dict[str, tuple[Callable[[Any], Any], Callable[[SparkSession, Any], int]]] = {
    "a DataFrame": (lambda frame: frame.toDF(), lambda _, kept: kept.count()),
    "what Spark made of it": (lambda frame: frame.crossJoin(frame.limit(1)), lambda _, kept: kept.count()),
    "an RDD": (lambda frame: frame.rdd, lambda _, kept: kept.count()),
    "an iterator": (_iterated, lambda _, kept: 1 + len(list(kept))),
    "a view": (_view, lambda spark, kept: spark.table(kept).count()),
    "the cache": (lambda frame: frame.toDF().cache(), lambda _, kept: kept.count()),
    "a frame in the cache": (lambda frame: frame.persist().toDF(), lambda _, kept: kept.count()),
}


@pytest.mark.parametrize("case", KEPT_BY_SPARK)
@pytest.mark.usefixtures("at_once")
def test_what_spark_may_read_stays(spark: SparkSession, case: str) -> None:
    keep, count = KEPT_BY_SPARK[case]
    frame = exchanged(spark)
    kept = keep(frame)
    assert frame.count() == ROWS
    shuffle = shuffle_of(frame)
    del frame
    assert shuffle in shuffles_that_stay(spark)
    assert count(spark, kept) == ROWS
    spark.catalog.dropTempView("exchanged")
    spark.catalog.clearCache()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file for which tasks wait."""
    yield tmp_path / "open"
    (tmp_path / "open").touch()


@pytest.mark.usefixtures("at_once")
def test_a_shuffle_that_a_job_still_reads_stays_until_its_end(spark: SparkSession, gate: Path) -> None:
    """As after an interrupted action."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        while not gate.exists():
            time.sleep(0.01)
        yield from batches

    frame = exchanged(spark).mapInArrow(wait, "id long")
    shuffle, plan = shuffle_of(frame), frame._for_action()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(plan.collect)
        eventually(lambda: shuffle in shuffles(spark), "the job runs")
        del frame
        try:
            assert shuffle in shuffles_that_stay(spark)
            assert shuffle in shuffles_that_stay(spark)
        finally:
            gate.touch()
        assert len(answer.result()) == ROWS
    assert shuffle not in shuffles_that_stay(spark)


@pytest.mark.usefixtures("at_once")
def test_an_unused_frame_that_never_ran_is_no_matter(spark: SparkSession) -> None:
    frame = exchanged(spark)
    shuffle = shuffle_of(frame)
    del frame
    assert shuffle not in shuffles_that_stay(spark)
    assert exchanged(spark).count() == ROWS


def test_an_application_may_want_nothing_removed_and_the_next_one_has_numbers_of_its_own() -> None:
    """The second one holds its first frame. A frame of the first one, whose shuffle had the same number, goes
    only then."""
    found = run_job(Path(__file__).parents[1] / "jobs" / "three_applications.py")
    assert found["nothing removed"] == [[0], [0, 1], [0, 1, 2]]
    assert found["removed"] == [[0], [0, 1], [0, 2]]
    assert found["the next one"] == [[0], [0, 1], [0, 2]]
