"""`explain()`: the stages in the order of the data, what is chained in each, and what they did so far."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import sortshuffle
from sortshuffle import ShuffleFrame

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
Explained = Callable[[ShuffleFrame], str]


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id`` and a key ``k`` of 7 values."""
    return spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 as k")


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Explained:
    def text(frame: ShuffleFrame) -> str:
        """What `explain` prints, its stages and exchanges numbered from 1 as they are mentioned."""
        capsys.readouterr()
        frame.explain()
        seen: dict[str, int] = {}

        def renumbered(match: re.Match[str]) -> str:
            return f"{match[1]} {seen.setdefault(match[2], len(seen) + 1)}"

        return re.sub(r"\b(Stage|exchange|run) (\d+)", renumbered, capsys.readouterr().out)

    return text


def parse(batches: Batches) -> Batches:
    yield from batches


def score(group: pd.DataFrame) -> pd.DataFrame:
    return group


def test_a_stage_that_a_frame_reads_several_times_is_told_once(
    numbers: DataFrame, explained: Explained
) -> None:
    frame = sortshuffle.frame(numbers)
    moved = frame.repartition(3, "k")
    few = frame.filter(pc.field("id") < 7).repartition(3, "k").select("k")
    joined = moved.join(few, "k")
    text = explained(joined.union(joined).union(moved))
    assert text.count("Stage ") == 1
    assert "Stage 1, writes 2 exchanges in one pass\n" in text
    assert text.count("-> exchange ") == 2


def test_stages_steps_and_exchanges_are_told_in_the_order_of_the_data(
    numbers: DataFrame, explained: Explained
) -> None:
    frame = (
        sortshuffle.frame(numbers)
        .mapInArrow(parse, numbers.schema)
        .filter(pc.field("id") > 5)
        .repartition(3, "k")
    )
    frame = frame.select("k", "id").groupBy("k", "id").applyInPandas(score, "k long, id long").repartition(2)
    frame = frame.mapInArrow(parse, frame.schema)

    assert explained(frame) == (
        "Stage 1, writes an exchange\n"
        "    rows of DataFrame[id, k]\n"
        "    mapInArrow(parse)\n"
        "    filter((id > 5))\n"
        "    -> exchange 1: hash(k) into 3 subpartitions, sorted by k, id\n"
        "Stage 2, writes an exchange\n"
        "    exchange 1, in key order\n"
        "    select(k, id)\n"
        "    groupBy(k, id).applyInPandas(score)\n"
        "    -> exchange 2: round robin into 2 subpartitions\n"
        "Result stage\n"
        "    exchange 2\n"
        "    mapInArrow(parse)\n"
        "    -> rows\n"
    )


def test_a_scan_is_told_with_its_columns_and_its_filters(
    spark: SparkSession, tmp_path: Path, explained: Explained
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), path)
    frame = sortshuffle.read(spark).parquet(str(path)).filter(pc.field("b") > 1).filter(pc.field("a") > 0)

    where = "where ((b > 1) and (a > 0))"
    assert explained(frame) == f"Result stage\n    scan of {path}: a, b, c {where}\n    -> rows\n"
    assert explained(frame.select("c")) == (
        f"Result stage\n    scan of {path}: c, a, b {where}\n    select(c)\n    -> rows\n"
    )


def test_after_a_run_each_stage_tells_what_it_did(numbers: DataFrame, explained: Explained) -> None:
    frame = sortshuffle.frame(numbers).repartition(3, "k")
    assert "tasks" not in explained(frame)
    frame.count()
    frame.collect()
    lines = explained(frame).splitlines()

    assert lines[2] == "    -> exchange 1: hash(k) into 3 subpartitions"
    assert re.fullmatch(
        r"       wrote 1,000 rows, [\d.]+ KiB in 12 buffers, 4 regions, 0 spills, 8 files", lines[3]
    )
    held = r"at most [\d.]+ [KM]iB held by a task(; seconds: .*)?"
    assert re.fullmatch(
        r"    4 tasks, \d+\.\d\d s of task time; 1,000 rows in \(4 batches\),"
        rf" 1,000 rows out \(4 batches\); {held}",
        lines[4],
    )
    runs = [line for line in lines if line.startswith("    run ")]
    assert len(runs) == 2
    for run in runs:
        assert re.search(
            r": 3 tasks, \d+\.\d\d s of task time, \d+\.\d\d s of it waiting;"
            r" read 1,000 rows, [\d.]+ KiB in 12 extents;"
            rf" 1,000 rows in \(3 batches\), 1,000 rows out \(3 batches\); {held}",
            run,
        )


def test_runs_of_other_frames_from_the_same_source_are_not_told(
    numbers: DataFrame, explained: Explained
) -> None:
    source = sortshuffle.frame(numbers)
    ours, other = source.repartition(3, "k"), source.repartition(2, "id")
    ours.count()
    other.count()
    other.filter(pc.field("id") < 0).repartition(2).count()

    told = explained(ours)
    assert told.count("    run ") == 1
    assert told.count("3 tasks") == 1
    assert explained(ours.mapInArrow(parse, ours.schema)).count("    run ") == 0


def test_stage_totals_are_of_all_frames_from_the_same_source(numbers: DataFrame, tmp_path: Path) -> None:
    frame = sortshuffle.frame(numbers).repartition(3, "k")
    frame.count()
    frame.mapInArrow(parse, frame.schema).write.parquet(str(tmp_path / "out"))
    totals = frame.stage_totals()
    figures = [total.metrics.counts for total in totals]
    assert [total.tasks for total in totals] == [4, 3, 3]
    assert [(counts["rows_written"], counts["rows_read"]) for counts in figures] == [
        (1000, 0),
        (0, 1000),
        (0, 1000),
    ]
    assert totals[0].stage < totals[1].stage < totals[2].stage
    assert len(totals[0].directories) >= 1
    assert totals[1].directories == set()


def test_a_persisted_frame_tells_that_its_rows_are_there(numbers: DataFrame, explained: Explained) -> None:
    kept = sortshuffle.frame(numbers).repartition(3, "k").persist()
    try:
        told = explained(kept.select("k"))
    finally:
        kept.unpersist()

    assert told == "Result stage\n    rows of DataFrame[id, k]\n    select(k)\n    -> rows\n"
