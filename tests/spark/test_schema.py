"""Schemas, with PySpark and Spark's Parquet reader as oracles."""

from __future__ import annotations

import datetime as dt
import mmap
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_schema

from sortshuffle.errors import SchemaMismatchError, UnsupportedError, UsageError
from sortshuffle.spark import conforming
from sortshuffle.spark.conforming import conform
from sortshuffle.spark.schema import copy_of, from_arrow, parse_schema, to_arrow, with_large_types

ZONE = "America/New_York"

NEWER_TYPES = [name for name in ("GeometryType", "GeographyType") if hasattr(st, name)]

CARRIED = (
    "bo boolean, b byte, s short, i int, l long, f float, d double, de decimal(10,2), dm decimal(38,18),"
    " st string, c string collate UTF8_LCASE, bi binary, da date, ts timestamp, nt timestamp_ntz,"
    " iv interval day to second, v void, a array<timestamp>, m map<string,array<int>>,"
    " x struct<p:int,q:struct<r:date>>"
)


def with_time(schema: st.StructType) -> st.StructType:
    """With a column of times of day, where this Spark has them."""
    return schema.add("ti", st.TimeType())


def conformed(array: pa.Array, wanted: pa.DataType, exact: bool = False) -> pa.Array:
    """What `conform` makes of a batch whose only column is ``array``."""
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    target = pa.schema([pa.field("c", wanted)])
    (result,) = conform(batch, target, "here", exact=exact)
    result.validate(full=True)
    assert result.schema.equals(target, check_metadata=True)
    return result.column(0)


def refusal(array: pa.Array, wanted: pa.DataType, exact: bool = False) -> str:
    with pytest.raises(SchemaMismatchError) as caught:
        conformed(array, wanted, exact)
    return str(caught.value)


# --- parse_schema ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddl", ["k long, v double", "k: long, v: double", "struct<k:long,v:double>"])
def test_ddl_is_parsed_as_spark_does(spark: SparkSession, ddl: str) -> None:
    assert parse_schema(ddl) == st.StructType().add("k", "long").add("v", "double")


def test_a_struct_type_is_taken_as_it_is_now(spark: SparkSession) -> None:
    schema = st.StructType().add("k", "long", nullable=False).add("x", st.StructType().add("y", "long"))
    before, parsed = schema.json(), parse_schema(schema)
    schema["k"].nullable = True
    schema["x"].dataType.add("z", "long")
    assert parsed.json() == before


def test_a_copy_has_the_types_of_which_pyspark_has_one_object() -> None:
    schema = st.StructType().add("k", "long").add("a", st.ArrayType(st.DateType())).add("s", "string")
    copied = copy_of(schema)
    assert copied == schema
    assert copied is not schema
    assert copied["k"] is not schema["k"]
    assert copied["k"].dataType is st.LongType()
    array = copied["a"].dataType
    assert isinstance(array, st.ArrayType)
    assert array.elementType is st.DateType()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("long", "single type bigint.*'value bigint'"),
        ("array<int>", "single type array<int>"),
        ("k lonk", "'k lonk' cannot be parsed.*LONK"),
        ("", "."),
        (st.LongType(), r"not LongType\(\)"),
        (pa.schema([("k", pa.int64())]), "StructType or a DDL string"),
        (None, "not None"),
    ],
)
def test_what_is_no_schema_is_refused(spark: SparkSession, schema: object, says: str) -> None:
    if schema == "":
        assert parse_schema("") == st.StructType([])  # Spark takes it for a schema without columns
        return
    with pytest.raises(UsageError, match=f"(?s){says}"):
        parse_schema(schema)  # type: ignore[arg-type]


# --- to_arrow -------------------------------------------------------------------------------------------


def test_wire_types_are_those_that_spark_gives_to_functions(spark: SparkSession) -> None:
    declared = parse_schema(CARRIED)

    def see(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            stripped = pa.schema([pa.field(field.name, field.type) for field in batch.schema])
            yield pa.RecordBatch.from_pydict({"seen": [stripped.to_string()] * batch.num_rows})

    values = spark.range(1).select(
        *(sf.lit(None).cast(field.dataType).alias(field.name) for field in declared.fields),
        sf.expr("time'12:00:00'").alias("ti"),
    )
    declared = with_time(declared)
    (row,) = values.mapInArrow(see, "seen string").collect()
    assert to_arrow(declared, ZONE).to_string() == row.seen


def test_every_wire_field_is_nullable_and_without_metadata() -> None:
    required = st.StructType(
        [
            st.StructField("k", st.LongType(), False, {"comment": "x"}),
            st.StructField("a", st.ArrayType(st.IntegerType(), False), False),
            st.StructField("m", st.MapType(st.StringType(), st.IntegerType(), False), False),
            st.StructField("s", st.StructType([st.StructField("x", st.DateType(), False)]), False),
        ]
    )
    relaxed = parse_schema(
        st.StructType()
        .add("k", st.LongType())
        .add("a", st.ArrayType(st.IntegerType()))
        .add("m", st.MapType(st.StringType(), st.IntegerType()))
        .add("s", st.StructType().add("x", st.DateType()))
    )
    assert to_arrow(required, ZONE).equals(to_arrow(relaxed, ZONE), check_metadata=True)
    assert from_arrow_schema(to_arrow(required, ZONE)) == relaxed


class Point(st.UserDefinedType):  # type: ignore[misc]
    @classmethod
    def sqlType(cls) -> st.DataType:
        return st.ArrayType(st.DoubleType())


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Point(), "turn it into a struct or an array"),
        (st.VariantType(), "to_json"),
        (st.YearMonthIntervalType(), "cast it to string"),
        (st.CalendarIntervalType(), "cast it to string"),
        (st.CharType(3), "declare it as string"),
        (st.VarcharType(3), "declare it as string"),
        *((getattr(st, name)(4326), "st_asbinary") for name in NEWER_TYPES),
        (st.StructType().add("x", "integer").add("x", "integer"), "several fields named x"),
    ],
)
def test_types_that_cannot_be_carried_are_refused_by_path(kind: st.DataType, says: str) -> None:
    for wrapped, path in (
        (kind, "c"),
        (st.ArrayType(kind), "c.element"),
        (st.MapType(st.StringType(), kind), "c.value"),
        (st.StructType().add("x", kind), "c.x"),
    ):
        with pytest.raises(UnsupportedError, match=f"'{path}'.*{says}"):
            to_arrow(st.StructType().add("ok", "integer").add("c", wrapped), ZONE)


def test_large_types_are_those_of_pyspark(spark: SparkSession) -> None:
    declared = parse_schema(
        "s string, b binary, i int, a array<string>, m map<string,binary>, x struct<y:string>"
    )

    def see(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"seen": [batch.schema.to_string()] * batch.num_rows})

    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        nulls = spark.range(1).select(*(sf.lit(None).cast(f.dataType).alias(f.name) for f in declared.fields))
        (row,) = nulls.mapInArrow(see, "seen string").collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert with_large_types(to_arrow(declared, ZONE)).to_string() == row.seen


# --- from_arrow -----------------------------------------------------------------------------------------


def test_a_wire_schema_leads_back_to_what_was_declared(spark: SparkSession) -> None:
    declared = with_time(parse_schema(CARRIED.replace(" collate UTF8_LCASE", "")))
    assert from_arrow(to_arrow(declared, ZONE)) == declared


def test_other_representations_are_of_the_same_types() -> None:
    fields = {
        "u": (pa.uint8(), "smallint"),
        "w": (pa.uint64(), "decimal(20,0)"),
        "large": (pa.large_string(), "string"),
        "view": (pa.list_(pa.binary_view()), "array<binary>"),
        "code": (pa.dictionary(pa.int32(), pa.string()), "string"),
        "id": (pa.uuid(), "binary"),
        "pair": (pa.list_(pa.date64(), 2), "array<date>"),
        "wide": (pa.decimal256(20, 2), "decimal(20,2)"),
        "ms": (pa.timestamp("ms"), "timestamp_ntz"),
        "m": (
            pa.map_(pa.string(), pa.struct([("t", pa.timestamp("s", "UTC"))])),
            "map<string,struct<t:timestamp>>",
        ),
    }
    schema = from_arrow(pa.schema([(name, kind) for name, (kind, _) in fields.items()]))
    assert {field.name: field.dataType.simpleString() for field in schema} == {
        name: kind for name, (_, kind) in fields.items()
    }


@pytest.mark.parametrize(
    ("arrow", "path"),
    [
        (pa.float16(), "c"),
        (pa.time32("ms"), "c"),
        (pa.decimal256(50, 2), "c"),
        (pa.list_(pa.float16()), "c.element"),
        (pa.map_(pa.string(), pa.float16()), "c.value"),
        (pa.struct([("x", pa.float16())]), "c.x"),
        (pa.month_day_nano_interval(), "c"),
    ],
    ids=str,
)
def test_arrow_types_without_a_spark_type_are_refused(arrow: pa.DataType, path: str) -> None:
    with pytest.raises(UnsupportedError, match=f"column '{path}' is of Arrow's type .* which Spark has not"):
        from_arrow(pa.schema([("ok", pa.int32()), ("c", arrow)]))


# --- conform --------------------------------------------------------------------------------------------


def test_a_batch_of_the_wire_schema_passes_as_the_same_object() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [1], "s": ["x"]})
    (result,) = conform(batch, batch.schema, "here")
    assert result is batch


def test_names_nullability_and_metadata_are_the_targets() -> None:
    required = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"a": "b"})], {"pandas": "{}"})
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=required)
    target = pa.schema([("k", pa.int64())])
    (result,) = conform(batch, target, "here")
    assert result.schema.equals(target, check_metadata=True)
    assert result.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


MOMENT = dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone.utc)

SAME_VALUES = [
    (pa.array(["x", None], pa.large_string()), pa.string()),
    (pa.array(["x", None, "y" * 50], pa.string_view()), pa.string()),
    (pa.array([b"x", None], pa.large_binary()), pa.binary()),
    (pa.array([b"xy", None], pa.binary(2)), pa.binary()),
    (pa.array([b"xy", None], pa.binary_view()), pa.binary()),
    (pa.array(["b", None, "a", "b"]).dictionary_encode(), pa.string()),
    (pa.array([7, None, 7]).dictionary_encode(), pa.int64()),
    (pa.array([1, None], pa.uint8()), pa.int16()),
    (pa.array([1, None], pa.uint16()), pa.int32()),
    (pa.array([2**32 - 1, None], pa.uint32()), pa.int64()),
    (pa.array([2**64 - 1, None], pa.uint64()), pa.decimal128(20, 0)),
    (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date64()), pa.date32()),
    (pa.array([dt.time(1, 2), None], pa.time32("s")), pa.time64("ns")),
    (pa.array([MOMENT, None], pa.timestamp("s", "UTC")), pa.timestamp("us", ZONE)),
    (pa.array([MOMENT, None], pa.timestamp("ns", "Asia/Tokyo")), pa.timestamp("us", ZONE)),
    (pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("ms")), pa.timestamp("us")),
    (pa.array([dt.timedelta(1), None], pa.duration("s")), pa.duration("us")),
    (pa.array([dt.timedelta(1), None], pa.duration("ns")), pa.duration("us")),
    (pa.array([[1, None], None, []], pa.large_list(pa.int32())), pa.list_(pa.field("element", pa.int32()))),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)), pa.list_(pa.int32())),
    (pa.array([["x"], None], pa.list_(pa.large_string())), pa.list_(pa.string())),
    (
        pa.array([[("a", "b")], None, []], pa.map_(pa.large_string(), pa.large_string())),
        pa.map_(pa.string(), pa.string()),
    ),
    (
        pa.array(
            [{"x": "a", "y": [1]}, None], pa.struct([("x", pa.large_string()), ("y", pa.list_(pa.uint8()))])
        ),
        pa.struct([("x", pa.string()), ("y", pa.list_(pa.int16()))]),
    ),
    (
        pa.array([[{"x": "a"}, None], None], pa.list_(pa.struct([pa.field("x", pa.large_string())]))),
        pa.list_(pa.struct([("x", pa.string())])),
    ),
]


@pytest.mark.parametrize(("array", "wanted"), SAME_VALUES, ids=lambda item: str(getattr(item, "type", item)))
def test_other_representations_of_a_spark_type_are_converted(array: pa.Array, wanted: pa.DataType) -> None:
    expected = array.to_pylist()
    assert conformed(array, wanted, exact=True).to_pylist() == expected
    assert conformed(array.slice(1), wanted).to_pylist() == expected[1:]
    assert conformed(array.slice(0, 1), wanted).to_pylist() == expected[:1]
    assert conformed(pa.array([], array.type), wanted).to_pylist() == []
    assert conformed(array.slice(0, 0), wanted).to_pylist() == []


@pytest.mark.parametrize(("array", "wanted"), SAME_VALUES, ids=lambda item: str(getattr(item, "type", item)))
def test_they_are_converted_inside_of_other_values(array: pa.Array, wanted: pa.DataType) -> None:
    """Three rows: a list of all values, one without values, a null; each of the values in a struct."""
    structs = pa.StructArray.from_arrays([array], ["x"])
    offsets = pa.array([0, len(array), len(array), len(array)], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, structs, mask=pa.array([False, False, True]))
    result = conformed(lists, pa.list_(pa.struct([("x", wanted)])))
    assert result.to_pylist() == lists.to_pylist()


def test_values_without_any_row_are_converted() -> None:
    inner = pa.struct([("m", pa.map_(pa.string(), pa.large_string())), ("f", pa.list_(pa.uint8(), 2))])
    array = pa.array([[], None], pa.large_list(pa.large_list(inner)))
    wanted = pa.struct([("m", pa.map_(pa.string(), pa.string())), ("f", pa.list_(pa.int16()))])
    assert conformed(array, pa.list_(pa.list_(wanted))).to_pylist() == [[], None]


def test_a_slice_converts_only_its_own_values() -> None:
    lists = pa.array([["long text " * 1000], ["a"], ["b"]], pa.list_(pa.large_string()))
    result = conformed(lists.slice(1), pa.list_(pa.string()))
    assert result.to_pylist() == [["a"], ["b"]]
    assert result.get_total_buffer_size() < 1000


def test_text_of_three_gigabytes_is_split_without_copying_it() -> None:
    data = pa.py_buffer(mmap.mmap(-1, 3 << 30))  # never written, so never in memory
    offsets = pa.py_buffer(np.array([0, 5, 1 << 30, 2 << 30, (2 << 30) + 7, 3 << 30], np.int64))
    text = pa.Array.from_buffers(pa.large_string(), 5, [pa.py_buffer(b"\x1b"), offsets, data])
    batch = pa.RecordBatch.from_arrays([text, pa.array(range(5))], ["s", "n"])
    parts = list(conform(batch, pa.schema([("s", pa.string()), ("n", pa.int64())]), "here"))
    found = [
        (number, is_null, length)
        for part in parts
        for number, is_null, length in zip(
            part.column("n").to_pylist(),
            part.column("s").is_null().to_pylist(),
            pc.binary_length(part.column("s")).to_pylist(),
            strict=True,
        )
    ]
    sizes = [5, (1 << 30) - 5, None, 7, (1 << 30) - 7]
    assert found == [(number, size is None, size) for number, size in enumerate(sizes)]
    assert all(part.column("s").buffers()[2].size <= 2**31 - 1 for part in parts)
    assert parts[0].column("s").buffers()[2].address == data.address


def test_one_value_of_more_than_two_gigabytes_is_refused() -> None:
    data = pa.py_buffer(mmap.mmap(-1, 3 << 30))
    text = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(np.array([0, 3 << 30], np.int64)), data]
    )
    assert "exceed 2 GiB" in refusal(text, pa.string())


MERELY_FITTING = [
    (pa.nulls(2), pa.int64(), [None, None]),
    (pa.nulls(2), pa.map_(pa.string(), pa.int64()), [None, None]),
    (pa.array([Decimal("1.20"), None], pa.decimal128(10, 3)), pa.decimal128(5, 1), [Decimal("1.2"), None]),
    (pa.array([Decimal("1.2"), None], pa.decimal256(50, 1)), pa.decimal128(5, 1), [Decimal("1.2"), None]),
    (pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("us")), pa.timestamp("us", ZONE), [MOMENT]),
    (pa.array([MOMENT], pa.timestamp("us", ZONE)), pa.timestamp("us"), [MOMENT.replace(tzinfo=None)]),
    (
        pa.array([{"p": 1, "q": "a"}]),
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}],
    ),
]


@pytest.mark.parametrize(("array", "wanted", "expected"), MERELY_FITTING, ids=str)
def test_what_merely_fits_is_converted_unless_exact(
    array: pa.Array, wanted: pa.DataType, expected: list[object]
) -> None:
    assert conformed(array, wanted).to_pylist() == expected
    assert "here: column types differ" in refusal(array, wanted, exact=True)


REFUSED = [
    (pa.array([1], pa.int64()), pa.int32()),
    (pa.array([1], pa.int32()), pa.int64()),
    (pa.array([1.0], pa.float32()), pa.float64()),
    (pa.array(np.array([1.0], np.float16)), pa.float32()),
    (pa.array([1], pa.uint8()), pa.int32()),
    (pa.array([1], pa.uint64()), pa.int64()),
    (pa.array(["x"]), pa.binary()),
    (pa.array([b"x"]), pa.string()),
    (pa.array(["1"]), pa.int64()),
    (pa.array([1]), pa.timestamp("us")),
    (pa.array([dt.date(2020, 1, 1)]), pa.timestamp("us")),
    (pa.array([1]), pa.decimal128(20, 0)),
    (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.int32())),
    (pa.array([[1]], pa.list_(pa.int64())), pa.int64()),
    (pa.array([1]), pa.list_(pa.int64())),
    (pa.array([1]), pa.struct([("x", pa.int64())])),
    (pa.array([{"x": 1}]), pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int32())),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.binary(), pa.int64())),
    (pa.array([1]), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("array", "wanted"), REFUSED, ids=lambda item: str(getattr(item, "type", item)))
def test_another_type_is_refused_by_name_and_types(array: pa.Array, wanted: pa.DataType) -> None:
    assert f"here: column types differ from the declared schema: column 'c' (expected {wanted}" in refusal(
        array, wanted
    )
    assert f"found {array.type}" in refusal(array, wanted)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([1001], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([1], pa.duration("ns")), pa.duration("us")),
        (pa.array([Decimal("1.25")]), pa.decimal128(10, 1)),
        (pa.array([Decimal("123.0")]), pa.decimal128(2, 0)),
        (pa.array([[1001]], pa.list_(pa.timestamp("ns"))), pa.list_(pa.timestamp("us"))),
    ],
    ids=str,
)
def test_values_that_would_change_are_refused(array: pa.Array, wanted: pa.DataType) -> None:
    assert "here: column 'c' has values that" in refusal(array, wanted)


def test_all_wrong_columns_are_named_at_once() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"], "c": [1.0]})
    target = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.float32())])
    with pytest.raises(SchemaMismatchError, match=r"column 'a' .*int32.*int64.*column 'c' .*float.*double"):
        list(conform(batch, target, "here"))


def test_another_number_of_columns_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    with pytest.raises(SchemaMismatchError, match=r"here: expected 1 column \(a\), found 2 columns \(a, b\)"):
        list(conform(batch, pa.schema([("a", pa.int64())]), "here"))


def test_rows_without_columns_are_kept() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]}).select([])
    (result,) = conform(batch.replace_schema_metadata({"x": "y"}), pa.schema([]), "here")
    assert (result.num_rows, result.num_columns) == (2, 0)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_beyond_32_bit_offsets_is_split(
    kind: pa.DataType, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conforming, "_MOST_BYTES", 1000)
    texts = [f"{position:050d}" for position in range(50)] * 2 + [None]
    array, wanted = pa.array(texts, pa.string()).cast(kind), pa.string()
    if nested:
        structs = pa.StructArray.from_arrays([array], ["x"])
        array = pa.ListArray.from_arrays(pa.array(range(102), pa.int32()), structs)
        wanted = pa.list_(pa.struct([("x", wanted)]))
    batch = pa.RecordBatch.from_arrays([array, pa.array(range(101))], ["c", "n"])
    parts = list(conform(batch, pa.schema([("c", wanted), ("n", pa.int64())]), "here"))
    largest = max(part.num_rows for part in parts)
    assert 5 <= largest <= 1000 / 50
    assert [row for part in parts for row in part.to_pylist()] == [
        {"c": [{"x": text}] if nested else text, "n": position} for position, text in enumerate(texts)
    ]


@pytest.mark.parametrize("ends", [[2**32 + 3], [2**31 + 5, 2**32 + 3]])
def test_more_elements_than_32_bit_offsets_address_are_refused(ends: list[int]) -> None:
    array = pa.LargeListArray.from_arrays(pa.array([0, *ends], pa.int64()), pa.nulls(ends[-1]))
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    with pytest.raises(SchemaMismatchError, match="here: column 'x' has values that"):
        list(conform(batch, pa.schema([("x", pa.list_(pa.null()))]), "here"))
