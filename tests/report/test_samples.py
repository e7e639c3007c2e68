"""Samples: which values make a subpartition large, and what its columns take."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engine import noise
from outputs_with_rows import exchange_of, write

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.report import arrow_rows
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
    first, second, third = sampler.rows(0, 1, 2)
    assert sorted(first["k"].to_pylist()) == [0, 1, 2]
    assert sorted(second["k"].to_pylist()) == [10, 11, 12]
    assert third is None


def test_a_sample_is_bounded(tmp_path: Path) -> None:
    rows = pa.table({"text": noise(1, 60, 1 << 20)})
    write(tmp_path, rows, [0] * len(rows))
    (sample,) = Sampler(exchange_of(tmp_path)).rows(0)
    assert 0 < sample.num_rows < len(rows)


def test_rows_in_bad_buffers_are_left_out(tmp_path: Path) -> None:
    rows = pa.table({"k": list(range(100))})
    file = write(tmp_path, rows, [0] * 100)
    exchange = exchange_of(tmp_path)
    content = bytearray(Path(file.data_path).read_bytes())
    content[-40] ^= 1
    Path(file.data_path).write_bytes(content)
    assert Sampler(exchange).rows(0) == [None]


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


def test_rows_come_from_the_map_outputs_that_have_most_of_the_subpartition(tmp_path: Path) -> None:
    for map_index in range(2 * SAMPLE_MAP_OUTPUTS):
        size = 2000 if map_index == 6 else 10
        write(tmp_path, pa.table({"k": [map_index] * size}), [0] * size, map_index=map_index)
    (found,) = Sampler(exchange_of(tmp_path)).rows(0)
    keys = found["k"].to_pylist()
    assert keys.count(6) == 2000
    assert len(set(keys)) == SAMPLE_MAP_OUTPUTS


def test_rows_come_from_the_whole_length_of_a_map_output(tmp_path: Path) -> None:
    size = 300_000
    rows = pa.table({"k": np.where(np.arange(size) < size // 5, 1, 2), "text": noise(1, size, 120)})
    write(tmp_path, rows, np.zeros(size, np.int64))
    (found,) = Sampler(exchange_of(tmp_path)).rows(0)
    assert found.nbytes < rows.nbytes / 2
    assert found["k"].to_pylist().count(2) / len(found) == pytest.approx(0.8, abs=0.05)


def test_map_outputs_with_other_columns_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"a": list(range(1000))}), [0] * 1000)
    write(tmp_path, pa.table({"b": ["x"]}), [0], map_index=1)
    required = pa.schema([pa.field("a", pa.int64(), nullable=False)], {"written": "otherwise"})
    write(tmp_path, pa.table({"a": [1]}, schema=required), [0], map_index=2)
    (found,) = Sampler(exchange_of(tmp_path)).rows(0)
    assert found.to_pydict() == {"a": [*range(1000), 1]}


def test_a_map_output_that_is_removed_meanwhile_has_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, pa.table({"a": [1]}), [0])
    exchange = exchange_of(tmp_path)
    opened = arrow_rows.open_data

    def removed(path: str) -> object:
        Path(file.data_path).unlink()
        return opened(path)

    monkeypatch.setattr(arrow_rows, "open_data", removed)
    assert Sampler(exchange).rows(0) == [None]
    assert Sampler(exchange).rows(0) == [None]


def test_nan_is_a_value() -> None:
    rows = pa.table({"f": [float("nan")] * 4})
    assert heavy_values(rows, rows) == ()
    assert heavy_values(rows, pa.table({"f": [float("nan"), 1.0, 2.0, 3.0]})) == (
        HeavyValue("f", "nan", 1.0, 0.25),
    )


def test_values_are_compared_with_rows_of_the_same_columns() -> None:
    rows = pa.table({"a": [1, 1, 1, 2]})
    assert heavy_values(rows, pa.table({"b": ["x"]})) == (HeavyValue("a", "1", 0.75, 0.0),)


def test_the_values_are_those_that_make_the_most_difference() -> None:
    rows = pa.table(
        {name: [1] * part + [0] * (10 - part) for name, part in zip("abcd", (9, 6, 8, 7), strict=True)}
    )
    others = pa.table({name: [2] * 10 for name in "abcd"})
    assert [(each.column, each.share) for each in heavy_values(rows, others)] == [
        ("a", 0.9),
        ("c", 0.8),
        ("d", 0.7),
    ]


@pytest.mark.parametrize(
    ("part", "elsewhere", "is_named"), [(2, 1, True), (2, 2, False), (1, 0, True), (0, 0, False)]
)
def test_a_value_needs_a_tenth_of_the_rows_and_twice_as_many_as_elsewhere(
    part: int, elsewhere: int, is_named: bool
) -> None:
    rows = pa.table({"a": [-1] * (10 * part) + list(range(100 - 10 * part))})
    others = pa.table({"a": [-1] * (10 * elsewhere) + list(range(100, 200 - 10 * elsewhere))})
    assert [each.value for each in heavy_values(rows, others)] == ["-1"] * is_named


def test_small_buffers_do_not_count_for_the_columns() -> None:
    text = noise(1, 2000, 120)
    whole = pa.table({"k": np.arange(2000), "text": text})
    pieces = pa.Table.from_batches(whole.to_batches(max_chunksize=1))
    assert column_sizes(pieces, Codec.LZ4) == column_sizes(whole, Codec.LZ4)


def test_encrypted_rows_need_their_key(tmp_path: Path) -> None:
    header = FileHeader(bytes(16), 4, 0, Codec.LZ4, PayloadKind.ARROW, key_check=bytes(16))
    files = ExchangeFiles("app-1", 3, 4, header)
    assert Sampler(files).refusal == "they are encrypted, and there is no key"
    assert (
        Sampler(files, EncryptionKey(bytes(32))).refusal == "they are encrypted, and their key is another one"
    )
