"""Path patterns, as Hadoop's file systems understand them.

Syntax: ``?``; ``*``, but not across ``/`` (``**`` is the same); ``[ab]``, ``[!ab]`` or ``[^ab]``; ``{a,b}``,
nested or with ``/`` inside; and a backslash before a literal sign. Names are matched whole, hidden ones too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.listing import Entry, entries
from sortshuffle.spark.parquet.paths import normal, redact

_SIGNS = frozenset("{}[]*?\\")


def is_pattern(path: str) -> bool:
    """Return whether Spark takes a path as a pattern, which it does even if a file of that name exists."""
    return not _SIGNS.isdisjoint(path)


def matching(filesystem: Any, pattern: str) -> list[str]:
    """Return the existing paths that match, sorted, each once for each of the `alternatives`."""
    wholes = map(normal, alternatives(pattern))
    return sorted(path for whole in wholes for path in _matching(filesystem, whole))


def name_matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the whole name."""
    return any(_expression(each, pattern).fullmatch(name) for each in alternatives(pattern))


def alternatives(pattern: str) -> list[str]:
    """Return the patterns that a pattern stands for, in none of which a brace holds a ``/``. Braces without
    one are choices within a name, so they stay: ``a/{,b}`` is not ``a/``.

    Raises `UsageError` if a brace that holds a ``/`` is not closed.
    """
    start = _brace_across_levels(pattern)
    if start is None:
        return [pattern]
    depth, begin, choices = 0, start + 1, []
    for position, sign in _signs(pattern, start):
        if sign == "{":
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
    raise _unclosed(pattern)


def _brace_across_levels(pattern: str) -> int | None:
    """Return the position of the first outer brace that holds a ``/``."""
    depth, outer = 0, 0
    for position, sign in _signs(pattern):
        if sign == "{":
            if not depth:
                outer = position
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
        elif sign == "/" and depth:
            return outer
    return None


def _signs(pattern: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the characters that no backslash makes literal, with their positions."""
    position = start
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        else:
            yield position, pattern[position]
        position += 1


def _unclosed(pattern: str) -> UsageError:
    return UsageError(
        f"the brace in the pattern {redact(pattern)} is not closed: put a backslash before a literal one"
    )


def _matching(filesystem: Any, pattern: str) -> Iterator[str]:
    """Yield the existing paths that match one of the `alternatives`, searched level after level."""
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
    """Translate one level of a pattern. ``whole``: the pattern, for errors."""
    pieces = []
    depth = 0  # of braces
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
            characters, position = _character_class(part, position, whole, depth > 0)
            pieces.append(characters)
        elif sign == "{":
            depth += 1
            pieces.append("(?:")
        elif sign == "," and depth:
            pieces.append("|")
        elif sign == "}" and depth:
            depth -= 1
            pieces.append(")")
        else:
            pieces.append(re.escape(sign))
        position += 1
    if depth:
        raise _unclosed(whole)
    return re.compile("".join(pieces), re.DOTALL)


def _character_class(part: str, start: int, whole: str, in_braces: bool) -> tuple[str, int]:
    """Return the regular expression of the class that begins at ``start``, and the position of its end.

    Raises `UsageError` for what Hadoop takes for signs of braces even here: nobody means what that matches.
    """
    position = start + 1
    negated = part[position : position + 1] in ("!", "^")
    position += negated
    body = ""
    while position < len(part) and part[position] != "]":
        if part[position] == "\\" and position + 1 < len(part):
            position += 1
            body += re.escape(part[position])
        elif part[position] == "{" or (part[position] in "}," and in_braces):
            raise UsageError(
                f"the brackets in the pattern {redact(whole)} hold {part[position]!r}: put a backslash before"
                " it"
            )
        else:
            body += part[position] if part[position] == "-" else re.escape(part[position])
        position += 1
    if position == len(part) or not body:
        raise UsageError(f"the bracket in the pattern {redact(whole)} is not closed or empty")
    try:
        re.compile(f"[{body}]")
    except re.error as error:
        raise UsageError(f"the brackets in the pattern {redact(whole)} mean nothing: {error}") from error
    return f"[{'^' if negated else ''}{body}]", position
