"""Row groups dealt to tasks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sortshuffle.spark.parquet.packing import Packing, Piece, pack


@settings(max_examples=200)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=40),
    largest=st.integers(1, 2000),
    open_cost=st.integers(0, 300),
    parallelism=st.integers(1, 9),
)
def test_splits_hold_every_row_group_once_in_order_and_are_not_too_large(
    sizes: list[tuple[int, int]], largest: int, open_cost: int, parallelism: int
) -> None:
    groups = [
        (f"file {file}", number, size)
        for number, (file, size) in enumerate(sorted(sizes, key=lambda s: s[0]))
    ]
    splits = pack(groups, Packing(largest, open_cost, parallelism))
    size_of = {(path, number): size for path, number, size in groups}
    found = [[(piece.path, group) for piece in split for group in piece.row_groups] for split in splits]

    assert [group for split in found for group in split] == [(path, number) for path, number, _ in groups]
    assert all(found)
    for split in found:
        opened = open_cost * (len({path for path, _ in split}) - 1)
        assert len(split) == 1 or sum(map(size_of.__getitem__, split)) + opened <= largest


def test_splits_are_as_many_as_tasks_run_at_once_unless_they_get_too_large() -> None:
    groups = [("file", number, 100) for number in range(40)]

    assert len(pack(groups, Packing(largest_split=10_000, open_cost=0, parallelism=4))) == 4
    assert len(pack(groups, Packing(largest_split=500, open_cost=0, parallelism=4))) == 8
    # one file is opened, however many row groups it has
    assert len(pack(groups, Packing(largest_split=10_000, open_cost=400, parallelism=2))) == 2
    assert pack([], Packing(largest_split=1, open_cost=1, parallelism=1)) == []


def test_a_file_of_which_no_row_group_is_read_is_opened_by_a_task() -> None:
    groups = [("a", 0, 100), ("b", None, 0), ("c", 3, 100)]

    one = Packing(largest_split=10_000, open_cost=0, parallelism=1)
    assert pack(groups, one) == [(Piece("a", (0,)), Piece("b", ()), Piece("c", (3,)))]
    many = [(f"file {number}", None, 0) for number in range(40)]
    assert len(pack(many, Packing(largest_split=1000, open_cost=100, parallelism=1))) == 4
