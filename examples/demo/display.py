"""What the demo prints: answers, what each stage did, what was shuffled, and what to try next."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from sortshuffle.options import format_size
from sortshuffle.spark.worker.reports import StageTotals

PLAIN_WIDTH = 100  # columns where the output is no terminal
SHOWN_STEPS = 3
LOG_TAIL = 4000  # characters of Spark's log that are shown when it does not start


@dataclass(frozen=True, slots=True)
class Answer:
    """A result to print. ``reading``: a sentence on how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    reading: str = ""


class Display:
    """Prints on a terminal or into a file."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        self.console = console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)

    def line(self, text: str = "") -> None:
        """On one line, however long it is, so that a command in it can be copied."""
        self.console.print(text, markup=False, soft_wrap=True)

    def working(self, what: str) -> AbstractContextManager[Any]:
        """Says so on a terminal, as long as it takes."""
        return self.console.status(what) if self.console.is_terminal else nullcontext()

    def log(self, path: str) -> None:
        with open(path, encoding="utf-8", errors="replace") as opened:
            self.line(opened.read()[-LOG_TAIL:])

    def answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._table(answer.title, answer.columns, answer.rows)
            if answer.reading:
                self.line(answer.reading)

    def stages(self, totals: Sequence[StageTotals], seconds: float) -> None:
        """What each stage did, and what each exchange holds."""
        names = ("stage", "tasks", "rows in", "task time", "waiting", "memory", "most of it")
        self._table(f"What ran, in {seconds:.1f} s", names, map(_stage, totals))
        names = ("exchange", "written by", "rows", "bytes", "buffers", "regions", "spills", "files")
        self._table("What was shuffled", names, (row for total in totals for row in _exchanges(total)))

    def what_next(self, directory: str | None) -> None:
        """``directory``: where the shuffle's files are, if they were kept."""
        self.line()
        if directory is None:
            again = shlex.join([_from_here(sys.executable), _from_here(sys.argv[0]), "--keep"])
            self.line(f"The files went with the job. To keep and look into some:  {again}")
            return
        self.line(f"The files are in {directory}")
        program = _from_here(os.path.join(os.path.dirname(sys.executable), "sortshuffle"))
        self.line(f"Look inside:  {shlex.join([program, 'dump', _from_here(directory)])}")

    def _table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for position, name in enumerate(columns):
            table.add_column(name, justify="left" if position == 0 or name == "most of it" else "right")
        for row in rows:
            table.add_row(*map(_cell, row))
        self.console.print()
        self.console.print(table)


def _stage(total: StageTotals) -> Sequence[Any]:
    counts, seconds = total.metrics.counts, total.metrics.seconds
    return (
        str(total.stage),
        total.tasks,
        f"{counts['rows_in']:,} {'shuffled' if counts['extents_read'] else 'scanned'}",
        f"{total.wall:.1f} s",
        f"{seconds['wait']:.1f} s",
        format_size(counts["memory_peak"]),
        ", ".join(step for step, _ in total.metrics.slowest()[:SHOWN_STEPS]),
    )


def _exchanges(total: StageTotals) -> Iterator[Sequence[Any]]:
    for exchange, metrics in sorted(total.outputs.items()):
        counts = metrics.counts
        size = format_size(counts["bytes_written"])
        numbers = (counts[name] for name in ("buffers_written", "regions", "spills", "files"))
        yield (str(exchange), f"stage {total.stage}", counts["rows_written"], size, *numbers)


def _from_here(path: str) -> str:
    """The shorter way to write a path in a command that can be copied."""
    return min(os.path.abspath(path), os.path.relpath(path), key=len)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def stderr_to(path: str) -> Iterator[None]:
    """Let what is started in the block inherit a file as its standard error."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with open(path, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
