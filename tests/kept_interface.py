"""Lists what docs/stability.md promises to keep, apart from files and protocol: options, public names of
Python and their parameters, errors, commands, and the JSON of `dump`.

    python tests/kept_interface.py        into tests/written_by/VERSION/interface.json
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

import sortshuffle.errors
from sortshuffle.cli.main import main as command_line
from sortshuffle.options import Options
from sortshuffle.version import __version__

KEPT = Path(__file__).parent / "written_by"
MODULES = ("sortshuffle", "sortshuffle.engine", "sortshuffle.partitioner")
MADE_BY_FUNCTIONS = ("ShuffleFrame", "ShuffleRDD", "Input", "Output", "ChannelSelector")
"""Classes that users do not call."""


def interface(files: Path) -> dict[str, Any]:
    """``files``: what `kept_files` wrote, for the JSON of `dump`."""
    return {
        "options": {spec.key: spec.unit for spec in (each.metadata["spec"] for each in fields(Options))},
        "names": {module: names_of(module) for module in MODULES},
        "errors": dict(errors()),
        "commands": commands(),
        "dump": dumps(files),
    }


def names_of(module: str) -> dict[str, Any]:
    loaded = import_module(module)
    return {name: described(getattr(loaded, name)) for name in loaded.__all__}


def described(value: Any) -> Any:
    """The parameters of a function; the public members of a class, and how it is called; else the type."""
    if inspect.isclass(value):
        is_called = value.__name__ not in MADE_BY_FUNCTIONS
        return {**({"()": parameters(value)} if is_called else {}), **members(value)}
    return parameters(value) if inspect.isroutine(value) else type(value).__name__


def members(value: type) -> dict[str, Any]:
    own = {name: getattr(value, name) for name in vars(value) if not name.startswith("_")}
    return {
        name: parameters(member) if inspect.isroutine(member) and callable(member) else "attribute"
        for name, member in own.items()
    }


def parameters(value: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(value).parameters)


def errors() -> Iterator[tuple[str, list[str]]]:
    """Each class, and all classes by which it is caught."""
    for name, value in vars(sortshuffle.errors).items():
        if inspect.isclass(value) and issubclass(value, sortshuffle.errors.SortShuffleError):
            yield name, sorted(base.__name__ for base in value.__mro__[1:])


def commands() -> dict[str, list[str]]:
    """The options of each command."""
    context = click.Context(command_line)
    found = {name: command_line.get_command(context, name) for name in command_line.list_commands(context)}
    return {
        name: sorted(option for each in command.params for option in [*each.opts, *each.secondary_opts])
        for name, command in found.items()
        if command is not None
    }


def dumps(files: Path) -> dict[str, Any]:
    """The shapes of what is printed of a file with rows, and of a directory."""
    (data,) = (files / "arrow-lz4").glob("*.data")
    calls = {"file": [str(data), "--records", "1"], "directory": [str(data.parent)]}
    return {what: shape(json.loads(dump(*words))) for what, words in calls.items()}


def dump(*words: str) -> str:
    result = CliRunner().invoke(command_line, ["dump", "--json", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def shape(value: Any) -> Any:
    """Types in place of values. All items of a list have that of the first."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value).__name__


def main() -> None:
    kept = KEPT / __version__
    found = interface(kept / "files")
    (kept / "interface.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
