"""What an application did, as a report shows it: Spark's stages, what Python stages say of themselves, and
where rows went from Spark to Python or back.

`ApplicationRun.of` reads the document that the driver sends when its application ends. Its stages are as
Spark's own REST API writes them. A stage that is missing there was forgotten by Spark
(``spark.ui.retainedStages``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sortshuffle.metrics import TaskMetrics

OWN_NAME = "sortshuffle "  # what Spark's names of this package's stages begin with


@dataclass(frozen=True, slots=True)
class SparkStage:
    """An attempt of a stage of Spark's. ``begin``, ``end``: seconds after the application began; ``end`` is
    that of the report if the stage did not end. ``task_seconds``: the sum over its tasks. ``read_bytes``,
    ``written_bytes``: input or output, and shuffles. ``spilled_bytes``: what Spark's operators wrote to disk
    because their memory was full."""

    number: int
    attempt: int
    name: str
    status: str
    tasks: int
    failed_tasks: int
    begin: float
    end: float
    task_seconds: float
    read_bytes: int
    written_bytes: int
    spilled_bytes: int

    @property
    def is_own(self) -> bool:
        """Whether the stage writes exchanges of frames or RDDs."""
        return self.name.startswith(OWN_NAME)

    @property
    def label(self) -> str:
        return f"{self.number}" + (f", attempt {self.attempt + 1}" if self.attempt else "")


@dataclass(frozen=True, slots=True)
class PythonStage:
    """The sums of the tasks of a stage of frames or RDDs. ``wall``: seconds. ``outputs``: the figures of each
    exchange that it writes, by number."""

    number: int
    tasks: int
    wall: float
    metrics: TaskMetrics
    outputs: Mapping[int, TaskMetrics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApplicationRun:
    """An application that ended. ``seconds``: how long it ran. ``stages``: in the order in which they began.
    ``skipped``: stages that did not run. ``crossings``: sentences on where rows crossed."""

    identifier: str
    name: str
    seconds: float
    stages: tuple[SparkStage, ...]
    skipped: int
    python_stages: tuple[PythonStage, ...] = ()
    crossings: tuple[str, ...] = ()

    @staticmethod
    def of(document: Mapping[str, Any], now: float) -> ApplicationRun:
        """Read the driver's document. ``now``: seconds since 1970. Raises KeyError, TypeError or ValueError
        if it is another one."""
        application = document["application"]
        started = application["attempts"][0]["startTimeEpoch"] / 1000
        ran = [each for each in document["stages"] if each.get("submissionTime")]
        stages = [_spark_stage(each, started, now) for each in ran]
        return ApplicationRun(
            str(application["id"]),
            str(application["name"]),
            max(0.0, now - started),
            tuple(sorted(stages, key=lambda stage: (stage.begin, stage.number, stage.attempt))),
            len(document["stages"]) - len(ran),
            tuple(map(_python_stage, document.get("python_stages", ()))),
            tuple(map(str, document.get("crossings", ()))),
        )

    @property
    def steps(self) -> list[tuple[str, float]]:
        """The steps of all Python stages and their seconds, the longest first."""
        whole = TaskMetrics()
        for stage in self.python_stages:
            whole.merge(stage.metrics)
        return whole.slowest()


def _spark_stage(stage: Mapping[str, Any], started: float, now: float) -> SparkStage:
    ended = stage.get("completionTime")
    return SparkStage(
        stage["stageId"],
        stage["attemptId"],
        stage["name"],
        stage["status"].lower(),
        stage["numTasks"],
        stage["numFailedTasks"],
        max(0.0, _time(stage["submissionTime"]) - started),
        max(0.0, (_time(ended) if ended else now) - started),
        stage["executorRunTime"] / 1000,
        stage["inputBytes"] + stage["shuffleReadBytes"],
        stage["outputBytes"] + stage["shuffleWriteBytes"],
        stage["diskBytesSpilled"],
    )


def _time(text: str) -> float:
    """Return the seconds since 1970 of a time that ends with GMT."""
    return datetime.fromisoformat(text.replace("GMT", "+00:00")).timestamp()


def _python_stage(stage: Mapping[str, Any]) -> PythonStage:
    outputs = {int(number): _metrics(figures) for number, figures in stage["outputs"].items()}
    return PythonStage(stage["stage"], stage["tasks"], stage["wall"], _metrics(stage), outputs)


def _metrics(figures: Mapping[str, Any]) -> TaskMetrics:
    return TaskMetrics(defaultdict(float, figures["seconds"]), Counter(figures["counts"]))
