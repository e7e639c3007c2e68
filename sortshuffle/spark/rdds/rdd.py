"""`ShuffleRDD`: the entry point for Python objects, with the method names of PySpark's RDD.

    rdd(sc.parallelize(pairs)).partitionBy(64).mapPartitions(score).toRDD()

A `ShuffleRDD` is an immutable, lazy description (`spark.rdds.plan`). Consecutive functions run in one pass in
one Python worker. A shuffle pickles records once, and they never pass through the JVM.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark import RDD, SparkContext
from pyspark.core.rdd import Partitioner, portable_hash
from pyspark.sql import DataFrame

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.selector import MAX_SUBPARTITIONS
from sortshuffle.spark.plan.chain import next_number
from sortshuffle.spark.rdds import explain as explaining
from sortshuffle.spark.rdds import steps
from sortshuffle.spark.rdds.aggregations import Combine, Distinct, Group, PairAggregation, Reduce
from sortshuffle.spark.rdds.holding_steps import CoGroup, GroupValues, Join, MergeValues, SortPairs
from sortshuffle.spark.rdds.plan import RddContext, RddOrigin, RecordChain
from sortshuffle.spark.worker.reports import StageTotals, stage_totals

_SAME: Callable[[Any], Any] = lambda key: key  # noqa: E731 - a default argument, as in PySpark


def rdd(rdd: RDD[Any]) -> ShuffleRDD:
    """Make a `ShuffleRDD` of any RDD of PySpark's, whose own functions run in the same workers.

    Raises `UsageError` for anything else, and `OptionError` for a wrong ``spark.sortshuffle.*`` setting.
    """
    if not isinstance(rdd, RDD):
        raise UsageError(f"rdd() takes an RDD of PySpark's, not {type(rdd).__name__}")
    return ShuffleRDD(RecordChain(RddContext.of(rdd.context), RddOrigin(rdd), rdd.partitioner))


# Methods after which what follows must begin with PySpark's RDD: it keeps its records, or names the resources
# of the tasks that make them
_MARKS_ITS_RDD = frozenset(("cache", "persist", "checkpoint", "localCheckpoint", "withResources"))


def _with_pysparks_methods(cls: type[ShuffleRDD]) -> type[ShuffleRDD]:
    """Give the class the public methods of PySpark's RDD that it lacks, which then run on `toRDD()`."""
    for name in dir(RDD):
        method = inspect.getattr_static(RDD, name)
        if inspect.isfunction(method) and not name.startswith("_") and not hasattr(cls, name):
            setattr(cls, name, _by_pyspark(name, method))
    return cls


def _by_pyspark(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: ShuffleRDD, *args: Any, **kwargs: Any) -> Any:
        own = self.toRDD()
        named = {key: _plain(value) for key, value in kwargs.items()}
        result = getattr(own, name)(*map(_plain, args), **named)
        if name in _MARKS_ITS_RDD:
            self._chain = RecordChain(self._chain.context, RddOrigin(own), own.partitioner)
        if result is own:
            return self
        if isinstance(result, list):
            return [rdd(each) if isinstance(each, RDD) else each for each in result]
        return rdd(result) if isinstance(result, RDD) else result

    call.__doc__ = f"Call PySpark's `RDD.{name}` on the records."
    return call


def _plain(value: Any) -> Any:
    return value.toRDD() if isinstance(value, ShuffleRDD) else value


@_with_pysparks_methods
class ShuffleRDD:
    """A lazy collection of Python objects in partitions, whose shuffles run on sortshuffle.

    Made by `sortshuffle.rdd`. It has all methods of PySpark's RDD: those that are not defined here run on
    `toRDD()`, and RDDs that they return are wrapped again. Every method but the actions returns at once and
    leaves this RDD as it is. Functions receive and may return what they do in PySpark's methods of the same
    names.

    ``numPartitions``, where optional, defaults to ``spark.default.parallelism`` if that is set, or else to
    the number of partitions of all inputs together. Impossible numbers raise `UsageError`. ``partitionFunc``
    maps a key to an int, which is taken modulo the number of partitions. Pairs that are already placed that
    way are not shuffled again. Tasks raise what PySpark's tasks raise for records that are no pairs, and for
    keys that cannot be hashed or compared.
    """

    def __init__(self, chain: RecordChain) -> None:
        self._chain = chain
        self._rdd: RDD[Any] | None = None
        self._run = next_number()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the methods of `_with_pysparks_methods`

    # ---- PySpark's attributes ---------------------------------------------------------------------

    @property
    def context(self) -> SparkContext:
        """The SparkContext."""
        return self._chain.context.spark

    @property
    def ctx(self) -> SparkContext:
        """The SparkContext."""
        return self.context

    @property
    def is_cached(self) -> bool:
        """Whether the records are kept in Spark's cache."""
        return self._has_mark("is_cached")

    @property
    def is_checkpointed(self) -> bool:
        """Whether `checkpoint` was called."""
        return self._has_mark("is_checkpointed")

    @property
    def has_resource_profile(self) -> bool:
        """Whether `withResources` was called."""
        return self._has_mark("has_resource_profile")

    def _has_mark(self, name: str) -> bool:
        origin, own = self._chain.origin, self._rdd
        if own is None and isinstance(origin, RddOrigin) and not self._chain.steps:
            own = origin.source
        return own is not None and bool(getattr(own, name))

    def toDF(self, *args: Any, **kwargs: Any) -> DataFrame:
        """Make a DataFrame of the records, like `RDD.toDF`, which PySpark adds with its first session."""
        records: Any = self.toRDD()
        frame: DataFrame = records.toDF(*args, **kwargs)
        return frame

    # ---- description ------------------------------------------------------------------------------

    @property
    def partitioner(self) -> Partitioner | None:
        """The partitioner that is known to have placed the pairs, as in PySpark; None if unknown."""
        return self._chain.partitioner

    def getNumPartitions(self) -> int:
        """Return the number of partitions."""
        return self._chain.origin.partitions

    def explain(self) -> None:
        """Print the stages, the steps chained in each, and, after a run, the work that each has done."""
        print(explaining.text(self._chain, self._run, self.stage_totals()))

    def stage_totals(self) -> list[StageTotals]:
        """Return the work of all tasks so far, per stage, for this RDD and others made of its sources."""
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
        """Map the records of each partition to others by ``f``, like `RDD.mapPartitions`."""
        return self._then(steps.MapPartitions(f), preservesPartitioning)

    def mapPartitionsWithIndex(
        self, f: Callable[[int, Iterable[Any]], Iterable[Any]], preservesPartitioning: bool = False
    ) -> ShuffleRDD:
        """Map each partition by ``f(partition number, records)``, like `RDD.mapPartitionsWithIndex`."""
        return self._then(steps.MapPartitionsWithIndex(f), preservesPartitioning)

    def map(self, f: Callable[[Any], Any], preservesPartitioning: bool = False) -> ShuffleRDD:
        """Map each record to ``f(record)``, like `RDD.map`."""
        return self._then(steps.Map(f), preservesPartitioning)

    def flatMap(self, f: Callable[[Any], Iterable[Any]], preservesPartitioning: bool = False) -> ShuffleRDD:
        """Map each record to all elements of ``f(record)``, like `RDD.flatMap`."""
        return self._then(steps.FlatMap(f), preservesPartitioning)

    def filter(self, f: Callable[[Any], bool]) -> ShuffleRDD:
        """Keep the records for which ``f`` is true, like `RDD.filter`."""
        return self._then(steps.FilterRecords(f), True)

    def mapValues(self, f: Callable[[Any], Any]) -> ShuffleRDD:
        """Replace each value by ``f(value)`` and keep the placement of pairs, like `RDD.mapValues`."""
        return self._then(steps.MapValues(f), True)

    def flatMapValues(self, f: Callable[[Any], Iterable[Any]]) -> ShuffleRDD:
        """Make a pair of the key and each element of ``f(value)``, like `RDD.flatMapValues`."""
        return self._then(steps.FlatMapValues(f), True)

    def keys(self) -> ShuffleRDD:
        """Return the first element of each pair, like `RDD.keys`."""
        return self._then(steps.Element(0, "keys"), False)

    def values(self) -> ShuffleRDD:
        """Return the second element of each pair, like `RDD.values`."""
        return self._then(steps.Element(1, "values"), False)

    def keyBy(self, f: Callable[[Any], Any]) -> ShuffleRDD:
        """Make pairs of ``f(record)`` and the record, like `RDD.keyBy`."""
        return self._then(steps.KeyBy(f), False)

    def glom(self) -> ShuffleRDD:
        """Collect the records of each partition in one list, like `RDD.glom`."""
        return self._then(steps.Glom(), False)

    # ---- shuffles ---------------------------------------------------------------------------------

    def partitionBy(
        self, numPartitions: int | None, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> ShuffleRDD:
        """Move each pair to partition ``partitionFunc(key) % numPartitions``, like `RDD.partitionBy`."""
        exchanged = self._chain.place_by(self._partitioner("partitionBy", numPartitions, partitionFunc))
        return self if exchanged is self._chain else ShuffleRDD(exchanged)

    def repartition(self, numPartitions: int) -> ShuffleRDD:
        """Spread records of any kind evenly over ``numPartitions``, like `RDD.repartition`.

        If Spark cannot promise that the source has the same records in the same order each time, Spark's own
        `repartition` does this.
        """
        return ShuffleRDD(self._chain.spread(_check_count("repartition", numPartitions)))

    def coalesce(self, numPartitions: int, shuffle: bool = False) -> ShuffleRDD:
        """Use fewer partitions, like `RDD.coalesce`. Without ``shuffle``, Spark combines neighbours."""
        count = _check_count("coalesce", numPartitions)
        return self.repartition(count) if shuffle else self._wrap(self.toRDD().coalesce(count))

    def union(self, other: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Append the partitions of ``other``, by Spark's `RDD.union`. With equal partitioners, both RDDs are
        united partition by partition."""
        return self._wrap(self.toRDD().union(_as_shuffle_rdd(other, "union").toRDD()))

    def __add__(self, other: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Run `union`, like `RDD.__add__`. Raises TypeError for what is no RDD."""
        if not isinstance(other, (ShuffleRDD, RDD)):
            raise TypeError(f"cannot add {type(other).__name__} to a ShuffleRDD")
        return self.union(other)

    def distinct(self, numPartitions: int | None = None) -> ShuffleRDD:
        """Keep one of each set of equal records, like `RDD.distinct`."""
        pairs = self._then(steps.PairWithValue(None, "distinct"), False)
        return pairs._aggregate("distinct", Distinct(), MergeValues(Distinct()), numPartitions).keys()

    # ---- values by key ----------------------------------------------------------------------------

    def combineByKey(
        self,
        createCombiner: Callable[[Any], Any],
        mergeValue: Callable[[Any, Any], Any],
        mergeCombiners: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Combine the values of each key, like `RDD.combineByKey`. Where keys repeat, values are combined
        before the shuffle, too. As in PySpark, a key may get any number of combiners. Each must fit in
        memory."""
        combine = Combine(createCombiner, mergeValue, mergeCombiners)
        return self._aggregate("combineByKey", combine, MergeValues(combine), numPartitions, partitionFunc)

    def aggregateByKey(
        self,
        zeroValue: Any,
        seqFunc: Callable[[Any, Any], Any],
        combFunc: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Run `combineByKey`, beginning with a copy of ``zeroValue``, like `RDD.aggregateByKey`."""

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
        """Run `aggregateByKey` with one function, like `RDD.foldByKey`."""
        return self.aggregateByKey(zeroValue, func, func, numPartitions, partitionFunc)

    def reduceByKey(
        self,
        func: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Reduce the values of each key, two at a time until one is left, like `RDD.reduceByKey`."""
        reduce = Reduce(func)
        return self._aggregate("reduceByKey", reduce, MergeValues(reduce), numPartitions, partitionFunc)

    def groupByKey(
        self, numPartitions: int | None = None, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> ShuffleRDD:
        """Pair each key with an iterable of its values (`ResultIterable`), like `RDD.groupByKey`. The values
        may be more than the memory holds."""
        return self._aggregate("groupByKey", Group(), GroupValues(), numPartitions, partitionFunc)

    def groupBy(
        self,
        f: Callable[[Any], Any],
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        """Run `groupByKey` on pairs of ``f(record)`` and the record, like `RDD.groupBy`."""
        return self._then(steps.KeyBy(f, "groupBy"), False).groupByKey(numPartitions, partitionFunc)

    # ---- order ------------------------------------------------------------------------------------

    def sortByKey(
        self,
        ascending: bool | None = True,
        numPartitions: int | None = None,
        keyfunc: Callable[[Any], Any] = _SAME,
    ) -> ShuffleRDD:
        """Sort pairs by key over all partitions, like `RDD.sortByKey`.

        The sample that decides where partitions begin is PySpark's, but it is drawn when the result is put
        into a plan. With a ``keyfunc`` the result is always sorted by it, unlike PySpark's.
        """
        count = self._count("sortByKey", numPartitions)
        key = None if keyfunc is _SAME else keyfunc
        chain = self._chain
        if count > 1:
            chain = chain.place_by_ranges(count, key, bool(ascending))
        elif self.getNumPartitions() > 1:
            chain = chain.into_one()
        return ShuffleRDD(chain)._then(SortPairs(key, bool(ascending)), True)

    def sortBy(
        self, keyfunc: Callable[[Any], Any], ascending: bool = True, numPartitions: int | None = None
    ) -> ShuffleRDD:
        """Sort records by ``keyfunc(record)``, like `RDD.sortBy`."""
        pairs = self._then(steps.KeyBy(keyfunc, "sortBy"), False)
        return pairs.sortByKey(ascending, numPartitions).values()

    def repartitionAndSortWithinPartitions(
        self,
        numPartitions: int | None = None,
        partitionFunc: Callable[[Any], int] = portable_hash,
        ascending: bool = True,
        keyfunc: Callable[[Any], Any] = _SAME,
    ) -> ShuffleRDD:
        """Run `partitionBy`, then sort each partition by key, like PySpark's method of this name."""
        partitioner = self._partitioner("repartitionAndSortWithinPartitions", numPartitions, partitionFunc)
        chain = self._chain.place_by(partitioner)
        key = None if keyfunc is _SAME else keyfunc
        return ShuffleRDD(chain)._then(SortPairs(key, bool(ascending)), True)

    # ---- several RDDs -----------------------------------------------------------------------------

    def cogroup(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Pair each key with an iterable of its values here and one of its values in ``other`` (a ShuffleRDD
        or an RDD of PySpark's), like `RDD.cogroup`."""
        return self._combine_inputs("cogroup", (other,), numPartitions, CoGroup())

    def groupWith(self, other: ShuffleRDD | RDD[Any], *others: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Run `cogroup` with any number of other RDDs, like `RDD.groupWith`."""
        return self._combine_inputs("groupWith", (other, *others), None, CoGroup())

    def join(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Pair each value of a key with each of its values in ``other``, like `RDD.join`."""
        return self._combine_inputs("join", (other,), numPartitions, Join((False, False)))

    def leftOuterJoin(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Run `join`, with None where ``other`` lacks a key, like `RDD.leftOuterJoin`."""
        return self._combine_inputs("leftOuterJoin", (other,), numPartitions, Join((True, False)))

    def rightOuterJoin(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Run `join`, with None where this RDD lacks a key, like `RDD.rightOuterJoin`."""
        return self._combine_inputs("rightOuterJoin", (other,), numPartitions, Join((False, True)))

    def fullOuterJoin(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Run `join`, with None where either RDD lacks a key, like `RDD.fullOuterJoin`."""
        return self._combine_inputs("fullOuterJoin", (other,), numPartitions, Join((True, True)))

    def subtractByKey(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Keep the pairs whose keys are not in ``other``, like `RDD.subtractByKey`."""
        grouped = self._combine_inputs("subtractByKey", (other,), numPartitions, CoGroup())
        return grouped._then(steps.SubtractKeys(), True)

    def subtract(self, other: ShuffleRDD | RDD[Any], numPartitions: int | None = None) -> ShuffleRDD:
        """Keep the records that are not in ``other``, like `RDD.subtract`."""
        there = _as_shuffle_rdd(other, "subtract")._then(steps.PairWithValue(True, "subtract"), False)
        return (
            self._then(steps.PairWithValue(True, "subtract"), False)
            .subtractByKey(there, numPartitions)
            .keys()
        )

    def intersection(self, other: ShuffleRDD | RDD[Any]) -> ShuffleRDD:
        """Keep the records that are also in ``other``, each once, like `RDD.intersection`."""
        there = _as_shuffle_rdd(other, "intersection")._then(steps.PairWithValue(None, "intersection"), False)
        here = self._then(steps.PairWithValue(None, "intersection"), False)
        return (
            here._combine_inputs("intersection", (there,), None, CoGroup())
            ._then(steps.IntersectKeys(), True)
            .keys()
        )

    # ---- results ----------------------------------------------------------------------------------

    def toRDD(self) -> RDD[Any]:
        """Return the records as an ordinary lazy RDD, in the same partitions, with the same `partitioner`."""
        if self._rdd is None:
            self._rdd = self._chain.rdd(self._run)
        return self._rdd

    def collect(self) -> list[Any]:
        """Return all records, partition after partition."""
        records: list[Any] = self.toRDD().collect()
        return records

    def count(self) -> int:
        """Return the number of records, which stay in the workers."""
        return int(self.toRDD().count())

    def take(self, num: int) -> list[Any]:
        """Return the first ``num`` records, reading as few partitions as needed."""
        records: list[Any] = self.toRDD().take(num)
        return records

    def countByKey(self) -> dict[Any, int]:
        """Count the records of each first element. An action, as in PySpark."""
        return self.map(itemgetter(0)).countByValue()

    def countByValue(self) -> dict[Any, int]:
        """Count the occurrences of each record. An action, as in PySpark."""
        counts: dict[Any, int] = self.toRDD().countByValue()
        return counts

    def reduceByKeyLocally(self, func: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        """Reduce the values of each key to a dict on the driver. An action, as in PySpark."""
        reduced: dict[Any, Any] = self.toRDD().reduceByKeyLocally(func)
        return reduced

    # ---- inside -----------------------------------------------------------------------------------

    def _then(self, step: steps.Step, preserves_partitioning: bool) -> ShuffleRDD:
        return ShuffleRDD(self._chain.then(step, preserves_partitioning))

    def _wrap(self, rdd: RDD[Any]) -> ShuffleRDD:
        return ShuffleRDD(RecordChain(self._chain.context, RddOrigin(rdd), rdd.partitioner))

    def _aggregate(
        self,
        method: str,
        aggregation: PairAggregation,
        merge: steps.HoldingStep,
        count: int | None,
        function: Callable[[Any], int] = portable_hash,
    ) -> ShuffleRDD:
        partitioner = self._partitioner(method, count, function)
        return ShuffleRDD(self._chain.place_by(partitioner, aggregation).then(merge, True))

    def _combine_inputs(
        self, method: str, others: Iterable[ShuffleRDD | RDD[Any]], count: int | None, combine: CoGroup
    ) -> ShuffleRDD:
        inputs = [_as_shuffle_rdd(other, method) for other in others]
        if count is None:
            count = self._default_partitions(*inputs)
        chains = [other._chain for other in inputs]
        return ShuffleRDD(self._chain.together(chains, self._count(method, count), combine))

    def _partitioner(self, method: str, count: int | None, function: Callable[[Any], int]) -> Partitioner:
        if not callable(function):
            raise UsageError(f"{method}() takes a function of a key, not {type(function).__name__}")
        return Partitioner(self._count(method, count), function)

    def _count(self, method: str, count: int | None) -> int:
        return _check_count(method, self._default_partitions() if count is None else count)

    def _default_partitions(self, *others: ShuffleRDD) -> int:
        """Return PySpark's default: without the setting, the number of partitions of a union of all RDDs."""
        context = self._chain.context.spark
        if context.getConf().contains("spark.default.parallelism"):
            return int(context.defaultParallelism)
        count, partitioner = self.getNumPartitions(), self.partitioner
        for other in others:
            if partitioner is None or other.partitioner != partitioner:
                count, partitioner = count + other.getNumPartitions(), None
        return max(1, count)


def _as_shuffle_rdd(other: ShuffleRDD | RDD[Any], method: str) -> ShuffleRDD:
    if isinstance(other, ShuffleRDD):
        return other
    if isinstance(other, RDD):
        return rdd(other)
    raise UsageError(f"{method}() takes a ShuffleRDD or an RDD of PySpark's, not {type(other).__name__}")


def _check_count(method: str, count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"{method}() takes a number of partitions, not {type(count).__name__}")
    if not 1 <= count <= MAX_SUBPARTITIONS:
        raise UsageError(f"{method}() takes from 1 to {MAX_SUBPARTITIONS} partitions, not {count}")
    return count
