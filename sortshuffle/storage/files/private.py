"""Makes directories for this user alone. Standard library only: the supervisor must stay small."""

from __future__ import annotations

import os

from sortshuffle import calls

MODE = 0o700
TRIES = 10  # another process that removes an empty parent does so only once


def make_private(directory: str) -> None:
    """Make a directory and its missing parents, all with `MODE`: ``os.makedirs`` gives the mode only to the
    last one. An existing directory stays as it is. If another process removes a parent meanwhile
    (`homes.lifetime.remove_home` removes empty ones), it is made again. Raises OSError."""
    for left in reversed(range(TRIES)):
        above = os.path.dirname(directory)
        if above and above != directory and not calls.exists(above):
            make_private(above)
        try:
            calls.mkdir(directory, MODE)
            return
        except (FileExistsError, FileNotFoundError):  # another process made it, or removed a parent
            if calls.isdir(directory):
                return
            if not left:
                raise
