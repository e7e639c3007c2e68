"""Map outputs of one exchange added up: what each consumer gets from all of them together.

Only complete map outputs count: of others it is not known what belongs to whom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sortshuffle.cli.look import Look
from sortshuffle.storage.inspection import Int64s, RegionTable, State, Totals


@dataclass(frozen=True, slots=True)
class Exchange:
    """All complete map outputs of an exchange that were found. ``maps``: map tasks that wrote them, fewer
    than ``map_outputs`` where one ran twice. ``bytes``, ``records``: per subpartition."""

    application: str
    number: int
    subpartitions: int
    map_outputs: int
    maps: int
    totals: Totals
    bytes: Int64s
    records: Int64s


def exchanges(looks: Iterable[Look]) -> list[Exchange]:
    """In the order of application and number."""
    groups: dict[tuple[str, int, int], list[tuple[int, RegionTable]]] = {}
    for look in looks:
        writer, table = look.inspection.writer, look.inspection.table
        if look.state is State.COMPLETE and writer is not None and table is not None:
            key = (writer.application, writer.exchange, table.entries.shape[1])
            groups.setdefault(key, []).append((writer.map_index, table))
    return [_added_up(*key, outputs) for key, outputs in sorted(groups.items(), key=lambda item: item[0])]


def _added_up(
    application: str, number: int, subpartitions: int, outputs: list[tuple[int, RegionTable]]
) -> Exchange:
    tables = [table for _, table in outputs]
    return Exchange(
        application,
        number,
        subpartitions,
        len(outputs),
        len({map_index for map_index, _ in outputs}),
        sum((table.totals for table in tables), Totals()),
        _summed([table.per_subpartition("bytes") for table in tables]),
        _summed([table.per_subpartition("records") for table in tables]),
    )


def _summed(arrays: list[Int64s]) -> Int64s:
    return np.asarray(np.sum(arrays, axis=0), np.int64)
