"""The page of a report: well-formed and whole, with the figures of the index; names in it are only text."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pyarrow as pa
from outputs_with_rows import exchanges_in, write

from sortshuffle.options import format_size
from sortshuffle.report.findings import Findings
from sortshuffle.report.page import PairWithFault, Report, report_page


def parsed(report: Report) -> Element:
    """The page as a tree: fails where an element is not closed."""
    page = report_page(report).decode()
    start = page.index("<body>")
    return fromstring(page[start : page.index("</body>") + len("</body>")])


def texts(body: Element) -> list[str]:
    return [text.strip() for text in body.itertext() if text.strip()]


def rows_of(body: Element) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in body.iter("tr")]


def of(directory: Path, **more: object) -> Report:
    found = [Findings.of(each) for each in exchanges_in(directory)]
    return Report(str(directory), "2026-01-01 00:00 UTC", 2, found, **more)


def write_two(directory: Path) -> None:
    size = 200_000
    random = np.random.default_rng(1)
    rows = pa.table({"k": random.integers(0, 1 << 62, size), "<b>": random.integers(0, 1 << 62, size)})
    write(directory, rows, np.where(np.arange(size) % 10 < 9, 2, np.arange(size) % 4))
    write(directory, rows, np.arange(size) % 4, exchange=4)


def test_the_figures_are_those_of_the_index(tmp_path: Path) -> None:
    write_two(tmp_path)
    body = parsed(of(tmp_path))
    third, fourth = exchanges_in(tmp_path)
    found = texts(body)
    for files in (third, fourth):
        assert f"Exchange {files.number} of app-1" in found
        assert format_size(files.totals.bytes) in found
        assert f"{files.totals.raw_bytes / files.totals.bytes:.2f}" in found
        assert f"{files.totals.records:,} rows in {files.totals.buffers:,} buffers" in found
    largest = [row for row in rows_of(body) if row[0] == "2"]
    assert largest[0][1:3] == [format_size(int(third.bytes[2])), f"{third.records[2]:,}"]


def test_the_advice_stands_first(tmp_path: Path) -> None:
    write_two(tmp_path)
    body = parsed(of(tmp_path))
    items = ["".join(item.itertext()) for item in body.iter("li")]
    assert items[0].startswith("Subpartition 2 of exchange 3 has ")
    order = [each.tag for each in body.iter() if each.tag in ("ol", "svg")]
    assert order.index("ol") < order.index("svg")


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    write_two(tmp_path)
    page = report_page(of(tmp_path)).decode()
    assert "<script" not in page
    assert "@import" not in page
    for element in parsed(of(tmp_path)).iter():
        for name in ("src", "href"):
            assert element.get(name, "#").startswith(("#", "data:image/png;base64,"))


def test_names_are_only_text(tmp_path: Path) -> None:
    write_two(tmp_path)
    wrong = [PairWithFault("/a/<i>\x1b[31m", "the index is missing")]
    page = report_page(of(tmp_path, wrong=wrong)).decode()
    assert "&lt;b&gt; int64" in page
    assert "/a/&lt;i&gt;\N{REPLACEMENT CHARACTER}[31m" in page


def test_pictures_are_described_and_take_the_colour_of_the_text(tmp_path: Path) -> None:
    write_two(tmp_path)
    body = parsed(of(tmp_path))
    figures = list(body.iter("figure"))
    assert len(figures) == 4
    assert all(figure.get("role") == "img" for figure in figures)
    label = figures[0].get("aria-label")
    assert label is not None
    assert label.startswith("Bytes of each subpartition: 4 subpartitions; the largest, 2, has ")
    page = report_page(of(tmp_path)).decode()
    assert "currentColor" in page
    assert "#010203" not in page


def test_the_same_files_give_the_same_page(tmp_path: Path) -> None:
    write_two(tmp_path)
    assert report_page(of(tmp_path)) == report_page(of(tmp_path))


def test_identifiers_are_unique(tmp_path: Path) -> None:
    write_two(tmp_path)
    found = [each.get("id") for each in parsed(of(tmp_path)).iter() if each.get("id")]
    assert len(found) == len(set(found))


def test_map_outputs_that_are_not_added_up_are_listed(tmp_path: Path) -> None:
    body = parsed(Report(str(tmp_path), "now", 1, [], [PairWithFault("/a/b", "unfinished")]))
    assert "1 map output not added up" in texts(body)
    assert ["/a/b", "unfinished"] in rows_of(body)
