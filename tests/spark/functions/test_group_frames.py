"""Many groups converted together: no function can tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as hs
from oracle import EDGES, every_type
from pyspark.sql import types as st

from sortshuffle.compute.groups.groups import GroupRun
from sortshuffle.errors import SchemaMismatchError
from sortshuffle.options import KIB, MIB
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.conversion import pandas_series
from sortshuffle.spark.functions.group_frames import COLLECTED_ROWS, FrameCollector, group_frames
from sortshuffle.spark.functions.result_schema import ResultSchema
from sortshuffle.spark.functions.results import from_group_frame

CONF = FunctionConf("America/New_York")
SCHEMA = st.StructType(
    [
        st.StructField("k", st.LongType()),
        st.StructField("v", st.DoubleType()),
        st.StructField("s", st.StringType()),
        st.StructField("a", st.ArrayType(st.LongType())),
    ]
)
PLAIN = ["k", "v", "s"]


def declared(names: list[str] = SCHEMA.names) -> ResultSchema:
    wanted = st.StructType([SCHEMA[name] for name in names])
    return ResultSchema.of("applyInPandas", lambda frame: frame, wanted, CONF)


def collected(frames: list[Any], wanted: ResultSchema, conf: FunctionConf = CONF) -> list[pa.RecordBatch]:
    collector = FrameCollector(wanted, conf)
    batches = [batch for frame in frames for batch in collector.add(frame)]
    return [*batches, *collector.flush()]


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


# --- from Arrow -----------------------------------------------------------------------------------------


@given(
    hs.integers(0, 10**6), hs.lists(hs.integers(1, 9), min_size=1, max_size=8), hs.sampled_from([0.0, 0.3])
)
def test_every_group_is_converted_as_if_it_were_alone(seed: int, sizes: list[int], nulls: float) -> None:
    names = [name for name in EDGES if name not in ("nt", "ts", "xx")]  # nanoseconds end in 2262
    table = every_type(seed, sum(sizes), nulls).select(["id", *names])
    (rows,) = table.combine_chunks().to_batches()
    bounds = [0, *np.cumsum(sizes).tolist()]
    keys = (0, 1 + names.index("st"))

    found = list(group_frames(iter([GroupRun(rows, bounds[:-1])]), keys, CONF))

    assert len(found) == len(sizes)
    for (start, stop), (key, frame) in zip(pairwise(bounds), found, strict=True):
        series = pandas_series(rows.slice(start, stop - start), CONF)
        alone = pd.concat(series, axis=1)
        pd.testing.assert_frame_equal(frame, alone)
        assert list(map(type, key)) == [type(series[at].iloc[0]) for at in keys]
        assert key[0] == series[keys[0]].iloc[0]


def test_an_integer_column_is_of_integers_in_the_groups_that_have_no_null() -> None:
    rows = pa.record_batch({"k": pa.array([1, 1, 2, 2]), "i": pa.array([1, 2, None, 4])})
    first, second = (frame for _, frame in group_frames(iter([GroupRun(rows, [0, 2])]), (0,), CONF))
    assert (first["i"].dtype, second["i"].dtype) == (np.int64, np.float64)


def test_a_frame_may_be_written_to_and_no_other_group_sees_it() -> None:
    rows = pa.record_batch({"k": pa.array([1, 1, 2]), "v": pa.array([1.0, 2.0, 3.0])})
    frames = group_frames(iter([GroupRun(rows, [0, 2])]), (0,), CONF)
    _, first = next(frames)
    first["v"] = -1.0
    first.loc[0, "k"] = 7
    first["new"] = 0
    _, second = next(frames)
    assert second.to_dict("list") == {"k": [2], "v": [3.0]}
    assert list(second.index) == [0]


# --- back to Arrow --------------------------------------------------------------------------------------


def frames_of(seed: int) -> Iterator[pd.DataFrame]:
    """Frames of many kinds: other orders of columns, other types, none at all, large ones, lists."""
    random = np.random.default_rng(seed)
    for number in range(60):
        size = int(random.integers(0, 4)) if number % 20 else COLLECTED_ROWS // 2
        columns = {
            "k": np.arange(size) + number,
            "v": random.random(size),
            "s": pd.Series([f"{number} {at}" if at % 3 else None for at in range(size)], dtype=object),
            "a": pd.Series([[number, at] for at in range(size)], dtype=object),
        }
        kind = number % 6
        if kind == 1:
            columns["k"] = columns["k"].astype(np.int16)
        if kind == 2:
            columns["v"] = [None if at % 2 else float(at) for at in range(size)]
        frame = pd.DataFrame(columns)
        if kind == 3:
            frame = frame[["s", "a", "v", "k"]]
        if kind == 4:
            frame["k"] = frame["k"].astype("Int64")
        if kind == 5:
            frame.index = frame.index[::-1]
        yield frame


@pytest.mark.parametrize("names", [PLAIN, SCHEMA.names])
def test_frames_become_what_each_becomes_alone_in_their_order(names: list[str]) -> None:
    wanted = declared(names)
    frames = [frame[[name for name in frame.columns if name in names]] for frame in frames_of(3)]
    alone = [batch for frame in frames for batch in from_group_frame(frame, wanted, CONF)]
    together = collected(frames, wanted)
    assert rows_of(together) == rows_of(alone)
    assert all(batch.schema == wanted.wire for batch in together)
    assert len(together) < len(alone) or names != PLAIN


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]", "bool", "int64", "float64", "object"])
def test_each_kind_of_column_is_copied(kind: str) -> None:
    collector = FrameCollector(declared(["k"]), CONF)
    frame = pd.DataFrame({"k": np.array([1], "int64").astype(kind)})
    _, columns = collector._columns(frame)
    assert columns is not None
    (column,) = columns
    assert (type(column), column.dtype) == (np.ndarray, np.dtype(kind))
    assert not np.shares_memory(column, np.asarray(frame["k"]))


@pytest.mark.parametrize("label", [pd.NA, None, 1, ("k", "v"), float("nan")])
def test_frames_with_labels_of_other_kinds_are_converted_alone(label: Any) -> None:
    plain = pd.DataFrame({"k": [1]})
    other = pd.DataFrame([[2]], columns=pd.Index([label], dtype=object, tupleize_cols=False))
    batches = collected([plain, other, other, plain, plain], declared(["k"]))
    assert [batch.to_pydict()["k"] for batch in batches] == [[1], [2], [2], [1, 1]]


def test_a_frame_that_is_returned_again_with_other_values_is_taken_as_it_was() -> None:
    frame = pd.DataFrame({"k": [0], "v": [0.5], "s": ["x"]})

    def returned() -> Iterator[pd.DataFrame]:
        for number in range(5):
            frame.loc[0, "k"] = number
            frame.loc[0, "s"] = str(number)
            yield frame

    collector = FrameCollector(declared(PLAIN), CONF)
    batches = [batch for each in returned() for batch in collector.add(each)]
    batches += collector.flush()
    assert [(row["k"], row["s"]) for row in rows_of(batches)] == [(each, str(each)) for each in range(5)]
    assert len(batches) == 1


def test_a_list_that_is_changed_afterwards_is_taken_as_it_was() -> None:
    values = [1, 2]
    frame = pd.DataFrame({"k": [0], "v": [0.5], "s": ["x"], "a": [values]})
    collector = FrameCollector(declared(), CONF)
    batches = list(collector.add(frame))
    values.append(3)
    assert [row["a"] for row in rows_of([*batches, *collector.flush()])] == [[1, 2]]


def test_frames_of_many_bytes_do_not_wait_for_others() -> None:
    """However few rows they have. Text and bytes of 32 KiB are collected, up to 1 MiB of them; more than a
    quarter of that is converted at once."""
    wanted = st.StructType([st.StructField("n", st.LongType()), st.StructField("b", st.BinaryType())])
    blobs = ResultSchema.of("applyInPandas", lambda frame: frame, wanted, CONF)

    def frame(size: int) -> pd.DataFrame:
        return pd.DataFrame({"n": [size], "b": [bytes(size)]})

    collector = FrameCollector(blobs, CONF)
    assert list(collector.add(frame(32 * KIB))) == []
    assert [len(row["b"]) for row in rows_of(list(collector.add(frame(MIB))))] == [32 * KIB, MIB]

    sizes = [batch.num_rows for _ in range(100) for batch in collector.add(frame(32 * KIB))]
    assert sizes == [32, 32, 32]
    assert [batch.num_rows for batch in collector.flush()] == [4]

    texts = FrameCollector(declared(PLAIN), CONF)
    row = pd.DataFrame({"k": [1], "v": [0.5], "s": ["é" * 32 * KIB]})
    assert [batch.num_rows for _ in range(40) for batch in texts.add(row)] == [32]

    doubles = st.StructType([st.StructField(f"d{at}", st.DoubleType()) for at in range(100)])
    wide = FrameCollector(ResultSchema.of("applyInPandas", lambda frame: frame, doubles, CONF), CONF)
    table = pd.DataFrame(np.ones((100, 100)), columns=doubles.names)  # 80,000 bytes
    assert [batch.num_rows for _ in range(20) for batch in wide.add(table)] == [1400]


def test_objects_of_one_column_may_be_of_another_type_in_each_frame() -> None:
    """Together they do not convert."""
    values: list[Any] = ["12", 34, 5.0, "6"]
    frames = [pd.DataFrame({"k": pd.Series([each], dtype=object), "v": [0.5], "s": ["x"]}) for each in values]
    alone = [row for frame in frames for row in rows_of(list(from_group_frame(frame, declared(PLAIN), CONF)))]
    assert rows_of(collected(frames, declared(PLAIN))) == alone
    assert [row["k"] for row in alone] == [12, 34, 5, 6]


def test_by_position_frames_may_have_any_labels() -> None:
    frames = [pd.DataFrame([[number, 0.5, "x"]]) for number in range(3)]
    assert [row["k"] for row in rows_of(collected(frames, declared(PLAIN)))] == [0, 1, 2]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"k": [1], "v": [1.0]}), "Missing: s"),
        (pd.DataFrame({"k": [1], "v": [1.0], "s": ["x"], "t": [1]}), "Unexpected: t"),
        (pd.DataFrame({"k": ["x"], "v": [1.0], "s": ["x"]}), r"PySparkValueError: Failed .* 'k'"),
        ({"k": [1]}, r"should be pandas\.DataFrame, but is dict\."),
    ],
)
def test_what_is_no_frame_of_the_declared_columns_is_refused(frame: Any, message: str) -> None:
    right = pd.DataFrame({"k": [1], "v": [1.0], "s": ["x"]})
    with pytest.raises(SchemaMismatchError, match=message):
        collected([right, frame], declared(PLAIN))
