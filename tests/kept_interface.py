"""Lists what docs/stability.md promises to keep, apart from files and protocol: options, public names of
Python and their parameters, errors, commands, and the JSON of `dump`.

    python tests/kept_interface.py        into tests/written_by/VERSION/interface.json
"""

from __future__ import annotations

import inspect
import json
import re
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
        "options": dict(options()),
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


def options() -> Iterator[tuple[str, dict[str, Any]]]:
    """The unit of each option, and the words that it allows, if it allows words alone."""
    for each in fields(Options):
        spec = each.metadata["spec"]
        words = spec.allowed.split(", ")
        are_words = all(re.fullmatch("[a-z0-9]+", word) for word in words)
        yield (
            spec.key,
            {"unit": spec.unit, "words": [spec.parse(word) for word in words] if are_words else []},
        )


def members(value: type) -> dict[str, Any]:
    """Those that the class or a class of this package's above it has."""
    classes = [each for each in value.__mro__ if each.__module__.partition(".")[0] == "sortshuffle"]
    names = {name for each in classes for name in vars(each) if not name.startswith("_")}
    own = {name: getattr(value, name) for name in sorted(names)}
    return {
        name: parameters(member) if inspect.isroutine(member) and callable(member) else "attribute"
        for name, member in own.items()
    }


def parameters(value: Callable[..., Any]) -> list[str]:
    """The names; of those that may be left out, with an equals sign."""
    return [
        f"{name}="
        if each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        else name
        for name, each in inspect.signature(value).parameters.items()
    ]


def errors() -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Each class, all classes by which it is caught, and how it is made."""
    for name, value in vars(sortshuffle.errors).items():
        if inspect.isclass(value) and issubclass(value, sortshuffle.errors.SortShuffleError):
            bases = sorted(base.__name__ for base in value.__mro__[1:])
            yield name, {"bases": bases, "parameters": parameters(value.__init__)}


def commands() -> dict[str, dict[str, str]]:
    """The options and arguments of each command."""
    context = click.Context(command_line)
    found = {name: command_line.get_command(context, name) for name in command_line.list_commands(context)}
    return {
        name: {word: taken(each) for each in command.params for word in [*each.opts, *each.secondary_opts]}
        for name, command in found.items()
        if command is not None
    }


def taken(parameter: click.Parameter) -> str:
    """What an option or an argument takes, and whether it must be there."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        what = "nothing"
    elif isinstance(parameter.type, click.Choice):
        what = f"one of {', '.join(map(str, parameter.type.choices))}"
    else:
        what = "any number" if parameter.nargs == -1 else f"{parameter.nargs}"
    return f"{what}, required" if parameter.required else what


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
