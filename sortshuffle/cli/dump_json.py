"""The output of `dump --json`, as plain dictionaries.

Sizes are in bytes; `ratio` is raw bytes by stored bytes. `encryption` says whether payloads were decrypted,
and is empty if they are not encrypted; `unchecked` says why not all could be checked on this host, and is
empty if all could. Unknown values are null. Lists are never cut. Keys may be added, but never removed or
renamed: scripts depend on them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sortshuffle.cli.exchanges import Listing
from sortshuffle.cli.pair_report import PairReport
from sortshuffle.cli.records import ShownRows
from sortshuffle.format.header import FileHeader
from sortshuffle.report.arrow_rows import schema_of
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.inspection.contents import FileFault, FoundFile, RegionTable, Spread, Totals
from sortshuffle.storage.inspection.data_check import LooseBuffer


def pair(look: PairReport, subpartition: int | None = None) -> dict[str, Any]:
    """Describe one pair in full. ``subpartition``: list only the extents of this one."""
    document = summary(look)
    table = look.inspection.table
    document["regions"] = None if table is None else _regions(table, look, subpartition)
    document["skew"] = None if table is None or not table.kinds else _skew_of(table)
    document["loose_buffers"] = [_loose_buffer(each) for each in look.check.loose] if look.check else []
    document["stopped_at"] = look.check.stopped_at if look.check else None
    return document


def summary(look: PairReport) -> dict[str, Any]:
    """Describe a pair without its extents."""
    inspection = look.inspection
    schema = schema_of(inspection)
    return {
        "path": inspection.base,
        "state": look.state.value,
        "faults": [_fault(fault) for fault in look.faults],
        "data_read": look.check is not None,
        "unchecked": look.unchecked,
        "data": _file(inspection.data),
        "index": _file(inspection.index),
        "header": _header(inspection.header),
        "encryption": look.encryption,
        "writer": None if inspection.writer is None else asdict(inspection.writer),
        "schema": None
        if schema is None
        else [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema],
        "totals": None if look.totals is None else _totals(look.totals),
    }


def directory(path: str, found: Listing, passed_over: list[dict[str, str]]) -> dict[str, Any]:
    """Describe all pairs below a directory, the exchanges of the complete ones, and unlisted directories."""
    return {
        "path": path,
        "pairs": [summary(look) for look in found.looks],
        "exchanges": [_exchange(each) for each in found.exchanges],
        "incomplete": len(found.wrong),
        "passed_over": passed_over,
    }


def records(rows: ShownRows | None, refusal: str) -> dict[str, Any]:
    """Describe each row as an object, or say why there are no rows."""
    if rows is None:
        return {"subpartition": None, "rows": None, "problem": refusal}
    objects = [dict(zip(rows.columns, values, strict=True)) for values in rows.values]
    return {
        "subpartition": rows.subpartition,
        "of": rows.total,
        "unit": rows.unit,
        "rows": objects,
        "problem": None,
    }


def _file(file: FoundFile | None) -> dict[str, Any] | None:
    return None if file is None else {"path": file.path, "bytes": file.bytes}


def _header(header: FileHeader | None) -> dict[str, Any] | None:
    if header is None:
        return None
    return {
        "version": header.version,
        "id": header.file_id.hex(),
        "subpartitions": header.subpartitions,
        "first_subpartition": header.first_subpartition,
        "codec": header.codec.name.lower(),
        "payload": header.payload_kind.name.lower(),
        "encrypted": header.is_encrypted,
    }


def _fault(fault: FileFault) -> dict[str, Any]:
    place = fault.place
    return {
        "file": place.file,
        "region": place.region,
        "subpartition": place.subpartition,
        "offset": place.offset,
        "what": fault.what,
        "expected": None if fault.expected is None else str(fault.expected),
        "found": None if fault.found is None else str(fault.found),
    }


def _regions(table: RegionTable, look: PairReport, subpartition: int | None) -> list[dict[str, Any]]:
    regions: list[dict[str, Any]] = [
        {"region": region, "kind": kind.name.lower(), "extents": []}
        for region, kind in enumerate(table.kinds)
    ]
    bad = look.check.faulty_extents() if look.check else frozenset()
    for extent in table.extents(subpartition):
        number = None if table.is_broadcast(extent.region) else extent.subpartition
        is_damaged = (extent.region, number) in bad
        regions[extent.region]["extents"].append(_extent(extent, number, is_damaged))
    return regions


def _extent(extent: Extent, subpartition: int | None, is_damaged: bool) -> dict[str, Any]:
    return {
        "subpartition": subpartition,
        "offset": extent.offset,
        "bytes": extent.bytes,
        "raw_bytes": extent.raw_bytes,
        "buffers": extent.buffers,
        "rows": extent.records,
        "ratio": _ratio(extent.raw_bytes, extent.bytes),
        "checksum": f"{extent.checksum:016x}",
        "damaged": is_damaged,
    }


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "extents": totals.extents,
        "bytes": totals.bytes,
        "raw_bytes": totals.raw_bytes,
        "buffers": totals.buffers,
        "rows": totals.records,
        "ratio": _ratio(totals.raw_bytes, totals.bytes),
    }


def _skew_of(table: RegionTable) -> dict[str, Any]:
    return {
        "bytes": _spread(Spread.of(table.per_subpartition("bytes"))),
        "rows": _spread(Spread.of(table.per_subpartition("records"))),
    }


def _spread(spread: Spread) -> dict[str, Any]:
    return {
        "min": spread.least,
        "median": spread.median,
        "max": spread.most,
        "largest_subpartition": spread.largest,
        "empty_subpartitions": spread.empty,
    }


def _loose_buffer(buffer: LooseBuffer) -> dict[str, Any]:
    return {
        "offset": buffer.offset,
        "bytes": buffer.bytes,
        "raw_bytes": buffer.raw_bytes,
        "ratio": _ratio(buffer.raw_bytes, buffer.bytes),
        "type": buffer.data_type.lower(),
        "rows": buffer.records,
    }


def _exchange(exchange: ExchangeFiles) -> dict[str, Any]:
    return {
        "application": exchange.application,
        "exchange": exchange.number,
        "subpartitions": exchange.subpartitions,
        "map_outputs": exchange.map_outputs,
        "maps": len(exchange.maps),
        "totals": _totals(exchange.totals),
        "skew": {"bytes": _spread(Spread.of(exchange.bytes)), "rows": _spread(Spread.of(exchange.records))},
        "bytes_per_subpartition": exchange.bytes.tolist(),
        "rows_per_subpartition": exchange.records.tolist(),
    }


def _ratio(raw_bytes: int, stored_bytes: int) -> float | None:
    return round(raw_bytes / stored_bytes, 4) if stored_bytes else None
