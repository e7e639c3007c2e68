"""Encoders: rows clustered in the order of arrival or sorted into runs, messages of bounded size, and memory
that stays within the budget, counted and as Arrow allocates it, whatever the rows and wherever they go."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import AllTo, Modulo, arrow_memory
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import GIB, KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.write.data_buffer import bytes_of
from sortshuffle.write.encoders import (
    ROW_BYTES,
    ClusterEncoder,
    Encoder,
    PartitionLayout,
    SortEncoder,
    cluster,
    size_of,
    sliced,
    unit_bytes,
    write_batch,
)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
BY_KEY = RowOrder((0,))
BOTH = pytest.mark.parametrize("order", [None, BY_KEY], ids=["clustered", "sorted"])


def rows(keys: list[int], values: list[str | None] | None = None) -> pa.RecordBatch:
    values = [str(position) for position in range(len(keys))] if values is None else values
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.string())], schema=SCHEMA)


def new_encoder(
    order: RowOrder | None,
    *,
    memory: int = 64 * MIB,
    subpartitions: int = 4,
    first: int = 0,
    schema: pa.Schema = SCHEMA,
    buffer_size: int = 256 * KIB,
    codec: Codec = Codec.NONE,
    selector: Any = None,
) -> tuple[Encoder, MemoryBudget]:
    budget = MemoryBudget(memory)
    layout = PartitionLayout(
        ArrowPayload(schema, codec), selector or Modulo(subpartitions), buffer_size, order
    )
    write_order = [*range(first, subpartitions), *range(first)]
    metrics = TaskMetrics()
    if order is None:
        return ClusterEncoder(layout, write_order, budget, metrics), budget
    return SortEncoder(layout, order, write_order, budget, metrics), budget


def release(encoder: Encoder, budget: MemoryBudget) -> None:
    """What whoever writes a region does with its charges, and with its memory."""
    for _, extent in encoder.drain():
        budget.release(bytes_of(extent))
        del extent


def decoded(extent: list[SealedBuffer], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    return [pa.ipc.read_record_batch(pa.py_buffer(buffer.payload), schema) for buffer in extent]


def drained(encoder: Encoder, schema: pa.Schema = SCHEMA) -> dict[int, list[dict[str, Any]]]:
    """The rows of each subpartition that has any, in the order in which the extents come."""
    return {
        subpartition: [row for batch in decoded(extent, schema) for row in batch.to_pylist()]
        for subpartition, extent in encoder.drain()
    }


# Clustering


def test_rows_are_clustered_by_subpartition_and_keep_their_order_in_it() -> None:
    batch = rows([5, 2, 1, 6, 9, 0, 2])
    clustered = cluster([batch], Modulo(4), TaskMetrics())
    assert clustered.bounds.tolist() == [0, 1, 4, 7, 7]
    assert clustered.batch.column(0).to_pylist() == [0, 5, 1, 9, 2, 6, 2]
    assert [clustered.slice(s).column(1).to_pylist() for s in range(4)] == [
        ["5"],
        ["0", "2", "4"],
        ["1", "3", "6"],
        [],
    ]


def test_several_batches_are_clustered_as_one_and_let_go() -> None:
    batches = [rows([3, 0], ["a", "b"]), rows([0, 3], ["c", "d"])]
    clustered = cluster(batches, Modulo(4), TaskMetrics())
    assert clustered.batch.column(1).to_pylist() == ["b", "c", "a", "d"]
    assert batches == []


def test_rows_without_columns_are_clustered() -> None:
    batch = rows([1, 2, 3]).select([])
    clustered = cluster([batch, batch], AllTo(4, 2), TaskMetrics())
    assert clustered.bounds.tolist() == [0, 0, 0, 6, 6]
    assert [clustered.slice(s).num_rows for s in range(4)] == [0, 0, 6, 0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(100)),
        pa.array([n % 3 == 0 for n in range(100)]),
        pa.array([None if n % 3 else n for n in range(100)], pa.int32()),
        pa.array(["x" * n for n in range(100)]),
        pa.array([None if n % 3 else b"x" * n for n in range(100)], pa.large_binary()),
        pa.array([list(range(n)) for n in range(100)]),
        pa.array([{"a": n, "b": "x" * n} for n in range(100)]),
        pa.array([b"abcd"] * 100, pa.binary(4)),
        pa.array([None] * 100),
    ],
    ids=lambda column: str(column.type),
)
def test_sizes_are_those_of_each_subpartitions_rows(column: pa.Array) -> None:
    batch = pa.record_batch([pa.array(np.arange(100) ** 2), column], names=["k", "v"])
    clustered = cluster([batch], Modulo(7), TaskMetrics())
    found = clustered.sizes().tolist()
    expected = [clustered.slice(s).nbytes for s in range(7)]
    # bits of bit-packed columns that share a byte are shared out
    assert found == pytest.approx(expected, abs=4)
    assert sum(found) == pytest.approx(batch.nbytes, abs=4 * 7)
    assert found[3] == 0, "no square leaves remainder 3"


@pytest.mark.parametrize(
    ("subpartitions", "memory", "size"),
    [
        (1, GIB, 8 * MIB),
        (64, GIB, 8 * MIB),
        (65, GIB, 65 * 128 * KIB),
        (1000, GIB, 1000 * 128 * KIB),
        (10_000, GIB, 256 * MIB),
        (1, 16 * MIB, 4 * MIB),
        (1, 1, 1),
    ],
)
def test_a_unit_grows_with_the_subpartitions_up_to_a_quarter_of_the_memory(
    subpartitions: int, memory: int, size: int
) -> None:
    assert unit_bytes(subpartitions, memory) == size


@pytest.mark.parametrize(("memory", "size"), [(GIB, 8 * MIB), (32 * MIB, 4 * MIB), (1, 1)])
def test_a_gathered_write_is_at_most_an_eighth_of_the_memory(memory: int, size: int) -> None:
    assert write_batch(memory) == size


def test_narrow_rows_are_counted_with_what_clustering_them_takes() -> None:
    flags = pa.record_batch([pa.array([True] * 8000)], names=["f"])
    assert flags.nbytes == 1000
    assert size_of(flags) == 8000 * ROW_BYTES
    assert size_of(flags.select([])) == 8000 * ROW_BYTES
    wide = rows([1, 2], ["x" * 1000, "y" * 1000])
    assert size_of(wide) == wide.nbytes


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(1, 4000))
def test_slices_hold_every_row_in_order_and_are_as_small_as_wanted(lengths: list[int], most: int) -> None:
    batch = rows(list(range(len(lengths))), ["x" * length for length in lengths])
    pieces = list(sliced(batch, most))
    assert [row for piece in pieces for row in piece.to_pylist()] == batch.to_pylist()
    assert all(piece.num_rows == 1 or size_of(piece) <= most for piece in pieces)


def test_a_batch_that_is_small_enough_is_not_sliced() -> None:
    batch = rows([1, 2, 3])
    (piece,) = sliced(batch, size_of(batch))
    assert piece is batch
    assert list(sliced(batch.slice(0, 0), 1)) == []


# Both encoders


@BOTH
@pytest.mark.parametrize("first", range(4))
def test_extents_come_in_the_write_order_without_the_empty_ones(order: RowOrder | None, first: int) -> None:
    encoder, _ = new_encoder(order, first=first)
    encoder.add(rows([7, 1, 5, 4]))
    assert list(drained(encoder)) == [s for s in [0, 1, 2, 3, 0, 1, 2, 3][first : first + 4] if s != 2]


@BOTH
def test_an_encoder_without_rows_gives_nothing(order: RowOrder | None) -> None:
    encoder, budget = new_encoder(order)
    assert list(encoder.drain()) == []
    assert (budget.used, budget.peak) == (0, 0)


@BOTH
def test_after_a_drain_an_encoder_starts_anew(order: RowOrder | None) -> None:
    encoder, _ = new_encoder(order)
    encoder.add(rows([1], ["a"]))
    assert drained(encoder) == {1: [{"k": 1, "v": "a"}]}
    encoder.add(rows([5], ["b"]))
    assert drained(encoder) == {1: [{"k": 5, "v": "b"}]}
    assert drained(encoder) == {}


@BOTH
def test_what_was_drained_is_all_that_stays_charged(order: RowOrder | None) -> None:
    encoder, budget = new_encoder(order, memory=MIB)
    for _ in range(3):
        for start in range(0, 3000, 500):
            encoder.add(rows(list(range(start, start + 500))))
        release(encoder, budget)
        assert budget.used == 0


@BOTH
def test_there_is_room_for_anything_while_nothing_is_held(order: RowOrder | None) -> None:
    encoder, budget = new_encoder(order, memory=MIB)
    huge = rows([1], ["x" * 10 * MIB])
    assert encoder.room_for(huge)
    encoder.add(huge)
    assert budget.used >= 10 * MIB
    assert not encoder.room_for(rows([1], [""]))
    release(encoder, budget)
    assert encoder.room_for(huge)


@BOTH
def test_there_is_no_room_for_what_would_go_over_the_budget(order: RowOrder | None) -> None:
    encoder, budget = new_encoder(order, memory=MIB)
    encoder.add(rows([1], ["x"]))
    assert encoder.room_for(rows([1], ["y"]))
    assert not encoder.room_for(rows([1], ["y" * MIB]))
    before = budget.used
    budget.charge(MIB)
    assert not encoder.room_for(rows([1], ["y"]))
    budget.release(MIB)
    assert budget.used == before


class Refusing:
    subpartitions = 4

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        raise ZeroDivisionError("of the user's partitioner")


@BOTH
def test_what_a_selector_raises_comes_through(order: RowOrder | None) -> None:
    encoder, _ = new_encoder(order, selector=Refusing())
    encoder.add(rows([1]))
    with pytest.raises(ZeroDivisionError, match="of the user's partitioner"):
        list(encoder.drain())


@BOTH
def test_rows_that_wait_are_encoded_or_clustered_before_they_are_more_than_a_unit(
    order: RowOrder | None,
) -> None:
    encoder, budget = new_encoder(order, memory=8 * 64 * KIB)
    batch = rows([1], ["x" * 58 * KIB])
    encoder.add(batch)
    encoder.add(batch)
    # the first twice while it is clustered (and its message), or once and the second
    assert budget.peak <= 3 * encoder.unit_bytes
    before = budget.used
    encoder.add(batch)
    assert budget.used - before == pytest.approx(batch.nbytes, rel=0.1)


# In the order of arrival


def test_clustered_rows_stay_in_the_order_of_arrival_across_units() -> None:
    encoder, _ = new_encoder(None, memory=256 * KIB)
    keys = np.random.default_rng(1).integers(0, 1000, 20_000).tolist()
    for start in range(0, len(keys), 100):
        encoder.add(rows(keys[start : start + 100], [str(n) for n in range(start, start + 100)]))
    everything = [{"k": key, "v": str(position)} for position, key in enumerate(keys)]
    assert drained(encoder) == {s: [row for row in everything if row["k"] % 4 == s] for s in range(4)}


def test_clustering_works_in_units_that_are_full_from_a_half_on() -> None:
    encoder, _ = new_encoder(None, memory=8 * 64 * KIB)
    assert encoder.unit_bytes == 128 * KIB
    batch = rows([0, 1, 2, 3], ["x" * 6 * KIB] * 4)  # 24 KiB and a little: three are more than a half
    for _ in range(9):
        encoder.add(batch)
    extents = dict(encoder.drain())
    assert {s: [buffer.records for buffer in extent] for s, extent in extents.items()} == {
        s: [3, 3, 3] for s in range(4)
    }


def test_rows_that_fill_a_unit_are_encoded_at_once() -> None:
    encoder, budget = new_encoder(None, memory=8 * 64 * KIB)
    batch = rows([0, 1], ["x" * 32 * KIB] * 2)
    encoder.add(batch)
    messages = [bytes_of(extent) for _, extent in encoder.drain()]
    assert budget.used == sum(messages), "nothing but messages was held"
    assert budget.peak == 2 * batch.nbytes + sum(messages)


# Sorted


def sorted_rows(batches: list[pa.RecordBatch], order: RowOrder, **options: Any) -> list[list[dict[str, Any]]]:
    """The rows of each buffer of the one extent, all rows going to one subpartition."""
    schema = batches[0].schema
    encoder, _ = new_encoder(order, schema=schema, selector=AllTo(4, 1), **options)
    for batch in batches:
        encoder.add(batch)
    ((_, extent),) = encoder.drain()
    return [batch.to_pylist() for batch in decoded(extent, schema)]


def nulls_first(*values: Any) -> tuple[Any, ...]:
    """What Python sorts like Spark's ascending order: nulls first, then numbers, then NaN."""
    return tuple(
        (0,) if v is None else (2,) if isinstance(v, float) and math.isnan(v) else (1, v) for v in values
    )


KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "int32": (pa.int32(), st.integers(-3, 3)),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.inf])),
    "string": (pa.string(), st.text(alphabet="aäz", max_size=2)),
    "bool": (pa.bool_(), st.booleans()),
}


@pytest.mark.parametrize("key", KEYS)
@given(st.data())
def test_an_extent_is_sorted_by_key_and_equal_keys_stay_in_the_order_of_arrival(
    key: str, data: st.DataObject
) -> None:
    kind, values = KEYS[key]
    keys = data.draw(st.lists(st.none() | values, min_size=1, max_size=60))
    schema = pa.schema([("k", kind), ("n", pa.int64())])
    whole = pa.record_batch([pa.array(keys, kind), pa.array(range(len(keys)))], schema=schema)
    cut = data.draw(st.integers(0, len(keys)))
    batches = [part for part in (whole.slice(0, cut), whole.slice(cut)) if part.num_rows]
    found = [row["n"] for buffer in sorted_rows(batches, BY_KEY) for row in buffer]
    by_hand = (lambda n: nulls_first(keys[n])) if key != "string" else (lambda n: _utf8(keys[n]))
    assert found == sorted(range(len(keys)), key=by_hand)


def _utf8(text: str | None) -> tuple[Any, ...]:
    return (0,) if text is None else (1, text.encode())


def test_several_keys_sort_one_after_the_other() -> None:
    random = np.random.default_rng(3)
    first, second = random.integers(0, 5, 500).tolist(), random.integers(0, 5, 500).tolist()
    batch = pa.record_batch([pa.array(range(500)), pa.array(second), pa.array(first)], names=["n", "b", "a"])
    (found,) = sorted_rows([batch], RowOrder((2, 1)))
    expected = sorted(range(500), key=lambda n: (first[n], second[n]))
    assert [row["n"] for row in found] == expected


def test_units_of_a_region_become_one_run() -> None:
    keys = np.random.default_rng(4).permutation(3000)
    batches = [rows(keys[start : start + 100].tolist()) for start in range(0, 3000, 100)]
    buffers = sorted_rows(batches, BY_KEY, memory=256 * KIB, buffer_size=4 * KIB)
    assert len(buffers) > 10
    assert [row["k"] for buffer in buffers for row in buffer] == list(range(3000))


@pytest.mark.parametrize("buffer_size", [KIB, 16 * KIB, 256 * KIB])
def test_payloads_of_a_run_are_about_the_buffer_size(buffer_size: int) -> None:
    encoder, _ = new_encoder(BY_KEY, buffer_size=buffer_size, subpartitions=1)
    batch = rows(list(range(20_000)), ["x" * 20] * 20_000)
    encoder.add(batch)
    ((_, extent),) = encoder.drain()
    message_overhead = 600
    assert max(buffer.raw_bytes for buffer in extent) <= buffer_size + message_overhead
    assert batch.nbytes / buffer_size <= len(extent) <= 1.1 * batch.nbytes / buffer_size + 1


def test_payloads_are_bounded_where_rows_differ_in_size() -> None:
    keys = list(range(2000))
    values = ["x" * 2000 if 900 <= key < 1000 else "" for key in keys]  # neighbours, once they are sorted
    encoder, _ = new_encoder(BY_KEY, buffer_size=16 * KIB, subpartitions=1)
    encoder.add(rows(keys[::-1], values[::-1]))
    ((_, extent),) = encoder.drain()
    assert max(buffer.raw_bytes for buffer in extent) <= 16 * KIB + 600
    assert [row["v"] for batch in decoded(extent) for row in batch.to_pylist()] == values


def test_a_row_larger_than_the_buffer_size_is_a_buffer_of_its_own() -> None:
    large = "x" * 100 * KIB
    buffers = sorted_rows([rows([3, 1, 2], [large] * 3)], BY_KEY, buffer_size=KIB)
    assert [[row["k"] for row in buffer] for buffer in buffers] == [[1], [2], [3]]


# Memory


def uniform(random: np.random.Generator) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(random.integers(0, 1 << 40, 5000)), pa.array(random.random(5000))], NAMES
    )


def narrow(random: np.random.Generator) -> pa.RecordBatch:
    return pa.record_batch([pa.array(random.integers(0, 100, 5000, np.int8)), pa.array([True] * 5000)], NAMES)


def strings(random: np.random.Generator) -> pa.RecordBatch:
    lengths = random.integers(0, 200, 1000).tolist()
    keys = pa.array(random.integers(0, 1 << 40, 1000))
    return pa.record_batch([keys, pa.array(["x" * length for length in lengths])], NAMES)


def few_huge_rows_to_one(random: np.random.Generator) -> pa.RecordBatch:
    """Half of a percent of the rows, nearly all of the bytes."""
    keys = np.arange(4000) * 16 + np.arange(4000) % 15 + 1
    keys[::200] = np.arange(20) * 16
    values = ["y" * 10_000 if n % 200 == 0 else "z" for n in range(4000)]
    return pa.record_batch([pa.array(keys), pa.array(values)], NAMES)


NAMES = ["k", "v"]
SHAPES = [uniform, narrow, strings, few_huge_rows_to_one]


@BOTH
@pytest.mark.parametrize("skewed", [False, True], ids=["spread", "all to one"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_memory_stays_within_the_budget_counted_and_allocated(
    order: RowOrder | None, skewed: bool, shape: Callable[[np.random.Generator], pa.RecordBatch]
) -> None:
    random = np.random.default_rng(5)
    memory = 4 * MIB
    batch = shape(random)
    selector = AllTo(16, 5) if skewed else Modulo(16)
    # to sort all rows at once takes a multiple of them
    full = 0.7 if order is None else 0.09 if skewed else 0.3
    with arrow_memory() as pool:
        encoder, budget = new_encoder(
            order, memory=memory, subpartitions=16, schema=batch.schema, selector=selector
        )
        regions = 0
        pieces = [batch.slice(start, 500) for start in range(0, batch.num_rows, 500)]
        for piece in cycle(pieces):
            if not encoder.room_for(piece):
                assert budget.used > full * memory, "no smaller regions than need be"
                release(encoder, budget)
                regions += 1
                if regions == 4:
                    break
            encoder.add(piece)
        assert budget.peak <= memory
        assert pool.max_memory() <= memory


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_buffers_take_no_more_memory_than_they_are_charged_with(codec: Codec) -> None:
    batch = rows(list(range(10_000)), ["compressible"] * 10_000)
    with arrow_memory() as pool:
        encoder, budget = new_encoder(None, codec=codec)
        for _ in range(10):
            encoder.add(batch)
        held = list(encoder.drain())
        assert held
        assert pool.bytes_allocated() <= 1.1 * budget.used


def test_when_the_distribution_changes_the_budget_is_exceeded_by_no_more_than_the_open_unit() -> None:
    memory = 4 * MIB
    target = AllTo(16, 0)
    batch = strings(np.random.default_rng(6))
    encoder, budget = new_encoder(
        BY_KEY, memory=memory, subpartitions=16, schema=batch.schema, selector=target
    )
    for step in range(600):
        target.target = step // 40 % 16
        if not encoder.room_for(batch):
            release(encoder, budget)
        encoder.add(batch)
    assert budget.peak <= memory + 3 * encoder.unit_bytes
