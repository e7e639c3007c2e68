"""Which tests one worker of pytest-xdist runs, in their order: those of a file, and all that share a cluster.

pytest-xdist has `--dist loadgroup` for this. Version 3.8 writes the group into an attribute of the tests that
pytest 9.2 no longer has, so every test went to whichever worker was free: fixtures were made twice, and tests
that depend on their order failed. A scheduler of our own asks for the path alone.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARING = "tests/spark/cluster"
"""A directory whose files share a fixture that takes long to make."""


class Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """``nodeid``: the path of a file of tests, relative to the checkout, ``::``, and the name of a test."""
    path = nodeid.split("::", 1)[0]
    return SHARING if str(PurePosixPath(path).parent) == SHARING else path


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Groups(config, log)
