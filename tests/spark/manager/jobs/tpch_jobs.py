"""The 22 queries of TPC-H."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import SparkSession
from registry import job
from results import plan_of, unordered
from tpch_queries import ANSWERS, ORDERS, query_text

TABLES = ("lineitem", "orders", "partsupp", "customer", "part", "supplier", "nation", "region")


@job
def tpch_tables(spark: SparkSession, _: str, *, data: str) -> list[str]:
    """Make the tables known."""
    for table in TABLES:
        path = f"{data}/{table}"
        spark.read.parquet(path if os.path.isdir(path) else f"{path}.parquet").createOrReplaceTempView(table)
    return list(TABLES)


@job
def tpch(spark: SparkSession, _: str, *, query: str, scale: float) -> dict[str, Any]:
    """One query. ``order``: the columns that it orders by, row by row. At scale 1 the answer is compared with
    the specification's."""
    df = spark.sql(query_text(query, scale))
    rows = df.collect()
    order = [[str(row[column]) for column in ORDERS.get(query, ())] for row in rows]
    if scale == 1:
        count, columns = ANSWERS[query]
        first = {name: str(rows[0][name]) for name in columns}
        assert (len(rows), first) == (count, columns), (
            f"{query} gives {len(rows)} rows, the first with {first}"
        )
    return {**unordered(rows), "order": order, "plan": plan_of(df)}
