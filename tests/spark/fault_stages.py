"""What the jobs of `fault_jobs` tell of their stages, and those that wait in the middle."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from engine import eventually
from served_session import Answer, Session


def map_runs(found: dict[str, Any]) -> int:
    """How many map tasks ran in a job."""
    return sum(each["complete"] + each["failed"] for each in found["stages"] if each["written"])


def map_outputs_made(found: dict[str, Any]) -> int:
    """How many map tasks ended well in a job. Where executors are lost, others may fail on one of them."""
    return sum(each["complete"] for each in found["stages"] if each["written"])


def attempts(found: dict[str, Any]) -> int:
    """Of the job's last stage."""
    last = found["stages"][-1]["stage"]
    return sum(each["stage"] == last for each in found["stages"])


def paused(session: Session, where: str, patience: float, **arguments: Any) -> tuple[Future[Answer], Path]:
    """A job both of whose map or reduce tasks are in the middle within ``patience`` seconds, and its
    directory."""
    answer = session.start("paused", where=where, **arguments)
    directory = session.last_directory

    def is_waiting() -> bool:
        if answer.done():
            answer.result()
        return len(list(directory.glob(f"waiting-{where}-*"))) == 2

    eventually(is_waiting, f"two {where} tasks in the middle", patience)
    return answer, directory
