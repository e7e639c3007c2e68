"""``hash_columns`` against Spark's own ``F.hash``, type by type.

Spark jobs cost far more than hashing, so each test puts many columns and rows into one job.
"""

from __future__ import annotations

import decimal
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner import check_hashable, hash_columns
from sortshuffle.partitioner.murmur3 import CHUNK_ROWS
from sortshuffle.partitioner.rounds import FEW_ROWS

ROWS = 400

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Shrinking would run hundreds of Spark jobs; the failing column and row are named anyway."""


def sparks_hashes(
    spark: SparkSession, table: pa.Table, keys: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], np.ndarray]:
    """Return what Spark's ``hash`` makes of each tuple of columns of ``table``, in the table's row order."""
    keys = list(keys)
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int32()))
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    # Spark's optimizer evaluates projections of a local table, interpreted; not those behind a shuffle
    frame = spark.createDataFrame(table, schema=schema).repartition(1)
    hashed = frame.select("row", *[sf.hash(*key).alias(f"h{i}") for i, key in enumerate(keys)]).toArrow()
    hashed = hashed.sort_by("row")
    return {key: hashed.column(f"h{i}").to_numpy() for i, key in enumerate(keys)}


def one_chunk(table: pa.Table, name: str) -> pa.Array:
    return pa.concat_arrays(table.column(name).chunks)


def assert_hashes_as_spark(spark: SparkSession, table: pa.Table, *more_keys: tuple[str, ...]) -> None:
    """Compare every column alone, sliced and whole, and ``more_keys``."""
    rows = table.num_rows
    expected = sparks_hashes(spark, table, [(name,) for name in table.column_names] + list(more_keys))
    for key, hashes in expected.items():
        columns = [one_chunk(table, name) for name in key]
        np.testing.assert_array_equal(hash_columns(columns, rows), hashes, err_msg=str(key))
        for first, count in ((1, rows - 1), (rows // 2 + 3, 7), (5, rows // 2)):
            sliced = [column.slice(first, count) for column in columns]
            ours = hash_columns(sliced, len(sliced[0]))
            np.testing.assert_array_equal(ours, hashes[first : first + count], err_msg=f"{key} from {first}")


# --- every type, with values that hypothesis draws ---------------------------------------------------------


def with_nulls(values: list[Any], rng: np.random.Generator, type: pa.DataType) -> pa.Array:
    nulls = rng.random(len(values)) < 0.15
    return pa.array([None if null else value for null, value in zip(nulls, values, strict=True)], type)


def ints_of(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


MICROS = st.integers(-(2**55), 2**55)  # 1141 years about 1970: within the range that Python's datetime has
TEXT = st.text(max_size=24)
BINARY = st.binary(max_size=70)


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    exact = decimal.Context(prec=precision)
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    powers = st.integers(0, 8 * 15).map(lambda bits: 2**bits).filter(lambda power: power < 10**precision)
    near_powers = st.builds(
        lambda sign, power, by: sign * power + by, st.sampled_from([-1, 1]), powers, st.integers(-1, 1)
    )
    in_range = near_powers.filter(lambda unscaled: abs(unscaled) < 10**precision)
    return st.one_of(digits, in_range).map(lambda unscaled: decimal.Decimal(unscaled).scaleb(-scale, exact))


def structs() -> st.SearchStrategy[dict[str, Any] | None]:
    return st.fixed_dictionaries({"a": st.none() | ints_of(32), "b": st.none() | TEXT})


NESTED_STRUCT = pa.struct(
    [
        ("x", pa.int64()),
        ("inner", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("list", pa.list_(pa.float64())),
    ]
)

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), ints_of(8)),
    "int16": (pa.int16(), ints_of(16)),
    "int32": (pa.int32(), ints_of(32)),
    "int64": (pa.int64(), ints_of(64)),
    "float32": (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan")])),
    "float64": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, float("nan")])),
    "string": (pa.string(), TEXT),
    "large_string": (pa.large_string(), TEXT),
    "binary": (pa.binary(), BINARY),
    "large_binary": (pa.large_binary(), BINARY),
    "fixed_size_binary": (pa.binary(7), st.binary(min_size=7, max_size=7)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), MICROS),
    "timestamp_ntz": (pa.timestamp("us"), MICROS),
    "timestamp_ms": (pa.timestamp("ms", "Europe/Zurich"), MICROS.map(lambda micros: micros // 1000)),
    "timestamp_s": (pa.timestamp("s", "UTC"), MICROS.map(lambda micros: micros // 1_000_000)),
    "timestamp_ns": (pa.timestamp("ns", "UTC"), ints_of(63)),  # PySpark overflows near the ends of 64 bits
    "duration": (pa.duration("us"), ints_of(64)),
    "duration_s": (pa.duration("s"), st.integers(-(2**40), 2**40)),
    "small_decimal": (pa.decimal128(18, 4), decimals(18, 4)),
    "tiny_decimal": (pa.decimal128(3, 0), decimals(3, 0)),
    "large_decimal": (pa.decimal128(19, 2), decimals(19, 2)),
    "largest_decimal": (pa.decimal128(38, 10), decimals(38, 10)),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), structs()),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | ints_of(32), max_size=6)),
    "large_list": (pa.large_list(pa.string()), st.lists(st.none() | TEXT, max_size=4)),
    "fixed_size_list": (pa.list_(pa.int64(), 3), st.lists(ints_of(64), min_size=3, max_size=3)),
    "list_of_lists": (
        pa.list_(pa.list_(pa.string())),
        st.lists(st.none() | st.lists(st.none() | TEXT, max_size=3), max_size=3),
    ),
    "list_of_structs": (
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
        st.lists(st.none() | structs(), max_size=3),
    ),
    "nested_struct": (
        NESTED_STRUCT,
        st.fixed_dictionaries(
            {
                "x": st.none() | ints_of(64),
                "inner": st.none() | structs(),
                "list": st.none() | st.lists(st.floats(), max_size=3),
            }
        ),
    ),
    "null": (pa.null(), st.none()),
}

SEVERAL_KEYS = [
    ("int64", "string"),
    ("string", "int64"),
    ("float64", "list", "bool", "largest_decimal"),
    ("struct", "null", "binary", "date", "int8"),
    ("dictionary", "list_of_structs", "timestamp"),
]


def column(name: str, drawn: list[Any], rng: np.random.Generator) -> pa.Array:
    """Return ``ROWS`` rows picked from the drawn values, some of them null."""
    type, _ = COLUMNS[name]
    return with_nulls([drawn[at] for at in rng.integers(0, len(drawn), ROWS)], rng, type)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {
        name: column(name, draw(st.lists(values, min_size=1, max_size=25)), rng)
        for name, (_, values) in COLUMNS.items()
    }
    arrays["dictionary"] = arrays["string"].dictionary_encode()
    return pa.table(arrays)


@pytest.mark.usefixtures("generated_code")
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), phases=UNSHRUNK)
@given(table=tables())
def test_every_type_hashes_as_in_spark(spark: SparkSession, table: pa.Table) -> None:
    assert_hashes_as_spark(spark, table, *SEVERAL_KEYS)


@pytest.mark.usefixtures("generated_code")
def test_time_hashes_as_in_spark(spark: SparkSession) -> None:
    micros = [0, 1, 45_296_123_456, 86_399_999_999, None]
    nanos = [None if at is None else at * 1000 for at in micros]
    table = pa.table({"us": pa.array(micros, pa.time64("us")), "ns": pa.array(nanos, pa.time64("ns"))})
    expected = sparks_hashes(spark, table, [("us",), ("ns",)])
    for name in ("us", "ns"):
        ours = hash_columns([one_chunk(table, name)], len(micros))
        np.testing.assert_array_equal(ours, expected[(name,)])


# --- values by construction --------------------------------------------------------------------------------


def test_spark_documents_these_hashes() -> None:
    columns = [pa.array(["Spark"]), pa.array([[123]], pa.list_(pa.int32())), pa.array([2], pa.int32())]
    assert hash_columns(columns, 1).tolist() == [-1321691492]
    assert hash_columns([pa.array([1], pa.int32())], 1).tolist() == [-559580957]


def test_result_is_int32_whatever_the_seed() -> None:
    keys = pa.array([1, None], pa.int32())
    assert hash_columns([keys], 2).dtype == np.int32
    assert hash_columns([keys], 2, seed=-7)[1] == -7
    assert hash_columns([keys], 2, seed=7)[0] != hash_columns([keys], 2)[0]


def test_without_columns_every_hash_is_the_seed() -> None:
    assert hash_columns([], 3).tolist() == [42, 42, 42]


def test_without_rows_there_are_no_hashes() -> None:
    empty = [pa.array([], type) for type, _ in COLUMNS.values()]
    assert hash_columns(empty, 0).shape == (0,)


def test_nulls_and_empty_collections_leave_the_hash() -> None:
    columns = [
        pa.array([None, None], pa.int64()),
        pa.array([[], None], pa.list_(pa.int64())),
        pa.array([[None, None], [None]], pa.list_(pa.string())),
        pa.array([{}, None], pa.struct([])),
        pa.array([{"a": None}, None], pa.struct([("a", pa.int8())])),
        pa.nulls(2),
    ]
    assert hash_columns(columns, 2).tolist() == [42, 42]


def test_values_hidden_under_nulls_do_not_count() -> None:
    validity = pa.py_buffer(bytes([0b101]))
    hidden = pa.Array.from_buffers(
        pa.int32(), 3, [validity, pa.py_buffer(np.array([1, 99, 3], np.int32).tobytes())]
    )
    struct = pa.StructArray.from_arrays([pa.array([1, 99, 3])], ["a"], mask=pa.array([False, True, False]))
    assert hash_columns([hidden], 3)[1] == 42
    assert hash_columns([struct], 3)[1] == 42


@pytest.mark.usefixtures("generated_code")
def test_every_nan_is_one_nan_and_zero_has_no_sign(spark: SparkSession) -> None:
    doubles = np.array([0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0_0000_0000_0001, 0x7FF8_0000_DEAD_BEEF], np.uint64)
    floats = np.array([0x7FC0_0000, 0xFFC0_0000, 0x7F80_0001, 0x7FC0_BEEF], np.uint32)
    table = pa.table({"double": doubles.view(np.float64), "float": floats.view(np.float32)})
    expected = sparks_hashes(spark, table, [("double",), ("float",)])
    for key, hashes in expected.items():
        assert len(set(hashes.tolist())) == 1
        np.testing.assert_array_equal(hash_columns([one_chunk(table, *key)], 4), hashes)
    for dtype in (np.float32, np.float64):
        positive, negative = hash_columns([pa.array(np.array([0.0, -0.0], dtype))], 2)
        assert positive == negative


def test_nanoseconds_are_rounded_down() -> None:
    nanos = pa.array([-1500, -1000, -1, 0, 999, 1000])
    micros = pa.array([-2, -1, -1, 0, 0, 1])
    for of in (pa.timestamp, pa.duration):
        rounded = hash_columns([nanos.cast(of("ns"))], 6)
        np.testing.assert_array_equal(rounded, hash_columns([micros.cast(of("us"))], 6))


def test_a_dictionary_may_hold_nulls() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2, 1]), pa.array(["x", None, "y"]))
    assert hash_columns([encoded.slice(1)], 4).tolist() == [42, 42, *hash_columns([pa.array(["y"])], 1), 42]


@pytest.mark.parametrize(
    ("view", "plain"), [(pa.string_view(), pa.string()), (pa.binary_view(), pa.binary())]
)
def test_views_hash_as_plain_values(view: pa.DataType, plain: pa.DataType) -> None:
    texts = ["", "short", None, "much longer than twelve bytes", "again"]
    hashes = hash_columns([pa.array(texts, plain)], 5)
    np.testing.assert_array_equal(hash_columns([pa.array(texts, view)], 5), hashes)
    np.testing.assert_array_equal(hash_columns([pa.array(texts, view).slice(2)], 3), hashes[2:])


# --- lengths and layouts of strings ------------------------------------------------------------------------


def random_binary(lengths: Iterable[int], rng: np.random.Generator) -> pa.Array:
    return pa.array([rng.bytes(length) for length in lengths], pa.binary())


@pytest.mark.usefixtures("generated_code")
def test_every_length_hashes_as_in_spark(spark: SparkSession) -> None:
    """Equal lengths take another path than unequal ones, and few rows another than many."""
    rng = np.random.default_rng(1)
    rows = 3 * FEW_ROWS
    columns = {f"all {length}": random_binary([length] * rows, rng) for length in range(20)}
    columns |= {f"all {length}": random_binary([length] * rows, rng) for length in (39, 40, 41, 64, 67, 70)}
    columns["uneven"] = random_binary(rng.integers(0, 71, rows), rng)
    columns["uneven, same words"] = random_binary(rng.integers(8, 12, rows), rng)
    columns["mostly short"] = random_binary(np.where(rng.random(rows) < 0.1, 3000, 5), rng)
    columns["one long"] = random_binary([300_001] + [rows % 11] * (rows - 1), rng)
    assert_hashes_as_spark(spark, pa.table(columns))


def test_unaligned_and_unpadded_buffers_hash_alike() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 30, 4 * FEW_ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = rng.bytes(int(offsets[-1]))
    values = [data[start:end] for start, end in pairwise(offsets)]
    expected = hash_columns([pa.array(values, pa.binary())], len(values))
    for shift in range(4):
        shifted = pa.py_buffer(b"." * shift + data).slice(shift)
        array = pa.Array.from_buffers(
            pa.binary(), len(values), [None, pa.py_buffer(offsets.tobytes()), shifted]
        )
        np.testing.assert_array_equal(hash_columns([array], len(values)), expected)


def test_unaligned_numbers_hash_alike() -> None:
    numbers = np.arange(100, dtype=np.int64) * 0x1234_5678_9ABC
    shifted = pa.py_buffer(b"." + numbers.tobytes()).slice(1)
    array = pa.Array.from_buffers(pa.int64(), 100, [None, shifted])
    np.testing.assert_array_equal(hash_columns([array], 100), hash_columns([pa.array(numbers)], 100))


def test_one_huge_value_costs_memory_for_itself_alone() -> None:
    rows, huge = 20_000, 1 << 20
    values = pa.array(["x" * 9] * (rows - 1) + ["y" * huge])
    tracemalloc.start()
    try:
        hashes = hash_columns([values], rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * huge
    assert hashes[-1] == hash_columns([values.slice(rows - 1)], 1)[0]


@pytest.mark.usefixtures("generated_code")
def test_long_lists_among_short_ones_hash_as_in_spark(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    lengths = np.where(rng.random(ROWS) < 0.05, 150, rng.integers(0, 4, ROWS))
    lists = pa.array([rng.integers(0, 1000, length).tolist() for length in lengths], pa.list_(pa.int64()))
    assert_hashes_as_spark(spark, pa.table({"lists": lists}))


# --- chunks ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_table() -> pa.Table:
    rng = np.random.default_rng(4)
    rows = 2 * CHUNK_ROWS + 5
    numbers = rng.integers(-(2**63), 2**63, rows)
    return pa.table(
        {
            "number": pa.array(numbers, mask=rng.random(rows) < 0.1),
            "text": pa.array(numbers).cast(pa.string()),
            "list": pa.array([[int(number) % 7] * (number % 3) for number in numbers], pa.list_(pa.int64())),
        }
    )


@pytest.mark.usefixtures("generated_code")
def test_chunks_do_not_show(spark: SparkSession, long_table: pa.Table) -> None:
    key = ("number", "text", "list")
    expected = sparks_hashes(spark, long_table, [key])[key]
    columns = [one_chunk(long_table, name) for name in key]
    for rows in (1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, len(expected)):
        ours = hash_columns([column.slice(0, rows) for column in columns], rows)
        np.testing.assert_array_equal(ours, expected[:rows])
    for first in (3, CHUNK_ROWS - 1, CHUNK_ROWS + 3):
        ours = hash_columns([column.slice(first) for column in columns], len(expected) - first)
        np.testing.assert_array_equal(ours, expected[first:])


# --- refusals ----------------------------------------------------------------------------------------------

MAP = pa.map_(pa.string(), pa.int64())
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)


@pytest.mark.parametrize(
    ("type", "culprit", "remedy"),
    [
        (MAP, "map<string, int64>", "map_entries"),
        (pa.struct([("a", pa.int8()), ("m", MAP)]), "map<string, int64>", "map_entries"),
        (pa.list_(pa.list_(MAP)), "map<string, int64>", "map_entries"),
        (pa.uint32(), "uint32", "signed integer"),
        (pa.list_(pa.uint8()), "uint8", "signed integer"),
        (pa.float16(), "halffloat", "float32"),
        (pa.decimal256(40), "decimal256", "decimal128"),
        (pa.date64(), "date64", "date32"),
        (pa.time32("s"), "time32", "time64"),
        (pa.dense_union([pa.field("a", pa.int8())]), "dense_union", "leave it out"),
        (pa.list_view(pa.int8()), "list_view", "leave it out"),
        (pa.month_day_nano_interval(), "month_day_nano_interval", "leave it out"),
        (VARIANT, "struct<value: binary", "extracted"),
        (pa.dictionary(pa.int8(), pa.uint64()), "uint64", "signed integer"),
    ],
)
def test_what_spark_does_not_hash_is_refused(type: pa.DataType, culprit: str, remedy: str) -> None:
    with pytest.raises(ColumnError) as refusal:
        check_hashable("the key", type)
    message = str(refusal.value)
    assert "'the key'" in message
    assert str(type) in message
    assert culprit in message
    assert remedy in message


def test_hashing_refuses_what_the_check_refuses() -> None:
    with pytest.raises(ColumnError, match="map<string, int64>"):
        hash_columns([pa.array([1]), pa.array([[("a", 1)]], MAP)], 1)


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_hashed_passes_the_check(name: str) -> None:
    check_hashable(name, COLUMNS[name][0])


def test_columns_must_have_the_rows() -> None:
    with pytest.raises(UsageError, match="#1 has 2 rows where 3"):
        hash_columns([pa.array([1, 2, 3]), pa.array([1, 2])], 3)
