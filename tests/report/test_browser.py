"""The page of a report in a browser: it renders without an error, loads nothing, and shows the figures of the
index."""

from __future__ import annotations

import re
from pathlib import Path

import browser
import numpy as np
import pyarrow as pa
import pytest
from outputs_with_rows import exchanges_in, write

from sortshuffle.options import format_size
from sortshuffle.report.findings import Findings
from sortshuffle.report.page import Report, report_page


def opened(page: Path, *options: str) -> tuple[str, str]:
    """The document after it was rendered, and what the browser logged."""
    return browser.opened(page, page.parent / "profile", *options)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    files.mkdir()
    size = 20_000
    rows = pa.table({"k": np.arange(size), "<script>throw 1</script>": np.arange(size)})
    write(files, rows, np.arange(size) % 4)
    found = [Findings.of(each) for each in exchanges_in(files)]
    path = tmp_path / "report.html"
    path.write_bytes(report_page(Report(str(files), "2026-01-01", 1, found)))
    return path


def test_a_browser_shows_the_figures_of_the_index(page: Path) -> None:
    document, log = opened(page)
    assert "CONSOLE" not in log
    (files,) = exchanges_in(page.parent / "files")
    cells = re.findall(r"<td>([^<]*)</td>", document)
    for number in range(4):
        at = cells.index(str(number))
        assert cells[at + 1 : at + 3] == [
            format_size(int(files.bytes[number])),
            f"{files.records[number]:,}",
        ]
    assert document.count("<svg") == 2
    assert "&lt;script&gt;throw 1&lt;/script&gt; int64" in document


def test_the_control_an_error_of_a_page_is_logged(page: Path) -> None:
    page.write_text("<!DOCTYPE html><html><body><script>throw 1</script></body></html>")
    assert "CONSOLE" in opened(page)[1]
