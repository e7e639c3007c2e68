"""Coalescing: a task reads several small partitions if nobody asked for their number.

Spark's adaptive execution does this to its own shuffles, and the same settings turn it on here
(``spark.sql.adaptive.enabled`` and ``spark.sql.adaptive.coalescePartitions.enabled``). The number of
subpartitions of an exchange that a groupBy, a join or ``repartition("k")`` needs follows from an estimate
(`operators.partition_counts`), which is often too large. A task costs some 20 ms of CPU in Python and the JVM
however little it reads.

    subpartition   0 .. 7    8 .. 15   ...     each is still read, and passed through the steps, by itself,
    task           0         1         ...     as in a task of its own

* Sizes are not guessed. Before an action is planned, `for_action` runs the map stages of the exchanges in
  question, sources first, and adds up what they have written (`spark.plan.measured_sizes`). So only actions
  coalesce. A DataFrame that Spark plans further stays lazy, and keeps its partitions, of which Spark is told
  (`plan.hints`).
* A map stage is coalesced, too, if all exchanges that it reads are measured.
* Not coalesced: exchanges whose number the user asked for, sorted ranges, unions, the large side of a
  broadcast join, and what is read from Spark's cache or in slices. Over Spark Connect nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sortshuffle.options import MIB
from sortshuffle.spark.plan import skew
from sortshuffle.spark.plan.chain import Chain, ShuffleDependency
from sortshuffle.spark.plan.measured_sizes import measure_sizes
from sortshuffle.spark.plan.spark_cache import kept_beginning
from sortshuffle.spark.session.session_settings import SessionSettings

TASKS_PER_CORE = 3
"""The least number of tasks for each core, so that one slow group does not leave the others idle."""

LARGEST = 32 * MIB
"""Most bytes of a task, before compression and on average, if there are many."""

SMALLEST = MIB
"""Least bytes of a task if there are few. It is the least of Spark's, too."""


def for_action(chain: Chain) -> Chain:
    """Return the chain as an action on its rows reads it: `coalesced`. Runs the map stages that must have run
    before it is known how many tasks read their exchanges; the action needs these stages anyway. Raises what
    the stages raise."""
    _measure(chain, set())
    return coalesced(chain, ends_of(chain))


def _measure(chain: Chain, seen: set[ShuffleDependency]) -> None:
    if kept_beginning(chain, chain.steps)[0] is not None:
        return  # the exchanges are not read
    for exchange in chain.origin.exchanges():
        if exchange not in seen and not exchange.is_built:
            seen.add(exchange)
            _measure(exchange.upstream, seen)
    _measure_together([exchange for exchange in _small_exchanges(chain) if not exchange.is_measured])


def _measure_together(exchanges: Sequence[ShuffleDependency]) -> None:
    """Measure exchanges that one stage reads, in one job, so that their map stages run at the same time."""
    if len(exchanges) < 2:
        for exchange in exchanges:
            exchange.sizes()
        return
    context = exchanges[0].upstream.context
    control = context.planner.together([exchange.control_rows() for exchange in exchanges])
    counts = {exchange.number: exchange.subpartitions for exchange in exchanges}
    found = measure_sizes(control, counts, context.host_service())
    for exchange in exchanges:
        exchange.measured(found[exchange.number])


def coalesced(chain: Chain, ends: tuple[int, ...] | None) -> Chain:
    """Return the rows of a chain, read in fewer tasks. ``ends``: what `ends_of` returns for the chain."""
    origin = None if ends is None else chain.origin.coalesced(chain, len(ends), ends)
    return chain if origin is None else replace(chain, origin=origin, steps=())


def ends_of(chain: Chain) -> tuple[int, ...] | None:
    """Return for each task of the chain's stage the number after that of its last partition; None if each
    reads one partition. Runs nothing."""
    exchanges = _small_exchanges(chain)
    if not exchanges or not all(exchange.is_measured for exchange in exchanges):
        return None
    if kept_beginning(chain, chain.steps)[0] is not None or skew.is_sliced(chain):
        return None
    sizes: Any = np.sum([exchange.sizes().totals for exchange in exchanges], axis=0, dtype=np.float64)
    total = sizes.sum()
    few = min(_fewest(chain), math.ceil(total / SMALLEST))
    ends = neighbours(sizes, max(1, few, math.ceil(total / LARGEST)))
    return ends if len(ends) < len(sizes) else None


def neighbours(sizes: Any, count: int) -> tuple[int, ...]:
    """Divide partitions into at most ``count`` groups of neighbours of about equal size: return for each
    group the number after that of its last partition. A partition belongs to the group that contains the
    middle of its bytes. ``sizes``: of all partitions, a NumPy array of doubles."""
    total = sizes.sum()
    if not total:
        return (len(sizes),)
    middles = np.cumsum(sizes) - sizes / 2
    groups = np.minimum((middles * count / total).astype(np.int64), count - 1)  # without bytes at the end
    return (*(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(sizes))


def _small_exchanges(chain: Chain) -> Sequence[ShuffleDependency]:
    """Return the exchanges that the chain begins with, if their partitions may be coalesced."""
    exchanges = chain.origin.exchanges()
    context = chain.context
    if not exchanges or not all(exchange.is_default for exchange in exchanges):
        return ()
    if not context.planner.zips or chain.origin.coalesced(chain, 1) is None:
        return ()
    if chain.origin.partitions() <= _fewest(chain) or not SessionSettings.of(context.spark).coalesces:
        return ()
    return exchanges


def _fewest(chain: Chain) -> int:
    return TASKS_PER_CORE * chain.context.planner.parallelism()
