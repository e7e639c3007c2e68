"""Clustering: rows of a unit by group, in the order in which they came, wherever the write order begins;
their sizes; and batches that own what they keep."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from engine import AllTo, Modulo
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import UsageError
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import GIB, MIB
from sortshuffle.writing.clustering import (
    MOST_SINGLE,
    SubpartitionGroups,
    cluster,
    own,
    sizes_between,
    unit_bytes,
)
from sortshuffle.writing.row_slices import ROW_BYTES, size_of, slice_rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def rows(keys: list[int], values: list[str | None] | None = None) -> pa.RecordBatch:
    values = [str(position) for position in range(len(keys))] if values is None else values
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.string())], schema=SCHEMA)


class Refusing:
    """A selector that must not be asked."""

    def __init__(self, subpartitions: int) -> None:
        self.subpartitions = subpartitions

    def assign(self, batch: pa.RecordBatch) -> np.ndarray:
        raise AssertionError("asked for ids")


def singles(subpartitions: int) -> SubpartitionGroups:
    return SubpartitionGroups(subpartitions, 0, 1)


def test_rows_are_clustered_by_subpartition_and_keep_their_order_in_it() -> None:
    batch = rows([5, 2, 1, 6, 9, 0, 2])
    clustered = cluster([batch], Modulo(4), singles(4), TaskMetrics())
    assert clustered.bounds == [0, 1, 4, 7, 7]
    assert clustered.batch.column(0).to_pylist() == [0, 5, 1, 9, 2, 6, 2]
    assert clustered.places is None
    assert [clustered.rows_of(s).column(1).to_pylist() for s in range(4)] == [
        ["5"],
        ["0", "2", "4"],
        ["1", "3", "6"],
        [],
    ]


def test_rows_of_a_group_keep_their_order_and_their_places_in_the_write_order() -> None:
    batch = rows([5, 2, 1, 6, 9, 0, 2, 8])  # of 7, the first in the write order being 5
    clustered = cluster([batch], Modulo(7), SubpartitionGroups(7, 5, 3), TaskMetrics())
    assert clustered.bounds == [0, 3, 8, 8]
    # the write order is 5 6 0 | 1 2 3 | 4
    assert clustered.rows_of(0).column(0).to_pylist() == [5, 6, 0]
    assert clustered.places_of(0).tolist() == [0, 1, 2]
    assert clustered.rows_of(1).column(0).to_pylist() == [2, 1, 9, 2, 8]
    assert clustered.places_of(1).tolist() == [4, 3, 4, 4, 3]


def test_several_batches_are_clustered_as_one_and_let_go() -> None:
    batches = [rows([3, 0], ["a", "b"]), rows([0, 3], ["c", "d"])]
    clustered = cluster(batches, Modulo(4), singles(4), TaskMetrics())
    assert clustered.batch.column(1).to_pylist() == ["b", "c", "a", "d"]
    assert batches == []


def test_rows_without_columns_are_clustered() -> None:
    batch = rows([1, 2, 3]).select([])
    clustered = cluster([batch, batch], AllTo(4, 2), singles(4), TaskMetrics())
    assert clustered.bounds == [0, 0, 0, 6, 6]
    assert [clustered.rows_of(s).num_rows for s in range(4)] == [0, 0, 6, 0]


def test_for_one_subpartition_nothing_is_moved_and_no_id_is_asked_for() -> None:
    batch = rows([1, 2, 3])
    clustered = cluster([batch], Refusing(1), singles(1), TaskMetrics())
    assert clustered.batch is batch
    assert (clustered.bounds, clustered.sizes.tolist()) == ([0, 3], [batch.nbytes])


def test_of_a_slice_of_something_large_no_more_than_its_rows_is_kept() -> None:
    slice_of_large = rows(list(range(10_000))).slice(10, 3)
    clustered = cluster([slice_of_large], Refusing(1), singles(1), TaskMetrics())
    assert clustered.batch.equals(slice_of_large)
    assert clustered.batch.get_total_buffer_size() < 200


@pytest.mark.parametrize("first", [0, 1, 255, 256, 299])
@pytest.mark.parametrize("size", [1, 7])
def test_a_place_is_the_position_in_the_write_order(first: int, size: int) -> None:
    write_order = [*range(first, 300), *range(first)]
    groups = SubpartitionGroups(300, first, size)
    ids = np.arange(300, dtype=np.uint16)
    assert [groups.subpartition_at(place) for place in range(300)] == write_order
    assert groups.places(ids)[write_order].tolist() == list(range(300))
    assert groups.numbers(groups.places(ids))[write_order].tolist() == [n // size for n in range(300)]


@pytest.mark.parametrize(
    ("subpartitions", "memory", "size"),
    [
        (1, GIB, 1),
        (MOST_SINGLE, GIB, 1),
        (MOST_SINGLE + 1, GIB, 2),  # 341 groups of 3 MiB at most
        (10_000, 256 * MIB, 118),  # 85 groups of 3 MiB
        (10_000, 64 * GIB, 20),  # no more groups than there would be subpartitions without groups
        (10_000, MIB, 313),  # no fewer groups than 32
        (65_536, MIB, 2048),
        (2**31 - 1, MIB, 2**26),
    ],
)
def test_many_subpartitions_are_grouped_so_that_a_groups_rows_fit_the_cache(
    subpartitions: int, memory: int, size: int
) -> None:
    assert SubpartitionGroups.of(range(subpartitions), memory) == SubpartitionGroups(subpartitions, 0, size)


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
    clustered = cluster([batch], Modulo(7), singles(7), TaskMetrics())
    found = clustered.sizes.tolist()
    expected = [clustered.rows_of(s).nbytes for s in range(7)]
    # bits of bit-packed columns that share a byte are rounded down, offsets are counted without their last
    assert found == pytest.approx(expected, abs=12)
    assert sum(found) == pytest.approx(batch.nbytes, abs=12 * 7)
    assert found[3] == 0, "no square leaves remainder 3"
    behind = batch.slice(20)
    assert sizes_between(behind, np.array([0, 30, 30, 80])).tolist() == pytest.approx(
        [behind.slice(0, 30).nbytes, 0, behind.slice(30).nbytes], abs=12
    )


@pytest.mark.parametrize(("memory", "size"), [(GIB, 8 * MIB), (16 * MIB, 4 * MIB), (1, 1)])
def test_a_unit_fits_the_cache_and_a_quarter_of_the_memory(memory: int, size: int) -> None:
    assert unit_bytes(memory) == size


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
    pieces = list(slice_rows(batch, most))
    assert [row for piece in pieces for row in piece.to_pylist()] == batch.to_pylist()
    assert all(piece.num_rows == 1 or size_of(piece) <= most for piece in pieces)


def test_a_batch_that_is_small_enough_is_not_sliced() -> None:
    batch = rows([1, 2, 3])
    (piece,) = slice_rows(batch, size_of(batch))
    assert piece is batch
    assert list(slice_rows(batch.slice(0, 0), 1)) == []


@pytest.mark.parametrize(
    "groups", [singles(300), SubpartitionGroups(300, 7, 1), SubpartitionGroups(300, 7, 20)]
)
def test_an_id_that_is_out_of_range_is_refused_and_not_sent_elsewhere(groups: SubpartitionGroups) -> None:
    class Beyond:
        subpartitions = 300

        def assign(self, batch: pa.RecordBatch) -> np.ndarray:
            return np.array([0, 300, 299], np.uint16)

    with pytest.raises(UsageError, match="Beyond sent a row to subpartition 300: they are 0 to 299"):
        cluster([rows([1, 2, 3])], Beyond(), groups, TaskMetrics())


def test_a_slice_of_something_larger_is_copied_and_anything_else_is_not() -> None:
    large = rows(list(range(10_000)))
    assert own(large) is large
    most = large.slice(0, 9_900)
    assert own(most) is most
    half = own(large.slice(0, 5_000))
    assert half.equals(large.slice(0, 5_000))
    assert half.get_total_buffer_size() < 0.6 * large.get_total_buffer_size()
