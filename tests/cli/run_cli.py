"""Runs the command line inside the test's process, as a terminal-less caller would."""

from __future__ import annotations

import json
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
