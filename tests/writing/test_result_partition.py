"""`RowResultPartition`: whatever is written is read back, unicast and broadcast, in units, regions and
rotations; two files or none; memory within the budget and all of it given back; calls in their order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine import (
    ID,
    WRITER,
    AllTo,
    Modulo,
    Output,
    arrow_memory,
    changed,
    names,
    new_output,
    open_files,
    small_disk,
)
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import CorruptDataError, OutOfDiskError, StateError, UnsupportedError
from sortshuffle.format.header import Codec
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
BY_KEY = RowOrder((0,))
BOTH = pytest.mark.parametrize("order", [None, BY_KEY], ids=["clustered", "sorted"])


def rows(keys: list[int], values: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.string())], schema=SCHEMA)


def noise(seed: int, count: int, length: int = 20) -> pa.RecordBatch:
    """Rows with random keys; the values are all different."""
    keys = np.random.default_rng(seed).integers(0, 1000, count).tolist()
    return rows(keys, [f"{seed}-{number}".ljust(length, "x") for number in range(count)])


def expected(batches: list[pa.RecordBatch], subpartitions: int, order: RowOrder | None) -> list[list[Any]]:
    """The rows of each subpartition, in the order of arrival; sorted they can be told apart by value."""
    everything = [row for batch in batches for row in batch.to_pylist()]
    return [[row for row in everything if row["k"] % subpartitions == s] for s in range(subpartitions)]


def in_some_order(found: list[list[Any]]) -> list[list[Any]]:
    return [sorted(part, key=lambda row: (row["k"], str(row["v"]))) for part in found]


def write(output: Output, batches: list[pa.RecordBatch]) -> Output:
    with output.partition as partition:
        for batch in batches:
            partition.write(batch)
        partition.finish(WRITER)
    return output


def kinds(output: Output) -> list[RegionKind]:
    return list(read_index(output.file).kinds)


# What is written is read back


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(("subpartitions", "first"), [(1, 0), (2, 1), (7, 0), (7, 3), (300, 299)])
@pytest.mark.parametrize("memory", [8 * KIB, 64 * MIB], ids=["many regions", "one region"])
def test_rows_come_back_in_the_order_of_arrival(
    tmp_path: Path, codec: Codec, subpartitions: int, first: int, memory: int
) -> None:
    batches = [noise(seed, 400) for seed in range(6)]
    output = new_output(
        tmp_path, SCHEMA, memory=memory, subpartitions=subpartitions, first=first, codec=codec
    )
    assert write(output, batches).rows() == expected(batches, subpartitions, None)
    regions = len(kinds(output))
    assert regions == 1 if memory == 64 * MIB else regions > 5


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(("subpartitions", "first"), [(1, 0), (7, 3)])
@pytest.mark.parametrize("memory", [64 * KIB, 64 * MIB], ids=["many regions", "one region"])
def test_each_extent_is_a_run_sorted_by_key_and_then_by_arrival(
    tmp_path: Path, codec: Codec, subpartitions: int, first: int, memory: int
) -> None:
    batches = [noise(seed, 400) for seed in range(6)]
    output = new_output(
        tmp_path,
        SCHEMA,
        memory=memory,
        subpartitions=subpartitions,
        first=first,
        codec=codec,
        order=BY_KEY,
        buffer_size=4 * KIB,
    )
    write(output, batches)
    arrival = {row["v"]: n for n, row in enumerate(row for batch in batches for row in batch.to_pylist())}
    index = read_index(output.file)
    with PartitionedFileReader(output.file, ID) as reader:
        for subpartition in range(subpartitions):
            newest = -1
            for run in output.runs(reader, index, subpartition):
                found = [(row["k"], arrival[row["v"]]) for batch in run for row in batch.to_pylist()]
                assert found == sorted(found)
                assert min(at for _, at in found) > newest, "a later region has later rows"
                newest = max(at for _, at in found)
    assert in_some_order(output.rows()) == in_some_order(expected(batches, subpartitions, BY_KEY))


@BOTH
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-50, 50), st.none() | st.text(max_size=30)), max_size=40), max_size=6
    ),
    st.integers(1, 5).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))),
    st.sampled_from([KIB, 8 * KIB, MIB]),
)
def test_any_rows_come_back(
    tmp_path: Path,
    order: RowOrder | None,
    drawn: list[list[tuple[int, str | None]]],
    rotation: tuple[int, int],
    memory: int,
) -> None:
    batches = [rows([key for key, _ in each], [value for _, value in each]) for each in drawn]
    subpartitions, first = rotation
    output = new_output(
        tmp_path, SCHEMA, memory=memory, subpartitions=subpartitions, first=first, order=order
    )
    try:
        found = write(output, batches).rows()
        wanted = expected(batches, subpartitions, order)
        assert in_some_order(found) == in_some_order(wanted)
        if order is None:
            assert found == wanted
        assert output.budget.used == 0
    finally:
        output.file.delete()


@BOTH
def test_a_partition_without_rows_is_two_readable_files(tmp_path: Path, order: RowOrder | None) -> None:
    empty = rows([], [])
    for batches in ([], [empty], [empty, empty]):
        output = write(new_output(tmp_path, SCHEMA, memory=MIB, order=order), batches)
        assert (output.rows(), kinds(output), len(names(tmp_path))) == ([[], [], [], []], [], 2)
        output.file.delete()


@BOTH
def test_one_row_makes_a_partition(tmp_path: Path, order: RowOrder | None) -> None:
    output = write(new_output(tmp_path, SCHEMA, memory=MIB, order=order), [rows([6], [None])])
    assert output.rows() == [[], [], [{"k": 6, "v": None}], []]


@BOTH
def test_rows_without_columns_are_counted_where_they_went(tmp_path: Path, order: RowOrder | None) -> None:
    nothing = rows([1, 2, 3], ["a", "b", "c"]).select([])
    output = new_output(
        tmp_path,
        nothing.schema,
        memory=MIB,
        order=order and RowOrder(()),
        selector=AllTo(4, 2),
    )
    write(output, [nothing] * 5)
    assert [sum(batch.num_rows for batch in found) for found in output.batches()] == [0, 0, 15, 0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], None, [], [None]]),
        pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "y"}]),
        pa.array([[("k", 1)], None, [], [("l", None)]], pa.map_(pa.string(), pa.int64())),
        pa.array([b"", None, b"\0" * 100, b"x"], pa.large_binary()),
        pa.array([None] * 4),
        pa.array([1.5, float("inf"), -0.0, None]),
    ],
    ids=lambda column: str(column.type),
)
@BOTH
def test_columns_of_every_kind_come_back(tmp_path: Path, order: RowOrder | None, column: pa.Array) -> None:
    batch = pa.record_batch([pa.array([4, 8, 12, 16]), column], names=["k", "c"])
    output = write(new_output(tmp_path, batch.schema, memory=MIB, order=order), [batch, batch.slice(1, 2)])
    found = output.rows()[0]
    twice = [*batch.to_pylist(), *batch.slice(1, 2).to_pylist()]
    assert found == (twice if order is None else sorted(twice, key=lambda row: row["k"]))


def test_the_index_tells_schema_writer_and_totals(tmp_path: Path) -> None:
    output = write(new_output(tmp_path, SCHEMA, memory=64 * KIB), [noise(1, 3000)])
    index = read_index(output.file, ID)
    assert pa.ipc.read_schema(pa.py_buffer(index.schema)) == SCHEMA
    assert index.writer == WRITER
    assert index.data_bytes == os.path.getsize(output.file.data_path)
    counts = output.partition.metrics.counts
    assert counts["rows_written"] == 3000 == int(index.once()["records"].sum())
    assert counts["raw_bytes_written"] == int(index.once()["raw_bytes"].sum())
    assert counts["buffers_written"] == int(index.once()["buffers"].sum())
    assert (counts["bytes_written"], counts["files"]) == (index.data_bytes, 2)
    assert counts["regions"] == index.regions > 2
    assert counts["memory_peak"] == output.budget.peak > 0
    assert output.partition.file_id == ID


# Broadcast


def test_broadcast_rows_reach_every_subpartition_and_are_stored_once(tmp_path: Path) -> None:
    batches = [noise(seed, 1000) for seed in range(5)]
    output = new_output(tmp_path, SCHEMA, memory=64 * MIB, subpartitions=10, first=4)
    with output.partition as partition:
        for batch in batches:
            partition.broadcast(batch)
        partition.finish(WRITER)
    everything = [row for batch in batches for row in batch.to_pylist()]
    assert output.rows() == [everything] * 10
    assert kinds(output) == [RegionKind.BROADCAST]
    assert os.path.getsize(output.file.data_path) < 1.1 * sum(batch.nbytes for batch in batches)


@pytest.mark.parametrize("memory", [256 * KIB, 64 * MIB], ids=["many regions", "two regions"])
def test_unicast_and_broadcast_rows_keep_their_order_among_themselves(tmp_path: Path, memory: int) -> None:
    unicast = [noise(seed, 300) for seed in range(30)]
    broadcast = [noise(100 + seed, 20) for seed in range(30)]
    output = new_output(tmp_path, SCHEMA, memory=memory, first=2)
    with output.partition as partition:
        for one, all_ in zip(unicast, broadcast, strict=True):
            partition.write(one)
            partition.broadcast(all_)
        partition.finish(WRITER)
    to_all = [row for batch in broadcast for row in batch.to_pylist()]
    values = {row["v"] for row in to_all}
    found = output.rows()
    assert [[row for row in part if row["v"] in values] for part in found] == [to_all] * 4
    assert [[row for row in part if row["v"] not in values] for part in found] == expected(unicast, 4, None)


def test_alternating_unicast_and_broadcast_makes_no_tiny_regions(tmp_path: Path) -> None:
    output = new_output(tmp_path, SCHEMA, memory=8 * MIB)
    with output.partition as partition:
        for number in range(2000):
            partition.write(rows([number], ["one"]))
            partition.broadcast(rows([number], ["all"]))
        partition.finish(WRITER)
    assert kinds(output) == [RegionKind.UNICAST, RegionKind.BROADCAST]


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_regions_are_large_however_unicast_and_broadcast_are_mixed(tmp_path: Path, share: float) -> None:
    memory = 2 * MIB
    output = new_output(tmp_path, SCHEMA, memory=memory)
    random = np.random.default_rng(7)
    with output.partition as partition:
        for seed in range(300):
            batch = noise(seed, 200, length=100)
            (partition.broadcast if random.random() < share else partition.write)(batch)
        partition.finish(WRITER)
    index = read_index(output.file)
    sizes: dict[RegionKind, list[int]] = {kind: [] for kind in RegionKind}
    for kind, entries in zip(index.kinds, index.entries, strict=True):
        owned = entries[:1] if kind is RegionKind.BROADCAST else entries
        sizes[kind].append(int(owned["bytes"].sum()))
    assert min(sizes[RegionKind.BROADCAST][:-1], default=memory) > memory // 4
    assert min(sizes[RegionKind.UNICAST][:-1], default=memory) > memory // 4
    assert output.budget.peak <= memory


def test_broadcast_rows_make_room_when_unicast_rows_fill_the_memory(tmp_path: Path) -> None:
    memory = 2 * MIB
    output = new_output(tmp_path, SCHEMA, memory=memory)
    with output.partition as partition:
        seeds = iter(range(10_000))
        while output.budget.used < memory // 2:
            partition.write(noise(next(seeds), 50, length=100))
        for seed in range(6):
            partition.broadcast(noise(seed, 2000, length=100))
        partition.finish(WRITER)
    assert output.budget.peak <= memory
    assert kinds(output)[0] is RegionKind.UNICAST


def test_rows_are_not_broadcast_into_sorted_extents(tmp_path: Path) -> None:
    output = new_output(tmp_path, SCHEMA, memory=MIB, order=BY_KEY)
    with output.partition as partition:
        with pytest.raises(UnsupportedError, match="write them to every subpartition"):
            partition.broadcast(rows([2, 1], ["a", "b"]))
        partition.write(rows([4], ["c"]))
        partition.finish(WRITER)
    assert output.rows() == [[{"k": 4, "v": "c"}], [], [], []]


# Rows of any size, going anywhere


@BOTH
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_row_larger_than_the_memory_has_a_region_of_its_own(
    tmp_path: Path, order: RowOrder | None, codec: Codec
) -> None:
    random = np.random.default_rng(8)
    large = [random.bytes(3 * MIB).hex() for _ in range(2)]
    small = [noise(seed, 100) for seed in range(4)]
    batches = [small[0], rows([1], large[:1]), small[1], small[2], rows([2], large[1:]), small[3]]
    output = write(new_output(tmp_path, SCHEMA, memory=MIB, order=order, codec=codec), batches)
    assert in_some_order(output.rows()) == in_some_order(expected(batches, 4, order))
    records = read_index(output.file).entries["records"].sum(axis=1).tolist()
    assert records == [100, 1, 200, 1, 100]
    assert output.budget.used == 0


@BOTH
def test_a_large_row_among_small_ones_of_one_batch_comes_through(
    tmp_path: Path, order: RowOrder | None
) -> None:
    values = [str(number) for number in range(200)]
    values[77] = "x" * 3 * MIB
    batch = rows([number % 4 for number in range(200)], values)
    output = write(new_output(tmp_path, SCHEMA, memory=MIB, order=order), [batch])
    assert in_some_order(output.rows()) == in_some_order(expected([batch], 4, order))
    regions = read_index(output.file).entries
    large = [entries for entries in regions if entries["raw_bytes"].sum() > 3 * MIB]
    assert [int(entries["records"].sum()) for entries in large] == [1]


@BOTH
def test_all_rows_may_go_to_one_subpartition(tmp_path: Path, order: RowOrder | None) -> None:
    batches = [noise(seed, 500) for seed in range(20)]
    output = new_output(
        tmp_path, SCHEMA, memory=256 * KIB, subpartitions=16, first=3, order=order, selector=AllTo(16, 7)
    )
    found = write(output, batches).rows()
    everything = [row for batch in batches for row in batch.to_pylist()]
    assert [len(part) for part in found] == [len(everything) if s == 7 else 0 for s in range(16)]
    assert in_some_order([found[7]]) == in_some_order([everything])
    if order is None:
        assert found[7] == everything
    assert output.budget.peak <= 256 * KIB


# Memory


@BOTH
@pytest.mark.parametrize("times", [1, 4, 20])
@pytest.mark.parametrize("skewed", [False, True], ids=["spread", "all to one"])
def test_memory_stays_within_the_budget_whatever_the_amount_of_data(
    tmp_path: Path, order: RowOrder | None, times: int, skewed: bool
) -> None:
    memory = 2 * MIB
    batch = noise(1, 2000, length=100)
    selector = AllTo(16, 3) if skewed else Modulo(16)
    with arrow_memory() as pool:
        output = new_output(tmp_path, SCHEMA, memory=memory, subpartitions=16, order=order, selector=selector)
        written = 0
        with output.partition as partition:
            while written < times * memory:
                partition.write(batch)
                written += batch.nbytes
            partition.finish(WRITER)
    assert output.budget.peak <= memory
    assert pool.max_memory() <= memory
    assert (output.budget.used, pool.bytes_allocated()) == (0, 0)
    regions = len(kinds(output))
    assert times <= regions <= (14 if skewed and order else 3) * times + 1


@BOTH
def test_abandoning_lets_go_of_all_memory_and_leaves_no_file(tmp_path: Path, order: RowOrder | None) -> None:
    with arrow_memory() as pool:
        output = new_output(tmp_path, SCHEMA, memory=4 * MIB, order=order)
        for seed in range(5):
            output.partition.write(noise(seed, 1000))
        if order is None:
            output.partition.broadcast(noise(9, 1000))
        assert output.budget.used > 0
        output.partition.abandon()
        assert (output.budget.used, pool.bytes_allocated()) == (0, 0)
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])
    output.partition.abandon()
    assert names(tmp_path) == []


def test_abandoning_gives_back_a_share_and_leaves_the_rest_of_the_budget(tmp_path: Path) -> None:
    task = MemoryBudget(4 * MIB)
    share, read = task.share(MIB, "write"), task.share(MIB, "read")
    read.charge(1000)
    output = new_output(tmp_path, SCHEMA, memory=share)
    output.partition.write(noise(1, 100))
    assert task.used > 1000
    output.partition.abandon()
    assert (share.used, task.used) == (0, 1000)
    read.release(1000)


# Errors


class Failing:
    """Assigns some batches, then fails as a user's partitioner may."""

    subpartitions = 4

    def __init__(self, good: int) -> None:
        self.good = good

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        self.good -= 1
        if self.good < 0:
            raise ZeroDivisionError("of the user's partitioner")
        return np.zeros(batch.num_rows, np.uint8)


@BOTH
@pytest.mark.parametrize("good", [0, 3])
def test_an_error_of_the_selector_leaves_no_file_no_memory_and_no_way_on(
    tmp_path: Path, order: RowOrder | None, good: int
) -> None:
    output = new_output(tmp_path, SCHEMA, memory=64 * KIB, order=order, selector=Failing(good))
    with pytest.raises(ZeroDivisionError), output.partition as partition:
        try:
            for seed in range(20):
                partition.write(noise(seed, 500))
        except ZeroDivisionError:
            for call in CALLS.values():
                if order is None or call is not CALLS["broadcast"]:
                    with pytest.raises(StateError, match="is failed, which does not allow this call"):
                        call(output)
            raise
    assert (names(tmp_path), open_files(tmp_path), output.budget.used) == ([], [], 0)


@BOTH
def test_a_full_disk_leaves_no_file_and_no_memory(tmp_path: Path, order: RowOrder | None) -> None:
    with small_disk(tmp_path / "disk") as disk:
        output = new_output(disk, SCHEMA, memory=512 * KIB, order=order)
        with pytest.raises(OutOfDiskError) as caught, output.partition as partition:
            for seed in range(100):
                partition.write(noise(seed, 500))
        assert (caught.value.path, caught.value.free) == (str(disk), 0)
        assert 0 < caught.value.wanted < 512 * KIB
        assert (names(disk), open_files(disk), output.budget.used) == ([], [], 0)


def test_a_batch_of_another_schema_among_others_is_an_error(tmp_path: Path) -> None:
    output = new_output(tmp_path, SCHEMA, memory=MIB)
    with pytest.raises(pa.ArrowInvalid), output.partition as partition:
        partition.write(noise(1, 10))
        partition.write(pa.record_batch([pa.array([1.5])], names=["other"]))
        partition.finish(WRITER)
    assert names(tmp_path) == []


@pytest.mark.parametrize("order", [None, BY_KEY], ids=["clustered", "sorted"])
def test_a_changed_byte_is_corrupt_data_before_anything_is_decompressed(
    tmp_path: Path, order: RowOrder | None
) -> None:
    output = new_output(tmp_path, SCHEMA, memory=64 * KIB, order=order, codec=Codec.LZ4)
    good = write(output, [noise(seed, 200) for seed in range(5)]).rows()
    for offset in range(0, os.path.getsize(output.file.data_path), 97):
        with changed(output.file.data_path, offset, 0xFF), pytest.raises(CorruptDataError):
            output.rows()
    assert output.rows() == good


# The order of calls

CALLS: dict[str, Callable[[Output], object]] = {
    "write": lambda output: output.partition.write(rows([1], ["lost"])),
    "write nothing": lambda output: output.partition.write(rows([], [])),
    "broadcast": lambda output: output.partition.broadcast(rows([1], ["lost"])),
    "finish": lambda output: output.partition.finish(WRITER),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", ["finished", "abandoned"])
def test_a_call_after_the_end_is_a_state_error_and_changes_nothing(
    tmp_path: Path, state: str, call: str
) -> None:
    output = new_output(tmp_path, SCHEMA, memory=MIB)
    output.partition.write(rows([1], ["a"]))
    if state == "finished":
        output.partition.finish(WRITER)
    else:
        output.partition.abandon()
    before = names(tmp_path)
    with pytest.raises(StateError, match=f"attempt-204 is {state}, which does not allow this call"):
        CALLS[call](output)
    assert (names(tmp_path), output.budget.used) == (before, 0)
    if state == "finished":
        assert output.rows() == [[], [{"k": 1, "v": "a"}], [], []]


def test_abandoning_after_finish_keeps_the_files(tmp_path: Path) -> None:
    output = write(new_output(tmp_path, SCHEMA, memory=MIB), [rows([1], ["a"])])
    output.partition.abandon()
    assert names(tmp_path) == ["exchange-3-map-17-attempt-204.data", "exchange-3-map-17-attempt-204.index"]
    assert output.rows()[1] == [{"k": 1, "v": "a"}]
    assert open_files(tmp_path) == []


def test_leaving_without_finish_abandons(tmp_path: Path) -> None:
    output = new_output(tmp_path, SCHEMA, memory=MIB)
    with output.partition as partition:
        partition.write(rows([1], ["a"]))
        assert len(names(tmp_path)) == 2
    assert (names(tmp_path), open_files(tmp_path), output.budget.used) == ([], [], 0)


def test_an_interrupt_abandons(tmp_path: Path) -> None:
    output = new_output(tmp_path, SCHEMA, memory=MIB)
    with pytest.raises(KeyboardInterrupt), output.partition as partition:
        partition.write(rows([1], ["a"]))
        raise KeyboardInterrupt
    assert (names(tmp_path), open_files(tmp_path), output.budget.used) == ([], [], 0)
