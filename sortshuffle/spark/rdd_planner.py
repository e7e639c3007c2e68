"""The one place where `ShuffleRDD` reaches into what PySpark's RDDs are made of.

The control rows of an exchange go through an ordinary shuffle of Spark's, made as `RDD.partitionBy` makes
its own, with two differences: the rows are bytes, which nobody pickles; and the rows say where they go, while
the JVM is told the user's partition function. So Spark knows of two exchanges by one function that their
partitions match, as it does of two `partitionBy`, and a union of them stays partitioned.

`PairwiseRDD`, `PythonPartitioner` and `PythonRDD.valueOfPair` are what PySpark has used since 0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from pyspark import RDD
from pyspark.core.rdd import Partitioner
from pyspark.serializers import NoOpSerializer, pack_long

from sortshuffle.spark.naming import call_site

ControlRow: TypeAlias = "tuple[int, bytes]"
"""A partition and a row for it."""


def shuffled(
    source: RDD[Any],
    rows: Callable[[int, Iterable[Any]], Iterator[ControlRow]],
    partitioner: Partitioner,
    label: str,
) -> RDD[bytes]:
    """The rows that ``rows`` gives for each partition of ``source``, each in the partition it names. Starts
    no job; pickles ``rows``. ``label``: what Spark's UI calls the stage of ``rows``."""

    def framed(split: int, records: Iterable[Any]) -> Iterator[bytes]:
        for partition, row in rows(split, records):
            yield pack_long(partition)
            yield row

    context = source.context
    jvm: Any = context._jvm
    keyed: Any = source.mapPartitionsWithIndex(framed, preservesPartitioning=True)
    keyed._bypass_serializer = True
    by_partition = jvm.PythonPartitioner(partitioner.numPartitions, id(partitioner.partitionFunc))
    with call_site(context, label):
        pairs = jvm.PairwiseRDD(keyed._jrdd.rdd()).asJavaPairRDD()
        rows_by_partition = jvm.PythonRDD.valueOfPair(pairs.partitionBy(by_partition))
    moved: RDD[bytes] = RDD(rows_by_partition, context, NoOpSerializer())
    moved.partitioner = partitioner
    return moved
