"""`ShuffleRDD`: the door for Python objects. The method names of PySpark's RDD, one shuffle engine.

    rdd(sc.parallelize(pairs)).partitionBy(64).mapPartitions(score).toRDD()

A `ShuffleRDD` is an immutable, lazy description (`spark.rdds.plan`). Consecutive functions run in one pass in
one Python worker. In a shuffle records are pickled once, and never pass through the JVM.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from pyspark import RDD
from pyspark.core.rdd import Partitioner, portable_hash

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.selector import MAX_SUBPARTITIONS
from sortshuffle.spark.plan.chain import next_number
from sortshuffle.spark.rdds import explain as explaining
from sortshuffle.spark.rdds import steps
from sortshuffle.spark.rdds.aggregations import Combine, Distinct, Group, PairAggregation, Reduce
from sortshuffle.spark.rdds.holding import CoGroup, GroupValues, Join, MergeValues, SortPairs
from sortshuffle.spark.rdds.key_selectors import to_first
from sortshuffle.spark.rdds.plan import RddContext, RddOrigin, RecordChain
from sortshuffle.spark.worker.reports import StageTotals, stage_totals

_SAME: Callable[[Any], Any] = lambda key: key  # noqa: E731 - a default argument, as in PySpark


def rdd(rdd: RDD[Any]) -> ShuffleRDD:
    """A `ShuffleRDD` of any RDD of PySpark's; the RDD's own functions run in the same workers.

    Raises `UsageError` for anything else, `OptionError` for a wrong ``spark.sortshuffle.*`` setting.
    """
    if not isinstance(rdd, RDD):
        raise UsageError(f"rdd() takes an RDD of PySpark's, not {type(rdd).__name__}")
    return ShuffleRDD(RecordChain(RddContext.of(rdd.context), RddOrigin(rdd), rdd.partitioner))


class ShuffleRDD:
    """A lazy collection of Python objects in partitions, whose shuffles run on sortshuffle.

    Made by `sortshuffle.rdd`. Every method but the actions (`collect`, `count`, `take`, `countByKey`,
    `countByValue`, `reduceByKeyLocally`) returns at once and leaves this one as it is. What functions are
    given and may return is what PySpark's methods say.

    ``numPartitions``, wherever it may be left out: ``spark.default.parallelism`` if it is set, or else as
    many as there are, of several inputs together. `UsageError` for a number that cannot be.
    ``partitionFunc``: a function of a key to an int, which counts modulo the number of partitions. What is
    placed so already is not shuffled again. The tasks raise what PySpark's raise for records that are no
    pairs, keys that cannot be hashed and keys that cannot be compared.
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
        """What the tasks run so far did, per stage, for this RDD and those made from the same sources."""
        return stage_totals(item for each in self._chain.reports() for item in each.value.items())

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
        return self._then(steps.FilterRecords(f), True)

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

    def keyBy(self, f: Callable[[Any], Any]) -> ShuffleRDD:
        """Like `RDD.keyBy`: pairs of ``f(record)`` and the record."""
        return self._then(steps.KeyBy(f), False)

    def glom(self) -> ShuffleRDD:
        """Like `RDD.glom`: one list for each partition."""
        return self._then(steps.Glom(), False)

    # ---- shuffles ---------------------------------------------------------------------------------

    def partitionBy(
        self, numPartitions: int | None, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> ShuffleRDD:
        """Like `RDD.partitionBy`: each pair into partition ``partitionFunc(key) % numPartitions``."""
        exchanged = self._chain.place_by(self._partitioner("partitionBy", numPartitions, partitionFunc))
        return self if exchanged is self._chain else ShuffleRDD(exchanged)

    def repartition(self, numPartitions: int) -> ShuffleRDD:
        """Like `RDD.repartition`: the records, whatever they are, evenly in so many partitions.

        Where Spark cannot promise that the source has the same records in the same order each time, this is
        Spark's own.
        """
        return ShuffleRDD(self._chain.deal(_checked("repartition", numPartitions)))

    def coalesce(self, numPartitions: int, shuffle: bool = False) -> ShuffleRDD:
        """Like `RDD.coalesce`: fewer partitions. Without ``shuffle`` it is Spark's own, of neighbours."""
        count = _checked("coalesce", numPartitions)
        return self.repartition(count) if shuffle else self._derived(self.toRDD().coalesce(count))

    def union(self, other: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Like `RDD.union`: the partitions of both, by Spark's own; of one partitioner, side by side."""
        return self._derived(self.toRDD().union(_of(other, "union").toRDD()))

    def distinct(self, numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.distinct`: of equal records one."""
        pairs = self._then(steps.AsKeys(None, "distinct"), False)
        return pairs._aggregated("distinct", Distinct(), MergeValues(Distinct()), numPartitions).keys()

    # ---- values by key ----------------------------------------------------------------------------

    def combineByKey(
        self,
        createCombiner: Callable[[Any], Any],
        mergeValue: Callable[[Any, Any], Any],
        mergeCombiners: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Like `RDD.combineByKey`. Values are combined before the shuffle where keys come again; how often a
        combiner is created for a key is not fixed, nor is it in PySpark. A combiner must fit in memory."""
        combine = Combine(createCombiner, mergeValue, mergeCombiners)
        return self._aggregated("combineByKey", combine, MergeValues(combine), numPartitions, partitionFunc)

    def aggregateByKey(
        self,
        zeroValue: Any,
        seqFunc: Callable[[Any, Any], Any],
        combFunc: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Like `RDD.aggregateByKey`: `combineByKey`, beginning with a copy of ``zeroValue``."""

        def create(value: Any) -> Any:
            return seqFunc(copy.deepcopy(zeroValue), value)

        return self.combineByKey(create, seqFunc, combFunc, numPartitions, partitionFunc)

    def foldByKey(
        self,
        zeroValue: Any,
        func: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Like `RDD.foldByKey`: `aggregateByKey` with one function."""
        return self.aggregateByKey(zeroValue, func, func, numPartitions, partitionFunc)

    def reduceByKey(
        self,
        func: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Like `RDD.reduceByKey`: the values of each key, two at a time until there is one."""
        reduce = Reduce(func)
        return self._aggregated("reduceByKey", reduce, MergeValues(reduce), numPartitions, partitionFunc)

    def groupByKey(
        self, numPartitions: int | None = None, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> ShuffleRDD:
        """Like `RDD.groupByKey`: each key with an iterable of its values (`ResultIterable`), which may be
        more than the memory holds."""
        return self._aggregated("groupByKey", Group(), GroupValues(), numPartitions, partitionFunc)

    def groupBy(
        self,
        f: Callable[[Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Like `RDD.groupBy`: `groupByKey` of pairs of ``f(record)`` and the record."""
        return self._then(steps.KeyBy(f, "groupBy"), False).groupByKey(numPartitions, partitionFunc)

    # ---- order ------------------------------------------------------------------------------------

    def sortByKey(
        self,
        ascending: bool | None = True,
        numPartitions: int | None = None,
        keyfunc: Callable[[Any], Any] = _SAME,
    ) -> ShuffleRDD:
        """Like `RDD.sortByKey`: pairs in the order of their keys, over all partitions.

        The sample that says where partitions begin is PySpark's, but is drawn when the result is put into a
        plan. With a ``keyfunc`` the result is sorted by it, which PySpark's is not always.
        """
        count = self._count("sortByKey", numPartitions)
        key = None if keyfunc is _SAME else keyfunc
        chain = self._chain
        if count > 1:
            chain = chain.place_by_ranges(count, key, bool(ascending))
        elif self.getNumPartitions() > 1:
            chain = self.partitionBy(1, to_first)._chain
        return ShuffleRDD(chain)._then(SortPairs(key, bool(ascending)), True)

    def sortBy(
        self, keyfunc: Callable[[Any], Any], ascending: bool = True, numPartitions: int | None = None
    ) -> ShuffleRDD:
        """Like `RDD.sortBy`: the records in the order of ``keyfunc(record)``."""
        pairs = self._then(steps.KeyBy(keyfunc, "sortBy"), False)
        return pairs.sortByKey(ascending, numPartitions).values()

    def repartitionAndSortWithinPartitions(
        self,
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
        ascending: bool = True,
        keyfunc: Callable[[Any], Any] = _SAME,
    ) -> ShuffleRDD:
        """Like `RDD.repartitionAndSortWithinPartitions`: `partitionBy`, and each partition sorted by key."""
        partitioner = self._partitioner("repartitionAndSortWithinPartitions", numPartitions, partitionFunc)
        chain = self._chain.place_by(partitioner)
        key = None if keyfunc is _SAME else keyfunc
        return ShuffleRDD(chain)._then(SortPairs(key, bool(ascending)), True)

    # ---- several RDDs -----------------------------------------------------------------------------

    def cogroup(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.cogroup`: each key with an iterable of its values here and one of those there.

        ``other``: a ShuffleRDD or an RDD of PySpark's.
        """
        return self._together("cogroup", (other,), numPartitions, CoGroup())

    def groupWith(self, other: ShuffleRDD | RDD[Any], *others: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Like `RDD.groupWith`: `cogroup` of any number."""
        return self._together("groupWith", (other, *others), None, CoGroup())

    def join(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.join`: for each key each value here with each value there."""
        return self._together("join", (other,), numPartitions, Join((False, False)))

    def leftOuterJoin(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.leftOuterJoin`: `join`, and None for what is not there."""
        return self._together("leftOuterJoin", (other,), numPartitions, Join((True, False)))

    def rightOuterJoin(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.rightOuterJoin`: `join`, and None for what is not here."""
        return self._together("rightOuterJoin", (other,), numPartitions, Join((False, True)))

    def fullOuterJoin(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.fullOuterJoin`: `join`, and None for what is missing on either side."""
        return self._together("fullOuterJoin", (other,), numPartitions, Join((True, True)))

    def subtractByKey(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.subtractByKey`: the pairs here whose keys are not there."""
        grouped = self._together("subtractByKey", (other,), numPartitions, CoGroup())
        return grouped._then(steps.OnlyFirst(), True)

    def subtract(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Like `RDD.subtract`: the records here that are not there."""
        there = _of(other, "subtract")._then(steps.AsKeys(True, "subtract"), False)
        return self._then(steps.AsKeys(True, "subtract"), False).subtractByKey(there, numPartitions).keys()

    def intersection(self, other: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Like `RDD.intersection`: the records that are here and there, each once."""
        there = _of(other, "intersection")._then(steps.AsKeys(None, "intersection"), False)
        here = self._then(steps.AsKeys(None, "intersection"), False)
        return here._together("intersection", (there,), None, CoGroup())._then(steps.InAll(), True).keys()

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

    def countByKey(self) -> dict[Any, int]:
        """How many records there are of each first element. An action, as in PySpark."""
        return self.map(itemgetter(0)).countByValue()

    def countByValue(self) -> dict[Any, int]:
        """How many there are of each record. An action, as in PySpark."""
        counts: dict[Any, int] = self.toRDD().countByValue()
        return counts

    def reduceByKeyLocally(self, func: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        """Like `reduceByKey`, to a dict on the driver. An action, as in PySpark."""
        reduced: dict[Any, Any] = self.toRDD().reduceByKeyLocally(func)
        return reduced

    # ---- inside -----------------------------------------------------------------------------------

    def _then(self, step: steps.Step, preserves_partitioning: bool) -> ShuffleRDD:
        return ShuffleRDD(self._chain.then(step, preserves_partitioning))

    def _derived(self, rdd: RDD[Any]) -> ShuffleRDD:
        """One on an RDD that Spark made of this."""
        return ShuffleRDD(RecordChain(self._chain.context, RddOrigin(rdd), rdd.partitioner))

    def _aggregated(
        self,
        method: str,
        aggregation: PairAggregation,
        merge: steps.HoldingStep,
        count: int | None,
        function: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        partitioner = self._partitioner(method, count, function)
        return ShuffleRDD(self._chain.place_by(partitioner, aggregation).then(merge, True))

    def _together(
        self, method: str, others: Iterable[ShuffleRDD | RDD[Any]], count: int | None, combine: CoGroup
    ) -> ShuffleRDD:
        found = [_of(other, method) for other in others]
        if count is None:
            count = self._default_partitions(*found)
        chains = [other._chain for other in found]
        return ShuffleRDD(self._chain.together(chains, self._count(method, count), combine))

    def _partitioner(self, method: str, count: int | None, function: Callable[[Any], int]) -> Partitioner:
        if not callable(function):
            raise UsageError(f"{method}() takes a function of a key, not {type(function).__name__}")
        return Partitioner(self._count(method, count), function)

    def _count(self, method: str, count: int | None) -> int:
        return _checked(method, self._default_partitions() if count is None else count)

    def _default_partitions(self, *others: ShuffleRDD) -> int:
        """PySpark's: those of the union of all, where the setting says nothing."""
        context = self._chain.context.spark
        if context.getConf().contains("spark.default.parallelism"):
            return int(context.defaultParallelism)
        count, partitioner = self.getNumPartitions(), self.partitioner
        for other in others:
            if partitioner is None or other.partitioner != partitioner:
                count, partitioner = count + other.getNumPartitions(), None
        return max(1, count)


def _of(other: ShuffleRDD | RDD[Any], method: str) -> ShuffleRDD:
    if isinstance(other, ShuffleRDD):
        return other
    if isinstance(other, RDD):
        return rdd(other)
    raise UsageError(f"{method}() takes a ShuffleRDD or an RDD of PySpark's, not {type(other).__name__}")


def _checked(method: str, count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"{method}() takes a number of partitions, not {type(count).__name__}")
    if not 1 <= count <= MAX_SUBPARTITIONS:
        raise UsageError(f"{method}() takes from 1 to {MAX_SUBPARTITIONS} partitions, not {count}")
    return count
