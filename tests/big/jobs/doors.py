"""A Spark job through one door: DOOR, DIRECTORY, SETTINGS as JSON. Prints what it found.

Python tasks say what their address space is limited to, so that a limit that does not hold is seen."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from wide_rows import ROW_BYTES, are_right, rows

import sortshuffle

MAPS, REDUCES = 2, 2
AT_ONCE = 512  # rows of a batch: 8 MiB
WIDE = "id long, bytes binary"

Batches = Iterator[pa.RecordBatch]


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def wide(each: int) -> Callable[[Batches], Batches]:
    """Of map numbers, so many wide rows."""

    def make(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch["id"].to_pylist():
                for first in range(0, each, AT_ONCE):
                    yield rows(number * each + first, min(AT_ONCE, each - first))

    return make


def looked_at(batches: Batches) -> Batches:
    """Of wide rows in order of their numbers, one row that says whether they are right."""
    count = total = 0
    last, right = -1, True
    for batch in batches:
        ids = batch["id"].to_numpy()
        right &= are_right(batch) and bool((np.diff(ids, prepend=last) > 0).all())
        count, total, last = count + len(ids), total + int(ids.sum()), int(ids[-1])
    yield pa.record_batch({"rows": [count], "sum": [total], "right": [right], "limit": [limit()]})


LOOKED_AT = "rows long, sum long, right boolean, limit long"


def summed(found: list[Any]) -> dict[str, Any]:
    return {
        "rows": [row.rows for row in found],
        "sum": sum(row.sum for row in found),
        "right": all(row.right for row in found),
        "limits": sorted({row.limit for row in found}),
    }


def frame(spark: SparkSession, size: int) -> dict[str, Any]:
    """Rows that are sorted behind the shuffle: runs of several regions are merged."""
    each = size // ROW_BYTES
    source = sortshuffle.frame(spark.range(0, MAPS, 1, MAPS)).mapInArrow(wide(each), WIDE)
    placed = source.repartition(REDUCES, "id").sortWithinPartitions("id")
    return summed(placed.mapInArrow(looked_at, LOOKED_AT).collect())


def distinct(spark: SparkSession, size: int) -> dict[str, Any]:
    """Wide rows of which none comes again. A partition has too few of them to be joined by their number."""
    source = sortshuffle.frame(spark.range(0, MAPS, 1, MAPS)).mapInArrow(wide(size // ROW_BYTES), WIDE)
    return summed(source.distinct().mapInArrow(looked_at, LOOKED_AT).collect())


def rdd(spark: SparkSession, size: int) -> dict[str, Any]:
    """Objects of which neither keys nor the values of a key fit."""
    value = 4096  # bytes
    each = size // value

    def pairs(number: int) -> Iterator[tuple[int, bytes]]:
        for at in range(each):
            yield at % 10, (number * each + at).to_bytes(8, "little") * (value // 8)

    def of_group(group: tuple[int, Any]) -> tuple[int, int, bool, int]:
        key, values = group
        count = total = 0
        right = True
        for found in values:
            number = int.from_bytes(found[:8], "little")
            count, total = count + 1, total + number
            right &= found == found[:8] * (value // 8) and number % each % 10 == key
        return count, total, right, limit()

    source = sortshuffle.rdd(spark.sparkContext.parallelize(range(MAPS), MAPS)).flatMap(pairs)
    found = source.groupByKey(REDUCES).map(of_group).collect()
    return {
        "rows": [sum(count for count, _, _, _ in found)],
        "sum": sum(total for _, total, _, _ in found),
        "right": all(right for _, _, right, _ in found),
        "limits": sorted({limit for _, _, _, limit in found}),
    }


def manager(spark: SparkSession, size: int) -> dict[str, Any]:
    """Spark's own rows, through the engine."""
    each = size // 1024
    made = spark.range(0, MAPS * each, 1, MAPS)
    made = made.select("id", sf.repeat(sf.sha2(sf.col("id").cast("string"), 512), 8).alias("s"))
    found = made.repartition(REDUCES, "id")
    wrong = found.filter(sf.col("s") != sf.repeat(sf.sha2(sf.col("id").cast("string"), 512), 8))
    counted = sf.count("id").alias("rows"), sf.sum("id").alias("sum"), sf.sum(sf.length("s")).alias("n")
    answer = found.agg(*counted)
    row = answer.collect()[0]
    decisions = dict(spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager.decisions())
    return {
        "rows": [row.rows],
        "sum": row.sum,
        "right": row.n == 1024 * MAPS * each and wrong.count() == 0 and set(decisions) == {"sortshuffle"},
        "limits": [],
    }


def one_batch(spark: SparkSession, size: int) -> dict[str, Any]:
    """A function gives a single batch."""

    def make(batches: Batches) -> Batches:
        for batch in batches:
            assert batch.num_rows == 1
            yield rows(0, size // ROW_BYTES, pa.large_binary())

    source = sortshuffle.frame(spark.range(0, 1, 1, 1)).mapInArrow(make, WIDE)
    placed = source.repartition(REDUCES, "id").sortWithinPartitions("id")
    return summed(placed.mapInArrow(looked_at, LOOKED_AT).collect())


def one_value(spark: SparkSession, size: int) -> dict[str, Any]:
    """A function gives a single value that no 32-bit offset can address."""

    def make(batches: Batches) -> Batches:
        for _ in batches:
            data = pa.py_buffer(np.zeros(size, np.uint8))
            offsets = pa.py_buffer(np.array([0, size], np.int64))
            value = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
            yield pa.record_batch([pa.array([1]), value], names=["id", "bytes"])

    source = sortshuffle.frame(spark.range(0, 1, 1, 1)).mapInArrow(make, WIDE)
    try:
        source.repartition(REDUCES, "id").count()
    except Exception as error:
        return {"error": str(error)}
    return {"error": ""}


DOORS: dict[str, Callable[[SparkSession, int], dict[str, Any]]] = {
    each.__name__: each for each in (frame, distinct, rdd, manager, one_batch, one_value)
}


def main(door: str, size: int, settings: dict[str, str]) -> None:
    """``size``: bytes that each map task makes."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = sortshuffle.configure(builder).getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", str(REDUCES))
    try:
        found = DOORS[door](spark, size)
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
