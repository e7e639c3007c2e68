"""Jobs that use each kind of operator of a `ShuffleFrame`, and plain PySpark for comparison. Prints as JSON
which Spark it was and, for each operator that gave other rows, some of those.

    python every_operator.py DIRECTORY classic|remote

A process of its own, because one process cannot have sessions of both kinds, nor two releases of PySpark.
"""

from __future__ import annotations

import copy
import io
import json
import operator
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import session_calls
from example_jobs import example, in_order, result_of
from oracle import data_frame, every_type, rows_in_order
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType
from session_calls import CALLS, Call, numbers, outcome
from signatures import differing_signatures

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import StateError, UsageError
from sortshuffle.spark.session.requirements import NO_ROLLBACK, ROLLBACK, is_classic, setting_of
from sortshuffle.spark.worker_errors import own_error

cloudpickle.register_pickle_by_value(session_calls)

PARTITIONS = 5  # of whatever does not say how many
COLUMNS = ["id", "i", "lo", "d", "st", "ts", "dl", "bo"]
# Those that call what no case here does. `words` has RDDs, which Spark Connect has not. All of them run in
# tests/examples, on the newest Spark.
EXAMPLES = {"classic": ["pipeline", "words"], "remote": ["pipeline"]}

Case = Callable[["Job"], tuple[Any, Any]]
_cases: dict[str, Case] = {}
_of_drivers: set[str] = set()


def case(function: Case) -> Case:
    _cases[function.__name__] = function
    return function


def case_of_drivers(function: Case) -> Case:
    """A case that is special in the driver, or in stages that Spark runs after ours. Its tasks do what those
    of other cases do."""
    _of_drivers.add(function.__name__)
    return case(function)


def cases_of_tasks() -> list[str]:
    return [name for name in _cases if name not in _of_drivers]


class Job:
    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.df = data_frame(spark, every_type(7, 300)).repartition(3, "id")
        self.table = every_type(8, 200).select(COLUMNS)
        self.few = data_frame(spark, self.table)
        self.f = sortshuffle.frame(self.df)
        self.g = sortshuffle.frame(self.few)


def rows(frame: ShuffleFrame | DataFrame) -> list[str]:
    """The rows without their order and partitions. A frame is one of Python's side: with Spark's rows
    Spark would be compared with itself."""
    assert not isinstance(frame, ShuffleFrame) or frame._own_rows is not None, frame._crossings
    return rows_of_either_side(frame)


def rows_of_either_side(frame: DataFrame) -> list[str]:
    """The same of a frame of either side."""
    table = frame.toArrow()
    columns = [column.to_pylist() for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True)))


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch["id"], pc.multiply(batch["id"], 2)], ["id", "twice"])


def first_of(table: pa.Table) -> pa.Table:
    ids = table["id"].combine_chunks()
    return pa.table({"st": table["st"][:1], "n": [table.num_rows], "least": [pc.min(ids).as_py()]})


def sizes(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"left": [left.num_rows], "right": [right.num_rows]})


# ---- placements -----------------------------------------------------------------------------------------


@case
def by_hash(job: Job) -> tuple[Any, Any]:
    ours = job.f.repartition(4, "i", "st", "dl")
    return sorted(rows_in_order(ours)), sorted(rows_in_order(job.df.repartition(4, "i", "st", "dl")))


@case
def by_id(job: Job) -> tuple[Any, Any]:
    ours = job.g.repartitionById(7, "i")
    return sorted(rows_in_order(ours)), sorted(rows_in_order(job.few.repartitionById(7, "i")))


@case
def by_range(job: Job) -> tuple[Any, Any]:
    by = [sf.desc("lo"), "id"]
    few = job.few.repartition(2, "id")
    ours = sortshuffle.frame(few).repartitionByRange(3, *by)
    return sorted(rows_in_order(ours)), sorted(rows_in_order(few.repartitionByRange(3, *by)))


@case
def evenly(job: Job) -> tuple[Any, Any]:
    ours = job.g.repartition(3)
    partitions = Counter(row.split(":")[0] for row in rows_in_order(ours))
    return (rows(ours), len(partitions)), (rows(job.few), 3)


@case
def coalesced(job: Job) -> tuple[Any, Any]:
    ours = job.g.repartition(6, "st").coalesce(2)
    partitions = {row.split(":")[0] for row in rows_in_order(ours)}
    return (rows(ours), partitions), (rows(job.few), {"0", "1"})


@case
def nothing_coalesced(job: Job) -> tuple[Any, Any]:
    ours = job.g.filter(pc.field("id") < 0).repartition(6, "st").coalesce(2)
    return rows(ours), []


@case
def sort(job: Job) -> tuple[Any, Any]:
    by = [sf.desc_nulls_first("st"), "d", "id"]
    ours, plain = job.g.select("id", "st", "d").sort(*by), job.few.select("id", "st", "d").sort(*by)
    return list(map(repr, ours.collect())), list(map(repr, plain.collect()))


# ---- functions and groups -------------------------------------------------------------------------------


@case
def functions(job: Job) -> tuple[Any, Any]:
    schema = "id long, twice long"
    ours = job.f.mapInArrow(doubled, schema).repartition(3, "id").withColumn("more", pc.field("twice") + 1)
    plain = job.df.mapInArrow(doubled, schema).withColumn("more", sf.col("twice") + 1)
    return rows(ours.withColumnRenamed("id", "number")), rows(plain.withColumnRenamed("id", "number"))


@case
def groups(job: Job) -> tuple[Any, Any]:
    schema = "st string, n long, least long"
    plain = job.few.groupBy("st").applyInArrow(first_of, schema)
    return rows(job.g.groupBy("st").applyInArrow(first_of, schema)), rows(plain)


@case
def groups_in_pandas(job: Job) -> tuple[Any, Any]:
    def largest(pdf: Any) -> Any:
        return pdf.sort_values("id").tail(1)

    schema = "id long, ts timestamp, dl decimal(38,18)"
    few = job.few.select("id", "ts", "dl").where("ts is not null")
    ours = sortshuffle.frame(few).groupBy("ts").applyInPandas(largest, schema)
    return rows(ours), rows(few.groupBy("ts").applyInPandas(largest, schema))


@case
def aggregates(job: Job) -> tuple[Any, Any]:
    columns = [
        sf.count("*").alias("n"),
        sf.sum("i").alias("total"),
        sf.min("ts"),
        sf.max("dl"),
        sf.avg("i"),
        sf.count("st"),
    ]
    ours = job.f.groupBy("bo", "st").agg(*columns)
    return rows(ours), rows(job.df.groupBy("bo", "st").agg(*columns))


@case
def an_aggregate_of_nothing(job: Job) -> tuple[Any, Any]:
    columns = [sf.count("*").alias("n"), sf.sum("i").alias("total")]
    ours = job.g.filter(pc.field("id") < 0).repartition(3, "st").agg(*columns)
    return rows(ours), rows(job.few.where("id < 0").agg(*columns))


def sets_of_floats(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(*(sf.collect_set(name).alias(name) for name in ("d", "f", "x")))


@case_of_drivers
def floats_in_sets(job: Job) -> tuple[Any, Any]:
    """Before 4.2 a set of Spark's has every NaN, and in structs both zeros: there Spark makes it."""
    nan = float("nan")
    pairs = [(1, nan), (1, 0.0), (1, nan), (1, -0.0), (2, -0.0), (2, 0.0), (2, 1.5), (2, None), (3, None)]
    plain = job.spark.createDataFrame(pairs, "k int, d double").coalesce(1)
    plain = plain.selectExpr("k", "d", "float(d) as f", "struct(d) as x")
    ours = sets_of_floats(sortshuffle.frame(plain))
    found, expected = (
        sorted(str([row.k, *(sorted(map(repr, values)) for values in row[1:])]) for row in frame.collect())
        for frame in (ours, sets_of_floats(plain))
    )
    is_old = tuple(map(int, job.spark.version.split(".")[:2])) < (4, 2)
    return (found, [crossing.to for crossing in ours._crossings]), (expected, ["Spark"] if is_old else [])


@case
def distinct(job: Job) -> tuple[Any, Any]:
    ours = job.f.select("bo", "st", "i").distinct()
    return rows(ours), rows(job.df.select("bo", "st", "i").distinct())


# ---- several frames -------------------------------------------------------------------------------------


def sides(job: Job) -> tuple[ShuffleFrame, ShuffleFrame, DataFrame, DataFrame]:
    names = ["i", "st", "number"]
    left, right = job.df.select("id", "i", "st", "d"), job.few.select("i", "st", "id").toDF(*names)
    return sortshuffle.frame(left), sortshuffle.frame(right), left, right


@case
def inner_join(job: Job) -> tuple[Any, Any]:
    f, g, left, right = sides(job)
    return rows(f.join(g, ["i", "st"])), rows(left.join(right, ["i", "st"]))


@case
def full_join_of_one_placed_side(job: Job) -> tuple[Any, Any]:
    f, g, left, right = sides(job)
    ours = f.repartition(3, "st").join(g.drop("i"), "st", "full").select("st", "id", "number")
    return rows(ours), rows(left.join(right.drop("i"), "st", "full").select("st", "id", "number"))


@case
def broadcast_join(job: Job) -> tuple[Any, Any]:
    f, g, left, right = sides(job)
    ours = f.join(sortshuffle.broadcast(g), ["i", "st"], "left")
    return rows(ours), rows(left.join(right, ["i", "st"], "left"))


@case
def a_join_with_itself(job: Job) -> tuple[Any, Any]:
    _, g, _, right = sides(job)
    placed = g.repartition(3, "i")
    return rows(placed.join(placed, "i", "semi")), rows(right.join(right.select("i"), "i", "semi"))


@case
def cogroups(job: Job) -> tuple[Any, Any]:
    f, g, left, right = sides(job)
    schema = "left long, right long"
    ours = f.groupBy("i").cogroup(g.groupBy("i")).applyInArrow(sizes, schema)
    return rows(ours), rows(left.groupBy("i").cogroup(right.groupBy("i")).applyInArrow(sizes, schema))


@case
def union(job: Job) -> tuple[Any, Any]:
    f = job.g.repartition(3, "st").select("id", "i").union(job.f.select("id", "i"))
    plain = job.few.select("id", "i").union(job.df.select("id", "i"))
    return rows(f.repartition(4, "i")), rows(plain)


@case
def limit(job: Job) -> tuple[Any, Any]:
    return len(rows(job.f.limit(17))), 17


@case
def samples(job: Job) -> tuple[Any, Any]:
    """Over Connect one shuffle takes the map stages of both sides of a join: tasks have other numbers."""
    found, expected = [], []
    for plain in (job.spark.range(0, 400, 1, 4), job.few.select("id")):
        f = sortshuffle.frame(plain)
        train = f.sample(0.5, 7)
        drawn = rows(train)
        rest = f.join(train, "id", "left_anti")
        found += [sorted([*drawn, *rows(rest)]), rows(f.join(train, "id", "left_semi"))]
        expected += [rows(plain), drawn]
        found += [rows(f.union(train)), rows(train.repartition(3, "id")), rows(train.coalesce(1))]
        expected += [sorted([*rows(plain), *drawn]), drawn, drawn]
    return list(map(str, found)), list(map(str, expected))


@case_of_drivers
def samples_in_plans_of_sparks(job: Job) -> tuple[Any, Any]:
    plain = job.spark.range(0, 400, 1, 4)
    f = sortshuffle.frame(plain)
    found, expected = [], []
    for train in (f.sample(0.5, 7), f.repartition(3, "id").sample(0.5, 7)):
        drawn = rows(train)
        test = rows_of_either_side(f.exceptAll(train))
        # as a DataFrame: over Connect, Spark would draw a sample of its own for a call that it makes
        whole = train.toDF()
        product = whole.crossJoin(job.spark.range(0, 2, 1, 2).toDF("other")).drop("other")
        found += [sorted([*drawn, *test]), rows(product), rows(whole.coalesce(1))]
        expected += [rows(plain), sorted([*drawn, *drawn]), drawn]
    return list(map(str, found)), list(map(str, expected))


@case_of_drivers
def a_view_that_is_replaced(job: Job) -> tuple[Any, Any]:
    """Spark Connect looks a view up anew for each action."""
    found, expected = [], []
    number, other = sf.col("id"), sf.col("id") + 100
    for a, b in (("a", "b"), ("a.x", "b `y`")):
        job.spark.range(9).select(number.alias(a), other.alias(b)).createOrReplaceTempView("replaced")
        plain = job.spark.table("replaced")
        ours = sortshuffle.frame(plain)
        job.spark.range(5).select(other.alias(b), number.alias(a)).createOrReplaceTempView("replaced")
        found.append(rows(ours.repartition(3)))
        expected.append(rows(plain.select(*("`" + name.replace("`", "``") + "`" for name in (a, b)))))
    return list(map(str, found)), list(map(str, expected))


# ---- what Spark does --------------------------------------------------------------------------------------


def handed_over(ours: ShuffleFrame, plain: DataFrame) -> tuple[Any, Any]:
    """What `rows` says of both, and to which side the rows of our frame went."""
    return (rows_of_either_side(ours), [crossing.to for crossing in ours._crossings]), (
        rows(plain),
        ["Spark"],
    )


@case
def an_ordinary_dataframe(job: Job) -> tuple[Any, Any]:
    f, _, left, right = sides(job)
    ours = f.repartition(3, "i").join(right, ["i", "st"]).union(left.join(right, ["i", "st"]))
    joined = left.join(right, ["i", "st"])
    return rows(ours), rows(joined.union(joined))


@case_of_drivers
def an_expression(job: Job) -> tuple[Any, Any]:
    ours = job.g.repartition(3, "st").withColumn("x", sf.soundex("st"))
    return handed_over(ours.select("x", "id"), job.few.select(sf.soundex("st").alias("x"), "id"))


@case_of_drivers
def an_aggregate_of_an_expression(job: Job) -> tuple[Any, Any]:
    n = sf.approx_count_distinct(sf.col("i") % 7).alias("n")
    ours = job.g.repartition(3, "st").groupBy(sf.upper("st").alias("u")).agg(n)
    return handed_over(ours, job.few.groupBy(sf.upper("st").alias("u")).agg(n))


@case_of_drivers
def a_join_on_an_expression(job: Job) -> tuple[Any, Any]:
    f, g, left, right = sides(job)
    on = sf.col("id") % 5 == sf.col("number") % 7
    ours = f.select("id").join(g.select("number"), on, "left")
    return handed_over(ours, left.select("id").join(right.select("number"), on, "left"))


@case_of_drivers
def columns_of_frames(job: Job) -> tuple[Any, Any]:
    later = job.g.repartition(3, "st").filter(pc.field("id") > 20)
    ours = later.where(later.id % 2 == 0).select(later["st"], (later.id + 1).alias("next"))
    plain = job.few.where("id > 20 and id % 2 = 0").select("st", (sf.col("id") + 1).alias("next"))
    return rows_of_either_side(ours), rows(plain)


@case_of_drivers
def columns_of_frames_before(job: Job) -> tuple[Any, Any]:
    """A column can be used on the frames that come from its own."""
    if not is_classic(job.spark):
        return None, None  # a plan of Spark Connect has only the id of its own frame
    before = job.g.repartition(3, "st")
    later = before.filter(pc.field("id") > 20)
    ours = later.where(before.id % 2 == 0).select((before.id + later.id).alias("twice"))
    return rows_of_either_side(ours), rows(
        job.few.where("id > 20 and id % 2 = 0").selectExpr("id * 2 as twice")
    )


def columns_that_others_hide(f: DataFrame, g: DataFrame) -> list[Callable[[], DataFrame]]:
    """A column of a frame is not another one that has its name now. Some of these calls are wrong."""
    renamed = f.withColumnRenamed("i", "x").withColumnRenamed("id", "i")
    joined = f.join(g, "st", "full")
    return [
        lambda: renamed.select(f.i),
        lambda: renamed.groupBy(f.i).count(),
        lambda: renamed.groupBy("st").agg(sf.sum(f.i)),
        lambda: renamed.sort(f.i),
        lambda: renamed.repartition(3, f.i),
        lambda: renamed.join(g, [renamed.st == g.st, f.i == g.number]),
        lambda: joined.select(f.st.alias("left"), g.st.alias("right"), joined.st.alias("both")),
        lambda: joined.select(g.st),
        lambda: joined.groupBy(g.st).count(),
        lambda: joined.groupBy("number").agg(sf.max(g.st)),
        lambda: joined.drop(g.st),
        lambda: joined.select(f["*"]),
        lambda: renamed.drop(f.i),
        lambda: f.join(g.withColumnRenamed("st", "other"), f["number"] == g["id"]),
        lambda: f.select("id", "d").join(g.withColumnRenamed("st", "other"), f.st == g.number),
        lambda: f.select("id", "d").join(g.withColumnRenamed("number", "i"), f.i == f.id),
    ]


def rows_or_error(make: Callable[[], DataFrame]) -> list[str]:
    try:
        return rows_of_either_side(make())
    except PySparkException as error:
        return [f"{type(error).__name__} {error.getCondition()}"]


@case_of_drivers
def columns_of_frames_that_others_hide(job: Job) -> tuple[Any, Any]:
    f, g, left, right = sides(job)
    ours = columns_that_others_hide(f.repartition(3, "st"), g.drop("i").repartition(3, "st"))
    plain = columns_that_others_hide(left, right.drop("i"))
    return [str(rows_or_error(each)) for each in ours], [str(rows_or_error(each)) for each in plain]


def columns_that_stay(f: DataFrame, g: DataFrame) -> list[DataFrame]:
    """A column of a frame is also one of the frames that pass it on."""
    few = f.sort("id").distinct()
    joined = few.join(g, "st", "left")
    return [
        few.select(f.st, few.d),
        few.groupBy(f.st).count(),
        few.select("st", "id").sort(f.id),
        f.withColumnRenamed("i", "x").repartition(2, f.id, "x"),
        joined.select(f.id, g.number, "st"),
        joined.groupBy(f.st).agg(sf.max(g.number), sf.min(f.id)),
        joined.drop(g.number),
        f.filter("id > 7").groupBy(f.st).applyInArrow(first_of, "st string, n long, least long"),
        few.join(g.withColumnRenamed("st", "other"), few.st == sf.col("other")).drop(f.d),
    ]


@case_of_drivers
def columns_of_frames_that_stay(job: Job) -> tuple[Any, Any]:
    """They are looked up in Python."""
    f, g, left, right = sides(job)
    ours = columns_that_stay(f.repartition(3, "st"), g.drop("i").repartition(3, "st"))
    return list(map(rows, ours)), list(map(rows, columns_that_stay(left, right.drop("i"))))


@case_of_drivers
def columns_of_a_kept_frame(job: Job) -> tuple[Any, Any]:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    made = job.g.select("st", "id", "i").mapInArrow(same, "st string, id long, i int")
    chosen = made.select("st", "id")
    made.persist()
    try:
        assert made.is_cached
        ours = chosen.groupBy(made.st).count(), made.select("id", "st").sort(made.id), chosen.sort(made.id)
        found = list(map(rows, ours))
    finally:
        made.unpersist()
    assert not made.is_cached
    plain = job.few.groupBy("st").count(), job.few.select("id", "st"), job.few.select("st", "id")
    return found, list(map(rows, plain))


@case_of_drivers
def columns_of_the_dataframe_of_a_frame(job: Job) -> tuple[Any, Any]:
    f, _, left, right = sides(job)
    right = right.drop("i").withColumnRenamed("st", "other")
    placed, chosen = left.repartition(3, "st"), left.filter("id > 7")
    ours = [
        sortshuffle.frame(left).select(left.st, "d"),
        sortshuffle.frame(placed).select(left.st),
        sortshuffle.frame(placed).groupBy(placed.st).count(),
        sortshuffle.frame(chosen).groupBy(left.st).applyInArrow(first_of, "st string, n long, least long"),
        f.join(right, f.st == right.other),
        f.join(sortshuffle.broadcast(sortshuffle.frame(right)), f.st == right.other),
    ]
    plain = [
        left.select(left.st, "d"),
        placed.select(left.st),
        placed.groupBy("st").count(),
        chosen.groupBy("st").applyInArrow(first_of, "st string, n long, least long"),
        left.join(right, left.st == right.other),
        left.join(right, left.st == right.other),
    ]
    return list(map(rows, ours)), list(map(rows, plain))


def calls_that_are_wrong(f: DataFrame) -> list[Callable[[], DataFrame]]:
    """Over Connect Spark refuses them when an action needs the rows."""
    return [
        lambda: f.dropDuplicates(["nope"]),
        lambda: f.dropDuplicates(["st", "nope"]),
        lambda: f.sample(1.5),
        lambda: f.sample(-0.5),
        lambda: f.sample(True, -0.5),
    ]


@case_of_drivers
def wrong_calls(job: Job) -> tuple[Any, Any]:
    ours, plain = (
        [rows_or_error(each) for each in calls_that_are_wrong(frame.select("id", "st"))]
        for frame in (job.g.repartition(3, "st"), job.few)
    )
    return list(map(str, ours)), list(map(str, plain))


@case_of_drivers
def a_method_that_only_spark_has(job: Job) -> tuple[Any, Any]:
    ours, plain = (each.fillna("none", ["st"]).select("st", "id") for each in (job.g.repartition(3), job.few))
    return handed_over(ours, plain)


@case
def sql(job: Job) -> tuple[Any, Any]:
    job.g.repartition(3, "st").select("st", "id").createOrReplaceTempView("ours")
    found = job.spark.sql("select st, sum(id) from ours group by st")
    return rows(found), rows(job.few.groupBy("st").agg(sf.sum("id")))


@case_of_drivers
def back_to_python(job: Job) -> tuple[Any, Any]:
    schema = "id long, twice long"
    ours = job.g.repartition(3, "id").where(sf.soundex("st") != "x").mapInArrow(doubled, schema)
    plain = job.few.where(sf.soundex("st") != "x").mapInArrow(doubled, schema)
    return (rows(ours), [crossing.to for crossing in ours._crossings][:1]), (rows(plain), ["Spark"])


@case_of_drivers
def a_session_whose_dataframes_are_frames(job: Job) -> tuple[Any, Any]:
    session, schema = sortshuffle.session(job.spark), "st string, n long, least long"
    few: Any = data_frame(session, job.table)
    chosen = few.where(few.id > 20).repartition(3, "st")
    ours = chosen.groupBy("st").applyInArrow(first_of, schema)
    placed = [exchange.upstream.origin for exchange in ours._chain.exchanges()]
    plain = job.few.where("id > 20").groupBy("st").applyInArrow(first_of, schema)
    counted = rows_of_either_side(ours.groupBy("n").agg({"least": "max"}).where("n > 1"))
    expected = rows(plain.groupBy("n").agg({"least": "max"}).where("n > 1"))
    return (rows(ours), len(placed), counted), (rows(plain), 1, expected)


@case_of_drivers
def a_copy(job: Job) -> tuple[Any, Any]:
    """In a session with a JVM, PySpark's DataFrames cannot be copied either."""
    frame = job.g.select("id")
    copied = frame if is_classic(job.spark) else copy.deepcopy(frame)
    return rows(copied), rows(job.few.select("id"))


@case_of_drivers
def schemas_that_change(job: Job) -> tuple[Any, Any]:
    """Over Spark Connect, PySpark's own plan would have the changed schema."""
    schema = StructType().add("id", "long").add("twice", "long")
    frame = job.g.select("id").mapInArrow(doubled, schema)
    schema.add("more", "long")
    frame.schema.add("other", "long")
    ours = frame.filter(pc.field("id") > 20).drop("nothing").repartition(3, "twice")
    return rows(ours), rows(job.few.where("id > 20").selectExpr("id", "id * 2 as twice"))


@case_of_drivers
def directories_of_values(job: Job) -> tuple[Any, Any]:
    target = str(job.directory / "by value")
    job.g.repartition(3, "st").select("id", "i").write.partitionBy("i").parquet(target)
    return rows(job.spark.read.parquet(target)), rows(job.few.select("id", "i"))


# ---- files ----------------------------------------------------------------------------------------------


@case
def parquet(job: Job) -> tuple[Any, Any]:
    source, target = job.directory / "source", job.directory / "target"
    source.mkdir()
    pq.write_table(job.table, source / "one.parquet", row_group_size=50)
    scan = sortshuffle.read(job.spark).parquet(str(source)).filter(pc.field("id") >= 100)
    scan.repartition(2, "id").write.parquet(str(target))
    plain = job.spark.read.parquet(str(source)).where("id >= 100")
    assert scan.count() == plain.count()
    return rows(job.spark.read.parquet(str(target))), rows(plain)


@case
def records(job: Job) -> tuple[Any, Any]:
    if not is_classic(job.spark):
        return None, None  # there are no RDDs
    context = job.spark.sparkContext
    pairs, others = (context.parallelize([(n % k, n) for n in range(200)], 3) for k in (13, 17))
    ours, other = sortshuffle.rdd(pairs), sortshuffle.rdd(others)
    found = [
        list(map(sorted, ours.partitionBy(4).toRDD().glom().collect())),
        sorted(ours.reduceByKey(operator.add, 4).collect()),
        sorted(ours.join(other, 3).collect()),
        ours.sortBy(lambda pair: -pair[1], numPartitions=3).collect(),
    ]
    plain = [
        list(map(sorted, pairs.partitionBy(4).glom().collect())),
        sorted(pairs.reduceByKey(operator.add, 4).collect()),
        sorted(pairs.join(others, 3).collect()),
        pairs.sortBy(lambda pair: -pair[1], numPartitions=3).collect(),
    ]
    return found, plain


# ---- the job --------------------------------------------------------------------------------------------


def session(kind: str) -> SparkSession:
    if kind == "remote":
        builder: Any = sortshuffle.configure(SparkSession.builder.remote("local[2]"))
    else:
        builder = sortshuffle.configure(SparkSession.builder.master("local[2]"))
        builder = builder.config("spark.ui.enabled", "false")
    return (  # type: ignore[no-any-return]
        builder.config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.session.timeZone", "America/New_York")
        .getOrCreate()
    )


def refusal(job: Job, setting: str, value: str | None) -> str:
    """What is said of a session that lacks a setting that shuffles need over Connect. ``value``: None for
    Spark's default."""
    if value is None:
        job.spark.conf.unset(setting)
    else:
        job.spark.conf.set(setting, value)
    try:
        return "" if job.g.repartition(2, "id").count() else "?"
    except UsageError as error:
        return str(error)
    finally:
        job.spark.conf.set(setting, "false")


def settings_of_a_closed_session(spark: Any) -> list[str | None]:
    """End the session. Return what is said of a setting that Spark does not know before, and of another one
    then. Spark Connect only."""
    said = [setting_of(spark, "no.such.setting")]
    spark.client.release_session()
    try:
        said.append(setting_of(spark, "spark.sql.caseSensitive"))
    except PySparkException as error:
        said.append(error.getCondition())
    return said


def shown(found: Any, expected: Any) -> list[str]:
    """Some of what differs."""
    if found == expected:
        return []
    if isinstance(found, list) and isinstance(expected, list) and sorted(found) != sorted(expected):
        left, right = Counter(found), Counter(expected)
        return [f"ours {each}" for each in left - right][:2] + [f"plain {each}" for each in right - left][:2]
    return [f"ours {str(found)[:300]}", f"plain {str(expected)[:300]}"]


def differing_cases(job: Job, names: Iterable[str]) -> dict[str, list[str]]:
    """Return what differs in these cases."""
    return differing_pairs({name: partial(_cases[name], job) for name in names})


def differing_pairs(pairs: dict[str, Callable[[], tuple[Any, Any]]]) -> dict[str, list[str]]:
    """Each function returns what we give and what plain PySpark gives. Return what differs, or how the
    function failed."""
    found = {}
    for name, pair in pairs.items():
        try:
            difference = shown(*pair())
        except Exception:
            difference = traceback.format_exc().splitlines()[-12:]
        if difference:
            found[name] = difference
    return found


def worker_error(job: Job) -> list[str]:
    """The classes of a worker's error as the driver may raise it, and its message."""
    wrong = sortshuffle.frame(job.few).mapInArrow(lambda batches: batches, "other string").toDF()
    try:
        wrong.collect()
    except Exception as error:
        both = own_error(error)
        assert isinstance(both, type(error)), f"not ours: {error!r}"
        return [type(both).__name__, type(error).__name__, str(both).partition("\n\n")[0]]
    return []


def differing_calls(spark: SparkSession) -> dict[str, list[str]]:
    """Return what differs between plain PySpark and a session of `sortshuffle.session`."""
    ours = sortshuffle.session(spark)
    assert isinstance(numbers(ours, 1), ShuffleFrame)

    def outcomes(call: Call) -> tuple[list[str], list[str]]:
        return list(map(str, outcome(ours, call))), list(map(str, outcome(spark, call)))

    return differing_pairs({name: partial(outcomes, call) for name, call in CALLS.items()})


def differing_examples(spark: SparkSession, directory: str, names: list[str]) -> dict[str, list[str]]:
    """Return what differs in the results of these jobs of examples/jobs."""

    def results(name: str) -> tuple[list[str], list[str]]:
        one, other = (
            result_of(example(name), session, f"{directory}/{name}-{number}")
            for number, session in enumerate((sortshuffle.session(spark), spark))
        )
        return rows_of_result(one), rows_of_result(other)

    return differing_pairs({f"examples/jobs/{name}.py": partial(results, name) for name in names})


def rows_of_result(result: DataFrame) -> list[str]:
    return [str(result.schema), *map(str, in_order(result.collect()))]


def main(directory: str, kind: str, *only: str) -> None:
    spark = session(kind)
    job = Job(spark, Path(directory))
    # First: over Connect, PySpark tells the server in the background that it is done with a failed query, and
    # `stop` does not wait for that. If the server has gone by then, PySpark repeats it for ten minutes, and
    # Python does not exit before
    worker_error_raised = worker_error(job)
    differing = differing_cases(job, only or _cases)
    if not only:
        differing |= differing_calls(spark)
        differing |= differing_examples(spark, directory, EXAMPLES[kind])
    placed = sortshuffle.frame(job.few).repartition(2, "id")
    placed.count()
    explained = io.StringIO()
    with redirect_stdout(explained):
        placed.explain()
    printed = {
        "version": spark.version,
        "cases": len(only or [*_cases, *CALLS]),
        "differing": differing,
        "signatures": differing_signatures(spark),
        "refusals": {key: refusal(job, key, "true") for key in NO_ROLLBACK} if kind == "remote" else {},
        "refusal_by_default": refusal(job, ROLLBACK, None) if kind == "remote" else "",
        "worker_error": worker_error_raised,
        "stages": len(placed.stage_totals()),
        "explained": explained.getvalue(),
    }
    if kind == "remote":
        printed["settings"] = settings_of_a_closed_session(spark)
    spark.stop()
    try:
        sortshuffle.session(spark)
    except StateError as error:
        printed["stopped"] = str(error)
    print(json.dumps(printed))


if __name__ == "__main__":
    main(*sys.argv[1:])
