"""Progress bars: Spark's in a real terminal, and ours in a real notebook's Python. The tasks of a stage wait
for a file, which the test makes when it has seen the stage's bar."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from engine import ENVIRONMENT

from sortshuffle.spark.session import progress
from sortshuffle.spark.session.progress import LONGEST_NAME, StageProgress, Watcher, wants_sparks_bars

PATIENCE = 120  # seconds
SESSION = """
import os, time
import sortshuffle
from pyspark.sql import SparkSession
spark = sortshuffle.session(
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map={settings})
)
"""
JOB = """
df = spark.range(0, 100, 1, 4)
def wait(batches):
    yield from batches
    while not os.path.exists({path!r}):
        time.sleep(0.05)
print(df.mapInArrow(wait, df.schema).count())
"""


class Terminal:
    """A program whose standard error is a terminal."""

    def __init__(self, command: list[str]) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.shown = ""
        self.program = subprocess.Popen(
            command,
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

    def wait_for(self, text: str) -> None:
        """Until it is shown, the program ends, or patience does."""
        until = time.monotonic() + PATIENCE
        while text not in self.shown and time.monotonic() < until and self.read():
            pass

    def finish(self) -> str:
        """Return what the program printed."""
        self.wait_for("nothing shows this")
        os.close(self._ours)
        try:
            return self.program.communicate(timeout=PATIENCE)[0]
        finally:
            self.program.kill()


def test_spark_submit_shows_sparks_bars(tmp_path: Path) -> None:
    path, job = tmp_path / "go", tmp_path / "job.py"
    job.write_text(SESSION.format(settings={}) + JOB.format(path=str(path)) + "spark.stop()\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    terminal = Terminal([str(submit), str(job)])
    terminal.wait_for("[Stage ")
    path.touch()
    assert terminal.finish() == "100\n", terminal.shown[-2000:]
    assert "[Stage " in terminal.shown


@pytest.mark.parametrize(
    ("is_terminal", "settings", "are_wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {progress.OPTION: "off"}, False),
        (True, {progress.SPARKS_BARS: "false"}, False),
        (True, {progress.SPARKS_BARS: "true"}, False),
    ],
)
def test_sparks_bars_are_turned_on_where_somebody_looks_on(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, settings: dict[str, str], are_wanted: bool
) -> None:
    monkeypatch.delenv(progress.GATEWAY, raising=False)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: is_terminal)
    assert wants_sparks_bars(settings) == are_wanted


def test_without_standard_error_nobody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.sys, "stderr", None)
    assert not wants_sparks_bars({})


def cells(path: Path, *written: str) -> list[dict[str, Any]]:
    """Run the cells in a notebook. Return what each showed and printed."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("notebook_client.py"), path],
        input=json.dumps(written),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_notebook_shows_the_stage_below_the_cell_until_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "go"
    session, job, other, _ = cells(
        path, SESSION.format(settings={}), JOB.format(path=str(path)), "print(1)", "spark.stop()"
    )
    assert session == {"shown": [], "printed": ""}
    assert other == {"shown": [], "printed": "1\n"}
    assert job["printed"] == "100\n"
    first, *_, last = job["shown"]
    assert re.match(r'<div><progress value="\d" max="4"></progress> \d/4 tasks, stage \d+: ', first)
    assert last == ""


def test_bars_can_be_turned_off(tmp_path: Path) -> None:
    off = "import threading\nprint([t.name for t in threading.enumerate() if 'progress' in t.name])\n"
    begin = SESSION.format(settings={"spark.sortshuffle.progress": "off"})
    (cell,) = cells(tmp_path / "go", begin + off + "spark.stop()\n")
    assert cell == {"shown": [], "printed": "[]\n"}


# ---- the thread -------------------------------------------------------------------------------------------


class Stages:
    """A tracker of stages, and the display of what a watcher makes of them."""

    def __init__(self, *looks: list[int]) -> None:
        self._looks = [*looks]
        self.drawn: list[tuple[list[int], int]] = []
        self.has_drawn = threading.Event()
        self.is_closed = False

    def getActiveStageIds(self) -> list[int]:
        if not self._looks:
            raise ConnectionError("the JVM has ended")
        return self._looks.pop(0)

    def getStageInfo(self, stageId: int) -> Any:
        names = ("name", "numCompletedTasks", "numTasks", "numFailedTasks")
        return SimpleNamespace(**dict(zip(names, (f"stage {stageId}", 1, 2, 0), strict=True)))

    def show(self, stages: Sequence[StageProgress], more: int) -> None:
        self.drawn.append(([stage.number for stage in stages], more))
        self.has_drawn.set()

    def close(self) -> None:
        self.is_closed = True


def test_stages_are_drawn_in_the_order_in_which_they_began_and_then_cleared() -> None:
    stages = Stages([5], [5, 3], [3, 5], [9, 8, 7, 6, 5])
    watcher = Watcher(stages, stages, period=0.001, delay=0)
    watcher.start()
    watcher._thread.join(PATIENCE)  # Spark does not answer any more
    assert stages.drawn == [([5], 0), ([5, 3], 0), ([5, 3], 0), ([5, 6, 7], 2), ([], 0)]


def test_stages_that_have_just_begun_are_not_drawn() -> None:
    stages = Stages([5], [5])
    watcher = Watcher(stages, stages, period=0.001, delay=1000)
    watcher.start()
    watcher._thread.join(PATIENCE)
    assert stages.drawn == [([], 0)] * 3


def test_the_end_clears_what_is_drawn() -> None:
    stages = Stages(*[[5]] * 1_000_000)
    watcher = Watcher(stages, stages, period=0.001, delay=0)
    watcher.start()
    assert stages.has_drawn.wait(PATIENCE)
    watcher.end()
    assert stages.drawn[0] == ([5], 0)
    assert stages.drawn[-1] == ([], 0)
    assert stages.is_closed
    assert not watcher._thread.is_alive()


def test_a_stage_is_named_and_counted() -> None:
    stage = StageProgress(3, "x" * 100, 5, 9, 0)
    assert stage.label == f"stage 3: {'x' * LONGEST_NAME}..."
    assert (stage.count, StageProgress(3, "x", 5, 9, 2).count) == ("5/9 tasks", "5/9 tasks, 2 failed")


def test_names_in_a_notebook_are_only_text() -> None:
    drawn = progress._drawing([StageProgress(3, "<script>", 1, 2, 0)], 0)
    assert drawn == {
        "text/html": '<div><progress value="1" max="2"></progress> 1/2 tasks, stage 3: &lt;script&gt;</div>',
        "text/plain": "1/2 tasks, stage 3: <script>",
    }
    more = progress._drawing([StageProgress(3, "x", 1, 2, 0)], 2)
    assert more["text/html"].endswith("<div>and 2 more stages</div>")
    assert more["text/plain"] == "1/2 tasks, stage 3: x\nand 2 more stages"
