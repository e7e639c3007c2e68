"""The order of rows by key, against plain Python: every type, alone and as one of several keys, in every
direction, as a whole and in slices, for sorting, for bounds and for groups."""

from __future__ import annotations

import itertools
import math
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import KEY_CASES, KeyCase, directed, sort_keys

from sortshuffle.errors import ColumnError
from sortshuffle.payload.ordering import Ranks, RowOrder, SortKey, TextRanks, concat_ranks

pytestmark = pytest.mark.filterwarnings("error")  # Arrow announces what it will take away as warnings

few_each = settings(max_examples=25)  # of some twenty types
few_each_way = settings(max_examples=8)
WAYS = [SortKey(0, *way) for way in itertools.product([False, True], repeat=2)]
each_way = pytest.mark.parametrize("key", WAYS, ids=lambda key: key.describe("k"))
each_type = pytest.mark.parametrize("case", KEY_CASES, ids=str)


def ranks_of(*columns: pa.Array) -> Ranks:
    batch = pa.RecordBatch.from_arrays(list(columns), [str(number) for number in range(len(columns))])
    return RowOrder(tuple(range(len(columns)))).ranks(batch)


def order_of(*columns: pa.Array) -> list[int]:
    indices = ranks_of(*columns).sort_indices()
    assert indices.dtype == np.int64
    return indices.tolist()


def expected_order(keys: Sequence[Any]) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__)


def expected_starts(keys: Sequence[Any]) -> list[int]:
    return [row for row in range(len(keys)) if row == 0 or keys[row] != keys[row - 1]]


# --- sorting -----------------------------------------------------------------------------------------------


@each_type
@few_each
@given(data=st.data())
def test_rows_are_sorted_in_sparks_order_and_ties_keep_theirs(case: KeyCase, data: st.DataObject) -> None:
    values = data.draw(case.lists(max_size=40))
    assert order_of(case.array(values)) == expected_order([case.key(value) for value in values])


def test_the_order_is_that_of_the_columns_named_in_the_order_named() -> None:
    batch = pa.record_batch({"a": [1, 2, 1, 2], "b": [0, 0, 0, 0], "c": [4, 3, 2, 1]})
    assert RowOrder((2,)).ranks(batch).sort_indices().tolist() == [3, 2, 1, 0]
    assert RowOrder((0, 2)).ranks(batch).sort_indices().tolist() == [2, 0, 3, 1]
    assert RowOrder((2, 0)).ranks(batch).sort_indices().tolist() == [3, 2, 1, 0]


ASCENDING = {
    "int64": pa.array([None, -(2**63), -1, 0, 2**63 - 1], pa.int64()),
    "double": pa.array([None, -math.inf, -1.5, -5e-324, 0.0, 5e-324, math.inf, math.nan], pa.float64()),
    "boolean": pa.array([None, False, True]),
    "decimal": pa.array(
        [None, *map(Decimal, ["-1.1E27", "-1", "0", "1E-10", "1.1E27"])], pa.decimal128(38, 10)
    ),
    "string by UTF-8": pa.array([None, "", "Z", "a", "a\0", "aa", "é", "\uffff", "\U0001f600"]),
    "binary unsigned": pa.array([None, b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00"], pa.binary()),
    "struct": pa.array(
        [None, {"a": None, "b": 1}, {"a": 1, "b": None}, {"a": 1, "b": 0}, {"a": 2, "b": None}]
    ),
}


@pytest.mark.parametrize("name", ASCENDING)
def test_nulls_come_first_and_nan_last(name: str) -> None:
    ascending = ASCENDING[name]
    rows = list(range(len(ascending)))
    assert order_of(ascending) == rows
    assert order_of(ascending.take(pa.array(rows[::-1]))) == rows[::-1]


def test_null_of_a_column_that_uses_every_int64_is_less_than_the_least() -> None:
    assert order_of(pa.array([-(2**63), None, -(2**63), None])) == [1, 3, 0, 2]


def test_zeros_are_one_value_and_so_are_all_nans() -> None:
    quiet, signalling, negative = (
        np.array([bits], np.uint64).view(np.float64)[0]
        for bits in (0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000123)
    )
    values = np.array([negative, 0.0, quiet, -0.0, signalling, 0.0])
    ranks = ranks_of(pa.array(values, from_pandas=False))
    assert ranks.sort_indices().tolist() == [1, 3, 5, 0, 2, 4]
    assert len({ranks.key(row) for row in (0, 2, 4)}) == 1
    assert len({ranks.key(row) for row in (1, 3, 5)}) == 1


def test_a_null_struct_equals_another_whatever_lies_below_it() -> None:
    hidden = [pa.array([7, 8, None, 9]), pa.array(["x", None, "y", "z"])]
    structs = pa.StructArray.from_arrays(hidden, ["a", "b"], mask=pa.array([True, False, True, False]))
    assert structs.to_pylist() == [None, {"a": 8, "b": None}, None, {"a": 9, "b": "z"}]
    ranks = ranks_of(structs)
    assert ranks.sort_indices().tolist() == [0, 2, 1, 3]
    assert ranks.key(0) == ranks.key(2)


def test_text_with_nulls_is_ranked_without_a_copy_of_its_bytes() -> None:
    text = pa.array([None, "b", None, "abc", ""]).slice(1)
    ranks = ranks_of(text)
    assert ranks.sort_indices().tolist() == [1, 3, 2, 0]
    values = ranks.columns[1]
    assert isinstance(values, TextRanks)
    assert values.values.to_pylist() == [b"b", b"", b"abc", b""]
    assert values.values.buffers()[2].address == text.buffers()[2].address
    assert ranks_of(pa.array([None, None], pa.string())).sort_indices().tolist() == [0, 1]


def test_bytes_under_nulls_do_not_order_them() -> None:
    texts = pa.array(["zz", "y", "a", "x"])
    hidden = pa.Array.from_buffers(pa.string(), 4, [pa.py_buffer(b"\x0a"), *texts.buffers()[1:]])
    assert hidden.to_pylist() == [None, "y", None, "x"]
    ranks = ranks_of(hidden)
    assert ranks.sort_indices().tolist() == [0, 2, 3, 1]
    assert ranks.key(0) == ranks.key(2)


@pytest.mark.parametrize("length", range(1, 20))
def test_words_may_begin_in_the_last_bytes(length: int) -> None:
    texts = [chr(97 + n % 3) * (n % (length + 1)) for n in range(40)]
    assert order_of(pa.array(texts)) == expected_order(texts)
    assert order_of(pa.array(texts).slice(11, 17)) == expected_order(texts[11:28])


def test_long_texts_are_compared_across_pieces() -> None:
    texts = [f"{n // 2:070d}" for n in range(40_000)][::-1]
    assert order_of(pa.array(texts)) == expected_order(texts)
    assert order_of(pa.array(texts).slice(7, 33_000)) == expected_order(texts[7:33_007])
    second = range(33_000)[::-1]
    pairs = list(zip(texts[7:33_007], second, strict=True))
    assert order_of(pa.array(texts).slice(7, 33_000), pa.array(second)) == expected_order(pairs)


DECIMALS = [Decimal(1), Decimal(9), Decimal(5)]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 9, 5], pa.int32()),
        pa.array([1, 9, 5], pa.int64()),
        pa.array([1.0, math.nan, 5.0]),
        pa.array([1, 9, 5], pa.timestamp("us")),
        pa.array(DECIMALS, pa.decimal128(9, 2)),
        pa.array(DECIMALS, pa.decimal128(38, 2)),
        pa.array(["b", "z", "a"]),
        pa.array([b"b", b"z", b"a"]),
    ],
    ids=lambda values: str(values.type),
)
def test_nulls_equal_each_other_whatever_lies_below_them(values: pa.Array) -> None:
    validity = pa.array([True, False, False]).buffers()[1]
    hiding = pa.Array.from_buffers(values.type, 3, [validity, *values.buffers()[1:]])
    ranks = ranks_of(hiding)
    assert ranks.sort_indices().tolist() == [1, 2, 0]
    assert ranks.key(1) == ranks.key(2)


def test_a_string_that_ends_in_zero_bytes_is_greater_than_the_one_without() -> None:
    texts = ["a\0\0", "a", "a\0", "a\0b", "", "\0" * 9, "\0" * 8]
    assert [texts[row] for row in order_of(pa.array(texts))] == sorted(texts)


@pytest.mark.parametrize("length", [*range(1, 26), 63, 64, 65, 66, 1000])
def test_strings_that_differ_only_in_their_last_byte_are_told_apart(length: int) -> None:
    stem = "s" * (length - 1)
    texts = [stem + "c", stem + "a", stem + "b", stem, stem + "c"]
    assert order_of(pa.array(texts)) == [3, 1, 2, 0, 4]
    assert ranks_of(pa.array(texts)).group_starts().tolist() == [0, 1, 2, 3, 4]


def test_more_rows_than_16_bits_count_are_sorted_by_several_columns() -> None:
    """Ties in every column, so that each has to decide for some rows."""
    rows = 150_000
    random = np.random.default_rng(7)
    flags = random.random(rows) < 0.5
    numbers = random.integers(-3, 3, rows)
    texts = [f"customer-{number:05d}" for number in random.integers(0, 20_000, rows)]
    keys = list(zip(flags.tolist(), numbers.tolist(), texts, strict=True))
    assert order_of(pa.array(flags), pa.array(numbers), pa.array(texts)) == expected_order(keys)


def test_a_million_rows_of_one_column_keep_the_order_of_their_ties() -> None:
    values = np.random.default_rng(8).integers(0, 1000, 1_000_000)
    assert ranks_of(pa.array(values)).sort_indices().tolist() == np.argsort(values, kind="stable").tolist()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_without_keys_all_rows_are_equal(rows: int) -> None:
    ranks = RowOrder(()).ranks(pa.record_batch({"a": list(range(rows))[::-1]}))
    assert ranks.sort_indices().tolist() == list(range(rows))
    assert ranks.group_starts().tolist() == [0][:rows]
    assert ranks.count_up_to(()) == rows
    assert ranks.count_up_to((), inclusive=False) == 0


# --- comparing across batches ------------------------------------------------------------------------------


@each_type
@few_each
@given(data=st.data())
def test_keys_of_different_batches_compare_as_the_values_do(case: KeyCase, data: st.DataObject) -> None:
    """Nulls in one batch must not change what the keys of the other look like."""
    here = data.draw(case.lists(min_size=1, max_size=8))
    there = [value for value in data.draw(case.lists(max_size=8)) if value is not None]
    mine, theirs = ranks_of(case.array(here)), ranks_of(case.array(there))
    for (i, a), (j, b) in itertools.product(enumerate(here), enumerate(there)):
        assert (mine.key(i) < theirs.key(j)) == (case.key(a) < case.key(b))
        assert (mine.key(i) == theirs.key(j)) == (case.key(a) == case.key(b))


@each_type
@few_each
@given(data=st.data())
def test_ranks_put_together_are_those_of_the_batch_put_together(case: KeyCase, data: st.DataObject) -> None:
    values = data.draw(case.lists(min_size=1, max_size=30))
    cut = data.draw(st.integers(0, len(values)))
    again = data.draw(st.integers(0, cut))
    whole = ranks_of(case.array(values))
    parts = [whole.slice(0, again), ranks_of(case.array(values[again:cut])), whole.slice(cut, len(values))]
    together = concat_ranks(parts)
    assert together.rows == len(values)
    assert [together.key(row) for row in range(len(values))] == [whole.key(row) for row in range(len(values))]
    keys = [case.key(value) for value in values]
    assert together.sort_indices().tolist() == expected_order(keys)
    assert whole.slice(again, cut).sort_indices().tolist() == expected_order(keys[again:cut])


@each_type
@few_each
@given(data=st.data())
def test_the_number_of_rank_columns_depends_on_the_type_alone(case: KeyCase, data: st.DataObject) -> None:
    values = data.draw(case.lists(max_size=5))
    assert len(ranks_of(case.array(values)).columns) == len(ranks_of(case.array([])).columns)


def test_the_schema_tells_how_many_rank_columns_there_are() -> None:
    inner = pa.struct([("number", pa.int64()), ("text", pa.string())])
    schema = pa.schema([("a", pa.int32()), ("b", pa.int64()), ("c", inner)])
    counts = [len(RowOrder(keys).ranks_of_no_rows(schema)) for keys in [(), (0,), (1,), (2,), (0, 2)]]
    assert counts == [0, 1, 2, 5, 6]


# --- directions --------------------------------------------------------------------------------------------


def directed_ranks(keys: Sequence[SortKey], *columns: pa.Array) -> Ranks:
    batch = pa.RecordBatch.from_arrays(list(columns), [str(number) for number in range(len(columns))])
    return RowOrder(keys).ranks(batch)


@each_way
@each_type
@few_each_way
@given(data=st.data())
def test_rows_are_sorted_and_compared_in_the_direction_of_their_key(
    case: KeyCase, key: SortKey, data: st.DataObject
) -> None:
    values = data.draw(case.lists(min_size=1, max_size=30))
    order = directed((key,), [case])
    places = [order((value,)) for value in values]
    ranks = directed_ranks((key,), case.sliced_array(values))
    assert ranks.sort_indices().tolist() == expected_order(places)
    ordered = ranks.take(ranks.sort_indices())
    places.sort()
    assert ordered.group_starts().tolist() == expected_starts(places)
    # a batch with other nulls than this one, or none
    others = data.draw(case.lists(min_size=1, max_size=5))
    bounds = directed_ranks((key,), case.array(others))
    for row, other in enumerate(others):
        bound, place = bounds.key(row), order((other,))
        assert ordered.count_up_to(bound) == bisect_right(places, place)
        assert ordered.count_up_to(bound, inclusive=False) == bisect_left(places, place)
        assert (ordered.key(0) < bound) == (places[0] < place)
        assert (bound < ordered.key(0)) == (place < places[0])
        assert (ordered.key(0) == bound) == (places[0] == place)


@settings(max_examples=200)
@given(data=st.data())
def test_several_keys_have_directions_of_their_own_across_batches(data: st.DataObject) -> None:
    cases = data.draw(st.lists(st.sampled_from(KEY_CASES), min_size=2, max_size=3))
    keys = data.draw(sort_keys(len(cases)))
    rows = data.draw(st.integers(1, 30))
    table = list(zip(*(data.draw(case.lists(min_size=rows, max_size=rows)) for case in cases), strict=True))
    cut = data.draw(st.integers(0, rows))
    parts = [
        directed_ranks(keys, *(case.array([row[at] for row in part]) for at, case in enumerate(cases)))
        for part in (table[:cut], table[cut:])
    ]
    assert len(parts[0].columns) == len(parts[1].columns)
    together = concat_ranks(parts)
    order = directed(keys, cases)
    places = [order(row) for row in table]
    assert together.sort_indices().tolist() == expected_order(places)
    ordered = together.take(together.sort_indices())
    for row, place in enumerate(places):
        bound = parts[row >= cut].key(row - cut * (row >= cut))
        assert ordered.count_up_to(bound) == bisect_right(sorted(places), place)
        assert ordered.count_up_to(bound, inclusive=False) == bisect_left(sorted(places), place)
    assert ordered.group_starts().tolist() == expected_starts(sorted(places))


@pytest.mark.parametrize("name", ASCENDING)
def test_nulls_and_nan_are_where_spark_has_them(name: str) -> None:
    ascending = ASCENDING[name]
    values = list(range(1, len(ascending)))
    shuffled = np.random.default_rng(3).permutation(len(ascending))
    for key, expected in [
        (SortKey(0), [0, *values]),
        (SortKey(0, nulls_last=True), [*values, 0]),
        (SortKey(0, True), [0, *values[::-1]]),
        (SortKey(0, True, True), [*values[::-1], 0]),
    ]:
        found = directed_ranks((key,), ascending.take(pa.array(shuffled))).sort_indices()
        assert shuffled[found].tolist() == expected


def test_nulls_inside_a_struct_stay_with_the_direction_of_the_struct() -> None:
    values = [None, {"a": None}, {"a": 1}, {"a": 2}]
    for key, expected in [
        (SortKey(0, nulls_last=True), [1, 2, 3, 0]),
        (SortKey(0, True), [0, 3, 2, 1]),
        (SortKey(0, True, True), [3, 2, 1, 0]),
    ]:
        assert directed_ranks((key,), pa.array(values)).sort_indices().tolist() == expected


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 65, 1000])
def test_of_descending_strings_a_prefix_comes_behind_what_it_begins(length: int) -> None:
    stem = "s" * length
    texts = [stem, stem + "\0", stem + "a", stem[:-1], stem + "\0\0", None]
    found = directed_ranks((SortKey(0, True, True),), pa.array(texts)).sort_indices()
    assert found.tolist() == [2, 4, 1, 0, 3, 5]


def test_plain_positions_are_keys_that_ascend_with_nulls_first() -> None:
    order = RowOrder((0, 2))
    assert order.keys == (SortKey(0, False, False), SortKey(2, False, False))
    assert order.columns == (0, 2)
    assert order == RowOrder([SortKey(0), 2])
    assert hash(order) == hash(RowOrder((0, 2)))
    assert pickle.loads(pickle.dumps(order)) == order
    assert order != RowOrder((0, SortKey(2, True)))


def test_an_order_is_told_as_in_sql() -> None:
    ways = [SortKey(1), SortKey(0, True, True), SortKey(1, nulls_last=True), SortKey(1, True)]
    told = RowOrder(ways).describe(["a", "b"])
    assert told == ("b", "a desc", "b nulls last", "b desc nulls first")


# --- groups ------------------------------------------------------------------------------------------------


@each_type
@few_each
@given(data=st.data())
def test_a_group_starts_where_the_key_changes(case: KeyCase, data: st.DataObject) -> None:
    values = sorted(data.draw(case.lists(max_size=30)), key=case.key)
    starts = ranks_of(case.sliced_array(values)).group_starts()
    assert starts.tolist() == expected_starts([case.key(value) for value in values])


# --- what cannot be ordered --------------------------------------------------------------------------------


@each_type
def test_every_type_with_an_order_is_accepted(case: KeyCase) -> None:
    RowOrder.check("column", case.type)
    assert ranks_of(case.array([None, None])).sort_indices().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (pa.list_(pa.int64()), "k of type list"),
        (pa.map_(pa.string(), pa.int64()), "k of type map"),
        (pa.struct([("a", pa.struct([("b", pa.list_(pa.int8()))]))]), r"k\.a\.b of type list"),
    ],
)
def test_lists_and_maps_are_refused_by_their_path(kind: pa.DataType, place: str) -> None:
    with pytest.raises(ColumnError, match=f"grouped by column {place}"):
        RowOrder.check("k", kind)


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=60, max_size=70), min_size=1, max_size=30))
def test_long_strings_behind_another_key_are_sorted_too(values: list[bytes]) -> None:
    flags = [number % 2 == 0 for number in range(len(values))]
    keys = list(zip(flags, values, strict=True))
    assert order_of(pa.array(flags), pa.array(values, pa.binary())) == expected_order(keys)
