"""Aggregation before a shuffle: fewer rows where keys come again, rows as they are where they do not, and
never more memory than there is. That results are right is in ``test_aggregate.py``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from sortshuffle.compute.aggregate.aggregation import AggregateCall, Aggregation, FirstRows
from sortshuffle.compute.aggregate.functions import AverageDouble, Count, SumLong
from sortshuffle.compute.aggregate.partial import FIRST_CHUNK, LARGEST_CHUNK, ROWS_PASSED_THROUGH, partial
from sortshuffle.compute.aggregate.value_functions import First
from sortshuffle.memory.budget import MemoryBudget

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("unused", pa.string())])
CALLS = (
    AggregateCall(SumLong("", True), (1,)),
    AggregateCall(AverageDouble(), (1,)),
    AggregateCall(Count(), ()),
)
KIB, MIB = 1 << 10, 1 << 20


def batches(keys: np.ndarray, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
    unused = pa.array([" " * 50] * rows)
    for start in range(0, len(keys), rows):
        part = keys[start : start + rows]
        columns = [part, np.arange(start, start + len(part)), unused.slice(0, len(part))]
        yield pa.record_batch(columns, schema=SCHEMA)


def sent(
    keys: np.ndarray, calls: tuple[AggregateCall, ...] = CALLS, memory: int = 256 * MIB
) -> tuple[pa.Table, MemoryBudget]:
    aggregation = Aggregation(SCHEMA, (0,), calls)
    budget = MemoryBudget(memory)
    rows = list(partial(batches(keys), aggregation.reducers(), budget))
    assert budget.used == 0
    return pa.Table.from_batches(rows, aggregation.states), budget


def test_keys_that_come_again_are_sent_once() -> None:
    keys = np.random.default_rng(1).integers(0, 20_000, 600_000)
    states, _ = sent(keys)
    assert states.num_rows == 20_000
    assert sum(states["state"].to_pylist()) == sum(range(600_000))


def test_keys_that_do_not_come_again_go_on_as_they_are_without_waiting() -> None:
    keys = np.random.default_rng(2).permutation(400_000)
    read = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches(keys):
            read += batch.num_rows
            yield batch

    aggregation = Aggregation(SCHEMA, (0,), CALLS)
    budget = MemoryBudget(256 * MIB)
    states = partial(counted(), aggregation.reducers(), budget)
    rows = next(states).num_rows
    assert FIRST_CHUNK <= rows <= read <= FIRST_CHUNK + 10_000  # a chunk was tried
    before = read
    rows += next(states).num_rows
    assert read == before + 10_000
    assert rows + sum(batch.num_rows for batch in states) == 400_000
    assert budget.peak < 16 * MIB


def test_a_chunk_is_tried_again_after_a_while() -> None:
    unique = np.arange(ROWS_PASSED_THROUGH)
    keys = np.concatenate([unique, np.random.default_rng(3).integers(0, 10, 1_000_000)])
    states, _ = sent(keys, (AggregateCall(Count(), ()),))
    assert states.num_rows < ROWS_PASSED_THROUGH + 100_000
    assert sum(np.asarray(states["state"])) == len(keys)


def test_chunks_grow_while_that_finds_more_repetitions() -> None:
    keys = np.random.default_rng(4).integers(0, 300_000, 2 * LARGEST_CHUNK)
    states, _ = sent(keys)
    assert states.num_rows == len(np.unique(keys))


@pytest.mark.parametrize("memory", [2 * MIB, 8 * MIB])
@pytest.mark.parametrize("keys", [1000, 40_000, 300_000])
def test_what_is_held_stays_within_the_budget(keys: int, memory: int) -> None:
    rows = np.random.default_rng(5).integers(0, keys, 600_000)
    states, budget = sent(rows, memory=memory)
    assert budget.peak <= memory
    assert sum(states["state"].to_pylist()) == sum(range(600_000))
    _, budget = sent(rows, (AggregateCall(Count(), (1,), distinct=True), *CALLS), memory)
    assert budget.peak <= memory


@pytest.mark.parametrize("memory", [20_000, 4 * MIB, 256 * MIB])
def test_the_first_row_of_a_key_is_sent_before_its_others(memory: int) -> None:
    """Also where rows that went on as they were follow such as had been grouped."""
    random = np.random.default_rng(6)
    keys = np.concatenate(
        [random.integers(0, 10, 100_000), np.arange(200_000), random.integers(0, 10, 50_000)]
    )
    expected = dict(zip(keys[::-1].tolist(), range(len(keys) - 1, -1, -1), strict=True))
    call = AggregateCall(First(pa.int64(), last=False, ignore_nulls=False), (1,))
    states, _ = sent(keys, (call,), memory)
    found: dict[int, int] = {}
    for key, value in zip(states["k"].to_pylist(), states["state"].to_pylist(), strict=True):
        found.setdefault(key, value)
    assert found == expected
    found.clear()
    for batch in partial(batches(keys), [FirstRows((0,))], MemoryBudget(memory)):
        for key, value in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
            found.setdefault(key, value)
    assert found == expected


def test_no_more_rows_are_grouped_at_a_time_than_one_batch_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much memory there is: 1 GiB, here lowered to 1 MiB. One text in 11,000 is nearly as large."""
    monkeypatch.setattr("sortshuffle.compute.aggregate.partial.MOST_JOINED", MIB)
    random = np.random.default_rng(7)
    grouped: list[int] = []

    class Watched(FirstRows):
        def group(self, selected: pa.RecordBatch) -> pa.RecordBatch:
            grouped.append(selected.nbytes)
            return super().group(selected)

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            keys = random.integers(0, 20, 11_000)
            texts = [f"{key:50d}" for key in keys]
            keys[10_500], texts[10_500] = 20 + number, "x" * 1000 * KIB
            batch = pa.record_batch([keys, texts], ["k", "s"])
            yield batch.slice(0, 10_000)
            yield batch.slice(10_000)

    sent = pa.Table.from_batches(partial(rows(), [Watched((0,))], MemoryBudget(1024 * MIB)))
    assert set(sent["k"].to_pylist()) == set(range(40))
    assert sent.num_rows < 110_000
    assert MIB // 2 < max(grouped) <= MIB


def test_what_waits_is_released_when_the_consumer_stops() -> None:
    aggregation = Aggregation(SCHEMA, (0,), CALLS)
    budget = MemoryBudget(MIB)
    states = partial(batches(np.arange(50_000)), aggregation.reducers(), budget)
    next(states)
    states.close()  # type: ignore[attr-defined]
    assert budget.used == 0


def test_a_few_columns_do_not_keep_the_others_alive() -> None:
    message = pa.BufferOutputStream()
    with pa.ipc.new_stream(message, SCHEMA) as writer:
        for batch in batches(np.arange(60_000)):
            writer.write_batch(batch)
    received = message.getvalue()
    before = pa.total_allocated_bytes()
    aggregation = Aggregation(SCHEMA, (0,), CALLS)
    budget = MemoryBudget(256 * MIB)

    def from_wire() -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(pa.py_buffer(received.to_pybytes())) as reader:
            yield from reader
        assert budget.used >= 16 * 60_000
        assert pa.total_allocated_bytes() - before < 40 * 60_000  # of 76 bytes a row

    assert sum(batch.num_rows for batch in partial(from_wire(), aggregation.reducers(), budget)) == 60_000
