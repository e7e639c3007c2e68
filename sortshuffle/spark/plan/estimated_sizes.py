"""Estimates the size of a chain's rows in bytes.

The estimate follows Spark's own rules (`SizeInBytesOnlyStatsPlanVisitor`). It starts with Spark's estimate
for the source, and scales it by the widths of the columns that are selected or added. Filters and users'
functions are assumed not to change the size. So wrapping frames does not change which sides Spark broadcasts.
Once a shuffle has run, its actual bytes are used.

Classic sessions only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructType

from sortshuffle.spark.functions.grouped import GroupFunction
from sortshuffle.spark.functions.maps import MapFunction
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
            size = math.ceil(size * step.fraction)
    if size is None or schema is None or schema == chain.schema:
        return size
    return math.ceil(size * _width(jvm, chain.schema) / _width(jvm, schema))


def exchanged_size(exchange: ShuffleDependency) -> int | None:
    """Return the bytes of an exchange's rows: those written if its map stage has run, else an estimate."""
    number, upstream = exchange.stage().number, exchange.upstream
    reports = [report for (stage, _), report in upstream.context.reports.value.items() if stage == number]
    if not reports or len(reports) < skew.sliced_origin(upstream).partitions():
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
    types = java_class(jvm, "org.apache.spark.sql.types.DataType")
    return _ROW_OVERHEAD + int(types.fromJson(schema.json()).defaultSize())
