"""Conditions: what they are about, and that what they exclude is not missed. Without Spark."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_cases import ONE_SPLIT, scanned, write
from pyspark.sql import types as spark_types

from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.pruning import may_prune, uses
from sortshuffle.spark.schema import to_arrow

NUMBERS = st.one_of(st.none(), st.integers(-3, 3))
FLOATS = st.one_of(st.none(), st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.0, math.nan, math.inf]))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é"]))
ROWS = st.lists(st.tuples(NUMBERS, FLOATS, TEXTS), min_size=1, max_size=30)


def conditions() -> st.SearchStrategy[pc.Expression]:
    def compared(name: str, values: list[Any]) -> st.SearchStrategy[pc.Expression]:
        field = pc.field(name)
        how = [
            *(field.__eq__, field.__ne__, field.__lt__, field.__le__, field.__gt__, field.__ge__),
            lambda value: field.isin([value]),
        ]
        return st.builds(lambda compare, value: compare(value), st.sampled_from(how), st.sampled_from(values))

    leaves = st.one_of(
        compared("i", [-2, 0, 1]),
        compared("f", [-1.0, 0.0, 2.0]),
        compared("s", ["", "a", "é"]),
        st.sampled_from([pc.field(name).is_null() for name in "ifs"]),
        st.just(pc.is_nan(pc.field("f"))),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            inner.map(lambda a: ~a),
        ),
        max_leaves=4,
    )


@settings(max_examples=300)
@given(rows=ROWS, condition=conditions(), row_group=st.integers(1, 8))
def test_pruning_never_changes_what_a_filter_finds(
    tmp_path: Path, rows: list[tuple[Any, ...]], condition: pc.Expression, row_group: int
) -> None:
    schema = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)],
        schema,
    )
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=row_group)
    files = ParquetFiles.find([str(path)])
    splits = files.plan(condition if may_prune(condition, schema) else None, ONE_SPLIT, schema)
    scan = files.scan(splits, ("i", "f", "s"), schema, condition)
    batches = (batch for split in range(len(splits)) for batch in scan.read(split))
    found = [row for batch in batches for row in batch.to_pylist()]

    assert repr(found) == repr(table.filter(condition).to_pylist())


def test_a_condition_uses_the_columns_that_it_names() -> None:
    schema = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.struct([("f", pa.float32())]))])
    both = (pc.field("i") > 1) & (pc.field("s", "f") > 1)

    assert [uses(both, schema, at) for at in range(3)] == [True, False, True]
    assert may_prune(pc.field("i") > 1, schema)
    assert not may_prune(both, schema)
    assert not may_prune(pc.field("f").is_null(), schema)


# --- files that are not what the condition is about ------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "wanted", "condition", "rows"),
    [
        # the bits that are dropped make 256 a 0, which the statistics know nothing of
        (pa.array([256, 300], pa.int32()), "tinyint", pc.field("c") == 0, ["(0,)"]),
        (pa.array([2**63 + 1], pa.uint64()), "bigint", pc.field("c") < 0, [f"({-(2**63) + 1},)"]),
        (pa.array([1, 2], pa.int32()), "bigint", pc.field("c") > 1, ["(2,)"]),
        (pa.array([b"a", b"b"]), "string", pc.field("c") == "b", ["('b',)"]),
        (pa.nulls(2), "int", pc.field("c").is_null(), ["(None,)", "(None,)"]),
    ],
    ids=str,
)
def test_statistics_of_converted_columns_do_not_count(
    tmp_path: Path, stored: pa.Array, wanted: str, condition: pc.Expression, rows: list[str]
) -> None:
    kinds = {"tinyint": "byte", "bigint": "long", "string": "string", "int": "integer"}
    write(tmp_path / "f.parquet", {"c": stored})
    schema = spark_types.StructType().add("c", kinds[wanted])
    files = ParquetFiles.find([str(tmp_path)], declared=schema)
    assert scanned(files, to_arrow(schema, "UTC"), condition, condition) == rows


def test_statistics_of_a_column_of_another_name_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"c": [1], "k": [1]})
    write(tmp_path / "1.parquet", {"C": [1], "k": [2]})
    write(tmp_path / "2.parquet", {"k": [3]})
    files = ParquetFiles.find([str(tmp_path)])
    wire = to_arrow(files.schema, "UTC")
    assert scanned(files, wire, pc.field("c") == 1, pc.field("c") == 1) == ["(1, 1)", "(1, 2)"]
    assert scanned(files, wire, pc.field("c").is_null(), pc.field("c").is_null()) == ["(None, 3)"]


def test_a_column_that_directories_have_too_is_theirs_in_a_filter(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"a={number}" / "f.parquet", {"a": [100 * number], "v": [number]})
    files = ParquetFiles.find([str(tmp_path)])
    wire = to_arrow(files.schema, "UTC")
    assert scanned(files, wire, pc.field("a") == 2, pc.field("a") == 2) == ["(2, 2)"]
    assert scanned(files, wire, pc.field("a") > 50, pc.field("a") > 50) == []
