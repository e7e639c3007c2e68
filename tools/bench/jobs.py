"""What a job of a side is.

`manager_jobs` has those that are the same on both sides, `python_jobs` those whose Python stages exchange
their rows through frames and RDDs on our side, and through Spark's shuffle on the other.

A job is prepared first, which is not timed, then run as often as wanted. A run gives a value, and the job's
`digest` makes a text of it, which is not timed either. Equal texts mean equal results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


def _no_steps() -> dict[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class Job:
    """``run`` is timed. ``digest``: of what it gave, a text that is equal for equal results. ``steps``: where
    the last run spent its tasks' time, seconds by step, where that is known."""

    run: Callable[[], Any]
    digest: Callable[[Any], str]
    steps: Callable[[], dict[str, float]] = _no_steps


def text_hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
