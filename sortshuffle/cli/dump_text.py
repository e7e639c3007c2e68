"""The output of `dump` for people: the page of one pair, and the page of a directory.

Numbers in tables are exact. Tables are cut after `LIMIT` rows, and a line then says so. Neighbouring empty
subpartitions share a row. Faults come last, so that they are in view at the end of a terminal's output.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sortshuffle.cli.exchanges import Listing
from sortshuffle.cli.output import Column, ConsoleOutput, Row, count, plural, ratio
from sortshuffle.cli.pair_report import PairReport
from sortshuffle.cli.records import ShownRows, cell
from sortshuffle.format.index import WriterInfo
from sortshuffle.options import format_size
from sortshuffle.report.arrow_rows import schema_of
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.inspection.contents import (
    FoundFile,
    Int64s,
    PairState,
    RegionTable,
    Spread,
    Totals,
)
from sortshuffle.storage.inspection.data_check import LooseBuffer

LIMIT = 40  # rows of a table, or map outputs, to show without --all
SHORT_LIMIT = 10  # the same for entries of several lines each

_STYLES = {
    PairState.COMPLETE: "bold green",
    PairState.BEING_WRITTEN: "bold cyan",
    PairState.MAY_BE_WRITTEN: "bold cyan",
    PairState.UNFINISHED: "bold yellow",
    PairState.NOT_ALL_CHECKED: "bold yellow",
    PairState.DAMAGED: "bold red",
}
_EXTENT_COLUMNS = (
    Column("region"),
    Column("subpartition"),
    Column("offset"),
    Column("bytes"),
    Column("buffers"),
    Column("rows"),
    Column("ratio"),
)
_SKEW_COLUMNS = (
    Column("per subpartition", left=True),
    Column("min"),
    Column("median"),
    Column("max"),
    Column("max/median"),
    Column("max in"),
    Column("empty"),
)


# ---- one pair -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairPage:
    """Prints one pair. ``subpartition``: show only its extents. ``everything``: do not cut tables."""

    out: ConsoleOutput
    look: PairReport
    subpartition: int | None
    everything: bool

    def print(self) -> None:
        out, look = self.out, self.look
        out.line(f"{look.name}: {look.state.value}", _STYLES[look.state])
        out.line(f"in {look.directory}", "dim")
        out.gap()
        out.fields(list(_facts(look)))
        self._print_regions()
        self._print_loose_buffers()
        _print_faults(out, look, self.everything)

    def print_records(self, rows: ShownRows | None, refusal: str) -> None:
        """Print the first rows, or the reason why there are none."""
        out = self.out
        out.gap()
        if rows is None:
            out.line(refusal, "red")
            return
        out.line(_rows_title(rows), "bold")
        out.gap()
        if out.is_terminal and _width_of(rows) > out.width:
            _print_rows_upright(out, rows)
        else:
            columns = [Column(name, left=not _is_number(rows, at)) for at, name in enumerate(rows.columns)]
            out.table(columns, [Row([cell(value) for value in values]) for values in rows.values])

    def _print_regions(self) -> None:
        out, table = self.out, self.look.inspection.table
        if table is None:
            return
        out.gap()
        if not table.kinds:
            out.line("There are no regions.")
            return
        bad = self.look.check.faulty_extents() if self.look.check else frozenset()
        rows = list(_extent_rows(table, bad, self.subpartition))
        columns = (*_EXTENT_COLUMNS, Column("state", left=True)) if bad else _EXTENT_COLUMNS
        _print_table(out, columns, rows, self.everything, ", --subpartition S those of one")
        out.gap()
        regions = plural(len(table.kinds), "region")
        if self.subpartition is not None:
            own = Totals.of(table.entries[:, self.subpartition])
            out.line(f"Subpartition {self.subpartition}: {_totals(own)}, in {regions}")
            return
        out.line(f"Total: {_totals(table.totals)}, in {regions}")
        out.gap()
        _print_skew(out, table.per_subpartition("bytes"), table.per_subpartition("records"))

    def _print_loose_buffers(self) -> None:
        check = self.look.check
        if check is None or not (check.loose or check.stopped_at):
            return
        out = self.out
        out.gap()
        is_next_region = self.look.inspection.unfinished and self.look.inspection.table is not None
        if check.loose:
            out.line(_NEXT_REGION if is_next_region else _LOOSE, "bold")
            out.gap()
            rows = [_loose_row(each) for each in check.loose]
            _print_table(out, _LOOSE_COLUMNS, rows, self.everything)
        if check.stopped_at is not None and self.look.inspection.data is not None:
            left = self.look.inspection.data.bytes - check.stopped_at
            out.gap()
            out.line(f"From offset {check.stopped_at} on nothing can be told ({plural(left, 'byte')}).")


_NEXT_REGION = "Buffers of the region that was being written, or of an older file beneath"
_LOOSE = "Buffers that no index covers: which region and subpartition they are of cannot be told"
_LOOSE_COLUMNS = (
    Column("offset"),
    Column("bytes"),
    Column("rows"),
    Column("ratio"),
    Column("type", left=True),
)


def _print_table(
    out: ConsoleOutput, columns: Sequence[Column], rows: list[Row], everything: bool, other_way: str = ""
) -> None:
    named = rows if everything else rows[:LIMIT]
    out.table(columns, named)
    _print_rest(out, len(rows) - len(named), "more row", other_way)


def _facts(look: PairReport) -> Iterator[tuple[str, str]]:
    inspection = look.inspection
    yield "data", _described(inspection.data)
    yield "index", _described(inspection.index)
    header = inspection.header
    if header is not None:
        payload = header.payload_kind.name.lower().replace("_", " ")
        yield "format", f"version {header.version}, {payload}, codec {header.codec.name.lower()}"
        if look.encryption:
            yield "payloads", look.encryption
        first = f", written from {header.first_subpartition} on" if header.first_subpartition else ""
        yield "layout", plural(header.subpartitions, "subpartition") + first
        yield "id", header.file_id.hex()
    if inspection.writer is not None:
        yield "writer", _signature(inspection.writer)
        yield "time", f"{inspection.writer.time}, {inspection.writer.software}"
        yield "order", ", ".join(map(str, inspection.writer.ordering)) or "of arrival"
    schema = schema_of(inspection)
    if schema is not None:
        yield "schema", ", ".join(f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def _described(file: FoundFile | None) -> str:
    if file is None:
        return "missing"
    return f"{os.path.basename(file.path)}, {count(file.bytes)} bytes"


def _signature(writer: WriterInfo) -> str:
    return (
        f"application {writer.application}, exchange {writer.exchange}, stage {writer.stage},"
        f" map {writer.map_index}, attempt {writer.attempt}, on {writer.host}"
    )


def _extent_rows(
    table: RegionTable, bad: frozenset[tuple[int, int | None]], subpartition: int | None
) -> Iterator[Row]:
    extents = table.extents(subpartition)
    for (region, is_empty), run in itertools.groupby(extents, lambda each: (each.region, each.bytes == 0)):
        members = list(run)
        if is_empty:
            yield _empty_row(region, members)
            continue
        for extent in members:
            number = None if table.is_broadcast(region) else extent.subpartition
            yield _extent_row(extent, number, (region, number) in bad)


def _extent_row(extent: Extent, number: int | None, is_bad: bool) -> Row:
    cells = [
        str(extent.region),
        "all" if number is None else str(number),
        str(extent.offset),
        count(extent.bytes),
        count(extent.buffers),
        count(extent.records),
        ratio(extent.raw_bytes, extent.bytes),
    ]
    return Row([*cells, "damaged"], "red") if is_bad else Row(cells)


def _empty_row(region: int, run: list[Extent]) -> Row:
    first, last = run[0].subpartition, run[-1].subpartition
    numbers = str(first) if first == last else f"{first}-{last}"
    return Row([str(region), numbers, "", "0", "0", "0", ""], "dim")


def _loose_row(buffer: LooseBuffer) -> Row:
    return Row(
        [
            str(buffer.offset),
            count(buffer.bytes),
            "" if buffer.records is None else count(buffer.records),
            ratio(buffer.raw_bytes, buffer.bytes),
            buffer.data_type.lower().replace("_", " "),
        ]
    )


def _print_skew(out: ConsoleOutput, sizes: Int64s, records: Int64s) -> None:
    out.table(_SKEW_COLUMNS, [_skew_row("bytes", Spread.of(sizes)), _skew_row("rows", Spread.of(records))])


def _skew_row(name: str, spread: Spread) -> Row:
    factor = f"{spread.most / spread.median:.2f}" if spread.median else ""
    median = f"{spread.median:,.1f}".removesuffix(".0")
    cells = [name, count(spread.least), median, count(spread.most), factor, str(spread.largest)]
    return Row([*cells, count(spread.empty)])


def _totals(totals: Totals) -> str:
    packed = ratio(totals.raw_bytes, totals.bytes)
    return (
        f"{plural(totals.bytes, 'byte')} ({format_size(totals.bytes)}), {plural(totals.buffers, 'buffer')},"
        f" {plural(totals.records, 'row')}" + (f", ratio {packed}" if packed else "")
    )


def _print_faults(out: ConsoleOutput, look: PairReport, everything: bool) -> None:
    notes = list(_notes(look))
    faults = look.faults if everything else look.faults[:SHORT_LIMIT]
    if not (notes or faults):
        return
    out.gap()
    for note in notes:
        out.line(note, "yellow")
    for fault in faults:
        out.line(f"{os.path.basename(fault.place.file)}: {fault}", "red")
    _print_rest(out, len(look.faults) - len(faults), "more fault")


def _notes(look: PairReport) -> Iterator[str]:
    if look.inspection.being_written:
        yield "A task is writing this map output; its completed regions are shown."
    elif look.inspection.may_be_written:
        yield (
            "This map output is unfinished, or a task is writing it: no locks are kept there that would tell."
            " Its completed regions are shown."
        )
    elif look.inspection.unfinished:
        yield (
            "The task that wrote this map output ended before it was finished: nothing refers to it, and"
            " `sortshuffle clean` removes it."
        )
    if look.unchecked:
        yield f"Not all could be checked here: {look.unchecked}."
    if look.check is None:
        yield "The data was not read, as --quick says."


# ---- rows -----------------------------------------------------------------------------------------------


def _rows_title(rows: ShownRows) -> str:
    total = plural(rows.total, rows.total_unit)
    if rows.unit == rows.total_unit:
        return f"The first {count(len(rows.values))} of {total} of subpartition {rows.subpartition}"
    shown = plural(len(rows.values), rows.unit)
    return f"The first {shown} of subpartition {rows.subpartition}, which has {total}"


def _print_rows_upright(out: ConsoleOutput, rows: ShownRows) -> None:
    """Print one line per value, for rows wider than the terminal."""
    for number, values in enumerate(rows.values):
        out.line(f"row {number}", "dim")
        out.fields([(name, cell(value)) for name, value in zip(rows.columns, values, strict=True)])


def _width_of(rows: ShownRows) -> int:
    gap = 2
    return sum(
        gap + max([len(name), *(len(cell(values[at])) for values in rows.values)])
        for at, name in enumerate(rows.columns)
    )


def _is_number(rows: ShownRows, at: int) -> bool:
    values = [values[at] for values in rows.values if values[at] is not None]
    return bool(values) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


# ---- a directory ----------------------------------------------------------------------------------------

_PAIR_COLUMNS = (
    Column("map output", left=True),
    Column("regions"),
    Column("bytes"),
    Column("rows"),
    Column("ratio"),
)


def directory(out: ConsoleOutput, path: str, found: Listing, everything: bool) -> None:
    """Print a row for each pair, then the sums of each exchange, encrypted pairs, and pairs with faults."""
    if not found.looks:
        out.line(f"There are no map outputs below {path}.")
        return
    looks = found.looks if everything else found.looks[:LIMIT]
    for parent, group in itertools.groupby(looks, lambda look: look.directory):
        _print_directory_of_pairs(out, parent, list(group))
    _print_rest(out, len(found.looks) - len(looks), "more map output")
    exchanges = found.exchanges if everything else found.exchanges[:SHORT_LIMIT]
    for exchange in exchanges:
        _print_exchange(out, exchange)
    _print_rest(out, len(found.exchanges) - len(exchanges), "more exchange")
    _print_encryption(out, found)
    print_wrong_pairs(out, found, everything)


def _print_directory_of_pairs(out: ConsoleOutput, parent: str, looks: list[PairReport]) -> None:
    is_well = all(look.state is PairState.COMPLETE for look in looks)
    columns = _PAIR_COLUMNS if is_well else (*_PAIR_COLUMNS, Column("state", left=True))
    out.gap()
    out.line(parent, "bold")
    out.gap()
    out.table(columns, [_pair_row(look, with_state=not is_well) for look in looks])


def _print_rest(out: ConsoleOutput, number: int, noun: str, other_way: str = "") -> None:
    if number:
        out.line(f"... and {plural(number, noun)}: --all shows {_them(number)}{other_way}.", "dim")


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _pair_row(look: PairReport, with_state: bool) -> Row:
    cells = [look.name, "", "", "", ""]
    totals = look.totals
    if totals is not None and look.regions is not None:
        packed = ratio(totals.raw_bytes, totals.bytes)
        cells[1:] = [count(look.regions), count(totals.bytes), count(totals.records), packed]
    if with_state:
        cells.append(look.state.value)
    return Row(cells, "" if look.state is PairState.COMPLETE else _STYLES[look.state].removeprefix("bold "))


def _print_exchange(out: ConsoleOutput, exchange: ExchangeFiles) -> None:
    outputs, maps = plural(exchange.map_outputs, "map output"), len(exchange.maps)
    if maps < exchange.map_outputs:
        outputs += f" of {plural(maps, 'map task')}"
    subpartitions = plural(exchange.subpartitions, "subpartition")
    out.gap()
    out.line(exchange.title, "bold")
    out.line(f"{outputs}, {subpartitions}, {_totals(exchange.totals)}")
    out.gap()
    _print_skew(out, exchange.bytes, exchange.records)


def _print_encryption(out: ConsoleOutput, found: Listing) -> None:
    by_word = Counter((look.is_locked, look.encryption) for look in found.looks if look.encryption)
    if not by_word:
        return
    out.gap()
    for (is_locked, word), number in sorted(by_word.items()):
        said = f"{plural(number, 'map output')} of {count(len(found.looks))}: {word}"
        out.line(said, "red" if is_locked else "")


def print_wrong_pairs(out: ConsoleOutput, found: Listing, everything: bool) -> None:
    """Print the pairs that are not added up, and why; nothing if there are none."""
    wrong = found.wrong
    if not wrong:
        return
    out.gap()
    out.line(f"{plural(len(wrong), 'map output')} of {count(len(found.looks))} not added up:")
    named = wrong if everything else wrong[:SHORT_LIMIT]
    for look in named:
        out.line(f"{look.inspection.base}: {look.reason}", _STYLES[look.state].removeprefix("bold "))
    _print_rest(out, len(wrong) - len(named), "more such map output")
