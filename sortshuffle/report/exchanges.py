"""Adds up the map outputs of each exchange: how much each consumer gets from all of them.

Only complete map outputs count: in others it is unknown which bytes belong to which consumer. Map outputs are
added one by one, and their index entries dropped at once, because they may be large.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sortshuffle.format.header import FileHeader, PayloadKind
from sortshuffle.report.heat_map import HeatMap
from sortshuffle.storage.inspection.contents import Inspection, Int64s, Totals


@dataclass(slots=True)
class ExchangeFiles:
    """The sums of all complete map outputs of an exchange. ``maps``: the map tasks that wrote them, fewer
    than ``map_outputs`` if a task ran twice. ``totals``: a broadcast region counts once; ``unicast``: without
    these; ``unicast_regions``: their number. ``bytes``, ``records``: per subpartition. ``bases``: the paths
    of the map outputs, without suffixes. ``header``: that of one of them."""

    application: str
    number: int
    subpartitions: int
    header: FileHeader
    bases: list[str] = field(default_factory=list)
    maps: set[int] = field(default_factory=set)
    totals: Totals = field(default_factory=Totals)
    unicast: Totals = field(default_factory=Totals)
    unicast_regions: int = 0
    bytes: Int64s = field(init=False)
    records: Int64s = field(init=False)
    heat: HeatMap = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = np.zeros(self.subpartitions, np.int64)
        self.records = np.zeros(self.subpartitions, np.int64)
        self.heat = HeatMap(self.subpartitions)

    @property
    def name(self) -> str:
        """What it is called: exchanges are this package's, shuffles are Spark's, with its number."""
        kind = "shuffle" if self.header.payload_kind is PayloadKind.RECORD_BYTES else "exchange"
        return f"{kind} {self.number}"

    @property
    def title(self) -> str:
        """What a heading calls it."""
        return f"{self.name.capitalize()} of {self.application or 'an unnamed application'}"

    @property
    def map_outputs(self) -> int:
        return len(self.bases)

    @property
    def regions(self) -> int:
        return self.heat.regions


class ExchangeSums:
    """The exchanges of the complete pairs that were added."""

    def __init__(self) -> None:
        # by application, number, subpartitions and kind: the shuffle manager and frames number their own
        self._exchanges: dict[tuple[str, int, int, PayloadKind], ExchangeFiles] = {}

    @property
    def exchanges(self) -> list[ExchangeFiles]:
        """The exchanges, ordered by application and number."""
        return [self._exchanges[key] for key in sorted(self._exchanges)]

    def add(self, inspection: Inspection) -> None:
        """Add a complete pair. Its entries are not kept."""
        writer, table, header = inspection.writer, inspection.table, inspection.header
        if writer is None or table is None or header is None:
            return
        key = (writer.application, writer.exchange, table.entries.shape[1], header.payload_kind)
        exchange = self._exchanges.setdefault(key, ExchangeFiles(*key[:3], header))
        exchange.bases.append(inspection.base)
        exchange.maps.add(writer.map_index)
        exchange.totals += table.totals
        unicast = [not table.is_broadcast(region) for region in range(len(table.kinds))]
        exchange.unicast += Totals.of(table.entries[np.array(unicast, bool)])
        exchange.unicast_regions += sum(unicast)
        exchange.bytes += table.per_subpartition("bytes")
        exchange.records += table.per_subpartition("records")
        exchange.heat.add(table.entries["bytes"].astype(np.int64))
