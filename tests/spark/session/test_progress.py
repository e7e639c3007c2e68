"""Progress bars: in a real terminal, and in a real notebook's Python. A stage's task waits for a file, which
the test makes when it has seen the stage's bar."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine import ENVIRONMENT

from sortshuffle.spark.session import progress
from sortshuffle.spark.session.progress import LONGEST_NAME, StageProgress, display_for

PATIENCE = 120  # seconds
JOB = """
import os, time
import sortshuffle
from pyspark.sql import SparkSession
spark = sortshuffle.session(
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map={settings})
)
df = spark.range(0, 100, 1, 4)
def wait(batches):
    yield from batches
    while not os.path.exists({path!r}):
        time.sleep(0.05)
print(df.mapInArrow(wait, df.schema).count())
"""


def job(path: Path, **settings: str) -> str:
    every = {"spark.ui.showConsoleProgress": "false"}
    every |= {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return JOB.format(settings=every, path=str(path))


class Terminal:
    """A program whose standard error is a terminal."""

    def __init__(self, code: str) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.shown = ""
        self.program = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)

    def read(self) -> bool:
        """Take what is shown. Return whether there may be more."""
        if not select.select([self._ours], [], [], 1)[0]:
            return True
        try:
            more = os.read(self._ours, 1 << 16)
        except OSError:  # the program has ended
            return False
        self.shown += more.decode(errors="replace")
        return bool(more)

    def finish(self) -> str:
        """Return what the program printed."""
        while self.read():
            pass
        os.close(self._ours)
        printed, _ = self.program.communicate(timeout=PATIENCE)
        return printed


def test_a_terminal_shows_the_stage_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "go"
    terminal = Terminal(job(path))
    until = time.monotonic() + PATIENCE
    while "/4 tasks" not in terminal.shown and time.monotonic() < until and terminal.read():
        pass
    path.touch()
    assert terminal.finish() == "100\n"
    assert re.search(r"stage \d+: .+ 0/4 tasks", terminal.shown), terminal.shown[-2000:]
    # the line is cleared when nothing runs
    assert terminal.shown.rstrip("\r\n").endswith(("\x1b[2K", "\x1b[?25h")), repr(terminal.shown[-200:])


def test_bars_can_be_turned_off(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    terminal = Terminal(job(tmp_path / "go", sortshuffle_progress="off"))
    assert terminal.finish() == "100\n"
    assert " tasks" not in terminal.shown


def test_a_notebook_shows_the_stage_below_the_cell(tmp_path: Path) -> None:
    path = tmp_path / "go"
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("notebook_client.py"), path],
        input=job(path) + "spark.stop()\n",
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["printed"] == "100\n"
    first, *_, last = found["shown"]
    assert re.match(r'<div><progress value="\d" max="4"></progress> \d/4 tasks, stage \d+: ', first)
    assert last == ""


@pytest.mark.parametrize(
    ("is_terminal", "sparks", "is_drawn"),
    [(True, "false", True), (True, "true", False), (False, "false", False), (True, None, True)],
)
def test_nothing_is_drawn_where_spark_does_or_nobody_looks_on(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, sparks: str | None, is_drawn: bool
) -> None:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: is_terminal)
    settings = {} if sparks is None else {progress.SPARKS_BARS: sparks}
    assert (display_for(settings) is not None) == is_drawn


def test_a_stage_is_named_and_counted() -> None:
    stage = StageProgress(3, "x" * 100, 5, 9, 0)
    assert stage.label == f"stage 3: {'x' * LONGEST_NAME}..."
    assert (stage.count, StageProgress(3, "x", 5, 9, 2).count) == ("5/9 tasks", "5/9 tasks, 2 failed")


def test_names_in_a_notebook_are_only_text() -> None:
    drawn = progress._bar(StageProgress(3, "<script>", 1, 2, 0))
    assert drawn == '<div><progress value="1" max="2"></progress> 1/2 tasks, stage 3: &lt;script&gt;</div>'
    assert [progress._rest(number) for number in (0, 1, 2)] == [
        "",
        "<div>and 1 more stage</div>",
        "<div>and 2 more stages</div>",
    ]
