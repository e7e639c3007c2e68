"""What a pickled stage names is what a worker imports: nothing that plans, and nothing heavy that the stage
does without."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from engine import printed
from oracle import confs
from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of this module

PLANNING = tuple(f"sortshuffle.spark.{room}." for room in ("plan", "operators", "frame"))
PLANNING_RDDS = {f"sortshuffle.spark.rdds.{name}" for name in ("plan", "planner", "rdd", "explain")}
Names = set[tuple[str, str]]


class NamingUnpickler(pickle.Unpickler):
    """Notes every class and function that a pickle names."""

    def __init__(self, pickled: bytes, names: Names) -> None:
        super().__init__(io.BytesIO(pickled))
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        self.names.add((module, name))
        return super().find_class(module, name)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Names]:
    """What is pickled for workers from now on: the names in each pickle."""
    found: list[Names] = []
    dumps = CloudPickleSerializer.dumps

    def recorded(self: CloudPickleSerializer, thing: Any) -> bytes:
        pickled: bytes = dumps(self, thing)
        found.append(set())
        NamingUnpickler(pickled, found[-1]).load()
        return pickled

    monkeypatch.setattr(CloudPickleSerializer, "dumps", recorded)
    return found


def loaded_by(names: Names) -> set[str]:
    """The modules that a new process has loaded when it has imported those that are named."""
    modules = {module for module, _ in names} - {"builtins", "__main__"}
    return set(printed(f"import sys, {', '.join(sorted(modules))}; print(*sys.modules)"))


def planning(modules: set[str]) -> list[str]:
    return sorted(each for each in modules if each.startswith(PLANNING) or each in PLANNING_RDDS)


def same_pandas(pieces: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from pieces


def both(left: pa.Table, right: pa.Table) -> pa.Table:
    return left


def whole(table: pa.Table) -> pa.Table:
    return table


def frames(spark: SparkSession, directory: Path) -> list[ShuffleFrame]:
    """Frames of every family of operators. None of them is run here."""
    rows = spark.range(0, 100, 1, 4).selectExpr("id", "id % 7 as k")
    spark.range(0, 10, 1, 2).selectExpr("id as k", "id as j").write.parquet(str(directory / "few"))
    frame = sortshuffle.frame(rows)
    few = sortshuffle.read(spark).parquet(str(directory / "few"))
    groups = frame.groupBy("k")
    return [
        frame.join(few, "k"),
        frame.join(sortshuffle.broadcast(few), "k"),
        groups.agg(sf.sum("id")),
        frame.repartition(3, "k").sortWithinPartitions("k").groupBy("k").agg(sf.sum("id")),
        frame.distinct().dropDuplicates(["k"]),
        groups.cogroup(few.groupBy("k")).applyInArrow(both, "id long, k long"),
        groups.applyInArrow(whole, "id long, k long"),
        frame.sort("id"),
        frame.union(few.select("j", "k")).limit(5).sample(0.5, 1),
        frame.withColumn("l", pc.field("id") + 1).filter(pc.field("l") > 3),
        frame.repartition(3).mapInPandas(same_pandas, "id long, k long").sortWithinPartitions("id"),
    ]


def test_no_pickled_stage_names_what_plans(spark: SparkSession, sent: list[Names], tmp_path: Path) -> None:
    for frame in frames(spark, tmp_path):
        frame.toDF()
    sortshuffle.frame(spark.range(3)).write.parquet(str(tmp_path / "written"))
    with confs(spark, {"spark.sortshuffle.skew.factor": "2"}):
        sortshuffle.frame(spark.range(3)).repartition(2, "id").toDF()
    pairs = sortshuffle.rdd(spark.sparkContext.parallelize([(1, 2), (2, 3)]))
    pairs.reduceByKey(int.__add__, 2).groupByKey(2).sortByKey().toRDD().collect()
    names = set[tuple[str, str]]().union(*sent)
    expected = {
        "ShuffledJoin", "BroadcastJoin", "PartialAggregate", "RowsToStates", "Aggregate", "PartialFirstRows",
        "FirstRowOfEachKey", "CoGroupApply", "GroupApply", "Limit", "Sample", "Arrange", "WithColumns",
        "Filter", "Select", "Scan", "LocalSort", "ReadExchange", "SampleKeys", "WriteParquet", "sum_sizes",
        "RecordStage", "ReadRecords",
    }  # fmt: skip
    assert expected - {name for _, name in names} == set()
    assert planning(loaded_by(names)) == []


@pytest.mark.parametrize("merges", [True, False])
def test_a_stage_that_reads_loads_no_more_than_it_uses(
    spark: SparkSession, sent: list[Names], merges: bool
) -> None:
    frame = sortshuffle.frame(spark.range(0, 100, 1, 4))
    (frame.sort("id") if merges else frame.repartition(2, "id")).toDF()
    (reading,) = [names for names in sent if {"ReadExchange", "ToSpark"} <= {name for _, name in names}]
    loaded = loaded_by(reading)
    assert "sortshuffle.reading.gate" in loaded
    heavy = {"pandas", "fsspec", "asyncio", "ssl", "pyarrow.dataset", "pyarrow.parquet", "pyarrow.fs"}
    only_to_merge = {"pyarrow.compute", "sortshuffle.payload.ordering"}
    assert loaded & heavy == set()
    assert loaded & only_to_merge == (only_to_merge if merges else set())
    unused = (
        "spark.steps",
        "spark.parquet",
        "spark.session.planner",
        "partitioner",
        "compute",
        "writing.encoders",
    )
    assert [name for name in sorted(loaded) if name.removeprefix("sortshuffle.").startswith(unused)] == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sortshuffle.spark.plan.measured_sizes", "measure_sizes"),
        ("sortshuffle.spark.rdds.planner", "shuffle_rows"),
    ],
)
def test_the_control_what_plans_is_found_in_a_pickle(module: str, name: str) -> None:
    names: Names = set()
    NamingUnpickler(cloudpickle.dumps(getattr(sys.modules[module], name)), names).load()
    assert names == {(module, name)}
    assert module in planning(loaded_by(names))
