"""The merge of sorted runs: the result of a stable sort of all runs, however they are cut into batches, with
a bounded number of rows in memory and nothing left open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_cases import DOUBLE, INT64, KEY_CASES, STRING, KeyCase, directed, sort_keys
from peak_memory import peak_bytes

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.ordering import RowOrder, SortKey, concat_ranks
from sortshuffle.reading.merge import OUTPUT_ROWS, WINDOW_ROWS, merge_runs, step_bytes

ENOUGH = 1 << 30
BY_KEY = RowOrder((0,))
ROW_BYTES = 8 + 4 + 4  # of `keyed` with integers
RANDOM = np.random.default_rng(11)
ROWS = 50_000
KEY_BYTES = 8  # an integer is its own rank, behind one for its validity
RANK_COLUMNS = 2


class RunSource:
    """The batches of one run, and what became of it."""

    def __init__(self, batches: Sequence[pa.RecordBatch], fail_at: int | None = None) -> None:
        self._left = list(reversed(batches))
        self._fail_at = fail_at
        self.read = 0
        self.rows_read = 0
        self.closed = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._left:
            if self.read == self._fail_at:
                raise OSError("the run cannot be read on")
            batch = self._left.pop()
            self.read += 1
            self.rows_read += batch.num_rows
            yield batch

    def close(self) -> None:
        self.closed = True


def keyed(keys: Any, run: int = 0) -> pa.RecordBatch:
    """Rows of one run: a key each, and where the row comes from."""
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys)
    return pa.record_batch(
        [keys, pa.array([run] * len(keys), pa.int32()), pa.array(range(len(keys)), pa.int32())],
        ["key", "run", "position"],
    )


def cut(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def merged(sources: Sequence[RunSource], order: RowOrder = BY_KEY) -> pa.Table:
    """Everything merged; afterwards nothing may be charged, and every source be closed."""
    budget = MemoryBudget(ENOUGH)
    batches = list(merge_runs(sources, order, budget, TaskMetrics()))
    assert budget.used == 0
    assert all(source.closed for source in sources)
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches)


def origins(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["run"].to_pylist(), table["position"].to_pylist(), strict=True))


def pieces(data: st.DataObject, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch cut anywhere, empty pieces included."""
    borders = sorted(data.draw(st.lists(st.integers(0, batch.num_rows), max_size=6)))
    edges = [0, *borders, batch.num_rows]
    return [batch.slice(a, b - a) for a, b in itertools.pairwise(edges)]


# --- the result --------------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_result_is_that_of_a_stable_sort_of_all_runs(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(KEY_CASES))
    keys = data.draw(sort_keys(1))
    place = directed(keys, [case])
    values = data.draw(case.lists(max_size=60))
    ends = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=6)))
    runs = [
        sorted(values[a:b], key=lambda value: place((value,)))
        for a, b in zip([0, *ends], [*ends, len(values)], strict=True)
    ]
    batches = [keyed(case.array(run), number) for number, run in enumerate(runs)]
    sources = [RunSource(pieces(data, batch)) for batch in batches]
    found = list(merge_runs(sources, RowOrder(keys), MemoryBudget(ENOUGH), TaskMetrics()))
    expected = sorted(
        ((place((value,)), number, at) for number, run in enumerate(runs) for at, value in enumerate(run))
    )
    assert [each for batch in found for each in origins(pa.Table.from_batches([batch]))] == [
        (number, at) for _, number, at in expected
    ]


@given(data=st.data())
def test_runs_are_merged_by_several_keys(data: st.DataObject) -> None:
    cases: list[KeyCase] = [data.draw(st.sampled_from([INT64, STRING, DOUBLE])) for _ in range(2)]
    rows = data.draw(st.integers(0, 40))
    columns = [data.draw(case.lists(min_size=rows, max_size=rows)) for case in cases]
    table = [
        (*(case.key(value) for case, value in zip(cases, row, strict=True)), row)
        for row in zip(*columns, strict=True)
    ]
    half = data.draw(st.integers(0, rows))
    runs = [sorted(part, key=lambda row: row[:2]) for part in (table[:half], table[half:])]
    sources = []
    for number, run in enumerate(runs):
        keys = [case.array([row[-1][at] for row in run]) for at, case in enumerate(cases)]
        place = [pa.array([number] * len(run), pa.int32()), pa.array(range(len(run)), pa.int32())]
        batch = pa.record_batch([*keys, *place], ["first", "second", "run", "position"])
        sources.append(RunSource(pieces(data, batch)))
    found = list(merge_runs(sources, RowOrder((0, 1)), MemoryBudget(ENOUGH), TaskMetrics()))
    expected = sorted((*row[:2], number, at) for number, run in enumerate(runs) for at, row in enumerate(run))
    assert [place for batch in found for place in origins(pa.Table.from_batches([batch]))] == [
        place[2:] for place in expected
    ]


def test_large_runs_are_merged_in_windows() -> None:
    """Batches of many windows, runs of very different lengths, ties within and across them."""
    random = np.random.default_rng(3)
    keys = [np.sort(random.integers(0, 5000, rows)) for rows in (60_000, 3, 25_000, 0, 9_000)]
    sources = [RunSource(cut(keyed(run, number), 17_000)) for number, run in enumerate(keys)]
    table = merged(sources)
    everything = np.concatenate(keys)
    order = np.argsort(everything, kind="stable")
    assert np.array_equal(np.asarray(table["key"]), everything[order])
    places = [(number, at) for number, run in enumerate(keys) for at in range(len(run))]
    assert origins(table) == [places[row] for row in order]


def test_a_run_is_handed_on_alone_only_as_far_as_no_other_begins() -> None:
    """A batch of several windows, into the middle of which another run falls."""
    keys = [[*range(5 * WINDOW_ROWS)], [*range(3 * WINDOW_ROWS, 8 * WINDOW_ROWS)], [2 * WINDOW_ROWS]]
    table = merged([RunSource([keyed(run, number)]) for number, run in enumerate(keys)])
    assert table["key"].to_pylist() == sorted(itertools.chain(*keys))


def test_one_giant_key_over_all_runs_and_batches_comes_run_after_run() -> None:
    sources = [RunSource(cut(keyed([7] * 5000, number), 300)) for number in range(5)]
    assert origins(merged(sources)) == [(number, at) for number in range(5) for at in range(5000)]


def test_a_giant_key_between_others_does_not_mix_with_them() -> None:
    keys = [[0, *[5] * 3000, 9], [5] * 4000, [1, *[5] * 2000, 6, 7], [8]]
    sources = [RunSource(cut(keyed(run, number), 100)) for number, run in enumerate(keys)]
    places = [(number, at) for number, run in enumerate(keys) for at in range(len(run))]
    assert origins(merged(sources)) == sorted(places, key=lambda place: keys[place[0]][place[1]])


def test_many_runs_are_merged() -> None:
    """A thousand of two rows each, so that most of the keys of a step come from different runs."""
    keys = [sorted([(number * 7919) % 1000, (number * 104_729) % 1000]) for number in range(1000)]
    sources = [RunSource(cut(keyed(run, number), 1)) for number, run in enumerate(keys)]
    places = [(number, at) for number in range(1000) for at in range(2)]
    assert origins(merged(sources)) == sorted(places, key=lambda place: keys[place[0]][place[1]])


def test_a_step_of_more_rows_than_are_taken_at_a_time_is_emitted_in_parts() -> None:
    keys = [list(range(number, 160_000, 40)) for number in range(40)]
    sources = [RunSource([keyed(run, number)]) for number, run in enumerate(keys)]
    found = list(merge_runs(sources, BY_KEY, MemoryBudget(ENOUGH), TaskMetrics()))
    assert [key for batch in found for key in batch.column(0).to_pylist()] == list(range(160_000))
    assert max(batch.num_rows for batch in found) == OUTPUT_ROWS


def test_runs_that_have_ended_wait_for_no_other() -> None:
    """What is in memory whole is merged in a step or two, not in one for each run."""
    sources = [RunSource([keyed(range(100), number)]) for number in range(50)]
    found = list(merge_runs(sources, BY_KEY, MemoryBudget(ENOUGH), TaskMetrics()))
    assert origins(pa.Table.from_batches(found)) == [(run, at) for at in range(100) for run in range(50)]
    assert len(found) <= 3


@pytest.mark.parametrize("runs", [[], [[]], [[], [keyed([]).slice(0, 0)], []]])
def test_without_rows_there_are_no_batches(runs: list[list[pa.RecordBatch]]) -> None:
    sources = [RunSource(run) for run in runs]
    assert list(merge_runs(sources, BY_KEY, MemoryBudget(ENOUGH), TaskMetrics())) == []
    assert all(source.closed for source in sources)


def test_without_keys_runs_come_one_after_the_other() -> None:
    sources = [RunSource(cut(keyed([3, 1, 2], number), 2)) for number in range(3)]
    assert origins(merged(sources, RowOrder(()))) == [(run, at) for run in range(3) for at in range(3)]


def test_rows_without_columns_are_merged_without_keys() -> None:
    sources = [RunSource([keyed(range(5)).select([])] * 2) for _ in range(3)]
    found = list(merge_runs(sources, RowOrder(()), MemoryBudget(ENOUGH), TaskMetrics()))
    assert sum(batch.num_rows for batch in found) == 30


# --- what is held ------------------------------------------------------------------------------------------


def test_runs_are_read_only_as_far_as_the_merge_has_come() -> None:
    """Per run at most the half of a batch that is left and the batch behind it."""
    random = np.random.default_rng(4)
    sources = [
        RunSource(cut(keyed(np.sort(random.integers(0, 10_000, 10_000)), run), 100)) for run in range(10)
    ]
    emitted = 0
    for batch in merge_runs(sources, BY_KEY, MemoryBudget(ENOUGH), TaskMetrics()):
        emitted += batch.num_rows
        assert sum(source.rows_read for source in sources) - emitted <= 10 * 150
    assert emitted == 100_000


def test_a_run_above_all_others_waits_with_one_batch() -> None:
    low = RunSource(cut(keyed(list(range(5000)), 0), 100))
    high = RunSource(cut(keyed(list(range(10_000, 15_000)), 1), 100))
    for batch in merge_runs([high, low], BY_KEY, MemoryBudget(ENOUGH), TaskMetrics()):
        if batch.column(0)[0].as_py() < 5000:
            assert high.read == 1
        else:
            assert low.closed
    assert high.read == 50


@pytest.mark.parametrize("rows", [1000, 5 * WINDOW_ROWS])
def test_batches_of_one_run_alone_are_handed_on_whole_and_without_a_copy(rows: int) -> None:
    batches = [keyed(list(range(start, start + rows)), start // rows) for start in range(0, 4 * rows, rows)]
    sources = [RunSource(batches[2:]), RunSource(batches[:1]), RunSource(batches[1:2])]
    found = list(merge_runs(sources, BY_KEY, MemoryBudget(ENOUGH), TaskMetrics()))
    assert found == batches
    for passed, batch in zip(found, batches, strict=True):
        assert passed.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


@pytest.mark.parametrize("runs", [1, 4, 16])
@pytest.mark.parametrize("distinct", [1, 40, 10**6])
def test_the_budget_knows_what_is_held_and_it_is_bounded(runs: int, distinct: int) -> None:
    """A run holds a batch and half a window more with their keys; a step takes a window and a half of it."""
    batch_rows = 5 * WINDOW_ROWS
    random = np.random.default_rng(5)
    sources = []
    for number in range(runs):
        keys = np.sort(random.integers(0, distinct, 30_000))
        sources.append(RunSource(cut(keyed(keys, number), batch_rows)))
    budget = MemoryBudget(ENOUGH)
    emitted = 0
    for batch in merge_runs(sources, BY_KEY, budget, TaskMetrics()):
        emitted += batch.num_rows
        assert budget.used >= (sum(source.rows_read for source in sources) - emitted) * ROW_BYTES
    assert emitted == runs * 30_000
    assert budget.used == 0
    held = (batch_rows + WINDOW_ROWS // 2) * (ROW_BYTES + KEY_BYTES)
    step = WINDOW_ROWS * 3 // 2 * (2 * ROW_BYTES + step_bytes(RANK_COLUMNS))
    assert budget.peak <= runs * (held + step)


@pytest.mark.parametrize(
    "keys",
    [
        [RANDOM.integers(0, 1 << 60, ROWS)],
        [RANDOM.integers(0, 9, ROWS)] * 3,
        [[f"{number:064d}" for number in RANDOM.permutation(ROWS)]],
        [[f"{number % 97:050d}{number:014d}" for number in RANDOM.permutation(ROWS)]],
        [RANDOM.integers(0, 9, ROWS), [f"{number:016d}" for number in RANDOM.integers(0, 9999, ROWS)]],
        [RANDOM.integers(0, 1 << 60, ROWS)] * 7,
        [[f"{number:016d}" for number in RANDOM.integers(0, 9, ROWS)]] * 5,
        [[f"{number:0100d}" for number in RANDOM.permutation(ROWS)]],
    ],
    ids=["long", "few", "text", "text in words", "few, then text", "seven longs", "five texts", "long text"],
)
@pytest.mark.parametrize("descending", [False, True])
def test_a_step_takes_no_more_than_is_reckoned(keys: list[Any], descending: bool) -> None:
    batch = pa.record_batch([pa.array(each) for each in keys], [str(at) for at in range(len(keys))])
    ranks = RowOrder(SortKey(at, descending) for at in range(len(keys))).ranks(batch)
    half = ROWS // 2
    with peak_bytes() as peak:
        rows = pa.concat_batches([batch[:half], batch[half:]])
        indices = concat_ranks([ranks.slice(0, half), ranks.slice(half, ROWS)]).sort_indices()
        assert len(rows.take(pa.array(indices))) == len(rows)
    reckoned = 2 * batch.nbytes + step_bytes(len(ranks.columns)) * ROWS
    assert 0.4 * reckoned <= peak[0] <= reckoned


def test_a_step_is_charged_for_its_batches_its_rows_and_their_order() -> None:
    """All of one run's batch is taken, and all but the last row of the other's."""
    first, second = keyed(np.arange(100)), keyed(np.array([*range(99), 1000]), 1)
    budget = MemoryBudget(ENOUGH)
    merging = merge_runs([RunSource([first]), RunSource([second])], BY_KEY, budget, TaskMetrics())
    assert len(next(merging)) == 199
    batch = 100 * (ROW_BYTES + KEY_BYTES)
    assert budget.peak == 2 * batch + 199 * (2 * ROW_BYTES + step_bytes(RANK_COLUMNS))
    order = 199 * 8
    assert budget.used == batch + 199 * 2 * ROW_BYTES + order
    assert len(next(merging)) == 1
    assert next(merging, None) is None
    assert budget.used == 0


def test_a_batch_of_one_run_alone_is_charged_until_the_consumer_asks_for_more() -> None:
    budget = MemoryBudget(ENOUGH)
    merging = merge_runs([RunSource([keyed(np.arange(100))])], BY_KEY, budget, TaskMetrics())
    assert len(next(merging)) == 100
    assert budget.used == 100 * (ROW_BYTES + KEY_BYTES)
    assert next(merging, None) is None
    assert budget.used == 0


def test_what_is_left_of_a_large_batch_does_not_keep_all_of_it() -> None:
    """While half a window of it waits for the next one."""
    batch_rows = 20 * WINDOW_ROWS
    keys = np.arange(3 * batch_rows)
    sources = [RunSource(cut(keyed(keys, run), batch_rows)) for run in range(2)]
    budget = MemoryBudget(ENOUGH)
    assert sum(batch.num_rows for batch in merge_runs(sources, BY_KEY, budget, TaskMetrics())) == 2 * len(
        keys
    )
    held = (batch_rows + WINDOW_ROWS // 2) * (ROW_BYTES + KEY_BYTES)
    step = WINDOW_ROWS * 3 // 2 * (2 * ROW_BYTES + step_bytes(RANK_COLUMNS))
    assert budget.peak <= 2 * (held + step) < 2 * 2 * batch_rows * (ROW_BYTES + KEY_BYTES)


def test_a_batch_is_charged_until_its_last_row_is_taken() -> None:
    batch, other = keyed(list(range(4 * WINDOW_ROWS))), keyed([0, 4 * WINDOW_ROWS], 1)
    sources = [RunSource([batch]), RunSource([other])]
    budget = MemoryBudget(ENOUGH)
    merging = merge_runs(sources, BY_KEY, budget, TaskMetrics())
    rows = 0
    while rows < batch.num_rows:
        rows += next(merging).num_rows
        assert budget.used >= (batch.nbytes if rows < batch.num_rows else other.nbytes)
    merging.close()
    assert budget.used == 0


# --- how it ends -------------------------------------------------------------------------------------------


def test_a_run_is_closed_as_soon_as_it_has_ended() -> None:
    short, long = RunSource([keyed([1, 2])]), RunSource(cut(keyed(list(range(3000)), 1), 100))
    batches = merge_runs([short, long], BY_KEY, MemoryBudget(ENOUGH), TaskMetrics())
    next(batches)
    next(batches)
    assert short.closed
    assert not long.closed
    batches.close()


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_closing_in_the_middle_closes_every_run_and_releases_all_memory(taken: int) -> None:
    sources = [RunSource(cut(keyed(list(range(1000)), number), 50)) for number in range(4)]
    budget = MemoryBudget(ENOUGH)
    batches = merge_runs(sources, BY_KEY, budget, TaskMetrics())
    for _ in range(taken):
        next(batches)
    assert budget.used > 0
    assert not any(source.closed for source in sources)
    batches.close()
    assert all(source.closed for source in sources)
    assert budget.used == 0


@pytest.mark.parametrize("fail_at", [0, 1, 5])
def test_a_run_that_fails_ends_the_merge_and_closes_the_others(fail_at: int) -> None:
    sources = [RunSource(cut(keyed(list(range(1000)), number), 50)) for number in range(3)]
    sources.insert(1, RunSource(cut(keyed(list(range(1000)), 3), 50), fail_at))
    budget = MemoryBudget(ENOUGH)
    found: list[int] = []
    with pytest.raises(OSError, match="cannot be read on"):
        for batch in merge_runs(sources, BY_KEY, budget, TaskMetrics()):
            found += batch.column(0).to_pylist()
    # what was delivered is right: nothing that the failed run could have preceded
    assert found == sorted([*range(50 * fail_at)] * 4)[: len(found)]
    assert all(source.closed for source in sources)
    assert budget.used == 0
