"""The `Planner` of classic sessions: the few places where Python reaches into Spark's planner, by Py4J.

A frame's control rows travel through Spark's own shuffle. Two things about that shuffle must differ from
the user's session, so it is planned in a clone of it (found by trying on Spark 4.1 to 4.3):

* adaptive execution off: with it, planning would run the map stage at once, and frames would not be lazy;
* a re-run map task may return other control bytes (another attempt, another path). Spark would then
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
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

from pyspark.sql import DataFrame

from sortshuffle.spark.control import MARK
from sortshuffle.spark.session.naming import call_site
from sortshuffle.spark.session.planner import ControlRows, number_rows
from sortshuffle.spark.session.requirements import NO_ROLLBACK

_CLONE_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    NO_ROLLBACK: "false",
}


class ClassicPlanner:
    """The `Planner` of a session with a JVM in reach."""

    keeps = True
    zips = True

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        shuffled = rows.repartitionById(sum(subpartitions), MARK)
        shares = share_out(shuffled, subpartitions, label)
        return [ControlRows(share, count) for share, count in zip(shares, subpartitions, strict=True)]

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        rows = [each.rows for each in control]
        if numbered:
            rows.insert(0, number_rows(rows[0], control[0].subpartitions))
        return zipped(rows)

    def zipped(self, frames: Sequence[DataFrame]) -> DataFrame:
        return zipped(frames)

    def share(self, frame: DataFrame) -> DataFrame:
        return share(frame)

    def partitions(self, frame: DataFrame) -> int | None:
        return partitions(frame)

    def is_reproducible(self, frame: DataFrame) -> bool:
        return is_reproducible(frame)

    def is_indeterminate(self, frame: DataFrame) -> bool:
        return _level(frame) == "INDETERMINATE"

    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)


def share(frame: DataFrame) -> DataFrame:
    """The same rows as a scan of one RDD, planned once and lazily: whatever is derived from the result
    shares the shuffles in its plan."""
    return _scan(frame, planned(frame))


def share_out(frame: DataFrame, sizes: Sequence[int], label: str) -> list[DataFrame]:
    """Control rows, whose plan ends in their shuffle, as several scans: the first has the first ``sizes[0]``
    partitions, and so on.

    ``label``: what Spark's UI calls the stages of the plan.
    """
    context = frame.sparkSession.sparkContext
    with call_site(context, label):
        rdd = planned(frame)
        rdd.setName(label)
        return [_scan(frame, part) for part in _parts(context._jvm, rdd, sizes)]


def zipped(frames: Sequence[DataFrame]) -> DataFrame:
    """One frame whose partition s holds the rows of partition s of each of these, which are of one schema and
    have equally many partitions. Nothing is shuffled, so a lost map output of any is run again as before.
    """
    first = frames[0]
    if len(frames) == 1:
        return first
    context: Any = first.sparkSession.sparkContext
    jvm = context._jvm
    rdds = [planned(frame) for frame in frames]
    together = jvm.org.apache.spark.rdd.SQLPartitioningAwareUnionRDD(
        context._jsc.sc(), jvm.PythonUtils.toSeq(rdds), rdds[0].getNumPartitions(), rdds[0].elementClassTag()
    )
    # a union can be null where any of them can
    return _scan(reduce(DataFrame.unionAll, frames), together)


def picked(frame: DataFrame, partitions: Sequence[int]) -> DataFrame:
    """The partitions of a frame with these numbers, in this order; a number may come several times. Nothing
    is shuffled."""
    context: Any = frame.sparkSession.sparkContext
    jvm = context._jvm
    rdd = planned(frame)
    pruning = jvm.org.apache.spark.rdd.PartitionPruningRDD
    parts = [
        pruning.create(rdd, _whole_numbers(jvm, run.start, run.stop)) for run in _ascending_runs(partitions)
    ]
    union = jvm.org.apache.spark.rdd.UnionRDD(
        context._jsc.sc(), jvm.PythonUtils.toSeq(parts), rdd.elementClassTag()
    )
    return _scan(frame, union)


def partitions(frame: DataFrame) -> int:
    """How many partitions a frame has. Starts no job, unless its plan contains a broadcast."""
    return int(planned(frame).getNumPartitions())


def is_reproducible(frame: DataFrame) -> bool:
    """Whether Spark knows that running a task of this plan again gives the same rows in the same order."""
    return _level(frame) == "DETERMINATE"


def _level(frame: DataFrame) -> str:
    return str(planned(frame).outputDeterministicLevel().toString())


def _parts(jvm: Any, rdd: Any, sizes: Sequence[int]) -> list[Any]:
    """The partitions of an RDD, dealt out in their order."""
    if len(sizes) == 1:
        return [rdd]
    pruning = jvm.org.apache.spark.rdd.PartitionPruningRDD
    ranges = pairwise(accumulate(sizes, initial=0))
    return [pruning.create(rdd, _whole_numbers(jvm, start, end)) for start, end in ranges]


def _ascending_runs(numbers: Sequence[int]) -> Iterator[range]:
    """These numbers as ranges, as few as possible."""
    run = range(numbers[0], numbers[0])
    for number in numbers:
        if number != run.stop:
            yield run
            run = range(number, number)
        run = range(run.start, number + 1)
    yield run


def _whole_numbers(jvm: Any, start: int, end: int) -> Any:
    """start..end-1 as a Scala set, which is also the Scala function that says whether a number is one."""
    scala = jvm.scala.collection.immutable
    numbers = getattr(scala, "Range$Exclusive")(start, end, 1)
    return getattr(scala, "BitSet$").__getattr__("MODULE$").fromSpecific(numbers)


def _scan(frame: DataFrame, rdd: Any) -> DataFrame:
    """An RDD of internal rows with the columns of ``frame``, in its session."""
    spark: Any = frame.sparkSession
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False), spark)


def planned(frame: DataFrame) -> Any:
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
