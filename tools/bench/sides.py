"""The two sides of a benchmark of whole Spark jobs: their sessions' processes, and requests to them.

A `SessionProcess` is started, asked and ended here; `side_session` is what runs in it. Its processes are
known by a mark in their environment, so that at the end nothing of it is left, or is named.

Both sides get the same memory in total: Spark's side has as heap what ours has as heap and for its engine.
Frames and RDDs have no engine: both sides have the same heap then, and what Python's workers take is shown.
On a cluster that holds for each host, and each side has a cluster of its own: its processes have the side's
mark, so they are measured with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from control_group import control_group
from harness import JOBS
from process_tree import MARKER, ProcessTree, used
from side_session import Ran

from sortshuffle.spark.session.requirements import ALLOCATOR_VARIABLE

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

from cluster import Cluster, ClusterError, signal_if_there

OURS, SPARK = "ours", "Spark"
MANAGER_NAME = "SortMergeShuffleManager"
MIB = 1 << 20
# What the engine may take beside the JVM: the aim for peak memory is Spark's + 256 MiB.
ENGINE_MEMORY = 256 * MIB
ANSWER_SECONDS = 3600.0  # until a side that does not answer is given up
ENDING_SECONDS = 60.0  # for all processes of a side to end
# A run begins when both sides have spent less than that in the window, or after a while in any case.
QUIET_WINDOW, QUIET_CPU, QUIET_PATIENCE = 0.1, 0.02, 5.0  # seconds
DRIVER_MEMORY = 1024 * MIB  # of a driver whose tasks run on a cluster


class BenchError(Exception):
    """A benchmark cannot go on; the text says why."""


class Door(Enum):
    """What of ours a side has: the shuffle manager, under jobs of PySpark; frames and RDDs, in jobs that are
    written with them; or a session of `sortshuffle.session`, in jobs of PySpark's. With the last two a side
    has Spark's own shuffle manager."""

    MANAGER = "manager"
    FRAMES = "frames"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Setup:
    """What the sessions of a case are started with. ``door``: what of ours our side has. ``against``: what of
    ours the other side has, which is plain Spark otherwise. ``memory``: of heap and engine, bytes; on a
    cluster, of each host. ``masters``: of sides that have another one. ``hosts``: of each cluster, with
    a core each; none: the tasks run in the driver. ``container``: bytes that all processes of a side may have
    with their page cache; none: no limit. ``own_settings``: of our side alone."""

    memory: int = 4096 * MIB
    hosts: int = 0
    container: int = 0
    door: Door = Door.MANAGER
    against: Door | None = None
    master: str = "local[2]"
    settings: tuple[tuple[str, str], ...] = ()
    own_settings: tuple[tuple[str, str], ...] = ()
    masters: tuple[tuple[str, str], ...] = ()

    @property
    def other(self) -> str:
        """The name of the other side."""
        return SPARK if self.against is None else self.against.value

    @property
    def is_plain(self) -> bool:
        """Neither on a cluster nor in a container: those have the jobs of other cases."""
        return not (self.hosts or self.container)


@dataclass(frozen=True, slots=True)
class Request:
    """A job as `manager_jobs` or `python_jobs` knows it. ``name``: in the output and the record."""

    name: str
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


class SessionProcess:
    """One side: a Spark session in a process of its own. ``mark``: what its processes are known by.
    ``cluster``: the one on which its tasks run, which is started with that mark and outlives the session.
    ``put_into``: puts the first process into a container, before it is told what to start.
    ``about``: what it told when it was ready."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        directory: Path,
        mark: str,
        cluster: Cluster | None,
        put_into: Callable[[int], None] | None,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._log = directory / "log"
        (directory / "local").mkdir(parents=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("side_session.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=directory,
                env=_environment(mark),
            )
        self.tree = ProcessTree(self._process.pid, mark)
        if put_into is not None:
            self._put_into(put_into)
        self._tell({**config, "directory": str(directory / "local")})
        self.about: dict[str, Any] = {}

    def _put_into(self, put_into: Callable[[int], None]) -> None:
        """Nothing is started yet but this one process."""
        try:
            put_into(self._process.pid)
        except OSError as error:
            self._process.kill()
            self._process.wait()
            raise BenchError(f"{self.name}: it cannot be put into a control group: {error}") from error

    def wait_until_ready(self) -> dict[str, Any]:
        self.about = self._answer()
        return self.about

    def run(self, request: Request) -> Ran:
        """Run a job once. Raises `BenchError` if the side fails, does not answer, or has the manager and did
        without it."""
        self._tell({"kind": request.kind, "arguments": request.arguments})
        ran = Ran(**self._answer())
        if ran.sparks_files and self.has_manager:
            raise BenchError(
                f"{self.name}: {request.name} leaves {ran.sparks_files} files of Spark's own shuffle"
            )
        return ran

    @property
    def has_manager(self) -> bool:
        return str(self.about["manager"]).endswith(MANAGER_NAME)

    def begin_to_end(self) -> None:
        """Its input ends, and so does the session."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Wait until all of its processes have ended. Raises `BenchError` if some must be killed."""
        self.begin_to_end()
        until = time.monotonic() + ENDING_SECONDS
        while (left := self._left()) and time.monotonic() < until:
            self._process.poll()
            time.sleep(0.05)
        for pid in left:
            signal_if_there(pid, signal.SIGKILL)
        self._process.wait()
        if left:
            raise BenchError(f"{self.name}: {len(left)} processes did not end within {ENDING_SECONDS:g} s")

    def _left(self) -> list[int]:
        """Those that have the mark: when the first process has ended, others are no descendants of it."""
        outliving = _daemons(self._cluster)
        found = self.tree.look().processes.values()
        return [each.pid for each in found if each.state != "Z" and each.pid not in outliving]

    def _tell(self, value: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(self._last_words("has ended")) from None

    def _answer(self) -> dict[str, Any]:
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], ANSWER_SECONDS)[0]:
            raise BenchError(self._last_words(f"does not answer within {ANSWER_SECONDS:g} s"))
        line = answers.readline()
        if not line:
            raise BenchError(self._last_words(f"has ended with status {self._process.wait()}"))
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self, what: str) -> str:
        return f"{self.name}: the session {what}. Its log ends:\n{self._log.read_text()[-4000:]}"


def _daemons(cluster: Cluster | None) -> set[int]:
    """What runs in a cluster without a session."""
    if cluster is None:
        return set()
    return {*cluster.pids(kind="master"), *cluster.pids(kind="worker")}


def _environment(mark: str) -> dict[str, str]:
    """That of this process, but for what a user's own driver would not have."""
    environment = {key: value for key, value in os.environ.items() if key != ALLOCATOR_VARIABLE}
    # Python workers import the jobs' module.
    return environment | {MARKER: mark, "PYTHONPATH": JOBS}


class Pair:
    """The sessions of both sides. ``sides``: in the order in which the first turn is taken."""

    def __init__(self, sides: list[SessionProcess]) -> None:
        self.sides = sides
        self.unquiet = 0

    def both(self, request: Request) -> dict[str, Ran]:
        """Run a job on both sides at the same time: only where the time does not matter."""
        with ThreadPoolExecutor(len(self.sides)) as pool:
            return dict(zip(self._names(), pool.map(lambda side: side.run(request), self.sides), strict=True))

    def in_turn(self, request: Request, turn: int) -> dict[str, Ran]:
        """Run a job on one side, then on the other; in every second turn the other way round."""
        found = {}
        for side in self.sides if turn % 2 == 0 else self.sides[::-1]:
            self._until_quiet()
            found[side.name] = side.run(request)
        return found

    def _names(self) -> list[str]:
        return [side.name for side in self.sides]

    def _until_quiet(self) -> None:
        """What a side does after its run, compiling for example, is not to disturb the other one's."""
        until = time.monotonic() + QUIET_PATIENCE
        before = [side.tree.look() for side in self.sides]
        while time.monotonic() < until:
            time.sleep(QUIET_WINDOW)
            after = [side.tree.look() for side in self.sides]
            if sum(used(*looks) for looks in zip(before, after, strict=True)) <= QUIET_CPU:
                return
            before = after
        self.unquiet += 1


@contextmanager
def started(setup: Setup, ours_off: bool) -> Iterator[Pair]:
    """Both sides' sessions, ready; ended, and their files removed, at the end of the block."""
    with running([OURS, setup.other], setup, ours_off) as sides:
        yield Pair(sides)


@contextmanager
def running(names: list[str], setup: Setup, ours_off: bool) -> Iterator[list[SessionProcess]]:
    """Sessions of these sides, started at the same time. Raises `BenchError` if one has another manager."""
    with (
        tempfile.TemporaryDirectory(prefix="sortshuffle-bench-", dir=os.environ.get("TMPDIR")) as scratch,
        ExitStack() as surroundings,
    ):
        sides: list[SessionProcess] = []
        try:
            for number, name in enumerate(names):
                config = configuration(name, setup, ours_off)
                directory, mark = Path(scratch, str(number)), uuid.uuid4().hex
                cluster = _start_cluster(directory / "cluster", setup.hosts, mark, surroundings)
                if cluster is not None:
                    config = _on_cluster(config, cluster)
                put_into = _container(setup.container, surroundings)
                sides.append(SessionProcess(name, config, directory, mark, cluster, put_into))
            for side in sides:
                _check(side, setup, ours_off)
            yield sides
        finally:
            _end_all(sides)


def configuration(name: str, setup: Setup, ours_off: bool) -> dict[str, Any]:
    """What `side_session` is told. Sides of ours begin with `OURS`."""
    door = None if ours_off else setup.door if name.startswith(OURS) else setup.against
    heap = setup.memory - (ENGINE_MEMORY if door is Door.MANAGER else 0)
    return {
        "has_manager": door is Door.MANAGER,
        "has_frames": door is Door.FRAMES,
        "has_session": door is Door.SESSION,
        "master": dict(setup.masters).get(name, setup.master),
        "heap": f"{heap // MIB}m",
        "settings": dict(setup.settings) | ({} if door is None else dict(setup.own_settings)),
        "disks": [],
    }


def _container(memory: int, surroundings: ExitStack) -> Callable[[int], None] | None:
    """What puts a process into a container with so much memory, which ends with ``surroundings``; None where
    no limit is wanted."""
    if not memory:
        return None
    try:
        return surroundings.enter_context(control_group(memory)).add
    except OSError as error:
        raise BenchError(f"no control group can be made here, which limits memory: {error}") from error


def _start_cluster(directory: Path, hosts: int, mark: str, surroundings: ExitStack) -> Cluster | None:
    """A cluster of hosts with a core each, which ends with ``surroundings``; None where no hosts are
    wanted."""
    if not hosts:
        return None
    cluster = Cluster(directory, {MARKER: mark})
    surroundings.callback(cluster.down)
    try:
        cluster.up(hosts, cores=1, memory="8g")  # more than any executor asks for
    except ClusterError as error:
        raise BenchError(str(error)) from error
    return cluster


def _on_cluster(config: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The same where what was the driver's memory is each executor's."""
    state = cluster.state()
    assert state is not None
    settings = {
        "spark.executor.memory": config["heap"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": JOBS,
        **config["settings"],
    }
    return config | {
        "master": state.master,
        "heap": f"{DRIVER_MEMORY // MIB}m",
        "settings": settings,
        "disks": [str(cluster.local_directory(host)) for host in state.hosts],
    }


def _check(side: SessionProcess, setup: Setup, ours_off: bool) -> None:
    manager = side.wait_until_ready()["manager"]
    if side.has_manager != configuration(side.name, setup, ours_off)["has_manager"]:
        raise BenchError(f"{side.name}: the session's shuffle manager is {manager}")


def _end_all(sides: list[SessionProcess]) -> None:
    for side in sides:
        side.begin_to_end()
    failed = []
    for side in sides:
        try:
            side.end()
        except BenchError as error:
            failed.append(str(error))
    if failed and sys.exc_info()[0] is None:
        raise BenchError("; ".join(failed))
