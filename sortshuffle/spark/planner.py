"""The few places where Python reaches into Spark's planner (classic sessions, Py4J).

A frame's control rows travel through Spark's own shuffle. Two things about that shuffle must differ from
the user's session, so it is planned in a clone of it (found by trying on Spark 4.1 to 4.3):

* adaptive execution off: with it, planning would run the map stage at once, and frames would not be lazy;
* a re-run map task may return other control bytes (another attempt, another path). Spark 4.1+ would then
  refuse to go on once reduce tasks have finished, unless
  ``spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch`` is false.

The clone must be the *active* session while the plan becomes an RDD, because the shuffle reads its settings
then. The RDD is wrapped as a scan in the user's session: every frame made from it shares its map output.

Where one map stage feeds several exchanges their control rows go through one shuffle, a range of its
partitions for each. `PartitionPruningRDD` gives each exchange its range; the shuffle below stays one, so
Spark runs its map stage once, and keeps its files while any of the ranges can still be used.

This module must be all that breaks when Spark changes. `internalCreateDataFrame` has had the same three
arguments since Spark 2.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sortshuffle.spark.naming import call_site

_CLONE_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}


def by_id(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """``frame`` with row r in partition ``r[column]``; the column is an int below ``partitions``."""
    return frame.repartitionById(partitions, sf.col(column))


def share(frame: DataFrame) -> DataFrame:
    """The same rows as a scan of one RDD, planned once and lazily: whatever is derived from the result
    shares the shuffles in its plan."""
    return _scan(frame, _planned(frame))


def share_out(frame: DataFrame, sizes: Sequence[int], label: str) -> list[DataFrame]:
    """The same as several scans: the first has the first ``sizes[0]`` partitions, and so on.

    ``label``: what Spark's UI calls the stages of the plan.
    """
    context = frame.sparkSession.sparkContext
    with call_site(context, label):
        rdd = _planned(frame)
        rdd.setName(label)
        return [_scan(frame, part) for part in _parts(context._jvm, rdd, sizes)]


def is_reproducible(frame: DataFrame) -> bool:
    """Whether Spark knows that running a task of this plan again gives the same rows in the same order."""
    return str(_planned(frame).outputDeterministicLevel().toString()) == "DETERMINATE"


def _parts(jvm: Any, rdd: Any, sizes: Sequence[int]) -> list[Any]:
    """The partitions of an RDD, dealt out in their order."""
    if len(sizes) == 1:
        return [rdd]
    pruning = jvm.org.apache.spark.rdd.PartitionPruningRDD
    ranges = pairwise(accumulate(sizes, initial=0))
    return [pruning.create(rdd, _whole_numbers(jvm, start, end)) for start, end in ranges]


def _whole_numbers(jvm: Any, start: int, end: int) -> Any:
    """start..end-1 as a Scala set, which is also the Scala function that says whether a number is one."""
    scala = jvm.scala.collection.immutable
    numbers = getattr(scala, "Range$Exclusive")(start, end, 1)
    return getattr(scala, "BitSet$").__getattr__("MODULE$").fromSpecific(numbers)


def _scan(frame: DataFrame, rdd: Any) -> DataFrame:
    """An RDD of internal rows with the columns of ``frame``, in its session."""
    spark: Any = frame.sparkSession
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False), spark)


def _planned(frame: DataFrame) -> Any:
    """The RDD of internal rows of a plan. Starts no job, unless the plan contains a broadcast."""
    session: Any = frame.sparkSession
    clone = session._jsparkSession.cloneSession()
    for key, value in _CLONE_SETTINGS.items():
        clone.conf().set(key, value)
    jvm = session.sparkContext._jvm
    datasets = getattr(jvm.org.apache.spark.sql.classic, "Dataset$").__getattr__("MODULE$")
    with _active(jvm.org.apache.spark.sql.classic.SparkSession, clone):
        return datasets.ofRows(clone, frame._jdf.queryExecution().analyzed()).queryExecution().toRdd()


@contextmanager
def _active(sessions: Any, session: Any) -> Iterator[None]:
    previous = sessions.getActiveSession()
    sessions.setActiveSession(session)
    try:
        yield
    finally:
        if previous.isDefined():
            sessions.setActiveSession(previous.get())
        else:
            sessions.clearActiveSession()
