"""Advice: each kind is given where it holds, with its figure, and not where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from outputs_with_rows import exchange_of, write

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB, format_size
from sortshuffle.report.application import ApplicationRun, PythonStage, SparkStage
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.report.findings import BYTE, CODEC_BYTE, EXTENT, MOST_ADVICE, TASK, Findings, advice
from sortshuffle.report.samples import ColumnSize
from sortshuffle.storage.inspection.contents import Totals


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
    rows = int(findings.files.records[2])
    assert first.figure == (
        f"Subpartition 2 of exchange 3 has {format_size(findings.spread.most)}, {times:.0f} times the median."
        f" k is 99 in {heavy.share:.0%} of the {rows:,} of its rows that were looked at."
    )
    assert first.remedy == (
        "One task reads all of it: leave this value out, or add a second column to the key."
    )


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
    size = format_size(findings.spread.most)
    assert figures(tmp_path)[0] == (
        "All rows of exchange 3 are in 2 of 100 subpartitions; the largest,"
        f" {findings.spread.largest}, has {size}."
    )


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
    assert line.figure == "LZ4 makes exchange 3 only 0% smaller."
    assert "spark.sortshuffle.codec=none" in line.remedy


def test_rows_that_compress_want_a_codec(tmp_path: Path) -> None:
    size = 40_000
    rows = pa.table({"a": np.arange(size) // 100, "b": np.arange(size) // 100})
    write(tmp_path, rows, np.arange(size) % 4, codec=Codec.NONE)
    columns = found(tmp_path).columns
    part = sum(each.stored_bytes for each in columns) / sum(each.raw_bytes for each in columns)
    assert part < 0.2
    expected = f"The rows of exchange 3 are stored as they are; LZ4 would make them {1 - part:.0%} smaller."
    assert expected in figures(tmp_path)


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


# ---- the limits, on figures without files ----------------------------------------------------------------


def made(
    sizes: list[int],
    *,
    kind: PayloadKind = PayloadKind.ARROW,
    codec: Codec = Codec.LZ4,
    raw: float = 2.0,
    application: str = "app-1",
) -> ExchangeFiles:
    """An exchange of one map output with a region, whose subpartitions have these bytes."""
    files = ExchangeFiles(application, 3, len(sizes), FileHeader(bytes(16), len(sizes), 0, codec, kind))
    files.bases.append("/a/b")
    files.maps.add(0)
    files.bytes[:] = sizes
    filled = int((files.bytes > 0).sum())
    files.totals = files.unicast = Totals(filled, sum(sizes), int(sum(sizes) * raw), filled, filled)
    files.unicast_regions = 1
    return files


def lines(files: ExchangeFiles, *columns: ColumnSize) -> list[str]:
    return [each.figure for each in advice([Findings(files, columns)])]


@pytest.mark.parametrize(
    ("largest", "is_skewed"), [(50 * MIB, False), (50 * MIB + 1, True), (40 * MIB, False)]
)
def test_a_skewed_subpartition_has_more_than_five_times_the_median(largest: int, is_skewed: bool) -> None:
    assert Findings(made([10 * MIB] * 7 + [largest])).is_skewed == is_skewed


@pytest.mark.parametrize(("excess", "is_skewed"), [(MIB - 1, False), (MIB, True)])
def test_a_skewed_subpartition_has_a_mebibyte_more_than_the_median(excess: int, is_skewed: bool) -> None:
    assert Findings(made([KIB] * 7 + [KIB + excess])).is_skewed == is_skewed


def test_the_time_that_skew_costs_is_that_of_the_bytes_above_the_median() -> None:
    (line,) = advice([Findings(made([10 * MIB] * 7 + [100 * MIB]))])
    assert line.seconds == pytest.approx(90 * MIB * BYTE)
    assert line.figure == "Subpartition 7 of exchange 3 has 100.0 MiB, 10 times the median."


@pytest.mark.parametrize(
    ("largest", "kind", "remedy"),
    [
        (100 * MIB, PayloadKind.ARROW, "add a second column to the key."),
        (
            200 * MIB,
            PayloadKind.ARROW,
            "spark.sortshuffle.skew.factor, if rows of one key need not be together.",
        ),
        (200 * MIB, PayloadKind.RECORD_BYTES, "see that spark.sql.adaptive.skewJoin.enabled is true."),
    ],
)
def test_only_what_can_help_against_skew_is_named(largest: int, kind: PayloadKind, remedy: str) -> None:
    (line,) = advice([Findings(made([10 * MIB] * 7 + [largest], kind=kind))])
    assert line.remedy.endswith(remedy)


def test_a_constant_key_is_skew_though_there_is_no_median() -> None:
    sizes = [0] * 200
    sizes[7] = 32 * MIB
    (line,) = advice([Findings(made(sizes))])
    assert (
        line.figure == "All rows of exchange 3 are in 1 of 200 subpartitions; the largest, 7, has 32.0 MiB."
    )
    assert line.seconds == pytest.approx(28 * MIB * BYTE)


def test_one_subpartition_is_not_skewed() -> None:
    assert lines(made([100 * MIB])) == []


@pytest.mark.parametrize(("size", "is_said"), [(MIB - 1, True), (MIB, False)])
def test_subpartitions_below_a_mebibyte_are_small(size: int, is_said: bool) -> None:
    assert bool(lines(made([size] * 100))) == is_said


@pytest.mark.parametrize(("number", "is_said"), [(15, False), (16, True)])
def test_less_than_sixteen_subpartitions_are_not_too_many(number: int, is_said: bool) -> None:
    assert bool(lines(made([KIB] * number))) == is_said


def test_the_number_to_ask_for_gives_each_task_32_mebibytes() -> None:
    (line,) = advice([Findings(made([512 * KIB] * 1024))])
    assert line.figure == "The 1,024 subpartitions of exchange 3 have 512.0 KiB each on average."
    assert "ask for about 16, or for no number" in line.remedy
    assert line.seconds == pytest.approx((1024 - 16) * TASK)


@pytest.mark.parametrize(("raw", "is_said"), [(1.04, True), (1.06, False)])
def test_a_codec_that_saves_less_than_a_twentieth_does_not_pay(raw: float, is_said: bool) -> None:
    found = advice([Findings(made([2 * MIB] * 4, raw=raw))])
    assert [each.figure for each in found] == ["LZ4 makes exchange 3 only 4% smaller."] * is_said
    assert [each.seconds for each in found] == [pytest.approx(8 * MIB * raw * CODEC_BYTE)] * is_said


@pytest.mark.parametrize(("stored", "is_said"), [(66, True), (67, False)])
def test_a_codec_pays_that_saves_a_third(stored: int, is_said: bool) -> None:
    found = advice(
        [Findings(made([2 * MIB] * 4, codec=Codec.NONE), (ColumnSize("a", "int64", 100, stored),))]
    )
    text = "The rows of exchange 3 are stored as they are; LZ4 would make them 34% smaller."
    assert [each.figure for each in found] == [text] * is_said
    assert [each.seconds for each in found] == [pytest.approx(0.34 * 8 * MIB * BYTE / 2)] * is_said


@pytest.mark.parametrize(("stored", "is_said"), [(66, False), (67, True)])
def test_a_wide_column_has_two_thirds_of_the_bytes(stored: int, is_said: bool) -> None:
    columns = ColumnSize("a", "int64", 100, stored), ColumnSize("b", "int64", 100, 100 - stored)
    found = lines(made([2 * MIB] * 4), *columns)
    assert found == [f"Column a is {stored}% of the bytes of exchange 3."] * is_said


def test_broadcast_regions_are_not_small_reads() -> None:
    files = made([MIB] * 4)
    files.totals = Totals(8, 8 * KIB, 16 * KIB, 8, 8)
    files.unicast = Totals(4, 4 * KIB, 8 * KIB, 4, 4)
    assert lines(files) == []
    files.unicast_regions = 2
    (line,) = advice([Findings(files)])
    assert line.figure == "A map output of exchange 3 has 2 regions on average, and a read gets 1.0 KiB."
    assert line.seconds == pytest.approx(4 * 0.5 * EXTENT)


def test_the_application_is_named_where_there_are_several() -> None:
    every = [Findings(made([100 * MIB] + [0] * 99, application=name)) for name in ("app-1", "app-2")]
    assert [each.figure[:34] for each in advice(every)] == [
        "All rows of exchange 3 of app-1 ar",
        "All rows of exchange 3 of app-2 ar",
    ]


def test_stages_that_put_rows_aside_want_memory() -> None:
    metrics = TaskMetrics()
    metrics.add(bytes_spilled=64 * MIB)
    metrics.seconds["spill"] = 1.25
    python_stages = (PythonStage(5, 2, 10.0, metrics), PythonStage(6, 2, 10.0, TaskMetrics()))
    spilling = SparkStage(7, 1, "collect", "complete", 2, 0, 0.0, 1.0, 1.0, 0, 0, 32 * MIB)
    run = ApplicationRun("app-1", "job", 10.0, (spilling,), 0, python_stages)
    assert [(each.figure, each.seconds) for each in advice([], run)] == [
        (
            "Python stage 5 put 64.0 MiB of rows aside in 1.2 s of its tasks, because their memory was full.",
            pytest.approx(64 * MIB * 2 * BYTE),
        ),
        (
            "Stage 7, attempt 2 spilled 32.0 MiB, because Spark's memory for its tasks was full.",
            pytest.approx(32 * MIB * 2 * BYTE),
        ),
    ]
