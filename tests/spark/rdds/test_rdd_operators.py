"""Every operator of `ShuffleRDD` that shuffles, against PySpark's own RDD: the same records in the same
partitions, whatever keys and values are and however little memory there is; and what is not shuffled twice.
"""

from __future__ import annotations

import operator
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import confs, jobs, last_line, lists
from pyspark import RDD, SparkContext, cloudpickle
from pyspark.core.rdd import portable_hash
from pyspark.resultiterable import ResultIterable
from pyspark.sql import Row, SparkSession

import sortshuffle
from sortshuffle import ShuffleRDD
from sortshuffle.errors import UsageError

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEYS: list[Any] = [None, 0, -1, 5, 2**70, True, 1.5, float("inf"), "", "a", "é", b"a", (1, None), ("a", (2,))]
KEYS += [*range(20, 60), *(f"key {n}" for n in range(40)), *((n, str(n)) for n in range(10)), frozenset({1})]
PAIRS = [(KEYS[n * 31 % len(KEYS)], n) for n in range(700)]
OTHERS = [(KEYS[n * 17 % len(KEYS)], f"other {n}") for n in range(60)] + [("only here", "x"), (777, "y")]


@pytest.fixture(scope="module")
def sc(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@pytest.fixture(scope="module")
def pairs(sc: SparkContext) -> RDD[Any]:
    return sc.parallelize(PAIRS, 2)


@pytest.fixture(scope="module")
def others(sc: SparkContext) -> RDD[Any]:
    return sc.parallelize(OTHERS, 1)


def plain(record: Any) -> Any:
    """A record, whose iterables of values are sorted lists."""
    if isinstance(record, ResultIterable):
        return sorted(record, key=repr)
    if isinstance(record, tuple):
        return tuple(map(plain, record))
    return record


def placed(*rdds: Any) -> list[list[Counter[str]]]:
    """The records of each partition of each RDD, in any order, by how they print."""
    return [[Counter(repr(plain(each)) for each in part) for part in parts] for parts in lists(*rdds)]


def low(key: Any) -> int:
    return len(repr(key))


def add(a: Any, b: Any) -> Any:
    return a + b


def with_list(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


BY_KEY: dict[str, Callable[[Any], Any]] = {
    "groupByKey": lambda rdd: rdd.groupByKey(),
    "groupByKey placed": lambda rdd: rdd.groupByKey(7, low),
    "groupBy": lambda rdd: rdd.groupBy(operator.itemgetter(0), 4),
    "reduceByKey": lambda rdd: rdd.reduceByKey(add),
    "reduceByKey placed": lambda rdd: rdd.reduceByKey(max, 6, low),
    "combineByKey": lambda rdd: rdd.combineByKey(lambda v: {v}, lambda c, v: c | {v}, operator.or_, 5),
    "aggregateByKey": lambda rdd: rdd.aggregateByKey([], with_list, add, 4).mapValues(sorted),
    "foldByKey": lambda rdd: rdd.foldByKey(0, add, 3),
    "distinct": lambda rdd: rdd.keys().distinct(),
    "distinct of pairs": lambda rdd: rdd.mapValues(lambda v: v % 5).distinct(4),
    "partitionBy, groupByKey": lambda rdd: rdd.partitionBy(4).groupByKey(4),
    "reduceByKey, again": lambda rdd: rdd.reduceByKey(add, 4).reduceByKey(add, 3).mapValues(str),
}
TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "cogroup": lambda rdd, other: rdd.cogroup(other),
    "cogroup into": lambda rdd, other: rdd.cogroup(other, 6),
    "groupWith": lambda rdd, other: rdd.groupWith(other, other.mapValues(len), rdd),
    "join": lambda rdd, other: rdd.join(other),
    "leftOuterJoin": lambda rdd, other: rdd.leftOuterJoin(other, 3),
    "rightOuterJoin": lambda rdd, other: rdd.rightOuterJoin(other, 4),
    "fullOuterJoin": lambda rdd, other: rdd.fullOuterJoin(other),
    "subtractByKey": lambda rdd, other: rdd.subtractByKey(other, 5),
    "subtract": lambda rdd, other: rdd.keys().subtract(other.keys(), 3),
    "intersection": lambda rdd, other: rdd.keys().intersection(other.keys()),
    "union": lambda rdd, other: rdd.union(other).mapValues(str).groupByKey(3),
    "join of a join": lambda rdd, other: rdd.join(other, 4).mapValues(repr).join(other, 4),
    "self join": lambda rdd, _: (lambda placed: placed.join(placed.mapValues(str), 4))(
        rdd.filter(lambda pair: pair[1] < 150).partitionBy(4)
    ),
}


def check_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert {type(rdd) for rdd in ours.values()} == {ShuffleRDD}
    found, expected = (dict(zip(of, placed(*of.values()), strict=True)) for of in (ours, theirs))
    assert found == expected
    for name, rdd in ours.items():
        assert (rdd.partitioner, rdd.toRDD().partitioner) == (theirs[name].partitioner,) * 2, name


def test_what_becomes_of_a_keys_values_is_pysparks(pairs: RDD[Any]) -> None:
    ours = sortshuffle.rdd(pairs)
    check_same(*({name: call(rdd) for name, call in BY_KEY.items()} for rdd in (ours, pairs)))


def test_what_becomes_of_several_is_pysparks(pairs: RDD[Any], others: RDD[Any]) -> None:
    sources = (sortshuffle.rdd(pairs), sortshuffle.rdd(others)), (pairs, others)
    check_same(*({name: call(*both) for name, call in TOGETHER.items()} for both in sources))


@pytest.fixture
def little_memory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    settings = {"spark.sortshuffle.dir": str(tmp_path), "spark.sortshuffle.memory": "1m"}
    with confs(spark, settings):
        yield tmp_path


def test_with_little_memory_the_same_comes_out(sc: SparkContext, little_memory: Path) -> None:
    source = sc.parallelize(range(3), 3).flatMap(
        lambda of: [(f"key {n % 9000}" if n % 4 else "hot", n * 3 + of) for n in range(16_000)]
    )
    other = sc.parallelize([(f"key {n}", n) for n in range(0, 9000, 9)] + [("hot", 1)], 2)

    def sums(rdd: Any) -> list[Any]:
        grouped = rdd.groupByKey(2).mapValues(lambda values: (len(values), sum(values)))
        reduced = rdd.reduceByKey(add, 2)
        distinct = rdd.map(lambda pair: pair[1] // 2).distinct(2)
        cogrouped = rdd.cogroup(other, 2).mapValues(lambda of: tuple(map(sum, of)))
        joined = rdd.join(other, 2).map(lambda pair: (pair[0], sum(pair[1]))).reduceByKey(add, 2)
        return placed(grouped, reduced, distinct, cogrouped, joined)

    ours = sortshuffle.rdd(source)
    assert sums(ours) == sums(source)
    spilled = [total for total in ours.stage_totals() if total.metrics.counts["bytes_spilled"]]
    assert len(spilled) >= 5
    assert all(total.metrics.counts["merge_passes"] > total.tasks for total in spilled)
    assert all(total.metrics.counts["memory_peak"] < 4 << 20 for total in spilled)
    assert not list(little_memory.rglob("merge-*"))


def test_a_group_longer_than_memory_may_be_kept_and_sent_on(sc: SparkContext, little_memory: Path) -> None:
    source = sc.parallelize(range(2), 2).flatMap(lambda of: [("hot", f"{of} {n}") for n in range(20_000)])
    grouped = sortshuffle.rdd(source).groupByKey(1)
    kept = grouped.mapPartitions(list).map(lambda pair: (pair[0], len(pair[1]), len(set(pair[1]))))

    assert kept.collect() == [("hot", 40_000, 40_000)]
    assert kept.stage_totals()[-1].metrics.counts["bytes_spilled"] > 100_000
    ((key, values),) = grouped.partitionBy(3).collect()
    assert (key, len(values), len(set(values))) == ("hot", 40_000, 40_000)


def test_arrays_behind_a_shuffle_spill(sc: SparkContext, little_memory: Path) -> None:
    """Unpickled arrays do not own their memory."""
    source = sc.parallelize([(n, n) for n in range(200)], 1).mapValues(lambda n: np.full(5000, n))
    for ours in (sortshuffle.rdd(source).sortByKey(False, 2), sortshuffle.rdd(source).groupByKey(2)):
        found = ours.mapValues(lambda value: int(np.sum(list(value)))).collect()
        assert dict(found) == {n: 5000 * n for n in range(200)}
        assert ours.stage_totals()[-1].metrics.counts["bytes_spilled"]


# ---- order --------------------------------------------------------------------------------------------

WORDS = [(f"{n * 7919 % 10_007:05d}"[::-1], n) for n in range(3000)]
ORDERS: dict[str, Callable[[Any], Any]] = {
    "sortByKey": lambda rdd: rdd.sortByKey(),
    "descending": lambda rdd: rdd.sortByKey(False, 5),
    "into one": lambda rdd: rdd.sortByKey(False, 1),
    "of one": lambda rdd: rdd.coalesce(1).sortByKey(True, 1),
    "sortBy": lambda rdd: rdd.sortBy(lambda pair: -pair[1], numPartitions=3),
    "sortBy descending": lambda rdd: rdd.sortBy(lambda pair: pair[0], False, 4),
    "within": lambda rdd: rdd.repartitionAndSortWithinPartitions(4),
    "within descending": lambda rdd: rdd.repartitionAndSortWithinPartitions(3, low, False, str.swapcase),
}


def test_order_and_bounds_are_pysparks(sc: SparkContext) -> None:
    source = sc.parallelize(WORDS, 2)
    both = (lists(*(order(rdd) for order in ORDERS.values())) for rdd in (sortshuffle.rdd(source), source))
    assert [name for name, ours, theirs in zip(ORDERS, *both, strict=True) if ours != theirs] == []


def test_records_that_are_no_pairs_are_sorted_into_one_partition_as_they_are(sc: SparkContext) -> None:
    rows = sc.parallelize([Row(key=n * 7 % 11, a=n, b="x") for n in range(11)], 3)
    lists_of_three = sc.parallelize([[n * 7 % 11, n, "x"] for n in range(11)], 3)
    placed_in_one = sc.parallelize([(n * 7 % 11, n) for n in range(11)], 3).partitionBy(1)
    for source in (rows, lists_of_three, placed_in_one):
        ours, theirs = sortshuffle.rdd(source).sortByKey(False, 1), source.sortByKey(False, 1)
        assert repr(ours.collect()) == repr(theirs.collect())
        assert ours.partitioner == theirs.partitioner


def test_a_key_function_orders_all(sc: SparkContext) -> None:
    """PySpark compares what it gives with bounds that are keys, and so sorts each partition only."""
    source = sc.parallelize(WORDS, 3)
    ours = sortshuffle.rdd(source).sortByKey(True, 4, lambda key: key[::-1])
    assert [key[::-1] for key, _ in ours.collect()] == sorted(key[::-1] for key, _ in WORDS)
    assert sum(map(bool, ours.glom().collect())) == 4


def test_sorting_spills(sc: SparkContext, little_memory: Path) -> None:
    source = sc.parallelize(range(2), 2).flatMap(
        lambda of: [(n * 7919 % 30_011, f"{of} {n}") for n in range(30_000)]
    )
    ours = sortshuffle.rdd(source).sortByKey(False, 2)
    found = ours.collect()
    assert [key for key, _ in found] == sorted((key for key, _ in source.collect()), reverse=True)
    assert Counter(found) == Counter(source.collect())
    assert ours.stage_totals()[-1].metrics.counts["bytes_spilled"] > 100_000


def test_sorting_runs_nothing_before_an_action(sc: SparkContext, spark: SparkSession) -> None:
    source = sc.parallelize([(n, n) for n in range(100)], 2)
    sortshuffle.rdd(source).partitionBy(2).count()
    with jobs(spark) as none:
        ours = sortshuffle.rdd(source).sortByKey(True, 3).mapValues(str)
        assert ours.getNumPartitions() == 3
    assert none.ids == []
    with jobs(spark) as run:
        assert ours.count() == 100
    assert len(run.ids) == 2  # PySpark takes three
    assert sortshuffle.rdd(sc.emptyRDD()).sortByKey(True, 3).collect() == []


# ---- what is not shuffled -----------------------------------------------------------------------------


def test_what_is_in_its_place_is_not_shuffled_again(
    sc: SparkContext, spark: SparkSession, pairs: RDD[Any], others: RDD[Any]
) -> None:
    runs = sc.accumulator(0)

    def counted(pair: Any) -> Any:
        runs.add(1)
        return pair

    ours = sortshuffle.rdd(pairs).map(counted).partitionBy(4)
    assert ours.count() == len(PAIRS)
    cached = pairs.partitionBy(4).mapValues(str).cache()
    joined = ours.mapValues(lambda value: value * 2).join(cached, 4).join(ours.reduceByKey(add, 4), 4)
    plain_joined = pairs.mapValues(lambda value: value * 2).join(cached, 4).join(pairs.reduceByKey(add), 4)

    assert placed(joined) == placed(plain_joined)
    assert runs.value == len(PAIRS)
    with jobs(spark) as run:
        assert joined.count() == plain_joined.count()
    assert len(list(joined._chain.exchanges())) == 1
    assert (
        joined.groupByKey(4).mapValues(len).reduceByKey(add, 4).partitionBy(4)._chain.origin
        is joined._chain.origin
    )
    assert run.ids


def test_spark_sees_that_results_are_placed(pairs: RDD[Any], others: RDD[Any]) -> None:
    one = sortshuffle.rdd(pairs).reduceByKey(add, 4).toRDD()
    other = sortshuffle.rdd(pairs).join(others, 4).toRDD()
    assert one.union(other).getNumPartitions() == 4
    assert one.union(other).partitioner == one.partitioner


def test_the_default_number_of_partitions_is_pysparks(
    sc: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = sc.getConf()
    monkeypatch.setattr(conf, "contains", lambda key: False)
    monkeypatch.setattr(sc, "getConf", lambda: conf)
    monkeypatch.setattr(sc, "_conf", conf)
    source, one, four = sc.parallelize([(1, 1)], 3), sc.parallelize([(1, 2)], 1), sc.parallelize([(1, 2)], 4)
    for method in ("groupByKey", "reduceByKey", "distinct"):
        ours, theirs = BY_KEY[method](sortshuffle.rdd(source)), BY_KEY[method](source)
        assert (method, ours.getNumPartitions()) == (method, theirs.getNumPartitions())
    five = source.partitionBy(5)
    for a, b in [(source, one), (source, four), (five, one), (five, four), (five, one.partitionBy(5))]:
        for method in ("cogroup", "groupWith", "join", "fullOuterJoin", "intersection"):
            ours = TOGETHER[method](sortshuffle.rdd(a), sortshuffle.rdd(b))
            theirs = TOGETHER[method](a, b)
            assert (method, ours.getNumPartitions()) == (method, theirs.getNumPartitions())


# ---- new keys behind a placement ----------------------------------------------------------------------


def swapped(pair: Any) -> tuple[str, str]:
    """The value as the key, and the key as the value; as texts, because groups cannot be hashed."""
    return repr(plain(pair[1])), repr(pair[0])


# In each, the last shuffle has the function and the number of the one before, and all keys change in between
NEW_KEYS: dict[str, Callable[[Any, Any], Any]] = {
    "partitionBy": lambda rdd, _: rdd.partitionBy(4).map(swapped).reduceByKey(max, 4),
    "partitionBy twice": lambda rdd, _: rdd.partitionBy(4).map(swapped).partitionBy(4),
    "reduceByKey": lambda rdd, _: rdd.reduceByKey(max, 4).map(swapped).groupByKey(4),
    "default counts": lambda rdd, _: rdd.reduceByKey(max).map(swapped).groupByKey(),
    "the user's function": lambda rdd, _: rdd.partitionBy(4, low).map(swapped).partitionBy(4, low),
    "distinct": lambda rdd, _: rdd.distinct(4).map(swapped).distinct(4),
    "join": lambda rdd, other: rdd.join(other, 4).map(swapped).join(other.map(swapped), 4),
    "join, reduceByKey": lambda rdd, other: rdd.join(other, 4).map(swapped).reduceByKey(max, 4),
    "cogroup": lambda rdd, other: rdd.cogroup(other, 4).map(swapped).groupByKey(4),
    "a union in place": lambda rdd, other: (
        rdd.partitionBy(4).union(other.partitionBy(4)).map(swapped).partitionBy(4)
    ),
    "values alone": lambda rdd, _: rdd.partitionBy(4).mapValues(str).mapValues(len).groupByKey(4),
}


def test_pairs_with_new_keys_are_shuffled_again(sc: SparkContext) -> None:
    pairs = sc.parallelize([(n, n * 7 % 31) for n in range(120)], 3)
    others = sc.parallelize([(n % 40, n) for n in range(60)], 2)
    sources = (sortshuffle.rdd(pairs), sortshuffle.rdd(others)), (pairs, others)
    check_same(*({name: call(*both) for name, call in NEW_KEYS.items()} for both in sources))


def test_pairs_that_pyspark_placed_are_shuffled_again_under_new_keys(sc: SparkContext) -> None:
    placed_by_spark = sc.parallelize([(n, n % 7) for n in range(100)], 3).partitionBy(4)
    others = placed_by_spark.mapValues(str)
    shuffles: dict[str, Callable[[Any], Any]] = {
        "partitionBy": lambda rdd: rdd.map(swapped).partitionBy(4),
        "reduceByKey": lambda rdd: rdd.map(swapped).reduceByKey(max, 4),
        "join": lambda rdd: rdd.map(swapped).join(others, 4),
        "cogroup": lambda rdd: rdd.cogroup(others, 4).map(swapped).groupByKey(4),
    }
    sources = sortshuffle.rdd(placed_by_spark), placed_by_spark
    check_same(*({name: call(rdd) for name, call in shuffles.items()} for rdd in sources))


# ---- evenly, fewer, together --------------------------------------------------------------------------


def test_repartition_deals_evenly_whatever_the_records_are(sc: SparkContext, spark: SparkSession) -> None:
    records = [1, "a", None, {"a": 1}, [2], lambda: 3, (1, 2, 3)] * 10
    ours = sortshuffle.rdd(sc.parallelize(records, 3)).repartition(4)
    found = ours.glom().collect()
    assert sorted(map(len, found)) == [17, 17, 18, 18]
    assert Counter(type(each) for part in found for each in part) == Counter(map(type, records))
    assert ours.partitioner is None
    assert len(list(ours._chain.exchanges())) == 1
    assert len(list(ours.repartition(3)._chain.exchanges())) == 2
    # Spark does not promise the order of what it shuffled: it deals itself, and knows what to run again
    behind_spark = sortshuffle.rdd(sc.parallelize([(n, n) for n in range(20)], 3).partitionBy(2)).repartition(
        4
    )
    assert list(behind_spark._chain.exchanges()) == []
    assert (behind_spark.getNumPartitions(), behind_spark.count()) == (4, 20)


def test_coalesce_and_union_are_sparks(pairs: RDD[Any], others: RDD[Any]) -> None:
    ours = sortshuffle.rdd(pairs).partitionBy(6)
    assert placed(ours.coalesce(2)) == placed(pairs.partitionBy(6).coalesce(2))
    assert ours.coalesce(3, shuffle=True).getNumPartitions() == 3
    union = ours.union(sortshuffle.rdd(others).partitionBy(6))
    assert placed(union) == placed(pairs.partitionBy(6).union(others.partitionBy(6)))
    assert union.partitioner == ours.partitioner
    assert ours.union(others).getNumPartitions() == 7
    assert placed(ours + others) == placed(pairs.partitionBy(6) + others)
    for rdd in (ours, pairs):
        with pytest.raises(TypeError):
            rdd + "no RDD"


def test_actions_are_pysparks(pairs: RDD[Any]) -> None:
    ours = sortshuffle.rdd(pairs)
    assert ours.countByKey() == pairs.countByKey()
    assert ours.keys().countByValue() == pairs.keys().countByValue()
    assert ours.reduceByKeyLocally(add) == pairs.reduceByKeyLocally(add)
    assert ours.keyBy(low).collect() == pairs.keyBy(low).collect()


# ---- errors -------------------------------------------------------------------------------------------


def stops(*_: Any) -> Any:
    raise StopIteration("too early")


WRONG: dict[str, Callable[[Any], Any]] = {
    "unhashable": lambda rdd: rdd.map(lambda pair: ([1], 1)).reduceByKey(add, 2),
    "unhashable groups": lambda rdd: rdd.map(lambda pair: ({}, 1)).groupByKey(2),
    "unhashable records": lambda rdd: rdd.map(lambda pair: [1]).distinct(2),
    "no pairs": lambda rdd: rdd.map(lambda pair: 5).groupByKey(2),
    "three": lambda rdd: rdd.map(lambda pair: (1, 2, 3)).reduceByKey(add, 2),
    "reduce fails": lambda rdd: rdd.map(lambda pair: (1, 0)).reduceByKey(operator.floordiv, 2),
    "create stops": lambda rdd: rdd.combineByKey(stops, add, add, 2),
    "not comparable": lambda rdd: rdd.repartitionAndSortWithinPartitions(1),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_pyspark_refuses_is_refused_with_the_same_words(sc: SparkContext, name: str) -> None:
    source = sc.parallelize([(n if n % 2 else str(n), "ab") for n in range(10)], 1)  # one task, one worker
    assert last_line(WRONG[name](sortshuffle.rdd(source))) == last_line(WRONG[name](source))


def test_joins_take_the_first_two_elements_as_in_pyspark(sc: SparkContext) -> None:
    triples = sc.parallelize([(n, n, "dropped") for n in range(5)] + [[9, 9]], 2)
    pairs = sc.parallelize([(n, str(n)) for n in range(10)], 2)
    assert placed(sortshuffle.rdd(triples).join(pairs, 2)) == placed(triples.join(pairs, 2))
    one = sc.parallelize([(1,)], 1)
    assert last_line(sortshuffle.rdd(one).join(pairs, 2)) == last_line(one.join(pairs, 2))


def test_inputs_may_be_written_with_different_codecs(spark: SparkSession, sc: SparkContext) -> None:
    """An RDD's settings are those of the time when it was made."""
    pairs = sc.parallelize([(n % 50, n) for n in range(5000)], 2)
    one = sortshuffle.rdd(pairs).reduceByKey(operator.add, 3)
    with confs(spark, {"spark.sortshuffle.codec": "zstd"}):
        other = sortshuffle.rdd(pairs).groupByKey(3).mapValues(sum)
    expected = [(key, (total, total)) for key in range(50) for total in [sum(range(key, 5000, 50))]]
    assert sorted(one.join(other).collect()) == sorted(other.join(one).collect()) == expected


def test_keys_that_cannot_be_compared_are_an_error_where_bounds_are_sought(sc: SparkContext) -> None:
    with pytest.raises(TypeError, match="'<' not supported"):
        sortshuffle.rdd(sc.parallelize([(1, 1), ("a", 1)], 2)).sortByKey(True, 2).collect()


def test_wrong_calls_are_refused_on_the_driver(sc: SparkContext) -> None:
    ours: Any = sortshuffle.rdd(sc.parallelize([(1, 1)], 1))
    for call, what in [
        (lambda: ours.join([(1, 2)]), r"join\(\) takes a ShuffleRDD or an RDD of PySpark's, not list"),
        (lambda: ours.cogroup(ours, "2"), r"cogroup\(\) takes a number of partitions, not str"),
        (lambda: ours.reduceByKey(add, 0), r"reduceByKey\(\) takes from 1 to"),
        (lambda: ours.groupByKey(2, 3), r"groupByKey\(\) takes a function of a key, not int"),
        (lambda: ours.repartition(None), r"repartition\(\) takes a number of partitions, not NoneType"),
        (lambda: ours.sortByKey(True, -1), r"sortByKey\(\) takes from 1 to"),
        (lambda: ours.coalesce(0), r"coalesce\(\) takes from 1 to"),
    ]:
        with pytest.raises(UsageError, match=what):
            call()


# ---- what is told -------------------------------------------------------------------------------------


def test_the_plan_shows_combining_merging_and_several_inputs(
    sc: SparkContext, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sc.parallelize([(n % 10, 1) for n in range(1000)], 2)
    placed_by_spark = sc.parallelize([(1, "x")], 2).partitionBy(3)
    ours = sortshuffle.rdd(source).reduceByKey(add, 3)
    joined = ours.join(placed_by_spark, 3).sortByKey(False, 2)
    first, second = joined._chain.exchanges()
    joined.explain()
    text = capsys.readouterr().out
    for line in [
        f"-> exchange {first.number}: portable_hash into 3 subpartitions, values reduced before",
        f"join of exchange {first.number} -> merge: values reduced, stage ",
        ", passes records on",
        f"-> exchange {second.number}: ranges of keys, descending, into 2 subpartitions",
        "sort: descending keys",
    ]:
        assert line in text
    assert joined.collect() == [(1, (100, "x"))]
    joined.explain()
    text = capsys.readouterr().out
    assert "combined 980 records into others of their keys" in text
    (passed,) = [at for at, line in enumerate(text.splitlines()) if line.endswith(", passes records on")]
    assert any(line.startswith("    3 tasks, ") for line in text.splitlines()[passed:][:4]), text
    totals = {total.stage: total.metrics.counts for total in joined.stage_totals()}
    assert totals[first.number]["rows_written"] == 20
    assert portable_hash is first.partitioner.partitionFunc


def test_records_need_neither_pandas_nor_arrows_datasets() -> None:
    """A new worker imports what the stages name: these two take longer than all else."""
    script = (
        "import sys;"
        "from sortshuffle.spark.rdds import holding_steps, key_selectors, multi_input, ranges, stages;"
        "print([name for name in ('pandas', 'pyarrow.dataset', 'pyarrow.parquet') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
