"""Figures of a task: steps and counts add up, a peak stays a peak, and records of threads and tasks merge."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.metrics import FIGURES, TaskMetrics

records = st.builds(
    lambda counts, peak: _record(counts, peak),
    st.dictionaries(st.sampled_from(["rows_read", "bytes_read", "regions"]), st.integers(0, 10**15)),
    st.integers(0, 10**12),
)


def _record(counts: dict[str, int], peak: int) -> TaskMetrics:
    metrics = TaskMetrics()
    metrics.add(**counts)
    metrics.peak(peak)
    return metrics


def test_counts_add_up() -> None:
    metrics = TaskMetrics()
    metrics.add(rows_read=3, extents_read=1)
    metrics.add(rows_read=4)
    assert metrics.counts == {"rows_read": 7, "extents_read": 1}
    assert metrics.counts["never counted"] == 0


def test_a_peak_is_the_highest() -> None:
    metrics = TaskMetrics()
    for memory in (5, 9, 7):
        metrics.peak(memory)
    assert metrics.counts["memory_peak"] == 9


def test_a_step_is_timed_each_time_and_also_if_it_fails() -> None:
    metrics = TaskMetrics()
    with metrics.step("sort"):
        pass
    once = metrics.seconds["sort"]
    assert once > 0
    with pytest.raises(KeyError), metrics.step("sort"):
        raise KeyError
    assert metrics.seconds["sort"] > once
    assert set(metrics.seconds) == {"sort"}


def test_timing_a_source_passes_it_on() -> None:
    metrics = TaskMetrics()
    assert list(metrics.timed(iter([1, None, 3]), "wait")) == [1, None, 3]
    assert metrics.seconds["wait"] > 0


def test_timing_a_source_counts_its_time_and_not_its_consumers() -> None:
    metrics = TaskMetrics()
    seen = []
    for _ in metrics.timed(iter([1, 2, 3]), "wait"):
        seen.append(metrics.seconds["wait"])
        before = metrics.seconds["wait"]
        sum(range(100_000))
        assert metrics.seconds["wait"] == before
    assert seen == sorted(seen)
    assert len(set(seen)) == 3


def test_an_error_of_a_timed_source_comes_through() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("lost")

    metrics = TaskMetrics()
    timed = metrics.timed(source(), "wait")
    assert next(timed) == 1
    with pytest.raises(OSError, match="lost"):
        next(timed)
    assert metrics.seconds["wait"] > 0


@given(st.lists(records, max_size=5))
def test_merging_adds_counts_and_keeps_the_highest_peak(parts: list[TaskMetrics]) -> None:
    total = TaskMetrics()
    for part in parts:
        total.merge(part)
    for name in ("rows_read", "bytes_read", "regions"):
        assert total.counts[name] == sum(part.counts[name] for part in parts)
    assert total.counts["memory_peak"] == max((part.counts["memory_peak"] for part in parts), default=0)


def test_merging_adds_seconds_and_leaves_the_other_as_it_was() -> None:
    one, two = TaskMetrics(), TaskMetrics()
    one.seconds.update(read=1.5, wait=1.0)
    two.seconds.update(read=2.0, merge=0.25)
    two.add(rows_read=1)
    one.merge(two)
    assert one.seconds == {"read": 3.5, "wait": 1.0, "merge": 0.25}
    assert two.seconds == {"read": 2.0, "merge": 0.25}
    assert two.counts["rows_read"] == 1


def test_a_record_survives_pickling() -> None:
    metrics = _record({"rows_read": 5}, 9)
    metrics.seconds["read"] = 0.5
    assert pickle.loads(pickle.dumps(metrics)) == metrics


def test_the_slowest_steps_come_first() -> None:
    metrics = TaskMetrics()
    metrics.seconds |= {"take": 0.5, "write": 2.0, "ids": 0.25}
    assert metrics.slowest() == [("write", 2.0), ("take", 0.5), ("ids", 0.25)]


def test_the_operations_page_has_the_table_of_the_figures() -> None:
    page = Path(__file__).parent.parent / "docs" / "operations.md"
    rows = [f"| `{name}` | {meaning} |" for name, meaning in FIGURES.items()]
    assert "\n".join(["| figure | meaning |", "|---|---|", *rows]) in page.read_text()
