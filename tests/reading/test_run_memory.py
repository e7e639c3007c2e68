"""What merging a run takes is reckoned beforehand: never less than it then takes, nor several times more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from map_outputs import ALL_CODECS, MIB, Consumer, consumer_of, write_map

from sortshuffle.format.header import Codec
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.fetcher import LEAST_PART
from sortshuffle.reading.merge import WINDOW_ROWS
from sortshuffle.reading.run_memory import (
    COLUMN_BYTES,
    MOST_OPEN_FILES,
    RUN_BYTES,
    Demands,
    Load,
    RunSize,
)
from sortshuffle.storage.files.extents import Extent

NUMBERS = pa.schema([("number", pa.int64())])
BY_NUMBER = RowOrder((0,))


def test_a_runs_size_is_the_sum_of_its_extents() -> None:
    extents = [Extent(0, 0, 0, 10, 20, 3, 0, 1), Extent(1, 0, 0, 100, 200, 30, 0, 4)]
    assert RunSize.of(extents) == RunSize(110, 220, 33, 5)
    assert RunSize.of([]) == RunSize()


@pytest.mark.parametrize(("buffers", "largest"), [(0, 100), (1, 100), (2, 100), (3, 63), (6, 25), (101, 2)])
def test_the_largest_buffer_is_taken_to_exceed_the_average(buffers: int, largest: int) -> None:
    """The last of them may be empty, or nearly."""
    assert RunSize(buffers=buffers).in_largest_buffer(100) == largest


def test_loads_fit_by_memory_and_by_files() -> None:
    load = Load(10, 1) + Load(5, 2) - Load(1, 1)
    assert load == Load(14, 2)
    assert load.fits(14)
    assert not load.fits(13)
    assert Load(0, MOST_OPEN_FILES).fits(0)
    assert not Load(0, MOST_OPEN_FILES + 1).fits(0)


def test_keys_and_columns_count() -> None:
    text = pa.schema([("key", pa.string()), ("other", pa.string())])
    assert Demands.of(RowOrder(()), pa.schema([])) == Demands(0, RUN_BYTES)
    assert Demands.of(RowOrder((0,)), text) == Demands(2, RUN_BYTES + 2 * COLUMN_BYTES)
    assert Demands.of(RowOrder((0, 1)), text).key_bytes == 32


def test_of_one_buffer_less_is_taken_whole_and_of_many_in_parts() -> None:
    demands = Demands.of(BY_NUMBER, NUMBERS)
    one = RunSize(100_000, 100_000, 12_500, 1)
    assert demands.held(one) <= demands.streamed(one)
    many = RunSize(10 * MIB, 10 * MIB, 1_300_000, 40)
    assert demands.streamed(many) < demands.held(many) // 5


def test_what_a_reader_holds_beyond_its_part_counts_with_what_it_keeps_of_a_buffer() -> None:
    demands, size = Demands(1, RUN_BYTES), RunSize(10_000_000, 10_000_000, 100_000, 101)
    assert demands.streamed(size, 65_536) - demands.streamed(size) == 65_536 + 125_000
    small = RunSize(1000, 1000, 10, 1)
    assert demands.streamed(small, 65_536) - demands.streamed(small) == 1000
    assert demands.streamed(size, parts=2) - demands.streamed(size) == size.least_part
    assert demands.streamed(size, parts=3) - demands.streamed(size) == 2 * size.least_part
    assert demands.streamed(small, parts=2) == demands.streamed(small), "there is no second part"
    assert demands.streamed(small, parts=3) - demands.streamed(small) == 1000, "but for a copy of the first"


def test_a_streamed_run_takes_the_same_however_long_it_is() -> None:
    demands = Demands.of(BY_NUMBER, NUMBERS)
    sizes = [RunSize(n * 64_000, n * 64_000, n * 8000, n) for n in (10, 100, 1000)]
    shortest, *_, longest = map(demands.streamed, sizes)
    assert shortest >= longest > shortest * 9 // 10
    assert demands.streamed(sizes[0]) > LEAST_PART + 2 * WINDOW_ROWS


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize(("rows", "message"), [(3, 3), (2000, 100), (20_000, 1000), (30_000, 15_000)])
@pytest.mark.parametrize("key", ["number", "text"])
def test_a_merge_takes_no_more_than_was_reckoned_and_not_much_less(
    tmp_path: Path, codec: Codec, rows: int, message: int, key: str
) -> None:
    """Given exactly what is reckoned, the merge is made in one pass; so it is held to it."""
    random = np.random.default_rng(7)
    outputs = []
    for number in range(20):
        numbers = np.sort(random.integers(10**9, 10**10, rows))
        text = pa.array([f"{n} {'x' * (n % 40)}" for n in numbers.tolist()])
        columns = {"number": pa.array(numbers), "text": text}
        run = pa.record_batch([columns.pop(key), *columns.values()], [key, *columns])
        messages = [run.slice(at, message) for at in range(0, rows, message)]
        outputs.append(write_map(tmp_path, run.schema, [{0: messages}], map_index=number, codec=codec))
    demands = Demands.of(BY_NUMBER, outputs[0].payload.schema)
    sizes = [RunSize.of(output.channel().extents) for output in outputs]
    least = sum(min(demands.held(size), demands.streamed(size)) for size in sizes)
    consumer: Consumer = consumer_of(outputs, memory=least)
    assert sum(found.num_rows for found in consumer.gate.sorted_batches(BY_NUMBER)) == 20 * rows
    assert consumer.metrics.counts["merge_passes"] == 1
    assert consumer.budget.peak <= least
    uncounted = 20 * demands.fixed
    assert consumer.budget.peak >= (least - uncounted) // 6
