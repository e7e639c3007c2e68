"""`report_page`: what map outputs hold, and what to change first, as one page for a browser.

The page is whole: it has no scripts, loads nothing, and can be sent to others. It shows names of columns, and
the values that make subpartitions large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from sortshuffle.html_page import add, add_card, add_figure, add_table, document, new_page
from sortshuffle.options import format_size
from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.application_section import add_run
from sortshuffle.report.findings import Findings, advice
from sortshuffle.report.plots import heat_plot, sizes_plot
from sortshuffle.version import __version__

LARGEST_SHOWN = 10  # subpartitions in a table
MOST_EXCHANGES = 50  # on a page, which has 20 KB or more for each


@dataclass(frozen=True, slots=True)
class PairWithFault:
    """A map output that is not added up, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a page shows. ``source``: the path or URL that was looked at. ``time``: when, as text.
    ``map_outputs``: found, those with faults among them. ``run``: what the application did, where
    that is known."""

    source: str
    time: str
    map_outputs: int
    findings: Sequence[Findings]
    wrong: Sequence[PairWithFault] = ()
    run: ApplicationRun | None = None


def report_page(report: Report) -> bytes:
    """Return the page in UTF-8. Raises `UnsupportedError` if there is no library to draw with."""
    page, body = new_page(f"sortshuffle: {report.source}")
    _title(body, report)
    _advice(body, report)
    if report.run is not None:
        add_run(body, report.run)
    shown = sorted(report.findings, key=lambda each: -each.files.totals.bytes)[:MOST_EXCHANGES]
    in_order = sorted(shown, key=lambda each: (each.files.application, each.files.number))
    for number, findings in enumerate(in_order):
        _exchange(body, findings, f"exchange-{number}")
    if len(shown) < len(report.findings):
        add(body, "p", "soft", f"and {len(report.findings) - len(shown):,} smaller exchanges")
    _wrong(body, report)
    return document(page)


def _title(body: Element, report: Report) -> None:
    add(body, "h1", text="Shuffle report")
    add(add(body, "p"), "code", text=report.source)
    about = f"{_plural(report.map_outputs, 'map output')}, {report.time}, sortshuffle {__version__}"
    add(body, "p", "soft", about)


def _advice(body: Element, report: Report) -> None:
    add(body, "h2", text="What to change first")
    lines = advice(report.findings, report.run)
    if not lines:
        add(body, "p", "good" if report.findings else "soft", "Nothing stands out.")
        return
    listed = add(body, "ol")
    for line in lines:
        item = add(listed, "li")
        add(item, "strong", text=line.figure)
        add(item, "span", text=f" {line.remedy}")


# ---- an exchange -------------------------------------------------------------------------------------------


def _exchange(body: Element, findings: Findings, name: str) -> None:
    files = findings.files
    add(body, "h2", "chapter", f"Exchange {files.number} of {files.application or 'an unnamed application'}")
    _cards(add(body, "div", "cards"), findings)
    if files.totals.bytes:
        add_figure(
            body,
            sizes_plot(f"{name}-sizes", files.bytes, findings.typical_bytes),
            "Bytes of each subpartition",
            f"{_plural(files.subpartitions, 'subpartition')}; the largest, {findings.spread.largest}, has"
            f" {format_size(findings.spread.most)}, the median is {format_size(findings.spread.median)}",
        )
        add_figure(
            body,
            heat_plot(f"{name}-regions", files.heat),
            "Bytes of each region, by subpartition",
            f"{_plural(files.regions, 'region')} in the order of files, {_per_row(findings)}",
        )
        _largest(body, findings)
    _columns(body, findings)
    _heavy(body, findings)


def _cards(cards: Element, findings: Findings) -> None:
    files, spread = findings.files, findings.spread
    totals, header = files.totals, files.header
    add_card(
        cards,
        "Stored",
        format_size(totals.bytes),
        [
            f"{totals.records:,} rows in {totals.buffers:,} buffers",
            f"{header.payload_kind.name.lower().replace('_', ' ')}, codec {header.codec.name.lower()}",
        ],
    )
    ratio = totals.raw_bytes / totals.bytes if totals.bytes else 1.0
    add_card(cards, "Raw bytes by stored bytes", f"{ratio:.2f}", [f"{format_size(totals.raw_bytes)} before"])
    card = add_card(
        cards,
        "Subpartitions",
        f"{files.subpartitions:,}",
        [f"median {format_size(spread.median)}, most {format_size(spread.most)}", f"{spread.empty:,} empty"],
    )
    if findings.is_skewed:
        add(card, "p", "warn", "some are far larger than others")
    read = totals.bytes / totals.extents if totals.extents else 0
    card = add_card(
        cards,
        "Map outputs",
        f"{files.map_outputs:,}",
        [_plural(files.regions, "region"), f"a read gets {format_size(read)} on average"],
    )
    again = files.map_outputs - len(files.maps)
    if again:
        add(card, "p", "warn", f"{again:,} written again by another attempt")


def _per_row(findings: Findings) -> str:
    rows = findings.files.heat.regions_per_row
    return "one in each row" if rows == 1 else f"{rows} in each row"


def _largest(body: Element, findings: Findings) -> None:
    files = findings.files
    order = (-files.bytes).argsort(kind="stable")[: min(LARGEST_SHOWN, files.subpartitions)]
    add(body, "h3", text="The largest subpartitions")
    rows = [
        (
            bool(findings.is_skewed and files.bytes[at] > 5 * findings.typical_bytes),
            [
                str(at),
                format_size(int(files.bytes[at])),
                f"{files.records[at]:,}",
                f"{files.bytes[at] / findings.typical_bytes:.1f}" if findings.typical_bytes else "",
            ],
        )
        for at in order.tolist()
    ]
    add_table(body, ["subpartition", "stored", "rows", "times the median"], rows)


def _columns(body: Element, findings: Findings) -> None:
    add(body, "h3", text="Columns")
    if findings.refusal:
        add(body, "p", "soft", f"Rows are not decoded: {findings.refusal}.")
        return
    whole = sum(each.stored_bytes for each in findings.columns) or 1
    rows = [
        (
            False,
            [
                f"{each.name} {each.type}",
                f"{each.stored_bytes / whole:.0%}",
                f"{each.raw_bytes / each.stored_bytes:.2f}" if each.stored_bytes else "",
            ],
        )
        for each in findings.columns
    ]
    add_table(body, ["column", "part of the bytes", "raw by stored"], rows)
    add(
        body,
        "p",
        "soft",
        f"From some rows of subpartition {findings.spread.largest}, each column compressed alone.",
    )


def _heavy(body: Element, findings: Findings) -> None:
    if not findings.heavy:
        return
    add(body, "h3", text=f"What makes subpartition {findings.spread.largest} large")
    rows = [
        (False, [each.column, each.value, f"{each.share:.0%}", f"{each.elsewhere:.1%}"])
        for each in findings.heavy
    ]
    add_table(body, ["column", "value", "of its rows", f"of those of {findings.middling}"], rows)


def _wrong(body: Element, report: Report) -> None:
    if report.wrong:
        add(body, "h2", "warn", f"{_plural(len(report.wrong), 'map output')} not added up")
        add_table(body, ["map output", "why"], [(False, [each.path, each.why]) for each in report.wrong])


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
