"""Samples: which values make a subpartition large, and what its columns take."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engine import noise
from outputs_with_rows import exchange_of, write

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.report.samples import (
    MOST_LETTERS,
    SAMPLE_MAP_OUTPUTS,
    HeavyValue,
    Sampler,
    column_sizes,
    heavy_values,
)


def test_rows_of_a_subpartition_come_from_all_map_outputs(tmp_path: Path) -> None:
    for map_index in range(3):
        write(tmp_path, pa.table({"k": [map_index, map_index + 10]}), [0, 1], map_index=map_index)
    sampler = Sampler(exchange_of(tmp_path))
    assert sampler.rows(0).to_pydict() == {"k": [0, 1, 2]}
    assert sampler.rows(1).to_pydict() == {"k": [10, 11, 12]}
    assert sampler.rows(2) is None


def test_a_sample_is_bounded(tmp_path: Path) -> None:
    rows = pa.table({"text": noise(1, 60, 1 << 20)})
    write(tmp_path, rows, [0] * len(rows))
    sample = Sampler(exchange_of(tmp_path)).rows(0)
    assert 0 < sample.num_rows < len(rows)


def test_rows_in_bad_buffers_are_left_out(tmp_path: Path) -> None:
    rows = pa.table({"k": list(range(100))})
    file = write(tmp_path, rows, [0] * 100)
    exchange = exchange_of(tmp_path)
    content = bytearray(Path(file.data_path).read_bytes())
    content[-40] ^= 1
    Path(file.data_path).write_bytes(content)
    assert Sampler(exchange).rows(0) is None


def test_a_value_that_makes_the_difference_is_named() -> None:
    rows = pa.table({"k": [7] * 90 + list(range(10)), "day": ["Mon", "Tue"] * 50, "list": [[1]] * 100})
    others = pa.table({"k": list(range(20, 40)), "day": ["Tue", "Mon"] * 10, "list": [[1]] * 20})
    assert heavy_values(rows, others) == (HeavyValue("k", "7", 0.91, 0.0),)


def test_nulls_are_a_value() -> None:
    rows = pa.table({"k": pa.array([None] * 6 + ["a"] * 4)})
    others = pa.table({"k": pa.array([None, "b", "c", "d"])})
    assert heavy_values(rows, others) == (HeavyValue("k", "None", 0.6, 0.25),)


def test_long_values_are_cut() -> None:
    (found,) = heavy_values(pa.table({"k": ["a" * 1000]}), None)
    assert found.value == "'" + "a" * (MOST_LETTERS - 1) + "..."


def test_without_other_rows_frequent_values_are_named() -> None:
    rows = pa.table({"a": [1, 1, 2, 3], "b": [True] * 4})
    assert heavy_values(rows, None) == (HeavyValue("b", "True", 1.0, 0.0), HeavyValue("a", "1", 0.5, 0.0))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, None], pa.null()),
        pa.array([datetime.date(2024, 2, 29)] * 2),
        pa.array([float("nan")] * 2),
        pa.array([2**62] * 2, pa.timestamp("s")),
        pa.array([b"\0\xff"] * 2),
        pa.array(["a", "a"]).dictionary_encode(),
        pa.array([datetime.timedelta(1)] * 2, pa.duration("us")),
        pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
        pa.array([[1]] * 2),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_every_type_are_sampled(column: pa.Array) -> None:
    rows = pa.table({"c": column})
    found = heavy_values(rows, rows.slice(0, 0))
    assert [each.share for each in found] in ([1.0], [])
    assert [each.name for each in column_sizes(rows, Codec.LZ4)] == ["c"]


def test_columns_are_compressed_alone() -> None:
    random = np.random.default_rng(1)
    rows = pa.table({"same": [5] * 100_000, "random": random.integers(0, 1 << 62, 100_000)})
    same, other = column_sizes(rows, Codec.LZ4)
    assert (same.name, same.type) == ("same", "int64")
    assert same.raw_bytes / same.stored_bytes > 50
    assert other.raw_bytes == other.stored_bytes


@pytest.mark.parametrize("codec", list(Codec))
def test_each_codec_gives_sizes(codec: Codec) -> None:
    (found,) = column_sizes(pa.table({"same": [5] * 100_000}), codec)
    assert found.stored_bytes < found.raw_bytes / 50


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (PayloadKind.PICKLE, "they are objects, and to unpickle them runs code"),
        (PayloadKind.RECORD_BYTES, "they are rows of the JVM, which do not say what they are"),
        (PayloadKind.FRAMES, "they do not say what they are"),
        (PayloadKind.ARROW, ""),
    ],
)
def test_what_cannot_be_decoded_is_said(kind: PayloadKind, why: str) -> None:
    files = ExchangeFiles("app-1", 3, 4, FileHeader(bytes(16), 4, 0, Codec.LZ4, kind))
    assert Sampler(files).refusal == why


def test_rows_come_from_map_outputs_all_over_the_exchange(tmp_path: Path) -> None:
    for map_index in range(2 * SAMPLE_MAP_OUTPUTS + 5):
        write(tmp_path, pa.table({"k": [map_index]}), [0], map_index=map_index)
    found = Sampler(exchange_of(tmp_path)).rows(0)["k"].to_pylist()
    assert len(found) == SAMPLE_MAP_OUTPUTS
    assert {before - after for before, after in zip(found[1:], found, strict=False)} == {2, 3}
