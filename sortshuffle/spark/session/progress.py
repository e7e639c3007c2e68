"""Progress bars for running stages, where nobody would see any.

In a terminal Spark draws its own, on the standard error of the JVM, if ``spark.ui.showConsoleProgress`` is
true. Under ``spark-submit`` it is not, so `configure` sets it (`wants_sparks_bars`).

In a notebook Spark's are lines of text, if the notebook catches them at all. So here a thread asks Spark
which stages run (`SparkContext.statusTracker`), and draws them below the cell.

Rules
* A stage is drawn when it has run for a second. Bars vanish when nothing runs.
* Bars are never the reason why something fails. If Spark fails to answer several times, the thread ends.
* The thread ends with Python, or is waited for before the SparkContext stops, but not for long.
"""

from __future__ import annotations

import html
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import SparkContext

from sortshuffle import calls
from sortshuffle.options import PREFIX
from sortshuffle.spark.manager.launch import GATEWAY
from sortshuffle.spark.session.application_end import ApplicationEnd

OPTION = f"{PREFIX}progress"
SPARKS_BARS = "spark.ui.showConsoleProgress"
PERIOD = 0.5  # seconds from one look to the next, which takes a few milliseconds
DELAY = 1.0  # seconds: a stage that takes no longer needs no bar
MOST_STAGES = 3  # drawn at once
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

    def show(self, stages: Sequence[StageProgress], more: int) -> None:
        """Draw the stages in place of those before, and how many more there are. Without any, leave
        nothing."""

    def close(self) -> None:
        """Draw nothing any more."""


# ---- where ------------------------------------------------------------------------------------------------


def wants_sparks_bars(settings: Mapping[str, str]) -> bool:
    """Return whether a session that is about to be created should have Spark's own bars. ``settings``: those
    that it has so far. What the user has set stays."""
    is_off = settings.get(OPTION, "auto").strip().lower() != "auto"
    if is_off or SPARKS_BARS in settings or in_notebook():
        return False
    try:
        return _jvms_error_is_terminal() if GATEWAY in os.environ else sys.stderr.isatty()
    except (AttributeError, ValueError, OSError):  # there is none, or it is closed
        return False


def _jvms_error_is_terminal() -> bool:
    """Under ``spark-submit``, Python's own standard error is a pipe to the JVM, which started it."""
    return calls.readlink(f"/proc/{os.getppid()}/fd/2").startswith(("/dev/pts/", "/dev/tty"))


def in_notebook() -> bool:
    """Return whether Python is a notebook's."""
    return notebook_shell() is not None


def notebook_shell() -> Any:
    """Return the shell of IPython if it belongs to a notebook; None otherwise."""
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


class NotebookDisplay:
    """Draws below the cell that runs. A cell has one output for all its bars, which is empty when it ends.

    The thread of the cell and that of the watcher call it. ``_lock`` is held while they draw."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._lock = threading.Lock()
        self._handle: Any = None  # of the output
        self._cell: int | None = None  # the number of the output's cell
        self._is_drawn = False
        shell.events.register("post_run_cell", self._cell_ended)

    def show(self, stages: Sequence[StageProgress], more: int) -> None:
        with self._lock:
            if not stages:
                self._clear()
                return
            cell = self._shell.execution_count
            if cell != self._cell:
                self._clear()
                self._handle, self._cell = None, cell
            self._draw(_drawing(stages, more))
            self._is_drawn = True

    def close(self) -> None:
        with suppress(ValueError):  # it was closed before
            self._shell.events.unregister("post_run_cell", self._cell_ended)

    def _cell_ended(self, result: Any) -> None:
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._is_drawn:
            self._draw({"text/html": "", "text/plain": ""})
            self._is_drawn = False

    def _draw(self, drawing: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(drawing, raw=True, display_id=True)
        else:
            self._handle.update(drawing, raw=True)


def _drawing(stages: Sequence[StageProgress], more: int) -> dict[str, str]:
    """Return the bars by type, for front ends with HTML and for others."""
    lines = [f"{stage.count}, {stage.label}" for stage in stages]
    return {
        "text/html": "".join(map(_bar, stages)) + (f"<div>{_rest(more)}</div>" if more else ""),
        "text/plain": "\n".join([*lines, *([_rest(more)] if more else [])]),
    }


def _bar(stage: StageProgress) -> str:
    return (
        f'<div><progress value="{stage.done}" max="{max(stage.tasks, 1)}"></progress>'
        f" {html.escape(stage.count)}, {html.escape(stage.label)}</div>"
    )


def _rest(more: int) -> str:
    return f"and {more} more stage{'s' * (more > 1)}"


# ---- the thread -------------------------------------------------------------------------------------------

_watched: set[tuple[str, int]] = set()  # applications, by process: a forked one has its parent's
_lock = threading.Lock()  # of _watched


def watch(context: SparkContext | None, option: str, application: str) -> None:
    """Draw the stages of an application from now on, if this is a notebook. ``context``: None over Spark
    Connect, whose client has bars of its own. ``option``: the value of `OPTION`."""
    key = application, os.getpid()
    if context is None or option.strip().lower() != "auto" or key in _watched or not in_notebook():
        return
    with _lock:
        if key in _watched:
            return
        _watched.add(key)
    try:
        watcher = Watcher(context.statusTracker(), NotebookDisplay(notebook_shell()))
        watcher.start()
        ApplicationEnd.of(context, application).before(watcher.end)
    except Exception as error:  # such as a system that starts no more threads
        _log.debug("there are no bars: %r", error)


class Tracker(Protocol):
    """What is asked of `pyspark.StatusTracker`."""

    def getActiveStageIds(self) -> list[int]: ...

    def getStageInfo(self, stageId: int) -> Any: ...


class Watcher:
    """Looks which stages run, and draws them."""

    def __init__(
        self, tracker: Tracker, display: Display, period: float = PERIOD, delay: float = DELAY
    ) -> None:
        self._tracker = tracker
        self._display = display
        self._period = period
        self._delay = delay
        self._began: dict[int, float] = {}  # when a stage was seen first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sortshuffle-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the thread, which clears its bars, and wait for that, but not for long."""
        self._ended.set()
        self._thread.join(PATIENCE)
        self._display.close()

    def _run(self) -> None:
        errors = 0
        while errors < MOST_ERRORS and not self._ended.wait(self._period):
            errors = 0 if self._drawn(self._look) else errors + 1
        self._drawn(lambda: ([], 0))

    def _drawn(self, look: Callable[[], tuple[list[StageProgress], int]]) -> bool:
        """Draw what a look finds. Return whether that went well."""
        try:
            self._display.show(*look())
        except Exception as error:  # of Py4J, or of the notebook
            _log.debug("bars cannot be drawn: %r", error)
            return False
        return True

    def _look(self) -> tuple[list[StageProgress], int]:
        """Return the stages that have run for some time, those that began first, and how many more."""
        now = time.monotonic()
        active = self._tracker.getActiveStageIds()
        self._began = {number: self._began.get(number, now) for number in active}
        old = [number for number in active if now - self._began[number] >= self._delay]
        in_order = sorted(old, key=lambda number: (self._began[number], number))
        found = [(number, self._tracker.getStageInfo(number)) for number in in_order[:MOST_STAGES]]
        stages = [
            StageProgress(number, str(info.name), info.numCompletedTasks, info.numTasks, info.numFailedTasks)
            for number, info in found
            if info is not None
        ]
        return stages, len(in_order) - len(found)
