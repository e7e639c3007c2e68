"""`default_partitions`: the number of partitions of an exchange for which the user gives none.

It is ``spark.sql.shuffle.partitions``. In a session of `sortshuffle.session` it may be fewer, as in PySpark,
where adaptive execution joins small partitions after it has seen their sizes. Here the number is fixed when
the exchange is made, by the estimated size of its rows. A Python task costs some 5 ms whatever it reads: a
job of 1000 rows took 3 s with 200 partitions, and 0.5 s in PySpark.
"""

from __future__ import annotations

import math

from sortshuffle.spark.plan.chain import Rows
from sortshuffle.spark.plan.estimated_sizes import estimated_size
from sortshuffle.spark.session.requirements import is_classic

BYTES = 256 << 10
"""Estimated bytes of a partition. Spark aims at 1 MiB or more. Estimates ignore what functions add: where
one is 100 times too small, partitions are of 25 MiB, which is still little for a task."""

TASKS_PER_CORE = 3
"""The least number of partitions for each core, so that one slow group does not leave the others idle."""


def default_partitions(*inputs: Rows) -> int:
    """Return the number of partitions into which the rows of these inputs are exchanged together."""
    context = inputs[0].context
    most = context.shuffle_partitions()
    if not context.adaptive or not is_classic(context.spark):
        return most  # over Spark Connect sizes are not known
    sizes = [estimated_size(rows.chain) for rows in inputs]
    if any(size is None for size in sizes):
        return most
    wanted = math.ceil(sum(size for size in sizes if size is not None) / BYTES)
    return min(most, max(wanted, TASKS_PER_CORE * context.planner.parallelism()))
