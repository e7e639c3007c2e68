"""Runs that are larger than memory, or than 2 or 4 GiB. `tools/soak --big` runs them, `tools/test` not."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.big)
