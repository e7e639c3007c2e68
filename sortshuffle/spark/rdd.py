"""`ShuffleRDD`: the door for Python objects. The method names of PySpark's RDD, one shuffle engine.

    rdd(sc.parallelize(pairs)).partitionBy(64).mapPartitions(score).toRDD()

A `ShuffleRDD` is an immutable, lazy description (`spark.rdd_plan`). Consecutive functions run in one pass in
one Python worker. In a shuffle records are pickled once, and never pass through the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark import RDD
from pyspark.core.rdd import Partitioner, portable_hash

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.selector import MAX_SUBPARTITIONS
from sortshuffle.spark import rdd_explain as explaining
from sortshuffle.spark import rdd_steps as steps
from sortshuffle.spark.plan import next_number
from sortshuffle.spark.rdd_plan import RddContext, RddOrigin, RecordChain
from sortshuffle.spark.reports import StageTotals, stage_totals


def rdd(rdd: RDD[Any]) -> ShuffleRDD:
    """A `ShuffleRDD` of any RDD of PySpark's; the RDD's own functions run in the same workers.

    Raises `UsageError` for anything else, `OptionError` for a wrong ``spark.sortshuffle.*`` setting.
    """
    if not isinstance(rdd, RDD):
        raise UsageError(f"rdd() takes an RDD of PySpark's, not {type(rdd).__name__}")
    return ShuffleRDD(RecordChain(RddContext.of(rdd.context), RddOrigin(rdd), rdd.partitioner))


class ShuffleRDD:
    """A lazy collection of Python objects in partitions, whose shuffles run on sortshuffle.

    Made by `sortshuffle.rdd`. Every method but the actions (`collect`, `count`, `take`) returns at once and
    leaves this one as it is. What functions are given and may return is what PySpark's methods say.
    """

    def __init__(self, chain: RecordChain) -> None:
        self._chain = chain
        self._rdd: RDD[Any] | None = None
        self._run = next_number()

    # ---- what it is -------------------------------------------------------------------------------

    @property
    def partitioner(self) -> Partitioner | None:
        """By what its pairs are known to be placed, as in PySpark."""
        return self._chain.partitioner

    def getNumPartitions(self) -> int:
        """The number of partitions."""
        return self._chain.origin.partitions

    def explain(self) -> None:
        """Print the stages, what is chained in each, and, after a run, what they did."""
        print(explaining.text(self._chain, self._run, self.stage_totals()))

    def stage_totals(self) -> list[StageTotals]:
        """What the tasks run so far did, per stage, for this RDD and those made from the same source."""
        return stage_totals(self._chain.context.reports.value.items())

    def __repr__(self) -> str:
        return f"ShuffleRDD[{self._chain.origin.describe()}, {self.getNumPartitions()} partitions]"

    def __reduce__(self) -> Any:
        raise UsageError(
            "a ShuffleRDD lives on the driver: a function that runs in the workers cannot use one. Collect or"
            " broadcast what the function needs, or join the two"
        )

    # ---- functions on partitions and records ------------------------------------------------------

    def mapPartitions(
        self, f: Callable[[Iterable[Any]], Iterable[Any]], preservesPartitioning: bool = False
    ) -> ShuffleRDD:
        """Like `RDD.mapPartitions`: ``f`` maps the records of a partition to others."""
        return self._then(steps.MapPartitions(f), preservesPartitioning)

    def mapPartitionsWithIndex(
        self, f: Callable[[int, Iterable[Any]], Iterable[Any]], preservesPartitioning: bool = False
    ) -> ShuffleRDD:
        """Like `RDD.mapPartitionsWithIndex`: ``f`` is given the number of the partition, too."""
        return self._then(steps.MapPartitionsWithIndex(f), preservesPartitioning)

    def map(self, f: Callable[[Any], Any], preservesPartitioning: bool = False) -> ShuffleRDD:
        """Like `RDD.map`."""
        return self._then(steps.Map(f), preservesPartitioning)

    def flatMap(self, f: Callable[[Any], Iterable[Any]], preservesPartitioning: bool = False) -> ShuffleRDD:
        """Like `RDD.flatMap`."""
        return self._then(steps.FlatMap(f), preservesPartitioning)

    def filter(self, f: Callable[[Any], bool]) -> ShuffleRDD:
        """Like `RDD.filter`: the records for which ``f`` is true."""
        return self._then(steps.Filter(f), True)

    def mapValues(self, f: Callable[[Any], Any]) -> ShuffleRDD:
        """Like `RDD.mapValues`: pairs with ``f(value)`` for their values; they stay where they are."""
        return self._then(steps.MapValues(f), True)

    def flatMapValues(self, f: Callable[[Any], Iterable[Any]]) -> ShuffleRDD:
        """Like `RDD.flatMapValues`: a pair for everything in ``f(value)``."""
        return self._then(steps.FlatMapValues(f), True)

    def keys(self) -> ShuffleRDD:
        """Like `RDD.keys`: the first element of each pair."""
        return self._then(steps.Element(0, "keys"), False)

    def values(self) -> ShuffleRDD:
        """Like `RDD.values`: the second element of each pair."""
        return self._then(steps.Element(1, "values"), False)

    def glom(self) -> ShuffleRDD:
        """Like `RDD.glom`: one list for each partition."""
        return self._then(steps.Glom(), False)

    # ---- shuffles ---------------------------------------------------------------------------------

    def partitionBy(
        self, numPartitions: int | None, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> ShuffleRDD:
        """Like `RDD.partitionBy`: each pair into partition ``partitionFunc(key) % numPartitions``.

        None: ``spark.default.parallelism`` if it is set, or else as many as there are. Pairs that are placed
        so already stay where they are, and this is returned as it is. Raises `UsageError` for a number that
        cannot be; the tasks raise what PySpark's raise for records that are no pairs and keys that cannot be
        hashed.
        """
        count = self._default_partitions() if numPartitions is None else numPartitions
        if isinstance(count, bool) or not isinstance(count, int):
            raise UsageError(f"partitionBy() takes a number of partitions, not {type(count).__name__}")
        if not 1 <= count <= MAX_SUBPARTITIONS:
            raise UsageError(f"partitionBy() takes from 1 to {MAX_SUBPARTITIONS} partitions, not {count}")
        if not callable(partitionFunc):
            raise UsageError(f"partitionBy() takes a function of a key, not {type(partitionFunc).__name__}")
        exchanged = self._chain.exchanged(Partitioner(count, partitionFunc))
        return self if exchanged is self._chain else ShuffleRDD(exchanged)

    # ---- results ----------------------------------------------------------------------------------

    def toRDD(self) -> RDD[Any]:
        """An ordinary lazy RDD of the records, in the same partitions, with the same `partitioner`."""
        if self._rdd is None:
            self._rdd = self._chain.rdd(self._run)
        return self._rdd

    def collect(self) -> list[Any]:
        """All records, partition after partition."""
        records: list[Any] = self.toRDD().collect()
        return records

    def count(self) -> int:
        """The number of records, which stay in the workers."""
        return int(self.toRDD().count())

    def take(self, num: int) -> list[Any]:
        """The first ``num`` records, out of as few partitions as are needed."""
        records: list[Any] = self.toRDD().take(num)
        return records

    # ---- inside -----------------------------------------------------------------------------------

    def _then(self, step: steps.RecordStep, preserves_partitioning: bool) -> ShuffleRDD:
        return ShuffleRDD(self._chain.then(step, preserves_partitioning))

    def _default_partitions(self) -> int:
        context = self._chain.context.spark
        if context.getConf().contains("spark.default.parallelism"):
            return int(context.defaultParallelism)
        return self.getNumPartitions()
