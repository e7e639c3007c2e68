"""`in_groups`: neighbours that are read together, up to a size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def in_groups(sized: Iterable[tuple[Item, int]], most: int) -> Iterator[list[Item]]:
    """Divide items, in their order, into groups of at most ``most``, or of one larger item. ``sized``: the
    items, each with its size, in bytes or what the caller counts."""
    group: list[Item] = []
    total = 0
    for item, size in sized:
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
