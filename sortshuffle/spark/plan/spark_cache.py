"""Rows that are in Spark's cache, and the chains that can read them there.

`DataFrame.cache` serves every plan that contains the cached one, also plans of frames made before the call.
So `keep` notes which chain is cached. A chain that begins with the same origin and the same steps then reads
the rows of these from the cache. "The same" means identical objects: a function that is called twice may
return other rows.

Nothing is noted over Spark Connect or with a skew factor: the cached rows might then have other partitions
than later steps rely on. These never read the cache: unions and coalesced partitions of the cached rows,
Parquet scans with other columns or filters, and the first rows of a sort. Tables and views that are cached by
name are not known.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from sortshuffle.spark.plan.chain import Chain, FrameContext, Origin
from sortshuffle.spark.worker.stages import Step


def keep(chain: Chain, origin: Origin, cached: DataFrame) -> None:
    """Note that Spark's cache has the rows of ``chain``. ``origin`` reads them there, as those of the
    DataFrame ``cached``."""
    _forget_dropped(chain.context)
    if chain.context.planner.keeps and not chain.context.options.skew_factor:
        # the chain is kept, too, so that no other object gets the ids of its steps
        chain.context.cached_rows[_key(chain, len(chain.steps))] = (chain, origin, cached)


def release(chain: Chain) -> None:
    """Note that the rows of ``chain`` are no longer in Spark's cache."""
    chain.context.cached_rows.pop(_key(chain, len(chain.steps)), None)


def kept(chain: Chain) -> Origin | None:
    """Return what reads the rows of ``chain`` in Spark's cache; None if they are not there."""
    return _kept(chain, len(chain.steps))


def reading_kept(chain: Chain) -> Chain:
    """Return the chain with what can be read in Spark's cache as its origin."""
    origin, steps = kept_beginning(chain, chain.steps)
    return chain if origin is None else replace(chain, origin=origin, steps=steps)


def kept_beginning(chain: Chain, steps: tuple[Step, ...]) -> tuple[Origin | None, tuple[Step, ...]]:
    """Return what reads the rows of as many as possible of ``steps``, the first ones of the chain, in Spark's
    cache, and the steps that remain. None, and all steps, if no rows are there."""
    if chain.context.cached_rows:
        for count in range(len(steps), -1, -1):
            origin = _kept(chain, count)
            if origin is not None:
                return origin, steps[count:]
    return None, steps


def _kept(chain: Chain, count: int) -> Origin | None:
    """Return what reads the rows of the first ``count`` steps in Spark's cache; None if it has not got
    them."""
    key = _key(chain, count)
    _, origin, cached = chain.context.cached_rows.get(key, (None, None, None))
    if cached is not None and _is_dropped(cached):
        chain.context.cached_rows.pop(key, None)
        return None
    return origin


def _forget_dropped(context: FrameContext) -> None:
    """Drop the entries of rows that are no longer in Spark's cache, so that their frames can go. Each entry
    is a question to Spark, so it looks only when there are twice as many as after the last look, or so."""
    count = len(context.cached_rows)
    if count & (count - 1):  # no power of two
        return
    for key, entry in list(context.cached_rows.items()):
        if _is_dropped(entry[2]) and context.cached_rows.get(key) is entry:
            context.cached_rows.pop(key, None)


def _is_dropped(cached: DataFrame) -> bool:
    """Return whether somebody has dropped the rows: `catalog.clearCache`, or `unpersist` of another
    DataFrame."""
    return bool(cached.storageLevel == StorageLevel.NONE)


def _key(chain: Chain, count: int) -> tuple[int, ...]:
    return tuple(map(id, (chain.origin, *chain.steps[:count])))
