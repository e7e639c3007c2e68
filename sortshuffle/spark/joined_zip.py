"""Partitions of several frames side by side, in Spark 4.0, which has no RDD that does it: by a join.

A full outer join whose sides are said to be placed alike reads partition s of both sides in one task, and has
no exchange. No row here has a partner, so all rows of both come out, each once. That control rows of
different exchanges never are equal in `KEYS` is what makes this right; rows come in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sortshuffle.spark import planner
from sortshuffle.spark.hints import hinted
from sortshuffle.spark.plan import Layout

KEYS = ("subpartition", "exchange")


def joined_zip(frames: Sequence[DataFrame]) -> DataFrame:
    """One frame whose partition s holds the control rows of partition s of each of these, which are of
    different exchanges, or of none (`planning.number_rows`)."""
    return reduce(_both, frames)


def _both(left: DataFrame, right: DataFrame) -> DataFrame:
    names = left.columns
    count = planner.partitions(left)
    layout = Layout(tuple(names.index(key) for key in KEYS), count)
    lefts = hinted(left, layout, None).toDF(*(f"left_{name}" for name in names))
    rights = hinted(right, layout, None).toDF(*(f"right_{name}" for name in names))
    equal = [lefts[f"left_{key}"] == rights[f"right_{key}"] for key in KEYS]
    joined = lefts.join(rights.hint("merge"), equal, "full_outer")
    columns = [sf.coalesce(f"left_{name}", f"right_{name}").alias(name) for name in names]
    return planner.share(joined.select(*columns))
