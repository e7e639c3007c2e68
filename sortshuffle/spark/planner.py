"""The few places where Python reaches into Spark's planner (classic sessions, Py4J).

A frame's control rows travel through Spark's own shuffle. Two things about that shuffle must differ from
the user's session, so it is planned in a clone of it (found by trying on Spark 4.1 to 4.3):

* adaptive execution off: with it, planning would run the map stage at once, and frames would not be lazy;
* a re-run map task may return other control bytes (another attempt, another path). Spark 4.1+ would then
  refuse to go on once reduce tasks have finished, unless
  ``spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch`` is false.

The clone must be the *active* session while the plan becomes an RDD, because the shuffle reads its settings
then. The RDD is wrapped as a scan in the user's session: every frame made from it shares its map output.

This module must be all that breaks when Spark changes. `internalCreateDataFrame` has had the same three
arguments since Spark 2.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

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
    spark: Any = frame.sparkSession
    rdd = _planned(frame)
    jvm_frame = spark._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False)
    return DataFrame(jvm_frame, spark)


def is_reproducible(frame: DataFrame) -> bool:
    """Whether Spark knows that running a task of this plan again gives the same rows in the same order."""
    return str(_planned(frame).outputDeterministicLevel().toString()) == "DETERMINATE"


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
