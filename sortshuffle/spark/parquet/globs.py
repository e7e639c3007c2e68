"""Path patterns, as Hadoop's file systems understand them.

Syntax: ``?``; ``*``, but not across ``/`` (``**`` is the same); ``[ab]``, ``[!ab]`` or ``[^ab]``; ``{a,b}``,
nested or with ``/`` inside; and a backslash before a literal sign. Names are matched whole, hidden ones too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.listing import Entry, entries, normal

_SIGNS = frozenset("{}[]*?\\")


def is_pattern(path: str) -> bool:
    """Return whether Spark takes a path as a pattern, which it does even if a file of that name exists."""
    return not _SIGNS.isdisjoint(path)


def matching(filesystem: Any, pattern: str) -> list[str]:
    """Return the existing paths that match, each once, sorted."""
    paths: set[str] = set()
    for alternative in alternatives(pattern):
        paths.update(_matching(filesystem, normal(alternative)))
    return sorted(paths)


def name_matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the whole name."""
    return any(_expression(each, pattern).fullmatch(name) for each in alternatives(pattern))


def alternatives(pattern: str) -> list[str]:
    """Return the patterns that a pattern's braces stand for. Raises `UsageError` if a brace is not closed."""
    start = _position_of("{", pattern)
    if start is None:
        return [pattern]
    depth, begin, choices = 0, start + 1, []
    position = start
    while position < len(pattern):
        sign = pattern[position]
        if sign == "\\":
            position += 1
        elif sign == "{":
            depth += 1
        elif sign == "," and depth == 1:
            choices.append(pattern[begin:position])
            begin = position + 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                choices.append(pattern[begin:position])
                head, tail = pattern[:start], pattern[position + 1 :]
                return [whole for choice in choices for whole in alternatives(head + choice + tail)]
        position += 1
    raise UsageError(
        f"the brace in the pattern {pattern} is not closed: put a backslash before a literal one"
    )


def _position_of(sign: str, pattern: str) -> int | None:
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] == sign:
            return position
        position += 1
    return None


def _matching(filesystem: Any, pattern: str) -> Iterator[str]:
    """Yield the existing paths that match a pattern without braces, searched one path level after another."""
    parts = pattern.split("/")
    plain = 0
    while plain < len(parts) and not is_pattern(parts[plain]):
        plain += 1
    parents = ["/".join(parts[:plain])]
    for at in range(plain, len(parts)):
        matches = _expression(parts[at], pattern).fullmatch
        is_last = at == len(parts) - 1
        parents = [
            entry.path
            for parent in parents
            for entry in _entries(filesystem, parent or "/", matches)
            if is_last or entry.is_directory
        ]
    # parts after the first sign were looked up in listings, so only a path without signs may be missing
    yield from (path for path in parents if plain < len(parts) or filesystem.exists(path))


def _entries(filesystem: Any, directory: str, is_wanted: Callable[[str], object]) -> Iterator[Entry]:
    try:
        listed = filesystem.ls(directory, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return iter(())
    return entries(filesystem, directory, listed, is_wanted)


def _expression(part: str, whole: str) -> re.Pattern[str]:
    """Translate one level of a pattern without braces. ``whole``: the pattern, for errors."""
    pieces = []
    position = 0
    while position < len(part):
        sign = part[position]
        if sign == "\\" and position + 1 < len(part):
            position += 1
            pieces.append(re.escape(part[position]))
        elif sign == "*":
            pieces.append(".*")
        elif sign == "?":
            pieces.append(".")
        elif sign == "[":
            characters, position = _character_class(part, position, whole)
            pieces.append(characters)
        else:
            pieces.append(re.escape(sign))
        position += 1
    return re.compile("".join(pieces), re.DOTALL)


def _character_class(part: str, start: int, whole: str) -> tuple[str, int]:
    """Return the regular expression of the class that begins at ``start``, and the position of its end."""
    position = start + 1
    negated = part[position : position + 1] in ("!", "^")
    position += negated
    body = ""
    while position < len(part) and part[position] != "]":
        if part[position] == "\\" and position + 1 < len(part):
            position += 1
            body += re.escape(part[position])
        else:
            body += part[position] if part[position] == "-" else re.escape(part[position])
        position += 1
    if position == len(part) or not body:
        raise UsageError(f"the bracket in the pattern {whole} is not closed or empty")
    try:
        re.compile(f"[{body}]")
    except re.error as error:
        raise UsageError(f"the brackets in the pattern {whole} mean nothing: {error}") from error
    return f"[{'^' if negated else ''}{body}]", position
