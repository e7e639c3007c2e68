"""Advice: each kind is given where it holds, with its figure, and not where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from outputs_with_rows import exchange_of, write

from sortshuffle.format.header import Codec
from sortshuffle.report.findings import EXTENT, MOST_ADVICE, Findings, advice


def random_texts(count: int, letters: int = 100, seed: int = 1) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [each.tobytes() for each in random.integers(0, 256, (count, letters), np.uint8)]


def found(directory: Path) -> Findings:
    return Findings.of(exchange_of(directory))


def figures(directory: Path) -> list[str]:
    return [each.figure for each in advice([found(directory)])]


@pytest.fixture
def even(tmp_path: Path) -> Path:
    """Rows of two columns that compress a little, the same number for each subpartition."""
    size = 20_000
    random = np.random.default_rng(1)
    rows = pa.table({"k": random.integers(0, 1000, size), "n": random.integers(0, 1000, size)})
    write(tmp_path, rows, np.arange(size) % 4)
    return tmp_path


def test_nothing_stands_out_of_even_rows(even: Path) -> None:
    assert advice([found(even)]) == []


def test_a_large_subpartition_is_named_with_the_value_that_makes_it_large(tmp_path: Path) -> None:
    size = 40_000
    places = np.where(np.arange(size) % 10 < 8, 2, np.arange(size) % 4)
    keys = np.where(np.arange(size) % 10 < 7, 99, np.arange(size))
    write(tmp_path, pa.table({"k": keys, "text": random_texts(size)}), places)
    findings = found(tmp_path)
    assert findings.is_skewed
    assert findings.spread.largest == 2
    (heavy,) = findings.heavy
    assert (heavy.column, heavy.value) == ("k", "99")
    expected = ((keys == 99) & (places == 2)).sum() / (places == 2).sum()
    assert heavy.share == pytest.approx(expected, abs=0.02)
    first = advice([findings])[0]
    times = findings.spread.most / findings.typical_bytes
    assert first.figure.startswith("Subpartition 2 of exchange 3 has ")
    assert f"{times:.0f} times the median. k is 99 in {expected:.0%} of its rows." in first.figure
    assert "spark.sortshuffle.skew.factor" in first.remedy


def test_a_subpartition_that_is_a_little_larger_is_not_skewed(tmp_path: Path) -> None:
    size = 40_000
    write(tmp_path, pa.table({"text": random_texts(size)}), np.minimum(np.arange(size) % 6, 3))
    assert not found(tmp_path).is_skewed


def test_empty_subpartitions_do_not_make_the_others_skewed(tmp_path: Path) -> None:
    size = 40_000
    write(tmp_path, pa.table({"text": random_texts(size)}), np.arange(size) % 2, subpartitions=100)
    findings = found(tmp_path)
    assert not findings.is_skewed
    assert findings.spread.empty == 98


def test_many_small_subpartitions_are_too_many(tmp_path: Path) -> None:
    size = 2_000
    rows = pa.table({"k": np.arange(size), "n": np.arange(size)})
    write(tmp_path, rows, np.arange(size) % 1000, subpartitions=1000)
    first = advice([found(tmp_path)])[0]
    assert first.figure.startswith("The 1,000 subpartitions of exchange 3 have ")
    assert "ask for about 8, or for no number" in first.remedy


def test_small_reads_come_from_too_little_memory(tmp_path: Path) -> None:
    size = 4_000
    rows = pa.table({"a": np.random.default_rng(1).integers(0, 1 << 62, size), "b": np.arange(size)})
    write(tmp_path, rows, np.arange(size) % 4, regions=10)
    assert "A map output of exchange 3 has 10 regions on average, and a read gets " in " ".join(
        figures(tmp_path)
    )
    (line,) = [each for each in advice([found(tmp_path)]) if "regions" in each.figure]
    assert "spark.sortshuffle.memory" in line.remedy
    assert line.seconds == pytest.approx(0.9 * 40 * EXTENT)


def test_a_wide_column_is_named_with_its_part_of_the_bytes(tmp_path: Path) -> None:
    size = 10_000
    write(tmp_path, pa.table({"k": np.arange(size), "text": random_texts(size)}), np.arange(size) % 4)
    findings = found(tmp_path)
    key, text = findings.columns
    assert (key.name, text.name) == ("k", "text")
    share = text.stored_bytes / (key.stored_bytes + text.stored_bytes)
    assert share > 0.9
    assert f"Column text is {share:.0%} of the bytes of exchange 3." in figures(tmp_path)


def test_rows_that_do_not_compress_need_no_codec(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"text": random_texts(10_000)}), np.arange(10_000) % 4)
    (line,) = advice([found(tmp_path)])
    assert line.figure == "LZ4 saves 0% of exchange 3."
    assert "spark.sortshuffle.codec=none" in line.remedy


def test_rows_that_compress_want_a_codec(tmp_path: Path) -> None:
    size = 40_000
    rows = pa.table({"a": np.arange(size) // 100, "b": np.arange(size) // 100})
    write(tmp_path, rows, np.arange(size) % 4, codec=Codec.NONE)
    assert any("are stored as they are; LZ4 makes " in each for each in figures(tmp_path))


def test_map_outputs_of_second_attempts_are_counted(even: Path) -> None:
    rows = pa.table({"k": [1], "n": [1]})
    write(even, rows, [0], map_index=0, attempt=200)
    assert figures(even) == ["1 of 2 map outputs of exchange 3 were written again by another attempt."]


def test_the_advice_that_matters_most_comes_first_and_the_rest_is_left_out(tmp_path: Path) -> None:
    size = 40_000
    places = np.where(np.arange(size) % 10 < 8, 2, np.arange(size) % 4)
    rows = pa.table({"k": np.arange(size) % 3, "text": random_texts(size)})
    write(tmp_path, rows, places, regions=40)
    write(tmp_path, rows, places, attempt=200, regions=40)
    seconds = [each.seconds for each in advice([found(tmp_path)])]
    assert len(seconds) == MOST_ADVICE
    assert seconds == sorted(seconds, reverse=True)


def test_an_exchange_without_rows_has_no_advice(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"k": pa.array([], pa.int64())}), [])
    findings = found(tmp_path)
    assert (findings.columns, findings.refusal) == ((), "there are none")
    assert advice([findings]) == []
