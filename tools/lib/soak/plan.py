"""What a soak does, drawn from its seed: applications, their settings, their jobs, faults and their moments.

Application n of a seed is always the same, however long the ones before took.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from soak.work import SHAPES, works

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
JOBS = (4, 7)  # of an application, at least and at most
SECOND_FAULT = 0.25  # share of the jobs with a fault that have one more
FAULTLESS = 0.2  # share of the jobs without any
BY_TASK = 0.75  # share of the faults that come after a task, the others come after a time
LONGEST_DELAY = 4.0  # seconds; most jobs take as long
KILLED = 0.4  # share of the applications whose driver is killed
ENCRYPTED = 0.3  # share of the applications whose files are encrypted
COLLECTED = 0.4  # share of the applications of which is seen that their garbage goes
SKEW, SKEW_OF_HEAVY = 0.2, 0.8  # share of the jobs that divide large partitions; of those with a heavy key


@dataclass(frozen=True, slots=True)
class Kind:
    """Of applications. ``service``, ``disks``: what ``spark.sortshuffle.service`` and ``dir`` say.
    ``has_manager``: whether unmodified jobs are among its jobs. ``faults``: what may happen, with weights.
    ``executors``: which of `EXECUTORS` it may have."""

    service: str
    disks: str
    has_manager: bool
    weight: int
    faults: dict[str, int]
    executors: tuple[str, ...] = ("fixed",)


IDLE = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.initialExecutors": str(len(HOSTS)),
    "spark.dynamicAllocation.maxExecutors": str(len(HOSTS)),
}
EXECUTORS: dict[str, dict[str, str]] = {
    "fixed": {},
    "tracked": {
        **IDLE,
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    },
    "served": IDLE,
}
"""The settings of executors that stay, and of those that go when they are idle: their control rows with them
(tracked), or these are read on through Spark's external shuffle service (served)."""

OF_EXECUTORS = {"executor": 4, "python": 2, "janitor": 2}
PROCESSES = {**OF_EXECUTORS, "service": 3, "supervisor": 2, "both": 2}
NETWORK = {"cut": 3, "stopped": 2, "unreachable": 2}
LOSSES = {"outputs": 2, "damage": 2, "host": 1}

KINDS = {
    "auto": Kind("auto", "", True, 5, {**PROCESSES, **NETWORK, **LOSSES, "full": 1}),
    "frames": Kind("auto", "", False, 2, {**PROCESSES, **NETWORK, **LOSSES}, tuple(EXECUTORS)),
    "disks": Kind(
        "auto",
        "two",
        False,
        2,
        {**PROCESSES, **NETWORK, "outputs": 2, "damage": 2, "full": 8},
        tuple(EXECUTORS),
    ),
    "external": Kind("external", "served", False, 3, {**OF_EXECUTORS, **NETWORK, "administrator": 5}),
    "mount": Kind("auto", "mount", True, 2, {**PROCESSES, **NETWORK}),
}
"""``disks``: empty for Spark's own, two (a small one and a large one), served (by an administrator), mount (a
directory that all hosts see). The manager's map outputs of a host are in a directory that is named after the
machine, so where the hosts share a directory, and a machine, only frames and RDDs can be tried."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``what`` happens to ``host``. When: after ``task`` tasks of the job's stage number ``stage`` (from 0,
    those that run) have finished, or where ``delay`` is not None so many seconds after the job began."""

    what: str
    host: str
    stage: int
    task: int
    delay: float | None

    def when(self) -> str:
        if self.delay is not None:
            return f"after {self.delay:.1f} s"
        return f"after task {self.task} of stage {self.stage}"


@dataclass(frozen=True, slots=True)
class Job:
    """``settings``: of its session."""

    work: str
    shape: str
    settings: tuple[tuple[str, str], ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Application:
    """``kind``: of `KINDS`. ``executors``: of `EXECUTORS`. ``is_killed``: how its driver ends.
    ``is_collected``: whether the files of its frames must go when these are garbage, before it ends."""

    number: int
    kind: str
    executors: str
    is_encrypted: bool
    is_collected: bool
    is_killed: bool
    jobs: tuple[Job, ...]


def application(seed: int, number: int) -> Application:
    draw = random.Random(f"{seed}/{number}")
    kind = draw.choices(list(KINDS), [each.weight for each in KINDS.values()])[0]
    jobs = tuple(_job(draw, KINDS[kind]) for _ in range(draw.randint(*JOBS)))
    executors = draw.choice(KINDS[kind].executors)
    is_encrypted, is_collected, is_killed = (
        draw.random() < share for share in (ENCRYPTED, COLLECTED, KILLED)
    )
    return Application(number, kind, executors, is_encrypted, is_collected, is_killed, jobs)


def _job(draw: random.Random, kind: Kind) -> Job:
    names = [name for name, (door, _) in works.items() if door != "manager" or kind.has_manager]
    work, shape = draw.choice(names), draw.choice(list(SHAPES))
    settings = {"spark.sortshuffle.codec": draw.choice(["lz4", "lz4", "zstd", "none"])}
    if draw.random() < 0.4:  # several regions, and merges of several passes
        settings |= {"spark.sortshuffle.memory": "1m", "spark.sortshuffle.read.memory": "1m"}
    if draw.random() < (SKEW_OF_HEAVY if SHAPES[shape].heavy else SKEW):
        settings |= {"spark.sortshuffle.skew.factor": "2", "spark.sortshuffle.skew.threshold": "64k"}
    count = 0 if draw.random() < FAULTLESS else 2 if draw.random() < SECOND_FAULT else 1
    faults = tuple(_fault(draw, kind, SHAPES[shape].maps) for _ in range(count))
    return Job(work, shape, tuple(settings.items()), faults)


def _fault(draw: random.Random, kind: Kind, maps: int) -> Fault:
    what = draw.choices(list(kind.faults), list(kind.faults.values()))[0]
    delay = None if draw.random() < BY_TASK else round(draw.uniform(0, LONGEST_DELAY), 1)
    return Fault(what, draw.choice(HOSTS), draw.choice((0, 0, 0, 1, 1, 2)), draw.randint(0, maps), delay)
