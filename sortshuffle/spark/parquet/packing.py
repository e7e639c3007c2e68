"""Divides row groups among tasks as Spark divides files: in file order, up to a target size for each task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FileState:
    """A digest of a file's footer, by which a worker sees that the file is not the one of which the driver
    chose row groups. Their statistics count, because a condition chose by them: sizes alone are often the
    same in a file of as many other numbers."""

    digest: bytes

    @staticmethod
    def of(metadata: Any) -> FileState:
        """Return the state of the file with this ``pyarrow.parquet.FileMetaData``. Of 20 columns and 10 row
        groups it takes 0.2 ms; to read that footer takes 0.5 ms."""
        footer = pa.BufferOutputStream()
        metadata.write_metadata_file(footer)
        return FileState(hashlib.blake2b(footer.getvalue(), digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of one file, ascending; none if a task only checks that the file has not changed.
    ``constants``: the values of the file's partition columns. ``state``: of the file when the row groups were
    chosen; None if that is not checked."""

    path: str
    row_groups: tuple[int, ...]
    constants: tuple[Any, ...] = ()
    state: FileState | None = None


@dataclass(frozen=True, slots=True)
class Packing:
    """Spark's settings for the size of a split: two in bytes, and ``parallelism``, a number of tasks."""

    largest_split: int
    open_cost: int
    parallelism: int


def pack(groups: Sequence[tuple[str, int | None, int]], packing: Packing) -> list[tuple[Piece, ...]]:
    """Divide row groups (path, number, compressed bytes) into splits of about equal size, in file order. A
    file of which none is read comes once, with the number None.

    Spark's rule: the target size is ``min(largest, max(open cost, total / parallelism))``. The total
    includes the open cost of every file. A split includes it for each of its files but the last.
    """
    total = sum(size for _, _, size in groups) + packing.open_cost * len({path for path, _, _ in groups})
    target = min(packing.largest_split, max(packing.open_cost, -(-total // packing.parallelism)))
    splits: list[list[tuple[str, int | None]]] = []
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


def _pieces(groups: Sequence[tuple[str, int | None]]) -> Iterator[Piece]:
    by_path: dict[str, list[int]] = {}
    for path, number in groups:
        by_path.setdefault(path, []).extend(() if number is None else (number,))
    for path, numbers in by_path.items():
        yield Piece(path, tuple(numbers))
