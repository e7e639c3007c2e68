"""Large subpartitions read by several tasks: how they are cut, that the rows and their order are the same,
and where it is not done."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import confs, jobs
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.options import KIB, MIB, Options
from sortshuffle.spark.plan.measured_sizes import Sizes
from sortshuffle.spark.plan.skew import cut, sliceable
from sortshuffle.spark.worker.slices import ALL_MAPS, Slice

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
ON = {"spark.sortshuffle.skew.factor": "2", "spark.sortshuffle.skew.threshold": "4k"}


@pytest.fixture(scope="module")
def skewed(spark: SparkSession) -> DataFrame:
    """3,000 rows in 6 tasks; three of four have the key 1, which is in one of four partitions."""
    return spark.range(0, 3000, 1, 6).selectExpr("if(id % 4 < 3, 1, id % 17) as k", "id")


@pytest.fixture
def on(spark: SparkSession) -> Iterator[None]:
    with confs(spark, ON):
        yield


def same(batches: Batches) -> Batches:
    yield from batches


def partitions(frame: ShuffleFrame) -> list[list[int]]:
    """The ids in each partition of a frame, in their order."""
    return [[row.id for row in part] for part in frame.toDF().rdd.glom().collect()]


def explained(frame: ShuffleFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    frame.explain()
    return [line.strip() for line in capsys.readouterr().out.splitlines() if "subpartition " in line]


# --- cutting --------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.integers(0, 500), st.integers(1, 10**9), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_slices_are_ranges_of_maps_of_about_equal_bytes(by_map: dict[int, int], count: int) -> None:
    ranges = cut(by_map, count)

    assert 1 <= len(ranges) <= count
    assert (ranges[0][0], ranges[-1][1]) == (0, ALL_MAPS)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
    parts = [[by_map[at] for at in by_map if first <= at < end] for first, end in ranges]
    assert all(parts)
    share = sum(by_map.values()) / count
    assert all(sum(part) <= share + max(part) + 1 for part in parts)


def test_what_one_map_task_wrote_is_not_cut() -> None:
    assert cut({7: 5000}, 4) == [(0, ALL_MAPS)]
    assert cut({0: 10, 1: 5000, 2: 10}, 4) == [(0, 1), (1, 2), (2, ALL_MAPS)]
    assert cut({3: 100, 5: 100, 8: 100, 9: 100}, 2) == [(0, 8), (8, ALL_MAPS)]


def test_large_is_what_is_above_the_factor_and_the_threshold() -> None:
    sizes = Sizes((10 * MIB, 0, 50 * MIB, 300 * MIB, 9 * MIB), {2: {}, 3: {}})
    assert sizes.median == 10 * MIB
    assert sizes.large(Options(skew_factor=5.0)) == [3]
    assert sizes.large(Options(skew_factor=5.0, skew_threshold=MIB)) == [3]
    assert sizes.large(Options(skew_factor=4.9, skew_threshold=MIB)) == [2, 3]
    assert sizes.large(Options(skew_factor=40.0)) == []
    assert Sizes((0, 0, 0, KIB), {}).median == 1


def test_what_the_writer_did_not_measure_by_map_output_is_not_large() -> None:
    """Its threshold was higher than the reader's."""
    sizes = Sizes((10 * MIB, 0, 50 * MIB, 300 * MIB, 9 * MIB), {3: {0: 300 * MIB}})
    assert sizes.large(Options(skew_factor=4.9, skew_threshold=MIB)) == [3]


def test_a_slice_takes_its_map_outputs_of_one_exchange_and_all_of_others() -> None:
    control = pa.record_batch({"map_index": [0, 1, 2, 1], "exchange": [7, 7, 7, 8]})
    assert Slice(3, 7, 1, 2).of(control).to_pylist() == control.take([1, 3]).to_pylist()
    assert Slice(3).of(control) == control


# --- repartition ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_slices_are_the_same_where_spark_joins_or_unites_their_partitions(skewed: DataFrame) -> None:
    frame = sortshuffle.frame(skewed).repartition(4, "k").toDF()
    assert frame.rdd.getNumPartitions() > 4
    found = frame.coalesce(2).union(frame).union(frame.limit(0))
    assert Counter(row.id for row in found.collect()) == dict.fromkeys(range(3000), 2)


@pytest.mark.usefixtures("on")
def test_a_large_subpartition_is_read_by_several_tasks_in_the_order_of_one(
    spark: SparkSession, skewed: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sortshuffle.frame(skewed)
    assert source.count() == 3000
    frame = source.repartition(4, "k").mapInArrow(same, skewed.schema)
    assert explained(frame, capsys) == []
    assert "subpartitions above 2 times the median and 4.0 KiB in several tasks each" in _text(frame, capsys)
    with jobs(spark) as building:
        frame.toDF()
    assert building.stages == [2]  # the map stage, and what sums up the bytes
    with jobs(spark) as running:
        found = partitions(frame)
    assert running.stages == [2]  # the map stage is not run again
    with confs(spark, {"spark.sortshuffle.skew.factor": "0"}):
        whole = partitions(sortshuffle.frame(skewed).repartition(4, "k"))
    assert len(whole) == 4 < len(found)
    large = max(range(4), key=lambda at: len(whole[at]))
    extra = len(found) - 4
    assert found[:large] == whole[:large]
    assert [row for part in found[large : large + extra + 1] for row in part] == whole[large]
    assert found[large + extra + 1 :] == whole[large + 1 :]
    assert max(map(len, found)) < len(whole[large]) / 3
    (line,) = explained(frame, capsys)
    assert line.startswith(f"exchange {_number(frame)}: subpartition {large} (")
    assert line.endswith(f"x the median) in {extra + 1} tasks")

    # and so for everything that reads rows as they come
    assert frame.filter(pc.field("id") >= 1000).select("id").count() == 2000
    again = frame.repartition(2, "id").toDF()
    assert Counter(row.id for row in again.collect()) == Counter(range(3000))


def _text(frame: ShuffleFrame, capsys: pytest.CaptureFixture[str]) -> str:
    frame.explain()
    return capsys.readouterr().out


def _number(frame: ShuffleFrame) -> int:
    (exchange,) = frame._chain.origin.exchanges()
    return exchange.number


@pytest.mark.usefixtures("on")
def test_nothing_is_claimed_of_rows_that_are_read_in_slices(spark: SparkSession, skewed: DataFrame) -> None:
    df = sortshuffle.frame(skewed).repartition(4, "k").toDF()
    assert df.rdd.getNumPartitions() > 4
    counts = df.groupBy("k").count()
    assert "Exchange" in str(counts._jdf.queryExecution().executedPlan().toString())
    assert Counter(counts.collect()) == Counter(skewed.groupBy("k").count().collect())


@pytest.mark.usefixtures("on")
def test_what_needs_all_rows_of_a_key_or_of_a_partition_reads_them_in_one_task(
    spark: SparkSession, skewed: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = sortshuffle.frame(skewed).repartition(4, "k")
    grouped = placed.groupBy("k").applyInArrow(lambda table: table, skewed.schema)
    for frame in (
        grouped,
        placed.groupBy("k").count(),
        placed.sortWithinPartitions("id"),
        placed.dropDuplicates(["k"]),
        placed.limit(10),
        placed.sample(0.5, 1),
        placed.coalesce(2),
        placed.union(placed),
    ):
        assert sliceable(frame._chain) == []
        assert frame.toDF().rdd.getNumPartitions() in (1, 2, 4, 8)
    assert sliceable(placed._chain) != []
    # with the option off there is nothing to look for
    with confs(spark, {"spark.sortshuffle.skew.factor": "0"}), jobs(spark) as building:
        plain = sortshuffle.frame(skewed).repartition(4, "k")
        assert plain.toDF().rdd.getNumPartitions() == 4
        assert explained(plain, capsys) == []
    assert building.ids == []


@pytest.mark.usefixtures("on")
def test_without_skew_and_where_one_map_task_wrote_it_all_tasks_are_as_ever(
    skewed: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    even = sortshuffle.frame(skewed).repartition(4, "id")
    assert even.toDF().rdd.getNumPartitions() == 4
    assert "no subpartition is above 2 times the median and 4.0 KiB" in _text(even, capsys)

    single = sortshuffle.frame(skewed.coalesce(1)).repartition(4, "k")
    assert single.toDF().rdd.getNumPartitions() == 4
    (line,) = explained(single, capsys)
    assert line.endswith("in 1 task: one map task wrote most of it")


# --- joins ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize(
    ("how", "by_left", "by_right"),
    [
        ("inner", True, True),
        ("left", True, False),
        ("right", False, True),
        ("full", False, False),
        ("semi", True, False),
        ("anti", True, False),
    ],
)
def test_a_join_slices_the_side_whose_rows_may_meet_the_other_in_parts(
    spark: SparkSession, skewed: DataFrame, how: str, by_left: bool, by_right: bool
) -> None:
    few = spark.range(0, 24, 1, 2).selectExpr("id % 12 as k", "id as other")
    for left, right, is_sliced in ((skewed, few, by_left), (few, skewed, by_right)):
        a, b = (sortshuffle.frame(df).repartition(4, "k") for df in (left, right))
        ours = a.join(b, "k", how).toDF()
        plain = left.join(right, "k", how)
        assert Counter(map(repr, ours.collect())) == Counter(map(repr, plain.collect()))
        assert (ours.rdd.getNumPartitions() > 4) == is_sliced


@pytest.mark.usefixtures("on")
def test_one_exchange_is_not_read_in_slices_on_one_side_and_whole_on_the_other(
    spark: SparkSession, skewed: DataFrame
) -> None:
    large = sortshuffle.frame(skewed).repartition(4, "k")
    itself = large.join(large.select("k", sf.col("id").alias("other")), "k")
    assert sliceable(itself._chain) == []

    other = sortshuffle.frame(skewed.withColumnRenamed("id", "other")).repartition(4, "k")
    both = [*large._chain.origin.exchanges(), *other._chain.origin.exchanges()]
    assert sliceable(large.join(other, "k")._chain) == both
