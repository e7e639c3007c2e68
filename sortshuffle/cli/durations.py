"""Durations on the command line: parses options such as 12h, and formats durations for people."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_NAMES = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def seconds_of(examples: str) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Make the callback of an option that takes a duration; it returns seconds. ``examples``: for errors."""

    def parse(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d+)([a-z]+)", text.strip().lower())
        if match is None or match[2] not in _UNITS:
            raise click.BadParameter(f"{text!r} is not a time such as {examples}")
        return float(match[1]) * _UNITS[match[2]]

    return parse


def duration(seconds: float) -> str:
    """Format a duration for people, in whole numbers of its largest unit."""
    for unit, size in _NAMES:
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}" + ("" if number == 1 else "s")
    return "less than a second"
