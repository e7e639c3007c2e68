"""Progress bars for running stages, in a terminal and in notebooks where Spark's own are not seen.

Spark draws its bars on the standard error of the JVM (``spark.ui.showConsoleProgress``). In a notebook that
is not the notebook's. So here a thread asks Spark which stages run (`SparkContext.statusTracker`), and draws
them: in a terminal on one line of standard error, in a notebook below the cell.

Rules
* A stage is drawn when it has run for a second. Bars vanish when nothing runs.
* Nothing is drawn unless somebody looks on: standard error is a terminal, or Python is a notebook's.
* Bars are never the reason why a job fails. Where Spark no longer answers, the thread ends.
* The thread ends before the SparkContext stops, or with Python.
"""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import SparkContext

from sortshuffle.options import PREFIX
from sortshuffle.spark.session.application_end import ApplicationEnd
from sortshuffle.spark.session.requirements import context_settings

OPTION = f"{PREFIX}progress"
SPARKS_BARS = "spark.ui.showConsoleProgress"
PERIOD = 0.5  # seconds from one look to the next, which takes a few milliseconds
DELAY = 1.0  # seconds: a stage that takes no longer needs no bar
MOST_STAGES = 3  # drawn at once in a notebook
LONGEST_NAME = 60  # characters of a stage's name
MOST_ERRORS = 3  # looks in a row that fail, until the thread ends
PATIENCE = 2.0  # seconds for the thread to end

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage that runs. ``done``: of its ``tasks``, so many have ended well."""

    number: int
    name: str
    done: int
    tasks: int
    failed: int

    @property
    def label(self) -> str:
        cut = self.name if len(self.name) <= LONGEST_NAME else f"{self.name[:LONGEST_NAME]}..."
        return f"stage {self.number}: {cut}"

    @property
    def count(self) -> str:
        return f"{self.done}/{self.tasks} tasks" + (f", {self.failed} failed" if self.failed else "")


class Display(Protocol):
    """Where bars are drawn."""

    def show(self, stages: Sequence[StageProgress]) -> None:
        """Draw the stages in place of those before. Without any, leave nothing."""


# ---- where ------------------------------------------------------------------------------------------------


def display_for(settings: Mapping[str, str]) -> Display | None:
    """Return where to draw; None if nobody looks on. ``settings``: of the SparkContext."""
    if _notebook_shell() is not None:
        return NotebookDisplay()
    has_sparks = settings.get(SPARKS_BARS, "false").strip().lower() == "true"
    if has_sparks or not sys.stderr.isatty():
        return None
    return TerminalDisplay()


def _notebook_shell() -> Any:
    """Return the shell of IPython if it belongs to a notebook; None otherwise."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


class TerminalDisplay:
    """Draws the stage that has run longest, on one line."""

    def __init__(self) -> None:
        self._progress: Any = None

    def show(self, stages: Sequence[StageProgress]) -> None:
        if not stages:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
            return
        if self._progress is None:
            self._progress = _progress()
            self._progress.add_task("", label="", count="")
            self._progress.start()
        first, more = stages[0], len(stages) - 1
        count = first.count + (f"; {more} more stage{'s' * (more > 1)}" if more else "")
        (task,) = self._progress.task_ids
        self._progress.update(task, completed=first.done, total=first.tasks, label=first.label, count=count)
        self._progress.refresh()


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    name = TextColumn("{task.fields[label]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    # one line, which nothing but this redraws: what the program prints stays where it is
    return Progress(
        name,
        BarColumn(20),
        TextColumn("{task.fields[count]}", markup=False, table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
        expand=True,
    )


class NotebookDisplay:
    """Draws up to three stages below the cell that runs."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, stages: Sequence[StageProgress]) -> None:
        if not stages and self._handle is None:
            return
        from IPython.display import HTML, display

        drawn = HTML("".join(map(_bar, stages[:MOST_STAGES])) + _rest(len(stages) - MOST_STAGES))
        if self._handle is None:
            self._handle = display(drawn, display_id=True)
        else:
            self._handle.update(drawn)
        if not stages:
            self._handle = None  # the next ones belong to another cell


def _bar(stage: StageProgress) -> str:
    return (
        f'<div><progress value="{stage.done}" max="{max(stage.tasks, 1)}"></progress>'
        f" {html.escape(stage.count)}, {html.escape(stage.label)}</div>"
    )


def _rest(more: int) -> str:
    return f"<div>and {more} more stage{'s' * (more > 1)}</div>" if more > 0 else ""


# ---- the thread -------------------------------------------------------------------------------------------

_watched: set[str] = set()  # applications
_lock = threading.Lock()  # of _watched


def watch(context: SparkContext | None, option: str, application: str) -> None:
    """Draw the stages of an application from now on, where somebody looks on. ``context``: None over Spark
    Connect, whose client has bars of its own. ``option``: the value of `OPTION`."""
    if context is None or option.strip().lower() == "off" or application in _watched:
        return
    display = display_for(context_settings(context))
    if display is None:
        return
    with _lock:
        if application in _watched:
            return
        _watched.add(application)
    watcher = _Watcher(context, display)
    ApplicationEnd.of(context, application).before(watcher.end)
    watcher.start()


class _Watcher:
    """Looks which stages run, and draws them."""

    def __init__(self, context: SparkContext, display: Display) -> None:
        self._tracker = context.statusTracker()
        self._display = display
        self._began: dict[int, float] = {}  # when a stage was seen first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sortshuffle-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the thread, and leave no bar."""
        self._ended.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        errors = 0
        while not self._ended.wait(PERIOD):
            try:
                self._display.show(self._stages())
                errors = 0
            except Exception as error:  # of Py4J, of the terminal or of the notebook
                _log.debug("bars cannot be drawn: %r", error)
                errors += 1
                if errors == MOST_ERRORS:
                    return
        self._display.show([])

    def _stages(self) -> list[StageProgress]:
        """Return the stages that have run for some time, the oldest first."""
        now = time.monotonic()
        active = sorted(self._tracker.getActiveStageIds())
        self._began = {number: self._began.get(number, now) for number in active}
        old = [number for number in active if now - self._began[number] >= DELAY]
        found = [(number, self._tracker.getStageInfo(number)) for number in old]
        return [
            StageProgress(number, str(info.name), info.numCompletedTasks, info.numTasks, info.numFailedTasks)
            for number, info in found
            if info is not None
        ]
