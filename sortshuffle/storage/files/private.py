"""Directories for this user alone. Standard library only: the supervisor must stay small."""

from __future__ import annotations

import os

from sortshuffle import calls

MODE = 0o700
TRIES = 10  # each other process that removes an empty directory above does so once


def make_private(directory: str) -> None:
    """Make a directory, and those above it that are missing, all with `MODE`: ``os.makedirs`` gives the mode
    only to the last one. A directory that is there stays as it is. One above that another process removes
    meanwhile (`homes.lifetime.remove_home` removes empty ones) is made again. Raises OSError."""
    for left in reversed(range(TRIES)):
        above = os.path.dirname(directory)
        if above and above != directory and not calls.exists(above):
            make_private(above)
        try:
            calls.mkdir(directory, MODE)
            return
        except (FileExistsError, FileNotFoundError):  # another process made it, or removed one above
            if calls.isdir(directory):
                return
            if not left:
                raise
