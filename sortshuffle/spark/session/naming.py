"""Names this package's stages and RDDs in Spark's UI, which would otherwise show a line of its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

_CALL_SITE = "callSite.short"  # a local property of the thread: Spark takes names from it


@contextmanager
def call_site(context: SparkContext, label: str) -> Iterator[None]:
    """Give this name to the RDDs made in the block, and to their stages."""
    previous = context.getLocalProperty(_CALL_SITE)
    context.setLocalProperty(_CALL_SITE, label)
    try:
        yield
    finally:
        context.setLocalProperty(_CALL_SITE, previous)
