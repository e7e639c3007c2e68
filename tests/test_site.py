"""`tools/docs`: the documentation site. Its links lead somewhere, its pages read as they do on the code host,
it loads nothing from other hosts, and each name that users import has its place and says what it is."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from browser import opened
from engine import ENVIRONMENT, ROOT
from markdown_it import MarkdownIt

from sortshuffle.cli.main import SUMMARIES, main

PUBLIC = ("sortshuffle", "sortshuffle.engine", "sortshuffle.partitioner")
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
TAGS = {"ul", "ol", "li", "pre", "code", "table", "tr", "td", "p", "h1", "h2", "h3", "h4", "em", "strong"}
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    code, said = build(ROOT, directory)
    assert code == 0, said
    return directory


def build(checkout: Path, directory: Path) -> tuple[int, str]:
    """As `tools/docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**ENVIRONMENT, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_control_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "*.jar", "data", "*.jsonl")
    for name in ("docs", "examples", "sortshuffle", "tools"):
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "mkdocs.yml", ROOT / "LICENSE"]:
        shutil.copy(path, checkout)
    with (checkout / "docs" / "index.md").open("a") as page:
        page.write("\n[1](operations.md#no-such-heading) [2](../no_such_file.py) [3](no-such-page.md)\n")
    code, said = build(checkout, tmp_path / "site")
    assert code == 1
    assert said.count("WARNING") == 3
    assert all(
        f"'{target}'" in said for target in ("#no-such-heading", "../no_such_file.py", "no-such-page.md")
    )


class Elements(HTMLParser):
    """The elements of a page, or of its text alone."""

    def __init__(self, html: str, only_text: bool = False) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html.partition("<article")[2].partition("</article>")[0] if only_text else html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def counted(self) -> Counter[str]:
        return Counter(tag for tag, _ in self.found if tag in TAGS)


def html_of(page: str) -> str:
    return re.sub("README.md$", "index.md", page).removesuffix(".md") + ".html"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_as_on_the_code_host(page: str, site: Path) -> None:
    on_host = MarkdownIt("commonmark").enable("table").render((ROOT / "docs" / page).read_text())
    here = (site / html_of(page)).read_text()
    assert Elements(here, only_text=True).counted() == Elements(on_host).counted()


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loaded = [
        (path.name, attributes.get(LOADS[tag]) or "")
        for path in site.rglob("*.html")
        for tag, attributes in Elements(path.read_text()).found
        if tag in LOADS
    ]
    assert len(loaded) > 100
    assert [each for each in loaded if re.match(r"(\w+:)?//", each[1])] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert [
        found for style in styles for found in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", style)
    ] == []


def test_a_search_finds_pages_that_are_opened_as_files(site: Path, tmp_path: Path) -> None:
    document, log = opened(
        site / "tutorial.html", tmp_path, "--virtual-time-budget=10000", query="?q=FileAccessError"
    )
    found = re.findall(r'<a href="([^"?#]+)[^"]*" class="md-search-result__link"', document)
    assert "CONSOLE" not in log
    assert {
        (site / "operations.html").as_uri(),
        (site / "reference/python/sortshuffle.errors.html").as_uri(),
    } <= set(found)


def test_files_outside_of_docs_that_pages_link_to_are_there(site: Path) -> None:
    page = (site / "spark.html").read_text()
    assert 'href="repository/examples/jobs/etl.py.html"' in page
    assert "getOrCreate" in (site / "repository" / "examples" / "jobs" / "etl.py.html").read_text()
    assert 'href="etl.py.html"' in (site / "repository" / "examples" / "jobs" / "index.html").read_text()
    assert (
        'href="../operations.html#options"' in (site / "repository" / "index.html").read_text()
    )  # the README


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_has_an_entry(module: str, site: Path) -> None:
    page = (site / "reference" / "python" / f"{module}.html").read_text()
    names = importlib.import_module(module).__all__
    assert [name for name in names if f'id="{module}.{name}"' not in page] == []


def test_docstrings_are_shown_as_markdown(site: Path) -> None:
    pages = {path.stem: path.read_text() for path in (site / "reference" / "python").glob("*.html")}
    assert len(pages) == 8
    assert [name for name, page in pages.items() if "``" in page] == []
    rows = re.findall(r"<td>(.*)</td>\n<td>(.*)</td>\n<td>(.*)</td>", pages["sortshuffle.errors"])
    assert len(rows) == 19
    assert rows[:3] == [
        ("UsageError", "fix the call", "ValueError"),
        ("&emsp;OptionError", "fix a <code>spark.sortshuffle.*</code> setting", "ValueError"),
        ("&emsp;ColumnError", "name a column that is there", "ValueError, LookupError"),
    ]
    assert ("InsufficientBuffersError", "give the pool that is named more memory", "MemoryError") in rows
    assert "<li>Order is fixed" in pages["sortshuffle.engine"]
    assert "Another name of <code>filter</code>." in pages["sortshuffle"]


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_each_command_has_its_options(name: str, site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text()
    section = page.partition(f'id="sortshuffle-{name}"')[2].partition("<h2")[0]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [each.opts[-1] for each in command.params if isinstance(each, click.Option)]
    assert len(options) > 1
    assert [
        option for option in options if f"<code>{option}" not in section and f", {option}" not in section
    ] == []


def test_the_metrics_of_a_service_are_there(site: Path) -> None:
    page = (site / "reference" / "metrics.html").read_text().replace("<wbr>", "")
    rows = re.findall(r"<td><code>(\w+)</code></td>\n<td>(\w+)</td>\n<td>(\w*)</td>\n<td>([^<]+)</td>", page)
    assert len(rows) >= 20
    assert ("sortshuffle_service_map_outputs", "gauge", "application", "Map outputs that are served.") in rows
    assert ("sortshuffle_service_sent_bytes_total", "counter", "", "Bytes sent to clients.") in rows


def public_objects(module: str) -> Iterator[tuple[str, object]]:
    """What a module exports, and the public methods and properties of its classes."""
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield name, value
        if inspect.isclass(value):
            members = {each: member for each, member in vars(value).items() if not each.startswith("_")}
            described = (property, staticmethod, classmethod)
            for each, member in members.items():
                if inspect.isroutine(member) or isinstance(member, described):
                    yield f"{name}.{each}", getattr(value, each)


@pytest.mark.parametrize("module", PUBLIC)
def test_what_users_import_says_what_it_is(module: str) -> None:
    objects = dict(public_objects(module))
    assert len(objects) > 10
    assert [name for name, value in objects.items() if not inspect.getdoc(value)] == []
