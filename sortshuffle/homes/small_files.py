"""Small files that are replaced as a whole: a reader finds the old content or the new one. Most are JSON that
processes of a host share.

Standard library only: the janitor and the supervisor use it, too.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any

from sortshuffle import calls

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_json(path: str, value: Any, mode: int = 0o666) -> None:
    """Replace the file as `replace_file` does, by a value as JSON."""
    replace_file(path, json.dumps(value).encode(), mode)


def replace_file(path: str, content: bytes, mode: int = 0o666) -> None:
    """Replace the file as a whole. Several processes may call it, each from one thread at a time. ``mode``:
    of the file, less the umask. Raises OSError, and leaves no partial file then."""
    partial = f"{path}.{os.getpid()}"
    try:
        descriptor = calls.open(partial, _NEW, mode)
        try:
            opened = calls.open_file(descriptor, "wb")
        except BaseException:
            calls.close(descriptor)
            raise
        with opened:  # which closes the descriptor
            opened.write(content)
        calls.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            calls.unlink(partial)
        raise


def is_partial(name: str) -> bool:
    """Return whether this is the partial file of a process, which may have been killed while writing."""
    return re.search(r"\.\d+$", name) is not None
