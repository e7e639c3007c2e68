"""Small batches become larger ones, and nothing else changes: rows, order, and what is held by whom."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from random_tables import batches as record_batches

from sortshuffle.compute.groups.gathering import (
    GATHERED_BATCHES,
    GATHERED_BYTES,
    GATHERED_ROWS,
    SMALL_BYTES,
    SMALL_ROWS,
    gather,
)


def stream(batches: Sequence[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    yield from batches


def numbers(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(start, start + rows)})


def sizes(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [batch.num_rows for batch in gather(stream(batches))]


@given(st.lists(st.sampled_from([1, 2, 500, SMALL_ROWS, SMALL_ROWS + 1, 20_000]), max_size=40))
def test_rows_and_their_order_stay(rows: list[int]) -> None:
    starts = np.cumsum([0, *rows])
    found = list(gather(stream([numbers(*each) for each in zip(starts, rows, strict=False)])))
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(rows)))
    assert sum(batch.num_rows < SMALL_ROWS for batch in found) <= 1 + sum(each > SMALL_ROWS for each in rows)


def test_how_many_wait() -> None:
    one, ten, thousand = (numbers(0, rows) for rows in (1, 10, 1000))
    assert sizes([]) == []
    assert sizes([one] * 5) == [5]
    assert sizes([one] * (GATHERED_BATCHES + 5)) == [GATHERED_BATCHES, 5]
    assert sizes([thousand] * 11) == [GATHERED_ROWS, 1000]
    assert sizes([ten, numbers(0, 5000), ten, ten]) == [10, 5000, 20]
    wide = pa.record_batch({"t": ["x" * (SMALL_BYTES - 100)]})
    assert sizes([wide] * 20) == [17, 3]
    assert 16 * (SMALL_BYTES - 100) < GATHERED_BYTES <= 17 * SMALL_BYTES


def test_a_batch_that_is_not_small_is_passed_as_it_is() -> None:
    for batch in (numbers(0, SMALL_ROWS + 1), pa.record_batch({"t": ["x" * (SMALL_BYTES + 1)]})):
        (found,) = gather(stream([batch]))
        assert found is batch


def test_a_slice_does_not_keep_what_it_was_cut_from() -> None:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    held: list[int] = []

    def slices() -> Generator[pa.RecordBatch, None, None]:
        for _ in range(10):
            held.append(pool.bytes_allocated())
            column = pa.array(range(100_000), pa.int64(), memory_pool=pool)
            yield pa.record_batch([column], ["n"]).slice(50_000, 1)
            del column

    (found,) = gather(slices())
    assert found["n"].to_pylist() == [50_000] * 10
    assert max(held) == 0


def test_rows_without_columns_are_kept() -> None:
    batch = numbers(0, 3).select([])
    assert sizes([batch, batch]) == [3, 3]


def test_closing_closes_what_makes_the_batches() -> None:
    events: list[str] = []

    def source() -> Generator[pa.RecordBatch, None, None]:
        try:
            yield numbers(0, 5000)
            yield numbers(0, 1)
        finally:
            events.append("closed")

    found = gather(source())
    assert next(found).num_rows == 5000
    assert isinstance(found, Iterator)
    found.close()  # type: ignore[attr-defined]
    assert events == ["closed"]


@given(st.data())
def test_columns_of_every_type_come_out_the_same(data: st.DataObject) -> None:
    batch = data.draw(record_batches())
    parts = [batch.slice(row, 1) for row in range(batch.num_rows)]
    found = list(gather(stream(parts)))
    assert len(found) <= 1
    assert all(each.equals(batch) for each in found)
    assert sum(each.num_rows for each in found) == batch.num_rows
