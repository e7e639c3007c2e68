"""The selectors: their ids, against Spark's placement where that is the promise."""

from __future__ import annotations

import pickle
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner import (
    BroadcastSelector,
    ChannelSelector,
    FunctionSelector,
    GlobalSelector,
    HashSelector,
    IdSelector,
    KeyGroupSelector,
    RangeSelector,
    RescaleSelector,
    RoundRobinSelector,
    RowHashSelector,
    SortKey,
    hash_columns,
    id_dtype,
)
from sortshuffle.partitioner.row_hash import CHUNK_BYTES, LONG_VALUE_BYTES, hash_rows


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def numbered(rows: int) -> pa.RecordBatch:
    return batch_of(row=pa.array(range(rows), pa.int64()))


# --- ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subpartitions", "dtype"),
    [
        (1, np.uint8),
        (256, np.uint8),
        (257, np.uint16),
        (65_536, np.uint16),
        (65_537, np.uint32),
        (2**31 - 1, np.uint32),
    ],
)
def test_ids_come_in_the_narrowest_dtype(subpartitions: int, dtype: type) -> None:
    assert id_dtype(subpartitions) == dtype
    batch = numbered(500)
    selectors: list[ChannelSelector] = [
        HashSelector((0,), subpartitions),
        RoundRobinSelector(subpartitions, subpartitions - 1),
        RowHashSelector(subpartitions),
        GlobalSelector(subpartitions, subpartitions - 1),
        RescaleSelector(subpartitions, 1, 2),
        FunctionSelector(lambda rows: rows["row"].to_numpy() % subpartitions, subpartitions),
        RangeSelector((SortKey(0),), numbered(min(subpartitions - 1, 300)), subpartitions),
    ]
    for selector in selectors:
        ids = selector.assign(batch)
        assert ids.dtype == dtype
        assert ids.shape == (500,)
        assert int(ids.max()) < selector.subpartitions
        assert selector.assign(batch.slice(0, 0)).shape == (0,)
        assert selector.assign(batch.slice(0, 0)).dtype == dtype


@pytest.mark.parametrize("wrong", [0, -1, 2**31, 2.0, True, "4"])
def test_an_impossible_number_of_subpartitions_is_refused(wrong: Any) -> None:
    for build in (
        lambda n: HashSelector((0,), n),
        lambda n: IdSelector(0, n),
        lambda n: KeyGroupSelector((0,), n, 128),
        lambda n: FunctionSelector(len, n),
        lambda n: RangeSelector((SortKey(0),), numbered(0), n),
        lambda n: RescaleSelector(n, 0, 1),
        GlobalSelector,
        BroadcastSelector,
        RoundRobinSelector,
        RowHashSelector,
        id_dtype,
    ):
        with pytest.raises(UsageError, match="number of subpartitions"):
            build(wrong)


@pytest.mark.parametrize(
    "selector",
    [
        HashSelector((1, 0), 300),
        KeyGroupSelector((1, 0), 9, 128),
        RoundRobinSelector(7, 3),
        RowHashSelector(70_000),
        GlobalSelector(5, 4),
        RescaleSelector(9, 1, 2),
        IdSelector(2, 7),
        RangeSelector((SortKey(1), SortKey(0)), batch_of(b=["2", "3"], a=[5, 0]), 300),
    ],
)
def test_selectors_survive_pickling(selector: ChannelSelector) -> None:
    numbers = range(100)
    batch = batch_of(a=list(numbers), b=[str(number) for number in numbers], c=pa.array(numbers, pa.int32()))
    copy = pickle.loads(pickle.dumps(selector))
    assert copy == selector
    np.testing.assert_array_equal(copy.assign(batch), selector.assign(batch))


# --- hash placement ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys() -> pa.Table:
    rng = np.random.default_rng(5)
    rows = 3_000
    numbers = rng.integers(-(2**63), 2**63, rows)
    return pa.table(
        {
            "row": pa.array(range(rows), pa.int32()),
            "number": pa.array(numbers, mask=rng.random(rows) < 0.1),
            "text": pa.array([f"é{number}"[: number % 20] for number in numbers]),
            "pair": pa.array(
                [{"a": float(number % 9) - 4, "b": [int(number) % 3] * (number % 4)} for number in numbers],
                pa.struct([("a", pa.float64()), ("b", pa.list_(pa.int64()))]),
            ),
        }
    )


@pytest.mark.usefixtures("generated_code")
@pytest.mark.parametrize("subpartitions", [1, 2, 7, 64, 200, 1000, 100_003, 2**31 - 1])
def test_hash_ids_are_sparks_pmod(spark: SparkSession, keys: pa.Table, subpartitions: int) -> None:
    names = ["number", "text", "pair"]
    frame = spark.createDataFrame(keys).repartition(1)  # a projection of a local table is interpreted
    expected = frame.select("row", sf.pmod(sf.hash(*names), sf.lit(subpartitions)).alias("id")).toArrow()
    positions = tuple(keys.column_names.index(name) for name in names)
    ids = HashSelector(positions, subpartitions).assign(keys.to_batches()[0])
    np.testing.assert_array_equal(ids, expected.sort_by("row")["id"].to_numpy())


@pytest.mark.usefixtures("generated_code")
@pytest.mark.parametrize("names", [["number"], ["text", "pair"]])
def test_rows_go_where_spark_repartitions_them(spark: SparkSession, keys: pa.Table, names: list[str]) -> None:
    placed = spark.createDataFrame(keys).repartition(13, *names).select("row", sf.spark_partition_id())
    rows, partitions = placed.toArrow().sort_by("row").columns
    assert rows.to_pylist() == keys["row"].to_pylist()
    selector = HashSelector(tuple(keys.column_names.index(name) for name in names), 13)
    np.testing.assert_array_equal(selector.assign(keys.to_batches()[0]), partitions.to_numpy())


def test_without_keys_all_rows_go_where_the_seed_lands() -> None:
    assert HashSelector((), 10).assign(numbered(3)).tolist() == [2, 2, 2]
    assert HashSelector((), 43).assign(numbered(1)).tolist() == [42]


def test_the_order_of_keys_counts() -> None:
    batch = batch_of(a=list(range(200)), b=list(range(200, 400)))
    assert (HashSelector((0, 1), 50).assign(batch) != HashSelector((1, 0), 50).assign(batch)).any()


def test_a_key_that_spark_cannot_hash_is_refused() -> None:
    batch = batch_of(m=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))
    with pytest.raises(ColumnError, match="map_entries"):
        HashSelector((0,), 4).assign(batch)


def test_negative_positions_are_refused() -> None:
    with pytest.raises(UsageError, match="positions from 0 on"):
        HashSelector((0, -1), 4)


# --- round robin -------------------------------------------------------------------------------------------


def test_round_robin_deals_rows_out_in_turn() -> None:
    assert RoundRobinSelector(4, 3).assign(numbered(9)).tolist() == [3, 0, 1, 2, 3, 0, 1, 2, 3]


@given(subpartitions=st.integers(1, 40), batches=st.lists(st.integers(0, 50), max_size=6), data=st.data())
def test_cuts_between_batches_do_not_matter(
    subpartitions: int, batches: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, subpartitions - 1))
    whole = RoundRobinSelector(subpartitions, start).assign(numbered(sum(batches)))
    selector = RoundRobinSelector(subpartitions, start)
    pieces = [selector.assign(numbered(rows)).tolist() for rows in batches]
    assert [*chain.from_iterable(pieces)] == whole.tolist()


def test_a_pickled_round_robin_goes_on_where_it_was() -> None:
    selector = RoundRobinSelector(5)
    selector.assign(numbered(3))
    assert pickle.loads(pickle.dumps(selector)).assign(numbered(3)).tolist() == [3, 4, 0]


@pytest.mark.parametrize("start", [-1, 4])
def test_a_start_outside_is_refused(start: int) -> None:
    with pytest.raises(UsageError, match="from 0 to 3"):
        RoundRobinSelector(4, start)


# --- row hash ----------------------------------------------------------------------------------------------

TEXTS = ["", "a", "bb", None, "twelve bytes", "rather more than twelve bytes", "é" * 100, "x" * 1000]
LISTS = [[], [1], [1, 2], None, [None], [2, 1], [1, None], list(range(300))]
MAPS = [[], [("a", 1)], [("a", 2)], None, [("b", None)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], []]
NUMBERS = [0, 1, 2, None, 127, 7, 100, 55]


def union() -> pa.Array:
    kinds, places = pa.array([0, 1] * 4, pa.int8()), pa.array(range(8), pa.int32())
    return pa.UnionArray.from_dense(kinds, places, [pa.array(NUMBERS), pa.array(TEXTS)])


ARROW_TYPES: dict[str, pa.Array] = {
    "bool": pa.array([True, False, None, True, False, None, True, True]),
    **{
        str(type): pa.array(NUMBERS, type)
        for type in (
            pa.int8(),
            pa.uint8(),
            pa.uint16(),
            pa.int32(),
            pa.int64(),
            pa.uint64(),
            pa.float32(),
            pa.float64(),
        )
    },
    "half": pa.array([None if number is None else np.float16(number) for number in NUMBERS], pa.float16()),
    **{
        str(type): pa.array(NUMBERS, pa.int64()).cast(type)
        for type in (pa.timestamp("ns"), pa.duration("s"), pa.time64("us"))
    },
    **{
        str(type): pa.array(NUMBERS, pa.int32()).cast(type)
        for type in (pa.date32(), pa.time32("ms"), pa.decimal128(38, 3), pa.decimal256(60, 3))
    },
    "date64": pa.array(NUMBERS, pa.int32()).cast(pa.date32()).cast(pa.date64()),
    "interval": pa.array([None if n is None else (n, n, n) for n in NUMBERS], pa.month_day_nano_interval()),
    **{
        str(type): pa.array(TEXTS, type)
        for type in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view())
    },
    "fixed": pa.array([b"abc", b"abd", None, b"abc", b"xyz", b"...", b"abc", None], pa.binary(3)),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "run ends": pc.run_end_encode(pa.array(NUMBERS)),
    "list": pa.array(LISTS, pa.list_(pa.int32())),
    "large list": pa.array(LISTS, pa.large_list(pa.int64())),
    "list view": pa.array(LISTS, pa.list_view(pa.int32())),
    "fixed list": pa.array([None if n is None else [n, n + 1] for n in NUMBERS], pa.list_(pa.int64(), 2)),
    "list of bools": pa.array([[True], [], None, [True, None], [False], [True, False]] + [[False, True]] * 2),
    "list of strings": pa.array([TEXTS[:at] for at in range(8)]),
    "list of lists": pa.array([LISTS[:at] for at in range(8)]),
    "map": pa.array(MAPS, pa.map_(pa.string(), pa.int64())),
    "struct": pa.array(
        [None if n is None else {"n": n, "t": t} for n, t in zip(NUMBERS, TEXTS, strict=True)]
    ),
    "union": union(),
    "extension": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "type", "vendor"), pa.array(TEXTS)),
    "null": pa.nulls(8),
}


@pytest.mark.parametrize("name", ARROW_TYPES)
def test_a_rows_hash_depends_on_that_row_alone(name: str) -> None:
    array = ARROW_TYPES[name]
    whole = hash_rows(batch_of(n=list(range(8)), value=array))
    assert whole.dtype == np.uint64
    assert len(set(whole.tolist())) == 8
    alone = [hash_rows(batch_of(n=[row], value=array.slice(row, 1)))[0] for row in range(8)]
    assert alone == whole.tolist()
    tail = hash_rows(batch_of(n=list(range(3, 8)), value=array.slice(3)))
    assert tail.tolist() == whole[3:].tolist()


@pytest.mark.parametrize("name", ARROW_TYPES)
def test_different_values_hash_differently_and_equal_ones_equally(name: str) -> None:
    array = ARROW_TYPES[name]
    hashes = hash_rows(batch_of(value=array)).tolist()
    values = [repr(value) for value in array.to_pylist()]
    assert len(set(hashes)) == len(set(values))
    for one, value in zip(hashes, values, strict=True):
        assert hashes[values.index(value)] == one


@pytest.mark.parametrize(
    "same",
    [
        ("string", "large_string", "string_view", "binary", "binary_view", "dictionary", "extension"),
        ("list", "list view"),
        ("int64", "run ends"),
    ],
)
def test_layout_is_not_value(same: tuple[str, ...]) -> None:
    first, *others = (hash_rows(batch_of(value=ARROW_TYPES[name])).tolist() for name in same)
    assert all(other == first for other in others)


rows_strategy = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.text(max_size=200),
        st.none() | st.lists(st.none() | st.floats(allow_nan=False), max_size=30),
        st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.integers(0, 9)), max_size=4),
    ),
    min_size=1,
    max_size=40,
)


def batch_from(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    types = (pa.int64(), pa.string(), pa.list_(pa.float64()), pa.map_(pa.string(), pa.int32()))
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type) for column, type in zip(columns, types, strict=True)], list("abcd")
    )


@settings(deadline=None)
@given(rows=rows_strategy, data=st.data())
def test_row_hash_places_rows_alike_in_any_order_and_any_batches(
    rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(0, len(rows)))
    selector = RowHashSelector(1000)
    ids = selector.assign(batch_from(rows))
    shuffled = batch_from([rows[at] for at in order])
    pieces = [selector.assign(shuffled.slice(0, cut)), selector.assign(shuffled.slice(cut))]
    assert np.concatenate(pieces).tolist() == ids[order].tolist()


def test_chunks_of_a_batch_do_not_show() -> None:
    rng = np.random.default_rng(6)
    rows = 5 * CHUNK_BYTES // 100
    lengths = rng.integers(0, 200, rows)
    batch = batch_of(text=["x" * length for length in lengths], number=rng.integers(0, 99, rows))
    whole = hash_rows(batch)
    for first in (0, 1, rows // 3, rows - 20):
        np.testing.assert_array_equal(hash_rows(batch.slice(first, 20)), whole[first : first + 20])


def test_values_around_the_limit_of_long_ones_differ() -> None:
    texts = ["x" * length for length in range(LONG_VALUE_BYTES - 9, LONG_VALUE_BYTES + 9)]
    assert len(set(hash_rows(batch_of(text=texts)).tolist())) == len(texts)


def test_every_column_counts() -> None:
    base = {"a": 1, "b": "x", "c": [1.0], "d": True}
    changed = [base | {name: other} for name, other in {"a": 2, "b": "y", "c": [2.0], "d": False}.items()]
    batch = pa.RecordBatch.from_pylist([base, *changed])
    assert len(set(hash_rows(batch).tolist())) == 5


def test_swapped_columns_count() -> None:
    batch = batch_of(a=[1, 2], b=[2, 1])
    first, second = hash_rows(batch).tolist()
    assert first != second


def evenness(ids: np.ndarray, subpartitions: int) -> float:
    """Return chi squared per degree of freedom: about 1 for random ids, 0 for round robin."""
    counts = np.bincount(ids, minlength=subpartitions)
    mean = len(ids) / subpartitions
    return float(((counts - mean) ** 2).sum() / mean / (subpartitions - 1))


@pytest.mark.parametrize(
    "column",
    [
        np.arange(20_000),
        np.arange(20_000) << 40,
        np.arange(20_000) * 1.0,
        [f"https://example.org/item/{number:08d}" for number in range(20_000)],
        [[number % 200, number // 200] for number in range(20_000)],
    ],
    ids=["consecutive", "high bits only", "whole doubles", "long common prefix", "lists"],
)
@pytest.mark.parametrize("subpartitions", [7, 64, 200])
def test_row_hash_is_even(column: Any, subpartitions: int) -> None:
    ids = RowHashSelector(subpartitions).assign(batch_of(column=column))
    assert evenness(ids, subpartitions) < 2


def test_row_hash_is_even_over_rows_that_spark_placed_together() -> None:
    numbers = pa.array(np.arange(640_000))
    in_partition_3 = hash_columns([numbers], len(numbers)) % 64 == 3
    batch = batch_of(number=numbers.filter(pa.array(in_partition_3)))
    assert evenness(RowHashSelector(64).assign(batch), 64) < 2
