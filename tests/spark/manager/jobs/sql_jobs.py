"""Queries that shuffle in every way that Spark SQL knows.

Data is made by Spark from row numbers, so that both sides have the same. Nothing sums floating-point numbers,
whose sum depends on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from oracle import data_frame, every_type
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from registry import job
from results import collected, hashed, placed, plan_of, sorted_frame, unordered

ROWS, MAPS = 20_000, 4
SPREAD = 2_654_435_761  # so that neighbours are far apart
NO_BROADCAST = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
}
ON, OFF = {"spark.sql.adaptive.enabled": "true"}, {"spark.sql.adaptive.enabled": "false"}
BIG = 12 << 20  # bytes of a row that is larger than ten million; a frame has four mebibytes
OVER_A_FRAME = (4 << 20) + 1

Found = dict[str, Any]


def use(spark: SparkSession, *settings: Mapping[str, str]) -> None:
    for each in settings:
        for name, value in each.items():
            spark.conf.set(name, value)


def numbers(spark: SparkSession, rows: int = ROWS, maps: int = MAPS) -> DataFrame:
    """Columns: id; k, of 500 values; v, a decimal, null in every seventh row; t, a text of up to 60 bytes."""
    return spark.range(0, rows, 1, maps).selectExpr(
        "id",
        f"cast(pmod(id * {SPREAD}, 500) as int) as k",
        "if(id % 7 = 0, null, cast(id as decimal(20, 2)) / 4) as v",
        f"repeat(hex(id * {SPREAD}), cast(id % 5 as int)) as t",
    )


def together(queries: dict[str, DataFrame]) -> Found:
    """The rows of several queries, by name, that run as one. Their plan is left out: adaptive execution plans
    again whenever a stage ends, and a union's plan depends on which of its stages ends first."""
    return _rows_by_query(queries, _union(queries))


def together_with_plan(queries: dict[str, DataFrame]) -> Found:
    """The same and the plan, for queries whose plan is the same in each order of stages."""
    every = _union(queries)
    return {**_rows_by_query(queries, every), "plan": plan_of(every)}


def _union(queries: dict[str, DataFrame]) -> DataFrame:
    """Each row has a query's name, and one of its rows as text."""
    texts = [
        df.select(sf.lit(name), sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"}))
        for name, df in queries.items()
    ]
    return reduce(DataFrame.unionAll, texts)


def _rows_by_query(queries: Iterable[str], every: DataFrame) -> Found:
    found: dict[str, list[str]] = {name: [] for name in queries}
    for name, text in every.collect():
        found[name].append(text)
    return {name: unordered(rows) for name, rows in found.items()}


# ---- queries -----------------------------------------------------------------------------------------------


def aggregated(rows: DataFrame) -> DataFrame:
    sums = [sf.count("*"), sf.sum("v"), sf.min("t"), sf.max("id"), sf.countDistinct("t")]
    return rows.groupBy("k").agg(*sums)


@job
def aggregate(spark: SparkSession, _: str) -> Found:
    return collected(aggregated(numbers(spark)))


@job
def queries(spark: SparkSession, _: str) -> Found:
    """Queries that show a row's partition have nothing before them that adaptive execution could change."""
    rows = numbers(spark, 6000)
    parts = rows.select("k", (sf.col("id") % 6).alias("m"))
    left, right = parts.where("m < 4"), parts.where("m > 2")
    by = Window.partitionBy("k").orderBy("id")
    return together(
        {
            "by hash": placed(rows.repartition(7, "k")),
            # Few rows, so that Spark samples all of them. A smaller sample would depend on the RDD's number,
            # and so on the order in which Spark plans the other queries.
            "by range": placed(numbers(spark, 1200).repartitionByRange(6, sf.desc("k"), "id")),
            "round robin": placed(rows.repartition(9)),
            "by id": placed(rows.repartitionById(8, "k")),
            # some map outputs are empty, and so are most partitions
            "empty outputs": placed(
                numbers(spark, 8000, 8).where("id < 2000 and k < 9").repartition(50, "k")
            ),
            "aggregate": aggregated(rows),
            # their buffers travel as binary columns
            "objects": rows.groupBy((sf.col("k") % 20).alias("g")).agg(
                sf.sort_array(sf.collect_set("k")), sf.percentile_approx("id", 0.5, 100_000)
            ),
            "rollup": rows.selectExpr("k % 5 as a", "id % 3 as b", "v")
            .rollup("a", "b")
            .agg(sf.count("*"), sf.sum("v")),
            "distinct": rows.select("k", "t").distinct(),
            "set operations": left.intersect(right).unionAll(
                left.exceptAll(right).unionAll(left.subtract(right))
            ),
            "window": rows.select(
                "id", "k", sf.row_number().over(by), sf.sum("v").over(by), sf.lag("t", 3).over(by)
            ),
            # the first rows of each partition, then of all
            "limit": rows.sort("id").limit(1000).groupBy("k").agg(sf.count("*"), sf.sum("v")),
            "nulls": nulls(spark),
        }
    )


def nulls(spark: SparkSession) -> DataFrame:
    """Rows of nulls only, among others, as keys and as values."""
    some = spark.range(0, 5000, 1, 3).selectExpr(
        *(
            f"if(id % 3 = {n}, null, cast(id % 50 as {kind})) as c{n}"
            for n, kind in enumerate(("int", "string", "double"))
        ),
        "if(id % 2 = 0, null, struct(if(id % 5 = 0, null, id) as a)) as s",
        "cast(null as int) as n",
    )
    return some.repartition(5, "c0", "c1", "n").groupBy("c0", "c1", "c2", "n").agg(sf.count("*"), sf.max("s"))


@job
def queries_without_adaption(spark: SparkSession, _: str) -> Found:
    use(spark, OFF)
    rows = numbers(spark, 2000)
    return together_with_plan(
        {
            "aggregate": rows.groupBy("k").agg(sf.count("*"), sf.sum("v"), sf.max("t")),
            # a single partition, as a window without keys has it
            "to one": rows.select("id", sf.sum("id").over(Window.orderBy("id"))),
            # rows of no bytes but their length
            "no columns": rows.select().repartition(4).groupBy().count(),
            **nothing(spark),
        }
    )


@job
def queries_of_nothing(spark: SparkSession, _: str) -> Found:
    """Each runs alone, so its plan is compared, too."""
    return {name: collected(df) for name, df in nothing(spark).items()}


def nothing(spark: SparkSession) -> dict[str, DataFrame]:
    """Empty inputs, of no partition and of some."""
    empty = numbers(spark).where("id < 0")
    return {
        "no rows": spark.createDataFrame([], "a long").repartition(5),
        "no partitions": spark.range(0).repartition(5, "id"),
        "placed": empty.repartition(3, "k"),
        "grouped": empty.groupBy("k").count(),
        "sorted": empty.sort("id"),
        "joined": empty.join(numbers(spark, 2000), "k"),
        "aggregated": empty.groupBy().agg(sf.count("*"), sf.max("t")),
    }


@job
def metrics(spark: SparkSession, _: str) -> Found:
    """What Spark tells of a shuffle: whatever does not depend on how its rows are stored; and that there are
    figures for what does."""
    use(spark, OFF)
    frame = numbers(spark).repartition(7, "k")
    rows = len(frame.collect())
    told = frame._jdf.queryExecution().executedPlan().metrics()
    same = ("dataSize", "numPartitions", "shuffleRecordsWritten", "recordsRead")
    some = ("shuffleBytesWritten", "shuffleWriteTime")
    # which of the two has them depends on where the executors are
    read = [told.apply(name).value() for name in ("localBytesRead", "remoteBytesRead")]
    return {
        "rows": rows,
        **{name: told.apply(name).value() for name in same},
        **{name: told.apply(name).value() > 0 for name in some},
        "bytes are read": sum(read) > 0,
    }


# ---- joins -------------------------------------------------------------------------------------------------


def _two(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left = numbers(spark).select("id", "k", "v")
    right = numbers(spark, 4_000, 3).selectExpr("cast(pmod(id * 7, 700) as int) as k", "id as other", "t")
    return left, right


@job
def joins(spark: SparkSession, _: str) -> Found:
    use(spark, NO_BROADCAST)
    left, right = _two(spark)
    full = left.hint("merge").join(right, "k", "full")
    by_hash = left.join(right.hint("shuffle_hash"), "k", "left")
    # The hints leave nothing to choose, and no side is empty.
    return together_with_plan(
        {
            "full": full.groupBy("k").agg(sf.count("*"), sf.sum("v"), sf.sum("other"), sf.max("t")),
            "left anti": left.hint("merge").join(right, "k", "left_anti"),
            "by hash": by_hash.groupBy("other").agg(sf.count("*"), sf.sum("v")),
        }
    )


@job
def skew_join(spark: SparkSession, _: str) -> Found:
    """Eight of ten rows have one key, so that adaptive execution reads their partition by ranges of map
    outputs. An inner join and an outer one."""
    use(spark, NO_BROADCAST)
    use(
        spark,
        {
            "spark.sql.adaptive.advisoryPartitionSizeInBytes": "20k",
            "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "20k",
            "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
            "spark.sql.shuffle.partitions": "20",
        },
    )
    left = spark.range(0, 20_000, 1, 6).selectExpr("if(id % 10 < 8, 1, id % 500) as k", "id")
    right = spark.range(0, 400, 1, 2).selectExpr("id as k", "id * 2 as other")
    joined = [
        left.hint("merge").join(right, "k", how).select("k", "id", "other") for how in ("inner", "left")
    ]
    return collected(joined[0].unionAll(joined[1]))


@job
def local_read(spark: SparkSession, _: str) -> Found:
    """A join that turns out to have a small side when that is there: the large side stays where its map tasks
    ran, and is read by map output."""
    use(
        spark,
        {
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.adaptive.autoBroadcastJoinThreshold": "64k",
        },
    )
    left, right = _two(spark)
    joined = left.join(right.where("other % 97 = 3"), "k")
    return collected(joined.select("k", "id", "other"))


# ---- adaptive execution ------------------------------------------------------------------------------------


@job
def coalesced(spark: SparkSession, _: str) -> Found:
    """Sixty-four partitions, most of which are read together with neighbours."""
    use(
        spark,
        {"spark.sql.shuffle.partitions": "64", "spark.sql.adaptive.advisoryPartitionSizeInBytes": "32k"},
    )
    return collected(
        numbers(spark)
        .groupBy("k", "t")
        .agg(sf.max("id").alias("m"))
        .groupBy("k")
        .agg(sf.count("*"), sf.sum("m"))
    )


@job
def rebalanced(spark: SparkSession, _: str) -> Found:
    """Large partitions are split, small ones put together."""
    use(
        spark,
        {"spark.sql.adaptive.advisoryPartitionSizeInBytes": "50k", "spark.sql.shuffle.partitions": "10"},
    )
    few = numbers(spark, 30_000).withColumn("g", sf.when(sf.col("id") % 4 < 3, 0).otherwise(sf.col("k")))
    return collected(few.hint("rebalance", "g").select("g", "id", "t"))


@job
def reused_exchange(spark: SparkSession, _: str) -> Found:
    """One shuffle that two stages read: both want all columns of it."""
    use(spark, NO_BROADCAST)
    summed = numbers(spark).groupBy("k").agg(sf.sum("v").alias("s"), sf.count("*").alias("n"))
    return collected(summed.alias("a").join(summed.alias("b"), sf.col("a.k") == sf.col("b.k")))


# ---- sort, limit -------------------------------------------------------------------------------------------


@job
def sort(spark: SparkSession, _: str) -> Found:
    return sorted_frame(numbers(spark).sort(sf.asc_nulls_last("v"), sf.desc("k"), "id"))


@job
def limits(spark: SparkSession, _: str) -> Found:
    """Readers that end early; then one that does not."""
    many = spark.range(0, 200_000, 1, 4).selectExpr("id", "hex(id) as t").repartition(16, "id")
    counts = [len(many.limit(5).collect()), many.limit(1000).count()]
    return {**collected(many.where("id % 1000 = 1")), "counts": counts}


@job
def many_partitions(spark: SparkSession, _: str) -> Found:
    """More than 2,000, of which Spark keeps averages instead of sizes."""
    use(spark, {"spark.sql.shuffle.partitions": "3000"})
    return collected(numbers(spark, 10_000).groupBy("t").agg(sf.max("id").alias("m")).where("m % 50 = 1"))


# ---- rows --------------------------------------------------------------------------------------------------


@job
def wide(spark: SparkSession, _: str) -> Found:
    """More columns than Spark generates code for (100), and than one word of null bits holds (64)."""
    columns = [f"if(id % {n + 2} = 0, null, id * {n}) as c{n}" for n in range(80)]
    columns += [f"hex(id + {n}) as t{n}" for n in range(30)]
    return hashed(spark.range(0, 3000, 1, 3).selectExpr("id", *columns).repartition(6, "id"))


@job
def big_rows(spark: SparkSession, _: str) -> Found:
    """Rows of 12 MiB and of a byte more than a frame, among small ones."""
    size = (
        f"case when id = 7 then {BIG} when id = 13 then {OVER_A_FRAME} when id % 10 = 3 then 1000000"
        " else 5 end"
    )
    some = spark.range(0, 40, 1, 2).selectExpr(
        "id", f"repeat('abcdefghij', cast(({size}) / 10 + 1 as int)) as t"
    )
    return collected(
        some.repartition(3, "id").selectExpr("spark_partition_id() as p", "id", "length(t)", "md5(t)")
    )


@job
def every_kind_of_column(spark: SparkSession, _: str) -> Found:
    return collected(placed(data_frame(spark, every_type(7, 2000)).repartition(5, "id")))
