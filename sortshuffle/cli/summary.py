"""What a report says (`report.findings`), as text: for `dump --summary`, and its advice for `report`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sortshuffle.cli.output import Column, ConsoleOutput, Row, count, plural, ratio
from sortshuffle.options import format_size
from sortshuffle.report.findings import Findings, advice

_SIZE_COLUMNS = (
    Column("subpartition"),
    Column("stored"),
    Column("rows"),
    Column("times the median"),
)
_COLUMN_COLUMNS = (Column("column", left=True), Column("part of the bytes"), Column("raw by stored"))
_VALUE_COLUMNS = (
    Column("column", left=True),
    Column("value", left=True),
    Column("of its rows"),
    Column("elsewhere"),
)
LARGEST_SHOWN = 3  # subpartitions in a table
INDENT = 3  # columns


def print_summary(out: ConsoleOutput, every: Sequence[Findings]) -> None:
    """Print the advice, and for each exchange its sizes, its columns and the values that make it uneven."""
    print_advice(out, every)
    for findings in every:
        _print_exchange(out, findings)


def print_advice(out: ConsoleOutput, every: Sequence[Findings]) -> None:
    lines = advice(every)
    out.gap()
    if not lines:
        out.line("Nothing stands out." if every else "There is no complete map output to look at.")
        return
    out.line("What to change first", "bold")
    width = min(out.width, _MOST_WIDTH) if out.is_terminal else out.width
    for number, line in enumerate(lines, 1):
        text = f"{line.figure} {line.remedy}"
        for part in textwrap.wrap(text, width, initial_indent=f"{number}. ", subsequent_indent=" " * INDENT):
            out.line(part)


_MOST_WIDTH = 100  # columns of running text on a terminal


def _print_exchange(out: ConsoleOutput, findings: Findings) -> None:
    files, totals = findings.files, findings.files.totals
    out.gap()
    out.line(files.title, "bold")
    read = format_size(totals.bytes / totals.extents) if totals.extents else "0 B"
    out.fields(
        [
            ("map outputs", f"{count(files.map_outputs)}, {plural(files.regions, 'region')}"),
            ("stored", f"{format_size(totals.bytes)}, {plural(totals.records, 'row')}"),
            ("compression", f"{ratio(totals.raw_bytes, totals.bytes)}, {files.header.codec.name.lower()}"),
            ("subpartitions", _subpartitions(findings)),
            ("a read gets", f"{read} on average"),
        ]
    )
    _print_largest(out, findings)
    _print_columns(out, findings)
    _print_heavy(out, findings)


def _subpartitions(findings: Findings) -> str:
    spread = findings.spread
    return (
        f"{count(findings.files.subpartitions)}: median {format_size(findings.typical_bytes)}"
        f" (of those that are not empty), most {format_size(spread.most)}, {count(spread.empty)} empty"
    )


def _print_largest(out: ConsoleOutput, findings: Findings) -> None:
    files, typical = findings.files, findings.typical_bytes
    order = (-files.bytes).argsort(kind="stable")[:LARGEST_SHOWN].tolist()
    rows = [
        Row(
            [
                str(at),
                format_size(int(files.bytes[at])),
                count(int(files.records[at])),
                f"{files.bytes[at] / typical:.1f}" if typical else "",
            ]
        )
        for at in order
    ]
    out.gap()
    out.table(_SIZE_COLUMNS, rows)


def _print_columns(out: ConsoleOutput, findings: Findings) -> None:
    out.gap()
    if findings.refusal:
        out.line(f"Rows are not decoded: {findings.refusal}.", "dim")
        return
    whole = sum(each.stored_bytes for each in findings.columns) or 1
    rows = [
        Row(
            [
                f"{each.name} {each.type}",
                f"{each.stored_bytes / whole:.0%}",
                ratio(each.raw_bytes, each.stored_bytes),
            ]
        )
        for each in sorted(findings.columns, key=lambda each: -each.stored_bytes)
    ]
    out.table(_COLUMN_COLUMNS, rows)


def _print_heavy(out: ConsoleOutput, findings: Findings) -> None:
    if not findings.heavy:
        return
    out.gap()
    about = (
        f"What makes subpartition {findings.spread.largest} large, by {plural(findings.sampled, 'row')} of it"
    )
    out.line(about)
    rows = [
        Row([each.column, each.value, f"{each.share:.0%}", f"{each.elsewhere:.1%}"])
        for each in findings.heavy
    ]
    out.table(_VALUE_COLUMNS, rows)
