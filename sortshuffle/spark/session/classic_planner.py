"""The `Planner` of classic sessions, which reaches into Spark's planner by Py4J.

A frame's plans become RDDs in a clone of the user's session (tried on Spark 4.1 to 4.3). Its settings differ:

* Adaptive execution is off. With it, planning would run the map stage at once, and frames would not be lazy.
* For the shuffle of control rows, Spark rolls nothing back because of other bytes (`NO_ROLLBACK`). A re-run
  map task may return other control bytes (another attempt, another path), and Spark would then refuse to go
  on once reduce tasks have finished. Shuffles of the user's own plan need the check: by it Spark notices that
  a map task which runs again has placed rows elsewhere. So a plan with such shuffles becomes an RDD first, by
  the user's settings, and its control rows are shuffled then.
* For the same shuffle, plans are printed whole: `_exchanges` counts the shuffles in the text.

The clone must be the *active* session while the plan becomes an RDD, because the shuffle reads its settings
then. The RDD becomes a scan in the user's session. All frames made from it share its map outputs.

If one map stage feeds several exchanges, their control rows go through one shuffle, and `PartitionPruningRDD`
gives each exchange a range of its partitions. So Spark runs the map stage once, and keeps the shuffle's files
as long as one of the ranges can be used.

Of Spark's planner and scheduler, only this module, `control_shuffles`, `forgotten_exchanges` and `plan.hints`
use internals. `internalCreateDataFrame` has had the same three arguments since Spark 2.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

from pyspark.sql import DataFrame

from sortshuffle.errors import StateError
from sortshuffle.spark.control_rows import MARK
from sortshuffle.spark.session.control_shuffles import control_shuffle, remove_unused
from sortshuffle.spark.session.java import java_class, scala_object
from sortshuffle.spark.session.naming import call_site
from sortshuffle.spark.session.planner import ControlRows, number_rows
from sortshuffle.spark.session.requirements import NO_ROLLBACK

_LAZY = {"spark.sql.adaptive.enabled": "false"}
_LAZY_CONTROL = {
    **_LAZY,
    **NO_ROLLBACK,
    "spark.sql.maxPlanStringLength": str(2**30),  # for `_exchanges`
}
# Nodes of physical plans that shuffle. The plan of a UnionLoop is only made when it runs. As text, not
# by walking: a plan has tens of nodes, and each call of the JVM takes some 0.3 ms
_SHUFFLES = re.compile(r"Exchange |TakeOrderedAndProject|CollectLimit|CollectTail|UnionLoop")


class ClassicPlanner:
    """The `Planner` of a session with a JVM."""

    keeps = True
    zips = True

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def control(self, rows: DataFrame, subpartitions: Sequence[int], label: str) -> list[ControlRows]:
        context = rows.sparkSession.sparkContext
        remove_unused(context)
        with call_site(context, label):
            shuffled, rdd = _control_rdd(rows, sum(subpartitions))
            rdd.setName(label)
            shuffle = control_shuffle(context, rdd)
            parts = _parts(context._jvm, rdd, subpartitions)
            return [
                ControlRows(_scan(shuffled, part), count, shuffle)
                for part, count in zip(parts, subpartitions, strict=True)
            ]

    def together(self, control: Sequence[ControlRows], *, numbered: bool = False) -> DataFrame:
        rows = [each.rows for each in control]
        if numbered:
            rows.insert(0, number_rows(rows[0], control[0].subpartitions))
        return zip_partitions(rows)

    def zip_partitions(self, frames: Sequence[DataFrame]) -> DataFrame:
        return zip_partitions(frames)

    def share(self, frame: DataFrame) -> DataFrame:
        return share(frame)

    def partitions(self, frame: DataFrame) -> int | None:
        return int(rdd_of(frame).getNumPartitions())

    def is_reproducible(self, frame: DataFrame) -> bool:
        return _level(frame) == "DETERMINATE"

    def is_indeterminate(self, frame: DataFrame) -> bool:
        return _level(frame) == "INDETERMINATE"

    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)


def share(frame: DataFrame) -> DataFrame:
    """Return the same rows as a scan of one RDD, planned once and lazily. All frames derived from the result
    share the shuffles in its plan."""
    return _scan(frame, rdd_of(frame))


def zip_partitions(frames: Sequence[DataFrame]) -> DataFrame:
    """Implement `Planner.zip_partitions`. Nothing is shuffled, so lost map outputs of each frame are run
    again as before."""
    first = frames[0]
    if len(frames) == 1:
        return first
    context: Any = first.sparkSession.sparkContext
    jvm = context._jvm
    rdds = [rdd_of(frame) for frame in frames]
    counts = [int(rdd.getNumPartitions()) for rdd in rdds]
    if len(set(counts)) > 1:  # Spark would leave out partitions without a word
        raise StateError(
            f"{', '.join(map(str, counts))} partitions cannot be put together one by one: a plan has changed"
            " since the frame was made. Make the frame again"
        )
    together = java_class(jvm, "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD")(
        context._jsc.sc(), jvm.PythonUtils.toSeq(rdds), counts[0], rdds[0].elementClassTag()
    )
    # with the schema of a union, whose columns are nullable if they are in any of the frames
    return _scan(reduce(DataFrame.unionAll, frames), together)


def pick_partitions(frame: DataFrame, partitions: Sequence[int]) -> DataFrame:
    """Return the partitions of a frame with these numbers, in this order, without shuffling. Numbers may
    repeat."""
    context: Any = frame.sparkSession.sparkContext
    jvm = context._jvm
    rdd = rdd_of(frame)
    pruning = java_class(jvm, "org.apache.spark.rdd.PartitionPruningRDD")
    parts = [
        pruning.create(rdd, _whole_numbers(jvm, run.start, run.stop)) for run in _ascending_runs(partitions)
    ]
    union = java_class(jvm, "org.apache.spark.rdd.UnionRDD")(
        context._jsc.sc(), jvm.PythonUtils.toSeq(parts), rdd.elementClassTag()
    )
    return _scan(frame, union)


def join_neighbours(frame: DataFrame, ends: Sequence[int]) -> DataFrame:
    """Return the rows of a frame in fewer partitions, without shuffling: each has those of neighbouring ones,
    in their order. ``ends``: ascending; for each partition the number after that of its last one.
    `DataFrame.coalesce` puts partitions together that are near each other on the cluster."""
    context: Any = frame.sparkSession.sparkContext
    jvm = context._jvm
    rdd = rdd_of(frame)
    none, tag = scala_object(jvm, "scala.None"), rdd.elementClassTag()
    pruning = java_class(jvm, "org.apache.spark.rdd.PartitionPruningRDD")
    coalesced = java_class(jvm, "org.apache.spark.rdd.CoalescedRDD")
    parts = [
        coalesced(pruning.create(rdd, _whole_numbers(jvm, start, end)), 1, none, tag)
        for start, end in pairwise([0, *ends])
    ]
    union = java_class(jvm, "org.apache.spark.rdd.UnionRDD")(
        context._jsc.sc(), jvm.PythonUtils.toSeq(parts), tag
    )
    return _scan(frame, union)


def _level(frame: DataFrame) -> str:
    return str(rdd_of(frame).outputDeterministicLevel().toString())


def _parts(jvm: Any, rdd: Any, sizes: Sequence[int]) -> list[Any]:
    """Divide the partitions of an RDD, in order, into RDDs of these sizes."""
    if len(sizes) == 1:
        return [rdd]
    pruning = java_class(jvm, "org.apache.spark.rdd.PartitionPruningRDD")
    ranges = pairwise(accumulate(sizes, initial=0))
    return [pruning.create(rdd, _whole_numbers(jvm, start, end)) for start, end in ranges]


def _ascending_runs(numbers: Sequence[int]) -> Iterator[range]:
    """Yield the fewest ranges that together are these numbers, in this order."""
    run = range(numbers[0], numbers[0])
    for number in numbers:
        if number != run.stop:
            yield run
            run = range(number, number)
        run = range(run.start, number + 1)
    yield run


def _whole_numbers(jvm: Any, start: int, end: int) -> Any:
    """Return start..end-1 as a Scala set, which is also a Scala function that tests for membership."""
    numbers = java_class(jvm, "scala.collection.immutable.Range$Exclusive")(start, end, 1)
    return scala_object(jvm, "scala.collection.immutable.BitSet").fromSpecific(numbers)


def _scan(frame: DataFrame, rdd: Any) -> DataFrame:
    """Make a DataFrame of an RDD of internal rows, with the columns and the session of ``frame``."""
    spark: Any = frame.sparkSession
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False), spark)


def rdd_of(frame: DataFrame) -> Any:
    """Return the RDD of a plan's internal rows. Starts no job, unless the plan contains a broadcast."""
    with _in_clone(frame, _LAZY) as execution:
        return execution.toRdd()


def _control_rdd(rows: DataFrame, count: int) -> tuple[DataFrame, Any]:
    """Return the plan that shuffles control rows into so many partitions, and its RDD."""
    shuffled = rows.repartitionById(count, MARK)
    with _in_clone(shuffled, _LAZY_CONTROL) as execution:
        if _exchanges(execution) <= 1:
            return shuffled, execution.toRdd()
    # the user's own shuffles become an RDD first, by the user's settings
    shuffled = share(rows).repartitionById(count, MARK)
    with _in_clone(shuffled, _LAZY_CONTROL) as execution:
        return shuffled, execution.toRdd()


def _exchanges(execution: Any) -> int:
    """Return the number of shuffles in a physical plan, or more. One call of the JVM gets its text."""
    return len(_SHUFFLES.findall(str(execution.executedPlan().toString())))


@contextmanager
def _in_clone(frame: DataFrame, settings: Mapping[str, str]) -> Iterator[Any]:
    """Yield the execution of a plan in a clone of its session with these settings. The clone is active in the
    block, because a plan reads them when it becomes an RDD."""
    session: Any = frame.sparkSession
    clone = session._jsparkSession.cloneSession()
    for key, value in settings.items():
        clone.conf().set(key, value)
    jvm = session.sparkContext._jvm
    datasets = scala_object(jvm, "org.apache.spark.sql.classic.Dataset")
    with _active(java_class(jvm, "org.apache.spark.sql.classic.SparkSession"), clone):
        yield datasets.ofRows(clone, frame._jdf.queryExecution().analyzed()).queryExecution()


@contextmanager
def _active(sessions: Any, session: Any) -> Iterator[None]:
    previous = sessions.getActiveSession()
    try:
        sessions.setActiveSession(session)  # an interrupt may come as it returns
        yield
    finally:
        if previous.isDefined():
            sessions.setActiveSession(previous.get())
        else:
            sessions.clearActiveSession()
