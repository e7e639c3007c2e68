"""A Spark session in a process of its own that is asked to run jobs (`manager/jobs/session.py`), and what
there is of it in the system: map outputs, processes, directories.

Each session has a directory for everything that it makes, so that what it leaves is seen.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from driver_process import DriverProcess
from engine import ROOT, eventually, open_files
from java_options import submit_arguments

JOBS = Path(__file__).parent / "manager" / "jobs"
PATHS = (JOBS, JOBS.parents[1], JOBS.parents[2], ROOT / "tests", ROOT, ROOT / "tools" / "bench")
PATIENCE = 180.0  # seconds until a job counts as hanging
GONE = 15.0  # seconds after a session's end in which all that it left must go
ON_EXECUTORS = {"spark.executorEnv.PYTHONPATH": os.pathsep.join(map(str, PATHS))}
"""What executors elsewhere need to run the jobs."""
DUMP_ENDS = "JNI global refs"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
MARK = "SORTSHUFFLE_TEST_SESSION"
"""In the environment of all processes of a session, with its directory."""

SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "5",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.default.parallelism": "4",
    "spark.sql.session.timeZone": "America/New_York",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job returned; how many shuffles Spark registered meanwhile, and what the manager decided on
    them."""

    value: Any
    shuffles: int
    decisions: dict[str, int]


class Session(DriverProcess):
    """``directory``: for everything that it makes, and its log. ``is_ours``: with the manager.
    ``environment``: more variables of its processes. The caller stops or kills it."""

    def __init__(
        self,
        directory: Path,
        is_ours: bool,
        settings: Mapping[str, str] = {},
        environment: Mapping[str, str] = {},
    ) -> None:
        self.directory = directory
        self.local = directory / "local"
        self.temporary = directory / "t"
        for each in (self.local, self.temporary):
            each.mkdir(parents=True)
        chosen = {
            **SETTINGS,
            "spark.sortshuffle.manager": "on" if is_ours else "off",
            "spark.local.dir": str(self.local),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **settings,
        }
        self._jobs = 0
        super().__init__(
            [sys.executable, str(JOBS / "session.py"), json.dumps(chosen)],
            directory / "log",
            {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
                "TMPDIR": str(self.temporary),
                MARK: str(directory),
                "PYSPARK_SUBMIT_ARGS": submit_arguments("off", has_manager=is_ours),
                **environment,
            },
        )

    def _value(self, answer: dict[str, Any]) -> Answer:
        return Answer(answer["value"], answer["shuffles"], answer["decisions"])

    @property
    def jvm(self) -> int:
        """The driver's JVM."""
        return int(self.about["jvm"])

    def start(self, job: str, **arguments: Any) -> Future[Answer]:
        """Ask for a job; those that were asked for before come first."""
        self.about  # noqa: B018  (so that a driver that does not start says why)
        self._jobs += 1
        self.last_directory.mkdir()
        return self.request(job=job, directory=str(self.last_directory), arguments=arguments)

    @property
    def last_directory(self) -> Path:
        """Of the job that was asked for last."""
        return self.directory / f"job-{self._jobs}"

    def run(self, job: str, **arguments: Any) -> Answer:
        """Raises `JobError` if it failed, TimeoutError if it hangs."""
        return self.start(job, **arguments).result(PATIENCE)

    # what there is of it

    def map_outputs(self) -> list[Path]:
        """Finished data files of the manager."""
        return sorted(self._files("exchange-*.data"))

    def outputs_of(self, shuffle: int) -> list[Path]:
        """Those of one shuffle, by map index, in whichever directories they are."""
        found = [path for path in self.map_outputs() if path.name.startswith(f"exchange-{shuffle}-")]
        return sorted(found, key=lambda path: int(path.name.split("-")[3]))

    def unfinished(self) -> list[Path]:
        return sorted(self._files("*.partial"))

    def _files(self, pattern: str) -> Iterator[Path]:
        for parent, _, names in os.walk(self.local):
            if f"{os.sep}sortshuffle{os.sep}" in parent:
                yield from (Path(parent, name) for name in names if Path(name).match(pattern))

    def processes(self) -> list[psutil.Process]:
        """All that have inherited its environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.directory):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def pids(self, word: str) -> list[int]:
        """Of the processes that have a word in their command line."""
        return [each.pid for each in self.processes() if _has_word(each, word)]

    def executors(self, count: int, seconds: float = 30.0) -> list[int]:
        """The processes of the executors, once there are ``count``; within so many seconds."""
        found: list[int] = []

        def are_there() -> bool:
            # while an executor starts a process, the child looks like one, too
            processes = [each for each in self.processes() if _has_word(each, EXECUTOR)]
            pids = {each.pid for each in processes}
            found[:] = [each.pid for each in processes if _parent(each) not in pids]
            return len(found) == count

        eventually(are_there, f"{count} executors", seconds)
        return found

    def engine(self) -> int:
        """The process of the one engine, which takes a moment to start."""
        eventually(lambda: len(self.pids("sortshuffle.service.host.process")) == 1, "the engine runs")
        return self.pids("sortshuffle.service.host.process")[0]

    def frame_memories(self) -> int:
        """How many memories for frames the driver's JVM has mapped."""
        return Path(f"/proc/{self.jvm}/maps").read_text().count("memfd:sortshuffle-frames")

    def deleted_files(self) -> list[str]:
        """Map outputs that the engine has open and that have no name any more."""
        opened = open_files("/", self.engine())
        return [path for path in opened if path.endswith("(deleted)") and "exchange-" in path]

    def threads_in(self, method: str) -> int:
        """How many threads of the driver's JVM are in a method, by a dump of all, which goes into the log."""
        before = self.log.stat().st_size
        os.kill(self.jvm, signal.SIGQUIT)

        def dump() -> str:
            with open(self.log, "rb") as opened:
                opened.seek(before)
                return opened.read().decode(errors="replace")

        eventually(lambda: DUMP_ENDS in dump(), "the dump of the threads")
        return sum(method in thread for thread in dump().split("\n\n"))

    def engine_log(self) -> str:
        return "".join(path.read_text() for path in self.temporary.glob("sortshuffle-*/*/service.log"))

    def left(self) -> list[str]:
        """Processes and files that it made and that are still there; Spark's own files do not count."""
        processes = [f"process {each.pid}: {_command(each)}" for each in self.processes()]
        files = [str(path) for path in (*self._files("*"), *self._meetings())]
        return [each for each in processes if not each.endswith(": ")] + files

    def _meetings(self) -> Iterator[Path]:
        # of this module, because a directory may go while it is looked into
        yield from map(Path, glob.glob(f"{glob.escape(str(self.temporary))}/sortshuffle-*/*"))

    def nothing_is_left(self) -> None:
        """Wait until there is nothing, as long as is allowed."""
        try:
            eventually(lambda: not self.left(), "nothing is left", GONE)
        except AssertionError:
            raise AssertionError(f"left after {GONE:g} s: {self.left()}") from None


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[-200:]
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _has_word(process: psutil.Process, word: str) -> bool:
    try:
        return word in process.cmdline()
    except psutil.Error:
        return False
