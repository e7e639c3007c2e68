"""What Spark's planner is told of a frame: plans without shuffles and sorts, and the same rows as plain Spark
gives; what is broadcast for its size; and what is not claimed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import HASH_KEYS, confs, data_frame, every_type, jobs
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.payload.ordering import SortKey
from sortshuffle.spark.plan import hints
from sortshuffle.spark.plan.chain import Layout
from sortshuffle.spark.plan.estimated_sizes import estimated_size
from sortshuffle.spark.plan.hints import describe

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
# two partitions of Spark's own, so that ours of three are as many as it wants
NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.shuffle.partitions": "2"}
AQE = pytest.mark.parametrize("adaptive", ["true", "false"])


def told(frame: ShuffleFrame) -> DataFrame:
    return frame.toDF()


def plan(df: DataFrame) -> str:
    query: Any = df._jdf.queryExecution()
    return str(query.executedPlan().toString())


def nodes(df: DataFrame) -> tuple[int, int]:
    """How many shuffles and sorts Spark plans for this."""
    text = plan(df)
    return len(re.findall(r"\bExchange\b", text)), len(re.findall(r"\bSort\b", text))


def rows(df: DataFrame) -> Counter[str]:
    return Counter(map(repr, df.collect()))


def same(batches: Batches) -> Batches:
    yield from batches


@pytest.fixture(scope="module")
def left(spark: SparkSession) -> DataFrame:
    return spark.range(0, 150, 1, 3).selectExpr(
        "if(id % 10 = 0, null, id % 17) as k", "id % 3 as j", "concat('v', id) as v", "id"
    )


@pytest.fixture(scope="module")
def right(spark: SparkSession) -> DataFrame:
    return spark.range(0, 60, 1, 2).selectExpr("if(id % 9 = 0, null, id % 23) as k", "id % 4 as j", "id as w")


# --- what needs no shuffle ------------------------------------------------------------------------------

Query = Callable[[DataFrame, DataFrame], DataFrame]
QUERIES: dict[str, tuple[Query, tuple[int, int], tuple[int, int]]] = {
    # of two frames placed by k: the query, shuffles and sorts, and those where both are sorted by k as well
    "groupBy": (lambda a, b: a.groupBy("k").agg(sf.count("*"), sf.sum("id")), (0, 0), (0, 0)),
    "groupBy more": (lambda a, b: a.groupBy("j", "k").agg(sf.sum("id")), (0, 0), (0, 0)),
    "groupBy other": (lambda a, b: a.groupBy("j").count(), (1, 0), (1, 0)),
    "dropDuplicates": (lambda a, b: a.select("k", "j").dropDuplicates(), (0, 0), (0, 0)),
    "join": (lambda a, b: a.join(b, "k"), (0, 2), (0, 0)),
    "full join": (lambda a, b: a.join(b, "k", "full"), (0, 2), (0, 0)),
    "anti join": (lambda a, b: a.join(b, "k", "anti"), (0, 2), (0, 0)),
    "self join": (lambda a, b: a.join(a, "k").groupBy("k").count(), (0, 2), (0, 0)),
    "self join by alias": (
        lambda a, b: a.alias("x").join(a.alias("y"), sf.col("x.k") == sf.col("y.k")).select("x.id", "y.id"),
        (0, 2),
        (0, 0),
    ),
    "join on more": (lambda a, b: a.join(b, ["k", "j"]), (2, 2), (2, 2)),
    "window": (
        lambda a, b: a.withColumn("n", sf.row_number().over(Window.partitionBy("k").orderBy("id"))),
        (0, 1),
        (0, 1),
    ),
    "window as sorted": (
        lambda a, b: a.withColumn("n", sf.count("*").over(Window.partitionBy("k"))),
        (0, 1),
        (0, 0),
    ),
    "rename": (lambda a, b: a.withColumnRenamed("k", "q").groupBy("q").count(), (0, 0), (0, 0)),
    "filter": (lambda a, b: a.where("id > 20").groupBy("k").count(), (0, 0), (0, 0)),
    "another column": (lambda a, b: a.withColumn("k", sf.col("k") + 1).groupBy("k").count(), (1, 0), (1, 0)),
    "cast": (lambda a, b: a.groupBy(sf.col("k").cast("int")).count(), (1, 0), (1, 0)),
    "sorted": (lambda a, b: a.sortWithinPartitions("k").select("k"), (0, 1), (0, 0)),
    "sorted down": (lambda a, b: a.sortWithinPartitions(sf.desc("k")).select("k"), (0, 1), (0, 1)),
}


RUN = ("groupBy more", "dropDuplicates", "full join", "anti join", "self join", "window", "sorted")
RUN_ADAPTIVELY = ("groupBy", "self join by alias", "join on more")


def results(a: DataFrame, b: DataFrame, names: Iterable[str]) -> Counter[str]:
    """The rows of these queries, in one job."""
    queries = {name: QUERIES[name][0](a, b) for name in names}
    return rows(_union([df.select(sf.lit(name), sf.to_json(sf.struct("*"))) for name, df in queries.items()]))


def test_what_an_action_reads_is_not_sorted_again(left: DataFrame) -> None:
    """A writer with ``partitionBy`` sorts rows by these columns, unless Spark knows that they are sorted."""
    frame = sortshuffle.frame(left).repartition(3, "k").sortWithinPartitions("k", "id")
    assert nodes(frame._for_action().sortWithinPartitions("k").select("k")) == (0, 0)


@AQE
def test_what_is_placed_and_sorted_is_not_shuffled_and_sorted_again(
    spark: SparkSession, left: DataFrame, right: DataFrame, adaptive: str
) -> None:
    with confs(spark, NO_BROADCAST | {"spark.sql.adaptive.enabled": adaptive}):
        a, b = (sortshuffle.frame(df).repartition(3, "k") for df in (left, right))
        placed = told(a), told(b)
        by_k = tuple(told(f.sortWithinPartitions("k")) for f in (a, b))
        for name, (query, when_placed, when_sorted) in QUERIES.items():
            assert (name, nodes(query(*placed))) == (name, when_placed)
            assert (name, nodes(query(*by_k))) == (name, when_sorted)
        assert placed[0].rdd.getNumPartitions() == 3
        # those that could go wrong; fewer where adaptive execution plans again as it runs
        names = RUN_ADAPTIVELY if adaptive == "true" else RUN
        assert results(*by_k, names) == results(left, right, names)


@AQE
def test_of_a_frame_and_plain_rows_only_the_plain_rows_are_shuffled(
    spark: SparkSession, left: DataFrame, right: DataFrame, adaptive: str
) -> None:
    with confs(spark, NO_BROADCAST | {"spark.sql.adaptive.enabled": adaptive}):
        ours = told(sortshuffle.frame(left).repartition(3, "k"))
        joined = ours.join(right, "k")
        assert nodes(joined)[0] == 1
        assert rows(joined) == rows(left.join(right, "k"))
        both = told(sortshuffle.frame(right).repartition(3, "k"))
        with confs(spark, {"spark.sql.requireAllClusterKeysForCoPartition": "false"}):
            on_two = ours.join(both, ["k", "j"])
            assert nodes(on_two)[0] == 0
            assert rows(on_two) == rows(left.join(right, ["k", "j"]))
        # of different numbers of partitions one side is shuffled
        other = told(sortshuffle.frame(right).repartition(4, "k"))
        assert nodes(ours.join(other, "k"))[0] == 1
        assert rows(ours.join(other, "k")) == rows(left.join(right, "k"))


@pytest.mark.usefixtures("generated_code")
def test_keys_of_every_type_meet_those_that_spark_places(spark: SparkSession) -> None:
    """For each type our rows join rows that Spark shuffles, by one shuffle. Floats are normalised before, as
    in Spark alone, so there our side is shuffled, too."""
    ours, plain = (data_frame(spark, every_type(seed, 50)) for seed in (31, 32))
    source = sortshuffle.frame(ours)
    frames = {key: source.select("id", key).repartition(2, key) for key in HASH_KEYS}  # one pass writes all

    def met(name: str, df: DataFrame) -> DataFrame:
        joined = df.join(plain.select(name, sf.col("id").alias("other")), name)
        return joined.select(sf.lit(name), "id", "other")

    expected = rows(_union([met(name, ours) for name in HASH_KEYS]))  # by broadcasts
    with confs(spark, NO_BROADCAST | {"spark.sql.adaptive.enabled": "false"}):
        queries = {name: met(name, told(frame)) for name, frame in frames.items()}
        counts = {name: nodes(df)[0] for name, df in queries.items()}
        # of the column that is all null Spark sees that nothing can be joined
        assert {name: count for name, count in counts.items() if count != 1} == (
            dict.fromkeys(("f", "d", "xx"), 2) | {"no": 0}
        )
        assert rows(_union(list(queries.values()))) == expected
    assert len({row.split(",")[0] for row in expected}) == len(HASH_KEYS) - 1


def _union(frames: list[DataFrame]) -> DataFrame:
    whole, *others = frames
    for each in others:
        whole = whole.union(each)
    return whole


def test_the_order_of_every_direction_is_told_as_it_is(spark: SparkSession) -> None:
    df = data_frame(spark, every_type(33, 120, null_share=0.3)).select("id", "d", "st", "x", "dl")
    # -0.0 equals 0.0 and NaN itself: so what follows in the order decides
    orders = [
        (sf.asc("d"), sf.desc("id")),
        (sf.desc_nulls_first("d"), sf.asc_nulls_last("st"), sf.asc("id")),
        (sf.desc("x"), sf.asc_nulls_last("dl"), sf.asc("id")),
    ]
    for order in orders:
        ours = told(sortshuffle.frame(df).repartition(3, "st").sortWithinPartitions(*order))
        again = ours.sortWithinPartitions(*order)
        assert nodes(again) == (0, 0)
        plain = df.repartition(3, "st").sortWithinPartitions(*order)
        assert [row.id for row in again.collect()] == [row.id for row in plain.collect()]


def test_columns_are_told_by_their_places(spark: SparkSession) -> None:
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        df = spark.range(0, 40, 1, 2).selectExpr("id % 3 as `a.b`", "id % 5 as K", "id % 7 as k")
        ours = told(sortshuffle.frame(df).repartition(3, "K"))
        assert "hash(K) into 3" in plan(ours)
        assert nodes(ours.groupBy("K").count())[0] == 0
        assert nodes(ours.groupBy("k").count())[0] == 1
        dotted = told(sortshuffle.frame(df).repartition(3, "`a.b`").select("k", "`a.b`"))
        assert nodes(dotted.groupBy("`a.b`").count())[0] == 0
        assert rows(dotted.groupBy("`a.b`").count()) == rows(df.groupBy("`a.b`").count())


# --- what is not claimed --------------------------------------------------------------------------------


def test_nothing_is_claimed_of_rows_that_are_somewhere_else(left: DataFrame) -> None:
    source = sortshuffle.frame(left)
    placed = source.repartition(3, "k")
    for frame in (
        placed.drop("k"),
        placed.mapInArrow(same, placed.schema),
        source.repartition(3),
        source.repartitionByRange(6, "j"),
        source.repartition(3, "j").drop("j"),
        placed.coalesce(2),
        placed.union(placed),
    ):
        text = plan(told(frame))
        assert "hash(" not in text
        if "k" in frame.columns:
            assert nodes(told(frame).groupBy("k").count())[0] == 1


def test_a_layout_of_another_number_of_partitions_is_not_believed(left: DataFrame) -> None:
    df = sortshuffle.frame(left).repartition(3, "k").toDF()
    claimed = hints.with_hints(df, Layout((0,), 2), None)
    assert nodes(claimed.groupBy("k").count())[0] == 1
    assert describe(Layout((0,), 2), df.columns, 3) == ""


def test_what_is_claimed_has_a_name(left: DataFrame) -> None:
    layout = Layout((0, 1), 6, (SortKey(0), SortKey(3, descending=True, nulls_last=True)))
    assert describe(layout, left.columns, 6) == "hash(k, j) into 6, sorted by k, id desc"
    assert describe(Layout(ordered_by=(SortKey(2),)), left.columns, 6) == "sorted by v"


def test_a_single_partition_needs_no_shuffle_whatever_it_is_grouped_by(left: DataFrame) -> None:
    single = told(sortshuffle.frame(left).repartition(1))
    assert nodes(single.groupBy("j").count())[0] == 0
    assert rows(single.groupBy("j").count()) == rows(left.groupBy("j").count())


def test_where_spark_cannot_be_told_the_frame_stays_what_it_is(
    left: DataFrame, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frame = sortshuffle.frame(left).repartition(3, "k")
    monkeypatch.setattr(hints, "_ARITIES", (5,))
    assert told(frame) is frame.toDF()
    assert "Spark is not told how rows are laid out" in caplog.text
    # nothing to tell
    assert hints.with_hints(left, Layout(), None) is left
    behind_spark = sortshuffle.frame(left).mapInArrow(same, left.schema)
    assert told(behind_spark) is behind_spark.toDF()


# --- empty inputs ---------------------------------------------------------------------------------------


def test_frames_of_no_rows_keep_their_partitions_and_their_layout(
    spark: SparkSession, left: DataFrame, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"k": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    keys = left.select("k")
    sources = [
        spark.createDataFrame([], "k long"),
        spark.createDataFrame([(1,)], "k long"),
        spark.createDataFrame(spark.sparkContext.emptyRDD(), "k long"),
        keys.limit(0),
        keys.where("false"),
        keys.where("k < 0").distinct(),
        spark.range(0).selectExpr("id as k"),
    ]
    frames = [sortshuffle.frame(df) for df in sources]
    frames.append(sortshuffle.read(spark).parquet(str(tmp_path)))
    with confs(spark, NO_BROADCAST):
        for count in (1, 4):
            other = told(sortshuffle.frame(keys).repartition(count, "k"))
            for frame in frames:
                ours = told(frame.repartition(count, "k"))
                assert ours.rdd.getNumPartitions() == count
                assert nodes(ours.join(other, "k", "full"))[0] == 0
        joined = [told(frame.repartition(4, "k")).join(other, "k", "full") for frame in frames]
        assert [len(found) for found in (_union(joined[:2]).collect(), joined[-1].collect())] == [300, 150]


# --- what is broadcast ----------------------------------------------------------------------------------


@AQE
def test_a_small_frame_is_broadcast_and_a_large_one_is_not(
    spark: SparkSession, left: DataFrame, right: DataFrame, adaptive: str
) -> None:
    a, b = (sortshuffle.frame(df).repartition(3, "k") for df in (left, right))
    large, small = (estimated_size(frame._chain) or 0 for frame in (a, b))
    assert small < large
    between = {"spark.sql.autoBroadcastJoinThreshold": str((small + large) // 2)}
    with confs(spark, between | {"spark.sql.adaptive.enabled": adaptive}):
        joined = told(a).join(told(b), "k")
        text = plan(joined)
        assert "BroadcastHashJoin" in text
        assert "BuildRight" in text
        assert nodes(joined) == (0, 0)
        assert rows(joined) == rows(left.join(right, "k"))
        assert "BroadcastHashJoin" not in plan(told(a).join(told(a), "k"))


# --- an ordinary DataFrame ------------------------------------------------------------------------------


def test_telling_runs_nothing_and_all_that_is_made_of_it_shares_the_map_outputs(
    spark: SparkSession, left: DataFrame, tmp_path: Path
) -> None:
    frame = sortshuffle.frame(left).repartition(3, "k")
    with jobs(spark) as building:
        ours = told(frame)
        grouped = ours.groupBy("k").count()
        plan(grouped)
    assert building.ids == []
    with jobs(spark) as running:
        assert ours.count() == 150
    assert running.ids
    files = [total.metrics.counts["files"] for total in frame.stage_totals()]
    assert files[0] == 6  # of three map tasks: a second run would have written other ones
    with jobs(spark):
        assert rows(grouped) == rows(left.groupBy("k").count())
        assert frame.count() == 150
        assert rows(ours.union(ours).groupBy("k").count()) == rows(left.union(left).groupBy("k").count())
        ours.write.parquet(str(tmp_path / "out"))
        cached = ours.cache()
        assert nodes(cached.groupBy("k").count())[0] == 0
        assert rows(cached.groupBy("k").count()) == rows(left.groupBy("k").count())
        cached.unpersist()
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(left)
    assert [len(part) for part in ours.rdd.glom().collect()] == [
        len(part) for part in left.repartition(3, "k").rdd.glom().collect()
    ]


def test_batches_of_a_stream_are_told_too(spark: SparkSession, left: DataFrame, tmp_path: Path) -> None:
    left.write.parquet(str(tmp_path / "in"))
    seen: list[tuple[int, Counter[str]]] = []

    def each(batch: DataFrame, _: int) -> None:
        grouped = told(sortshuffle.frame(batch).repartition(3, "k")).groupBy("k").count()
        seen.append((nodes(grouped)[0], rows(grouped)))

    stream = spark.readStream.schema(left.schema).parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(each).trigger(availableNow=True).start()
    query.awaitTermination()
    assert seen == [(0, rows(left.groupBy("k").count()))]
