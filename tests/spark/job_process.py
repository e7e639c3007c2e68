"""Jobs that need a Spark of their own: programs that print what they found, as JSON, in their last line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENCE = 240.0  # seconds; a job takes about 20


def run_job(
    job: Path, *arguments: str, patience: float = PATIENCE, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a job found, within ``patience`` seconds. ``environment``: None for this process's."""
    done = subprocess.run(
        [sys.executable, str(job), *arguments],
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
