"""Sorting records in bounded memory, and ranges of keys, without Spark: the order is Python's, whatever the
memory; the sample is PySpark's."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from math import nan
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError
from pyspark.rddsampler import RDDSampler

from sortshuffle.format.header import Codec, FileHeader
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.pickled import Chunk, Pairs, PickledPayload
from sortshuffle.spark.rdds.ranges import (
    MOST_DRAWN,
    RangeKeySelector,
    Ranges,
    bounds_of,
    draw_keys,
    sample_of,
)
from sortshuffle.spark.rdds.sorting import FAN_IN, Sorting, by_key
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter


def sorting(directory: Path, memory: int, key: Callable[[Any], Any], reverse: bool = False) -> Sorting:
    made = iter(range(10**9))

    def new_file(header: FileHeader) -> PartitionedFileWriter:
        return PartitionedFileWriter(PartitionedFile(str(directory / f"run-{next(made)}")), header)

    payload = PickledPayload(Codec.LZ4)
    return Sorting(key, reverse, new_file, payload, MemoryBudget(memory), TaskMetrics())


def chunked(records: Sequence[Any], size: int) -> Iterator[Chunk]:
    for at, start in enumerate(range(0, len(records), size)):
        part = list(records[start : start + size])
        if at % 2 and all(type(record) is tuple for record in part):
            yield Pairs([key for key, _ in part], [value for _, value in part])
        else:
            yield part


@settings(max_examples=40)  # each writes files
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers())),
    st.integers(1, 8 * KIB),
    st.integers(1, 30),
    st.booleans(),
)
def test_the_order_is_that_of_sorted(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[int, int]],
    memory: int,
    size: int,
    reverse: bool,
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    sort = sorting(directory, memory, itemgetter(0), reverse)
    found = [record for piece in sort.sort(chunked(records, size)) for record in piece]

    assert found == sorted(records, key=itemgetter(0), reverse=reverse)
    assert sort.memory.used == 0
    assert not list(directory.iterdir())


@pytest.mark.parametrize("runs", [2, FAN_IN, FAN_IN + 1, 3 * FAN_IN + 7])
def test_any_number_of_runs_is_merged(tmp_path: Path, runs: int) -> None:
    size = 50
    records = [(n * 7919 % 1009, n) for n in range(runs * size)]
    sort = sorting(tmp_path, 1, itemgetter(0))
    found = [record for piece in sort.sort(chunked(records, size)) for record in piece]

    assert found == sorted(records, key=itemgetter(0))
    counts = sort.metrics.counts
    assert counts["merge_passes"] == 1 + (runs >= FAN_IN) * (runs // FAN_IN)
    assert counts["bytes_spilled"] > 0


def test_runs_are_of_the_memory(tmp_path: Path) -> None:
    records = [(f"key {n * 7919 % 100_003}", n) for n in range(50_000)]
    sort = sorting(tmp_path, 1 << 20, by_key(len))
    found = [record for piece in sort.sort(chunked(records, 1000)) for record in piece]

    assert found == sorted(records, key=lambda record: len(record[0]))
    assert sort.memory.peak < 1.2 * (1 << 20)
    assert sort.metrics.counts["merge_passes"] == 1


def test_what_was_put_aside_goes_when_nobody_wants_more(tmp_path: Path) -> None:
    sort = sorting(tmp_path, 1, itemgetter(0))
    pieces = sort.sort(chunked([(n, n) for n in range(1000)], 10))
    assert next(pieces)[0] == (0, 0)
    pieces.close()  # type: ignore[attr-defined]
    assert sort.memory.used == 0
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_compared_is_pythons_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'<' not supported"):
        list(sorting(tmp_path, 1 << 20, itemgetter(0)).sort([[(1, 1), ("a", 1)]]))


def test_stopiteration_out_of_a_key_function_is_an_error(tmp_path: Path) -> None:
    def stops(_: Any) -> Any:
        raise StopIteration("too early")

    with pytest.raises(PySparkRuntimeError, match="too early"):
        list(sorting(tmp_path, 1 << 20, by_key(stops)).sort([[(1, 1), (2, 1)]]))


@pytest.mark.parametrize("reverse", [False, True])
def test_runs_without_a_total_order_are_merged_too(tmp_path: Path, reverse: bool) -> None:
    """A search in such a run may find nothing that could be taken, in any step."""
    runs = [[5.0, 6.0, 7.0, nan, 1.0], [2.0, 8.0]]
    if reverse:
        runs = [[-each for each in run] for run in runs]
    merged = sorting(tmp_path, 1 << 20, float, reverse).merge([iter([run]) for run in runs])
    records = [record for piece in islice(merged, 100) for record in piece]
    assert Counter(map(str, records)) == Counter(map(str, chain(*runs)))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats() | st.just(nan), min_size=100, max_size=400), st.booleans())
def test_every_record_comes_once_whatever_its_key(
    tmp_path_factory: pytest.TempPathFactory, keys: list[float], reverse: bool
) -> None:
    sort = sorting(tmp_path_factory.mktemp("runs"), 2 * KIB, float, reverse)
    found = [record for piece in islice(sort.sort(chunked(keys, 10)), 10_000) for record in piece]
    assert Counter(map(repr, found)) == Counter(map(repr, keys))


# ---- ranges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[0], [0, 3, 0], [100, 5000, 1], [20_000, 20_000]])
def test_the_sample_is_pysparks(sizes: list[int]) -> None:
    most = 60.0
    partitions = [[(f"{split} {n}", n) for n in range(size)] for split, size in enumerate(sizes)]
    ours = [next(draw_keys(most, 1.0, split, pairs)) for split, pairs in enumerate(partitions)]

    total = sum(sizes)
    sampler = RDDSampler(False, min(most / max(total, 1), 1.0), 1)
    expected = [pair[0] for split, pairs in enumerate(partitions) for pair in sampler.func(split, pairs)]
    assert sample_of(ours, most) == expected
    assert [count for count, _ in ours] == sizes
    assert all(len(kept) <= 2 * most for _, kept in ours)  # 60 on average: 120 are 7 deviations more


def test_of_many_partitions_the_driver_gets_the_sample_alone() -> None:
    partitions = [
        [(f"{split} {n}", n) for n in range(size)] for split, size in enumerate([20_000, 0, 3, 900])
    ]
    sent: dict[int, list[int]] = {}

    def bounds(count: int) -> Sequence[Any]:
        def draw(function: Callable[..., Any]) -> list[Any]:
            draws = [next(function(split, pairs)) for split, pairs in enumerate(partitions)]
            sent.setdefault(count, []).append(sum(len(kept) for _, kept in draws))
            return draws

        return Ranges(draw, count, 10, None, True).selector().bounds

    assert bounds(len(partitions)) == bounds(MOST_DRAWN)
    one_job, (counts, sample) = sent.values()
    assert len(one_job) == 1
    assert counts == 0
    assert 100 < sample < 300 < one_job[0]  # 20 keys for each of 10 ranges


@pytest.mark.parametrize(("partitions", "expected"), [(50, 1), (51, 2)])
def test_one_job_sends_100_000_keys_at_most(partitions: int, expected: int) -> None:
    """Keys of 10 KB then fit Spark's limit for results."""
    jobs: list[int] = []

    def draw(_: Callable[..., Any]) -> list[Any]:
        jobs.append(1)
        return [(1, [])] * partitions

    Ranges(draw, partitions, 100, None, True).selector()
    assert len(jobs) == expected


@given(st.lists(st.integers() | st.floats(allow_nan=False), max_size=50), st.integers(2, 10), st.booleans())
def test_ranges_are_in_order(keys: list[float], count: int, ascending: bool) -> None:
    ranges = Ranges(lambda draw: list(draw(0, [(key, 0) for key in keys])), 1, count, None, ascending)
    ids = ranges.selector().assign(keys).tolist()

    assert ids == [ranges(key) for key in keys] == [pickle.loads(pickle.dumps(ranges))(key) for key in keys]
    assert all(0 <= found < count for found in ids)
    by_range = sorted(zip(ids, keys, strict=True), reverse=not ascending)
    if not ascending:
        by_range = sorted(zip([-found for found in ids], keys, strict=True))
    assert [key for _, key in by_range] == sorted(keys)


def test_bounds_are_what_the_key_function_gives() -> None:
    keys = ["b", "C", "a", "D"]
    assert bounds_of(keys, 4, str.lower) == ["b", "c", "d"]
    assert bounds_of(keys, 2, None) == ["a"]
    assert bounds_of([], 3, None) == []
    selector = RangeKeySelector(["b", "c", "d"], str.lower, True, 4)
    assert selector.assign(["A", "b", "B", "c", "Z"]).tolist() == [0, 0, 0, 1, 3]


def test_the_sample_is_drawn_once() -> None:
    jobs: list[int] = []

    def draw(function: Callable[..., Any]) -> list[Any]:
        jobs.append(1)
        return list(function(0, [(1, 1), (2, 2)]))

    ranges = Ranges(draw, 1, 2, None, True)
    assert jobs == []
    assert [ranges(1), ranges(3), ranges.selector().subpartitions] == [0, 1, 2]
    assert jobs == [1]
