"""Tests that hang, each in a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

LIMITS = ["-o", "timeout=1", "-o", "timeout_method=signal", "-p", "time_limits"]
HANGS = """
    import threading
    from time import sleep
    import pytest

    def waits(event):
        event.wait()

    @pytest.fixture
    def beside():
        event = threading.Event()
        thread = threading.Thread(target=waits, args=(event,))
        thread.start()
        yield
        event.set()
        thread.join()
"""


@pytest.fixture(autouse=True)
def guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_a_hang_fails_with_the_stacks_of_all_threads_and_the_next_test_runs(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        HANGS
        + """
    def test_hangs(beside):
        threading.Event().wait()

    def test_is_next():
        pass
    """
    )
    result = pytester.runpytest_subprocess(*LIMITS)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*threading.Event().wait()", "*Timeout (>1.0s)*", "*in waits", "*event.wait()"]
    )


def test_a_hang_in_the_teardown_of_a_test_that_failed_ends(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import time_limits; time_limits.TEARDOWN_S = 1.0")
    pytester.makepyfile(
        """
    import threading
    import pytest

    @pytest.fixture
    def never_ends():
        yield
        threading.Event().wait()

    def test_fails(never_ends):
        assert False
    """
    )
    result = pytester.runpytest_subprocess(*LIMITS)
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*threading.Event().wait()", "*Timeout (>1.0s)*"])


def test_what_catches_the_failure_ends_with_the_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
    import threading

    def test_catches():
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass
    """
    )
    last = ["-o", "faulthandler_timeout=2", "-o", "faulthandler_exit_on_timeout=true"]
    result = pytester.runpytest_subprocess(*LIMITS, *last)
    assert result.ret == 1
    result.stderr.fnmatch_lines(["Timeout*", "*in test_catches"])


@pytest.mark.parametrize("marker", ["timeout(600)", "timeout(timeout=600)"])
def test_no_test_has_longer_than_the_process(pytester: pytest.Pytester, marker: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_a(): pass")
    result = pytester.runpytest_subprocess(*LIMITS, "-o", "faulthandler_timeout=600")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_a: the process would end before its time limit"])


def test_a_marker_without_a_limit_leaves_it_as_it_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.timeout(method='signal')\ndef test_a(): pass")
    result = pytester.runpytest_subprocess(*LIMITS, "-o", "faulthandler_timeout=600")
    result.assert_outcomes(passed=1)


def test_every_test_here_has_a_limit(request: pytest.FixtureRequest) -> None:
    config = request.config
    limit, last = (float(config.getini(name)) for name in ("timeout", "faulthandler_timeout"))
    assert 0 < limit < last
    assert config.getini("timeout_method") == "signal"
    assert config.getini("faulthandler_exit_on_timeout") is True
