"""`limit`, `sample`, `union`, `coalesce`, against plain PySpark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from oracle import (
    OnlyPython,
    assert_handed_to_spark,
    assert_same_error,
    confs,
    data_frame,
    differences,
    every_type,
    partition_count,
    rows_in_order,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import MIB, Options
from sortshuffle.payload.arrow import BATCH_BYTES, BATCH_ROWS
from sortshuffle.spark.steps.row_steps import Sample
from sortshuffle.spark.worker.numbered import NUMBER
from sortshuffle.spark.worker.task import Task


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1,000 rows in 4 partitions."""
    return spark.range(0, 1000, 1, 4).select("id", (sf.col("id") % 7).cast("int").alias("k"))


@pytest.fixture(scope="module")
def scanned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in four row groups."""
    path = tmp_path_factory.mktemp("rows") / "numbers.parquet"
    ids = pa.array(range(1000), pa.int64())
    table = pa.table({"id": ids, "k": pa.array([each % 7 for each in range(1000)], pa.int32())})
    pq.write_table(table, path, row_group_size=250)
    return path


def tagged(tag: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that also says, in a row of its own, that it was called."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        called = pa.record_batch({"id": pa.array([-tag]), "k": pa.array([tag], pa.int32())})
        yield called
        yield from (pa.RecordBatch.from_arrays(batch.columns, schema=called.schema) for batch in batches)

    return function


def ids(frame: ShuffleFrame) -> list[int]:
    return [row.id for row in frame.collect()]


# --- limit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 250, 600, 5000])
def test_a_limit_takes_the_first_rows_by_partition_and_position(numbers: DataFrame, count: int) -> None:
    limited = sortshuffle.frame(numbers).limit(count)
    assert ids(limited) == list(range(min(count, 1000)))
    assert partition_count(limited) == 1


def test_a_limit_of_what_is_shuffled_and_chained_is_a_limit_of_its_rows(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers).repartition(3, "k").filter(pc.field("id") >= 10).limit(400)
    kept = ids(frame)
    assert len(set(kept)) == 400
    assert min(kept) >= 10
    assert frame.limit(5).count() == 5


@pytest.mark.parametrize("count", [-1, True, 2.5, "3", 2**31])
def test_a_limit_that_is_no_number_of_rows_is_refused(numbers: DataFrame, count: object) -> None:
    frame = sortshuffle.frame(numbers)
    with pytest.raises(UsageError, match="limit"):
        OnlyPython(frame).limit(count)
    assert_same_error(lambda each: each.limit(count), frame, numbers)


# --- sample ---------------------------------------------------------------------------------------------


def test_a_sample_holds_each_row_at_most_once_and_is_the_same_for_the_same_seed(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers)
    kept = ids(frame.sample(0.3, 7))
    assert len(set(kept)) == len(kept)
    assert 220 < len(kept) < 380  # 300 expected, standard deviation 14.5
    assert kept == ids(frame.sample(fraction=0.3, seed=7)) == ids(frame.sample(False, 0.3, 7))
    assert kept != ids(frame.sample(0.3, 8))
    # every partition draws numbers of its own
    assert len({tuple(each % 250 for each in kept if each // 250 == part) for part in range(4)}) == 4
    assert ids(frame.sample(0.0, 7)) == []
    assert len(ids(frame.sample(1.0, 7))) == 1000


def test_a_sample_with_replacement_holds_rows_several_times(numbers: DataFrame) -> None:
    kept = ids(sortshuffle.frame(numbers).sample(True, 2.5, 7))
    assert 2200 < len(kept) < 2800  # 2,500 expected, standard deviation 50
    assert kept == sorted(kept)
    assert max(kept.count(each) for each in set(kept)) > 4


def test_a_large_sample_comes_in_batches_of_a_bounded_size() -> None:
    few, budget = pa.record_batch({"id": range(10), "text": ["x" * 200_000] * 10}), MemoryBudget(MIB)
    task = Task(Options(), "app", 5, 0, 0, budget, budget, budget)
    sample = Sample(with_replacement=True, fraction=30.0, seed=7)
    drawn = list(sample.run(iter([few]), task, budget))
    times = np.random.default_rng([7, 0]).poisson(30.0, 10)
    assert [id for each in drawn for id in each["id"].to_pylist()] == np.repeat(range(10), times).tolist()
    assert max(each.num_rows for each in drawn) == BATCH_BYTES // (few.nbytes // 10)
    one_large = pa.record_batch({"id": range(10), "text": [*["x"] * 9, "x" * BATCH_BYTES]})
    drawn = list(sample.run(iter([one_large]), task, budget))
    assert sum(each.num_rows for each in drawn) > 100
    assert max(each.num_rows for each in drawn if len(each["text"][0].as_py()) > 1) == 1
    many = list(sample.run(iter([few.select(["id"]), few.select(["id"]).slice(0, 0)]), task, budget))
    assert [each.num_rows for each in many] == [times.sum()]
    wide = pa.record_batch({"id": range(1000)})
    assert max(each.num_rows for each in sample.run(iter([wide]), task, budget)) == BATCH_ROWS


@pytest.mark.parametrize("fraction", [0.0, -1e-7])
def test_a_sample_of_no_rows_with_replacement_is_empty(numbers: DataFrame, fraction: float) -> None:
    assert numbers.sample(True, fraction, 7).count() == 0
    assert ids(sortshuffle.frame(numbers).sample(True, fraction, 7)) == []


def test_a_column_may_have_the_name_of_the_number_of_partitions(numbers: DataFrame) -> None:
    named = numbers.withColumnRenamed("k", NUMBER.upper())
    assert sorted(ids(sortshuffle.frame(named).sample(1.0, 7))) == list(range(1000))


@pytest.mark.parametrize(
    "arguments", [(), (True,), (1,), (0.1, 0.2, 3, 4), ("a", 0.5), (-0.5,), (False, 1.5)]
)
def test_what_pyspark_takes_for_no_sample_is_none(numbers: DataFrame, arguments: tuple[object, ...]) -> None:
    with pytest.raises(Exception) as plain:
        numbers.sample(*arguments).collect()  # type: ignore[arg-type]
    with pytest.raises(type(plain.value)):
        sortshuffle.frame(numbers).sample(*arguments).collect()  # type: ignore[arg-type]


def test_a_sample_stays_where_it_is_placed(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers).repartition(3, "k").sample(0.5, 1)
    assert frame._rows.layout.placed_by == (1,)


# What a frame's rows come from, and where the sample is drawn
SAMPLES: dict[str, Callable[[ShuffleFrame, str], ShuffleFrame]] = {
    "of a DataFrame": lambda f, path: f.sample(0.5, 7),
    "with replacement": lambda f, path: f.sample(True, 0.5, 7),
    "of files": lambda f, path: sortshuffle.read(f.sparkSession).parquet(path).sample(0.5, 7),
    "of an exchange": lambda f, path: f.repartition(3, "k").sample(0.5, 7),
    "of what is coalesced": lambda f, path: (
        sortshuffle.read(f.sparkSession).parquet(path).coalesce(2).sample(0.5, 7)
    ),
    "of a union": lambda f, path: f.filter("id < 500").union(f.filter("id >= 500")).sample(0.5, 7),
    "in a union": lambda f, path: f.filter("id < 5").union(f.sample(0.5, 7).filter("id >= 5")),
    "before an exchange": lambda f, path: f.sample(0.5, 7).repartition(3, "k"),
    "in a join": lambda f, path: (
        f.repartition(3, "k").sample(0.5, 7).join(keys(f).repartition(3, "k"), "k").select("id", "k")
    ),
    "in a broadcast join": lambda f, path: (
        f.sample(0.5, 7).join(sortshuffle.broadcast(keys(f)), "k").select("id", "k")
    ),
    "behind a function": lambda f, path: (
        f.mapInArrow(tagged(-2000), "id long, k int").sample(0.5, 7).filter("id < 1000")
    ),
}


def keys(frame: ShuffleFrame) -> ShuffleFrame:
    return frame.select("k").distinct()


def what_spark_makes(sample: DataFrame, whole: DataFrame) -> dict[str, Counter[int]]:
    """The ids of a sample of ``whole`` in several plans of Spark's, in which its tasks have other numbers."""
    spark = whole.sparkSession
    others = whole.selectExpr("-1 - id as id", "k")
    plain = sample.toDF() if isinstance(sample, ShuffleFrame) else sample
    pairs = spark.range(0, 3, 1, 3).toDF("number").crossJoin(sample).collect()
    every, drawn, left = counted(whole), counted(sample), counted(whole.exceptAll(sample))
    found = {
        "alone": drawn,
        "union": counted(others.union(sample).where("id >= 0")),
        "coalesce": counted(plain.coalesce(1)),
        "exceptAll": (every - left) + (drawn - every),  # drawn several times, a row is left over only once
        "intersectAll": counted(whole.intersectAll(sample)) + (drawn - every),
        **{f"crossJoin {n}": Counter(row.id for row in pairs if row.number == n) for n in range(3)},
    }
    sample.persist()
    try:
        found["persisted"] = counted(others.union(sample).where("id >= 0"))
        found["read again"] = counted(sample)
    finally:
        sample.unpersist()
    return {**found, "unpersisted": counted(others.union(sample).where("id >= 0"))}


def counted(frame: DataFrame) -> Counter[int]:
    return Counter(row.id for row in frame.select("id").collect())


@pytest.mark.parametrize("kind", [*SAMPLES, "of Spark's own"])
def test_a_sample_holds_the_same_rows_in_each_plan_of_sparks(
    spark: SparkSession, numbers: DataFrame, scanned: Path, kind: str
) -> None:
    sample = numbers.sample(0.5, 7)
    if kind in SAMPLES:
        sample = ours = SAMPLES[kind](sortshuffle.frame(numbers), str(scanned))
        assert ours._own_rows is not None, ours._crossings
    with confs(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):  # so that `crossJoin` is a product
        found = what_spark_makes(sample, numbers)
    drawn = found["alone"]
    assert 400 < drawn.total() < 600  # 500 expected, standard deviation 16, with replacement 22
    assert [name for name, each in found.items() if each != drawn] == []


def test_what_is_not_in_a_sample_and_the_sample_are_all_rows(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers)
    train = frame.sample(0.8, seed=3)
    test = frame.exceptAll(train)
    assert sorted(ids(train) + ids(test)) == list(range(1000))


def test_rows_that_a_function_makes_of_none_are_sampled(spark: SparkSession) -> None:
    """Spark knows only when it runs that its shuffle has no rows."""

    def count(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"n": [sum(map(len, parts))]})

    empty = spark.range(10).filter("id * 2 = 7").repartition(1)
    with confs(spark, {"spark.sql.adaptive.enabled": "true"}):
        counted = sortshuffle.frame(empty).mapInPandas(count, "n long")
        assert counted.sample(1.0, 7).collect() == counted.collect() == [(0,)]
        assert empty.mapInPandas(count, "n long").collect() == [(0,)]


def test_a_sample_of_a_persisted_frame_is_the_same(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers).repartition(3, "k")
    expected = counted(frame.sample(0.5, 7))
    frame.persist()
    try:
        assert counted(numbers.union(frame.sample(0.5, 7))) - counted(numbers) == expected
        assert counted(frame.sample(0.5, 7)) == expected
    finally:
        frame.unpersist()
    assert counted(frame.sample(0.5, 7)) == expected


def test_partitions_of_local_rows_draw_numbers_of_their_own(spark: SparkSession) -> None:
    """Spark computes columns of such rows while it plans."""
    table = pa.table({"id": pa.array(range(1000), pa.int64())})
    local = spark.createDataFrame(table)
    plan: Any = local
    assert "LocalRelation" in plan._jdf.queryExecution().optimizedPlan().toString()
    frame = sortshuffle.frame(local)
    assert partition_count(frame) == 2
    sample = frame.sample(0.5, 7)
    kept = ids(sample)
    assert {each for each in kept if each < 500} != {each - 500 for each in kept if each >= 500}
    assert sorted(ids(sample) + ids(frame.exceptAll(sample))) == list(range(1000))
    assert kept == ids(frame.union(sample))[1000:]


def test_only_rows_for_a_sample_carry_the_number_of_their_partition(numbers: DataFrame) -> None:
    frame: Any = sortshuffle.frame(numbers).filter(pc.field("id") > 3)
    plans = [each.toDF()._jdf.queryExecution().toString() for each in (frame, frame.sample(0.5, 7))]
    assert ["spark_partition_id" in plan.lower() for plan in plans] == [False, True]


# --- union ----------------------------------------------------------------------------------------------


def test_a_union_has_the_partitions_of_both(numbers: DataFrame, scanned: Path) -> None:
    """A DataFrame, a scan, an exchange and a chain, each with functions of its own."""
    spark = numbers.sparkSession
    read = sortshuffle.read(spark).parquet(str(scanned)).mapInArrow(tagged(1), "id long, k int")
    frame = sortshuffle.frame(numbers)
    moved = frame.repartition(3, "k").mapInArrow(tagged(2), "id long, k int")
    plain_moved = numbers.repartition(3, "k").mapInArrow(tagged(2), "id long, k int")
    united = frame.union(moved).union(read.filter(pc.field("id") < 5))
    plain_read = sortshuffle.read(spark).parquet(str(scanned)).mapInArrow(tagged(1), "id long, k int").toDF()
    plain = numbers.union(plain_moved).union(plain_read.filter("id < 5"))

    assert differences(united, plain) == []
    again = united.repartition(4, "id")
    assert differences(again, plain.repartition(4, "id")) == []
    assert united.count() == plain.count()


def test_a_union_is_one_of_positions_and_widens_numbers_as_spark_does(spark: SparkSession) -> None:
    narrow = spark.sql("select cast(1 as int) a, cast(2.5 as float) b, cast(1.25 as decimal(5,2)) c, null d")
    wide = spark.sql("select 2L x, 1e300 y, cast(7 as decimal(20,4)) z, 'text' t")
    united = sortshuffle.frame(narrow).union(sortshuffle.frame(wide))
    assert differences(united, narrow.union(wide)) == []
    assert differences(united.unionAll(united), narrow.union(wide).union(narrow.union(wide))) == []
    mixed = spark.sql("select cast(3 as int) a, 2 b, 1L c, 'text' d")
    ints = spark.sql("select 2.0D a, cast(1.5 as decimal(3,1)) b, cast(2 as decimal(22, 2)) c, 'x' d")
    assert differences(sortshuffle.frame(mixed).union(sortshuffle.frame(ints)), mixed.union(ints)) == []


@pytest.mark.parametrize("method", ["union", "unionByName"])
def test_a_union_takes_any_dataframe(numbers: DataFrame, method: str) -> None:
    frame = sortshuffle.frame(numbers)
    moved, plain = frame.repartition(3, "k"), numbers.repartition(3, "k")
    assert differences(getattr(moved, method)(numbers), getattr(plain, method)(numbers)) == []
    with pytest.raises(UsageError, match=rf"{method}\(\) takes a DataFrame, not int"):
        getattr(OnlyPython(frame), method)(3)
    assert_same_error(lambda each: getattr(each, method)(3), frame, numbers)


def test_a_union_of_every_type(spark: SparkSession) -> None:
    first, second = (data_frame(spark, every_type(seed, 40)) for seed in (1, 2))
    united = sortshuffle.frame(first).union(sortshuffle.frame(second).repartition(2, "id"))
    assert differences(united, first.union(second.repartition(2, "id"))) == []


@pytest.mark.parametrize(("before", "after"), [("true", "false"), ("false", "true")])
def test_a_union_by_name_matches_by_the_setting_of_the_call(
    spark: SparkSession, before: str, after: str
) -> None:
    """Also where rows came to Python under another one."""
    left, right = spark.createDataFrame([(1,)], "k long"), spark.createDataFrame([(2,)], "K long")
    with confs(spark, {"spark.sql.caseSensitive": before}):
        frames = [sortshuffle.frame(each).repartition(1) for each in (left, right)]
        assert [each.count() for each in frames] == [1, 1]
    with confs(spark, {"spark.sql.caseSensitive": after}):
        ours = frames[0].unionByName(frames[1], allowMissingColumns=True)
        assert ours.collect() == left.unionByName(right, allowMissingColumns=True).collect()


def test_a_union_by_name_finds_columns_wherever_they_are(spark: SparkSession) -> None:
    left, right = spark.sql("select 1 a, 'x' b"), spark.sql("select 'y' B, 2 a")
    frames = sortshuffle.frame(left), sortshuffle.frame(right)
    assert differences(frames[0].unionByName(frames[1]), left.unionByName(right)) == []
    other = spark.sql("select 3.5D c, 4 a")
    united = frames[0].unionByName(sortshuffle.frame(other), allowMissingColumns=True)
    assert differences(united, left.unionByName(other, allowMissingColumns=True)) == []
    with pytest.raises(PySparkException, match="b"):
        frames[0].unionByName(sortshuffle.frame(other))


def test_a_union_by_name_has_the_columns_that_the_jvm_calls_equal(spark: SparkSession) -> None:
    """Two letters for the micro sign are one in upper case."""
    left, right = spark.range(1).toDF("\u00b5s"), spark.range(2).toDF("\u03bcs")
    expected = left.unionByName(right)
    ours = sortshuffle.frame(left).unionByName(sortshuffle.frame(right))  # Spark unites them
    assert ours.columns == expected.columns == ["\u00b5s"]
    assert ours.collect() == expected.collect() == [(0,), (0,), (1,)]


def test_what_cannot_be_united_is_refused(spark: SparkSession) -> None:
    number, text = spark.sql("select 1 a"), spark.sql("select '5' a")
    one = sortshuffle.frame(number)
    with pytest.raises(PySparkException, match=r"number of columns|same number"):
        one.union(sortshuffle.frame(spark.sql("select 1 a, 2 b")))
    with pytest.raises(UnsupportedError, match=r"column a of type string .* cast it to int64"):
        OnlyPython(one).union(sortshuffle.frame(text))
    assert_handed_to_spark(one.union(sortshuffle.frame(text)), number.union(text), "union")


def test_what_would_be_rounded_or_written_differently_is_refused(spark: SparkSession) -> None:
    with confs(spark, {"spark.sql.ansi.enabled": "false"}):
        for one, other, says in (
            ("1e20D", "'x'", r"column a of type double .* cast it to string"),
            ("cast(1 as decimal(38,0))", "cast(1.5 as decimal(38,10))", "only where no digit is lost"),
        ):
            plain = spark.sql(f"select {one} a"), spark.sql(f"select {other} a")
            ours = sortshuffle.frame(plain[0]), sortshuffle.frame(plain[1])
            with pytest.raises(UnsupportedError, match=says):
                OnlyPython(ours[0]).union(ours[1])
            assert_handed_to_spark(ours[0].union(ours[1]), plain[0].union(plain[1]), "union")


def test_a_decimal_becomes_the_nearest_double(spark: SparkSession) -> None:
    texts = "'-9647321452684857.41', '2397.5839548243', '4.081E-15', '1.5840883E-23', '12345678', null"
    decimals = spark.sql(f"select cast(text as decimal(38, 18)) a from (select explode(array({texts})) text)")
    double = spark.sql("select 0.5D a")
    united = sortshuffle.frame(decimals).union(sortshuffle.frame(double))
    assert differences(united, decimals.union(double)) == []


def test_an_empty_side_keeps_its_partitions(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers)
    united = frame.filter(pc.field("id") < 0).repartition(3, "k").union(frame)
    assert partition_count(united) == 7
    assert united.count() == 1000


# --- coalesce -------------------------------------------------------------------------------------------


def test_fewer_partitions_hold_whole_neighbours_in_their_order(numbers: DataFrame, scanned: Path) -> None:
    spark = numbers.sparkSession
    frame = sortshuffle.frame(numbers)
    moved = frame.repartition(5, "k").mapInArrow(tagged(2), "id long, k int")
    plain = numbers.repartition(5, "k").mapInArrow(tagged(2), "id long, k int")
    assert differences(moved.coalesce(2), plain.coalesce(2)) == []
    assert differences(frame.coalesce(3), numbers.coalesce(3)) == []
    read = sortshuffle.read(spark).parquet(str(scanned))
    assert sorted(ids(read.coalesce(1))) == list(range(1000))
    assert partition_count(read.coalesce(1)) == 1
    chained = frame.mapInArrow(tagged(3), "id long, k int").coalesce(2)
    assert partition_count(chained) == 2
    assert ids(chained).count(-3) == 4  # called once for each partition that there was
    assert partition_count(moved.coalesce(50)) == 5


def test_what_is_coalesced_may_be_shuffled_again(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers).repartition(5, "k").coalesce(2)
    assert differences(frame.repartition(3, "id"), numbers.repartition(3, "id")) == []
    assert len(rows_in_order(frame)) == 1000


@pytest.mark.parametrize("count", [0, -1, True, "2"])
def test_no_number_of_partitions_is_no_coalesce(numbers: DataFrame, count: object) -> None:
    frame = sortshuffle.frame(numbers)
    with pytest.raises(UsageError, match="coalesce"):
        OnlyPython(frame).coalesce(count)
    assert_same_error(lambda each: each.coalesce(count), frame, numbers)


def test_explain_shows_the_inputs_of_a_union(numbers: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    frame = sortshuffle.frame(numbers)
    frame.repartition(2, "k").limit(3).union(frame.filter(pc.field("id") > 5)).explain()
    text = capsys.readouterr().out
    assert "    union of\n      * exchange " in text
    assert "        limit(3)\n      * rows of DataFrame[id, k]\n        filter((id > 5))" in text


def test_pandas_functions_run_behind_all_of_them(numbers: DataFrame) -> None:
    def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return (each.assign(id=2 * each.id) for each in frames)

    frame = sortshuffle.frame(numbers)
    united = frame.limit(3).union(frame.limit(2)).coalesce(1).mapInPandas(doubled, "id long, k int")
    assert ids(united) == [0, 2, 4, 0, 2]
