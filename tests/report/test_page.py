"""The page of a report: well-formed and whole, with the figures of the index; names in it are only text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pyarrow as pa
from outputs_with_rows import exchanges_in, write

from sortshuffle.options import format_size
from sortshuffle.report.findings import Findings
from sortshuffle.report.page import NotShown, Report, report_page


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
    for word in ("<script", "@import", "<link", "<iframe", "<object", "<base"):
        assert word not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    for element in parsed(of(tmp_path)).iter():
        for name in ("src", "href"):
            assert element.get(name, "#").startswith(("#", "data:image/png;base64,"))


def test_names_are_only_text(tmp_path: Path) -> None:
    write_two(tmp_path)
    wrong = [NotShown("/a/<i>\x1b[31m", "the index is missing")]
    page = report_page(of(tmp_path, wrong=wrong)).decode()
    assert "&lt;b&gt; int64" in page
    assert "/a/&lt;i&gt;\N{REPLACEMENT CHARACTER}[31m" in page


def test_pictures_are_described_and_take_the_colour_of_the_text(tmp_path: Path) -> None:
    write_two(tmp_path)
    body = parsed(of(tmp_path))
    figures = list(body.iter("figure"))
    captions = ["".join(caption.itertext()) for caption in body.iter("figcaption")]
    assert len(figures) == len(captions) == 4
    assert all(picture.get("aria-hidden") == "true" for picture in body.iter("svg"))
    third = exchanges_in(tmp_path)[0]
    assert captions[0].startswith("4 subpartitions; the largest, 2, has ")
    most = format_size(float(third.heat.cells.max()))
    assert captions[1] == (
        f"1 region in the order of files, the lighter the more: at most {most}, in region 0 and"
        " subpartition 2."
    )
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
    body = parsed(Report(str(tmp_path), "now", 1, [], [NotShown("/a/b", "unfinished")]))
    assert "1 map output is not added up: see the end of this page" in texts(body)
    assert "There is no complete map output to look at." in texts(body)
    assert ["/a/b", "unfinished"] in rows_of(body)


def test_places_that_could_not_be_looked_at_are_said(tmp_path: Path) -> None:
    write_two(tmp_path)
    body = parsed(of(tmp_path, passed_over=[NotShown("/a/secret", "Permission denied")]))
    assert "1 place could not be looked at: see the end of this page" in texts(body)
    assert ["/a/secret", "Permission denied"] in rows_of(body)


def test_the_largest_subpartitions_are_compared_with_the_median(tmp_path: Path) -> None:
    write_two(tmp_path)
    third = exchanges_in(tmp_path)[0]
    body = parsed(of(tmp_path))
    table = next(each for each in body.iter("table") if "times the median" in "".join(each.itertext()))
    order = np.argsort(-third.bytes, kind="stable")
    typical = np.median(third.bytes)
    assert [row[0] for row in rows_of(table)[1:]] == [str(at) for at in order]
    assert [row[3] for row in rows_of(table)[1:]] == [f"{third.bytes[at] / typical:.1f}" for at in order]
    assert [row.get("class") for row in table.iter("tr")] == [None, "warn", None, None, None]


def test_columns_are_sorted_by_what_they_take(tmp_path: Path) -> None:
    size = 10_000
    rows = pa.table({"same": [5] * size, "random": np.random.default_rng(1).integers(0, 1 << 62, size)})
    write(tmp_path, rows, np.arange(size) % 4)
    (findings,) = [Findings.of(each) for each in exchanges_in(tmp_path)]
    same, random = findings.columns
    part = random.stored_bytes / (same.stored_bytes + random.stored_bytes)
    found = [row for row in rows_of(parsed(of(tmp_path))) if row[0] in ("same int64", "random int64")]
    assert found == [
        ["random int64", f"{part:.0%}", "1.00"],
        ["same int64", f"{1 - part:.0%}", f"{same.raw_bytes / same.stored_bytes:.2f}"],
    ]


def test_heavy_values_have_their_shares(tmp_path: Path) -> None:
    size = 300_000
    places = np.where(np.arange(size) % 10 < 8, 2, np.arange(size) % 4)
    keys = np.where((places == 2) & (np.arange(size) % 20 < 12), 99, np.arange(size))
    write(tmp_path, pa.table({"k": keys, "n": np.random.default_rng(1).integers(0, 1 << 62, size)}), places)
    share = ((keys == 99) & (places == 2)).sum() / (places == 2).sum()
    rows = [row for row in rows_of(parsed(of(tmp_path))) if row[:2] == ["k", "99"]]
    assert rows == [["k", "99", f"{share:.0%}", "0.0%"]]


def test_many_subpartitions_are_joined_and_that_is_said(tmp_path: Path) -> None:
    size = 3000
    write(tmp_path, pa.table({"n": np.arange(size)}), np.arange(size) % 1000, subpartitions=1000)
    captions = ["".join(caption.itertext()) for caption in parsed(of(tmp_path)).iter("figcaption")]
    assert captions[0].startswith("1,000 subpartitions, the largest of 4 in each bar; the largest, ")
    assert "1 region in the order of files, up to 4 subpartitions in each column, the lighter" in captions[1]
    assert " on average, in region 0 and subpartition " in captions[1]
