"""Pairs on their way into a map output: all arrive where their keys say, in order, in chunks of a bounded
size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pickle import PicklingError
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.events import Event
from sortshuffle.payload.pickled import Pairs, unpack_chunk
from sortshuffle.spark.rdds.aggregations import Kind
from sortshuffle.spark.rdds.collecting import PairCollector
from sortshuffle.write.pickled_sizes import CHUNK_BYTES, MOST_OBJECTS


class Lengths:
    """Places what it is given by the length of how it prints."""

    is_broadcast: ClassVar[bool] = False
    subpartitions = 7

    def assign(self, keys: Sequence[Any]) -> Any:
        return np.array([len(repr(key)) % self.subpartitions for key in keys], np.uint8)


class Target:
    """Keeps the chunks of each subpartition."""

    subpartitions = 7

    def __init__(self) -> None:
        self.chunks: defaultdict[int, list[Any]] = defaultdict(list)
        self.sizes: list[int] = []

    def emit(self, frame: Any, subpartition: int) -> None:
        self.chunks[subpartition].append(unpack_chunk(memoryview(frame)))
        self.sizes.append(len(frame))

    def broadcast_frame(self, frame: Any) -> None:
        raise AssertionError

    def broadcast_event(self, event: Event) -> None:
        raise AssertionError

    def flush(self) -> None:
        raise AssertionError

    def records(self, subpartition: int) -> list[Any]:
        return [record for chunk in self.chunks[subpartition] for record in chunk]


def placed(records: Sequence[Any], keys: Sequence[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {at: [] for at in range(7)}
    for record, at in zip(records, Lengths().assign(keys).tolist(), strict=True):
        found[at].append(record)
    return found


@given(st.lists(st.tuples(st.integers() | st.text(), st.binary(max_size=300))), st.integers(1, 50))
def test_pairs_arrive_where_their_keys_say_in_order(pairs: list[tuple[Any, bytes]], size: int) -> None:
    target, metrics = Target(), TaskMetrics()
    collector = PairCollector(Lengths(), target, metrics, memory=16 * KIB)
    for start in range(0, len(pairs), size):
        part = pairs[start : start + size]
        collector.add([key for key, _ in part], [value for _, value in part])
    collector.finish()

    assert {at: target.records(at) for at in range(7)} == placed(pairs, [key for key, _ in pairs])
    assert metrics.counts["records_out"] == len(pairs)
    assert metrics.counts["frames_out"] == len(target.sizes)
    assert metrics.counts["bytes_out"] == sum(target.sizes)


def test_chunks_are_neither_tiny_nor_huge() -> None:
    target = Target()
    collector = PairCollector(Lengths(), target, TaskMetrics())
    for start in range(0, 400_000, 4096):
        keys = list(range(start, start + 4096))
        collector.add(keys, ["value 0001"] * len(keys))
    collector.finish()
    assert max(target.sizes) < 2 * CHUNK_BYTES
    assert max(len(chunk) for chunks in target.chunks.values() for chunk in chunks) <= MOST_OBJECTS
    assert len(target.sizes) < 400


def test_what_gets_large_is_not_held() -> None:
    """A chunk of large values, behind many small ones, is not as many values."""
    target = Target()
    collector = PairCollector(Lengths(), target, TaskMetrics(), memory=MIB)
    collector.add([1] * 20_000, [b""] * 20_000)
    for _ in range(20):
        collector.add([1] * 128, [bytes(20_000 + n) for n in range(128)])
    collector.finish()
    assert sum(map(len, target.records(1))) == 2 * (20_000 + 20 * 128)
    assert max(len(chunk) for chunk in target.chunks[1] if len(chunk.values[-1]) > 100) <= 32


def test_chunks_hold_values_of_one_kind() -> None:
    target = Target()
    collector = PairCollector(Lengths(), target, TaskMetrics())
    collector.add([1, 2], [10, 20])
    collector.add([1, 2], [[1, 2], [3]], Kind.GROUPED)
    collector.add([3], [{4}], Kind.COMBINED)
    collector.add([5], [50])
    collector.finish()
    chunks = target.chunks[1]
    assert [pair for chunk in chunks if chunk.counts is None and not chunk.combined for pair in chunk] == [
        (1, 10),
        (2, 20),
        (5, 50),
    ]
    assert [pair for chunk in chunks if chunk.counts for pair in chunk] == [(1, [1, 2]), (2, [3])]
    assert [pair for chunk in chunks if chunk.combined for pair in chunk] == [(3, {4})]


def test_whole_records_need_not_be_pairs() -> None:
    target = Target()
    collector = PairCollector(Lengths(), target, TaskMetrics(), whole=True)
    records = [1, "a", None, [1, 2], (1, 2, 3), {}]
    collector.add(records, ())
    collector.finish()
    assert {at: target.records(at) for at in range(7)} == placed(records, records)
    assert not any(isinstance(chunk, Pairs) for chunks in target.chunks.values() for chunk in chunks)


def test_what_cannot_be_pickled_is_an_error() -> None:
    collector = PairCollector(Lengths(), Target(), TaskMetrics())
    with pytest.raises(PicklingError, match="cannot pickle 'generator'"):
        collector.add([1], [(n for n in range(1))])
        collector.finish()
