"""Where ``CI=true`` or ``CI=1`` a skipped test fails, unless its reason is listed here.

A test skips itself where something is not to be had: rights to mount, IPv6, a package index. On a machine
that is there to run all tests that would be a hole which nobody sees.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

# The beginning of a skip's reason, and why nothing is lost by it.
ALLOWED = {
    "the session that runs has the manager": "only with SORTSHUFFLE_TEST_MANAGER=on, which is a second run",
    "executors elsewhere write": "only in tools/manager_matrix, on a cluster; the suite runs it on this host",
    "whose a shuffle is does not depend on where executors are": "only in tools/manager_matrix; as above",
    "the other sessions have all the cores": "only in tools/manager_matrix, on a cluster; as above",
    "control groups cannot be made": "the benchmark that needs them says so, too",
    "there is no Chromium": "other tests read the same pages without a browser",
    "the hosts' disks are elsewhere": "only in tools/manager_matrix, on a cluster; as above",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):  # which is reported as a skip too
        fail_unless_allowed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_unless_allowed(report)
    return report


def fail_unless_allowed(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or os.environ.get("CI") not in ("true", "1"):
        return
    assert isinstance(report.longrepr, tuple)
    path, line, said = report.longrepr
    reason = said.removeprefix("Skipped: ")
    if not reason.startswith(tuple(ALLOWED)):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: where CI is set nothing is skipped for this reason: {reason}"
