"""What tasks report: every figure against what can be seen elsewhere, on the driver, in the workers' log, and
in what Spark keeps for its UI.
"""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import confs, jobs
from pyspark import accumulators, cloudpickle
from pyspark.sql import DataFrame, SparkSession

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.metrics import FIGURES, TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.origins import ExchangeOrigin
from sortshuffle.spark.worker import reports
from sortshuffle.spark.worker.reports import SourceReports, StageTotals, TaskReport, log_line, stage_totals
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
JOBS = Path(__file__).parents[1] / "jobs"
ROWS, INPUTS = 1000, 4


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id`` and a key ``k`` of 7 values."""
    return spark.range(0, ROWS, 1, INPUTS).selectExpr("id", "id % 7 as k")


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Where the map outputs of frames made in the test are; memory is tight and nothing is compressed."""
    settings = {
        "spark.sortshuffle.dir": str(tmp_path),
        "spark.sortshuffle.memory": "4m",
        "spark.sortshuffle.codec": "none",
    }
    with confs(spark, settings):
        yield tmp_path


MEMORY = 4 * MIB


def wide(batches: Batches) -> Batches:
    """1000 bytes of noise for every row, in batches of at most 100 rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, 100):
            part = batch.slice(start, 100)
            noise = np.random.default_rng(start).integers(0, 256, 1000 * part.num_rows, np.uint8)
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(1000), part.num_rows, [None, pa.py_buffer(noise)]
            )
            yield pa.record_batch(
                [part["id"], part["k"], values.cast(pa.binary())], names=["id", "k", "noise"]
            )


WIDE = "id long, k long, noise binary"


def exchange_of(frame: ShuffleFrame) -> Exchange:
    origin = frame._chain.origin
    assert isinstance(origin, ExchangeOrigin)
    return origin.exchange


def total_of(frame: ShuffleFrame, stage: int) -> StageTotals:
    (found,) = [total for total in frame.stage_totals() if total.stage == stage]
    return found


def figures_on_disk(directory: Path, exchange: int) -> dict[str, int]:
    """What the files of an exchange say of themselves, under the names of the figures."""
    files = [PartitionedFile.of(str(path)) for path in directory.rglob(f"exchange-{exchange}-*.data")]
    indices = [read_index(file) for file in files if file is not None]
    entries = np.concatenate([index.once() for index in indices])
    return {
        "rows_written": int(entries["records"].sum()),
        "bytes_written": sum(Path(file.data_path).stat().st_size for file in files if file is not None),
        "raw_bytes_written": int(entries["raw_bytes"].sum()),
        "buffers_written": int(entries["buffers"].sum()),
        "regions": sum(index.regions for index in indices),
        "files": 2 * len(files),
    }


def picked(metrics: TaskMetrics, names: Any) -> dict[str, int]:
    return {name: metrics.counts[name] for name in names}


# --- the figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_figures_of_a_map_stage_are_those_of_its_files(
    spark: SparkSession, directory: Path, grouped: bool
) -> None:
    source = sortshuffle.frame(spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k"))
    ours = source.mapInArrow(wide, WIDE).repartition(5, "k")
    if grouped:
        ours = ours.groupBy("k").applyInArrow(lambda table: table, ours.schema)
    assert ours.count() == 20_000

    stage = total_of(ours, exchange_of(ours).number)
    found = figures_on_disk(directory, exchange_of(ours).number)
    assert found["rows_written"] == 20_000
    assert found["regions"] > 4
    assert picked(stage.metrics, found) == found
    assert picked(stage.outputs[exchange_of(ours).number], found) == found
    # but for the last of each task they were written for want of memory
    assert stage.metrics.counts["spills"] == found["regions"] - 2
    assert picked(stage.metrics, ["rows_in", "rows_out", "batches_out"]) == {
        "rows_in": 20_000, "rows_out": 20_000, "batches_out": 200
    }  # fmt: skip
    assert 0 < stage.metrics.counts["memory_peak"] <= MEMORY
    assert stage.tasks == 2


def test_figures_of_a_reading_stage_are_those_of_what_was_written(
    spark: SparkSession, directory: Path
) -> None:
    source = sortshuffle.frame(spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k"))
    ours = source.mapInArrow(wide, WIDE).repartition(5, "k")
    rows = ours.filter(pc.field("id") < 50).count()
    writing, reading = ours.stage_totals()
    written, read = writing.metrics.counts, reading.metrics.counts

    assert rows == 50
    assert (read["rows_read"], read["rows_in"], read["rows_out"]) == (20_000, 20_000, 50)
    assert read["raw_bytes_read"] == written["raw_bytes_written"]
    assert read["buffers_read"] == written["buffers_written"]
    # the data files' headers are read by nobody
    headers = HEADER_BYTES * written["files"] // 2
    assert read["bytes_read"] == written["bytes_written"] - headers
    assert read["extents_read"] == _extents(directory)
    assert 0 < read["memory_peak"] <= MEMORY
    assert 0 < reading.metrics.seconds["wait"] <= reading.wall
    assert read["files"] == read["rows_written"] == read["spills"] == 0


def _extents(directory: Path) -> int:
    """Extents with rows, of all files."""
    files = [PartitionedFile.of(str(path)) for path in directory.rglob("exchange-*.data")]
    return sum(int((read_index(file).once()["bytes"] > 0).sum()) for file in files if file is not None)


def test_what_a_merge_puts_aside_is_counted_and_leaves_no_file(spark: SparkSession, directory: Path) -> None:
    source = sortshuffle.frame(spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k"))
    ours = source.mapInArrow(wide, WIDE).repartition(2, "k")
    ours = ours.groupBy("k").applyInArrow(lambda table: table.slice(0, 1).select(["k"]), "k long")
    assert sorted(row.k for row in ours.collect()) == list(range(7))
    written, read = (total.metrics.counts for total in ours.stage_totals())

    assert read["rows_in"] == written["rows_written"] == 20_000
    assert read["merge_passes"] > 2
    assert read["bytes_spilled"] > 10 * MEMORY // 4
    assert [path.name for path in directory.rglob("*") if path.name.startswith("merge")] == []


def test_rows_that_fit_are_not_spilled(numbers: DataFrame, directory: Path) -> None:
    ours = sortshuffle.frame(numbers).repartition(3, "k")
    ours.count()
    counts = ours.stage_totals()[0].metrics.counts

    assert (counts["regions"], counts["spills"]) == (INPUTS, 0)


def test_time_of_the_steps_is_no_longer_than_the_task(spark: SparkSession, directory: Path) -> None:
    source = sortshuffle.frame(spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k"))
    ours = source.mapInArrow(wide, WIDE).repartition(5, "k")
    ours.count()
    writing = ours.stage_totals()[0]

    assert {"user", "ids", "sort", "take", "encode", "checksum", "write"} <= set(writing.metrics.seconds)
    assert all(seconds >= 0 for seconds in writing.metrics.seconds.values())
    assert sum(writing.metrics.seconds.values()) <= writing.wall


def test_each_exchange_of_a_stage_has_its_own_figures_and_they_add_up(
    spark: SparkSession, directory: Path
) -> None:
    source = sortshuffle.frame(spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k"))
    f = source.mapInArrow(wide, WIDE)
    one, two = f.repartition(5, "k"), f.filter(pc.field("id") < 100).select("id").repartition(3)
    one.count()

    stage = total_of(f, exchange_of(one).number)
    assert [total.stage for total in f.stage_totals()][:1] == [stage.stage]
    assert sorted(stage.outputs) == [exchange_of(one).number, exchange_of(two).number]
    found = {number: figures_on_disk(directory, number) for number in stage.outputs}
    for number, metrics in stage.outputs.items():
        assert picked(metrics, found[number]) == found[number]
    assert found[exchange_of(two).number]["rows_written"] == 100
    assert stage.outputs[exchange_of(one).number].counts["spills"] > 0
    assert stage.outputs[exchange_of(two).number].counts["spills"] == 0
    names = ["rows_written", "bytes_written", "buffers_written", "regions", "spills", "files"]
    assert picked(stage.metrics, names) == {
        name: sum(metrics.counts[name] for metrics in stage.outputs.values()) for name in names
    }
    assert picked(stage.metrics, ["rows_in", "rows_out"]) == {"rows_in": 20_000, "rows_out": 20_000}
    assert 0 < stage.metrics.counts["memory_peak"] <= MEMORY


def test_every_figure_that_is_counted_has_a_meaning(spark: SparkSession, directory: Path) -> None:
    source = sortshuffle.frame(spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k"))
    ours = source.mapInArrow(wide, WIDE).groupBy("k").applyInArrow(lambda table: table, WIDE)
    ours.count()

    counted = {name for total in ours.stage_totals() for name in total.metrics.counts}
    assert counted <= set(FIGURES)


# --- on their way to the driver -------------------------------------------------------------------------


def test_all_sources_share_one_accumulator(spark: SparkSession, numbers: DataFrame) -> None:
    first = sortshuffle.frame(numbers)
    before = len(accumulators._accumulatorRegistry)
    others = [sortshuffle.frame(numbers).repartition(2, "k") for _ in range(3)]

    assert [other.count() for other in others] == [ROWS] * 3
    assert len(accumulators._accumulatorRegistry) == before
    assert [len(other.stage_totals()) for other in others] == [2] * 3
    assert first.stage_totals() == []


def test_reports_of_a_source_that_is_gone_are_dropped(spark: SparkSession) -> None:
    kept, gone = SourceReports(spark.sparkContext), SourceReports(spark.sparkContext)
    late = gone.reporter
    report = TaskReport(TaskMetrics(), 0.5)
    kept.reporter.add(3, 0, report)
    late.add(3, 0, report)
    assert gone.value == kept.value == {(3, 0): report}
    del gone
    late.add(4, 0, report)

    assert kept.value == {(3, 0): report}


@pytest.fixture
def ledger(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A ledger that keeps totals, beside the session's own."""
    made = reports._Ledger(spark.sparkContext)
    monkeypatch.setitem(reports._ledgers, spark.sparkContext, made)
    made.keeps = True
    yield made
    accumulators._accumulatorRegistry.pop(made._accumulator.aid)


def report_of(rows: int, attempt: int = 0) -> TaskReport:
    metrics = TaskMetrics()
    metrics.add(rows_in=rows)
    return TaskReport(metrics, 0.5, attempt=attempt)


def summed(ledger: Any) -> list[tuple[int, int, int]]:
    """Stage, tasks and rows of each total."""
    return [(total.stage, total.tasks, total.metrics.counts["rows_in"]) for total in ledger.totals()]


def test_a_ledger_that_keeps_totals_has_those_of_all_sources(spark: SparkSession, ledger: Any) -> None:
    living, gone = SourceReports(spark.sparkContext), SourceReports(spark.sparkContext)
    late = gone.reporter
    living.reporter.add(3, 0, report_of(1))
    late.add(4, 0, report_of(10))
    late.add(4, 0, report_of(20, attempt=1))
    assert summed(ledger) == [(3, 1, 1), (4, 1, 20)]
    del gone
    assert summed(ledger) == [(3, 1, 1), (4, 1, 20)]
    late.add(5, 0, report_of(300))  # of a plan that outlives its frame
    assert summed(ledger) == [(3, 1, 1), (4, 1, 20), (5, 1, 300)]
    assert summed(ledger) == [(3, 1, 1), (4, 1, 20), (5, 1, 300)]


def test_a_source_that_goes_while_totals_are_made_counts_once(
    spark: SparkSession, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = SourceReports(spark.sparkContext)
    source.itself = source
    source.reporter.add(3, 0, report_of(1))
    del source
    add_left = ledger._add_left
    monkeypatch.setattr(ledger, "_add_left", lambda: (gc.collect(), add_left()))
    assert summed(ledger) == [(3, 1, 1)]


def test_of_very_many_stages_the_longest_are_kept(
    spark: SparkSession, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_STAGES", 2)
    gone = SourceReports(spark.sparkContext)
    late = gone.reporter
    del gone
    for stage, wall in enumerate([3.0, 1.0, 5.0, 2.0, 4.0]):
        late.add(stage, 0, TaskReport(TaskMetrics(), wall))
    assert [total.stage for total in ledger.totals()] == [2, 4]


def test_reports_go_with_the_frames_of_their_source(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers).repartition(2, "k")
    frame.count()
    ledger = frame._chain.context.reports.reporter.accumulator.value
    source = frame._chain.context.reports.reporter.source
    assert source in ledger._sources
    del frame
    gc.collect()

    assert source not in ledger._sources


def test_a_later_attempt_replaces_the_report_of_an_earlier_one() -> None:
    def report(rows: int) -> TaskReport:
        metrics, output = TaskMetrics(), TaskMetrics()
        output.add(rows_written=rows, spills=1)
        output.peak(rows)
        metrics.merge(output)
        return TaskReport(metrics, 1.5, "/there", {7: output})

    reports = {(7, 0): report(100), (7, 1): report(10), (8, 0): TaskReport(TaskMetrics(), 0.5)}
    reports[7, 0] = report(20)
    first, second = stage_totals(reports.items())

    assert (first.stage, first.tasks, first.wall, first.directories) == (7, 2, 3.0, {"/there"})
    assert first.metrics.counts == {"rows_written": 30, "spills": 2, "memory_peak": 20}
    assert first.outputs[7].counts == first.metrics.counts
    assert (second.stage, second.tasks, second.outputs) == (8, 1, {})


def test_runs_of_one_attempt_are_summed() -> None:
    def report(attempt: int, rows: int) -> TaskReport:
        metrics = TaskMetrics()
        metrics.add(rows_in=rows)
        metrics.peak(rows)
        return TaskReport(metrics, 0.5, "", {}, attempt)

    reports = SourceReports(None)
    reports.add((3, 0), report(1, 1000))
    for rows in (5, 8, 2):
        reports.add((3, 0), report(2, rows))
    (total,) = stage_totals(reports.value.items())
    assert (total.tasks, total.wall) == (1, 1.5)
    assert total.metrics.counts == {"rows_in": 15, "memory_peak": 8}


# --- in the log -----------------------------------------------------------------------------------------


def test_a_line_has_every_figure_and_those_of_each_exchange_if_there_are_several() -> None:
    metrics, one, two = TaskMetrics(), TaskMetrics(), TaskMetrics()
    metrics.add(rows_in=5, rows_written=9)
    metrics.seconds["user"] = 0.25
    one.add(rows_written=5)
    two.add(rows_written=4)

    words = log_line(TaskReport(metrics, 1.5, "", {3: one}), stage=3, partition=0).split(" ")
    assert words[:3] == ["stage=3", "partition=0", "wall_seconds=1.500000"]
    figures = dict(word.split("=") for word in words[3:])
    assert list(figures) == [*FIGURES, "user_seconds"]
    assert (figures["rows_in"], figures["spills"], figures["user_seconds"]) == ("5", "0", "0.250000")

    line = log_line(TaskReport(metrics, 1.5, "", {4: two, 3: one}), stage=3)
    assert line.endswith(" user_seconds=0.250000 exchange_3.rows_written=5 exchange_4.rows_written=4")


LINE = re.compile(r"(\S+ \S+) INFO sortshuffle\.task: (.*)")


def test_tasks_log_a_line_each_on_the_workers_standard_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(JOBS / "log_tasks.py"), "local[2]", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counts"] == [ROWS, ROWS, ROWS, -1]
    lines = [dict(word.split("=") for word in match[2].split(" ")) for match in LINE.finditer(done.stderr)]

    failed = [line for line in lines if line["outcome"] == "KeyError"]
    assert [(line["rows_written"], line["files"]) for line in failed] == [("0", "0")]
    stages = {line["stage"] for line in lines if line not in failed}
    assert stages == set(found["stages"])
    assert stages.isdisjoint(map(str, found["quiet"]))
    for stage, total in found["stages"].items():
        of_stage = [line for line in lines if line["stage"] == stage]
        assert {line["outcome"] for line in of_stage} == {"finished"}
        assert len(of_stage) == len({line["partition"] for line in of_stage}) == total["tasks"]
        for name in set(total) - {"tasks", "memory_peak"}:
            if not name.endswith("memory_peak"):
                assert sum(int(line.get(name, 0)) for line in of_stage) == total[name]
        assert max(int(line["memory_peak"]) for line in of_stage) == total["memory_peak"]


# --- in Spark's UI --------------------------------------------------------------------------------------


def test_sparks_pages_say_which_exchange_a_stage_writes_and_reads(
    spark: SparkSession, numbers: DataFrame
) -> None:
    spark.sparkContext.setLocalProperty("callSite.short", "the user's own")
    try:
        f = sortshuffle.frame(numbers)
        one, two = f.repartition(3, "k"), f.repartition(2)
        first, second = exchange_of(one).number, exchange_of(two).number
        df = one.toDF()
        assert spark.sparkContext.getLocalProperty("callSite.short") == "the user's own"
    finally:
        spark.sparkContext.setLocalProperty("callSite.short", None)
    with jobs(spark) as run:
        df.collect()

    context: Any = spark.sparkContext
    (job,) = run.ids
    store = context._jsc.sc().statusStore()
    names = [
        store.lastStageAttempt(stage).name() for stage in context.statusTracker().getJobInfo(job).stageIds
    ]
    label = (
        f"sortshuffle exchange {first}: hash(k) into 3 subpartitions;"
        f" exchange {second}: round robin into 2 subpartitions"
    )
    assert label in names
    control: Any = exchange_of(one).control()
    assert label in control._jdf.queryExecution().toRdd().toDebugString()
    assert re.search(
        rf"sortshuffle stage \d+, reads exchange {first}: hash\(k\) into 3",
        df._jdf.queryExecution().toString(),
    )
    with jobs(spark) as rest:
        assert two.count() == ROWS
    # Spark marks the map stage as skipped, under the same name
    names = [
        store.lastStageAttempt(stage).name()
        for stage in context.statusTracker().getJobInfo(rest.ids[0]).stageIds
    ]
    assert label in names
