"""The documents agree with the code: the table of options, the README's commands, the links between pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sortshuffle.options import option_table

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_options_page_has_the_table_that_the_options_make() -> None:
    assert option_table() in (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert re.findall(r"^@[A-Z]+@$", page.read_text(), re.MULTILINE) == []


def test_the_readme_names_commands_that_are_there() -> None:
    named = set(re.findall(r"tools/[a-z/]+[a-z]", (ROOT / "README.md").read_text()))
    assert {"tools/demo", "tools/test"} <= named
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_the_ci_run_calls_only_what_the_readme_shows() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    called = set(re.findall(r"^\s*(?:exec )?(tools/[a-z/]+)", script, re.MULTILINE))
    assert called <= set(re.findall(r"tools/[a-z/]+[a-z]", (ROOT / "README.md").read_text()))


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
