"""`report_page`: what map outputs hold, and what to change first, as one page for a browser.

The page is whole: it has no scripts, loads nothing, and can be sent to others. It shows names of columns, and
the values that make subpartitions large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from xml.etree.ElementTree import Element

from sortshuffle import html_page
from sortshuffle.html_page import add, add_figure, add_table, document, new_page
from sortshuffle.options import format_size
from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.application_section import add_run
from sortshuffle.report.findings import SKEW, Findings, advice
from sortshuffle.report.plots import MOST_BARS, heat_plot, sizes_plot
from sortshuffle.version import __version__

LARGEST_SHOWN = 10  # subpartitions in a table
MOST_EXCHANGES = 50  # on a page, which has up to 100 KB for each


@dataclass(frozen=True, slots=True)
class NotShown:
    """A map output that is not added up, or a place that cannot be looked at; and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a page shows. ``source``: the path or URL that was looked at. ``time``: when, as text.
    ``map_outputs``: found, those with faults among them. ``wrong``: these; ``passed_over``:
    places that could not be looked at. ``run``: what the application did, where
    that is known."""

    source: str
    time: str
    map_outputs: int
    findings: Sequence[Findings]
    wrong: Sequence[NotShown] = ()
    passed_over: Sequence[NotShown] = ()
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
    if report.wrong:
        verb = "is" if len(report.wrong) == 1 else "are"
        text = f"{_plural(len(report.wrong), 'map output')} {verb} not added up: see the end of this page"
        add(body, "p", "warn", text)
    if report.passed_over:
        text = f"{_plural(len(report.passed_over), 'place')} could not be looked at: see the end of this page"
        add(body, "p", "warn", text)


def _advice(body: Element, report: Report) -> None:
    add(body, "h2", text="What to change first")
    lines = advice(report.findings, report.run)
    if not lines:
        if report.findings:
            add(body, "p", "good", "Nothing stands out.")
        else:
            add(body, "p", "soft", "There is no complete map output to look at.")
        return
    listed = add(body, "ol")
    for line in lines:
        item = add(listed, "li")
        add(item, "strong", text=line.figure)
        add(item, "span", text=f" {line.remedy}")


# ---- an exchange -------------------------------------------------------------------------------------------


def _exchange(body: Element, findings: Findings, name: str) -> None:
    files = findings.files
    add(body, "h2", "chapter", files.title)
    _cards(add(body, "div", "cards"), findings)
    if files.totals.bytes:
        _pictures(body, findings, name)
        _largest(body, findings)
    _columns(body, findings)
    _heavy(body, findings)


def _pictures(body: Element, findings: Findings, name: str) -> None:
    files, heat = findings.files, findings.files.heat
    bar = -(-files.subpartitions // min(files.subpartitions, MOST_BARS))
    add_figure(
        body,
        sizes_plot(f"{name}-sizes", files.bytes, findings.typical_bytes),
        "Bytes of each subpartition",
        f"{_plural(files.subpartitions, 'subpartition')}{_joined(bar, ', the largest of {} in each bar')};"
        f" the largest, {findings.spread.largest}, has {format_size(findings.spread.most)}; the median of"
        f" those that are not empty is {format_size(findings.typical_bytes)}.",
    )
    means = heat.means
    row, column = divmod(int(means.argmax()), means.shape[1])
    cell = _joined(heat.regions_per_row, " up to {} regions in each row,")
    cell += _joined(heat.subpartitions_per_column, " up to {} subpartitions in each column,")
    add_figure(
        body,
        heat_plot(f"{name}-regions", heat),
        "Bytes of each region, by subpartition",
        f"{_plural(files.regions, 'region')} in the order of files,{cell} the lighter the more: at most"
        f" {format_size(float(means.max()))}{' on average' if cell else ''}, in region"
        f" {row * heat.regions_per_row} and subpartition {heat.first[column]}.",
    )


def _joined(number: int, text: str) -> str:
    return "" if number == 1 else text.format(f"{number:,}")


def _cards(cards: Element, findings: Findings) -> None:
    files, spread = findings.files, findings.spread
    totals, header = files.totals, files.header
    add_card = partial(html_page.add_card, heading="h3")
    add_card(
        cards,
        "Stored",
        format_size(totals.bytes),
        [
            f"{_plural(totals.records, 'row')} in {_plural(totals.buffers, 'buffer')}",
            f"{header.payload_kind.name.lower().replace('_', ' ')}, codec {header.codec.name.lower()}",
        ],
    )
    add_card(
        cards,
        "Raw bytes by stored bytes",
        f"{findings.raw_ratio:.2f}",
        [f"{format_size(totals.raw_bytes)} before"],
    )
    card = add_card(
        cards,
        "Subpartitions",
        f"{files.subpartitions:,}",
        [
            f"median {format_size(findings.typical_bytes)}, most {format_size(spread.most)}",
            f"{spread.empty:,} empty, which the median leaves out",
        ],
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


def _largest(body: Element, findings: Findings) -> None:
    files = findings.files
    order = (-files.bytes).argsort(kind="stable")[: min(LARGEST_SHOWN, files.subpartitions)]
    add(body, "h3", text="The largest subpartitions")
    rows = [
        (
            bool(findings.is_skewed and files.bytes[at] > SKEW * findings.typical_bytes),
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
        for each in sorted(findings.columns, key=lambda each: -each.stored_bytes)
    ]
    add_table(body, ["column", "part of the bytes", "raw by stored"], rows)
    add(
        body,
        "p",
        "soft",
        f"From {_plural(findings.sampled, 'row')} of subpartition {findings.spread.largest}, each column"
        " compressed alone.",
    )


def _heavy(body: Element, findings: Findings) -> None:
    if not findings.heavy:
        return
    add(body, "h3", text=f"What makes subpartition {findings.spread.largest} large")
    rows = [
        (False, [each.column, each.value, f"{each.share:.0%}", f"{each.elsewhere:.1%}"])
        for each in findings.heavy
    ]
    names = ["column", "value", "of its rows", f"of those of {findings.middling}"]
    add_table(body, names, rows, texts={1})
    add(body, "p", "soft", f"From {_plural(findings.sampled, 'row')} of each that were looked at.")


def _wrong(body: Element, report: Report) -> None:
    for what, places in (
        ("Map outputs that are not added up", report.wrong),
        ("Places that could not be looked at", report.passed_over),
    ):
        if places:
            add(body, "h2", "warn", what)
            add_table(body, ["path", "why"], [(False, [each.path, each.why]) for each in places], texts={1})


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
