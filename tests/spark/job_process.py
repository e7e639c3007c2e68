"""Jobs that need a Spark of their own: programs that print what they found, as JSON, in their last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from java_options import submit_arguments

PATIENCE = 240.0  # seconds; a job takes about 20


def run_job(
    job: Path,
    *arguments: str,
    patience: float = PATIENCE,
    environment: Mapping[str, str] | None = None,
    has_manager: bool = False,
) -> dict[str, Any]:
    """What a job found, within ``patience`` seconds. ``environment``: None for this process's.
    ``has_manager``: its JVM starts with the shuffle manager's jar."""
    environment = dict(os.environ if environment is None else environment)
    if has_manager:
        environment["PYSPARK_SUBMIT_ARGS"] = submit_arguments("on", has_manager=True)
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
