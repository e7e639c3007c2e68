"""The loop of a soak: applications one behind the other, each with its jobs and their faults, until the time
is over. Whatever a job does, the soak goes on; what went wrong is counted, and its logs are kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster import ROOT, Cluster, signal_if_there
from driver_process import JobError

from soak import plan
from soak.administrator import MEMORY, Administrator
from soak.application import STOP_PATIENCE, Driver
from soak.checks import (
    Left,
    Survivors,
    clear_away,
    command_of,
    descriptor_count,
    footprint,
    left,
    unattended,
    until_nothing_is_left,
)
from soak.faults import HOST_DISK, SMALL_DISK, Faults, map_outputs, mount_disk
from soak.report import Tally, why
from soak.work import works

JOB_PATIENCE = 180.0  # seconds until a job counts as hanging; jobs take some seconds, with faults some ten
HOST_PATIENCE = 90.0  # seconds until there is an executor on each host again
GARBAGE_PATIENCE = (
    60.0  # seconds until the files of garbage are gone; the grace, and some rounds of collection
)
COLLECT = 3.0  # seconds between two requests to look for garbage
POLL_SECONDS = 0.05
SERVICE_MEMORY = MEMORY + (200 << 20)  # bytes that an administrator's service may have: the rest is Python's
STACKS_PATIENCE = 20.0  # seconds that jstack may take
CLIENT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # JVMs that live for a minute
MISSED, FUTILE = "its moment did not come", "found nothing"
OURS, CONTROL = "sortshuffle", "control rows of sortshuffle's own frames and RDDs"  # what a manager decides
HOOK = Path(__file__).parent / "hook"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": CLIENT,
    "spark.executor.extraJavaOptions": CLIENT,
    "spark.locality.wait": "0s",  # tasks go to all hosts
    "spark.task.maxFailures": "8",  # of a task; faults come closer together than on a real cluster
    "spark.stage.maxConsecutiveAttempts": "8",
    # a task does not come back to an executor on which it has failed
    "spark.excludeOnFailure.taskAndStage.enabled": "true",
    "spark.sortshuffle.service.timeout": "10s",
    # much longer than from the end of a map output to that of its task; no shorter, for hosts stand still
    "spark.sortshuffle.grace": "15s",
}


class HangError(Exception):
    """A job has not ended in time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run of a job. ``end``: right, wrong, failed or hung. ``did``: its faults, as lines; ``struck``:
    their kinds. ``missed``: those that found nothing to break, or whose moment did not come."""

    end: str
    error: str
    seconds: float
    did: tuple[str, ...]
    struck: tuple[plan.Fault, ...]
    missed: tuple[str, ...]
    rerun_tasks: int


class Soak:
    """``scratch``: everything that it makes; ``kept``: the logs of what went wrong, and the events."""

    def __init__(self, seed: int, scratch: Path, kept: Path, say: Callable[[str], None]) -> None:
        self._seed = seed
        self._scratch = scratch
        self._kept = kept
        self._say = say
        self._temporary = scratch / "t"
        self._logs = scratch / "logs"
        for each in (self._temporary, self._logs, scratch / "mount", scratch / "large", kept):
            each.mkdir(parents=True, exist_ok=True)
        self._paths = os.pathsep.join(map(str, (HOOK, ROOT / "tools" / "lib", ROOT)))
        shared = {"TMPDIR": str(self._temporary), "PYTHONPATH": self._paths}
        self._cluster = Cluster(scratch / "c", shared)
        self._administrator = Administrator(self._cluster, scratch / "served", self._logs)
        self._plain: Driver | None = None
        self._expected: dict[tuple[str, str], Any] = {}
        self._unattended: set[Path] = set()
        self.tally = Tally()

    def run(self, seconds: float) -> None:
        """Applications until so much time has passed since the cluster is up; the last one is given what it
        needs."""
        try:
            for host in plan.HOSTS:
                mount_disk(self._cluster.local_directory(host), HOST_DISK)
            mount_disk(self._scratch / "small", SMALL_DISK)
            self._cluster.up(len(plan.HOSTS), cores=1, memory="1g")
            started = time.monotonic()
            number = 0
            while time.monotonic() < started + seconds:
                what = plan.application(self._seed, number)
                self._repair()
                try:
                    self._application(what, started + seconds)
                except Exception:  # of the soak itself: it goes on, and says so
                    self.tally.unexpected += 1
                    self._problem(what, traceback.format_exc(), self._logs / f"driver-{number}.log")
                number += 1
        finally:
            if self._plain is not None:
                self._plain.kill()
            self._administrator.stop()
            self._cluster.down()

    def _repair(self) -> None:
        """Every host has its worker."""
        lost = set(plan.HOSTS) - set(self._cluster.alive_hosts())
        for host in sorted(lost):
            if not self._cluster.pids(host, "worker"):
                self._cluster.restart_worker(host)

    # ---- an application ----------------------------------------------------------------------------------

    def _application(self, what: plan.Application, deadline: float) -> None:
        kind = plan.KINDS[what.kind]
        if kind.disks == "served":
            self._administrator.start(plan.HOSTS)
        faults = Faults(self._cluster, self._administrator, self._temporary, self._disks(kind))
        log = self._logs / f"driver-{what.number}.log"
        descriptors = self._descriptors()
        try:
            driver = Driver(log, self._settings(what), self._environment(), is_ours=True)
        except (JobError, FutureTimeoutError) as error:
            self._problem(what, f"the driver does not start: {error!r}", log)
            self.tally.unexpected += 1
            return
        self.tally.applications += 1
        before = len(self.tally.problems)
        outcomes: list[Outcome] = []
        try:
            for number, job in enumerate(what.jobs):
                if time.monotonic() > deadline:
                    break
                # a fault may do harm to the job behind it, and to no others
                earlier = outcomes[-1].struck if outcomes else ()
                outcomes.append(self._job(what, number, job, driver, faults, earlier))
                if outcomes[-1].end in ("failed", "hung"):
                    break
            struck = [fault for each in outcomes for fault in each.struck]
            self._check_the_manager(what, driver, outcomes)
            if what.is_collected and outcomes and outcomes[-1].end == "right":
                self._check_garbage_goes(what, driver, struck)
            self._end(what, driver)
        finally:
            try:
                faults.end(every=True)
            finally:
                driver.kill()
        if any(each.end == "right" for each in outcomes) and kind.service == "auto" and kind.disks != "mount":
            self._unattended.clear()  # its tasks have started services, which have removed these
        for fault in struck:
            if fault.what in ("supervisor", "both"):
                self._unattended |= set(unattended(self._temporary, driver.id, fault.host))
        self._check_nothing_is_left(what, driver, descriptors, log)
        self._check_memory(what, log)
        if len(self.tally.problems) == before:
            log.unlink()
            for host in plan.HOSTS:
                shutil.rmtree(self._cluster.work_directory(host) / driver.id, ignore_errors=True)

    def _disks(self, kind: plan.Kind) -> tuple[Path, ...]:
        return (self._scratch / "small", self._scratch / "large") if kind.disks == "two" else ()

    def _settings(self, what: plan.Application) -> dict[str, str]:
        kind = plan.KINDS[what.kind]
        state = self._cluster.state()
        assert state is not None
        if what.executors == "served" and not state.shuffle_service:
            state = self._cluster.start_shuffle_service()
        directories = {
            "": "",
            "two": ",".join(map(str, self._disks(kind))),
            "served": str(self._administrator.directory),
            "mount": self.mount,
        }
        return {
            **SETTINGS,
            "spark.master": state.master,
            "spark.executorEnv.PYTHONPATH": self._paths,
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
            "spark.sortshuffle.manager": "on" if kind.has_manager else "off",
            "spark.sortshuffle.service": kind.service,
            "spark.sortshuffle.dir": directories[kind.disks],
            "spark.io.encryption.enabled": str(what.is_encrypted).lower(),
            **plan.EXECUTORS[what.executors],
            **(state.settings if what.executors == "served" else {}),
        }

    @property
    def mount(self) -> str:
        """The URL of a directory that all hosts see; what is left is known by the last part of its path."""
        return f"file://{self._scratch}/mount/sortshuffle"

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **self._cluster.driver_environment(),
            "PYTHONPATH": self._paths,
            "TMPDIR": str(self._temporary),
            "SPARK_LOCAL_DIRS": str(self._scratch / "d"),
        }

    def _end(self, what: plan.Application, driver: Driver) -> None:
        if what.is_killed:
            self.tally.killed_drivers += 1
            driver.kill()
            return
        try:
            status = driver.end(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self._problem(what, "the driver does not stop", driver.log)
            self.tally.hung += 1
        else:
            if status:
                self._problem(what, f"the driver has ended with status {status}", driver.log)
                self.tally.unexpected += 1

    # ---- a job -------------------------------------------------------------------------------------------

    def _job(
        self,
        what: plan.Application,
        number: int,
        job: plan.Job,
        driver: Driver,
        faults: Faults,
        earlier: tuple[plan.Fault, ...],
    ) -> Outcome:
        """How it went, at last. ``earlier``: the faults of the job before."""
        expected = self._oracle(job)
        self.tally.jobs[works[job.work][0]] += 1
        found = self._run_once(what, job, driver, faults, expected)
        struck = found.struck
        reason = why(found.error, (fault.what for fault in (*earlier, *struck)))
        self._tell(what, number, job, found, reason)
        self.tally.rerun_tasks += found.rerun_tasks
        name = f"{what.kind} {job.work} {job.shape} of application {what.number} ({driver.id})"
        if found.end == "failed" and reason:
            self.tally.failed[reason] += 1
            faultless = plan.Job(job.work, job.shape, job.settings, ())
            found = replace(self._run_once(what, faultless, driver, faults, expected), struck=struck)
            self._tell(what, number, faultless, found)
            name += " when run again"
        if found.end == "right":
            return found
        counter = {"wrong": "wrong", "failed": "unexpected", "hung": "hung"}[found.end]
        setattr(self.tally, counter, getattr(self.tally, counter) + 1)
        self._problem(what, f"{name}: {found.end} {found.error}", driver.log)
        return found

    def _run_once(
        self, what: plan.Application, job: plan.Job, driver: Driver, faults: Faults, expected: Any
    ) -> Outcome:
        started, since = time.monotonic(), time.time()
        did: list[plan.Fault] = []
        waiting = dict.fromkeys(job.faults, MISSED)
        try:
            if what.executors == "fixed":
                self._await_hosts(driver)
            answer = driver.start(job.work, job.shape, dict(job.settings))
            began = time.monotonic()
            while not answer.done():
                if time.monotonic() > began + JOB_PATIENCE:
                    raise HangError(f"no answer for {JOB_PATIENCE:.0f} s")
                faults.end()
                for fault in [each for each in waiting if self._is_due(each, began, driver, answer)]:
                    waiting[fault] = FUTILE
                    if faults.inflict(fault.what, fault.host, since):
                        del waiting[fault]
                        did.append(fault)
                        self.tally.faults[fault.what] += 1
                time.sleep(POLL_SECONDS)
            end, error = ("right", "") if answer.result() == expected else ("wrong", f"{answer.result()!r}")
        except JobError as failure:
            end, error = "failed", str(failure)
        except (HangError, FutureTimeoutError) as failure:
            end, error = "hung", repr(failure)
            self._keep_stacks(driver)
        finally:
            faults.end(every=True)
        self.tally.missed.update(fault.what for fault, reason in waiting.items() if reason == MISSED)
        self.tally.futile.update(fault.what for fault, reason in waiting.items() if reason == FUTILE)
        return Outcome(
            end,
            error,
            time.monotonic() - started,
            tuple(f"{fault.what} {fault.host} {fault.when()}" for fault in did),
            tuple(did),
            tuple(f"{fault.what} {fault.host}: {reason}" for fault, reason in waiting.items()),
            self._rerun_tasks(driver),
        )

    def _is_due(self, fault: plan.Fault, began: float, driver: Driver, answer: Future[Any]) -> bool:
        if fault.delay is not None:
            return time.monotonic() >= began + fault.delay
        if answer.done():
            return False
        stages: dict[int, tuple[int, int]] = {}
        for each in driver.ask("stages"):
            tasks, complete = stages.get(each["stage"], (0, 0))
            stages[each["stage"]] = (max(tasks, each["tasks"]), complete + each["complete"])
        if len(stages) <= fault.stage:
            return False
        tasks, complete = stages[sorted(stages)[fault.stage]]
        return complete >= min(fault.task, tasks)

    def _rerun_tasks(self, driver: Driver) -> int:
        """Attempts of the last job's map tasks beyond the first: those that failed, too."""
        try:
            return rerun_tasks(driver.ask("stages"))
        except (JobError, FutureTimeoutError):
            return 0

    def _await_hosts(self, driver: Driver) -> None:
        """A fault before may have taken an executor."""
        deadline = time.monotonic() + HOST_PATIENCE
        while (hosts := driver.ask("hosts")) != list(plan.HOSTS):
            if time.monotonic() > deadline:
                raise HangError(f"executors on {hosts} alone for {HOST_PATIENCE:.0f} s")
            time.sleep(POLL_SECONDS)

    def _oracle(self, job: plan.Job) -> Any:
        """What plain Spark gives."""
        known = (job.work, job.shape)
        if known not in self._expected:
            if self._plain is None:
                settings = {
                    **SETTINGS,
                    "spark.master": "local[2]",
                    "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
                }
                log = self._logs / "plain.log"
                self._plain = Driver(log, settings, self._environment(), is_ours=False)
            self._expected[known] = self._plain.start(*known).result(JOB_PATIENCE)
        return self._expected[known]

    # ---- what is seen of an application --------------------------------------------------------------------

    def _check_the_manager(self, what: plan.Application, driver: Driver, outcomes: Sequence[Outcome]) -> None:
        """Its unmodified jobs went through the manager."""
        if not plan.KINDS[what.kind].has_manager or (outcomes and outcomes[-1].end == "hung"):
            return
        ends = zip(what.jobs, outcomes, strict=False)
        right = [job for job, found in ends if found.end == "right" and works[job.work][0] == "manager"]
        try:
            decisions = driver.ask("decisions")
        except (
            JobError,
            FutureTimeoutError,
        ):
            return  # the driver has ended, which is told of the job that it ended in
        if decided := astray(decisions, bool(right)):
            self._problem(what, f"shuffles of {driver.id}: {decided}", driver.log)
            self.tally.unexpected += 1

    def _check_memory(self, what: plan.Application, log: Path) -> None:
        """Of an administrator's services, which are idle now."""
        for pid in self._administrator.pids():
            found = footprint(pid)
            self.tally.service_memory = max(self.tally.service_memory, found.resident)
            self.tally.service_threads = max(self.tally.service_threads, found.threads)
            if found.resident > SERVICE_MEMORY:
                self._problem(what, f"service {pid} has {found.resident >> 20} MiB of memory", log)

    # ---- what is left ------------------------------------------------------------------------------------

    def _check_garbage_goes(
        self, what: plan.Application, driver: Driver, struck: Sequence[plan.Fault]
    ) -> None:
        """The files of frames and shuffles that are gone go while the application lives."""
        kind = plan.KINDS[what.kind]
        if kind.service != "auto" or kind.disks == "mount" or any(each.what == "janitor" for each in struck):
            return  # then they stay: at a URL, with an administrator's services, without a janitor
        if what.executors == "served":
            return  # they may stay as long as Spark's service keeps Spark's own files

        def found() -> list[Path]:
            directories = [self._cluster.local_directory(host) for host in plan.HOSTS]
            everything = [*directories, *self._disks(kind)]
            paths = {path for host in plan.HOSTS for path in map_outputs(everything, host, 0.0)}
            return sorted(path for path in paths if driver.id in path.parts)

        written = len(found())
        self.tally.garbage_checks += 1
        self.tally.checks_with_garbage += written > 0
        started = time.monotonic()
        while (stay := found()) and time.monotonic() < started + GARBAGE_PATIENCE:
            driver.ask("collect")
            time.sleep(COLLECT)
        self._say(
            f"{what.number}   garbage: {written} map outputs, gone in {time.monotonic() - started:.0f} s"
        )
        if stay:
            self.tally.leftovers += len(stay)
            names = ", ".join(map(str, stay[:5]))
            self._problem(what, f"garbage of {driver.id}: {len(stay)} map outputs stay, {names}", driver.log)

    def _check_nothing_is_left(
        self, what: plan.Application, driver: Driver, descriptors: Mapping[str, int], log: Path
    ) -> None:
        directories = tuple(
            self._scratch / name for name in ("c", "d", "small", "large", "served", "mount", "t")
        )

        def look() -> Left:
            return left(driver.id, self._survivors(), directories, self._temporary, self._unattended)

        if what.kind == "mount" and what.is_killed:
            # the documentation says so: of a driver that was killed, this removes what frames have written
            until_nothing_is_left(lambda: replace(look(), files=(), sockets=(), descriptors=()))  # who writes
            command = [str(Path(sys.executable).parent / "sortshuffle"), "clean", self.mount]
            cleaned = subprocess.run(
                [*command, "--application", driver.id], check=False, capture_output=True, text=True
            )
            if cleaned.returncode:
                said = f"{cleaned.stdout}{cleaned.stderr}"
                self._problem(what, f"sortshuffle clean has exited {cleaned.returncode}: {said}", log)
        found = until_nothing_is_left(look)
        grown = {
            who: (descriptors[who], count)
            for who, count in self._descriptors().items()
            if who in descriptors and count > descriptors[who]
        }
        if found.count() or grown:
            self.tally.leftovers += found.count() + len(grown)
            self._problem(what, f"left of {driver.id}: {asdict(found)}, descriptors {grown}", log)
            clear_away(found)  # it is not to count again with the next application

    def _survivors(self) -> Survivors:
        kinds = ("master", "worker", "shuffle-service")
        daemons = {pid for kind in kinds for pid in self._cluster.pids(kind=kind)}
        sessions = {os.getsid(0)}
        if self._plain is not None:
            sessions.add(self._plain.pid)
        return Survivors(frozenset({1, *daemons, *self._administrator.pids()}), frozenset(sessions))

    def _descriptors(self) -> dict[str, int]:
        """Of the soak itself, and of the administrator's services, which are idle now."""
        found = {f"service {pid}": descriptor_count(pid) for pid in self._administrator.pids()}
        return {**found, "soak": descriptor_count(os.getpid())} if self._plain is not None else found

    # ---- what is told ------------------------------------------------------------------------------------

    def _tell(
        self, what: plan.Application, number: int, job: plan.Job, found: Outcome, reason: str | None = None
    ) -> None:
        did = "; ".join([*found.did, *(f"({each})" for each in found.missed)]) or "no fault"
        again = f", {found.rerun_tasks} map tasks more" if found.rerun_tasks else ""
        because = f" ({reason or 'undocumented'})" if found.end == "failed" else ""
        self._say(
            f"{what.number}.{number} {what.kind:8} {job.work} {job.shape}: {found.end.upper()}{because}"
            f" in {found.seconds:.1f} s; {did}{again}"
        )
        event = {"application": what.number, "job": number, "plan": asdict(job), "outcome": asdict(found)}
        with open(self._kept / "events.jsonl", "a") as opened:
            opened.write(json.dumps(event) + "\n")

    def _problem(self, what: plan.Application, text: str, log: Path) -> None:
        """Count it, and keep the logs."""
        self.tally.problems.append(f"application {what.number} ({what.kind}): {text}")
        self._say(f"PROBLEM {self.tally.problems[-1][:3000]}")
        kept = self._kept / f"application-{what.number}"
        kept.mkdir(exist_ok=True)
        if log.exists():
            shutil.copy(log, kept)
        for host in plan.HOSTS:
            work = self._cluster.work_directory(host)
            if work.exists():
                shutil.copytree(work, kept / host, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.jar"))
        for path in self._temporary.glob("sortshuffle-*/*/service.log"):
            shutil.copy(path, kept / f"{path.parent.name}.service.log")

    def _keep_stacks(self, driver: Driver) -> None:
        """Of all JVMs; and of all Python processes, which write theirs to their own logs."""
        kept = self._kept / f"hang-{driver.id}"
        kept.mkdir(exist_ok=True)
        for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
            command = command_of(pid)
            if "java" in command.split(" ")[0]:
                keep_java_stacks(pid, kept / f"{pid}.jstack")
            elif pid != os.getpid() and catches(pid, signal.SIGUSR2):
                signal_if_there(pid, signal.SIGUSR2)
        time.sleep(1.0)  # they write


def rerun_tasks(stages: Sequence[Mapping[str, Any]]) -> int:
    """Attempts of map tasks beyond the first in these attempts of stages. A map stage has another number in
    the next Spark job that needs it, and only the tasks that are to run again, but the same RDDs."""
    attempts: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    for each in stages:
        if each["written"]:
            attempts[each["rdds"]] += each["complete"] + each["failed"] + each["killed"]
            tasks[each["rdds"]] = max(tasks[each["rdds"]], each["tasks"])
    return sum(max(0, attempts[rdds] - tasks[rdds]) for rdds in attempts)


def astray(decisions: Mapping[str, int], is_used: bool) -> dict[str, int] | str:
    """What is wrong with a shuffle manager's decisions: shuffles that it left to Spark, or none of its own
    although jobs used it; empty if nothing is."""
    if is_used and not decisions.get(OURS):
        return f"none through the manager, {dict(decisions)}"
    return {name: count for name, count in decisions.items() if name not in (OURS, CONTROL)}


def keep_java_stacks(pid: int, path: Path) -> None:
    with open(path, "wb") as opened:
        opened.write(f"{command_of(pid)}\n".encode())
        opened.flush()
        try:
            subprocess.run(["jstack", str(pid)], stdout=opened, timeout=STACKS_PATIENCE, check=False)
        except (subprocess.TimeoutExpired, FileNotFoundError):
            pass  # it hangs itself; or there is only a runtime here, no JDK


def catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal; others would end by it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(masks and masks[0] >> (number - 1) & 1)
