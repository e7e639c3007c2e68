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
