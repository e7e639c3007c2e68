"""Runs that are larger than memory, or than 2 or 4 GiB. `tools/soak --big` runs them, `tools/test` not."""

from __future__ import annotations

from pathlib import Path

import pytest

TIMEOUT = 600  # seconds of a test; `limited.PATIENCE` is less, and so shows what a job has said
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.big)
            item.add_marker(pytest.mark.timeout(TIMEOUT))
