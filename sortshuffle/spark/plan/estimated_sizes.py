"""About how many bytes the rows of a chain have.

Estimated by Spark's own rules (`SizeInBytesOnlyStatsPlanVisitor`): a source's size as Spark knows it, less or
more by the widths of the columns that are selected or added; a filter and a user's function are taken to
change nothing. So a job makes the same broadcasts as it did before its frames were wrapped. After a shuffle
has run, its bytes are known.

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
from sortshuffle.spark.steps.group_steps import GroupApply
from sortshuffle.spark.steps.row_steps import Limit, Sample
from sortshuffle.spark.worker.stages import Step

# What a row costs Spark beside its columns, bytes: `EstimationUtils.getSizePerRow`.
_ROW_OVERHEAD = 8


def estimated_size(chain: Chain) -> int | None:
    """About how many bytes the rows of a chain have by Spark's rules; None where nothing is known."""
    jvm = chain.context.spark.sparkContext._jvm
    size, schema = chain.origin.size_and_schema()
    for step in chain.steps:
        schema = _declared(step) or schema
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
    """The bytes of an exchange's rows: as they were written, if its map stage has run to its end."""
    number, upstream = exchange.stage().number, exchange.upstream
    reports = [report for (stage, _), report in upstream.context.reports.value.items() if stage == number]
    if not reports or len(reports) < skew.laid_out(upstream).partitions():
        return estimated_size(upstream)
    outputs = [report.outputs[exchange.number] for report in reports if exchange.number in report.outputs]
    return sum(output.counts["raw_bytes_written"] for output in outputs)


def united_size(chains: Sequence[Chain]) -> tuple[int | None, StructType]:
    """The bytes of the rows of all these chains, and their schema, which is one."""
    sizes = [estimated_size(chain) for chain in chains]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return total, chains[0].schema


def combined_size(chains: Sequence[Chain], *, only_first: bool) -> tuple[int | None, StructType | None]:
    """The bytes of rows that are put together, and their schema if that is known. Like Spark, which takes any
    join for the product of both sides, unless only rows of the first come out."""
    sizes = [estimated_size(chain) for chain in chains]
    if only_first:
        return sizes[0], chains[0].schema
    return None if None in sizes else math.prod(max(1, size) for size in sizes if size is not None), None


def _declared(step: Step) -> StructType | None:
    """The schema of the rows of a user's function, which Spark takes for as large as those that it was given;
    None for another step."""
    function = step.function if isinstance(step, GroupApply) else step
    if isinstance(function, MapFunction | GroupFunction):
        return function.declared.schema
    return None


def _width(jvm: Any, schema: StructType) -> int:
    """What Spark takes a row of this schema for, bytes."""
    return _ROW_OVERHEAD + int(jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).defaultSize())
