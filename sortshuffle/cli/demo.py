"""`sortshuffle demo`: a whole PySpark job on real data, shuffled by sortshuffle, and what it did.

The job is in `sortshuffle.cli.flights`, as a user would write it; here is the display around it: progress
on a terminal, plain lines elsewhere, then the answer, what was shuffled, where the files are, and what to try
next.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from sortshuffle.cli.printing import CannotPrint
from sortshuffle.options import format_size

if TYPE_CHECKING:
    from sortshuffle.cli.flights import Answer
    from sortshuffle.spark.worker.reports import StageTotals

PARTITIONS = 16
URL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # Hadoop takes it without slashes, too
KEPT_DIRECTORY = "sortshuffle-demo"
POLL = 0.2  # seconds between looks at Spark's progress
PLAIN_WIDTH = 100  # columns where the output is no terminal
SHOWN_STEPS = 3
LOG_TAIL = 4000  # characters of Spark's log that are shown when it does not start


@click.command()
@click.option("--parquet", metavar="PATH", help="Shuffle these Parquet files instead of the flights table.")
@click.option("--key", metavar="COLUMN", help="With --parquet: the column whose rows belong together.")
@click.option("--partitions", default=PARTITIONS, show_default=True, type=click.IntRange(min=1))
@click.option("--master", default="local[2]", show_default=True, help="The Spark master to run on.")
@click.option("--keep", is_flag=True, help=f"Keep the shuffle's files, in ./{KEPT_DIRECTORY}.")
def demo(parquet: str | None, key: str | None, partitions: int, master: str, keep: bool) -> None:
    """Run a PySpark job on real data through sortshuffle, and show what was shuffled.

    Without options: every flight out of New York in 2013. Which airports, and which aircraft, make
    delay worse? With --parquet and --key: which keys have the most rows in your own files?
    """
    if (parquet is None) != (key is None):
        raise click.UsageError("--parquet and --key go together")
    if parquet is not None and is_missing(parquet):
        raise click.BadParameter(f"there is nothing at {parquet}", param_hint="--parquet")
    console = _console()
    directory = os.path.abspath(KEPT_DIRECTORY) if keep else None
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    if directory is not None:
        settings |= {"spark.sortshuffle.dir": directory, "spark.sortshuffle.keep": "true"}
    with tempfile.TemporaryDirectory(prefix="sortshuffle-demo-") as scratch:
        source = _source(parquet, key, scratch)
        spark = _session(console, master, settings, os.path.join(scratch, "spark.log"))
        try:
            _run(console, spark, source, partitions, directory)
        except KeyboardInterrupt:
            console.print("Interrupted. The job is cancelled and its files are removed.")
            sys.exit(130)
        finally:
            spark.stop()


def is_missing(path: str) -> bool:
    """Whether a plain local path leads nowhere: Spark need not be started to find that out. What a URL or a
    pattern means is left to who reads it."""
    local = path.removeprefix("file:")
    is_plain = "://" not in path and URL.match(local) is None and not set(path) & set("*?[{")
    return is_plain and not os.path.exists(local)


def _source(parquet: str | None, key: str | None, scratch: str) -> tuple[str, str]:
    """The files to scan and the key; by default the flights, written to ``scratch``."""
    if parquet is not None and key is not None:
        return parquet, key
    from sortshuffle.cli import flights

    return flights.write_table(scratch), ""


def _run(
    console: Console, spark: Any, source: tuple[str, str], partitions: int, directory: str | None
) -> None:
    import sortshuffle
    from sortshuffle.cli import flights
    from sortshuffle.errors import SortShuffleError

    path, key = source
    started = time.perf_counter()
    try:
        frame = sortshuffle.read(spark).parquet(path)
        with _progress(console, spark):
            answers = (
                flights.largest_keys(frame, key, partitions) if key else flights.delays(frame, partitions)
            )
    except SortShuffleError as error:
        raise click.ClickException(str(error)) from None
    seconds = time.perf_counter() - started
    for answer in answers:
        _show_answer(console, answer)
    _show_stages(console, frame.stage_totals(), seconds)
    _show_next(console, directory)


# ---- Spark ------------------------------------------------------------------------------------------


def _session(console: Console, master: str, settings: dict[str, str], log: str) -> Any:
    """A session whose JVM writes its log to a file: a hundred lines of start-up are not the demo."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    from pyspark.sql import SparkSession

    import sortshuffle
    from sortshuffle.spark.manager.choice import LOGGER, choose
    from sortshuffle.spark.session.requirements import address_this_host

    started = time.perf_counter()
    address_this_host(master)
    builder = SparkSession.builder.master(master).appName("sortshuffle demo")
    for key, value in settings.items():
        builder = builder.config(key, value)
    reason = choose(builder).reason
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # it would say the same as the line below
    sortshuffle.configure(builder)
    with console.status("Starting Spark") if console.is_terminal else nullcontext():
        try:
            with _stderr_to(log):
                spark = builder.getOrCreate()
        except Exception as error:
            with open(log, encoding="utf-8", errors="replace") as opened:
                console.print(opened.read()[-LOG_TAIL:], markup=False)
            raise click.ClickException(f"Spark did not start: {error}") from None
    console.print(f"Spark {spark.version} on {master}, started in {time.perf_counter() - started:.1f} s.")
    console.print(_shuffle_of(spark, reason), markup=False, soft_wrap=True)
    return spark


def _shuffle_of(spark: Any, reason: str) -> str:
    """Which shuffle the stages have that are not the frame's."""
    from sortshuffle.spark.manager.settings import is_on

    if is_on(spark.sparkContext):
        return "Spark's own stages are shuffled by sortshuffle, too: its shuffle manager is on."
    return f"Spark's own stages use Spark's own shuffle: {reason or 'the shuffle manager is off'}."


@contextmanager
def _stderr_to(path: str) -> Iterator[None]:
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


@contextmanager
def _progress(console: Console, spark: Any) -> Iterator[None]:
    """Tasks done of Spark's running stages: a bar on a terminal, else one line per stage."""
    done = threading.Event()
    watch = _draw_bars if console.is_terminal else _print_lines

    def run() -> None:
        with suppress(CannotPrint):  # the main thread meets it at its next line
            watch(console, spark, done)

    watcher = threading.Thread(target=run, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _draw_bars(console: Console, spark: Any, done: threading.Event) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bars: dict[int, Any] = {}
        while not done.wait(POLL):
            for stage, finished, total in _running_stages(spark):
                if stage not in bars:
                    bars[stage] = progress.add_task(f"Spark stage {stage}", total=total)
                progress.update(bars[stage], completed=finished)
            running = {stage for stage, _, _ in _running_stages(spark)}
            for stage in set(bars) - running:
                progress.update(bars[stage], visible=False)


def _print_lines(console: Console, spark: Any, done: threading.Event) -> None:
    seen: set[int] = set()
    while not done.wait(POLL):
        for stage, _, total in _running_stages(spark):
            if stage not in seen:
                seen.add(stage)
                console.print(f"Running Spark stage {stage} ({total} tasks)")


def _running_stages(spark: Any) -> list[tuple[int, int, int]]:
    """(stage, tasks done, tasks) of the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return [(info.stageId, info.numCompletedTasks, info.numTasks) for info in infos if info is not None]


# ---- display ----------------------------------------------------------------------------------------


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _show_answer(console: Console, answer: Answer) -> None:
    table = _table(answer.title, answer.columns)
    for row in answer.rows:
        table.add_row(*(_cell(value) for value in row))
    console.print()
    console.print(table)
    if answer.reading:
        console.print(answer.reading)


def _show_stages(console: Console, totals: Sequence[StageTotals], seconds: float) -> None:
    names = ("stage", "tasks", "rows in", "task time", "waiting", "memory", "most of it")
    table = _table(f"What ran, in {seconds:.1f} s", names)
    for total in totals:
        counts = total.metrics.counts
        table.add_row(
            str(total.stage),
            str(total.tasks),
            f"{counts['rows_in']:,} {'shuffled' if counts['extents_read'] else 'scanned'}",
            f"{total.wall:.1f} s",
            f"{total.metrics.seconds['wait']:.1f} s",
            format_size(counts["memory_peak"]),
            ", ".join(step for step, _ in total.metrics.slowest()[:SHOWN_STEPS]),
        )
    console.print()
    console.print(table)
    _show_exchanges(console, totals)


def _show_exchanges(console: Console, totals: Sequence[StageTotals]) -> None:
    names = ("exchange", "written by", "rows", "bytes", "buffers", "regions", "spills", "files")
    table = _table("What was shuffled", names)
    for total in totals:
        for exchange, metrics in sorted(total.outputs.items()):
            counts = metrics.counts
            table.add_row(
                str(exchange),
                f"stage {total.stage}",
                _cell(counts["rows_written"]),
                format_size(counts["bytes_written"]),
                *(_cell(counts[name]) for name in ("buffers_written", "regions", "spills", "files")),
            )
    console.print()
    console.print(table)


def _show_next(console: Console, directory: str | None) -> None:
    console.print()
    if directory is None:
        hint = f"The files went with the job. To keep and look into some:  {_command('demo --keep')}"
        console.print(hint, soft_wrap=True)  # on one line, so that the command can be copied
        return
    console.print(f"The files are in {directory}", soft_wrap=True)
    look = _command(f"dump {shlex.quote(os.path.relpath(directory))}")
    console.print(f"Look inside:  {look}", soft_wrap=True)


def _command(arguments: str) -> str:
    """How to call this program from where the user is."""
    found = shutil.which("sortshuffle") or not os.path.exists(sys.argv[0])
    program = "sortshuffle" if found else shlex.quote(os.path.relpath(sys.argv[0]))
    return f"{program} {arguments}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position == 0 or name == "most of it" else "right")
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
