"""`default_partitions`: the number of partitions of an exchange for which the user gives none.

It is ``spark.sql.shuffle.partitions``. In a session of `sortshuffle.session` it may be fewer, as in PySpark,
where adaptive execution joins small partitions after it has seen their sizes. Here the number is fixed when
the exchange is made, by the estimated size of its rows. A Python task costs some 5 ms whatever it reads: a
job of 1000 rows took 3 s with 200 partitions, and 0.5 s in PySpark.
"""

from __future__ import annotations

import math

from sortshuffle.spark.plan.chain import Chain, Rows
from sortshuffle.spark.plan.coalescing import TASKS_PER_CORE
from sortshuffle.spark.plan.estimated_sizes import estimated_size
from sortshuffle.spark.plan.origins import DataFrameOrigin, ExchangeOrigin, ParquetOrigin
from sortshuffle.spark.session.requirements import is_classic
from sortshuffle.spark.session.session_settings import SessionSettings
from sortshuffle.spark.worker.stages import PerBatchStep

BYTES = 256 << 10
"""Estimated bytes of a partition. Spark aims at 1 MiB or more. Estimates ignore what functions add: where
one is 100 times too small, partitions are of 25 MiB, which is still little for a task."""

FEW_BYTES = 64 << 10
"""Up to so many estimated bytes of a source there is one partition, as in PySpark, whose groups then come in
the order of their keys. Much code that is used to small data expects that, PySpark's own tests among it. Rows
that a function, a join or ``explode`` has made are not counted as few: they may be gigabytes of a range of
numbers."""


def default_partitions(*inputs: Rows) -> int:
    """Return the number of partitions into which the rows of these inputs are exchanged together."""
    context = inputs[0].context
    most = context.shuffle_partitions()
    if not context.adaptive or not is_classic(context.spark):
        return most  # over Spark Connect sizes are not known
    if not SessionSettings.of(context.spark).coalesces:
        return most
    sizes = [estimated_size(rows.chain) for rows in inputs]
    if any(size is None for size in sizes):
        return most
    size = sum(size for size in sizes if size is not None)
    if size <= FEW_BYTES and all(_come_from_a_source(rows.chain) for rows in inputs):
        return 1
    wanted = math.ceil(size / BYTES)
    return min(most, max(wanted, TASKS_PER_CORE * context.planner.parallelism()))


def _come_from_a_source(chain: Chain) -> bool:
    """Return whether there are no more rows than a source has."""
    while isinstance(chain.origin, ExchangeOrigin) and _adds_no_rows(chain):
        chain = chain.origin.exchange.upstream
    origin = chain.origin
    is_source = isinstance(origin, ParquetOrigin) or (
        isinstance(origin, DataFrameOrigin) and not origin.may_add_rows
    )
    return is_source and _adds_no_rows(chain)


def _adds_no_rows(chain: Chain) -> bool:
    return all(isinstance(step, PerBatchStep) for step in chain.steps)
