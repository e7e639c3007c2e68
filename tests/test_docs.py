"""The documents agree with the code: the table of options, the tests of faults, the commands and options that
pages name, the links between pages."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from sortshuffle.cli.main import main
from sortshuffle.options import PREFIX, option_table

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_options_page_has_the_table_that_the_options_make() -> None:
    assert option_table() in (ROOT / "docs" / "operations.md").read_text()


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of all tables below a heading, without the tables' heads."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\|.*\n\|[-:|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_fault_has_tests_that_are_there() -> None:
    rows, claims = rows_of("testing.md", "Faults"), rows_of("operations.md", "Faults")
    assert [what for what, _ in rows] == [what for what, *_ in claims]
    assert missing_of(rows) == []
    assert_says_what_is_not_tested(claims, rows)


def test_what_is_supported_has_tests_that_are_there() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "support.md").read_text(), re.MULTILINE)
    claims = [row for heading in headings for row in rows_of("support.md", heading)]
    rows = rows_of("testing.md", "What works")
    assert [what for what, _ in rows] == [what for what, *_ in claims]
    assert missing_of(rows) == []
    assert_says_what_is_not_tested(claims, rows)


def assert_says_what_is_not_tested(claims: list[list[str]], rows: list[list[str]]) -> None:
    """What no test shows must say so where it is claimed."""
    for claim, (_, shown_by) in zip(claims, rows, strict=True):
        assert "not tested" not in shown_by or re.search("not (tested|tried)", " ".join(claim)), claim


def missing_of(rows: list[list[str]]) -> list[str]:
    """The tests named in a table that are not there. Each row names tests, or says that there is none."""
    assert len(rows) > 30
    assert [what for what, shown_by in rows if "::" not in shown_by and shown_by != "not tested"] == []
    return [name for _, shown_by in rows for name in missing_tests(shown_by)]


def missing_tests(shown_by: str) -> list[str]:
    """The tests named in a cell that are not there. The cell names nothing but tests, if it names any."""
    named = re.findall(r"`(\S+\.py)::(\w+)`", shown_by)
    assert len(named) == shown_by.count("::"), shown_by
    return [f"{file}::{name}" for file, name in named if name not in collected_of(ROOT / "tests" / file)]


def collected_of(file: Path) -> set[str]:
    """The functions of a file that pytest collects."""
    if not file.is_file():
        return set()
    found = {each.name for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)}
    return {name for name in found if name.startswith("test_")}


def test_flinks_terms_lead_to_names_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = page.partition("\n## Flink's terms\n")[2].partition("\n## ")[0].splitlines()
    here = [row.split("|")[2] for row in rows if row.startswith("| ")][1:]
    named = [name for cell in here for name in re.findall(r"`([a-z_]+\.[\w.]+)`", cell)]
    assert len(here) >= 30
    assert len(named) >= 30
    assert [name for name in named if not _is_there(name)] == []


def _is_there(name: str) -> bool:
    """Whether that is a module of the package, or a name in one."""
    above, _, last = f"sortshuffle.{name}".rpartition(".")
    return hasattr(import_module(above), last) or find_spec(f"{above}.{last}") is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text())
    missing = []
    for path, anchor in targets:
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            missing.append(f"{path}#{anchor}" if anchor else path)
    assert missing == []


def anchors_of(page: Path) -> set[str]:
    """The names under which GitHub shows a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_options_that_a_page_names_are_there(page: Path) -> None:
    known = {f"{PREFIX}{key}" for key in re.findall(rf"`{re.escape(PREFIX)}([\w.]+)`", option_table())}
    named = set(re.findall(rf"{re.escape(PREFIX)}[a-z]+(?:\.[a-z]+)*(?![\w*{{.]*[*{{])", page.read_text()))
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_that_a_page_shows_can_be_called_so(page: Path) -> None:
    """As far as their names and options go: a command's arguments need not be there."""
    blocks = re.findall(r"^```(console|bash)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    begins = {"console": r"^\$ ", "bash": r"^|\$\(|IMAGE "}
    lines = [
        found
        for kind, text in blocks
        for found in re.findall(rf"(?:{begins[kind]})sortshuffle (\w[^|)\n]*)", text, re.MULTILINE)
    ]
    for name, *arguments in (shlex.split(line, comments=True) for line in lines):
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        known = {option for each in command.params for option in each.opts}
        assert {each for each in arguments if each.startswith("-")} <= known, (name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_placeholder_is_left(page: Path) -> None:
    assert re.findall(r"^@[A-Z]+@$", page.read_text(), re.MULTILINE) == []


def test_the_readme_names_commands_that_are_there() -> None:
    named = set(re.findall(r"tools/[a-z/_]+[a-z]", (ROOT / "README.md").read_text()))
    assert {"tools/demo", "tools/test"} <= named
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_the_ci_run_calls_only_what_the_readme_shows() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    called = set(re.findall(r"^\s*(?:exec )?(tools/[a-z/_]+)", script, re.MULTILINE))
    assert called <= set(re.findall(r"tools/[a-z/_]+[a-z]", (ROOT / "README.md").read_text()))


def test_repository_files_name_no_place_of_a_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    pattern = re.compile(r"(?<![\w./])/(?:root|home/\w+)/")
    found = [
        name
        for name in listed
        if (ROOT / name).suffix in {".py", ".md", ".toml", ".sh", ""} and (ROOT / name).is_file()
        if pattern.search((ROOT / name).read_text(errors="replace"))
    ]
    assert found == []
