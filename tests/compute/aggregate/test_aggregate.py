"""Aggregates of generated rows against plain Python, through both passes: however rows are cut into batches
and into map tasks, however little memory there is, and whatever is grouped before the shuffle."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_cases import DOUBLE, INT64, KEY_CASES, STRING, KeyCase

from sortshuffle.compute.aggregate.aggregation import AggregateCall, Aggregation, FirstRows, Reducer
from sortshuffle.compute.aggregate.columns import normalise
from sortshuffle.compute.aggregate.functions import (
    AverageDecimal,
    AverageDouble,
    Count,
    CountTrue,
    Function,
    SumDecimal,
    SumDouble,
    SumLong,
    Variance,
)
from sortshuffle.compute.aggregate.partial import partial
from sortshuffle.compute.aggregate.results import first_rows, join_small, results
from sortshuffle.compute.aggregate.segments import Segments
from sortshuffle.compute.aggregate.value_functions import Collect, Extreme, First
from sortshuffle.errors import ResultOverflowError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder

KIB, MIB = 1 << 10, 1 << 20
Values = list[Any]
ROWS = pa.schema(
    [
        ("k", pa.string()),
        ("small", pa.int32()),
        ("long", pa.int64()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("money", pa.decimal128(9, 2)),
        ("huge", pa.decimal128(38, 4)),
        ("list", pa.list_(pa.field("element", pa.int32()))),
        ("pair", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)
HALVES = st.integers(-1000, 1000).map(lambda number: number / 2)  # of which sums are exact
COLUMNS = {
    "k": st.none() | st.sampled_from("abcde"),
    "small": st.none() | st.integers(-(2**31), 2**31 - 1),
    "long": st.none() | st.integers(-(2**40), 2**40),
    "double": st.none() | HALVES,
    "text": st.none() | st.sampled_from(["", "x", "y" * 70, "é"]),
    "flag": st.none() | st.booleans(),
    "money": st.none() | st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "huge": st.none() | st.integers(-(10**30), 10**30).map(lambda n: Decimal(f"{n}E-4")),
    "list": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    "pair": st.none()
    | st.fixed_dictionaries({"a": st.none() | st.integers(0, 3), "b": st.none() | st.sampled_from("xy")}),
}


def tables(max_size: int = 40) -> st.SearchStrategy[pa.RecordBatch]:
    rows = st.lists(st.fixed_dictionaries(COLUMNS), max_size=max_size)
    return rows.map(lambda some: pa.RecordBatch.from_pylist(some, schema=ROWS))


# --- the oracle --------------------------------------------------------------------------------------------


def there(values: Values) -> Values:
    return [value for value in values if value is not None]


def or_null(function: Callable[[Values], Any]) -> Callable[[Values], Any]:
    """Of the values that are not null; null if there are none."""
    return lambda values: function(there(values)) if there(values) else None


def variance(values: Values, *, sample: bool, root: bool) -> float | None:
    values = there(values)
    divisor = len(values) - sample
    if divisor <= 0:
        return None
    mean = sum(values) / len(values)
    result = sum((value - mean) ** 2 for value in values) / divisor
    return math.sqrt(result) if root else result


def money_average(values: Values) -> Decimal:
    return (sum(values) / len(values)).quantize(Decimal("1E-6"), "ROUND_HALF_UP")


def struct_key(value: Any) -> Any:
    return [(part is not None, part) for part in value.values()] if isinstance(value, dict) else value


@dataclass(frozen=True)
class Case:
    """``expected``: of the values of the one column that it aggregates, in the order of the rows."""

    function: Function
    column: str
    result: pa.DataType
    expected: Callable[[Values], Any]
    distinct: bool = False


def lists_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def kind_of(column: str) -> pa.DataType:
    return ROWS.field(column).type


CASES = [
    Case(Count(), "text", pa.int64(), lambda values: len(there(values))),
    Case(CountTrue(), "flag", pa.int64(), lambda values: values.count(True)),
    Case(SumLong("sum(small)", True), "small", pa.int64(), or_null(sum)),
    Case(SumLong("sum(long)", True), "long", pa.int64(), or_null(sum)),
    Case(SumDouble(), "double", pa.float64(), or_null(sum)),
    Case(SumDecimal("", pa.decimal128(19, 2), True), "money", pa.decimal128(19, 2), or_null(sum)),
    Case(SumDecimal("", pa.decimal128(38, 4), True), "huge", pa.decimal128(38, 4), or_null(sum)),
    Case(AverageDouble(), "double", pa.float64(), or_null(lambda some: sum(some) / len(some))),
    Case(AverageDouble(), "small", pa.float64(), or_null(lambda some: sum(some) / len(some))),
    Case(
        AverageDecimal("", pa.decimal128(13, 6), pa.decimal128(19, 2), True),
        "money",
        pa.decimal128(13, 6),
        or_null(money_average),
    ),
    *(
        Case(
            Variance(sample, root),
            "double",
            pa.float64(),
            lambda values, sample=sample, root=root: variance(values, sample=sample, root=root),
        )
        for sample in (False, True)
        for root in (False, True)
    ),
    *(
        Case(
            Extreme(kind_of(column), greatest),
            column,
            kind_of(column),
            or_null(lambda some, pick=max if greatest else min: pick(some, key=struct_key)),
        )
        for column in ("small", "long", "double", "text", "flag", "money", "huge", "pair")
        for greatest in (False, True)
    ),
    *(
        Case(
            First(kind_of(column), last, ignore_nulls),
            column,
            kind_of(column),
            lambda values, at=-1 if last else 0, skip=ignore_nulls: (
                (there(values) if skip else values) or [None, None]
            )[at],
        )
        for column in ("small", "list", "pair")
        for last in (False, True)
        for ignore_nulls in (False, True)
    ),
    *(
        Case(Collect(lists_of(kind_of(column))), column, lists_of(kind_of(column)), there)
        for column in ("small", "text", "list")
    ),
    Case(Count(), "text", pa.int64(), lambda values: len(set(there(values))), distinct=True),
    Case(SumLong("", True), "small", pa.int64(), or_null(lambda some: sum(set(some))), distinct=True),
    Case(
        Collect(lists_of(pa.bool_())),
        "flag",
        lists_of(pa.bool_()),
        lambda values: sorted(set(there(values))),
        distinct=True,
    ),
]
WITHOUT_SETS = [case for case in CASES if not case.distinct]


# --- both passes -------------------------------------------------------------------------------------------


def cut(batch: pa.RecordBatch, borders: Sequence[int]) -> list[pa.RecordBatch]:
    edges = sorted({0, *(border for border in borders if border < batch.num_rows), batch.num_rows})
    return [batch.slice(start, stop - start) for start, stop in pairwise(edges)]


def shuffled(
    rows: pa.RecordBatch, reducers: Callable[[], list[Reducer]], borders: Sequence[int], memory: int
) -> list[pa.RecordBatch]:
    """What two map tasks send of these rows, in their order."""
    sent: list[pa.RecordBatch] = []
    middle = rows.num_rows // 2
    for part in (rows.slice(0, middle), rows.slice(middle)):
        budget = MemoryBudget(memory)
        sent += partial(iter(cut(part, borders)), reducers(), budget)
        assert budget.used == 0
    return sent


def in_key_order(batches: list[pa.RecordBatch], order: RowOrder, schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema)
    assert all(batch.schema.equals(schema) for batch in batches)
    rows = pa.concat_batches(batches)
    return rows.take(pa.array(order.ranks(rows).sort_indices()))


def aggregated(
    rows: pa.RecordBatch,
    keys: Sequence[str],
    cases: Sequence[Case],
    borders: Sequence[int] = (),
    memory: int = 1 << 20,
    rows_at_a_time: int = 1 << 16,
) -> list[tuple[Any, ...]]:
    at = [rows.schema.get_field_index(key) for key in keys]
    calls = tuple(
        AggregateCall(case.function, (rows.schema.get_field_index(case.column),), case.distinct)
        for case in cases
    )
    aggregation = Aggregation(rows.schema, tuple(at), calls)
    sent = shuffled(rows, aggregation.reducers, borders, memory)
    states = in_key_order(sent, aggregation.order, aggregation.states)
    schema = pa.schema(
        [*(rows.schema.field(each) for each in at), *((str(n), each.result) for n, each in enumerate(cases))]
    )
    batches = cut(states, borders) if states.num_rows else []
    found = list(results(iter(batches), aggregation, schema, rows_at_a_time))
    assert all(batch.schema.equals(schema) and batch.num_rows for batch in found)
    return [row for batch in found for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def expected(rows: pa.RecordBatch, keys: Sequence[str], cases: Sequence[Case]) -> list[tuple[Any, ...]]:
    table = rows.to_pylist()
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {} if keys else {(): []}
    for row in table:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    in_order = sorted(groups.items(), key=lambda group: [(part is not None, part) for part in group[0]])
    return [
        (*key, *(case.expected([row[case.column] for row in group]) for case in cases))
        for key, group in in_order
    ]


def close(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> bool:
    """The same, but for the last digits of floating point results."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                assert a == pytest.approx(b, rel=1e-12, abs=1e-9)
            else:
                assert a == b
    return True


@settings(max_examples=60)
@given(
    rows=tables(),
    keys=st.sampled_from([(), ("k",), ("k", "flag"), ("small",)]),
    cases=st.lists(st.sampled_from(CASES), min_size=1, max_size=8),
    borders=st.lists(st.integers(0, 40), max_size=6),
    memory=st.sampled_from([1, 2000, 20_000, 1 << 20]),
    rows_at_a_time=st.sampled_from([1, 5, 1 << 16]),
)
def test_aggregates_are_those_of_plain_python(
    rows: pa.RecordBatch,
    keys: Sequence[str],
    cases: list[Case],
    borders: list[int],
    memory: int,
    rows_at_a_time: int,
) -> None:
    found = aggregated(rows, keys, cases, borders, memory, rows_at_a_time)
    assert close(found, expected(rows, keys, cases))


@pytest.mark.parametrize("memory", [1, 30_000, 1 << 22])
@pytest.mark.parametrize("cases", [WITHOUT_SETS, CASES], ids=["plain", "with sets"])
def test_all_aggregates_of_many_rows_at_once(cases: list[Case], memory: int) -> None:
    random = np.random.default_rng(8)
    pool = [
        {"k": str(k % 7), "small": k, "double": k / 2, "text": str(k % 3), "flag": k % 2 == 0, "list": [k]}
        for k in range(50)
    ]
    picked = [pool[at] for at in random.integers(0, 50, 2000)]
    rows = pa.RecordBatch.from_pylist(picked, schema=ROWS)
    found = aggregated(rows, ["k"], cases, range(0, 2000, 150), memory, 64)
    assert close(found, expected(rows, ["k"], cases))


@pytest.mark.parametrize("case", KEY_CASES, ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_keys_values_and_distinct_values_of_every_type(case: KeyCase, data: st.DataObject) -> None:
    """The least and the greatest value, how many there are and how many different ones, of each group; each
    group's key equals those of its rows."""
    keys = data.draw(case.lists(max_size=20))
    values = data.draw(case.lists(min_size=len(keys), max_size=len(keys)))
    rows = pa.record_batch([case.sliced_array(keys), case.sliced_array(values)], ["k", "v"])
    calls = (
        AggregateCall(Extreme(case.type, False), (1,)),
        AggregateCall(Extreme(case.type, True), (1,)),
        AggregateCall(Count(), (1,)),
        AggregateCall(Count(), (1,), distinct=True),
    )
    aggregation = Aggregation(rows.schema, (0,), calls)
    states = in_key_order(
        shuffled(rows, aggregation.reducers, [3, 9], 1 << 20), aggregation.order, aggregation.states
    )
    schema = pa.schema(
        [("k", case.type), ("least", case.type), ("most", case.type), ("n", pa.int64()), ("d", pa.int64())]
    )
    found = list(results(iter([states] if states.num_rows else []), aggregation, schema, 4))
    groups: dict[Any, list[Any]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(case.key(key), []).append(case.key(value))
    for group in sorted(groups):
        some = [value for value in groups[group] if value != ()]
        groups[group] = [min(some, default=()), max(some, default=()), len(some), len(set(some))]
    result = pa.Table.from_batches(found, schema)
    assert [
        (case.key(k), [case.key(least), case.key(most), n, d])
        for k, least, most, n, d in zip(*(python(case, c) for c in result.columns), strict=True)
    ] == sorted(groups.items())


def python(case: KeyCase, column: pa.ChunkedArray) -> list[Any]:
    """The values as the case's key function takes them."""
    whole = column.combine_chunks()
    return (whole.view(case.storage) if case.storage and whole.type == case.type else whole).to_pylist()


# --- what only some rows show ------------------------------------------------------------------------------


def numbers_table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_without_keys_no_rows_are_one_group_and_with_keys_none() -> None:
    rows = pa.RecordBatch.from_pylist([], schema=ROWS)
    assert aggregated(rows, (), CASES) == [tuple(case.expected([]) for case in CASES)]
    assert aggregated(rows, ("k",), CASES) == []


def test_a_group_that_has_only_nulls_for_a_set_is_there_all_the_same() -> None:
    rows = pa.record_batch([["a", "a", "b"], pa.array([None, None, 3], pa.int64())], ["k", "v"])
    case = Case(Count(), "v", pa.int64(), len, distinct=True)
    assert aggregated(rows, ["k"], [case]) == [("a", 0), ("b", 1)]


def test_different_pairs_are_counted_where_neither_is_null() -> None:
    rows = numbers_table(k=[1] * 6, a=[1, 1, 1, None, 2, 2], b=[1, 1, 2, 1, None, 2])
    aggregation = Aggregation(rows.schema, (0,), (AggregateCall(Count(), (1, 2), distinct=True),))
    states = in_key_order(
        shuffled(rows, aggregation.reducers, [], 1 << 20), aggregation.order, aggregation.states
    )
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    (found,) = results(iter([states]), aggregation, schema)
    assert found.to_pydict() == {"k": [1], "n": [3]}


def test_nan_is_the_greatest_and_infinite_values_make_averages_as_in_ieee754() -> None:
    inf, nan = math.inf, math.nan
    rows = numbers_table(k=[1, 1, 2, 2, 3, 3, 4], v=[nan, 1.0, inf, -inf, nan, nan, inf])
    cases = [
        Case(Extreme(pa.float64(), False), "v", pa.float64(), min),
        Case(Extreme(pa.float64(), True), "v", pa.float64(), max),
        Case(AverageDouble(), "v", pa.float64(), min),
        Case(Variance(False, False), "v", pa.float64(), min),
    ]
    found = aggregated(rows, ["k"], cases)
    assert repr(found) == repr(
        [(1, 1.0, nan, nan, nan), (2, -inf, inf, nan, nan), (3, nan, nan, nan, nan), (4, inf, inf, inf, nan)]
    )


ZEROS = st.sampled_from([0.0, -0.0, 0.0, -0.0, None, math.nan, 1.5, -1.5])


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), ZEROS), max_size=30),
    kind=st.sampled_from([pa.float64(), pa.float32(), pa.struct([("d", pa.float64())])]),
    borders=st.lists(st.integers(0, 30), max_size=4),
    memory=st.sampled_from([1, 1 << 20]),
    rows_at_a_time=st.sampled_from([1, 1 << 16]),
)
def test_the_first_of_values_that_are_equal_is_the_least_and_the_greatest(
    rows: list[tuple[int, float | None]],
    kind: pa.DataType,
    borders: list[int],
    memory: int,
    rows_at_a_time: int,
) -> None:
    """Zeros of either sign are equal, and which one it is shows when it is cast to text or divided by."""
    values: Values = [value for _, value in rows]
    if pa.types.is_struct(kind):
        values = [None if value is None else {"d": value} for value in values]
    table = pa.record_batch(
        [pa.array([key for key, _ in rows], pa.int64()), pa.array(values, kind)], ["k", "v"]
    )

    def ordered_as_in_spark(value: Any) -> tuple[bool, float]:
        number = value["d"] if isinstance(value, dict) else value
        return (True, 0.0) if math.isnan(number) else (False, number)

    cases = [
        Case(
            Extreme(kind, greatest),
            "v",
            kind,
            or_null(lambda some, pick=max if greatest else min: pick(some, key=ordered_as_in_spark)),
        )
        for greatest in (False, True)
    ]
    found = aggregated(table, ["k"], cases, borders, memory, rows_at_a_time)
    assert repr(found) == repr(expected(table, ["k"], cases))


def test_a_sum_of_zeros_has_no_sign_as_in_spark() -> None:
    rows = numbers_table(k=[1, 2, 2, 3, 3], v=[-0.0, -0.0, -0.0, -0.0, 0.0])
    cases = [Case(SumDouble(), "v", pa.float64(), sum), Case(AverageDouble(), "v", pa.float64(), sum)]
    assert repr(aggregated(rows, ["k"], cases)) == repr([(k, 0.0, 0.0) for k in (1, 2, 3)])


def test_a_sum_that_does_not_fit_is_an_error_that_names_it_or_wraps_around() -> None:
    rows = numbers_table(k=[1, 1, 2], v=[2**63 - 1, 1, 5])
    checked = Case(SumLong("sum(v)", True), "v", pa.int64(), sum)
    with pytest.raises(ResultOverflowError, match=r"sum\(v\) does not fit into a long") as caught:
        aggregated(rows, ["k"], [checked])
    assert isinstance(caught.value, ArithmeticError)
    wrapped = Case(SumLong("sum(v)", False), "v", pa.int64(), sum)
    assert aggregated(rows, ["k"], [wrapped]) == [(1, -(2**63)), (2, 5)]


def test_a_decimal_sum_that_does_not_fit_is_an_error_or_null_for_good() -> None:
    most, least = Decimal(10**38 - 1), Decimal(1 - 10**38)
    kind = pa.decimal128(38, 0)
    rows = pa.record_batch(
        [[1, 1, 1, 1, 2], pa.array([most, most, least, None, Decimal(7)], kind)], ["k", "v"]
    )
    with pytest.raises(ResultOverflowError, match=r"total does not fit into a decimal128\(38, 0\)"):
        aggregated(rows, ["k"], [Case(SumDecimal("total", kind, True), "v", kind, sum)])
    lenient = [
        Case(SumDecimal("total", kind, False), "v", kind, sum),
        Case(AverageDecimal("mean", pa.decimal128(38, 4), kind, False), "v", pa.decimal128(38, 4), sum),
    ]
    # the first map task has two of the greatest, so that its sum does not fit, whatever follows
    assert aggregated(rows, ["k"], lenient) == [(1, None, None), (2, Decimal(7), Decimal(7))]


def test_an_average_that_does_not_fit_is_an_error_or_null() -> None:
    rows = pa.record_batch([[1], pa.array([Decimal(10**36)], pa.decimal128(38, 0))], ["k", "v"])
    for ansi in (True, False):
        function = AverageDecimal("mean", pa.decimal128(38, 4), pa.decimal128(38, 0), ansi)
        case = Case(function, "v", pa.decimal128(38, 4), sum)
        if ansi:
            with pytest.raises(ResultOverflowError, match="mean does not fit"):
                aggregated(rows, ["k"], [case])
        else:
            assert aggregated(rows, ["k"], [case]) == [(1, None)]


def test_the_variance_of_close_values_far_from_zero_keeps_its_digits() -> None:
    values = [1e9 + each for each in (4.0, 7.0, 13.0, 16.0)] * 50
    rows = numbers_table(k=[1] * 200, v=values)
    case = Case(Variance(False, False), "v", pa.float64(), sum)
    found = aggregated(rows, ["k"], [case], range(0, 200, 7), memory=1)
    assert found == [(1, pytest.approx(22.5, rel=1e-6))]  # the means have 7 digits behind the point


@pytest.mark.parametrize("value", [0.1, 1e308, -1e308, 5e-324])
def test_the_variance_of_equal_values_is_0(value: float) -> None:
    """As in Spark: a query may ask which groups are constant."""
    rows = numbers_table(k=[1, 2, 1, 2, 1, 2, 3], v=[value, None, value, 1.0, value, 3.0, None])
    case = Case(Variance(True, True), "v", pa.float64(), sum)
    expected = [(1, 0.0), (2, pytest.approx(2**0.5)), (3, None)]
    assert sorted(aggregated(rows, ["k"], [case])) == expected
    assert sorted(aggregated(rows, ["k"], [case], range(7), memory=1)) == expected


def test_keys_come_out_normalised_inside_of_structs_too() -> None:
    kind = pa.struct([("d", pa.float64()), ("f", pa.struct([("x", pa.float32())]))])
    column = pa.array(
        [None, {"d": -0.0, "f": None}, {"d": None, "f": {"x": -0.0}}, {"d": -math.nan, "f": {"x": 1.5}}], kind
    )
    assert repr(normalise(column).to_pylist()) == repr(
        [None, {"d": 0.0, "f": None}, {"d": None, "f": {"x": 0.0}}, {"d": math.nan, "f": {"x": 1.5}}]
    )
    assert normalise(column).type == kind
    bits = np.asarray(normalise(pa.array([-math.nan, math.nan]))).view(np.int64)
    assert bits[0] == bits[1]
    assert repr(normalise(column.slice(1, 2)).to_pylist()) == repr(normalise(column).to_pylist()[1:3])
    plain = pa.array([1, None])
    assert normalise(plain) is plain


def test_columns_of_states_have_names_of_their_own() -> None:
    rows = pa.schema([("state", pa.int64()), ("tag", pa.int64()), ("state 2", pa.int64())])
    calls = (
        AggregateCall(Count(), ()),
        AggregateCall(SumLong("", True), (1,)),
        AggregateCall(Count(), (1,), distinct=True),
    )
    names = Aggregation(rows, (0, 1, 2), calls).states.names
    assert len(set(names)) == len(names) == 7


# --- first rows --------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    data=st.data(),
    memory=st.sampled_from([1, 500, 1 << 20]),
    borders=st.lists(st.integers(0, 30), max_size=5),
    rows_at_a_time=st.sampled_from([1, 6, 1 << 16]),
)
def test_the_first_row_of_each_key_is_kept(
    data: st.DataObject, memory: int, borders: list[int], rows_at_a_time: int
) -> None:
    cases = data.draw(st.permutations([INT64, STRING, DOUBLE]))[:2]
    count = data.draw(st.integers(0, 30))
    columns = [data.draw(case.lists(min_size=count, max_size=count)) for case in cases]
    rows = pa.record_batch(
        [pa.array(range(count), pa.int32()), *(c.array(v) for c, v in zip(cases, columns, strict=True))],
        ["row", "a", "b"],
    )
    sent = shuffled(rows, lambda: [FirstRows((1, 2))], borders, memory)
    in_order = in_key_order(sent, RowOrder((1, 2)), rows.schema)
    kept = [
        row
        for batch in first_rows(iter(cut(in_order, borders)), (1, 2), rows_at_a_time)
        for row in batch["row"].to_pylist()
    ]
    first: dict[Any, int] = {}
    for row, values in enumerate(zip(*columns, strict=True)):
        first.setdefault(tuple(case.key(value) for case, value in zip(cases, values, strict=True)), row)
    assert sorted(kept) == sorted(first.values())


def test_rows_that_pass_as_they_are_come_behind_those_that_wait() -> None:
    texts = [None, None, "a" * 6, "", None, None, None, ""]
    numbers = pa.array([None, 0, *[None] * 6], pa.int64())
    rows = pa.record_batch([pa.array(range(8), pa.int32()), numbers, pa.array(texts)], ["row", "a", "b"])
    sent = partial(iter(cut(rows, [4])), [FirstRows((1, 2))], MemoryBudget(500))
    kept = [row for batch in sent for row in batch["row"].to_pylist()]
    assert kept == sorted(kept)
    assert {0, 1, 2, 3} <= set(kept)


def test_rows_of_many_bytes_do_not_wait_for_others() -> None:
    """However few they are: of 8 batches with 10 MiB each, the first is delivered before the next is read."""
    texts = pa.array(["x" * MIB] * 10)
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for start in range(0, 80, 10):
            read += 1
            yield pa.record_batch([np.arange(start, start + 10), texts], ["k", "v"])

    found = first_rows(batches(), (0,))
    assert (next(found)["k"].to_pylist(), read) == ([*range(10)], 1)
    assert sum(batch.num_rows for batch in found) == 70

    read = 0
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    aggregation = Aggregation(schema, (0,), (AggregateCall(Extreme(pa.string(), False), (1,)),))
    groups = results(batches(), aggregation, schema)
    assert (next(groups)["k"].to_pylist(), read) == ([*range(9)], 1)
    assert [key for batch in groups for key in batch["k"].to_pylist()] == [*range(9, 80)]


def test_a_long_list_is_not_copied_for_every_batch_that_adds_to_it() -> None:
    copied = 0

    class Watched(Collect):
        def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
            nonlocal copied
            copied += len(states[0].flatten())
            return super().combined(states, segments)

    kind, each = lists_of(pa.int64()), 20_000
    rows = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    aggregation = Aggregation(rows, (0,), (AggregateCall(Watched(kind), (1,)),))
    values = [np.arange(start, start + each) for start in range(0, 128 * each, each)]
    states = (
        pa.record_batch(
            [[0], pa.ListArray.from_arrays([0, each], pa.array(some), kind)], schema=aggregation.states
        )
        for some in values
    )
    (found,) = results(states, aggregation, pa.schema([("k", pa.int64()), ("v", kind)]), rows_at_a_time=1)
    assert np.array_equal(found["v"].flatten(), np.concatenate(values))
    # each value when it comes, and twice with others; with all that came before it each time: 64 times
    assert copied <= 4 * 128 * each


def test_a_list_that_no_column_can_hold_is_an_error_that_says_what_to_do() -> None:
    """Of booleans, which are small."""
    kind, half = lists_of(pa.bool_()), 2**30
    rows = pa.schema([("k", pa.int64()), ("v", pa.bool_())])
    aggregation = Aggregation(rows, (0,), (AggregateCall(Collect(kind), (1,)),))
    flags = pa.Array.from_buffers(pa.bool_(), half, [None, pa.py_buffer(np.zeros(half // 8, np.uint8))])
    lists = pa.ListArray.from_arrays(pa.array([0, half], pa.int32()), flags, kind)
    states = (pa.record_batch([[0], lists], schema=aggregation.states) for _ in range(2))
    with pytest.raises(ResultOverflowError, match=r"2\*\*31 - 1 values.* takes an iterator of batches"):
        list(results(states, aggregation, pa.schema([("k", pa.int64()), ("v", kind)])))


def test_batches_are_joined_up_to_a_size_and_empty_ones_left_out() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for rows in (0, 1, 1, 0, 5, 20, 1):
            yield pa.record_batch([np.arange(rows)], ["n"])

    assert [batch.num_rows for batch in join_small(batches(), 10)] == [7, 20, 1]
    assert list(join_small(iter([]), 10)) == []


def test_batches_are_joined_up_to_a_number_of_bytes() -> None:
    """Half of 8 MiB are enough, and no more than 8 MiB are joined."""

    def batches() -> Iterator[pa.RecordBatch]:
        for mib in (1, 2, 1, 1, 8, 3, 4, 9):
            yield pa.record_batch([pa.array(["x" * mib * MIB])], ["s"])

    assert [round(batch.nbytes / MIB) for batch in join_small(batches(), 1000)] == [4, 1, 8, 7, 9]


def test_slices_of_a_large_batch_are_joined_by_their_own_bytes() -> None:
    whole = pa.record_batch([pa.array(["x" * KIB] * 8 * KIB)], ["s"])
    slices = (whole.slice(at, 1) for at in range(100))
    assert [batch.num_rows for batch in join_small(slices, 1000)] == [100]


def test_a_column_that_stands_in_a_batch_twice_counts_twice() -> None:
    """A concatenation copies it twice. Without that, 64 batches of 80 KiB would be joined, of 40 each."""
    text = pa.array(["x" * KIB] * 40)
    batches = (pa.record_batch([text, text], ["a", "b"]) for _ in range(64))
    assert max(batch.nbytes for batch in join_small(batches, 100_000)) < 5 * MIB


def test_an_open_group_keeps_no_message_alive() -> None:
    """Each message has one large group, of which little is held: a short list, and the greatest text."""
    kind, rows = lists_of(pa.int64()), 1000
    given_rows = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.string())])
    calls = (AggregateCall(Collect(kind), (1,)), AggregateCall(Extreme(pa.string(), False), (2,)))
    aggregation = Aggregation(given_rows, (0,), calls)
    messages: list[weakref.ref[Any]] = []

    def states() -> Iterator[pa.RecordBatch]:
        lists = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), pa.array(range(rows)), kind)
        batch = pa.record_batch(
            [pa.array([0] * rows), lists, pa.array(["x" * 5 * KIB] * rows)], schema=aggregation.states
        )
        sealed = batch.serialize().to_pybytes()
        for _ in range(16):
            memory = np.frombuffer(sealed, np.uint8).copy()
            messages.append(weakref.ref(memory))
            yield pa.ipc.read_record_batch(pa.py_buffer(memory), aggregation.states)
            del memory
            alive.append(sum(message() is not None for message in messages))

    alive: list[int] = []
    found = results(states(), aggregation, pa.schema([("k", pa.int64()), ("v", kind), ("t", pa.string())]))
    (group,) = found
    assert len(group["v"][0]) == 16 * rows
    assert max(alive) <= 2  # the batch that is combined, and the one before it
