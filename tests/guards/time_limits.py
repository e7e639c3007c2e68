"""A hang fails, and shows where each thread stood.

Three clocks, each for what the one before it cannot end:

* pytest-timeout raises in the main thread after `timeout` seconds (pyproject.toml), for set-up, test and
  teardown together. The test fails, the others go on. A marker ``timeout(seconds)`` gives a test longer.
* pytest-timeout stops its clock when a test fails, although fixtures may hang on what the test has left. So
  teardown has a clock of its own here.
* faulthandler ends the process after `faulthandler_timeout` seconds, where the main thread waits in native
  code, or something catches what was raised. It must be longer than every marker.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from pytest_timeout import Settings

TEARDOWN_S = 120.0  # a session of Spark that ends takes 1 s, a cluster 5 s


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    settings = Settings(TEARDOWN_S, "signal", False, False)
    item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        return (yield)
    finally:
        item.ihook.pytest_timeout_cancel_timer(item=item)


def _seconds(marker: pytest.Mark) -> float:
    """The time limit that a marker gives; 0 if it gives none, but a method."""
    given = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    return float(given or 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    last = float(config.getini("faulthandler_timeout") or 0)
    for item in items:
        marker = item.get_closest_marker("timeout")
        if marker and last and _seconds(marker) >= last:
            raise pytest.UsageError(f"{item.nodeid}: the process would end before its time limit")
