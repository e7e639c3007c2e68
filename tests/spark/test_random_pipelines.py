"""Random chains of DataFrame calls give in a session of `sortshuffle.session` what they give in plain
PySpark. `tools/soak --pipelines` runs thousands of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from oracle import confs
from pipelines import functions
from pipelines.__main__ import FEWER_PARTITIONS, SETTINGS, partitions_as_if_many, with_fewer_partitions
from pipelines.actions import ACTIONS, Result
from pipelines.compare import difference, shortened
from pipelines.draw import Pipeline, Step, draw
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import sortshuffle

cloudpickle.register_pickle_by_value(functions)

COUNT = 18
FIRST_SEED = 1_000_000  # not one of a soak's first million
SESSION_SETTINGS = {key: value for key, value in SETTINGS.items() if key.startswith("spark.sql.")}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tables")
    functions.write_tables(directory)
    return str(directory)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + COUNT))
def test_a_random_pipeline_gives_what_pyspark_gives(spark: SparkSession, tables: str, seed: int) -> None:
    with confs(spark, {**SESSION_SETTINGS, FEWER_PARTITIONS: with_fewer_partitions(seed)}):
        pipeline = draw(seed, spark, tables)
        ours = sortshuffle.session(spark)
        with partitions_as_if_many(seed):
            words = difference(pipeline, ours, spark, tables)
        assert not words, f"{words}\n{shortened(pipeline, ours, spark, tables)}"


def test_a_seed_always_gives_the_same_pipeline(spark: SparkSession, tables: str) -> None:
    first, again, other = (draw(seed, spark, tables) for seed in (7, 7, 8))
    assert str(first) == str(again) != str(other)


def test_about_half_of_the_pipelines_have_two_functions(spark: SparkSession, tables: str) -> None:
    drawn = [str(draw(seed, spark, tables)) for seed in range(40)]
    assert sum(code.count("(fn.") > 1 for code in drawn) >= 12


def test_a_difference_is_found_and_shortened(spark: SparkSession, tables: str) -> None:
    """Both sides are PySpark's. One of them has fewer rows in a table."""
    names = [
        "spark.range(int(spark.conf.get('spark.test.rows')))",
        "f0.withColumn('x', f0.id)",
        "f1.filter('id >= 0')",
    ]
    names += ["f2.drop('x')", "f3.filter('id < 9')"]
    steps = [Step(f"f{at}", code, f"f{at - 1}" if at else None) for at, code in enumerate(names)]
    pipeline = Pipeline(0, tuple(steps))
    other = spark.newSession()
    spark.conf.set("spark.test.rows", "3")
    other.conf.set("spark.test.rows", "2")
    try:
        assert difference(pipeline, other, spark, tables) == "plain Row(id=2)"
        assert str(shortened(pipeline, other, spark, tables)) == str(pipeline.steps[0])
    finally:
        spark.conf.unset("spark.test.rows")


def test_another_order_is_found(spark: SparkSession, tables: str) -> None:
    """Both sides are PySpark's, and one sorts in the other direction."""
    code = "spark.range(3).orderBy('id', ascending=spark.conf.get('spark.test.up') == 'yes')"
    other = spark.newSession()
    spark.conf.set("spark.test.up", "yes")
    other.conf.set("spark.test.up", "no")
    try:
        pipeline = Pipeline(0, (Step("f0", code, None),))
        assert difference(pipeline, other, spark, tables) == ""
        in_order = replace(pipeline, order=("id",))
        assert difference(in_order, other, spark, tables) == "order: ours [2]\nours [0]\nplain [0]\nplain [2]"
    finally:
        spark.conf.unset("spark.test.up")


def test_tables_have_whole_numbers_that_doubles_hold(spark: SparkSession, tmp_path: Path) -> None:
    rows = functions.table(spark, "some", ["lo"]).collect()
    assert all(row.lo is None or abs(row.lo) <= functions.EXACT for row in rows)
    assert any(row.lo == functions.EXACT for row in rows)


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_functions_of_a_loop_see_its_variables(spark: SparkSession, keys: list[str]) -> None:
    rows = functions.digits_of_loop(spark.range(2), "n", *keys).collect()
    assert sorted(map(tuple, rows)) == [(0, 1324), (1, 1324)]


def test_actions_give_what_spark_decides(spark: SparkSession, tables: str) -> None:
    frame = spark.range(5).orderBy(sf.desc("id"))
    result = Result(frame, ["id"], Counter(map(repr, frame.collect())), tables)
    words = {name: action(result) for name, action in ACTIONS.items()}
    assert words.pop("write.parquet")[1:] == [f"Row(id={number})" for number in range(5)]
    assert words == {
        "count": ["5"],
        "isEmpty": ["False"],
        "first": ["1 rows", "[4]"],
        "take": ["3 rows", "[4]", "[3]", "[2]"],
        "toLocalIterator": [*(f"Row(id={number})" for number in range(5)), "[4]", "[3]", "[2]", "[1]", "[0]"],
        "toPandas": ["int64", "(0,)", "(1,)", "(2,)", "(3,)", "(4,)"],
    }
    unknown = replace(result, order=[], rows=Counter())
    assert ACTIONS["first"](unknown) == ["1 rows", "Row(id=4)"]
