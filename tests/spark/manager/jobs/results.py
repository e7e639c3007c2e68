"""What jobs return: a text for each row that tells everything from everything else, in an order that is the
same on both sides, and the plan that made them.

A large result is cut to its first rows and a hash of all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

SHOWN = 200  # rows

_NUMBERS = re.compile(
    r"(?<=QueryStage )\d+|#\d+L?|\[plan_id=\d+\]|\[id=\d+\]|\[codegen id : \d+\]|\(\d+\)|_\d+\b"
    r"|rows=\d+|/tmp/\S+"
)


def unordered(rows: Iterable[Any]) -> dict[str, Any]:
    """Rows whose order nobody has asked for."""
    return ordered(sorted(map(repr, rows)))


def ordered(rows: Iterable[Any]) -> dict[str, Any]:
    """Rows whose order counts."""
    texts = [row if isinstance(row, str) else repr(row) for row in rows]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return {"count": len(texts), "rows": [text[:300] for text in texts[:SHOWN]], "digest": digest}


def collected(df: DataFrame) -> dict[str, Any]:
    """A frame's rows, and its plan as it was at the end."""
    return {**unordered(df.collect()), "plan": plan_of(df)}


def sorted_frame(df: DataFrame) -> dict[str, Any]:
    """Of a frame that is sorted by all that tells its rows apart."""
    return {**ordered(df.collect()), "plan": plan_of(df)}


def placed(df: DataFrame) -> DataFrame:
    """A frame's rows and the partition of each."""
    return df.withColumn("in_partition", sf.spark_partition_id())


def hashed(df: DataFrame) -> dict[str, Any]:
    """Of a frame that is too large to come home: rows of each partition, and a sum of their hashes."""
    each = sf.xxhash64(*df.columns).cast("decimal(38,0)")
    by_partition = df.select(sf.spark_partition_id().alias("p"), each.alias("h"))
    found = by_partition.groupBy("p").agg(sf.count("*").alias("n"), sf.sum("h").alias("h"))
    return collected(found)


def partitions(parts: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Of an RDD, `glom` collected: the rows of each partition, which may come in any order."""
    several = list(parts)
    rows = (f"{number}: {text}" for number, part in enumerate(several) for text in sorted(map(repr, part)))
    return {**ordered(rows), "partitions": len(several)}


def plan_of(df: DataFrame) -> str:
    """The physical plan, without what is counted anew in each session."""
    text = df._jdf.queryExecution().executedPlan().toString()
    return _NUMBERS.sub("", text.split("== Initial Plan ==")[0])
