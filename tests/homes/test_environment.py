"""`homes.environment`: a process started with it finds the package it was started from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine import ROOT

from sortshuffle.homes.environment import environment


def test_another_process_imports_the_same_package(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sortshuffle; print(sortshuffle.__file__)"]
    started = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert Path(started.stdout.strip()) == ROOT / "sortshuffle" / "__init__.py", started.stderr


def test_what_it_adds_to_the_path_is_the_directory_above_the_package() -> None:
    first, *_ = environment()["PYTHONPATH"].split(":")
    assert Path(first) == ROOT
