"""Random Arrow batches for property-based tests: columns of every type, nested ones included, with nulls,
and cut out of longer batches. There is no NaN in them, so that batches compare with ``equals``."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda value: Decimal(f"{value}E-{scale}"))


_LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): _integers(8),
    pa.int16(): _integers(16),
    pa.int32(): _integers(32),
    pa.int64(): _integers(64),
    pa.uint8(): _integers(8, signed=False),
    pa.uint64(): _integers(64, signed=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=9),
    pa.large_string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): _integers(32),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    pa.timestamp("us"): _integers(64),
    pa.timestamp("us", "UTC"): _integers(64),
    pa.duration("us"): _integers(64),
    pa.decimal128(9, 2): _decimals(9, 2),
    pa.decimal128(38, 10): _decimals(38, 10),
}


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(inner, max_size=3).map(
            lambda kinds: pa.struct([(f"field{number}", kind) for number, kind in enumerate(kinds)])
        ),
    )


types = st.recursive(st.sampled_from(list(_LEAVES)), _nested, max_leaves=4)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Python values that ``pa.array`` takes for a type, None included."""
    if pa.types.is_map(kind):
        return st.none() | st.lists(st.tuples(st.text(max_size=3), values_of(kind.item_type)), max_size=2)
    if pa.types.is_fixed_size_list(kind):
        element = values_of(kind.value_type)
        return st.none() | st.lists(element, min_size=kind.list_size, max_size=kind.list_size)
    if pa.types.is_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    return st.none() | _LEAVES[kind]


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 12, max_columns: int = 4) -> pa.RecordBatch:
    """A batch that is a slice of a longer one, perhaps without rows."""
    kinds = draw(st.lists(types, min_size=1, max_size=max_columns))
    rows = draw(st.integers(0, max_rows))
    columns = [pa.array(draw(st.lists(values_of(k), min_size=rows, max_size=rows)), k) for k in kinds]
    whole = pa.RecordBatch.from_arrays(columns, [f"column{number}" for number in range(len(kinds))])
    start = draw(st.integers(0, rows))
    return whole.slice(start, draw(st.integers(0, rows - start)))
