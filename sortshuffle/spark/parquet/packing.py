"""Row groups dealt to tasks, as Spark deals files: so many bytes for each, in the files' order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of one file, ascending. ``constants``: the values of its partition columns."""

    path: str
    row_groups: tuple[int, ...]
    constants: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Packing:
    """Spark's settings for how much one task scans, all in bytes but ``parallelism``."""

    largest_split: int
    open_cost: int
    parallelism: int


def pack(groups: Sequence[tuple[str, int, int]], packing: Packing) -> list[tuple[Piece, ...]]:
    """Row groups (path, number, compressed bytes) into splits of about equal size, in file order.

    Spark's rule: a split is filled up to ``min(largest, max(open cost, total / parallelism))``, each file but
    the last counting its open cost.
    """
    total = sum(size for _, _, size in groups) + packing.open_cost * len({path for path, _, _ in groups})
    target = min(packing.largest_split, max(packing.open_cost, -(-total // packing.parallelism)))
    splits: list[list[tuple[str, int]]] = []
    filled = 0
    for path, number, size in groups:
        if splits and splits[-1][-1][0] != path:
            filled += packing.open_cost
        if not splits or filled + size > target:
            splits.append([])
            filled = 0
        splits[-1].append((path, number))
        filled += size
    return [tuple(_pieces(split)) for split in splits]


def _pieces(groups: Sequence[tuple[str, int]]) -> Iterator[Piece]:
    by_path: dict[str, list[int]] = {}
    for path, number in groups:
        by_path.setdefault(path, []).append(number)
    for path, numbers in by_path.items():
        yield Piece(path, tuple(numbers))
