"""One side of a benchmark of whole Spark jobs: a session in a process of its own, driven by JSON lines.

    python side_session.py    < requests, one a line    > answers, one a line

    configuration -> {"seconds": until the session was ready, "manager": ..., "settings": ..., "java": ...}
    {"kind": ..., "arguments": ...} -> what one run of that job took, and the digest of its result
    end of the input -> the session ends

The first line is the configuration: `has_manager`, `has_frames` and `has_session` (what of ours the side
has), `master`, `heap`, `directory`, `settings`, and `disks`, the directories of a cluster's hosts.

What is timed is the job alone. CPU time is that of this process and of all that descend from it
(`process_tree`), between two looks, right before and right after. Afterwards, outside of that, the job's
shuffles are removed as Spark removes them, so that no run finds the files of earlier ones; what that took is
told too.

Nothing but answers goes to the standard output: what Spark and others print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import manager_jobs
import python_jobs
from jobs import Job
from machine import machine_seconds
from process_tree import MARKER, ProcessTree, become_subreaper, reap_orphans, used
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.spark.session.requirements import address_this_host

MANAGER = "spark.shuffle.manager"
SPARKS_FILES = "shuffle_"  # how the names of Spark's own shuffle files begin
SWITCH = "spark.sortshuffle.manager"  # on: an error where the manager cannot be


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run of a job took. ``wall``, ``cpu``: seconds. ``removing``: CPU seconds for the removal of
    its shuffles. ``foreign``: CPU seconds that the machine spent on other things meanwhile, ``stolen``: that
    its host took from it. ``steps``: task seconds by step, of a job of frames or RDDs. ``sparks_files``: how
    many files of Spark's own shuffle the job left. The rest: bytes, by the metrics of the job's tasks."""

    wall: float
    cpu: float
    removing: float
    foreign: float
    stolen: float
    digest: str
    steps: dict[str, float]
    sparks_files: int
    written: int
    read: int
    memory_spilled: int
    disk_spilled: int


class Session:
    """The session, and what is to be known of it between runs."""

    def __init__(self, config: dict[str, Any]) -> None:
        started = time.perf_counter()
        self.spark = session(config)
        self.seconds = time.perf_counter() - started
        self._has_frames = bool(config["has_frames"])
        # what the jobs of Python stages get: with frames, or a plain form of theirs
        self._jobs_session = sortshuffle.session(self.spark) if config["has_session"] else self.spark
        self._directories = [config["directory"], *config["disks"]]
        self._tree = ProcessTree(os.getpid(), os.environ[MARKER])
        self._context = self.spark.sparkContext._jsc.sc()
        self._next_stage = self._next_shuffle = 0

    def about(self) -> dict[str, Any]:
        """What the other end of the pipe records of this session."""
        settings = dict(self.spark.sparkContext.getConf().getAll())
        return {
            "seconds": self.seconds,
            "manager": settings.get(MANAGER, "sort"),
            "settings": {key: value for key, value in sorted(settings.items()) if _is_told(key, value)},
            "java": str(self.spark.sparkContext._jvm.java.lang.System.getProperty("java.version")),
        }

    def run(self, kind: str, arguments: dict[str, Any]) -> Ran:
        job = self._prepare(kind, arguments)
        self._forget_earlier()
        looked, (busy_before, stolen_before) = self._tree.look(), machine_seconds()
        started = time.perf_counter()
        value = job.run()
        wall = time.perf_counter() - started
        cpu, (busy, stolen) = used(looked, self._tree.look()), machine_seconds()
        digest, steps = job.digest(value), job.steps()
        stages, files = self._stages(), sum(map(sparks_files, self._directories))
        looked = self._tree.look()
        self._remove_shuffles()
        removing = used(looked, self._tree.look())
        foreign = max(0.0, busy - busy_before - cpu)
        return Ran(wall, cpu, removing, foreign, stolen - stolen_before, digest, steps, files, **stages)

    def _prepare(self, kind: str, arguments: dict[str, Any]) -> Job:
        if kind in manager_jobs.KINDS:
            return manager_jobs.KINDS[kind](self.spark, **arguments)
        return python_jobs.KINDS[kind](self._jobs_session, self._has_frames, **arguments)

    def _forget_earlier(self) -> None:
        """Stages of the preparation are no part of the run."""
        self._stages()
        reap_orphans({self.spark.sparkContext._gateway.proc.pid})

    def _stages(self) -> dict[str, int]:
        """Sums over the stages that have ended since the last call."""
        self._context.listenerBus().waitUntilEmpty()
        gateway: Any = self.spark.sparkContext._gateway
        no_quantiles = gateway.new_array(gateway.jvm.double, 0)
        found = self._context.statusStore().stageList(None, False, False, no_quantiles, None)
        sums = dict.fromkeys(("written", "read", "memory_spilled", "disk_spilled"), 0)
        latest = self._next_stage
        for at in range(found.size()):  # the newest first
            stage = found.apply(at)
            if stage.stageId() < self._next_stage:
                break
            latest = max(latest, stage.stageId() + 1)
            sums["written"] += stage.shuffleWriteBytes()
            sums["read"] += stage.shuffleReadBytes()
            sums["memory_spilled"] += stage.memoryBytesSpilled()
            sums["disk_spilled"] += stage.diskBytesSpilled()
        self._next_stage = latest
        return sums

    def _remove_shuffles(self) -> None:
        """Do at once, for all shuffles since the last call, what Spark does when it notices that a shuffle is
        not used any more: that is at the next garbage collection after a run, and may be in half an hour."""
        upto = self._context.newShuffleId()
        cleaner = self._context.cleaner().get()
        for shuffle in range(self._next_shuffle, upto):
            cleaner.doCleanupShuffle(shuffle, True)
        self._next_shuffle = upto


def session(config: dict[str, Any]) -> SparkSession:
    """A session as `sortshuffle.configure` makes it. The other side's has the manager switched off by its
    setting, and is the same otherwise."""
    builder = SparkSession.builder.config(SWITCH, "on" if config["has_manager"] else "off")
    builder = sortshuffle.configure(builder).master(config["master"]).appName("sortshuffle bench")
    settings = {
        "spark.driver.memory": config["heap"],
        "spark.local.dir": config["directory"],
        "spark.sql.warehouse.dir": f"{config['directory']}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        **config["settings"],
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    address_this_host(config["master"])
    return builder.getOrCreate()


def sparks_files(directory: str) -> int:
    """How many files of Spark's own shuffle are in its local directories."""
    return sum(name.startswith(SPARKS_FILES) for _, _, names in os.walk(directory) for name in names)


def _is_told(key: str, value: str) -> bool:
    """Whether a setting goes into the record: neither paths do, nor what differs from session to session."""
    words = ("shuffle", "memory", "python", "spark.master", "spark.sql.files", "spark.plugins")
    return any(word in key for word in words) and "/" not in value and not key.endswith(".secret")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # the descriptor is not inherited
    os.dup2(2, 1)
    become_subreaper()
    running = Session(json.loads(sys.stdin.readline()))
    try:
        answer(answers, running.about())
        for line in sys.stdin:
            answer(answers, asdict(running.run(**json.loads(line))))
    finally:
        running.spark.stop()


def answer(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
