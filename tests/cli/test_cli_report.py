"""`sortshuffle report` and `dump --summary`, which say the same."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
from built_outputs import CROWDED, build
from run_cli import run, unlistable

from sortshuffle import calls
from sortshuffle.cli import report
from sortshuffle.format.encryption import EncryptionKey


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    home = tmp_path / "sortshuffle" / "app-1" / "host-1"
    home.mkdir(parents=True)
    build(home, map_index=0, attempt=100)
    build(home, map_index=1, attempt=101)
    build(home, exchange=4, map_index=0, attempt=102)
    return tmp_path


def test_a_report_of_a_directory(directory: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("report", directory, "-o", page)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"{page}: 2 exchanges of 3 map outputs"
    content = page.read_text()
    assert "Exchange 3 of app-1" in content
    assert "Exchange 4 of app-1" in content
    assert content.endswith("</html>")


def test_a_report_of_one_file_in_the_working_directory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (data,) = directory.rglob("exchange-4-*.data")
    result = run("report", data)
    assert result.stdout.splitlines()[0] == "report.html: 1 exchange of 1 map output"
    assert "Exchange 4 of app-1" in (tmp_path / "report.html").read_text()


def test_the_report_and_the_summary_give_the_same_advice(directory: Path, tmp_path: Path) -> None:
    reported = run("report", directory, "-o", tmp_path / "page.html").stdout.splitlines()[1:]
    summary = run("dump", directory, "--summary").stdout.splitlines()
    assert summary[: len(reported) - 1] == reported[1:]
    assert "Exchange 3 of app-1" in summary


def test_the_summary_has_the_figures_of_the_index(directory: Path) -> None:
    lines = [line.split() for line in run("dump", directory, "--summary").stdout.splitlines()]
    assert ["map", "outputs", "2,", "6", "regions"] in lines
    largest = [line for line in lines if line[:1] == [str(CROWDED)]]
    assert len(largest) == 2
    assert ["k", "int64"] in [line[:2] for line in lines]


def test_damage_is_said(directory: Path, tmp_path: Path) -> None:
    (index,) = directory.rglob("exchange-4-*.index")
    index.unlink()
    result = run("report", directory, "-o", tmp_path / "page.html")
    assert result.exit_code == 1
    assert "the index file is missing" in (tmp_path / "page.html").read_text()
    assert "the index file is missing" in result.stdout
    summary = run("dump", directory, "--summary")
    assert summary.exit_code == 1
    assert "the index file is missing" in summary.stdout


def test_where_nothing_is_whole_nothing_is_called_well(directory: Path, tmp_path: Path) -> None:
    for index in directory.rglob("*.index"):
        index.unlink()
    assert "There is no complete map output to look at." in run("dump", directory, "--summary").stdout
    assert "Nothing stands out" not in run("report", directory, "-o", tmp_path / "page.html").stdout


def test_what_cannot_be_listed_is_passed_over(directory: Path, tmp_path: Path) -> None:
    path = unlistable(directory)
    result = run("report", directory, "-o", tmp_path / "page.html")
    assert result.exit_code == 1
    assert f"{path} is passed over" in result.stderr
    assert "1 place could not be looked at" in (tmp_path / "page.html").read_text()
    assert run("dump", directory, "--summary").exit_code == 1


def test_nothing_to_report(tmp_path: Path) -> None:
    result = run("report", tmp_path, "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "there are no map outputs below" in result.stderr
    assert "spark.sortshuffle.keep" in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written(directory: Path, tmp_path: Path) -> None:
    result = run("report", directory, "-o", tmp_path / "missing" / "page.html")
    assert result.exit_code == 2
    assert f"the page cannot be written: there is no directory {tmp_path / 'missing'}" in result.stderr


def test_a_page_that_cannot_be_written_whole_leaves_the_one_before(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")

    def full(one: str, other: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(calls, "replace", full)
    result = run("report", directory, "-o", page)
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert page.read_text() == "before"
    assert {each.name for each in tmp_path.iterdir()} == {"page.html", "sortshuffle"}


def test_a_map_output_is_not_written_over(directory: Path) -> None:
    (data,) = directory.rglob("exchange-4-*.data")
    before = data.read_bytes()
    result = run("report", directory, "-o", data)
    assert result.exit_code == 2
    assert "is named like a map output" in result.stderr
    assert data.read_bytes() == before


def test_a_page_on_standard_output(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", directory, "-o", "-")
    assert result.exit_code == 0
    assert result.stdout.startswith("<!DOCTYPE html>")
    assert result.stdout.endswith("</html>")
    assert {each.name for each in tmp_path.iterdir()} == {"sortshuffle"}


@pytest.mark.parametrize(
    ("key", "code", "why"), [(1, 0, ""), (2, 1, "their key is another one"), (None, 0, "there is no key")]
)
def test_encrypted_rows(tmp_path: Path, key: int | None, code: int, why: str) -> None:
    build(tmp_path, key=EncryptionKey(bytes([1]) * 32))
    key_file = tmp_path / "key"
    options: list[object] = []
    if key is not None:
        key_file.write_text((bytes([key]) * 32).hex())
        options = ["--key-file", key_file]
    page = tmp_path / "page.html"
    assert run("report", tmp_path, "-o", page, *options).exit_code == code
    assert page.stat().st_mode & 0o777 == 0o600
    summary = run("dump", tmp_path, "--summary", *options)
    assert summary.exit_code == code
    for text in (page.read_text(), summary.stdout):
        assert (f"Rows are not decoded: they are encrypted, and {why}." in text) == bool(why)
        assert ("k int64" in text) == (not why)


@pytest.mark.parametrize(
    "more", [["--json"], ["--records", "1"], ["--subpartition", "1"], ["--all"], ["--quick"]]
)
def test_the_summary_stands_alone(directory: Path, more: list[str]) -> None:
    result = run("dump", directory, "--summary", *more)
    assert result.exit_code == 2
    assert "--summary stands alone" in result.stderr


def test_without_matplotlib_the_remedy_is_said(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(report, "listing_of", None)  # nothing is looked at
    result = run("report", directory, "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "pip install 'sortshuffle[report]'" in result.stderr
    assert run("dump", directory, "--summary").exit_code == 0
