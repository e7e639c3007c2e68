"""The jobs that a session is asked to run, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

jobs: dict[str, Callable[..., Any]] = {}
"""Each takes the session and a directory of its own, and what it is told."""


def job(function: Callable[..., Any]) -> Callable[..., Any]:
    jobs[function.__name__] = function
    return function
