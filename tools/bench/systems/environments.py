"""`python_of`: the Python of a contestant's own virtual environment, which is made when it is first needed.

Each has the releases of its packages that were the newest when it was made. The versions of the main ones are
in the record of every run. An environment is made anew when its list changes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from harness import DATA

CONTESTANTS = Path(__file__).parent / "contestants"
ENVIRONMENTS = DATA / "environments"


class InstallError(Exception):
    """An environment cannot be made; the text says why."""


def python_of(name: str) -> str:
    """Return the interpreter for ``contestants/on_<name>.py``. A contestant without a list of packages runs
    in the environment of this checkout."""
    packages = CONTESTANTS / f"{name}.txt"
    if not packages.exists():
        return sys.executable
    directory = ENVIRONMENTS / name
    made = directory / packages.name  # a copy of the list, which appears when the environment is complete
    if not made.exists() or made.read_text() != packages.read_text():
        _make(directory, packages)
        shutil.copy(packages, made)
    return str(directory / "bin" / "python")


def _make(directory: Path, packages: Path) -> None:
    print(f"installing {packages.stem}", file=sys.stderr, flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(directory))
    _run(str(directory / "bin" / "pip"), "install", "--quiet", "--requirement", str(packages))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"{' '.join(command)} failed:\n{done.stderr}")
