"""Control rows of several exchanges, side by side."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from oracle import rows_in_order
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sortshuffle.errors import StateError
from sortshuffle.spark.control_rows import COLUMNS, MARK
from sortshuffle.spark.session import classic_planner as planner
from sortshuffle.spark.session.java import java_class
from sortshuffle.spark.session.planner import number_rows

PARTITIONS = 4


def control(spark: SparkSession, exchange: int, skipped: int) -> DataFrame:
    """Rows such as an exchange's control rows, in the partitions of their subpartitions but one."""
    places = [(s, m) for s in range(PARTITIONS) for m in range(3) if s != skipped]
    rows: list[Any] = [(s, s, m, bytes([exchange, s, m]), exchange) for s, m in places]
    shuffled = spark.createDataFrame(rows, COLUMNS).repartitionById(PARTITIONS, MARK)
    return planner.share(shuffled)


def test_partition_s_holds_the_rows_of_partition_s_of_each(spark: SparkSession) -> None:
    frames = [control(spark, exchange, exchange % PARTITIONS) for exchange in (7, 8, 9)]
    frames.insert(0, number_rows(frames[0], PARTITIONS))
    zipped = planner.zip_partitions(frames)

    assert zipped.schema.simpleString() == frames[0].schema.simpleString()
    assert zipped.rdd.getNumPartitions() == PARTITIONS
    found = sorted(rows_in_order(zipped))
    assert found == sorted(row for frame in frames for row in rows_in_order(frame))
    assert len(found) == PARTITIONS + 3 * 3 * (PARTITIONS - 1)


def test_unequal_numbers_of_partitions_are_refused(spark: SparkSession) -> None:
    """Spark itself would read as many as the first frame has, and no more."""
    rows = control(spark, 7, 0)
    for count in (PARTITIONS - 1, PARTITIONS + 1):
        with pytest.raises(StateError, match=f"{PARTITIONS}, {count} partitions"):
            planner.zip_partitions([rows, number_rows(rows, count)])


def test_nothing_is_shuffled_a_second_time(spark: SparkSession) -> None:
    zipped = planner.zip_partitions([control(spark, 7, 0), control(spark, 8, 0)])
    lineage = zipped._jdf.queryExecution().toRdd().toDebugString()
    assert lineage.count("ShuffledRowRDD") == 2


@pytest.mark.parametrize("tasks", [None, 1])
def test_every_subpartition_has_a_row_of_its_number(spark: SparkSession, tasks: int | None) -> None:
    numbers = number_rows(control(spark, 7, 0), PARTITIONS, tasks)
    found = numbers.select("subpartition", sf.spark_partition_id(), "output").collect()
    expected = [(s, 0 if tasks == 1 else s, None) for s in range(PARTITIONS)]
    assert sorted(map(tuple, found)) == expected


class Interrupted:
    """The sessions of the JVM. The user interrupts the first call that makes one active, as it returns."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)

    def setActiveSession(self, session: Any) -> None:
        self._sessions.setActiveSession(session)
        if self._is_first:
            self._is_first = False
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_leaves_the_users_session_active(spark: SparkSession) -> None:
    java: Any = spark
    sessions = java_class(java._jvm, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(java._jsparkSession)
    other = java._jsparkSession.cloneSession()
    with pytest.raises(KeyboardInterrupt), planner._active(Interrupted(sessions), other):
        pass
    assert sessions.getActiveSession().get().equals(java._jsparkSession)
