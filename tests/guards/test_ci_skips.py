"""Skipped tests, in a pytest of their own."""

from __future__ import annotations

import ci_skips
import pytest

SKIPPING = """
    import pytest

    def test_inside():
        pytest.skip("no IPv6 loopback here")

    @pytest.mark.skipif(True, reason="no package index")
    def test_marked(): pass

    @pytest.fixture
    def tool():
        pytest.skip("no such tool")

    def test_set_up(tool): pass

    @pytest.mark.skip(reason="known: and more")
    def test_allowed(): pass

    @pytest.mark.xfail
    def test_expected_to_fail():
        assert False

    def test_passes(): pass
"""
MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_never_seen(): pass"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci_skips, "ALLOWED", {"known": "a reason"})


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "ci_skips")


@pytest.mark.parametrize("ci", ["true", "1"])
def test_a_skip_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(SKIPPING)
    result = run(pytester)
    result.assert_outcomes(failed=1, errors=2, skipped=1, xfailed=1, passed=1)
    for reason in ("no IPv6 loopback here", "no package index", "no such tool"):
        result.stdout.fnmatch_lines([f"*where CI is set nothing is skipped for this reason: {reason}"])


def test_a_skipped_module_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(MODULE)
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nothing is skipped for this reason: could not import 'no_such_module'*"])


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_elsewhere_a_skip_is_a_skip(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str | None
) -> None:
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)
    pytester.makepyfile(SKIPPING)
    run(pytester).assert_outcomes(skipped=4, xfailed=1, passed=1)
