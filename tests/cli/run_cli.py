"""Runs the command line inside the test's process, as a terminal-less caller would."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from sortshuffle.cli.main import main


def run(*arguments: object) -> Result:
    """Output and exit code of ``sortshuffle ARGUMENTS``; anything but an orderly exit fails the test."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return result


def run_json(*arguments: object) -> tuple[int, Any]:
    """Exit code and the JSON document printed."""
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def unlistable(directory: Path) -> str:
    """A directory that is made below, and that nobody can list, not even root: its path is too long."""
    name = "d" * 200
    there = os.open(directory, os.O_RDONLY)
    path = str(directory)
    while len(path) <= os.pathconf(directory, "PC_PATH_MAX"):
        os.mkdir(name, dir_fd=there)
        below = os.open(name, os.O_RDONLY, dir_fd=there)
        os.close(there)
        there, path = below, f"{path}/{name}"
    os.close(there)
    return path


def deep(directory: Path, below: str = "") -> Path:
    """A directory that is made below, with ``below`` at the end of its path. The path of a file in it with a
    name of 30 characters or more is too long."""
    length = os.pathconf(directory, "PC_PATH_MAX") - 26 - len(below)
    path = str(directory)
    while left := length - len(path):
        step = left if left <= 200 else min(200, left - 2)  # with its slash
        path = f"{path}/{'d' * (step - 1)}"
        os.mkdir(path)
    made = Path(path + below)
    made.mkdir(parents=True, exist_ok=True)
    return made


def put_into(directory: Path, name: str) -> None:
    """Make an empty file in a directory, however long its path is."""
    there = os.open(directory, os.O_RDONLY)
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=there))
    os.close(there)
