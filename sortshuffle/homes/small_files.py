"""Small files of JSON that processes of a host leave each other: whoever reads one finds the old or the new.

Standard library only: the janitor uses it, too.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from sortshuffle import calls


def replace_json(path: str, value: Any) -> None:
    """Write the file anew, as a whole; one thread of a process at a time. Raises OSError, and leaves no
    partial file then."""
    partial = f"{path}.{os.getpid()}"
    try:
        with calls.open_file(partial, "w", encoding="utf-8") as opened:
            json.dump(value, opened)
        calls.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            calls.unlink(partial)
        raise
