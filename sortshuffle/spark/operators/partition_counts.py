"""`default_partitions`: the number of partitions of an exchange for which the user gives none.

It is ``spark.sql.shuffle.partitions``, or fewer for fewer bytes, as in PySpark, where adaptive execution
joins small partitions after it has seen their sizes. Here the number is fixed when the exchange is made, by
an estimate of what its rows are made of. A Python task costs 10 to 30 ms of CPU time whatever it reads.

The size is that of all sources together, as Spark estimates it: Spark takes a join to have the product of the
sizes of its sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sortshuffle.spark.functions.maps import MapFunction
from sortshuffle.spark.plan.chain import Chain, Rows
from sortshuffle.spark.plan.estimated_sizes import estimated_size
from sortshuffle.spark.plan.origins import DataFrameOrigin, ParquetOrigin, TogetherOrigin
from sortshuffle.spark.session.requirements import is_classic
from sortshuffle.spark.steps.group_steps import CoGroupApply, GroupApply
from sortshuffle.spark.worker.stages import PerBatchStep

BYTES_OF_FILES = 32 << 20
"""Estimated bytes of a partition, if the rows come from Parquet files by operators of this package alone, so
that they cannot be many times as large as the estimate. Spark aims at up to 64 MiB. A join of 30 M with 7.5 M
rows (0.6 GB) took 10.2, 7.8, 6.4 s with 200, 64, 24 partitions; aggregates of 50,000 groups 4.7, 2.6, 1.95,
1.8 s with 200, 64, 24, 10; of 5 M groups 8.9, 6.8, 5.75, 5.6 s."""

BYTES = 1 << 20
"""The same for other rows. Functions and Spark's plans may add any number of rows, which estimates ignore:
where one is 100 times too small, partitions are of 100 MiB, which is still little for a task."""

FEW_BYTES = 64 << 10
"""Up to so many estimated bytes of a source there is one partition, as in PySpark, whose groups then come in
the order of their keys. Much code that is used to small data expects that, PySpark's own tests among it. Rows
that a function has returned are not counted as few: it may have made gigabytes of a range of numbers."""

TASKS_PER_CORE = 3
"""The least number of partitions for each core, so that one slow group does not leave the others idle."""


def default_partitions(*inputs: Rows) -> int:
    """Return the number of partitions into which the rows of these inputs are exchanged together."""
    context = inputs[0].context
    most = context.shuffle_partitions()
    if not context.adaptive or not is_classic(context.spark):
        return most  # over Spark Connect sizes are not known
    chains = [rows.chain for rows in inputs]
    known: dict[int, int | None] = {}
    sizes = [_size(chain, known) for chain in chains]
    if any(size is None for size in sizes):
        return most
    size = sum(size for size in sizes if size is not None)
    if size <= FEW_BYTES and all(map(_come_from_a_source, chains)):
        return 1
    wanted = math.ceil(size / (BYTES_OF_FILES if _come_from_files(chains) else BYTES))
    return min(most, max(wanted, TASKS_PER_CORE * context.planner.parallelism()))


def _size(chain: Chain, known: dict[int, int | None]) -> int | None:
    """Return the estimated bytes of all sources of a chain together, behind the operators that follow them
    directly; None if one is unknown. ``known``: the results by the id of a chain, because each may be reached
    on many ways."""
    if id(chain) not in known:
        inputs = chain.origin.inputs_of_rows()
        sizes = [_size(each, known) for each in inputs] or _sizes_of_source(chain)
        known[id(chain)] = None if None in sizes else sum(size for size in sizes if size is not None)
    return known[id(chain)]


def _sizes_of_source(chain: Chain) -> list[int | None]:
    """Return the estimated bytes of a source, or of its rows behind operators if those are fewer: columns
    that operators add, such as those of aggregates, are not counted."""
    estimates = chain.origin.size_and_schema()[0], estimated_size(chain)
    return [min((size for size in estimates if size is not None), default=None)]


def _come_from_a_source(chain: Chain) -> bool:
    """Return whether rows come from a source, by selections and filters alone."""
    is_source = isinstance(chain.origin, DataFrameOrigin | ParquetOrigin)
    return is_source and all(isinstance(step, PerBatchStep) for step in chain.steps)


def _come_from_files(chains: Sequence[Chain]) -> bool:
    """Return whether rows come from Parquet files that Python reads, and no function of the user's is on the
    way."""
    left, seen = list(chains), set(map(id, chains))
    while left:
        chain = left.pop()
        inputs = chain.origin.inputs_of_rows()
        if _has_function(chain) or not (inputs or isinstance(chain.origin, ParquetOrigin)):
            return False
        left += [each for each in inputs if id(each) not in seen]
        seen.update(map(id, inputs))
    return True


def _has_function(chain: Chain) -> bool:
    """Return whether a function of the user's makes rows of this chain from those of its inputs."""
    origin = chain.origin
    if isinstance(origin, TogetherOrigin) and isinstance(origin.combine, CoGroupApply):
        return True
    return any(isinstance(step, MapFunction | GroupApply) for step in chain.steps)
