"""What the tests of frames and RDDs share: generated data of every type, and plain PySpark as the oracle.

Two frames are the same if the same rows are in the same partitions. Rows are compared by how they print,
which tells -0.0 from 0.0 and takes NaN as equal to itself.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import RDD
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from sortshuffle import ShuffleFrame, ShuffleRDD
from sortshuffle.errors import SortShuffleError
from sortshuffle.spark.frame.grouped_frame import GroupedFrame
from sortshuffle.spark.functions.cogrouped import CoGroupInArrow
from sortshuffle.spark.operators import aggregates
from sortshuffle.spark.operators.cogroups import cogroup
from sortshuffle.spark.plan.chain import Rows

Batches: TypeAlias = Iterator[pa.RecordBatch]
Frames: TypeAlias = Iterator[pd.DataFrame]

UTC = dt.timezone.utc
LONG = "a text that is longer than a word of memory"
DAYS = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]
# the hours around both changes of daylight saving time in New York, and times before and long after 1970
TIMES = [
    dt.datetime(2024, 3, 10, 6, 59, 59, 999999),
    dt.datetime(2024, 3, 10, 7),
    dt.datetime(2024, 11, 3, 5, 30),
    dt.datetime(2024, 11, 3, 6, 30),
    dt.datetime(1900, 1, 1, 0, 0, 0, 1),
    dt.datetime(2261, 12, 31),
]
INSTANTS = [time.replace(tzinfo=UTC) for time in TIMES]
EDGES = {
    "bo": (pa.bool_(), [True, False]),
    "by": (pa.int8(), [0, 1, -1, 127, -128]),
    "sh": (pa.int16(), [0, 1, -1, 2**15 - 1, -(2**15)]),
    "i": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    "lo": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "f": (pa.float32(), [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 1e-45]),
    "d": (pa.float64(), [0.0, -0.0, 0.1, float("nan"), float("inf"), float("-inf"), 5e-324, 1e308]),
    "st": (pa.string(), ["", "a", "A", "é", "e\u0301", "日本語", "🛫", LONG]),
    "bi": (pa.binary(), [b"", b"\x00", b"\x00\x00", b"\xff", "é".encode(), LONG.encode()]),
    "da": (pa.date32(), DAYS),
    "ts": (pa.timestamp("us", "UTC"), INSTANTS),
    "nt": (pa.timestamp("us"), TIMES),
    "ds": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999.99")]),
    "dl": (pa.decimal128(38, 18), [Decimal("0"), Decimal("-1E-18"), Decimal("12345678901234567890.5")]),
    "iv": (pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-1, microseconds=1)]),
    "x": (
        pa.struct([("p", pa.int32()), ("q", pa.string())]),
        [{"p": 1, "q": ""}, {"p": None, "q": "é"}, {"p": None, "q": None}],
    ),
    "xx": (
        pa.struct([("t", pa.timestamp("us", "UTC")), ("z", pa.struct([("d", pa.float64())]))]),
        [{"t": INSTANTS[0], "z": {"d": -0.0}}, {"t": None, "z": {"d": float("nan")}}, {"t": None, "z": None}],
    ),
    "a": (pa.list_(pa.int32()), [[], [1], [None], [1, None, -1]]),
    "ax": (
        pa.list_(pa.struct([("q", pa.string()), ("a", pa.list_(pa.binary()))])),
        [[], [None], [{"q": "é", "a": [b"", None]}, {"q": None, "a": None}]],
    ),
    "m": (pa.map_(pa.string(), pa.float64()), [[], [("", None)], [("a", 1.0), ("é", float("nan"))]]),
    "no": (pa.int32(), []),
}
"""Columns of every type that travels: their Arrow type and values at the edges; ``no`` is all null."""

GROUP_KEYS = [name for name, (kind, _) in EDGES.items() if not pa.types.is_list(kind) and name != "m"]
HASH_KEYS = [name for name in EDGES if name != "m"]  # Spark refuses to place by a map, too


def every_type(seed: int, rows: int, null_share: float = 0.2) -> pa.Table:
    """``rows`` rows with all the columns of `EDGES` and ``id``, which counts them."""
    random = np.random.default_rng(seed)
    columns = {name: _drawn(random, kind, values, rows, null_share) for name, (kind, values) in EDGES.items()}
    return pa.table({"id": np.arange(rows), **columns})


def data_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """``table`` as a DataFrame; timestamps without a zone stay so."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def _drawn(
    random: np.random.Generator, kind: pa.DataType, values: list[Any], rows: int, null_share: float
) -> pa.Array:
    picked = random.integers(0, max(1, len(values)), rows)
    missing = random.random(rows) < null_share if values else np.ones(rows, bool)
    return pa.array([*values, None], kind).take(pa.array(np.where(missing, len(values), picked)))


def lists(*rdds: RDD[Any] | ShuffleRDD) -> list[list[list[Any]]]:
    """The records of each partition of each RDD, by one job."""
    spark = [rdd.toRDD() if isinstance(rdd, ShuffleRDD) else rdd for rdd in rdds]
    # `glom` first: RDDs that have one partitioner would become one
    found = iter(spark[0].ctx.union([rdd.glom() for rdd in spark]).collect())
    parts = [[next(found) for _ in range(rdd.getNumPartitions())] for rdd in spark]
    assert next(found, None) is None
    return parts


@contextmanager
def confs(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Spark confs for the length of a block."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def rows_in_order(frame: ShuffleFrame | DataFrame) -> list[str]:
    """Every row as ``partition: values``, partition after partition."""
    df = frame.toDF() if isinstance(frame, ShuffleFrame) else frame
    with confs(df.sparkSession, {"spark.sql.adaptive.enabled": "false"}):  # which would join partitions
        table = df.select(sf.spark_partition_id(), "*").toArrow()
    columns = [column.to_pylist() for column in table.columns]
    return [f"{partition}: {values!r}" for partition, *values in zip(*columns, strict=True)]


def differences(ours: ShuffleFrame, plain: DataFrame) -> list[str]:
    """Up to four rows that only one side has in that partition. None is what a test expects.

    ``ours`` is of Python's side, because otherwise Spark would only be compared with itself.
    """
    assert ours._own_rows is not None, ours._crossings
    assert ours.schema.simpleString() == plain.schema.simpleString()
    left, right = Counter(rows_in_order(ours)), Counter(rows_in_order(plain))
    assert left, "nothing was compared"
    return [f"ours {row}" for row in left - right][:2] + [f"plain {row}" for row in right - left][:2]


def assert_handed_to_spark(ours: ShuffleFrame, plain: DataFrame, operator: str) -> None:
    """``ours`` is what Spark makes: ``operator`` refused the call in Python, so the rows went to Spark."""
    assert [(crossing.operator, crossing.to) for crossing in ours._crossings] == [(operator, "Spark")]
    assert ours._own_rows is None
    assert ours.schema == plain.schema
    assert Counter(map(repr, ours.collect())) == Counter(map(repr, plain.collect()))


class OnlyPython:
    """The operators of a frame of Python's side, which raise what they refuse instead of handing the call to
    Spark."""

    def __init__(self, frame: ShuffleFrame) -> None:
        assert frame._own_rows is not None
        self._frame = frame

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(vars(ShuffleFrame)[name].__wrapped__, self._frame)

    def groupBy(self, *columns: Any) -> OnlyPythonGroups:
        return OnlyPythonGroups(self._frame, self._frame.groupBy(*columns))


class OnlyPythonGroups:
    """The same of a frame's groups."""

    def __init__(self, frame: ShuffleFrame, groups: GroupedFrame) -> None:
        self._groups, self._twin = groups._groups(frame), frame._twin

    def agg(self, *exprs: Any) -> Rows:
        return aggregates.aggregate(self._groups.rows, self._groups.keys, self._twin, exprs)

    def cogroup(self, other: OnlyPythonGroups, function: Callable[..., Any], schema: str) -> Rows:
        return cogroup(self._groups, other._groups, CoGroupInArrow, function, schema)


def assert_same_error(call: Callable[[Any], Any], ours: ShuffleFrame, plain: DataFrame) -> None:
    """A wrong call raises the same for both: PySpark's error, and none of this package."""
    assert error_of(call, ours) == error_of(call, plain)


def error_of(call: Callable[[Any], Any], frame: Any) -> tuple[type[Exception], str | None]:
    """The class and the condition of the error that a call raises."""
    with pytest.raises(Exception) as raised:
        call(frame)
    assert not isinstance(raised.value, SortShuffleError)
    condition = raised.value.getCondition() if isinstance(raised.value, PySparkException) else None
    return type(raised.value), condition


def partition_count(frame: ShuffleFrame) -> int:
    return int(frame.toDF().rdd.getNumPartitions())


@dataclass
class Jobs:
    """The Spark jobs of a block, complete after it. ``stages``: of every job, the skipped ones included.
    ``tasks``: of the last stage of every job."""

    ids: list[int] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)


@contextmanager
def jobs(spark: SparkSession) -> Iterator[Jobs]:
    """Counts the jobs that this thread starts in a block."""
    context: Any = spark.sparkContext
    group = uuid.uuid4().hex
    found = Jobs()
    context.setJobGroup(group, "counted")
    try:
        yield found
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    context._jsc.sc().listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    found.ids += sorted(tracker.getJobIdsForGroup(group))
    stages = [tracker.getJobInfo(job).stageIds for job in found.ids]
    found.stages += map(len, stages)
    found.tasks += [tracker.getStageInfo(max(ids)).numTasks for ids in stages]


def counter_of_tasks(spark: SparkSession) -> tuple[Accumulator[int], Callable[[Batches], Batches]]:
    """A `mapInArrow` function that changes nothing, and the number of tasks that have run it."""
    calls = spark.sparkContext.accumulator(0)

    def counted(batches: Batches) -> Batches:
        calls.add(1)
        yield from batches

    return calls, counted


def counter_of_rows(spark: SparkSession) -> tuple[Accumulator[int], Callable[[Frames], Frames]]:
    """A `mapInPandas` function that changes nothing, and the number of rows that have passed it."""
    rows = spark.sparkContext.accumulator(0)

    def counted(frames: Frames) -> Frames:
        for frame in frames:
            rows.add(len(frame))
            yield frame

    return rows, counted


def last_line(rdd: Any) -> str:
    """What the worker's Python said when the job failed."""
    with pytest.raises(PythonException) as raised:
        rdd.count()
    lines = re.findall(r"^[\w.]+(?:Error|Exception|error)\b.*$", str(raised.value), re.MULTILINE)
    return lines[-1]
