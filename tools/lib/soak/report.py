"""What a soak counts, its table, and its record."""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checkout import commit
from cluster import ROOT

RECORDS = ROOT / "tools" / "soak.jsonl"
OFTEN = 5  # times that a kind of fault finds nothing to break until that is a problem
SERVICE, DISK, OUTPUT = "a service that did not answer", "a full disk", "a lost map output"
REASONS = {
    SERVICE: r"ServiceUnavailableError",
    DISK: r"OutOfDiskError|No space left on device",
    OUTPUT: r"MissingDataError|CorruptDataError",
}
"""How a job may fail, and what its error says then: Spark tries tasks and stages again, but not for ever."""
ALLOWED = {
    "both": (SERVICE,),
    "host": (SERVICE, OUTPUT),
    "outputs": (OUTPUT,),
    "damage": (OUTPUT,),
    "full": (DISK,),
}
"""For which reasons a job may fail after a fault of a kind, by the soak's table in docs/testing.md. Kinds
that are not here must not fail a job."""


def why(error: str, kinds: Iterable[str]) -> str | None:
    """The reason of a job's error that these kinds of faults allow, None if there is none."""
    allowed = dict.fromkeys(reason for kind in kinds for reason in ALLOWED.get(kind, ()))
    return next((reason for reason in allowed if re.search(REASONS[reason], error)), None)


@dataclass(slots=True)
class Tally:
    """What was counted. ``problems``: what must be none, as lines for people."""

    applications: int = 0
    jobs: Counter[str] = field(default_factory=Counter)  # by entry point
    faults: Counter[str] = field(default_factory=Counter)  # by kind
    missed: Counter[str] = field(default_factory=Counter)  # faults whose moment did not come, by kind
    futile: Counter[str] = field(default_factory=Counter)  # those that found nothing to break, by kind
    killed_drivers: int = 0
    garbage_checks: int = 0  # that the files of garbage go
    checks_with_garbage: int = 0  # those that had any to see go
    service_memory: int = 0  # bytes; the most that an administrator's service had between applications
    service_threads: int = 0  # in the same way
    rerun_tasks: int = 0  # attempts of map tasks beyond the first
    failed: Counter[str] = field(default_factory=Counter)  # as documented, by reason
    wrong: int = 0
    unexpected: int = 0
    hung: int = 0
    leftovers: int = 0
    problems: list[str] = field(default_factory=list)

    def without_effect(self) -> list[str]:
        """The kinds of faults that were tried often, and never struck: less is tested than it seems."""
        tried = self.futile + self.missed
        return sorted(what for what, count in tried.items() if count >= OFTEN and not self.faults[what])

    def gaps(self) -> list[str]:
        """What was not tested although it was to be, as lines for people."""
        idle = [] if self.jobs.total() else ["no job has run"]
        tried = self.futile + self.missed
        return idle + [
            f"{what}: {tried[what]} of these faults, and none had an effect" for what in self.without_effect()
        ]

    def is_good(self) -> bool:
        return not self.problems and not self.gaps()


def table(tally: Tally, minutes: float) -> list[str]:
    """In Markdown, as docs/testing.md has it."""
    rows = {
        "minutes": f"{minutes:.0f}",
        "applications": f"{tally.applications}, of which {tally.killed_drivers} drivers were killed",
        "jobs": _counts(tally.jobs),
        "faults": _counts(tally.faults),
        "faults whose moment did not come": _counts(tally.missed),
        "faults that found nothing to break": _counts(tally.futile),
        "attempts of map tasks beyond the first": f"{tally.rerun_tasks}",
        "checks that garbage goes": f"{tally.garbage_checks}, of which {tally.checks_with_garbage} had any",
        "memory of an administrator's service, at most": f"{tally.service_memory >> 20} MiB,"
        f" {tally.service_threads} threads",
        "jobs that failed as documented, and were right when run again": _counts(tally.failed),
        "jobs that failed otherwise": f"{tally.unexpected}",
        "jobs that hung": f"{tally.hung}",
        "wrong results": f"{tally.wrong}",
        "leftovers": f"{tally.leftovers}",
    }
    return ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows.items())]


def _counts(found: Counter[str]) -> str:
    each = ", ".join(f"{what} {count}" for what, count in sorted(found.items()))
    return f"{found.total()} ({each})" if each else "0"


def record(tally: Tally, seed: int, minutes: float) -> dict[str, Any]:
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
        "minutes": round(minutes, 1),
        "commit": commit(),
        "software": version("sortshuffle"),
        "spark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "applications": tally.applications,
        "killed_drivers": tally.killed_drivers,
        "jobs": dict(tally.jobs),
        "faults": dict(tally.faults),
        "faults_whose_moment_did_not_come": dict(tally.missed),
        "faults_that_found_nothing": dict(tally.futile),
        "rerun_map_tasks": tally.rerun_tasks,
        "garbage_checks": tally.garbage_checks,
        "checks_with_garbage": tally.checks_with_garbage,
        "service_memory": tally.service_memory,
        "service_threads": tally.service_threads,
        "failed_as_documented": dict(tally.failed),
        "failed_otherwise": tally.unexpected,
        "hung": tally.hung,
        "wrong": tally.wrong,
        "leftovers": tally.leftovers,
        "problems": len(tally.problems),  # which name paths of the machine; they are in .soak
    }


def append(found: dict[str, Any], path: Path = RECORDS) -> None:
    with open(path, "a") as opened:
        opened.write(json.dumps(found) + "\n")
