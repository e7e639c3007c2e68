"""The only place where `ShuffleRDD` uses internals of PySpark's RDDs.

The control rows of an exchange go through an ordinary Spark shuffle, made like that of `RDD.partitionBy`,
with two differences. The rows are bytes, and are not pickled. Each row names its partition, while the JVM
partitioner is that of the user's partition function. So Spark knows that the partitions of two exchanges by
one function match, as for two `partitionBy`, and a union of them stays partitioned. The shuffle manager
recognises the shuffled RDD by its name (`spark.control_rows`).

PySpark has used `PairwiseRDD`, `PythonPartitioner` and `PythonRDD.valueOfPair` since 0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import RDD
from pyspark.core.rdd import Partitioner
from pyspark.serializers import NoOpSerializer, pack_long

from sortshuffle.errors import StateError
from sortshuffle.spark.control_rows import MARK
from sortshuffle.spark.rdds.control_rows import ControlRow
from sortshuffle.spark.session.naming import call_site


def shuffle_rows(
    source: RDD[Any],
    rows: Callable[[int, Iterable[Any]], Iterator[ControlRow]],
    partitioner: Partitioner,
    label: str,
) -> RDD[bytes]:
    """Shuffle the rows that ``rows`` yields for the partitions of ``source``. Each row names its partition.
    Starts no job; pickles ``rows``. ``label``: the name of the stage of ``rows`` in Spark's UI."""

    def framed(split: int, records: Iterable[Any]) -> Iterator[bytes]:
        for partition, row in rows(split, records):
            yield pack_long(partition)
            yield row

    context = source.context
    jvm: Any = context._jvm
    # the user's steps run in `framed` and may change keys: with the partitioner of `source`, Spark would take
    # the rows as placed already, and shuffle nothing
    keyed: Any = source.mapPartitionsWithIndex(framed, preservesPartitioning=False)
    keyed._bypass_serializer = True
    by_partition = jvm.PythonPartitioner(partitioner.numPartitions, id(partitioner.partitionFunc))
    with call_site(context, label):
        pairs = jvm.PairwiseRDD(keyed._jrdd.rdd())
        pairs.setName(MARK)
        placed = pairs.asJavaPairRDD().partitionBy(by_partition)
        rows_by_partition = jvm.PythonRDD.valueOfPair(placed)
    moved: RDD[bytes] = RDD(rows_by_partition, context, NoOpSerializer())
    moved.partitioner = partitioner
    return moved


def pass_rows(source: RDD[Any], rows: Callable[[int, Iterable[Any]], Iterator[bytes]]) -> RDD[bytes]:
    """Return an RDD of the rows that ``rows`` yields for each partition of ``source``, in that partition."""
    context = source.context
    kept: Any = source.mapPartitionsWithIndex(rows, preservesPartitioning=True)
    kept._bypass_serializer = True
    made: RDD[bytes] = RDD(kept._jrdd, context, NoOpSerializer())
    made.partitioner = source.partitioner
    return made


def unite(rows: Sequence[RDD[bytes]], count: int) -> RDD[bytes]:
    """Return an RDD whose partition s has the rows of partition s of each RDD, one after the other (Spark's
    `PartitionerAwareUnionRDD`). All RDDs must have one partitioner, of ``count`` partitions."""
    first: Any = rows[0]
    if len(rows) == 1:
        return rows[0]
    context = first.context
    array = context._gateway.new_array(context._jvm.org.apache.spark.api.java.JavaRDD, len(rows))
    for at, each in enumerate(rows):
        array[at] = each._jrdd
    made: RDD[bytes] = RDD(context._jsc.union(array), context, NoOpSerializer())
    made.partitioner = first.partitioner
    if made.getNumPartitions() != count:
        raise StateError(f"Spark made {made.getNumPartitions()} partitions of inputs that have {count} each")
    return made


def is_placed_by(rdd: RDD[Any], partitioner: Partitioner) -> bool:
    """Return whether Spark knows that ``partitioner`` placed an RDD. Spark compares functions by identity;
    PySpark's RDD also accepts an equal function."""
    jvm: Any = rdd.context._jvm
    known = rdd._jrdd.partitioner()
    ours = jvm.PythonPartitioner(partitioner.numPartitions, id(partitioner.partitionFunc))
    return bool(known.isPresent() and known.get().equals(ours))


def is_reproducible(rdd: RDD[Any]) -> bool:
    """Return whether Spark knows that a task of this RDD always gives the same records in the same order."""
    return _level(rdd) == "DETERMINATE"


def jvm_rdd(rdd: RDD[Any]) -> Any:
    """Return the JVM's object of an RDD."""
    jvm: Any = rdd._jrdd
    return jvm.rdd()


def is_indeterminate(rdd: RDD[Any]) -> bool:
    """Return whether Spark assumes that a task of this RDD may give different records each time."""
    return _level(rdd) == "INDETERMINATE"


def _level(rdd: RDD[Any]) -> str:
    level: Any = jvm_rdd(rdd).outputDeterministicLevel()
    return str(level.toString())
