"""`HeatMap`: its cells hold every byte that was added, at their place, however many regions there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.report.heat_map import MOST_COLUMNS, MOST_ROWS, HeatMap


def test_few_regions_and_subpartitions_have_a_cell_each() -> None:
    heat = HeatMap(3)
    heat.add(np.array([[1, 2, 3], [4, 5, 6]]))
    heat.add(np.array([[7, 8, 9]]))
    assert heat.cells.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert (heat.regions, heat.regions_per_row, heat.first.tolist()) == (3, 1, [0, 1, 2])


def test_a_map_output_without_regions_adds_nothing() -> None:
    heat = HeatMap(2)
    heat.add(np.empty((0, 2), np.int64))
    assert heat.cells.shape == (0, 2)


@given(st.integers(1, 1000), st.lists(st.integers(0, 3 * MOST_ROWS), max_size=4), st.integers(0, 2**32 - 1))
def test_rows_and_columns_are_joined_without_losing_bytes(
    subpartitions: int, regions: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    every = [random.integers(0, 1 << 20, (count, subpartitions)) for count in regions]
    heat = HeatMap(subpartitions)
    for sizes in every:
        heat.add(sizes)
    whole = np.concatenate([np.empty((0, subpartitions), np.int64), *every])
    cells = heat.cells
    assert heat.regions == len(whole)
    assert len(cells) <= 2 * MOST_ROWS
    assert cells.shape[1] == min(subpartitions, MOST_COLUMNS)
    ends = [*heat.first[1:].tolist(), subpartitions]
    for at, row in enumerate(cells):
        regions_of_row = whole[at * heat.regions_per_row : (at + 1) * heat.regions_per_row]
        expected = [regions_of_row[:, start:end].sum() for start, end in zip(heat.first, ends, strict=True)]
        assert row.tolist() == expected
        widths = np.diff([*heat.first.tolist(), subpartitions])
        assert heat.means[at].tolist() == pytest.approx(np.array(expected) / len(regions_of_row) / widths)
    assert len(cells) == -(-len(whole) // heat.regions_per_row)
