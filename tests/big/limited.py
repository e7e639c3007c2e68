"""A program of `jobs` in a process whose address space is limited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import ENVIRONMENT, ROOT

JOBS = Path(__file__).parent / "jobs"
PATIENCE = 540.0  # seconds


def run(
    program: str, *arguments: Any, limit: int | None = None, variables: Mapping[str, str] = {}
) -> dict[str, Any]:
    """What it prints, a JSON object. ``limit``: bytes of address space."""
    limited = ["prlimit", f"--as={limit}"] if limit else []
    paths = (ROOT, ROOT / "tests", ROOT / "tests" / "spark", JOBS)
    done = subprocess.run(
        [*limited, sys.executable, str(JOBS / program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables},
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
