"""Adds up the map outputs of each exchange, to show how much each consumer gets from all of them.

Only complete map outputs count: in others it is unknown which bytes belong to which consumer. Map outputs are
added one by one, and their index entries dropped at once, because they may be large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sortshuffle.cli.pair_report import PairReport
from sortshuffle.storage.inspection.contents import Int64s, PairState, Totals


@dataclass(slots=True)
class ExchangeFiles:
    """The sums of all complete map outputs of an exchange. ``maps``: the map tasks that wrote them, fewer
    than ``map_outputs`` if a task ran twice. ``bytes``, ``records``: per subpartition."""

    application: str
    number: int
    subpartitions: int
    map_outputs: int = 0
    maps: set[int] = field(default_factory=set)
    totals: Totals = field(default_factory=Totals)
    bytes: Int64s = field(init=False)
    records: Int64s = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = np.zeros(self.subpartitions, np.int64)
        self.records = np.zeros(self.subpartitions, np.int64)


@dataclass(frozen=True, slots=True)
class Listing:
    """The pairs of a directory, without their index entries, and the exchanges that they add up to, ordered
    by application and number."""

    looks: list[PairReport]
    exchanges: list[ExchangeFiles]

    @property
    def wrong(self) -> list[PairReport]:
        """The pairs that are not complete, and so not added up."""
        return [look for look in self.looks if look.state is not PairState.COMPLETE]

    @property
    def has_locked(self) -> bool:
        """Whether there is a pair that the given key does not decrypt."""
        return any(look.is_locked for look in self.looks)


def add_up(looks: Iterable[PairReport]) -> Listing:
    """Add up the pairs into a `Listing`."""
    kept: list[PairReport] = []
    exchanges: dict[tuple[str, int, int], ExchangeFiles] = {}
    for look in looks:
        _add(look, exchanges)
        kept.append(look.without_table())
    return Listing(kept, [exchanges[key] for key in sorted(exchanges)])


def _add(look: PairReport, exchanges: dict[tuple[str, int, int], ExchangeFiles]) -> None:
    writer, table = look.inspection.writer, look.inspection.table
    if look.state is not PairState.COMPLETE or writer is None or table is None:
        return
    key = (writer.application, writer.exchange, table.entries.shape[1])
    exchange = exchanges.setdefault(key, ExchangeFiles(*key))
    exchange.map_outputs += 1
    exchange.maps.add(writer.map_index)
    exchange.totals += table.totals
    exchange.bytes += table.per_subpartition("bytes")
    exchange.records += table.per_subpartition("records")
