"""How a scan's paths are spelled: one spelling for each, so that paths can be compared, and one for messages.

Some file systems' paths begin with a slash, some have none. ``/`` is the root of both.
"""

from __future__ import annotations

import posixpath
import re

_USER_INFO = re.compile(r"(?<=://)[^/]*@")


def normal(path: str) -> str:
    """Return a path as Spark spells it: ``a//b``, ``a/./b`` and ``a/c/../b`` are ``a/b``, even if ``c`` is a
    link. There is no slash at the end. A URL, as http's paths are, stays as it is."""
    if "://" in path or not path:
        return path.rstrip("/") or "/"
    normalized = posixpath.normpath(path)
    return normalized[1:] if normalized.startswith("//") else normalized


def name_of(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def below(path: str, directory: str) -> list[str] | None:
    """Return the names that lead from a directory to a path; None if the path is not below it."""
    names, above = _names(path), _names(directory)
    is_below = len(names) > len(above) and names[: len(above)] == above
    return names[len(above) :] if is_below else None


def redact(path: str) -> str:
    """Return a path or URL as messages and plans show it: without user and password."""
    return _USER_INFO.sub("", path)


def _names(path: str) -> list[str]:
    inner = path.strip("/")
    return inner.split("/") if inner else []
