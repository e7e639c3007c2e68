"""The output of all commands: formatted for people on a terminal, plain lines everywhere else.

Rules
* On a terminal, output uses its width, colours, and a rule below a table's head. Elsewhere there are no
  colours, rules, cut columns or trailing blanks, because people search and compare that output.
* Control characters in text from files (names, values) are escaped: a file must not control the terminal.
* Results go to standard output. Progress goes to standard error, and only if that is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from sortshuffle.options import MIB

PLAIN_WIDTH = 1_000_000  # columns, so that nothing is cut
LEAST_FOR_PROGRESS = 512 * MIB  # less is done in a moment, and needs no bar
GAP = "  "  # between a table's columns

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. ``left``: aligned left, as for text; numbers are aligned right."""

    name: str
    left: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A table's row. ``style``: a style of rich."""

    cells: Sequence[str]
    style: str = ""


class ConsoleOutput:
    """Writes one command's results to standard output."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._console = Console(highlight=False) if self.is_terminal else _plain_console()
        self._has_printed = False
        self._rule = "─" if self._console.encoding.startswith("utf") else "-"

    @property
    def width(self) -> int:
        return self._console.width

    def gap(self) -> None:
        """Print a blank line, unless it would be the first line."""
        if self._has_printed:
            self._print_line("", "")

    def line(self, text: str, style: str = "") -> None:
        """Print one line without breaking it: a terminal wraps it, so that it can be copied whole."""
        self._print_line(printable(text), style)

    def fields(self, fields: Sequence[tuple[str, str]]) -> None:
        """Print labels and values, indented. A long value continues below its beginning."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in fields:
            grid.add_row(Text("  " + printable(label)), Text(printable(value)))
        with self._console.capture() as capture:
            self._console.print(grid)
        for line in capture.get().splitlines():
            click.echo(line.rstrip(), color=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Print a table of any length. A row may lack its last cells. The layout is computed here, because
        rich takes half a millisecond for a row."""
        names = [column.name for column in columns]
        cells = [[printable(cell) for cell in row.cells] for row in rows]
        widths = [_width([names, *cells], at) for at in range(len(columns))]
        self._print_line(_laid_out(names, columns, widths), "bold")
        if self.is_terminal:
            self._print_line(self._rule * (sum(widths) + len(GAP) * (len(widths) - 1)), "dim")
        for row, texts in zip(rows, cells, strict=True):
            self._print_line(_laid_out(texts, columns, widths), row.style)

    def _print_line(self, text: str, style: str) -> None:
        self._has_printed = True
        if self.is_terminal:
            self._console.print(Text(text, style), soft_wrap=True)
        else:
            click.echo(text)


def _width(lines: Sequence[Sequence[str]], at: int) -> int:
    return max(cell_len(cells[at]) for cells in lines if at < len(cells))


def _laid_out(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Return one line of a table, without trailing blanks."""
    parts = []
    for text, column, width in zip(cells, columns, widths, strict=False):
        blanks = " " * (width - cell_len(text))
        parts.append(text + blanks if column.left else blanks + text)
    return GAP.join(parts).rstrip()


def _plain_console() -> Console:
    return Console(width=PLAIN_WIDTH, highlight=False, no_color=True, force_terminal=False)


def printable(text: str) -> str:
    """Return the text on one line, with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))


def count(number: int) -> str:
    """Format a whole number for people: 1,234,567."""
    return f"{number:,}"


def ratio(raw_bytes: int, stored_bytes: int) -> str:
    """Format raw bytes divided by stored bytes; empty if nothing is stored."""
    return f"{raw_bytes / stored_bytes:.2f}" if stored_bytes else ""


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: 1 region, 2 regions."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """Show a progress bar on standard error for work on ``total`` bytes. It disappears at the end."""
    if total < LEAST_FOR_PROGRESS or not sys.stderr.isatty():
        yield lambda size: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    # without redirect_stdout=False rich would print the results on standard error as well
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(printable(description), total=total)
        yield lambda size: bar.advance(task, size)
