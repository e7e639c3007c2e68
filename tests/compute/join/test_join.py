"""`sortshuffle.compute.join.hash_join`: every kind of join, against nested loops in plain Python."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import arrow_memory
from hypothesis import given
from hypothesis import strategies as st
from key_cases import KEY_CASES, KeyCase

from sortshuffle.compute.join import hash_join as join
from sortshuffle.compute.join.build import HeldRows
from sortshuffle.compute.join.hash_join import BuildTable, JoinKind, JoinSpec, OutputColumn, probe
from sortshuffle.compute.join.keys import JoinKeyColumns
from sortshuffle.compute.join.merge_join import merge_join
from sortshuffle.errors import InsufficientBuffersError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.partitioner.row_hash import hash_rows
from sortshuffle.payload.ordering import RowOrder

KINDS = list(JoinKind)
Row = tuple[Any, ...]


def spec_of(
    kind: JoinKind, left: pa.Schema, right: pa.Schema, keys: int, *, using: bool, null_safe: Sequence[bool]
) -> JoinSpec:
    """The first ``keys`` columns of both sides are joined by. ``using``: they come out once."""
    positions = tuple(range(keys))
    columns = [OutputColumn(left=at) for at in range(len(left))]
    fields = list(left)
    if not kind.is_existence:
        if using and kind is JoinKind.RIGHT:
            columns[:keys] = [OutputColumn(right=at) for at in positions]
        if using and kind is JoinKind.FULL:
            columns[:keys] = [OutputColumn(at, at) for at in positions]
        rest = range(keys if using else 0, len(right))
        columns += [OutputColumn(right=at) for at in rest]
        fields += [right.field(at) for at in rest]
    schema = pa.schema([pa.field(f"c{at}", each.type) for at, each in enumerate(fields)])
    return JoinSpec(kind, JoinKeyColumns(positions, positions, tuple(null_safe)), tuple(columns), schema)


def nested_loops(
    spec: JoinSpec, left: list[Row], right: list[Row], left_keys: list[Row], right_keys: list[Row]
) -> list[Row]:
    """Rows of the result as pairs of row numbers. Keys are comparable values, () for null."""

    def match(mine: Row, its: Row) -> bool:
        safe = spec.keys.null_safe
        return all(a == b and (a != () or null_safe) for a, b, null_safe in zip(mine, its, safe, strict=True))

    pairs = [
        (i, j) for i, mine in enumerate(left_keys) for j, its in enumerate(right_keys) if match(mine, its)
    ]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    if spec.kind.is_existence:
        wanted = spec.kind is JoinKind.SEMI
        return [(i, None) for i in range(len(left)) if (i in lefts) == wanted]
    found: list[Row] = list(pairs)
    if spec.kind.keeps_left:
        found += [(i, None) for i in range(len(left)) if i not in lefts]
    if spec.kind.keeps_right:
        found += [(None, j) for j in range(len(right)) if j not in rights]
    return found


def expected_rows(spec: JoinSpec, pairs: list[Row], left: list[Row], right: list[Row]) -> Counter[str]:
    rows = []
    for i, j in pairs:
        row = []
        for each in spec.output:
            if i is not None and each.left is not None:
                row.append(left[i][each.left])
            elif j is not None and each.right is not None:
                row.append(right[j][each.right])
            else:
                row.append(None)
        rows.append(repr(row))
    return Counter(rows)


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in zip(*map(values_of, batch.columns), strict=True)]


def values_of(column: pa.Array) -> list[Any]:
    """As Python values that there are for any bits."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    return column.to_pylist()  # type: ignore[no-any-return]


def cut(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, max(1, batch.num_rows), rows):
        yield batch.slice(start, rows)


def joined(
    spec: JoinSpec, left: pa.RecordBatch, right: pa.RecordBatch, *, build_left: bool, rows: int = 3
) -> list[pa.RecordBatch]:
    build, other = (left, right) if build_left else (right, left)
    batches = list(probe(spec, BuildTable(spec, build, is_left=build_left), cut(other, rows)))
    for batch in batches:
        batch.validate()
        assert batch.schema == spec.schema
    return batches


def side(keys: list[pa.Array], name: str) -> pa.RecordBatch:
    """Key columns, and payload of which some is nested."""
    rows = len(keys[0])
    numbers = pa.array([f"{name}{at}" if at % 3 else None for at in range(rows)])
    lists = pa.array([[at, None] * (at % 3) if at % 4 else None for at in range(rows)], pa.list_(pa.int64()))
    maps = pa.array([[(name, float(at))] for at in range(rows)], pa.map_(pa.string(), pa.float64()))
    structs = pa.array(
        [{"q": at, "r": [str(at)]} for at in range(rows)],
        pa.struct([("q", pa.int16()), ("r", pa.list_(pa.string()))]),
    )
    columns = [*keys, numbers, lists, maps, structs, pa.nulls(rows)]
    return pa.record_batch(columns, [f"{name}{at}" for at in range(len(columns))])


@st.composite
def key_sides(draw: st.DrawFn, most_keys: int = 3) -> tuple[list[KeyCase], list[list[Any]], list[list[Any]]]:
    cases = draw(st.lists(st.sampled_from(KEY_CASES), min_size=1, max_size=most_keys))
    pools = [draw(st.lists(st.none() | case.values, min_size=1, max_size=4)) for case in cases]
    rows = draw(st.tuples(st.integers(0, 14), st.integers(0, 14)))
    left, right = (
        [draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)) for pool in pools]
        for count in rows
    )
    return cases, left, right


@given(key_sides(), st.sampled_from(KINDS), st.booleans(), st.data())
def test_every_kind_and_key_type_equals_nested_loops(
    sides: tuple[list[KeyCase], list[list[Any]], list[list[Any]]],
    kind: JoinKind,
    using: bool,
    data: st.DataObject,
) -> None:
    cases, left_values, right_values = sides
    left, right = (
        side([case.sliced_array(values) for case, values in zip(cases, columns, strict=True)], name)
        for name, columns in (("l", left_values), ("r", right_values))
    )
    null_safe = [not using and data.draw(st.booleans()) for _ in cases]
    spec = spec_of(kind, left.schema, right.schema, len(cases), using=using, null_safe=null_safe)
    left_keys, right_keys = (
        list(
            zip(
                *([case.key(v) for v in values] for case, values in zip(cases, columns, strict=True)),
                strict=True,
            )
        )
        for columns in (left_values, right_values)
    )
    left_rows, right_rows = rows_of([left]), rows_of([right])
    pairs = nested_loops(spec, left_rows, right_rows, left_keys, right_keys)
    wanted = expected_rows(spec, pairs, left_rows, right_rows)
    for build_left in (True, False):
        got = Counter(map(repr, map(list, rows_of(joined(spec, left, right, build_left=build_left)))))
        assert got == wanted, build_left


def in_order(batch: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    return batch.take(pa.array(RowOrder(range(keys)).ranks(batch).sort_indices()))


@given(key_sides(), st.sampled_from(KINDS), st.integers(1, 5), st.integers(1, 5))
def test_sorted_streams_join_to_the_same_rows(
    sides: tuple[list[KeyCase], list[list[Any]], list[list[Any]]],
    kind: JoinKind,
    cut_left: int,
    cut_right: int,
) -> None:
    cases, left_values, right_values = sides
    left, right = (
        in_order(
            side([c.sliced_array(values) for c, values in zip(cases, columns, strict=True)], name), len(cases)
        )
        for name, columns in (("l", left_values), ("r", right_values))
    )
    spec = spec_of(kind, left.schema, right.schema, len(cases), using=True, null_safe=[False] * len(cases))
    memory = MemoryBudget(1 << 20)
    got = list(merge_join(spec, cut(left, cut_left), cut(right, cut_right), memory))
    wanted = joined(spec, left, right, build_left=False)
    assert Counter(map(repr, rows_of(got))) == Counter(map(repr, rows_of(wanted)))
    assert memory.used == 0
    assert memory.peak > 0 or not left.num_rows + right.num_rows


def by_key(kind: JoinKind, left: pa.RecordBatch, right: pa.RecordBatch, keys: int = 1) -> JoinSpec:
    return spec_of(kind, left.schema, right.schema, keys, using=True, null_safe=[False] * keys)


def pairs_of(batches: Sequence[pa.RecordBatch], *columns: int) -> list[Row]:
    return list(zip(*(pa.Table.from_batches(batches).column(at).to_pylist() for at in columns), strict=True))


def test_rows_come_in_the_order_of_the_probe_side_and_then_of_the_build_side() -> None:
    left = pa.record_batch([pa.array([2, 9, 1, 2, None]), pa.array(list("abcde"))], ["k", "v"])
    right = pa.record_batch([pa.array([1, 2, 7, 2]), pa.array([10, 11, 12, 13])], ["k", "w"])
    spec = by_key(JoinKind.LEFT, left, right)
    wanted = [
        (2, "a", 11),
        (2, "a", 13),
        (9, "b", None),
        (1, "c", 10),
        (2, "d", 11),
        (2, "d", 13),
        (None, "e", None),
    ]
    assert pairs_of(joined(spec, left, right, build_left=False, rows=2), 0, 1, 2) == wanted
    spec = by_key(JoinKind.FULL, left, right)
    wanted = [
        (1, "c", 10),
        (2, "a", 11),
        (2, "d", 11),
        (7, None, 12),
        (2, "a", 13),
        (2, "d", 13),
        (9, "b", None),
        (None, "e", None),
    ]
    assert sorted(map(str, pairs_of(joined(spec, left, right, build_left=True), 0, 1, 2))) == sorted(
        map(str, wanted)
    )


def test_a_key_of_many_rows_on_both_sides_comes_in_batches_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join, "OUTPUT_ROWS", 700)
    left = pa.record_batch([pa.array([5] * 90 + [6]), pa.array(range(91))], ["k", "v"])
    right = pa.record_batch([pa.array([4] + [5] * 110), pa.array(range(111))], ["k", "w"])
    for build_left in (True, False):
        got = joined(by_key(JoinKind.FULL, left, right), left, right, build_left=build_left, rows=91)
        assert max(batch.num_rows for batch in got) == 700
        wanted = {(5, i, j) for i in range(90) for j in range(1, 111)} | {(6, 90, None), (4, None, 0)}
        assert sum(batch.num_rows for batch in got) == len(wanted)
        assert set(pairs_of(got, 0, 1, 2)) == wanted


@pytest.mark.parametrize("build_left", [True, False])
def test_batches_are_cut_by_the_bytes_of_their_rows(
    monkeypatch: pytest.MonkeyPatch, build_left: bool
) -> None:
    """A few rows are very large: on the one side in text, on the other in lists of structs."""
    monkeypatch.setattr(join, "OUTPUT_BYTES", 50_000)
    keys = pa.array([1, 2, 3] * 20)
    texts = pa.array(["x" * (20_000 if at == 4 else 3) for at in range(60)])
    kind = pa.list_(pa.struct([("s", pa.string()), ("n", pa.int64())]))
    lists = pa.array([[{"s": "y" * 10, "n": at}] * (900 if at == 7 else 2) for at in range(60)], kind)
    left = pa.record_batch([keys, texts], ["k", "t"])
    right = pa.record_batch([keys, lists], ["k", "l"])
    got = joined(by_key(JoinKind.INNER, left, right), left, right, build_left=build_left, rows=60)
    assert sum(batch.num_rows for batch in got) == 3 * 20 * 20
    sizes = [sum(column.nbytes for column in batch.columns) for batch in got]
    assert max(sizes) < 60_000
    assert len(sizes) < 2 * sum(sizes) / 50_000 + 2
    left_over = joined(
        by_key(JoinKind.ANTI, left, right.slice(0, 0)), left, right.slice(0, 0), build_left=build_left
    )
    assert pa.Table.from_batches(left_over).column(1).to_pylist() == texts.to_pylist()


def test_different_keys_of_one_hash_are_told_apart() -> None:
    texts = pa.array([f"key {at}" for at in range(300_000)])
    hashes = hash_rows(pa.record_batch([texts], ["k"]))
    order = np.argsort(hashes)
    twins = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    assert len(twins) >= 3, "no two of these texts have one hash"
    some = texts.take(pa.array(np.concatenate([order[twins], order[twins + 1]])))
    left = pa.record_batch([pa.concat_arrays([some, some]), pa.array(range(2 * len(some)))], ["k", "v"])
    one_of_each = some.slice(0, len(twins))
    for right_keys in (some, one_of_each):
        right = pa.record_batch([right_keys, right_keys], ["k", "w"])
        for build_left in (True, False):
            got = joined(by_key(JoinKind.LEFT, left, right), left, right, build_left=build_left, rows=5)
            known = set(right_keys.to_pylist())
            wanted = [(key, at, key if key in known else None) for key, at in pairs_of([left], 0, 1)]
            assert sorted(pairs_of(got, 0, 1, 2), key=lambda row: row[1]) == wanted


def test_a_million_rows_join_as_numpy_says() -> None:
    random = np.random.default_rng(7)
    keys, wanted = random.permutation(400_000)[:100_000] << 40, random.integers(0, 400_000, 900_000) << 40
    left = pa.record_batch([pa.array(wanted), pa.array(np.arange(900_000))], ["k", "v"])
    right = pa.record_batch([pa.array(keys), pa.array(np.arange(100_000))], ["k", "w"])
    spec = by_key(JoinKind.INNER, left, right)
    got = pa.Table.from_batches(joined(spec, left, right, build_left=False, rows=30_000))
    assert np.array_equal(got.column("c1"), np.flatnonzero(np.isin(wanted, keys)))
    assert np.array_equal(keys[np.asarray(got.column("c2"))], wanted[np.asarray(got.column("c1"))])


@pytest.mark.parametrize("kind", KINDS)
def test_sides_without_rows_and_keys_that_are_all_null(kind: JoinKind) -> None:
    some = pa.record_batch([pa.array([1, None, 1]), pa.array(list("abc"))], ["k", "v"])
    nulls = pa.record_batch([pa.nulls(2, pa.int64()), pa.array(list("xy"))], ["k", "v"])
    for left, right in ((some, some.slice(0, 0)), (some.slice(0, 0), some), (some, nulls), (nulls, nulls)):
        spec = by_key(kind, left, right)
        lefts = left.num_rows if kind.keeps_left or kind is JoinKind.ANTI else 0
        rights = right.num_rows if kind.keeps_right else 0
        for build_left in (True, False):
            got = joined(spec, left, right, build_left=build_left)
            assert sum(batch.num_rows for batch in got) == lefts + rights


def test_rows_of_one_key_that_do_not_fit_are_an_error_only_if_neither_side_has_few() -> None:
    many = pa.record_batch([pa.array([1] * 3000), pa.array(range(3000))], ["k", "v"])
    few = pa.record_batch([pa.array([1] * 3), pa.array(range(3))], ["k", "v"])
    memory = MemoryBudget(100_000)
    for left, right in ((many, few), (few, many)):
        got = merge_join(by_key(JoinKind.INNER, left, right), cut(left, 100), cut(right, 100), memory)
        assert sum(batch.num_rows for batch in got) == 9000
        assert memory.peak < 60_000
        assert memory.used == 0
    with pytest.raises(InsufficientBuffersError, match=r"rows of one key are more than 97\.7 KiB hold"):
        list(merge_join(by_key(JoinKind.INNER, many, many), cut(many, 100), cut(many, 100), memory))
    assert memory.used == 0


def test_held_rows_say_when_they_are_too_much_and_are_handed_on() -> None:
    batch = pa.record_batch([pa.array(range(100))], ["k"])
    memory = MemoryBudget(4 * (2 * 800 + 96 * 100))
    held, coming = HeldRows(memory, [0]), iter([batch] * 9)
    assert not held.fill(coming)
    assert memory.used == 5 * (2 * 800 + 96 * 100)
    assert len(list(held.handed_on())) == 5
    assert len(list(coming)) == 4
    assert memory.used == 0
    assert held.fill(iter([batch.slice(0, 0), batch, batch]))
    assert held.concatenate(batch.schema).num_rows == 200
    held.release()
    assert memory.used == 0
    assert HeldRows(memory, [0]).concatenate(batch.schema).schema == batch.schema


def _keys_of_memory_cases() -> dict[str, list[pa.Array]]:
    random = np.random.default_rng(4)
    numbers = random.permutation(60_000)
    repeated = random.integers(0, 20_000, 60_000)
    text = {width: pa.array([f"{number:0{width}}" for number in numbers.tolist()]) for width in (20, 100)}
    longs = pa.array(numbers)
    return {
        "long": [longs],
        "long with nulls": [pa.array(numbers, mask=random.random(60_000) < 0.3)],
        "repeated long": [pa.array(repeated)],
        "double": [pa.array(random.random(60_000))],
        "decimal": [pa.array(numbers.astype(np.int32)).cast(pa.decimal128(20, 0))],
        "text of 20": [text[20]],
        "text of 100": [text[100]],
        "repeated text": [pa.array([f"{number:020}" for number in repeated.tolist()])],
        "three columns": [longs, pa.array(repeated), text[20]],
    }


@pytest.mark.parametrize(("name", "keys"), _keys_of_memory_cases().items(), ids=list(_keys_of_memory_cases()))
def test_the_rows_that_a_join_holds_and_their_table_take_no_more_than_is_charged(
    name: str, keys: list[pa.Array]
) -> None:
    values = pa.array(np.random.default_rng(5).random(60_000))
    whole = pa.record_batch([*keys, values], [f"c{at}" for at in range(len(keys) + 1)])
    spec = by_key(JoinKind.SEMI, whole, whole, len(keys))
    memory = MemoryBudget(1 << 30)
    held = HeldRows(memory, range(len(keys)))
    with arrow_memory() as pool:
        for start in range(0, 60_000, 20_000):
            held.hold(pa.concat_batches([whole.slice(start, 20_000)]))
        tracemalloc.start()
        try:
            build = BuildTable(spec, held.concatenate(whole.schema), is_left=True)
            made = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert pool.max_memory() + made <= 1.02 * memory.used, "of which the odd bytes are Python's objects"
        assert build.table.groups > 0


@given(key_sides(most_keys=1), st.sampled_from(KINDS))
def test_a_side_may_come_in_parts_where_the_kind_says_so(
    sides: tuple[list[KeyCase], list[list[Any]], list[list[Any]]], kind: JoinKind
) -> None:
    (case,), (left_values,), (right_values,) = sides
    left, right = side([case.array(left_values)], "l"), side([case.array(right_values)], "r")
    spec = by_key(kind, left, right)
    whole = Counter(map(repr, rows_of(joined(spec, left, right, build_left=False))))
    parts: Counter[str] = Counter()
    for part in cut(left, 5):
        parts += Counter(map(repr, rows_of(joined(spec, part, right, build_left=True))))
    assert parts == whole or not kind.repeats_right
    parts = Counter()
    for part in cut(right, 5):
        parts += Counter(map(repr, rows_of(joined(spec, left, part, build_left=False))))
    assert parts == whole or not kind.repeats_left
