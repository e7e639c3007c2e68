"""`ShuffleRDD` against PySpark's own RDD: the same records in the same partitions, the same methods, the same
errors; and what is ours: laziness, sharing, regions, metrics, files.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from pickle import PicklingError
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from job_process import run_job
from oracle import confs, jobs, last_line, lists
from pyspark import RDD, SparkContext, cloudpickle
from pyspark.core.rdd import portable_hash
from pyspark.errors import PythonException
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle import ShuffleRDD
from sortshuffle.cli.main import main as cli
from sortshuffle.errors import OptionError, UsageError
from sortshuffle.format.buffer import BUFFER_HEADER_BYTES
from sortshuffle.format.header import PayloadKind
from sortshuffle.homes.lifetime import control_files
from sortshuffle.homes.owner import Owner
from sortshuffle.options import MIB
from sortshuffle.spark.rdds.spilling import SpilledPart
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

JOBS = Path(__file__).parents[1] / "jobs"


@pytest.fixture(scope="module")
def sc(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Map outputs of the test alone; memory is tight and nothing is compressed."""
    settings = {
        "spark.sortshuffle.dir": str(tmp_path),
        "spark.sortshuffle.memory": "1m",
        "spark.sortshuffle.codec": "none",
    }
    with confs(spark, settings):
        yield tmp_path


def partitions(*rdds: Any) -> list[list[Counter[str]]]:
    """The records of each partition of each RDD, in any order, by how they print."""
    return [[Counter(map(repr, part)) for part in parts] for parts in lists(*rdds)]


def check_placement(wanted: dict[str, tuple[Any, ...]]) -> None:
    """Both sides have the same pairs in the same partitions, for RDDs and arguments of `partitionBy`."""
    ours = partitions(*(sortshuffle.rdd(rdd).partitionBy(*given) for rdd, *given in wanted.values()))
    plain = partitions(*(rdd.partitionBy(*given) for rdd, *given in wanted.values()))
    assert dict(zip(wanted, ours, strict=True)) == dict(zip(wanted, plain, strict=True))
    assert [len(found) for found in ours] == [count for _, count, *_ in wanted.values()]


# ---- placement ----------------------------------------------------------------------------------------

INTS: list[Any] = [*range(-20, 20), 2**31, -(2**31), 2**61 - 1, 2**61, -(2**61), 2**63, 2**100, True, False]
STRINGS = ["", "a", "é", "日本語", "🛫", "longer than a word of memory", *(f"key {n}" for n in range(50))]
TUPLES = [(), (1,), (1, 2), (2, 1), (None, 1), ("a", (None, ("b", -1))), (2**100, -(2**70)), ((),)]
OTHERS = [1.5, -0.0, float("inf"), 2.0, b"", b"bytes", frozenset({1, 2}), 1 + 2j]
MIXED = [None, *INTS, *STRINGS, *TUPLES, *OTHERS]
KINDS = [INTS, STRINGS, TUPLES, OTHERS, [None] * 5, MIXED]


def test_pairs_are_in_pysparks_partitions(sc: SparkContext) -> None:
    """A map task has keys of one kind; the last one has all."""
    source = sc.parallelize(KINDS, len(KINDS)).flatMap(lambda keys: zip(keys, range(len(keys)), strict=True))
    check_placement({f"into {count}": (source, count) for count in (1, 3, 8)})


def test_a_function_of_the_user_places_as_in_pyspark(sc: SparkContext) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "the key": lambda key: key,
        "large": lambda key: -key * 10**30,
        "bool": lambda key: key > 5,
        "int64": lambda key: np.int64(key),
        "uint16": lambda key: np.uint16(key),
        "hash": hash,
        "abs": abs,
    }
    source = sc.parallelize([(key, str(key)) for key in range(40)], 2)
    check_placement({name: (source, 7, function) for name, function in functions.items()})


def test_placement_is_the_same_for_many_records_of_many_partitions(sc: SparkContext) -> None:
    pairs = [(n * 7919 % 10_007, "x" * (n % 50)) for n in range(30_000)]
    check_placement({"many": (sc.parallelize(pairs, 3), 16)})


def test_empty_partitions_and_empty_rdds_are_shuffled(sc: SparkContext) -> None:
    few, none = sc.parallelize([(1, 1)], 4), sc.parallelize([], 2)
    check_placement({"few": (few, 4), "none": (none, 4), "no partitions": (sc.emptyRDD(), 4)})


def test_whatever_can_be_unpacked_into_two_is_a_pair_and_comes_out_as_a_tuple(sc: SparkContext) -> None:
    pairs = [[1, 2], "ab", {"k": 1, "l": 2}, (3, 4)]
    shuffled = sortshuffle.rdd(sc.parallelize(pairs, 1)).partitionBy(1)

    assert shuffled.collect() == [(1, 2), ("a", "b"), ("k", "l"), (3, 4)]
    assert sc.parallelize(pairs, 1).partitionBy(1).collect() == shuffled.collect()
    one_shot = sc.parallelize([0], 1).mapPartitions(lambda _: (iter((n, n)) for n in range(3)))
    assert sortshuffle.rdd(one_shot).partitionBy(1).collect() == [(0, 0), (1, 1), (2, 2)]


def test_records_come_by_map_task_and_in_their_order(sc: SparkContext) -> None:
    source = sc.parallelize([(n % 3, n) for n in range(20_000)], 4)

    for records in sortshuffle.rdd(source).partitionBy(3).values().glom().collect():
        assert records == sorted(records)


# ---- records of every size and kind -------------------------------------------------------------------


def noise(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_records_above_the_spill_limit_arrive_whole(sc: SparkContext, directory: Path) -> None:
    sizes = [10, 6 * MIB, 0, 7 * MIB, 100]
    source = sc.parallelize(list(enumerate(sizes)), 2).map(lambda pair: (pair[0], noise(pair[1], pair[0])))
    shuffled = sortshuffle.rdd(source).partitionBy(2).mapValues(lambda data: (len(data), hash(data)))

    assert sorted(shuffled.collect()) == sorted(source.mapValues(lambda d: (len(d), hash(d))).collect())
    assert not list(directory.rglob("*.partial"))


def test_more_data_than_memory_goes_into_several_regions(sc: SparkContext, directory: Path) -> None:
    source = sc.parallelize(range(4000), 2).map(lambda n: (n % 11, noise(1000, n)))
    shuffled = sortshuffle.rdd(source).partitionBy(4)

    assert partitions(shuffled) == partitions(source.partitionBy(4))
    written = shuffled.stage_totals()[0].metrics.counts
    assert written["regions"] > 2 * 2  # beside one of data and one of events for each of the two map tasks
    assert written["spills"] == written["regions"] - 2 * 2
    assert written["memory_peak"] <= 2 * MIB


def test_records_that_cannot_be_imported_travel_by_value(sc: SparkContext) -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Local) and self.value == other.value

        def __hash__(self) -> int:
            return hash(self.value)

    source = sc.parallelize(range(10), 2).map(lambda n: (Local(n), lambda: n))
    shuffled = sortshuffle.rdd(source).partitionBy(3).map(lambda pair: (pair[0].value, pair[1]()))

    plain = source.partitionBy(3).map(lambda pair: (pair[0].value, pair[1]()))
    assert partitions(shuffled) == partitions(plain)
    assert sorted(shuffled.collect()) == [(n, n) for n in range(10)]


# ---- chains -------------------------------------------------------------------------------------------


def head(records: Iterable[Any]) -> Iterator[Any]:
    yield next(iter(records), "nothing")


def numbered(split: int, records: Iterable[Any]) -> Iterator[Any]:
    return ((split, record) for record in records)


CHAINS: dict[str, Callable[[Any], Any]] = {
    "mapPartitions": lambda rdd: rdd.mapPartitions(head),
    "mapPartitions that gives a list": lambda rdd: rdd.mapPartitions(list),
    "mapPartitionsWithIndex": lambda rdd: rdd.mapPartitionsWithIndex(numbered),
    "map": lambda rdd: rdd.map(lambda pair: pair[0] * 2),
    "flatMap": lambda rdd: rdd.flatMap(lambda pair: range(pair[0] % 3)),
    "filter": lambda rdd: rdd.filter(lambda pair: pair[0] % 2),
    "mapValues": lambda rdd: rdd.mapValues(len),
    "flatMapValues": lambda rdd: rdd.flatMapValues(list),
    "keys": lambda rdd: rdd.keys(),
    "values": lambda rdd: rdd.values(),
    "glom": lambda rdd: rdd.glom().map(sorted),
    "several": lambda rdd: rdd.mapValues(str.upper).filter(itemgetter(0)).flatMap(list),
}


@pytest.mark.parametrize("before", [True, False], ids=["on a source", "behind a shuffle"])
def test_functions_are_pysparks(sc: SparkContext, before: bool) -> None:
    source = sc.parallelize([(n, "ab" * (n % 4)) for n in range(60)], 2)
    ours: Any = sortshuffle.rdd(source)
    plain: Any = source
    if not before:
        source = source.coalesce(1)  # one map task: then PySpark's order is fixed, too
        ours, plain = sortshuffle.rdd(source).partitionBy(3), source.partitionBy(3)
    found, expected = (lists(*(chain(of) for chain in CHAINS.values())) for of in (ours, plain))
    assert dict(zip(CHAINS, found, strict=True)) == dict(zip(CHAINS, expected, strict=True))


def test_a_chain_is_one_pass_in_one_task(sc: SparkContext, spark: SparkSession) -> None:
    shuffled = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(10)], 2)).partitionBy(2)
    shuffled.count()
    seen = (
        shuffled.map(lambda pair: (pair, os.getpid()))
        .filter(lambda seen: seen[1] == os.getpid())
        .mapPartitions(lambda all: [len([*all])])
    )
    with jobs(spark) as run:
        assert sum(seen.collect()) == 10
    assert run.stages == [2]  # the exchange's, which is skipped, and this


def test_a_shuffle_feeds_the_next_one(sc: SparkContext) -> None:
    source = sc.parallelize([(n, n % 10) for n in range(500)], 3)

    def twice(rdd: Any) -> Any:
        return rdd.partitionBy(4).map(lambda pair: pair[::-1]).partitionBy(3)

    assert partitions(twice(sortshuffle.rdd(source))) == partitions(twice(source))


def test_a_result_may_be_joined_and_coalesced_by_spark(sc: SparkContext) -> None:
    source = sc.parallelize([(n, n) for n in range(100)], 3)
    shuffled = sortshuffle.rdd(source).partitionBy(6).mapPartitionsWithIndex(numbered)

    plain = source.partitionBy(6).mapPartitionsWithIndex(numbered)
    assert partitions(shuffled.toRDD().coalesce(2)) == partitions(plain.coalesce(2))
    assert Counter(map(itemgetter(0), shuffled.toRDD().union(sc.parallelize([(9, 9)])).collect()))[9] == 1
    assert {total.tasks for total in shuffled.stage_totals()} == {3, 6}


# ---- partitioners -------------------------------------------------------------------------------------


def test_pairs_that_are_placed_so_already_stay_where_they_are(sc: SparkContext) -> None:
    source = sc.parallelize([(n, n) for n in range(10)], 3)
    shuffled = sortshuffle.rdd(source).partitionBy(4)

    assert shuffled.partitionBy(4) is shuffled
    kept = shuffled.mapValues(str).filter(bool).flatMapValues(list).mapPartitions(list, True)
    assert kept.partitionBy(4) is kept
    assert shuffled.partitionBy(5) is not shuffled
    assert shuffled.partitionBy(4, hash) is not shuffled
    placed_by_spark = sortshuffle.rdd(source.partitionBy(4))
    assert placed_by_spark.partitionBy(4) is placed_by_spark


METHODS: list[Callable[[Any], Any]] = [
    lambda rdd: rdd.map(lambda pair: pair),
    lambda rdd: rdd.map(lambda pair: pair, True),
    lambda rdd: rdd.flatMap(lambda pair: [pair]),
    lambda rdd: rdd.flatMap(lambda pair: [pair], preservesPartitioning=True),
    lambda rdd: rdd.filter(bool),
    lambda rdd: rdd.mapValues(str),
    lambda rdd: rdd.flatMapValues(str),
    lambda rdd: rdd.mapPartitions(list),
    lambda rdd: rdd.mapPartitions(list, preservesPartitioning=True),
    lambda rdd: rdd.mapPartitionsWithIndex(numbered),
    lambda rdd: rdd.mapPartitionsWithIndex(numbered, True),
    lambda rdd: rdd.keys(),
    lambda rdd: rdd.values(),
    lambda rdd: rdd.glom(),
    lambda rdd: rdd.map(str).mapPartitions(list, True),
]


def test_the_same_methods_keep_the_partitioner_as_in_pyspark(sc: SparkContext) -> None:
    source = sc.parallelize([(n, n) for n in range(10)], 3)
    shuffled, by_spark = sortshuffle.rdd(source).partitionBy(4), source.partitionBy(4)
    for number, method in enumerate(METHODS):
        ours, plain = method(shuffled), method(by_spark)
        assert (number, ours.partitioner) == (number, plain.partitioner)
        assert (number, ours.toRDD().partitioner) == (number, plain.partitioner)
        assert ours.getNumPartitions() == plain.getNumPartitions() == 4


def test_spark_knows_that_partitions_of_the_same_function_match(sc: SparkContext) -> None:
    source = sc.parallelize([(n, n) for n in range(10)], 3)

    def other(key: Any) -> int:
        return int(key)

    def union(a: Any, b: Any) -> tuple[int, bool]:
        union = a.union(b)
        return union.getNumPartitions(), union.partitioner is not None

    for functions in [(portable_hash, portable_hash), (portable_hash, other), (other, other)]:
        plain = (source.partitionBy(4, function) for function in functions)
        ours = (sortshuffle.rdd(source).partitionBy(4, function).toRDD() for function in functions)
        assert union(*ours) == union(*plain)
    shuffled = sortshuffle.rdd(source).partitionBy(4).toRDD()
    assert shuffled.partitionBy(4) is shuffled
    assert sorted(shuffled.join(source.partitionBy(4)).collect()) == [(n, (n, n)) for n in range(10)]


def test_no_number_means_sparks_default(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    source = sc.parallelize([(1, 1)], 3)
    assert sc.defaultParallelism == 2
    assert sortshuffle.rdd(source).partitionBy(None).getNumPartitions() == 2
    assert source.partitionBy(None).getNumPartitions() == 2


# ---- lazy and shared ----------------------------------------------------------------------------------


def test_no_job_runs_before_an_action(sc: SparkContext, spark: SparkSession) -> None:
    sortshuffle.rdd(sc.parallelize([0], 1)).map(str).count()  # workers are asked once for what they have
    with jobs(spark) as none:
        shuffled = sortshuffle.rdd(sc.parallelize([(1, 1)], 2)).partitionBy(2).mapValues(str)
        shuffled.getNumPartitions()
        repr(shuffled)
        rdd = shuffled.partitionBy(3).toRDD()
    assert none.ids == []
    with jobs(spark) as one:
        assert rdd.count() == 1
    assert len(one.ids) == 1


def test_what_is_upstream_of_an_exchange_runs_once(sc: SparkContext) -> None:
    runs = sc.accumulator(0)

    def counted(pair: Any) -> Any:
        runs.add(1)
        return pair

    shuffled = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(10)], 2)).map(counted).partitionBy(3)
    assert shuffled.count() == 10
    assert len(shuffled.collect()) == 10
    assert shuffled.keys().count() == 10
    assert shuffled.mapValues(str).map(lambda pair: pair[::-1]).partitionBy(2).count() == 10
    assert runs.value == 10


def test_take_reads_only_the_partitions_that_it_needs(sc: SparkContext) -> None:
    shuffled = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(100)], 2)).partitionBy(4)

    assert shuffled.take(3) == [(0, 0), (4, 4), (8, 8)]
    assert [total.tasks for total in shuffled.stage_totals()] == [2, 1]


def test_an_rdd_without_functions_is_the_source_itself(sc: SparkContext) -> None:
    source = sc.parallelize([1])
    assert sortshuffle.rdd(source).toRDD() is source


def test_every_public_method_of_pysparks_is_there() -> None:
    wanted = {name for name in dir(RDD) if not name.startswith("_")}
    assert wanted - set(dir(ShuffleRDD)) == set()


def test_pysparks_attributes_are_there(sc: SparkContext, spark: SparkSession) -> None:
    ours, plain = sortshuffle.rdd(sc.parallelize([(1, 2)])).partitionBy(2), sc.parallelize([(1, 2)])
    public = {name for name in vars(plain) if not name.startswith("_")}
    assert {name for name in public if not hasattr(ours, name)} == set()
    assert ours.context is ours.ctx is sc
    assert (ours.is_cached, ours.is_checkpointed) == (False, False)
    assert ours.cache().is_cached
    assert sortshuffle.rdd(plain.cache()).is_cached
    assert ours.toDF(["a", "b"]).collect() == [(1, 2)]
    spark.createDataFrame([], "a int")  # toDF has made another session the active one


def test_what_follows_a_checkpoint_begins_with_it(sc: SparkContext, tmp_path: Path) -> None:
    sc.setCheckpointDir(str(tmp_path))
    calls = sc.accumulator(0)

    def counted(pair: Any) -> Any:
        calls.add(1)
        return pair

    pairs = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(5)], 1)).map(counted)
    pairs.checkpoint()
    assert pairs.count() == 5
    before = calls.value
    assert pairs.values().count() == 5
    assert calls.value == before


def pairs_of(number: int, records: Iterator[Any]) -> Iterator[Any]:
    return ((number, record) for record in records)


def test_methods_that_only_pyspark_has_run_on_the_records(sc: SparkContext) -> None:
    r: Any = sortshuffle.rdd(sc.parallelize([(n, n % 3) for n in range(10)], 2)).partitionBy(2)
    found_and_expected: dict[str, tuple[Any, Any]] = {
        "first": (r.first(), (0, 0)),
        "reduce": (r.keys().reduce(max), 9),
        "collectAsMap": (r.collectAsMap(), {n: n % 3 for n in range(10)}),
        "lookup": (r.map(tuple).lookup(3), [0]),
        "isEmpty": (r.isEmpty(), False),
        "sum": (r.values().sum(), 9),
        "top": (r.top(2), [(9, 0), (8, 2)]),
        "an RDD": (r.zipWithIndex().map(itemgetter(1)).collect(), [*range(10)]),
        "another of the same kind": (r.cartesian(r).count(), 100),
        "several RDDs": (sum(each.count() for each in r.randomSplit([1, 2], 5)), 10),
        "a shuffle after it": (
            sorted(r.mapPartitionsWithIndex(pairs_of).reduceByKey(max).collect()),
            [(0, (8, 2)), (1, (9, 0))],
        ),
    }
    assert {name: both for name, both in found_and_expected.items() if both[0] != both[1]} == {}


def test_rdds_of_methods_that_only_pyspark_has_are_wrapped(sc: SparkContext, tmp_path: Path) -> None:
    shuffled = sortshuffle.rdd(sc.parallelize([(1, 2)])).partitionBy(2)
    assert isinstance(shuffled.zipWithIndex(), ShuffleRDD)
    assert shuffled.setName("named") is shuffled
    shuffled.values().saveAsTextFile(str(tmp_path / "text"))
    assert sc.textFile(str(tmp_path / "text")).collect() == ["2"]


def test_what_follows_kept_records_reads_them(sc: SparkContext) -> None:
    counted = sc.accumulator(0)

    def count(record: Any) -> Any:
        counted.add(1)
        return record

    kept = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(5)], 2)).map(count).cache()
    try:
        assert kept.count() == kept.partitionBy(2).count() == kept.values().count() == 5
        assert counted.value == 5
    finally:
        kept.unpersist()


def profiles_of(rdd: Any) -> list[str]:
    """The resource profiles of a JVM RDD and of those it reads without a shuffle."""
    own = rdd.getResourceProfile()
    narrow = [rdd.dependencies().apply(at) for at in range(rdd.dependencies().size())]
    return [
        *([] if own is None else [own.toString()]),
        *(each for of in narrow for each in profiles_of(of.rdd())),
    ]


def test_what_follows_named_resources_has_them(sc: SparkContext) -> None:
    context: Any = sc
    of_all = context._jsc.sc().resourceProfileManager().defaultResourceProfile()  # local Spark has no others
    profile = ResourceProfile(of_all)
    source = sc.parallelize([(n, n) for n in range(5)], 2)
    ours, plain = (
        each.map(tuple).withResources(profile).mapValues(str) for each in (sortshuffle.rdd(source), source)
    )
    found, expected = profiles_of(ours.toRDD()._jrdd.rdd()), profiles_of(plain._jrdd.rdd())
    assert found == expected == [of_all.toString()]
    assert ours.collect() == plain.collect()


# ---- errors -------------------------------------------------------------------------------------------


def gives(value: Any) -> Callable[[Any], Any]:
    return lambda key: value


def stops(_: Any) -> Any:
    raise StopIteration("too early")


WRONG: dict[str, Callable[[Any], Any]] = {
    "no pair": lambda rdd: rdd.keys().partitionBy(2),
    "three": lambda rdd: rdd.map(lambda pair: (*pair, 1)).partitionBy(2),
    "one": lambda rdd: rdd.map(lambda pair: (1,)).partitionBy(2),
    "unhashable key": lambda rdd: rdd.map(lambda pair: ([1], 1)).partitionBy(2),
    "float": lambda rdd: rdd.partitionBy(2, gives(1.0)),
    "None": lambda rdd: rdd.partitionBy(2, gives(None)),
    "fails": lambda rdd: rdd.partitionBy(2, lambda key: 1 // 0),
    "map stops": lambda rdd: rdd.map(stops).partitionBy(2),
    "flatMapValues stops": lambda rdd: rdd.flatMapValues(stops).partitionBy(2),
    "mapPartitions gives None": lambda rdd: rdd.mapPartitions(gives(None)).partitionBy(2),
    "not picklable": lambda rdd: rdd.mapValues(lambda _: sys._getframe()).partitionBy(2),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_pyspark_refuses_is_refused_with_the_same_words(
    sc: SparkContext, wrong: Callable[[Any], Any]
) -> None:
    source = sc.parallelize([(n, "ab") for n in range(10)], 1)  # one task, as each that fails costs a worker
    assert last_line(wrong(sortshuffle.rdd(source))) == last_line(wrong(source))


def with_hashes_of_its_own(records: Iterable[Any]) -> Iterator[Any]:
    """As in a worker that was started without Spark's seed; for as long as records are taken."""
    seed = os.environ.pop("PYTHONHASHSEED")
    try:
        yield from records
    finally:
        os.environ["PYTHONHASHSEED"] = seed


def test_workers_with_hashes_of_their_own_are_refused_as_in_pyspark(sc: SparkContext) -> None:
    source = sc.parallelize([("a", 1), ("b", 1)], 1).mapPartitions(with_hashes_of_its_own)
    ours, plain = last_line(sortshuffle.rdd(source).partitionBy(2)), last_line(source.partitionBy(2))

    assert "PYTHON_HASH_SEED_NOT_SET" in plain
    assert ours == plain


def test_wrong_calls_are_refused_on_the_driver(sc: SparkContext, spark: SparkSession) -> None:
    for wrong in (5, spark.range(1), [1], sortshuffle.rdd(sc.parallelize([1]))):
        with pytest.raises(UsageError, match="takes an RDD"):
            sortshuffle.rdd(wrong)  # type: ignore[arg-type]
    shuffled: Any = sortshuffle.rdd(sc.parallelize([(1, 1)]))
    for count, what in [(0, "not 0"), (-1, "not -1"), (2**31, "not 2147483648"), ("3", "not str")]:
        with pytest.raises(UsageError, match=what):
            shuffled.partitionBy(count)
    with pytest.raises(UsageError, match="not bool"):
        shuffled.partitionBy(True)
    with pytest.raises(UsageError, match="function of a key, not int"):
        shuffled.partitionBy(2, 3)
    with confs(spark, {"spark.sortshuffle.codec": "zip"}), pytest.raises(OptionError, match="codec"):
        sortshuffle.rdd(sc.parallelize([1]))


def test_one_that_is_used_inside_a_function_is_refused(sc: SparkContext) -> None:
    inner = sortshuffle.rdd(sc.parallelize([1]))
    with pytest.raises(PicklingError, match="lives on the driver"):
        sortshuffle.rdd(sc.parallelize([1])).map(lambda record: (record, inner.count())).count()


def test_an_error_of_the_user_shows_the_users_frames(sc: SparkContext) -> None:
    def on_purpose(pair: Any) -> Any:
        raise KeyError("on purpose")

    shuffled = sortshuffle.rdd(sc.parallelize([(1, 1)], 1)).map(on_purpose).partitionBy(2)
    with pytest.raises(PythonException, match="on_purpose") as raised:
        shuffled.count()
    assert "KeyError: 'on purpose'" in str(raised.value)


def test_a_lost_file_is_named_and_sparks_control_files_go_with_it(sc: SparkContext, directory: Path) -> None:
    shuffled = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(10)], 1)).partitionBy(1)
    assert shuffled.count() == 10
    lost = next(directory.rglob("*.data"))
    owner = Owner.read(str(lost.parent))
    assert owner is not None
    attempt = PartitionedFile(str(lost).removesuffix(".data")).attempt
    assert attempt is not None
    assert list(control_files(owner.local_directories, attempt))
    lost.unlink()

    with pytest.raises(PythonException, match="MissingDataError") as raised:
        shuffled.count()
    assert lost.name in str(raised.value)
    assert "The task that wrote it must run again" in str(raised.value)
    assert not list(control_files(owner.local_directories, attempt))


def shuffled_and_damaged(
    sc: SparkContext, directory: Path, partitions: int = 1, damaged: int = 0
) -> tuple[ShuffleRDD, Path]:
    """Return a shuffled RDD of ten pairs, and its data file, with a flipped bit in a partition's rows."""
    shuffled = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(10)], 1)).partitionBy(partitions)
    assert shuffled.count() == 10
    file = next(directory.rglob("*.data"))
    content = bytearray(file.read_bytes())
    index = read_index(PartitionedFile(str(file).removesuffix(".data")))
    content[extents_of(index, damaged)[0].offset + BUFFER_HEADER_BYTES] ^= 1
    file.write_bytes(content)
    return shuffled, file


def test_a_flipped_bit_is_named(sc: SparkContext, directory: Path) -> None:
    shuffled, file = shuffled_and_damaged(sc, directory)
    with pytest.raises(PythonException, match="CorruptDataError") as raised:
        shuffled.count()
    assert file.name in str(raised.value)


def swallowing(records: Iterable[Any]) -> Iterator[Any]:
    """A function that takes an error of its input for the end of its input."""
    try:
        yield from records
    except Exception:
        return


def wrapping(records: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from records
    except Exception as error:
        raise LookupError("by the user") from error


# What becomes of a shuffled RDD with a damaged file, and of an RDD of PySpark's
HIDDEN: dict[str, Callable[[Any, RDD[Any]], Any]] = {
    "mapPartitions": lambda rdd, _: rdd.mapPartitions(swallowing),
    "behind a merge": lambda rdd, _: rdd.groupByKey(1).mapPartitions(swallowing).values(),
    "before a shuffle": lambda rdd, _: (
        rdd.mapPartitionsWithIndex(lambda _, records: swallowing(records)).mapPartitions(list).partitionBy(3)
    ),
    "a side of a join": lambda rdd, other: rdd.mapPartitions(swallowing, True).fullOuterJoin(other, 1),
    "another error": lambda rdd, _: rdd.mapPartitions(wrapping).map(str),
    "PySpark's, before a stage": lambda rdd, _: sortshuffle.rdd(
        rdd.toRDD().mapPartitions(swallowing)
    ).partitionBy(3),
}


@pytest.fixture
def damaged(sc: SparkContext, directory: Path) -> ShuffleRDD:
    """A shuffled RDD of pairs with a damaged file. A single task reads it: the first that fails makes Spark
    write the file again, and a second one might wait for that and succeed."""
    return shuffled_and_damaged(sc, directory)[0]


@pytest.mark.parametrize("hide", HIDDEN.values(), ids=HIDDEN)
def test_errors_of_the_input_cannot_be_swallowed(
    sc: SparkContext, damaged: ShuffleRDD, hide: Callable[[Any, RDD[Any]], Any]
) -> None:
    other = sc.parallelize([(n, "x") for n in range(5)], 1)
    assert "CorruptDataError" in last_line(hide(damaged, other))


def read_all(records: Iterable[Any]) -> None:
    list(swallowing(records))


@pytest.mark.parametrize(
    "run",
    [
        lambda rdd: rdd.foreachPartition(read_all),
        lambda rdd: rdd.toRDD().mapPartitions(swallowing).collect(),
    ],
    ids=["foreachPartition", "mapPartitions"],
)
def test_a_task_whose_last_function_swallows_an_error_of_ours_fails(
    damaged: ShuffleRDD, run: Callable[[Any], Any]
) -> None:
    """PySpark's functions run behind the stage, so it is the worker that fails at its end."""
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        run(damaged)
    assert damaged.count() == 10  # the file was lost for Spark, too, which made it again


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_task_that_reads_several_partitions_fails_for_each(
    sc: SparkContext, directory: Path, damaged: int
) -> None:
    """Spark runs the stage in one worker for each of the partitions that it has coalesced."""
    shuffled, _ = shuffled_and_damaged(sc, directory, partitions=2, damaged=damaged)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        shuffled.toRDD().mapPartitions(swallowing).coalesce(1).collect()
    assert shuffled.count() == 10


def unreadable(_: SpilledPart) -> Any:
    raise OSError("the group cannot be read")


def counting(groups: Iterable[tuple[Any, Iterable[Any]]]) -> Iterator[tuple[Any, int]]:
    """Counts the values of groups whose file cannot be read, and takes the error for the end of a group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpilledPart, "chunks", unreadable)
        for key, group in groups:
            yield key, sum(1 for _ in swallowing(group))


def counting_at_the_end(groups: Iterable[tuple[Any, Iterable[Any]]]) -> Iterator[tuple[Any, int]]:
    """Reads groups after the stage that made them has ended."""
    return counting(list(groups))


def test_errors_of_a_group_on_disk_cannot_be_swallowed(sc: SparkContext, directory: Path) -> None:
    source = sc.parallelize(range(20_000), 1).map(lambda n: ("hot", f"{n:0100}"))
    grouped = sortshuffle.rdd(source).groupByKey(1)
    while_it_runs = grouped.toRDD().mapPartitions(counting)
    in_the_chain = grouped.mapPartitions(counting_at_the_end)
    for told_by_the_stage in (while_it_runs, in_the_chain):
        assert last_line(told_by_the_stage) == "OSError: the group cannot be read"
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        grouped.toRDD().mapPartitions(counting_at_the_end).collect()
    assert grouped.mapValues(len).collect() == [("hot", 20_000)]


def fails_in_a_handler(*_: Any) -> Any:
    try:
        return {}["missing"]
    except KeyError:
        return 1 // 0


@pytest.mark.parametrize("hide", [swallowing, wrapping])
def test_errors_of_the_user_in_a_merge_cannot_be_hidden(
    sc: SparkContext, hide: Callable[[Iterable[Any]], Iterator[Any]]
) -> None:
    source = sc.parallelize([(0, n) for n in range(3)], 1)
    merged = sortshuffle.rdd(source).partitionBy(1).reduceByKey(fails_in_a_handler, 1).mapPartitions(hide)
    with pytest.raises(PythonException, match="ZeroDivisionError") as raised:
        merged.count()
    assert "KeyError: 'missing'" in str(raised.value)  # the error keeps its context
    assert "by the user" not in str(raised.value)


def test_errors_of_the_user_may_be_swallowed_as_in_pyspark(sc: SparkContext) -> None:
    source = sc.parallelize([(n, 1 // (n - 7)) if n != 7 else (n, None) for n in range(10)], 1)
    fails = source.map(lambda pair: (pair[0], pair[1] + 1))
    ours = sortshuffle.rdd(source).map(lambda pair: (pair[0], pair[1] + 1)).mapPartitions(swallowing)
    assert ours.collect() == fails.mapPartitions(swallowing).collect()
    assert ours.count() == 7


# ---- what is written, and what is told of it ----------------------------------------------------------


def outputs(directory: Path) -> list[PartitionedFile]:
    return [PartitionedFile(str(path).removesuffix(".index")) for path in directory.rglob("*.index")]


def test_a_task_without_records_writes_no_files(sc: SparkContext, directory: Path) -> None:
    assert sortshuffle.rdd(sc.parallelize([(1, 1)], 4)).partitionBy(3).count() == 1
    (file,) = outputs(directory)
    index = read_index(file)
    assert index.header.payload_kind is PayloadKind.PICKLE
    assert index.entries["records"].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_figures_are_those_of_the_files(sc: SparkContext, directory: Path) -> None:
    source = sc.parallelize([(n, "x" * 100) for n in range(1000)], 4)
    shuffled = sortshuffle.rdd(source).filter(lambda pair: pair[0] % 2).partitionBy(5)
    kept = shuffled.filter(lambda pair: pair[0] < 100)
    assert kept.count() == 50

    written, read = kept.stage_totals()
    files = outputs(directory)
    assert (written.tasks, read.tasks) == (4, 5)
    assert written.directories == {os.path.dirname(file.base) for file in files}
    counts = written.metrics.counts
    assert (counts["rows_in"], counts["rows_out"], counts["rows_written"]) == (1000, 500, 500)
    assert counts["bytes_written"] == sum(os.path.getsize(file.data_path) for file in files)
    assert counts["files"] == 2 * len(files) == 8
    assert counts["regions"] == sum(read_index(file).regions for file in files)
    counts = read.metrics.counts
    assert (counts["rows_read"], counts["rows_in"], counts["rows_out"]) == (500, 500, 50)
    assert set(written.metrics.seconds) >= {"user", "encode", "write"}
    assert all(seconds >= 0 for seconds in written.metrics.seconds.values())


def test_the_plan_names_its_stages_and_what_they_did(
    sc: SparkContext, capsys: pytest.CaptureFixture[str]
) -> None:
    shuffled = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(100)], 2)).filter(bool).partitionBy(3)
    result = shuffled.mapValues(str)
    exchange = next(iter(result._chain.exchanges()))
    result.explain()
    before = capsys.readouterr().out
    assert before == (
        f"Stage {exchange.number}, writes an exchange\n"
        "    records of RDD\n"
        "    filter(bool)\n"
        f"    -> exchange {exchange.number}: portable_hash into 3 subpartitions\n"
        f"Result stage {result._run}\n"
        f"    exchange {exchange.number}\n"
        "    mapValues(str)\n"
        "    -> records\n"
    )
    assert result.count() == 100
    result.explain()
    after = capsys.readouterr().out.splitlines()
    assert after[4].startswith("    2 tasks, ")
    assert "100 records in, 100 out" in after[4]
    assert re.fullmatch(r"    wrote [\d.]+ KiB in \d+ buffers, 4 regions, 0 spills, 4 files", after[5])
    assert set(before.splitlines()) < set(after)


def test_sparks_ui_calls_the_map_stage_by_the_exchange(sc: SparkContext) -> None:
    shuffled = sortshuffle.rdd(sc.parallelize([(1, 1)], 2)).partitionBy(3)
    assert shuffled.count() == 1
    stages: Any = (
        sc._jsc.sc()
        .statusStore()
        .stageList(
            None, False, False, sc._gateway.new_array(sc._jvm.double, 0), sc._jvm.java.util.ArrayList()
        )
    )
    names = [stages.apply(at).name() for at in range(stages.size())]
    assert f"sortshuffle {next(iter(shuffled._chain.exchanges())).describe()}" in names


def test_a_kept_output_is_dumped_and_verified(sc: SparkContext, spark: SparkSession, directory: Path) -> None:
    with confs(spark, {"spark.sortshuffle.keep": "true"}):
        assert sortshuffle.rdd(sc.parallelize([(n, n) for n in range(100)], 2)).partitionBy(3).count() == 100
    for file in outputs(directory):
        dumped = CliRunner().invoke(cli, ["dump", file.index_path])
        assert dumped.exit_code == 0, dumped.output
        assert "PICKLE" in dumped.output.upper()
        verified = CliRunner().invoke(cli, ["verify", file.data_path])
        assert (verified.exit_code, "FAULT" in verified.output) == (0, False)


def test_forgotten_exchanges_go_when_the_driver_has_collected_garbage(tmp_path: Path) -> None:
    found = run_job(JOBS / "forget_rdd.py", str(tmp_path), "60")

    assert len(found["kept"]) == 2
    assert len(found["made"]) == 2 + 2 * 20
    assert found["left"] == found["kept"]


def test_a_lost_executor_costs_exactly_its_own_map_tasks(tmp_path: Path) -> None:
    found = run_job(JOBS / "lose_rdd.py", str(tmp_path))

    assert found["pairs"] == 6000
    assert found["total"] == sum(range(6000))
    assert found["victims"], "the executor that was killed had run no map task"
    assert found["runs"] == {str(p): 2 if p in found["victims"] else 1 for p in range(6)}
