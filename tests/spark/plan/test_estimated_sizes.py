"""About how many bytes frames have: as Spark reckons, as scans read, and as shuffles wrote."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from java_calls import java_calls
from oracle import confs
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import sortshuffle
from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.plan import estimated_sizes
from sortshuffle.spark.plan.estimated_sizes import estimated_size

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]


def same(batches: Batches) -> Batches:
    yield from batches


@pytest.fixture(scope="module")
def left(spark: SparkSession) -> DataFrame:
    return spark.range(0, 150, 1, 3).selectExpr("id % 17 as k", "concat('v', id) as v", "id")


@pytest.fixture(scope="module")
def right(spark: SparkSession) -> DataFrame:
    return spark.range(0, 60, 1, 2).selectExpr("id % 23 as k", "id as w")


def stated_size(df: DataFrame) -> int:
    query: Any = df._jdf.queryExecution()
    return int(str(query.optimizedPlan().stats().sizeInBytes()))


def test_sizes_are_those_that_spark_reckons_for_the_same_steps(left: DataFrame, right: DataFrame) -> None:
    schema = "v string, x array<int>, d decimal(20,2), s struct<a: date, b: binary>"
    source = sortshuffle.frame(left)
    for frame, plain in (
        (source.repartition(3, "k"), left),
        (source.repartition(3, "k").select("v", "k"), left.select("v", "k")),
        (source.mapInArrow(same, schema).repartition(3, "v"), left.mapInArrow(same, schema)),
        (source.filter(pc.field("id") > 5).repartition(2), left.where("id > 5")),
    ):
        expected = stated_size(plain)
        assert abs((estimated_size(frame._chain) or 0) - expected) <= 2  # rounded at other steps
        assert abs(stated_size(frame.toDF()) - expected) <= 2 + 8  # told in longs
    other = sortshuffle.frame(right).repartition(3, "k")
    for how in ("left_semi", "left_anti"):  # no rows come out but those of the left side
        for side in (other, sortshuffle.broadcast(other)):
            joined = source.repartition(3, "k").join(side, "k", how)
            assert abs((estimated_size(joined._chain) or 0) - stated_size(left)) <= 2
    product = source.repartition(3, "k").join(other, "k")
    assert (estimated_size(product._chain) or 0) > stated_size(left) * stated_size(right) / 10
    both = source.select("k").repartition(3, "k").union(sortshuffle.frame(right).select("k").repartition(3))
    expected = stated_size(left.select("k")) + stated_size(right.select("k"))
    assert abs((estimated_size(both._chain) or 0) - expected) <= 2


def test_a_scan_is_as_large_as_spark_reckons(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": range(5000), "text": [f"{at:0200}" for at in range(5000)]})
    for directory in ("p=1", "p=2"):
        (tmp_path / directory).mkdir()
        pq.write_table(table, tmp_path / directory / "a.parquet")
    scan = sortshuffle.read(spark).parquet(str(tmp_path))

    def check_sizes() -> None:
        plain = spark.read.parquet(str(tmp_path))  # a plan keeps its size
        for frame, same_rows in (
            (scan, plain),
            (scan.select("k"), plain.select("k")),
            (scan.select("text", "p"), plain.select("text", "p")),
            (scan.select("k").mapInArrow(same, "a string"), plain.select("k").mapInArrow(same, "a string")),
        ):
            assert abs((estimated_size(frame._chain) or 0) - stated_size(same_rows)) <= 1

    check_sizes()
    with confs(spark, {"spark.sql.sources.fileCompressionFactor": "3.0"}):
        check_sizes()
    plain = spark.read.parquet(str(tmp_path))
    # files that a filter leaves out do not count
    one = estimated_size(scan.filter(pc.field("p") == 1)._chain) or 0
    assert abs(2 * one - stated_size(plain)) <= 2
    # and not as the few rows that tell the tasks what to scan
    assert stated_size(scan.toDF()) == pytest.approx(stated_size(plain), rel=0.01)


def test_after_a_shuffle_has_run_its_bytes_are_known(left: DataFrame) -> None:
    frame = sortshuffle.frame(left).mapInArrow(same, left.schema).repartition(3, "k")
    reckoned = estimated_size(frame._chain)
    assert frame.count() == 150
    written = next(total for total in frame.stage_totals() if total.metrics.counts["files"])
    assert estimated_size(frame._chain) == written.metrics.counts["raw_bytes_written"] != reckoned


def calls_for_the_size_of_a_union(session: SparkSession, count: int) -> int:
    frames = [session.createDataFrame([(number,)], "id long") for number in range(count)]
    chain = functools.reduce(DataFrame.union, frames)._to_python("test")._chain
    with java_calls(session) as calls:
        assert 0 < (estimated_size(chain) or 0) < 10_000 * count
    return len(calls)


def test_the_size_of_many_rows_of_the_driver_takes_no_more_calls_of_the_jvm(job: SparkSession) -> None:
    calls_for_the_size_of_a_union(job, 1)  # which finds the method in the JVM
    assert calls_for_the_size_of_a_union(job, 20) == calls_for_the_size_of_a_union(job, 1)


def test_widths_are_asked_of_the_jvm_once(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1], "text": ["a"]}), tmp_path / "a.parquet")
    chain = sortshuffle.read(spark).parquet(str(tmp_path)).select("k")._chain
    size = estimated_size(chain)
    with java_calls(spark) as calls:
        assert estimated_size(chain) == size
    assert [call for call in calls if "fileCompressionFactor" in call]
    assert [call for call in calls if "DataType" in call or "defaultSize" in call] == []


def test_without_a_jar_sizes_are_sparks(job: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> Any:
        raise UnsupportedError("there is no jar")

    monkeypatch.setattr(estimated_sizes, "jar_method", refuse)
    df = job.createDataFrame([(1,)], "id long")
    assert estimated_size(df._to_python("test")._chain) == stated_size(df) > 2**60
