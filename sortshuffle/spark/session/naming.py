"""What Spark's UI calls the stages and RDDs that are made here, instead of a line of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

_CALL_SITE = "callSite.short"  # the thread's local property that Spark names RDDs and stages by


@contextmanager
def call_site(context: SparkContext, label: str) -> Iterator[None]:
    """Let what is made in the block, and with it its stages, go by this name."""
    previous = context.getLocalProperty(_CALL_SITE)
    context.setLocalProperty(_CALL_SITE, label)
    try:
        yield
    finally:
        context.setLocalProperty(_CALL_SITE, previous)
