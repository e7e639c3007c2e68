"""The report on an application, which the driver has written when the application ends.

``spark.sortshuffle.report`` names the directory. The first frame or RDD whose settings have it sees to it
that the report is written (`note_use`). Where an application has none, the shuffle manager's plugin does it
(``ApplicationReport.java``).

Another Python writes the page (`cli.application_report`), from what Spark says of its stages, what tasks have
reported, and the map outputs that are there. It runs before the SparkContext stops, because map outputs end
with it. A failure is only a warning, because the job itself is done.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext

from sortshuffle import calls
from sortshuffle.errors import UnsupportedError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.homes.environment import environment
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import PREFIX, Options
from sortshuffle.spark.manager.jar_methods import jar_method
from sortshuffle.spark.session.application_end import ApplicationEnd

OPTION = f"{PREFIX}report"
PROGRAM = "sortshuffle.cli.application_report"
SECONDS = 300  # for the page: samples of the rows of every exchange are read
MOST_CROSSINGS = 1000  # sentences

PythonStages = Callable[[], Iterable[Any]]


@dataclass(slots=True)
class _ApplicationReport:
    """What the report on an application needs. ``python_stages``: returns the totals of each stage, as
    `worker.reports` has them. ``key``: of encrypted files."""

    context: SparkContext
    application: str
    directory: str
    python_stages: PythonStages
    key: EncryptionKey | None
    crossings: dict[str, None] = field(default_factory=dict)  # an ordered set

    def write(self) -> None:
        """Have the report written. Warns if it cannot be."""
        _reports.pop(self.application, None)
        try:
            done = subprocess.run(
                [sys.executable, "-m", PROGRAM],
                input=json.dumps(self._document()).encode(),
                check=True,
                timeout=SECONDS,
                capture_output=True,
                # modules of the working directory must not stand in for others (Python 3.10 has no such way)
                env={**environment(), "PYTHONSAFEPATH": "1"},
            )
        except Exception as error:  # of Py4J, of the system, or of the program
            if calls.exists(os.path.join(self.directory, f"{self.application}.html")):
                return  # the context was stopped in the JVM, where the manager's plugin has written it
            text = f"there is no report on this application in {self.directory}: {_reason(error)}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        else:
            with suppress(OSError, ValueError, AttributeError):  # there may be no standard error any more
                print(done.stdout.decode(errors="replace").strip(), file=sys.stderr)

    def _document(self) -> dict[str, Any]:
        context: Any = self.context
        document = json.loads(jar_method("ApplicationReport", "document")(context._jsc.sc()))
        document["settings"][OPTION] = self.directory
        totals = list(self.python_stages())
        document["python_stages"] = [_stage(total) for total in totals]
        document["directories"] = sorted({each for total in totals for each in total.directories})
        document["crossings"] = list(self.crossings)
        document["key"] = self.key.secret.hex() if self.key else ""
        return dict(document)


_reports: dict[str, _ApplicationReport] = {}  # by application, until they are written
_lock = threading.Lock()  # of _reports


def note_use(
    context: SparkContext | None,
    options: Options,
    application: str,
    python_stages: PythonStages,
    key: EncryptionKey | None,
) -> bool:
    """Note that a frame or an RDD is made. Return whether this is the first whose settings want a report.
    ``context``: None over Spark Connect, whose client does not know the end of the application.

    Raises `UnsupportedError` if the report could not be drawn: now, and not when the job is done.
    """
    if not options.report or context is None:
        return False
    with _lock:
        if application in _reports:
            return False
        if importlib.util.find_spec("matplotlib") is None:
            raise UnsupportedError(
                f"{OPTION} wants a report, which needs matplotlib: pip install 'sortshuffle[report]'"
            )
        report = _ApplicationReport(context, application, options.report, python_stages, key)
        _reports[application] = report
    ApplicationEnd.of(context, application).before(report.write)
    return True


def note_crossing(text: str) -> None:
    """Note where rows cross, or why not, for the reports of this process."""
    for report in list(_reports.values()):
        if len(report.crossings) < MOST_CROSSINGS:
            report.crossings[text] = None


def _reason(error: Exception) -> str:
    """Return one line on a failure: what the program said last, or what the JVM said first."""
    said = getattr(error, "stderr", None)
    if said:
        return str(said.decode(errors="replace").strip().splitlines()[-1])
    java = getattr(error, "java_exception", None)
    with suppress(Exception):  # the JVM may have ended
        return str(java.toString() if java is not None else error).strip().splitlines()[0]
    return repr(error)


def _stage(total: Any) -> dict[str, Any]:
    outputs = {number: _figures(metrics) for number, metrics in total.outputs.items()}
    return {
        "stage": total.stage,
        "tasks": total.tasks,
        "wall": total.wall,
        "outputs": outputs,
        **_figures(total.metrics),
    }


def _figures(metrics: TaskMetrics) -> dict[str, Any]:
    return {"counts": dict(metrics.counts), "seconds": dict(metrics.seconds)}
