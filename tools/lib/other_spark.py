"""A virtual environment with another release of PySpark, and with this checkout.

Used by `tools/manager_matrix --spark`. The shuffle manager's jar is the checkout's, compiled against the
PySpark of `.venv`: a wheel holds one jar for all releases of Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
from cluster import ROOT

ENVIRONMENTS = ROOT / ".sparks"


def python_with(release: str) -> Path:
    """The Python of that environment. It is made if it is not there; pip brings it up to date. A gigabyte."""
    environment = ENVIRONMENTS / f"pyspark-{release}"
    python = environment / "bin" / "python"
    packages = [f"pyspark=={release}", "--editable", f"{ROOT}[dev]"]
    temporary = environment / "tmp"  # PySpark unpacks to 2 GB, for which /tmp may be too small
    temporary.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(environment)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
    ):
        done = subprocess.run(command, check=False, env={**os.environ, "TMPDIR": str(temporary)})
        if done.returncode:
            raise click.ClickException(f"there is no environment with PySpark {release}: see above")
    return python


def run_with(release: str, command: list[str]) -> None:
    """Go on as that environment's Python with this command. Does not return."""
    python = str(python_with(release))
    os.environ.update(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)
    os.execv(python, [python, *command])
