"""`read(spark).parquet(...)` against `spark.read.parquet` and against the whole table in memory: the same
rows, whatever is pruned, and only the files, columns and row groups that are needed.

Pruning and packing are tested without Spark, by the driver's and the worker's own objects.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import confs, differences, every_type, partition_count, rows_in_order
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.plan import ParquetOrigin
from sortshuffle.spark.scan import Packing, ParquetFiles, ParquetScan, may_prune, pack, uses

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

UTC = dt.timezone.utc
ONE_SPLIT = Packing(largest_split=1 << 30, open_cost=0, parallelism=1)


def origin_of(frame: ShuffleFrame) -> ParquetOrigin:
    origin = frame._chain.origin
    assert isinstance(origin, ParquetOrigin)
    return origin


def row_groups_of(frame: ShuffleFrame) -> list[int]:
    return [group for split in origin_of(frame).splits for piece in split for group in piece.row_groups]


def write(path: Path, columns: dict[str, Any], **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **how)
    return path


def printed(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


# --- the same rows as Spark's own reader ----------------------------------------------------------------


def test_every_type_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    table = every_type(seed=5, rows=3000).drop(["iv", "no"])
    pq.write_table(table, tmp_path / "typed.parquet", row_group_size=700)
    ours = sortshuffle.read(spark).parquet(str(tmp_path / "typed.parquet"))
    plain = spark.read.parquet(str(tmp_path / "typed.parquet"))

    assert ours.schema == plain.schema
    assert differences(ours.repartition(5, "st", "d"), plain.repartition(5, "st", "d")) == []


def test_files_that_spark_wrote_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.range(0, 2000, 1, 3).selectExpr(
        "id",
        "cast(id % 100 as byte) as b",
        "cast(id % 100 as decimal(5,2)) / 7 as d",
        "timestamp_seconds(id * 1e6) as t",
        "named_struct('x', array(id, null), 'm', map(cast(id as string), id % 3)) as s",
        "cast(null as date) as n",
    )
    source.write.parquet(str(tmp_path / "out"))
    ours = sortshuffle.read(spark).parquet(str(tmp_path / "out"))
    plain = spark.read.parquet(str(tmp_path / "out"))

    assert ours.schema == plain.schema
    assert differences(ours.repartition(4, "id"), plain.repartition(4, "id")) == []


@pytest.mark.parametrize(
    "legacy", [{"use_deprecated_int96_timestamps": True}, {"store_decimal_as_integer": True}]
)
def test_older_and_newer_encodings_are_read_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, legacy: dict[str, bool]
) -> None:
    # in nanoseconds, which is how pyarrow takes INT96 by default, the last would wrap around
    times = [
        dt.datetime(2024, 3, 10, 7),
        None,
        dt.datetime(1970, 1, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ]
    columns = {
        "t": pa.array(times, pa.timestamp("us")),
        "d": pa.array([Decimal("1.50"), None, Decimal("-9999999.99"), Decimal(0)], pa.decimal128(9, 2)),
    }
    path = write(tmp_path / "encoded.parquet", columns, **legacy)
    ours = sortshuffle.read(spark).parquet(str(path))
    plain = spark.read.parquet(str(path))

    assert ours.schema == plain.schema
    assert differences(ours.repartition(2, "t", "d"), plain.repartition(2, "t", "d")) == []


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_instants_are_read_in_the_session_time_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    instants = [dt.datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(24)]
    path = write(tmp_path / "t.parquet", {"t": pa.array(instants, pa.timestamp("ms", "UTC"))})
    seen = "t timestamp, seen string"

    def local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = pa.array([str(value) for value in batch["t"].to_pylist()])
            yield pa.record_batch([batch["t"], texts], names=["t", "seen"])

    with confs(spark, {"spark.sql.session.timeZone": zone}):
        ours = sortshuffle.read(spark).parquet(str(path)).mapInArrow(local, seen).repartition(2, "seen")
        plain = spark.read.parquet(str(path)).mapInArrow(local, seen).repartition(2, "seen")

        assert differences(ours, plain) == []


def test_nested_columns_are_selected_and_filtered_whole(spark: SparkSession, tmp_path: Path) -> None:
    structs = [{"x": number, "y": [str(number)]} if number % 3 else None for number in range(100)]
    path = write(
        tmp_path / "n.parquet", {"id": range(100), "s": structs, "a.b": range(100)}, row_group_size=20
    )
    frame = sortshuffle.read(spark).parquet(str(path))
    ours = frame.filter(pc.field("s", "x") > 50).select("`a.b`", "s")

    assert origin_of(frame.select("s")).describe().endswith("n.parquet: s")
    assert (
        differences(
            ours.repartition(2, "`a.b`"),
            spark.read.parquet(str(path)).where("s.x > 50").select("`a.b`", "s").repartition(2, "`a.b`"),
        )
        == []
    )


# --- which files ----------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Files of one column ``a`` that holds their names, among things that no reader takes for data."""
    for name in ("one/a.parquet", "one/deep/b.parquet", "two/c.parquet", "two/d.parquet"):
        write(tmp_path / name, {"a": [name]})
    for name in ("one/_SUCCESS", "one/.part.crc", "two/_SUCCESS"):
        (tmp_path / name).write_bytes(b"not parquet")
    for name in ("one/_temporary/0/x.parquet", "two/.hidden/x.parquet"):
        write(tmp_path / name, {"a": ["hidden"]})
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["two"], ["two/c.parquet", "two/d.parquet"]),
        (["two/d.parquet"], ["two/d.parquet"]),
        (["two", "one/a.parquet"], ["one/a.parquet", "two/c.parquet", "two/d.parquet"]),
        (["two/*.parquet"], ["two/c.parquet", "two/d.parquet"]),
        (["*/[ac].parquet", "two/d.parquet"], ["one/a.parquet", "two/c.parquet", "two/d.parquet"]),
        (["t?o"], ["two/c.parquet", "two/d.parquet"]),
        (["two", "two"], ["two/c.parquet", "two/c.parquet", "two/d.parquet", "two/d.parquet"]),
    ],
    ids=str,
)
def test_paths_directories_and_globs_mean_the_files_that_they_mean_to_spark(
    spark: SparkSession, directory: Path, paths: list[str], found: list[str]
) -> None:
    given_paths = [str(directory / path) for path in paths]

    assert sorted(row.a for row in sortshuffle.read(spark).parquet(*given_paths).collect()) == found
    assert sorted(row.a for row in spark.read.parquet(*given_paths).collect()) == found


def test_directories_are_searched_to_the_bottom(spark: SparkSession, directory: Path) -> None:
    for paths in ([directory], [directory / "one", directory / "two"]):
        found = sortshuffle.read(spark).parquet(*map(str, paths)).collect()

        assert sorted(row.a for row in found) == [
            "one/a.parquet",
            "one/deep/b.parquet",
            "two/c.parquet",
            "two/d.parquet",
        ]


def test_a_file_url_is_read(spark: SparkSession, directory: Path) -> None:
    assert sortshuffle.read(spark).parquet(f"file://{directory}/two").count() == 2


def test_nothing_to_read_is_refused(spark: SparkSession, directory: Path) -> None:
    reader = sortshuffle.read(spark)
    with pytest.raises(UsageError, match="needs at least one path"):
        reader.parquet()
    with pytest.raises(UsageError, match=r"there is nothing at .*nowhere"):
        reader.parquet(str(directory / "nowhere"))
    with pytest.raises(UsageError, match=r"there is nothing at .*none-"):
        reader.parquet(str(directory / "none-*"))
    with pytest.raises(UsageError, match=r"there is no Parquet file at .*empty, .*empty"):
        reader.parquet(str(directory / "empty"), str(directory / "empty"))


def test_what_is_no_parquet_file_is_refused_by_its_path(spark: SparkSession, directory: Path) -> None:
    (directory / "two" / "z.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UsageError, match=r"z\.parquet cannot be read as a Parquet file"):
        sortshuffle.read(spark).parquet(str(directory / "two" / "z.parquet"))
    several = sortshuffle.read(spark).parquet(str(directory / "two"))
    with pytest.raises(UsageError, match=r"z\.parquet cannot be read as a Parquet file"):
        several.toDF()


def test_partition_directories_are_refused_but_not_what_is_inside_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "day=1" / "a.parquet", {"a": [1]})
    with pytest.raises(UnsupportedError, match=r"partition directory \(day=1\).*use sortshuffle.frame"):
        sortshuffle.read(spark).parquet(str(tmp_path))

    assert sortshuffle.read(spark).parquet(str(tmp_path / "day=1")).columns == ["a"]


def test_types_that_spark_does_not_read_are_refused_by_their_path(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(tmp_path / "f.parquet", {"k": [1], "s": [{"h": np.float16(1.5)}]})
    with pytest.raises(UnsupportedError, match=r"column 's\.h' of the file is of type halffloat"):
        sortshuffle.read(spark).parquet(str(path))


# --- files that differ ----------------------------------------------------------------------------------


def test_a_column_that_a_later_file_lacks_is_null_there(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"a": [1, 2], "b": ["x", "y"]})
    write(tmp_path / "1.parquet", {"a": [3, 4]})
    frame = sortshuffle.read(spark).parquet(str(tmp_path))
    plain = spark.read.parquet(str(tmp_path))

    assert printed(frame.collect()) == printed(plain.collect())
    assert printed(frame.select("b").collect()) == printed(plain.select("b").collect())
    # also where the filter asks the statistics of a file that has none of this column
    assert printed(frame.filter(pc.field("b") == "x").collect()) == printed(plain.where("b = 'x'").collect())
    assert printed(frame.filter(pc.field("b").is_null()).collect()) == printed(
        plain.where("b is null").collect()
    )


def test_columns_are_found_by_name_in_files_of_another_order(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"a": [1], "b": [10], "c": ["x"]})
    write(tmp_path / "1.parquet", {"c": ["y"], "more": [True], "b": [20], "a": [2]})
    ours = sortshuffle.read(spark).parquet(str(tmp_path))

    assert printed(ours.collect()) == printed(spark.read.parquet(str(tmp_path)).collect())


def test_a_column_of_another_type_in_a_later_file_names_file_column_and_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "0.parquet", {"a": pa.array([1], pa.int64())})
    write(tmp_path / "1.parquet", {"a": pa.array(["x"])})
    with pytest.raises(
        PythonException,
        match=r"SchemaMismatchError: the scan of .*1\.parquet: .*'a' \(expected int64, found string",
    ):
        sortshuffle.read(spark).parquet(str(tmp_path)).collect()


def test_files_without_rows_or_row_groups_have_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    pq.ParquetWriter(tmp_path / "0.parquet", schema).close()
    write(tmp_path / "1.parquet", {"a": pa.array([], pa.int64())})
    empty = sortshuffle.read(spark).parquet(str(tmp_path))

    assert empty.columns == ["a"]
    assert empty.count() == 0
    assert empty.collect() == []
    assert partition_count(empty.repartition(3, "a")) == 3
    assert empty.repartition(3, "a").collect() == []
    write(tmp_path / "2.parquet", {"a": [7]})
    assert [row.a for row in sortshuffle.read(spark).parquet(str(tmp_path)).repartition(2).collect()] == [7]


# --- only what is needed --------------------------------------------------------------------------------


@pytest.fixture
def wide(spark: SparkSession, tmp_path: Path) -> ShuffleFrame:
    """1000 rows in 10 row groups: ``id`` ascending, ``k``, ``s``, ``d``, and ``broken``, whose pages are."""
    path = write(
        tmp_path / "wide.parquet",
        {
            "id": np.arange(1000),
            "k": np.arange(1000) % 7,
            "s": [f"{at:04}" for at in range(1000)],
            "d": np.arange(1000) / 10,
            "broken": [f"text {at}" * 20 for at in range(1000)],
        },
        row_group_size=100,
        compression="snappy",
        use_dictionary=False,
        write_page_checksum=False,
    )
    metadata = pq.ParquetFile(path).metadata
    content = bytearray(path.read_bytes())
    for group in range(10):
        column = metadata.row_group(group).column(4)
        start = column.data_page_offset
        content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    return sortshuffle.read(spark).parquet(str(path))


def test_only_selected_columns_are_read(wide: ShuffleFrame) -> None:
    with pytest.raises(PythonException):  # the control: reading that column fails
        wide.select("broken").collect()

    assert len(wide.select("s", "id").collect()) == 1000
    assert len(wide.drop("broken").collect()) == 1000
    assert wide.count() == 1000
    assert origin_of(wide.select("s", "id")).file_columns == ("s", "id")
    assert origin_of(wide.select("s", "id").select("id")).file_columns == ("id",)


def test_columns_of_a_filter_are_read_and_left_out(wide: ShuffleFrame) -> None:
    ours = wide.filter(pc.field("k") == 3).filter(pc.field("d") < 50).select("s")

    assert origin_of(ours).file_columns == ("s", "k", "d")
    assert ours.columns == ["s"]
    assert sorted(row.s for row in ours.collect()) == [f"{at:04}" for at in range(500) if at % 7 == 3]
    assert (
        ours.count()
        == wide.select("k", "d").filter((pc.field("k") == 3) & (pc.field("d") < 50)).count()
        == 71
    )


def test_a_filter_behind_a_selection_is_of_the_selected_columns(wide: ShuffleFrame) -> None:
    ours = wide.select("s", "k").filter(pc.field("k") == 3)

    assert origin_of(ours).file_columns == ("s", "k")
    assert len(ours.collect()) == 143
    with pytest.raises(UsageError, match="over the columns s, k"):
        ours.filter(pc.field("id") == 3)


def test_row_groups_that_a_filter_excludes_are_not_read(wide: ShuffleFrame) -> None:
    assert row_groups_of(wide.filter(pc.field("id") >= 850)) == [8, 9]
    assert row_groups_of(wide.filter((pc.field("s") > "0099") & (pc.field("s") <= "0199"))) == [1]
    assert row_groups_of(wide.filter(pc.field("id") < 250).filter(pc.field("s") > "0150")) == [1, 2]
    assert row_groups_of(wide.filter(pc.field("id") < 0)) == []
    assert row_groups_of(wide) == list(range(10))
    ours = wide.filter(pc.field("id") >= 850).select("id")
    assert sorted(row.id for row in ours.collect()) == list(range(850, 1000))
    assert ours.filter(pc.field("id") < 0).collect() == []


def test_a_filter_on_floating_point_numbers_excludes_no_row_group(wide: ShuffleFrame) -> None:
    # statistics do not know NaN, so they cannot say that no row is not at or below a number
    assert row_groups_of(wide.filter(pc.field("d") >= 85.0)) == list(range(10))
    assert row_groups_of(wide.filter(pc.field("d") >= 85.0).filter(pc.field("id") >= 850)) == [8, 9]


def test_nan_passes_a_filter_that_the_statistics_of_its_row_group_exclude(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(tmp_path / "nan.parquet", {"x": [1.0, 2.0, math.nan]})
    frame = sortshuffle.read(spark).parquet(str(path))

    assert repr(frame.filter(~(pc.field("x") <= 5)).collect()) == "[Row(x=nan)]"


def test_a_filter_on_int96_timestamps_finds_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 6, 1), None], pa.timestamp("us"))
    path = write(tmp_path / "t.parquet", {"t": times, "a": [1, 2, 3]}, use_deprecated_int96_timestamps=True)
    march = pa.scalar(dt.datetime(2024, 3, 1, tzinfo=UTC))
    ours = sortshuffle.read(spark).parquet(str(path)).filter(pc.field("t") > march).select("a")

    assert [row.a for row in ours.collect()] == [2]


# --- pruning and packing, without Spark -----------------------------------------------------------------

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
    splits = files.splits(condition if may_prune(condition, schema) else None, ONE_SPLIT)
    scan = ParquetScan(files.protocol, tuple(splits), ("i", "f", "s"), schema, condition)
    found = [row for split in range(len(splits)) for batch in scan.read(split) for row in batch.to_pylist()]

    assert repr(found) == repr(table.filter(condition).to_pylist())


def test_a_condition_uses_the_columns_that_it_names() -> None:
    schema = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.struct([("f", pa.float32())]))])
    both = (pc.field("i") > 1) & (pc.field("s", "f") > 1)

    assert [uses(both, schema, at) for at in range(3)] == [True, False, True]
    assert may_prune(pc.field("i") > 1, schema)
    assert not may_prune(both, schema)
    assert not may_prune(pc.field("f").is_null(), schema)


@settings(max_examples=200)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=40),
    largest=st.integers(1, 2000),
    open_cost=st.integers(0, 300),
    parallelism=st.integers(1, 9),
)
def test_splits_hold_every_row_group_once_in_order_and_are_not_too_large(
    sizes: list[tuple[int, int]], largest: int, open_cost: int, parallelism: int
) -> None:
    groups = [
        (f"file {file}", number, size)
        for number, (file, size) in enumerate(sorted(sizes, key=lambda s: s[0]))
    ]
    splits = pack(groups, Packing(largest, open_cost, parallelism))
    size_of = {(path, number): size for path, number, size in groups}
    found = [[(piece.path, group) for piece in split for group in piece.row_groups] for split in splits]

    assert [group for split in found for group in split] == [(path, number) for path, number, _ in groups]
    assert all(found)
    for split in found:
        opened = open_cost * (len({path for path, _ in split}) - 1)
        assert len(split) == 1 or sum(map(size_of.__getitem__, split)) + opened <= largest


def test_splits_are_as_many_as_tasks_run_at_once_unless_they_get_too_large() -> None:
    groups = [("file", number, 100) for number in range(40)]

    assert len(pack(groups, Packing(largest_split=10_000, open_cost=0, parallelism=4))) == 4
    assert len(pack(groups, Packing(largest_split=500, open_cost=0, parallelism=4))) == 8
    # one file is opened, however many row groups it has
    assert len(pack(groups, Packing(largest_split=10_000, open_cost=400, parallelism=2))) == 2
    assert pack([], Packing(largest_split=1, open_cost=1, parallelism=1)) == []


def test_sparks_settings_decide_how_much_a_task_scans(spark: SparkSession, tmp_path: Path) -> None:
    path = write(
        tmp_path / "f.parquet", {"id": np.random.default_rng(1).integers(0, 2**62, 8000)}, row_group_size=1000
    )
    with confs(spark, {"spark.sql.files.maxPartitionBytes": "20000", "spark.sql.files.openCostInBytes": "0"}):
        small = sortshuffle.read(spark).parquet(str(path))
        assert partition_count(small) == 4
    with confs(spark, {"spark.sql.files.minPartitionNum": "1"}):
        whole = sortshuffle.read(spark).parquet(str(path))
        assert partition_count(whole) == 1
    # decided with the plan: another setting later must not take row groups from under it
    assert small.count() == whole.count() == 8000
    assert sorted(row.split(": ")[1] for row in rows_in_order(small)) == sorted(
        row.split(": ")[1] for row in rows_in_order(whole)
    )
