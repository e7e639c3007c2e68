"""`default_partitions`: the number of partitions of an exchange for which the user gives none.

It is ``spark.sql.shuffle.partitions``, or fewer for fewer bytes, as in PySpark, where adaptive execution
joins small partitions after it has seen their sizes. Here the number is fixed when the exchange is made, by
Spark's estimate of its rows, and an action may join partitions further (`spark.plan.coalescing`). Each
subpartition costs some 0.1 ms in every task that writes or reads it, and each task some 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.spark.functions.maps import MapFunction
from sortshuffle.spark.plan.chain import Chain, Rows
from sortshuffle.spark.plan.coalescing import LARGEST, SMALLEST, TASKS_PER_CORE
from sortshuffle.spark.plan.estimated_sizes import divided, estimated_size
from sortshuffle.spark.plan.origins import DataFrameOrigin, ExchangeOrigin, ParquetOrigin, UnionOrigin
from sortshuffle.spark.session.requirements import is_classic
from sortshuffle.spark.session.session_settings import SessionSettings
from sortshuffle.spark.steps.group_steps import GroupApply
from sortshuffle.spark.worker.stages import PerBatchStep

BYTES_OF_FILES = LARGEST
"""Estimated bytes of a partition, if the rows come from Parquet files that Python reads, without a function
of the user's on the way: they cannot be many times as large as estimated. So a task reads one partition, not
several. A join of 30 M with 7.5 M rows (0.6 GB) took 10.2, 7.8, 6.4 s with 200, 64, 24 partitions, read in as
many tasks; aggregates of 50,000 groups 4.7, 2.6, 1.95, 1.8 s with 200, 64, 24, 10; of 5 M groups 8.9, 6.8,
5.75, 5.6 s."""

BYTES = SMALLEST
"""The same for other rows. Functions and Spark's plans may add any number of rows, which estimates ignore:
where one is 100 times too small, partitions are of 100 MiB, which is still little for a task."""

FEW_BYTES = 64 << 10
"""Up to so many estimated bytes of a source there is one partition, as in PySpark, whose groups then come in
the order of their keys. Much code that is used to small data expects that, PySpark's own tests among it. Rows
that a function, a join or ``explode`` has made are not counted as few: they may be gigabytes of a range of
numbers."""


def default_partitions(*inputs: Rows) -> int:
    """Return the number of partitions into which the rows of these inputs are exchanged together."""
    context, chains = inputs[0].context, [rows.chain for rows in inputs]
    most = context.shuffle_partitions()
    if not is_classic(context.spark) or not SessionSettings.of(context.spark).coalesces:
        return most  # over Spark Connect sizes are not known
    sizes = [estimated_size(chain) for chain in chains]
    if any(size is None for size in sizes):
        return most
    size = sum(size for size in sizes if size is not None)
    if size <= FEW_BYTES and all(map(_come_from_a_source, chains)):
        return 1
    wanted = divided(size, BYTES_OF_FILES if all(map(_come_from_files, chains)) else BYTES)
    return min(most, max(wanted, TASKS_PER_CORE * context.planner.parallelism()))


def _come_from_a_source(chain: Chain) -> bool:
    """Return whether there are no more rows than a source has."""
    source = _source_of(chain, _adds_no_rows)
    if source is None:
        return False
    origin = source.origin
    return isinstance(origin, ParquetOrigin) or (
        isinstance(origin, DataFrameOrigin) and not origin.may_add_rows
    )


def _come_from_files(chain: Chain) -> bool:
    """Return whether rows come from Parquet files that Python reads, and neither a function of the user's nor
    a join is on the way."""
    source = _source_of(chain, _has_no_function)
    if source is None:
        return False
    if isinstance(source.origin, UnionOrigin):
        return all(map(_come_from_files, source.origin.inputs))
    return isinstance(source.origin, ParquetOrigin)


def _source_of(chain: Chain, may_pass: Callable[[Chain], bool]) -> Chain | None:
    """Return the chain before all exchanges; None if it, or one on the way, may not be passed."""
    while may_pass(chain):
        if not isinstance(chain.origin, ExchangeOrigin):
            return chain
        chain = chain.origin.exchange.upstream
    return None


def _adds_no_rows(chain: Chain) -> bool:
    return all(isinstance(step, PerBatchStep) for step in chain.steps)


def _has_no_function(chain: Chain) -> bool:
    return not any(isinstance(step, MapFunction | GroupApply) for step in chain.steps)
