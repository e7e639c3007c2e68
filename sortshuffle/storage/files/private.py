"""Directories for this user alone. Standard library only: the supervisor must stay small."""

from __future__ import annotations

import os

from sortshuffle import calls

MODE = 0o700
TRIES = 10  # whoever removes what was above, because it was empty, does so once


def make_private(directory: str) -> None:
    """Make a directory, and those above it that are missing, all with `MODE`: ``os.makedirs`` gives a mode to
    the last one alone. One that is there stays as it is. One above that another process removes meanwhile, as
    `homes.lifetime.remove_home` does with empty ones, is made again. Raises OSError."""
    for left in reversed(range(TRIES)):
        above = os.path.dirname(directory)
        if above and above != directory and not calls.exists(above):
            make_private(above)
        try:
            calls.mkdir(directory, MODE)
            return
        except (FileExistsError, FileNotFoundError):  # it was there, or what is above is gone, a moment ago
            if calls.isdir(directory):
                return
            if not left:
                raise
