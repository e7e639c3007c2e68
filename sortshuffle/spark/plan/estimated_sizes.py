"""Estimates the size of a chain's rows in bytes.

The estimate follows Spark's own rules (`SizeInBytesOnlyStatsPlanVisitor`). It starts with Spark's estimate
for the source, and scales it by the widths of the columns that are selected or added. Filters and users'
functions are assumed not to change the size. So wrapping frames does not change which sides Spark broadcasts.
Once a shuffle has run, its actual bytes are used. Where adaptive execution would see that rows of the driver
are few (`local_size`), their own bytes are used.

Classic sessions only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import RDD, SparkContext
from pyspark.core.rdd import PipelinedRDD
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.functions.grouped import GroupFunction
from sortshuffle.spark.functions.maps import MapFunction
from sortshuffle.spark.manager.jar_methods import jar_method
from sortshuffle.spark.plan import skew
from sortshuffle.spark.plan.chain import Chain, ShuffleDependency
from sortshuffle.spark.session.java import java_class
from sortshuffle.spark.steps.group_steps import GroupApply
from sortshuffle.spark.steps.row_steps import Limit, Sample
from sortshuffle.spark.worker.stages import Step

# Bytes that Spark adds to the columns of a row: `EstimationUtils.getSizePerRow`.
_ROW_OVERHEAD = 8


def estimated_size(chain: Chain) -> int | None:
    """Estimate the size of a chain's rows in bytes by Spark's rules; None if nothing is known."""
    jvm = chain.context.spark.sparkContext._jvm
    size, schema = chain.origin.size_and_schema()
    for step in chain.steps:
        schema = _declared_schema(step) or schema
        if size is None or schema is None:
            continue
        if isinstance(step, Limit):
            size = min(size, max(1, step.number * _width(jvm, schema)))
        elif isinstance(step, Sample):
            size = math.ceil(size * Fraction(str(step.fraction)))
    if size is None or schema is None or schema == chain.schema:
        return size
    return divided(size * _width(jvm, chain.schema), _width(jvm, schema))


def divided(size: int, by: int) -> int:
    """Divide, and round up. A size may be too large for a double: that of a join is the product of those of
    its sides, and rows of which Spark knows nothing have 8 EiB."""
    return -(-size // by)


def scanned_size(spark: Any, size: int, schema: StructType, read: StructType) -> int:
    """Estimate the bytes of a scan. ``size``: bytes of the files. ``schema``: of the files. ``read``: of the
    columns that are read."""
    jvm = spark.sparkContext._jvm
    factor = float(spark._jsparkSession.sessionState().conf().fileCompressionFactor())
    return math.ceil(size * factor * _width(jvm, read) / _width(jvm, schema))


def sparks_size(plan: Any) -> int:
    """Return Spark's estimate for a logical plan, which may be larger than a long."""
    return int(str(plan.stats().sizeInBytes()))  # Py4J converts integers only up to a long


def local_size(context: SparkContext, plan: Any) -> int | None:
    """Return about the bytes that an optimised plan reads, if some of them are rows that the driver has sent
    (`note_sent`), and the size of all others is known; otherwise None. To Spark such rows are an RDD of
    unknown size, until adaptive execution has seen what they become.

    The JVM measures all leaves in one call (``LocalRows`` in the manager's jar).
    """
    try:
        told = json.loads(jar_method("LocalRows", "describe")(plan))
    except UnsupportedError:  # there is no jar
        return None
    known, leaves = _sent_rdds.get(context, ()), told["leaves"]
    sent = [_bytes_sent(leaf, told["unknown"], known) for leaf in leaves]
    if all(size is None for size in sent):
        return None
    total = sum(leaf["size"] if size is None else size for leaf, size in zip(leaves, sent, strict=True))
    return None if total >= told["unknown"] else total


def _bytes_sent(leaf: Mapping[str, int], unknown: int, known: Container[int]) -> int | None:
    """Return the bytes of a leaf whose rows the driver has sent; None for another leaf. ``unknown``: the size
    of rows of which Spark knows none. ``known``: the ids of RDDs of rows that were sent."""
    return leaf["sent"] if leaf["size"] >= unknown and leaf.get("rdd") in known else None


def may_add_rows(plan: Any) -> bool:
    """Return whether an optimised plan may have many rows of few: by a join, say, or by ``explode``."""
    try:
        return bool(jar_method("LocalRows", "mayBeMore")(plan))
    except UnsupportedError:  # there is no jar
        return True


_SENT = "ParallelCollectionRDD"  # the class of an RDD of data that the driver has sent
# The ids of the RDDs of rows that the driver has sent, by SparkContext. Those of a user's functions look the
# same in the JVM, and may have made many rows of few that were sent
_sent_rdds: WeakKeyDictionary[SparkContext, set[int]] = WeakKeyDictionary()


def note_sent(df: Any, rdd: RDD[Any] | None) -> None:
    """Note that the driver has sent the rows of ``df``, of a session with a JVM, unless they were made of an
    ``rdd`` of a user's that is not just data that the driver has sent."""
    records: Any = rdd
    if isinstance(rdd, PipelinedRDD):
        return
    if rdd is not None and records._jrdd.rdd().getClass().getSimpleName() != _SENT:
        return
    leaf = df._jdf.queryExecution().analyzed().collectLeaves().head()
    if leaf.getClass().getSimpleName() == "LogicalRDD":
        _sent_rdds.setdefault(df.sparkSession.sparkContext, set()).add(leaf.rdd().id())


def exchanged_size(exchange: ShuffleDependency) -> int | None:
    """Return the bytes of an exchange's rows: those written if its map stage has run, else an estimate."""
    if exchange.is_measured:
        return sum(exchange.sizes().totals)
    stage, upstream = exchange.stage(), exchange.upstream
    reports = [
        report for (number, _), report in upstream.context.reports.value.items() if number == stage.number
    ]
    if not reports or len(reports) < (len(stage.ends or ()) or skew.sliced_origin(upstream).partitions()):
        return estimated_size(upstream)
    outputs = [report.outputs[exchange.number] for report in reports if exchange.number in report.outputs]
    return sum(output.counts["raw_bytes_written"] for output in outputs)


def united_size(chains: Sequence[Chain]) -> tuple[int | None, StructType]:
    """Estimate the bytes of the rows of all these chains together, and return their common schema."""
    sizes = [estimated_size(chain) for chain in chains]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return total, chains[0].schema


def combined_size(chains: Sequence[Chain], *, only_first: bool) -> tuple[int | None, StructType | None]:
    """Estimate the bytes of joined rows, and return their schema if it is known. As in Spark a join has the
    product of the sizes of its sides, or the size of the first if only its rows come out."""
    sizes = [estimated_size(chain) for chain in chains]
    if only_first:
        return sizes[0], chains[0].schema
    return None if None in sizes else math.prod(max(1, size) for size in sizes if size is not None), None


def _declared_schema(step: Step) -> StructType | None:
    """Return the schema that a user's function declares, None for other steps. Spark takes the function's
    rows to be as large as its input."""
    function = step.function if isinstance(step, GroupApply) else step
    if isinstance(function, MapFunction | GroupFunction):
        return function.declared.schema
    return None


def _width(jvm: Any, schema: StructType) -> int:
    """Return the size of a row of this schema in bytes, as Spark estimates it."""
    return _ROW_OVERHEAD + _default_size(jvm, schema.json())


@lru_cache(maxsize=1024)
def _default_size(jvm: Any, schema: str) -> int:
    # kept, because each join asks again for all rows that it comes from: 20 joins of scans took 1800 calls
    types = java_class(jvm, "org.apache.spark.sql.types.DataType")
    return int(types.fromJson(schema).defaultSize())
