"""Marks the shuffles of this package's own control rows.

The Java half leaves a shuffle to Spark's own manager if the thread that makes its `ShuffleDependency` has the
local property `CONTROL` then: the lifetime of map outputs follows Spark's shuffle files (`storage.lifetime`).

* Spark makes the dependency of an RDD late, when somebody first asks for it. So it must be asked for inside
  the block.
* Making a dependency may make those of the RDDs below it, which can be the user's. They must be asked for
  before the block.
* The thread is the JVM's. PySpark gives each Python thread one of its own (``PYSPARK_PIN_THREAD``, the
  default). Without that, two Python threads that plan at once may exchange their marks: a user's shuffle then
  stays Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

CONTROL = "sortshuffle.control"


@contextmanager
def control_shuffle(context: SparkContext) -> Iterator[None]:
    """Shuffles that are made in the block are of control rows."""
    previous = context.getLocalProperty(CONTROL)
    context.setLocalProperty(CONTROL, "true")
    try:
        yield
    finally:
        context.setLocalProperty(CONTROL, previous)
