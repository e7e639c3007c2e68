"""The jobs whose Python stages exchange rows: with frames and RDDs on our side, plain PySpark on the other.

Both sides run the same functions on the same files. Their results are compared

* each time: sums and counts that come home;
* once, by the jobs with ``is_whole``: every column of each row is hashed, and the hashes of each partition
  are added up. So a row that is lost, doubled, changed, or in another partition shows.

Partitions are compared where both sides promise the same: those of a `repartition` by columns, and of RDDs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jobs import Job, text_hash
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rdd_tasks import larger, pairs, pairs_of, sorted_records, values
from sort_records import Summary, summary
from systems.contestants.consumers import SUMS, totals

import sortshuffle
from sortshuffle.spark.parquet.scanning import BATCH_ROWS, READ_BUFFER

HASHES = "partition int, rows long, hashes decimal(20,0)"
SUM_DIGITS = 9  # of doubles: their sums depend on the order of the rows


# ---- comparing ------------------------------------------------------------------------------------------


def row_hashes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What stands for a partition: its number, how many rows it has, and the sum of their hashes."""
    rows, total = 0, 0
    for batch in batches:
        rows += batch.num_rows
        total += hash_sum(batch.to_pandas())
    context = TaskContext.get()
    assert context is not None
    sums = [[context.partitionId()], [rows], [total % 2**64]]
    types = (pa.int32(), pa.int64(), pa.decimal128(20, 0))
    arrays = [pa.array(values, kind) for values, kind in zip(sums, types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, ["partition", "rows", "hashes"])


def hash_sum(rows: pd.DataFrame) -> int:
    """Of all columns of each row, of doubles all bits: they must not depend on the order of the rows."""
    hashes = pd.util.hash_pandas_object(rows, index=False, categorize=False)
    return int(hashes.to_numpy().sum(dtype=np.uint64))


def _partitions_text(found: Iterable[Any]) -> str:
    """Of rows of `HASHES` that are compared partition by partition."""
    texts = sorted(f"{row['partition']:05d} {row['rows']} {row['hashes']}" for row in found)
    return f"{len(texts)} partitions {text_hash(texts)}"


def _rows_text(found: Iterable[Any]) -> str:
    """Of rows of `HASHES` whose partitions may differ."""
    sums = [(int(row["rows"]), int(row["hashes"])) for row in found]
    return f"{sum(rows for rows, _ in sums)} rows {sum(hashes for _, hashes in sums) % 2**64:016x}"


def _numbers_text(values: Iterable[float]) -> str:
    return " ".join(f"{value:.{SUM_DIGITS}g}" for value in values)


class _Steps:
    """The task seconds of the frame or RDD that a job ran last."""

    def __init__(self) -> None:
        self._latest: Any = None

    def watch(self, shuffled: Any) -> Any:
        """The same frame or RDD."""
        self._latest = (
            shuffled if isinstance(shuffled, (sortshuffle.ShuffleFrame, sortshuffle.ShuffleRDD)) else None
        )
        return shuffled

    def __call__(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for stage in self._latest.stage_totals() if self._latest is not None else ():
            for step, seconds in stage.metrics.seconds.items():
                found[step] = found.get(step, 0.0) + seconds
        return found


# ---- exchange -------------------------------------------------------------------------------------------

COLUMNS = "k long, v double, w double, s string"


def exchange(
    spark: SparkSession, ours: bool, files: list[str], scan: str, partitions: int, is_whole: bool = False
) -> Job:
    """Parquet -> ``partitions`` by key -> a Python function. ``scan``: who reads the files.

    * ``read``: `sortshuffle.read` on our side, Spark's own scan on the other;
    * ``python``: a Python function, on both sides;
    * ``wrapped``: the workers, of a DataFrame in `sortshuffle.frame`; Spark's own scan on the other side;
    * ``dataframe``: Spark, on both sides, because it computes the key.
    """

    steps = _Steps()

    def run() -> list[Any]:
        shuffled = steps.watch(_scanned(spark, ours, files, scan).repartition(partitions, "k"))
        consumed = shuffled.mapInArrow(row_hashes, HASHES) if is_whole else shuffled.mapInArrow(totals, SUMS)
        return list(steps.watch(consumed).collect())

    def digest(found: list[Any]) -> str:
        if is_whole:
            return _partitions_text(found)
        return _numbers_text(sum(row[name] for row in found) for name in ("rows", "v", "w", "letters"))

    return Job(run, digest, steps)


def _scanned(spark: SparkSession, ours: bool, files: list[str], scan: str) -> Any:
    if scan == "read" and ours:
        return sortshuffle.read(spark).parquet(*files)
    if scan == "python":
        numbers = spark.range(0, len(files), 1, len(files))
        return _scanned_in_python(sortshuffle.frame(numbers) if ours else numbers, files)
    df = spark.read.parquet(*files)
    if scan == "dataframe":
        df = df.withColumn("k", sf.expr("k + 0"))
    return sortshuffle.frame(df) if ours else df


def _scanned_in_python(numbers: Any, files: list[str]) -> Any:
    """``numbers``: a frame or a DataFrame of the numbers of the files."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with pq.ParquetFile(files[number], pre_buffer=False, buffer_size=READ_BUFFER) as file:
                    yield from file.iter_batches(BATCH_ROWS, use_threads=False)

    return numbers.mapInArrow(read, COLUMNS)


# ---- sort -----------------------------------------------------------------------------------------------


def sort(
    spark: SparkSession, ours: bool, source: str, output: str, partitions: int, rows: int, checksum: int
) -> Job:
    """Parquet -> sorted by key -> Parquet. Each output is validated, and removed. ``output``: a directory for
    those of both sides. ``rows``, ``checksum``: of the source. Raises `ValueError` for a wrong output."""
    target = Path(output, "ours" if ours else "theirs")
    steps = _Steps()

    def run() -> None:
        shutil.rmtree(target, ignore_errors=True)
        if ours:
            frame = steps.watch(sortshuffle.read(spark).parquet(source).sort("key"))
            frame.write.parquet(str(target))
        else:
            spark.read.parquet(source).orderBy("key").write.parquet(str(target))

    def digest(_: None) -> str:
        found = summary(target, in_order=True)
        shutil.rmtree(target)
        if found != Summary(rows, checksum):
            raise ValueError(f"{target} holds {found}, the input {Summary(rows, checksum)}")
        return f"{found.rows} records in order, checksum {found.checksum:016x}"

    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return Job(run, digest, steps)


# ---- jobs that parse TPC-H's tables in Python -------------------------------------------------------------

LINES = (
    "orderkey long, partkey long, suppkey long, quantity double, price double, discount double, note string"
)
ORDERS = "orderkey long, customer long, year int, total double"
SCORES = "partkey long, lines long, revenue double, spread double"
SHARES = "lines long, revenue double, share double, letters long"


def parse_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a job's first Python stage does: types and a derived text. Prices are in cents and discounts in
    percent: sums of whole numbers are exact, in whichever order they are added."""
    for batch in batches:
        quantity, *amounts = (
            pc.cast(batch[name], pa.float64()) for name in ("l_quantity", "l_extendedprice", "l_discount")
        )
        doubles = (quantity, *(pc.round(pc.multiply(amount, 100.0)) for amount in amounts))
        note = pc.utf8_upper(pc.cast(batch["l_comment"], pa.string()))
        yield pa.RecordBatch.from_arrays(
            [batch["l_orderkey"], batch["l_partkey"], batch["l_suppkey"], *doubles, note],
            names=["orderkey", "partkey", "suppkey", "quantity", "price", "discount", "note"],
        )


def parse_orders(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        year = pc.cast(pc.year(batch["o_orderdate"]), pa.int32())
        price = pc.cast(batch["o_totalprice"], pa.float64())
        yield pa.RecordBatch.from_arrays(
            [batch["o_orderkey"], batch["o_custkey"], year, price],
            names=["orderkey", "customer", "year", "total"],
        )


def score(part: pd.DataFrame) -> pd.DataFrame:
    """A pandas function for each part."""
    revenue = part["price"].to_numpy() * (100.0 - part["discount"].to_numpy())
    return pd.DataFrame(
        {
            "partkey": part["partkey"].to_numpy()[:1],
            "lines": [len(revenue)],
            "revenue": [revenue.sum()],
            "spread": [revenue.max() - revenue.min()],
        }
    )


def shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the job's last Python stage does with joined rows."""
    lines, revenue, share, letters = 0, 0.0, 0.0, 0
    for batch in batches:
        earned = pc.multiply(batch["price"], pc.subtract(100.0, batch["discount"]))
        lines += batch.num_rows
        revenue += pc.sum(earned).as_py() or 0.0
        share += pc.sum(pc.divide(earned, batch["total"])).as_py() or 0.0
        letters += pc.sum(pc.utf8_length(batch["note"])).as_py() or 0
    yield pa.RecordBatch.from_pylist(
        [{"lines": lines, "revenue": revenue, "share": share, "letters": letters}]
    )


def parsed(
    spark: SparkSession, ours: bool, name: str, data: str, partitions: int, is_whole: bool = False
) -> Job:
    """``name``: a key of `PARSED`."""
    steps = _Steps()

    def run() -> list[Any]:
        found = steps.watch(PARSED[name](*_tables(spark, ours, data), is_whole))
        df = found.toDF() if ours else found
        if is_whole:
            return list(df.mapInArrow(row_hashes, HASHES).collect() if name != "join" else df.collect())
        return list(df.agg(*(sf.sum(column).alias(column) for column in df.columns)).collect())

    def digest(found: list[Any]) -> str:
        return _rows_text(found) if is_whole else _numbers_text(map(float, found[0]))

    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return Job(run, digest, steps)


def _tables(spark: SparkSession, ours: bool, data: str) -> tuple[Any, Any]:
    """Parsed lineitem and orders: frames or DataFrames, which have the same methods."""
    read: Any = sortshuffle.read(spark) if ours else spark.read
    lines = read.parquet(f"{data}/lineitem").select(
        "l_orderkey", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount", "l_comment"
    )
    orders = read.parquet(f"{data}/orders").select("o_orderkey", "o_custkey", "o_orderdate", "o_totalprice")
    return lines.mapInArrow(parse_lines, LINES), orders.mapInArrow(parse_orders, ORDERS)


def _group(lines: Any, orders: Any, is_whole: bool) -> Any:
    return lines.select("partkey", "price", "discount").groupBy("partkey").applyInPandas(score, SCORES)


def _aggregate(lines: Any, orders: Any, is_whole: bool) -> Any:
    return lines.groupBy("suppkey").agg(
        sf.count("*").alias("lines"),
        sf.sum("quantity").alias("quantity"),
        sf.avg("price").alias("price"),
        sf.max("discount").alias("discount"),
    )


def _join(lines: Any, orders: Any, is_whole: bool) -> Any:
    # Its last stage is what the join feeds, so the rows are hashed there.
    joined = lines.drop("partkey", "suppkey").join(orders, "orderkey")
    return joined.mapInArrow(row_hashes, HASHES) if is_whole else joined.mapInArrow(shares, SHARES)


PARSED: dict[str, Callable[[Any, Any, bool], Any]] = {"group": _group, "aggregate": _aggregate, "join": _join}


# ---- RDDs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairMethod:
    """``run``: on either side's RDD, with a number of partitions. ``consume``: counts what it gives."""

    run: Callable[[Any, int], Any]
    consume: Callable[[Iterable[Any]], Iterator[tuple[int, int]]]


PAIR_METHODS = {
    "partitionBy": PairMethod(lambda rdd, partitions: rdd.partitionBy(partitions), pairs),
    "reduceByKey": PairMethod(lambda rdd, partitions: rdd.reduceByKey(larger, partitions), pairs),
    "groupByKey": PairMethod(lambda rdd, partitions: rdd.groupByKey(partitions), values),
}


def rdd(
    spark: SparkSession,
    ours: bool,
    method: str,
    kind: str,
    count: int,
    different: int,
    partitions: int,
    is_whole: bool = False,
) -> Job:
    """``count`` pairs of a key (``kind``: int or str, so many ``different`` ones) and a short text."""
    steps, called = _Steps(), PAIR_METHODS[method]

    def run() -> list[Any]:
        source = pairs_of(spark.sparkContext, kind, count, different)
        shuffled = called.run(sortshuffle.rdd(source) if ours else source, partitions)
        consumed = shuffled.mapPartitions(sorted_records if is_whole else called.consume)
        return list(steps.watch(consumed).collect())

    def digest(found: list[Any]) -> str:
        if is_whole:
            return f"{len(found)} partitions {text_hash(found)}"
        return repr([sum(column) for column in zip(*found, strict=True)])

    return Job(run, digest, steps)


KINDS: dict[str, Callable[..., Job]] = {"exchange": exchange, "sort": sort, "parsed": parsed, "rdd": rdd}
