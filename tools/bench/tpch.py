"""`tpch`: Python-heavy jobs on TPC-H's lineitem and orders, against the same jobs in plain PySpark.

    group      parse in Python, then a pandas function for each part: `groupBy().applyInPandas`
    aggregate  parse in Python, then sums, counts and averages by supplier: `groupBy().agg`
    join       parse both tables in Python, join them by order, then Python again

Both sides scan the same Parquet files and run the same functions. Data by `tpchgen-cli`, a generator of
TPC-H's tables.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from exchange import session
from harness import DATA, Side, compare
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import sortshuffle

# 6 million lines for each: 30 million, but for the groups, of which there are 200,000 for each
SCALES = {"group": 1.0, "aggregate": 5.0, "join": 5.0}
QUICK_SCALE = 0.05
PARTITIONS = 64
LINES = (
    "orderkey long, partkey long, suppkey long, quantity double, price double, discount double, note string"
)
ORDERS = "orderkey long, customer long, year int, total double"
SCORES = "partkey long, lines long, revenue double, spread double"
SHIPPED = "orderkey long, year int, revenue double, share double, note string"
ROW_BYTES = {"group": 32, "aggregate": 32, "join": 90}


def tables(scale: float) -> Path:
    """A directory with lineitem and orders, of several files each so that tasks can share them."""
    directory = DATA / f"tpch-{scale:g}"
    if not directory.exists():
        partial = directory.with_suffix(".partial")
        generator = Path(sys.executable).with_name("tpchgen-cli")
        parts = max(2, math.ceil(4 * scale))
        for table in ("lineitem", "orders"):
            command = [generator, "parquet", "-s", str(scale), f"--tables={table}", f"--parts={parts}"]
            subprocess.run([*command, f"--output-dir={partial}"], check=True, capture_output=True)
        partial.rename(directory)
    return directory


# ---- the users' functions, of both sides ---------------------------------------------------------------


def parse_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a job's first Python stage does: types and a derived text."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [
                batch["l_orderkey"],
                batch["l_partkey"],
                batch["l_suppkey"],
                *(
                    pc.cast(batch[name], pa.float64())
                    for name in ("l_quantity", "l_extendedprice", "l_discount")
                ),
                pc.utf8_upper(pc.cast(batch["l_comment"], pa.string())),
            ],
            names=["orderkey", "partkey", "suppkey", "quantity", "price", "discount", "note"],
        )


def parse_orders(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [
                batch["o_orderkey"],
                batch["o_custkey"],
                pc.cast(pc.year(batch["o_orderdate"]), pa.int32()),
                pc.cast(batch["o_totalprice"], pa.float64()),
            ],
            names=["orderkey", "customer", "year", "total"],
        )


def score(part: pd.DataFrame) -> pd.DataFrame:
    revenue = part["price"].to_numpy() * (1.0 - part["discount"].to_numpy())
    return pd.DataFrame(
        {
            "partkey": part["partkey"].to_numpy()[:1],
            "lines": [len(revenue)],
            "revenue": [revenue.sum()],
            "spread": [revenue.max() - revenue.min()],
        }
    )


def shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the job's last Python stage does with joined rows: a sum for each batch is enough to compare."""
    lines, revenue, share, letters = 0, 0.0, 0.0, 0
    for batch in batches:
        earned = pc.multiply(batch["price"], pc.subtract(1.0, batch["discount"]))
        lines += batch.num_rows
        revenue += pc.sum(earned).as_py() or 0.0
        share += pc.sum(pc.divide(earned, batch["total"])).as_py() or 0.0
        letters += pc.sum(pc.utf8_length(batch["note"])).as_py() or 0
    yield pa.RecordBatch.from_pylist(
        [{"lines": lines, "revenue": revenue, "share": share, "letters": letters}]
    )


SHARES = "lines long, revenue double, share double, letters long"


# ---- the jobs -------------------------------------------------------------------------------------------


def sources(spark: SparkSession, directory: Path, ours: bool) -> tuple[Any, Any]:
    """Parsed lineitem and orders: frames or DataFrames, which have the same methods."""
    read: Any = sortshuffle.read(spark) if ours else spark.read
    lines = read.parquet(str(directory / "lineitem")).select(
        "l_orderkey", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount", "l_comment"
    )
    orders = read.parquet(str(directory / "orders")).select(
        "o_orderkey", "o_custkey", "o_orderdate", "o_totalprice"
    )
    return lines.mapInArrow(parse_lines, LINES), orders.mapInArrow(parse_orders, ORDERS)


def group(spark: SparkSession, directory: Path, ours: bool) -> list[float]:
    lines, _ = sources(spark, directory, ours)
    scored = lines.select("partkey", "price", "discount").groupBy("partkey").applyInPandas(score, SCORES)
    return _totals(scored, "lines", "revenue", "spread")


def aggregate(spark: SparkSession, directory: Path, ours: bool) -> list[float]:
    lines, _ = sources(spark, directory, ours)
    by_supplier = lines.groupBy("suppkey").agg(
        sf.count("*").alias("lines"),
        sf.sum("quantity").alias("quantity"),
        sf.avg("price").alias("price"),
        sf.max("discount").alias("discount"),
    )
    return _totals(by_supplier, "lines", "quantity", "price", "discount")


def join(spark: SparkSession, directory: Path, ours: bool) -> list[float]:
    lines, orders = sources(spark, directory, ours)
    joined = lines.drop("partkey", "suppkey").join(orders, "orderkey").mapInArrow(shares, SHARES)
    return _totals(joined, "lines", "revenue", "share", "letters")


def _totals(result: Any, *columns: str) -> list[float]:
    """Sums over all rows, by Spark: few numbers to bring home, and to compare."""
    df = result.toDF() if isinstance(result, sortshuffle.ShuffleFrame) else result
    row = df.agg(*(sf.sum(column) for column in columns)).first()
    assert row is not None
    return [float(value) for value in row]


CASES: dict[str, Callable[[SparkSession, Path, bool], list[float]]] = {
    "group": group,
    "aggregate": aggregate,
    "join": join,
}


def main(quick: bool) -> None:
    spark = session()
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    try:
        warm = tables(QUICK_SCALE)
        for name in CASES:
            scale = QUICK_SCALE if quick else SCALES[name]
            _compare(spark, name, tables(scale), warm, scale, quick)
    finally:
        spark.stop()


def _compare(spark: SparkSession, name: str, directory: Path, warm: Path, scale: float, quick: bool) -> None:
    job = CASES[name]
    found: dict[bool, list[float]] = {}

    def run(ours: bool) -> tuple[int, int]:
        found[ours] = job(spark, directory, ours)
        lines = int(found[ours][0])
        return lines * ROW_BYTES[name], lines

    for ours in (True, False):
        job(spark, warm, ours)  # both sides' workers are started and have imported what they need
    compare(
        f"tpch {name}",
        f"scale {scale:g}, {PARTITIONS} partitions, local[2], page cache warm",
        Side("sortshuffle", lambda: run(True)),
        Side("PySpark", lambda: run(False)),
        rounds=1 if quick or name == "group" else 2,
        scale=scale,
        partitions=PARTITIONS,
        page_cache="warm",
    )
    for mine, theirs in zip(found[True], found[False], strict=True):
        if not math.isclose(mine, theirs, rel_tol=1e-9):
            sys.exit(f"tpch {name}: the two sides differ: {found}")
