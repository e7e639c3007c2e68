"""`RowEncoder`: rows in the order of arrival or sorted into runs, messages of bounded size, and memory that
stays within the budget, counted and as Arrow allocates it, whatever the rows and wherever they go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import AllTo, Modulo, arrow_memory
from hypothesis import given
from hypothesis import strategies as st
from key_cases import KEY_CASES, KeyCase, directed, sort_keys

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import GIB, KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.writing import encoders
from sortshuffle.writing.clustering import MOST_SINGLE
from sortshuffle.writing.data_buffer import bytes_of, write_batch
from sortshuffle.writing.encoders import PartitionLayout, RowEncoder

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
BY_KEY = RowOrder((0,))
BOTH = pytest.mark.parametrize("order", [None, BY_KEY], ids=["clustered", "sorted"])
MANY = 3 * MOST_SINGLE  # so many that they are put into groups
FEW_OR_MANY = pytest.mark.parametrize("subpartitions", [4, MANY])


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
) -> tuple[RowEncoder, MemoryBudget]:
    budget = MemoryBudget(memory)
    layout = PartitionLayout(
        ArrowPayload(schema, codec), selector or Modulo(subpartitions), buffer_size, order
    )
    write_order = [*range(first, subpartitions), *range(first)]
    return RowEncoder(layout, write_order, budget, TaskMetrics()), budget


def release(encoder: RowEncoder, budget: MemoryBudget) -> None:
    """What whoever writes a region does with its charges, and with its memory."""
    for _, extent in encoder.drain():
        budget.release(bytes_of(extent))
        del extent


def decoded(extent: list[SealedBuffer], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    return [pa.ipc.read_record_batch(pa.py_buffer(buffer.payload), schema) for buffer in extent]


def extents_of(encoder: RowEncoder) -> dict[int, list[SealedBuffer]]:
    """The buffers of each subpartition that has any, in the order in which the extents come."""
    extents: dict[int, list[SealedBuffer]] = {}
    last = None
    for subpartition, part in encoder.drain():
        assert subpartition == last or subpartition not in extents, "parts of an extent come together"
        assert part
        extents.setdefault(subpartition, []).extend(part)
        last = subpartition
    return extents


def drained(encoder: RowEncoder, schema: pa.Schema = SCHEMA) -> dict[int, list[dict[str, Any]]]:
    """The rows of each subpartition that has any, in the order in which the extents come."""
    return {
        subpartition: [row for batch in decoded(extent, schema) for row in batch.to_pylist()]
        for subpartition, extent in extents_of(encoder).items()
    }


@pytest.mark.parametrize(("memory", "size"), [(GIB, 8 * MIB), (32 * MIB, 4 * MIB), (1, 1)])
def test_a_gathered_write_is_at_most_an_eighth_of_the_memory(memory: int, size: int) -> None:
    assert write_batch(memory) == size


# In either order


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


def test_rows_to_be_sorted_never_are_more_than_one_batch_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much memory there is: the offsets of strings have 32 bits."""
    monkeypatch.setattr(encoders, "MOST_GATHERED", MIB)
    batch = rows([0] * 100, ["x" * 1000] * 100)
    taken = {}
    for order in (None, BY_KEY):
        encoder, budget = new_encoder(order)
        taken[order] = 0
        while taken[order] < 3 * MIB and encoder.room_for(batch):
            encoder.add(batch)
            taken[order] += batch.nbytes
        release(encoder, budget)
    assert MIB - 2 * batch.nbytes < taken[BY_KEY] <= MIB
    assert taken[None] >= 3 * MIB


class Refusing:
    def __init__(self, subpartitions: int = 4) -> None:
        self.subpartitions = subpartitions

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


def test_small_parts_of_units_become_messages_worth_a_call() -> None:
    encoder, _ = new_encoder(None, memory=256 * MIB)
    whole = rows(list(range(100_000)))
    for start in range(0, 100_000, 2_500):
        encoder.add(whole.slice(start, 2_500))
        encoder._cluster_open()
    extents = extents_of(encoder)
    # 625 rows of a unit go to each
    assert [[buffer.records for buffer in extent] for extent in extents.values()] == [[20_000, 5_000]] * 4


def test_messages_are_no_larger_than_the_memory_allows() -> None:
    encoder, _ = new_encoder(None, memory=MIB)
    for start in range(0, 300, 10):
        encoder.add(rows(list(range(start, start + 10)), ["x" * 1000] * 10))
    extents = extents_of(encoder)
    assert sum(buffer.records for extent in extents.values() for buffer in extent) == 300
    assert max(buffer.raw_bytes for extent in extents.values() for buffer in extent) <= MIB // 16 + 600


@FEW_OR_MANY
@pytest.mark.parametrize("first", [0, 3])
@given(st.data())
def test_any_rows_are_delivered_where_they_belong_in_the_order_of_arrival(
    subpartitions: int, first: int, data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.integers(0, 2 * MANY) | st.integers(0, 5), max_size=80))
    lengths = data.draw(st.lists(st.integers(0, 400), min_size=len(keys), max_size=len(keys)))
    batch = rows(keys, [f"{n}" + "x" * length for n, length in enumerate(lengths)])
    encoder, _ = new_encoder(None, memory=64 * KIB, subpartitions=subpartitions, first=first)
    step = data.draw(st.integers(1, 20))
    for start in range(0, len(keys), step):
        encoder.add(batch.slice(start, step))
    found = drained(encoder)
    expected = {s: [row for row in batch.to_pylist() if row["k"] % subpartitions == s] for s in found}
    assert found == expected
    assert sum(map(len, found.values())) == len(keys)
    order = [*range(first, subpartitions), *range(first)]
    assert list(found) == sorted(found, key=order.index)


def test_more_subpartitions_than_groups_are_written_in_their_order() -> None:
    encoder, _ = new_encoder(None, memory=32 * MIB, subpartitions=MANY, first=1000)
    batch = rows(np.random.default_rng(7).permutation(100_000).tolist())
    encoder.add(batch)
    assert encoder._groups.size == MANY // 32
    found = extents_of(encoder)
    assert list(found) == [*range(1000, MANY), *range(1000)]
    assert all(buffer.records in (65, 66) for extent in found.values() for buffer in extent)


# Sorted


def sorted_rows(
    batches: list[pa.RecordBatch], order: RowOrder, subpartitions: int = 4, **options: Any
) -> list[list[dict[str, Any]]]:
    """The rows of each buffer of the one extent, all rows going to one subpartition."""
    schema = batches[0].schema
    selector = AllTo(subpartitions, 1)
    encoder, _ = new_encoder(order, schema=schema, selector=selector, subpartitions=subpartitions, **options)
    for batch in batches:
        encoder.add(batch)
    ((_, extent),) = extents_of(encoder).items()
    return [batch.to_pylist() for batch in decoded(extent, schema)]


KEYS = [case for case in KEY_CASES if case.name in ("int64", "int32", "double", "string", "boolean")]


@FEW_OR_MANY
@pytest.mark.parametrize("case", KEYS, ids=str)
@given(st.data())
def test_an_extent_is_sorted_by_key_and_equal_keys_stay_in_the_order_of_arrival(
    case: KeyCase, subpartitions: int, data: st.DataObject
) -> None:
    keys = data.draw(case.lists(min_size=1, max_size=60))
    order = data.draw(sort_keys(1))
    schema = pa.schema([("k", case.type), ("n", pa.int64())])
    whole = pa.record_batch([case.array(keys), pa.array(range(len(keys)))], schema=schema)
    cut = data.draw(st.integers(0, len(keys)))
    batches = [part for part in (whole.slice(0, cut), whole.slice(cut)) if part.num_rows]
    runs = sorted_rows(batches, RowOrder(order), subpartitions=subpartitions)
    found = [row["n"] for buffer in runs for row in buffer]
    place = directed(order, [case])
    assert found == sorted(range(len(keys)), key=lambda n: place((keys[n],)))


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
    ((_, extent),) = extents_of(encoder).items()
    message_overhead = 600
    assert max(buffer.raw_bytes for buffer in extent) <= buffer_size + message_overhead
    assert batch.nbytes / buffer_size <= len(extent) <= 1.1 * batch.nbytes / buffer_size + 1


@pytest.mark.parametrize("texts", [1, 2, 8])
def test_rows_with_several_columns_of_text_fill_their_messages(texts: int) -> None:
    """`take` gives each column of text a validity bitmap: such messages were too large, and halved."""
    random = np.random.default_rng(5)
    letters = [f"{number:07d}" for number in random.integers(0, 10**7, 20_000).tolist()]
    columns = [pa.array(random.permutation(20_000)), *[pa.array(letters)] * texts]
    batch = pa.RecordBatch.from_arrays(columns, [f"c{position}" for position in range(texts + 1)])
    encoder, _ = new_encoder(BY_KEY, buffer_size=32 * KIB, subpartitions=1, schema=batch.schema)
    encoder.add(batch)
    ((_, extent),) = extents_of(encoder).items()
    assert batch.nbytes / (32 * KIB) <= len(extent) <= 1.1 * batch.nbytes / (32 * KIB) + 1


def test_payloads_are_bounded_where_rows_differ_in_size() -> None:
    keys = list(range(2000))
    values = ["x" * 2000 if 900 <= key < 1000 else "" for key in keys]  # neighbours, once they are sorted
    encoder, _ = new_encoder(BY_KEY, buffer_size=16 * KIB, subpartitions=1)
    encoder.add(rows(keys[::-1], values[::-1]))
    ((_, extent),) = extents_of(encoder).items()
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
    return pa.record_batch(
        [pa.array(random.integers(0, 100, 5000, np.int16)), pa.array([True] * 5000)], NAMES
    )


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


def hardly_compressible(random: np.random.Generator) -> pa.RecordBatch:
    """So that messages and their blocks are both large."""
    keys = pa.array(random.integers(0, 1 << 40, 1000))
    return pa.record_batch([keys, pa.array([random.bytes(88) + bytes(12) for _ in range(1000)])], NAMES)


NAMES = ["k", "v"]
SHAPES = [uniform, narrow, strings, few_huge_rows_to_one, hardly_compressible]


@BOTH
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("subpartitions", [16, MANY])
@pytest.mark.parametrize("skewed", [False, True], ids=["spread", "all to one"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_memory_stays_within_the_budget_counted_and_allocated(
    order: RowOrder | None,
    codec: Codec,
    subpartitions: int,
    skewed: bool,
    shape: Callable[[np.random.Generator], pa.RecordBatch],
) -> None:
    random = np.random.default_rng(5)
    memory = 16 * MIB if subpartitions == MANY else 4 * MIB  # the former in four groups
    batch = shape(random)
    selector = AllTo(subpartitions, 5) if skewed else Modulo(subpartitions)
    # to put all rows in order at once takes a multiple of them
    if skewed:
        full = 0.15 if subpartitions == MANY and order is None else 0.6 if order is None else 0.08
    elif subpartitions == MANY:  # some shapes go to few of the groups
        full = 0.45 if order is None else 0.2
    else:
        full = 0.6 if order is None else 0.3
    with arrow_memory() as pool:
        encoder, budget = new_encoder(
            order,
            memory=memory,
            subpartitions=subpartitions,
            schema=batch.schema,
            selector=selector,
            codec=codec,
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
        assert type(budget.peak) is int, "figures travel as plain numbers"
        assert pool.max_memory() <= memory


@pytest.mark.parametrize("longest", [12, 1200])
@pytest.mark.parametrize("subpartitions", [16, MANY])
@pytest.mark.parametrize("skewed", [False, True], ids=["spread", "all to one"])
def test_memory_stays_within_the_budget_where_keys_are_text(
    longest: int, subpartitions: int, skewed: bool
) -> None:
    random = np.random.default_rng(8)
    memory = 32 * MIB
    ids = random.integers(0, subpartitions, 2000)
    keys = [None if n % 5 == 0 else "k" * n for n in random.integers(longest // 2, longest, 2000).tolist()]
    batch = pa.record_batch([pa.array(ids), pa.array(keys)], NAMES)
    selector = AllTo(subpartitions, 5) if skewed else Modulo(subpartitions)
    with arrow_memory() as pool:
        encoder, budget = new_encoder(
            RowOrder((1,)), memory=memory, subpartitions=subpartitions, schema=batch.schema, selector=selector
        )
        while encoder.room_for(batch):
            encoder.add(batch)
        assert budget.used > (0.07 if skewed else 0.15) * memory
        release(encoder, budget)
        assert budget.peak <= memory
        assert pool.max_memory() <= memory


@pytest.mark.parametrize("subpartitions", [1, 2])
@pytest.mark.parametrize("part", [1_000, 52_000], ids=["small", "about half"])
def test_slices_keep_no_more_memory_alive_than_they_are_counted_with(subpartitions: int, part: int) -> None:
    memory = 16 * MIB
    with arrow_memory() as pool:
        encoder, budget = new_encoder(None, memory=memory, subpartitions=subpartitions)
        values = pa.array(["v"] * 100_000)
        while True:
            large = pa.record_batch([pa.array(np.arange(100_000)), values], schema=SCHEMA)
            if not encoder.room_for(large.slice(0, part)) or budget.used > memory // 2:
                break
            encoder.add(large.slice(0, part))
            del large
        assert pool.bytes_allocated() <= 1.1 * budget.used + 4 * MIB


def test_many_small_batches_cost_no_more_each_than_a_few() -> None:
    """Asking for room looks at no batch but the one that is asked for."""
    encoder, _ = new_encoder(BY_KEY)
    for _ in range(1000):
        encoder.add(rows([1], ["x"]))
    encoder._open = [object()] * 1000  # type: ignore[list-item]
    assert encoder.room_for(rows([1], ["x"]))


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
