"""`sort` and `sortWithinPartitions` against plain PySpark: the order of every type in every direction, the
partitions, what the arguments mean, and more rows than fit into a task's memory."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import (
    GROUP_KEYS,
    OnlyPython,
    assert_same_error,
    confs,
    counter_of_tasks,
    data_frame,
    every_type,
    jobs,
    partition_count,
    rows_in_order,
)
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner.range_bounds import LONGEST_TEXT
from sortshuffle.payload.ordering import RowOrder, SortKey

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of this module

WAYS = {  # what a column is asked for, and what that means
    "asc": (False, False),
    "asc_nulls_last": (False, True),
    "desc_nulls_first": (True, False),
    "desc": (True, True),
}
SMALL = {"spark.sortshuffle.memory": "1m", "spark.sortshuffle.read.memory": "1m"}
LARGE_ROWS = 60_000


@pytest.fixture(scope="module")
def typed(spark: SparkSession) -> DataFrame:
    """300 rows in 3 partitions, with a column of every type."""
    rows = data_frame(spark, every_type(seed=21, rows=300))
    return rows.repartitionById(3, sf.expr("cast(id % 3 as int)")).localCheckpoint()


def directed(name: str, way: str) -> Column:
    column: Column = getattr(sf.col(name), way)()
    return column


def pairs(df: DataFrame | ShuffleFrame) -> list[str]:
    """The rows in the order of the whole, without saying in which partition each is."""
    return [row.split(": ", 1)[1] for row in rows_in_order(df)]


def spilled(frame: ShuffleFrame, figure: str) -> int:
    return sum(stage.metrics.counts[figure] for stage in frame.stage_totals())


# --- the order ----------------------------------------------------------------------------------------------


def test_every_type_has_sparks_order_in_every_direction(spark: SparkSession) -> None:
    """Spark numbers the rows of a table by each of the orders, which must be what the ranks do."""
    table = every_type(seed=22, rows=90)
    orders = [(name, way) for name in GROUP_KEYS for way in WAYS]
    numbers = [sf.dense_rank().over(Window.orderBy(directed(name, way))) for name, way in orders]
    numbered = data_frame(spark, table).coalesce(1).select("id", *numbers).toArrow().sort_by("id")
    (batch,) = table.combine_chunks().to_batches()
    for (name, way), expected in zip(orders, numbered.columns[1:], strict=True):
        ranks = RowOrder([SortKey(table.schema.get_field_index(name), *WAYS[way])]).ranks(batch)
        order = ranks.sort_indices()
        starts = np.zeros(batch.num_rows, np.int64)
        starts[ranks.take(order).group_starts()] = 1
        found = np.empty(batch.num_rows, np.int64)
        found[order] = np.cumsum(starts)
        assert found.tolist() == expected.to_pylist(), (name, way)


MIXED: list[list[tuple[str, str]]] = [
    [("st", "desc"), ("d", "asc_nulls_last")],
    [("x", "desc_nulls_first"), ("dl", "asc")],
    [("bo", "asc_nulls_last"), ("f", "desc"), ("bi", "desc_nulls_first")],
]
"""Several keys, of which the last is followed by ``id``, so that there is one right order only."""


def together(frames: Iterable[Any]) -> list[str]:
    """The rows of several frames in order, in one job, each with its frame's number and its partition in the
    union."""
    plain = (each.toDF() if isinstance(each, ShuffleFrame) else each for each in frames)
    marked = (df.select(sf.lit(number), "*") for number, df in enumerate(plain))
    return rows_in_order(functools.reduce(DataFrame.union, marked))


@pytest.mark.usefixtures("generated_code")
def test_a_sort_is_a_total_order_over_the_partitions(typed: DataFrame) -> None:
    orders = [[*(directed(*key) for key in keys), sf.col("id").desc()] for keys in MIXED]
    ours = [sortshuffle.frame(typed).sort(*columns) for columns in orders]
    # few rows are all in the sample: then the bounds, and so the partitions, are Spark's too
    assert together(ours) == together(typed.orderBy(*columns) for columns in orders)
    assert all(1 < partition_count(each) <= 5 for each in ours)


def test_ties_are_in_any_order_but_none_is_lost(typed: DataFrame) -> None:
    ours, plain = (frame.orderBy("bo").collect() for frame in (sortshuffle.frame(typed), typed))
    assert [row.bo for row in ours] == [row.bo for row in plain]
    assert Counter(map(repr, ours)) == Counter(map(repr, plain))


def test_every_partition_is_sorted_where_it_is(typed: DataFrame) -> None:
    keys = [directed("dl", "desc"), directed("st", "asc_nulls_last"), sf.col("id")]
    frame, shuffled = sortshuffle.frame(typed), sortshuffle.frame(typed).repartition(4, "sh")
    # behind Spark's own partitions, behind a shuffle, and behind a function that hides it
    ours = (frame, shuffled, shuffled.mapInArrow(lambda batches: batches, typed.schema))
    plain = (typed, *[typed.repartition(4, "sh")] * 2)
    found, expected = (together(each.sortWithinPartitions(*keys) for each in side) for side in (ours, plain))
    assert found == expected


def test_what_is_selected_and_filtered_before_and_after_stays_sorted(typed: DataFrame) -> None:
    def done(frame: Any) -> Any:
        selected = frame.repartition(3, "lo").select("d", "lo", "id")
        return selected.sortWithinPartitions(sf.col("d").desc(), "id").select("id", "d")

    assert rows_in_order(done(sortshuffle.frame(typed))) == rows_in_order(done(typed))


# --- more than fits -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(spark: SparkSession) -> DataFrame:
    """Some 6 MB in 2 partitions, ordered by nothing."""
    number = "id * 2654435761 % 1000003"
    text = "sha2(cast(id as string), 256) as text"
    return spark.range(0, LARGE_ROWS, 1, 2).selectExpr("id", f"{number} as k", "id % 5 as few", text)


def test_more_rows_than_fit_are_sorted_through_files(spark: SparkSession, large: DataFrame) -> None:
    with confs(spark, SMALL):
        frame = sortshuffle.frame(large)
    keys = [sf.col("few").desc(), sf.col("k"), sf.col("id")]
    expected = large.toArrow().sort_by([("few", "descending"), ("k", "ascending"), ("id", "ascending")])

    everywhere = frame.sort(*keys)
    found = everywhere.toArrow()
    assert found.select(["id"]).equals(expected.select(["id"]))
    assert spilled(everywhere, "spills") > 5
    assert spilled(everywhere, "memory_peak") < 2 * 1024**2

    within = frame.sortWithinPartitions(*keys)
    parts = within.toDF().select(sf.spark_partition_id().alias("part"), "id").toArrow()
    for part in (0, 1):
        ids = parts["id"].filter(np.asarray(parts["part"]) == part).to_numpy()
        of_expected = np.asarray(expected["id"])
        assert ids.tolist() == of_expected[of_expected // (LARGE_ROWS // 2) == part].tolist()
    assert spilled(within, "bytes_spilled") > 1024**2
    assert spilled(within, "merge_passes") >= 2
    assert spilled(within, "memory_peak") < 2 * 1024**2


def test_long_keys_are_sorted_by_bounds_that_are_short(spark: SparkSession) -> None:
    """Every task has the bounds and compares its rows with them: of megabytes that took minutes."""
    long = spark.range(40).selectExpr(
        "id", "concat(substr('abcd', cast(id % 4 as int) + 1, 1), repeat('x', 300000), id % 7) v"
    )
    ours = sortshuffle.frame(long).sort("v", sf.desc("id"))
    found = [tuple(row) for row in ours.toDF().collect()]
    assert found == [tuple(row) for row in long.orderBy("v", sf.desc("id")).collect()]
    exchange: Any = ours._chain.origin
    bounds = exchange.exchange._placement.bounds
    assert bounds.num_rows > 0
    assert pc.max(pc.binary_length(bounds["v"])).as_py() == LONGEST_TEXT


# --- partitions, plans --------------------------------------------------------------------------------------


def test_a_frame_in_one_partition_needs_no_ranges(spark: SparkSession, typed: DataFrame) -> None:
    frame = sortshuffle.frame(typed)
    with confs(spark, {"spark.sql.shuffle.partitions": "1"}), jobs(spark) as ran:
        single = frame.sort(sf.col("i").desc(), "id")
        found = pairs(single)
    assert len(ran.ids) == 1  # nothing was sampled
    assert found == pairs(typed.orderBy(sf.col("i").desc(), "id"))
    assert partition_count(single) == 1


def test_of_files_only_the_keys_are_read_for_the_sample(
    spark: SparkSession, typed: DataFrame, tmp_path: Path
) -> None:
    typed.select("id", "d", "st").write.parquet(str(tmp_path / "files"))
    files = sortshuffle.read(spark).parquet(str(tmp_path / "files"))
    keys = [sf.col("st").desc(), "id"]
    ours = files.sort(*keys)
    exchange: Any = ours._chain.origin
    assert exchange.exchange.scheme.key_rows.wire.names == ["st", "id"]
    assert not exchange.exchange.scheme.key_rows.steps
    assert pairs(ours) == pairs(spark.read.parquet(str(tmp_path / "files")).orderBy(*keys))


def test_a_frame_without_rows_is_sorted_too(spark: SparkSession, typed: DataFrame) -> None:
    nothing = sortshuffle.frame(typed.filter("id < 0"))
    assert nothing.sort("st", sf.col("x").desc()).collect() == []
    assert nothing.sortWithinPartitions("st").collect() == []


def test_what_is_sorted_already_is_the_frame_itself(
    typed: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    ordered = sortshuffle.frame(typed).repartition(2, "i").sortWithinPartitions(sf.col("i").desc(), "st")
    assert ordered.sortWithinPartitions(sf.col("i").desc()) is ordered
    assert ordered.sortWithinPartitions("i") is not ordered
    assert ordered.sort([]) is ordered
    ordered.explain()
    assert "sorted by i desc, st" in capsys.readouterr().out
    sortshuffle.frame(typed).sortWithinPartitions(sf.col("i").desc_nulls_first()).explain()
    assert "sort(i desc nulls first)" in capsys.readouterr().out


# --- arguments ----------------------------------------------------------------------------------------------


class Asked:
    """Both sides' sort, which is asked what its keys are."""

    def __init__(self, df: DataFrame) -> None:
        self.df = df
        self.frame = sortshuffle.frame(df)

    def ours(self, *cols: Any, **ascending: Any) -> list[str]:
        names = [name.lower() for name in self.frame.columns]
        return [
            key.describe(names[key.column])
            for key in self.frame.sort(*cols, **ascending)._rows.layout.ordered_by
        ]

    def plain(self, *cols: Any, **ascending: Any) -> list[str]:
        """From the analysed plan: a column is ``name#12 ASC NULLS FIRST`` there."""
        plan: Any = self.df.orderBy(*cols, **ascending)
        order = plan._jdf.queryExecution().analyzed().order()
        told: dict[str, str] = {}
        for key in (order.apply(at).sql() for at in range(order.length())):
            name, direction, _, end = key.split(".")[-1].split(" ")
            name = name.strip("`").lower()  # it is as it was asked for
            words = SortKey(0, direction == "DESC", end == "LAST").describe(name)
            told.setdefault(name, words)
        return list(told.values())


@pytest.fixture(scope="module")
def asked(spark: SparkSession) -> Asked:
    return Asked(spark.range(0, 2, 1, 1).selectExpr("int(id) as k", "string(id) as S", "id / 2 as v"))


ARGUMENTS: list[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = [
    lambda: (("k",), {}),
    lambda: (("v", "K"), {}),
    lambda: ((["k", "s"],), {}),
    lambda: ((("k", "s"),), {}),
    lambda: ((sf.col("k").desc(), "s", sf.col("v").asc_nulls_last()), {}),
    lambda: ((sf.desc_nulls_first("k"), sf.desc("`s`")), {}),
    lambda: (("k", sf.col("k").desc(), "v"), {}),
    lambda: ((sf.col("k").alias("other").desc(),), {}),
    lambda: ((1, -3, "s"), {}),
    lambda: (([-2, 1],), {}),
    lambda: (("k", "s"), {"ascending": False}),
    lambda: (("k", "s"), {"ascending": 0}),
    lambda: (("k", "s"), {"ascending": [True, False]}),
    lambda: ((1, "s", sf.col("v").desc()), {"ascending": [0, 0, 1]}),
    lambda: (("k", "s", "v"), {"ascending": [0, 1]}),
    lambda: (("k",), {"ascending": [0, 1, 1]}),
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments_mean_what_they_mean_in_pyspark(asked: Asked, arguments: Callable[[], Any]) -> None:
    cols, ascending = arguments()
    assert asked.ours(*cols, **ascending) == asked.plain(*cols, **ascending)


REFUSED: list[tuple[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]], type[Exception], str]] = [
    (lambda: ((), {}), UsageError, "at least one column"),
    (lambda: ((True,), {}), UsageError, "not bool"),
    (lambda: ((1.5,), {}), UsageError, "not float"),
    (lambda: ((["k"], ["s"]), {}), UsageError, "not list"),
    (lambda: (("k",), {"ascending": "desc"}), UsageError, "as ascending, not 'desc'"),
    (lambda: (("k",), {"ascending": (0,)}), UsageError, "as ascending"),
    (lambda: (("k",), {"ascending": None}), UsageError, "as ascending, not None"),
    (lambda: ((0,), {}), ColumnError, "counts columns from 1 to 3, or down from -1: not 0"),
    (lambda: ((4,), {}), ColumnError, "not 4"),
    (lambda: ((-4,), {}), ColumnError, "not -4"),
    (lambda: (("nope",), {}), ColumnError, "no column 'nope'"),
    (lambda: (("*",), {}), ColumnError, "expression"),
    # Spark takes these, and fails in the job
    (lambda: ((sf.col("k").desc(),), {"ascending": False}), UsageError, "has a direction already"),
    (lambda: ((-1,), {"ascending": [False]}), UsageError, "has a direction already"),
    (lambda: ((sf.col("k").desc().asc(),), {}), UsageError, "has a direction already"),
]


@pytest.mark.parametrize(("arguments", "kind", "said"), REFUSED)
def test_what_pyspark_does_not_take_is_refused(
    asked: Asked, arguments: Callable[[], Any], kind: type[Exception], said: str
) -> None:
    cols, ascending = arguments()
    only = OnlyPython(asked.frame)
    for sort in (only.sort, only.sortWithinPartitions):
        with pytest.raises(kind, match=said):
            sort(*cols, **ascending)
    for name in ("sort", "sortWithinPartitions"):  # some fail only when they run
        assert_same_error(
            lambda each, name=name: getattr(each, name)(*cols, **ascending).collect(), asked.frame, asked.df
        )


@pytest.mark.parametrize("name", ["a", "ax", "m"])
def test_arrays_and_maps_have_no_order_here(typed: DataFrame, name: str) -> None:
    frame = OnlyPython(sortshuffle.frame(typed))
    for method in (frame.sort, frame.sortWithinPartitions):
        with pytest.raises(
            ColumnError, match=f"sorted by column {name} of type (array|map).*plain type from it"
        ):
            method("id", name)


def test_an_expression_is_refused_with_what_to_do(asked: Asked) -> None:
    with pytest.raises(ColumnError, match=r"withColumn\(\)"):
        OnlyPython(asked.frame).sort(sf.col("k") + 1)


def test_spark_sorts_what_python_cannot(typed: DataFrame) -> None:
    keys = [sf.col("a").desc(), sf.col("id") % 7, sf.col("id")]
    frame, plain = sortshuffle.frame(typed), typed.sort(*keys)
    expected = pairs(plain)
    for ours in (frame.sort(*keys), frame.orderBy(*keys)):
        assert [(crossing.operator, crossing.to) for crossing in ours._crossings] == [("sort", "Spark")]
        assert ours._own_rows is None
        assert ours.schema == plain.schema
        assert pairs(ours) == expected


# --- the first rows of a sort ---------------------------------------------------------------------------


def test_the_first_rows_of_a_sort_are_those_of_spark(typed: DataFrame) -> None:
    rows = typed.select("id", "st")
    frame = sortshuffle.frame(rows)
    for key in ("id", sf.desc("id")):
        assert frame.sort(key).limit(7).collect() == rows.sort(key).limit(7).collect()
    keys = [sf.col("st").desc_nulls_last(), "id"]
    plain, ours = rows.sort(*keys).collect(), functools.partial(frame.sort, *keys)
    assert ours().limit(7).collect() == plain[:7]
    assert ours().limit(0).collect() == []
    assert ours().limit(1000).collect() == plain
    assert ours().limit(5).filter("id > 30").collect() == [row for row in plain[:5] if row.id > 30]
    assert ours().take(3) == plain[:3]
    assert ours().head(2) == plain[:2]
    assert ours().first() == plain[0]


@pytest.mark.parametrize(
    "call",
    [lambda rows: rows.limit(2).collect(), lambda rows: rows.take(2), lambda rows: rows.show(2)],
    ids=["limit", "take", "show"],
)
def test_the_first_rows_of_a_sort_run_a_function_once_and_one_job(
    spark: SparkSession, call: Callable[[DataFrame], Any]
) -> None:
    tasks, counted = counter_of_tasks(spark)
    ordered = sortshuffle.frame(spark.range(0, 100, 1, 2)).mapInArrow(counted, "id long").sort(sf.desc("id"))
    with jobs(spark) as found:
        assert call(ordered) in ([(99,), (98,)], None)
    assert (len(found.ids), tasks.value) == (1, 2)


def test_the_first_rows_of_ranges_that_are_sorted_otherwise_are_not_those_of_a_sort(
    spark: SparkSession,
) -> None:
    rows = spark.range(100).selectExpr("id", "-id as k").coalesce(1)
    for frame in (sortshuffle.frame(rows), rows):
        ranges = frame.repartitionByRange(2, "k").sortWithinPartitions(sf.desc("k")).limit(1)
        (row,) = ranges.collect()
        assert row.k < -40


def test_show_prints_what_pyspark_prints(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data_frame(spark, every_type(seed=21, rows=40)).select("id", "st")
    for arguments in ((), (3,), (40, False), (2, 3, True), (0,), (-1,), (2**31 - 1,)):
        sortshuffle.frame(rows).sort("id").show(*arguments)
        ours = capsys.readouterr().out
        rows.sort("id").show(*arguments)
        assert ours == capsys.readouterr().out
    assert_same_error(lambda frame: frame.sort("id").show("3"), sortshuffle.frame(rows), rows)


def test_groups_get_their_rows_in_the_order_of_a_sort_before(spark: SparkSession) -> None:
    """Spark sorts the same partitions by the key, and keeps the order of equal keys."""
    df = spark.range(0, 3000, 1, 3).selectExpr("id % 7 AS k", "(id * 7919) % 3000 AS at")

    def in_order(group: pa.Table) -> pa.Table:
        at = group["at"].to_numpy()
        rising = bool((np.diff(at) > 0).all())
        return pa.table({"k": group["k"][:1], "rows": [len(at)], "rising": [rising]})

    def groups(sorted_rows: Any) -> list[Any]:
        rows = sorted_rows.groupBy("k").applyInArrow(in_order, "k long, rows long, rising boolean")
        return sorted(rows.collect())

    ours = groups(sortshuffle.frame(df).repartition(2, "k").sortWithinPartitions("at"))
    assert ours == groups(df.repartition(2, "k").sortWithinPartitions("at"))
    assert all(row["rising"] for row in ours)
    assert sum(row["rows"] for row in ours) == 3000
