"""What tests of the service share with those in the directories below: modules, and short paths."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where `scripted_server` is


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary directory whose path leaves room for that of a Unix socket in it: the system takes 107
    bytes, and ``tmp_path`` alone may have 90. A service that was killed may still write into it."""
    with tempfile.TemporaryDirectory(prefix="sockets-", ignore_cleanup_errors=True) as made:
        yield Path(made)
