"""Rows to the partition whose number is in a column: by `DataFrame.repartitionById`, or without it.

Spark 4.0 knows only placement by its hash. There a row is placed by an int whose hash is at home in the
partition that is wanted: one for each partition is found by trying, and put into the plan as a table.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sortshuffle.partitioner.hash import positive_modulo
from sortshuffle.partitioner.murmur3 import hash_columns
from sortshuffle.spark.versions import at_least


def by_id(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """``frame`` with row r in partition ``r[column]``; the column is an int below ``partitions``."""
    if at_least(frame.sparkSession, "4.1"):
        return frame.repartitionById(partitions, sf.col(column))
    return by_hash_of_ints(frame, partitions, column)


def by_hash_of_ints(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """The same with what every Spark has: `DataFrame.repartition`."""
    # as one text, because each element of an array of literals would be an object of its own in the plan
    table = sf.split(sf.lit(_ints_as_text(partitions)), ",").cast("array<int>")
    return frame.repartition(partitions, sf.get(table, sf.col(column)))


@cache
def _ints_as_text(partitions: int) -> str:
    return ",".join(map(str, ints_at_home(partitions)))


def ints_at_home(partitions: int) -> list[int]:
    """For each partition an int that Spark's hash places there.

    Each int tried falls into any of n partitions with equal chance, so n * ln(n) of them fill all but one on
    average: some 10 ms for 10,000 partitions.
    """
    tried = 16 * partitions
    while True:
        hashes = hash_columns([pa.array(np.arange(tried, dtype=np.int32))], tried)
        found, first = np.unique(positive_modulo(hashes, partitions), return_index=True)
        if len(found) == partitions:
            ints: list[int] = first.tolist()
            return ints
        tried *= 2
