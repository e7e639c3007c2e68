"""The programs of the pages in docs/how-to run as they stand there, and print what these show."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import ROOT
from page_programs import assert_prints_what_the_page_shows, run_program, steps_of
from s3_server import running_s3_server

PAGES = {
    "port-a-job.md": ["python", "python", "python", "python"],
    "memory.md": ["python"],
    "skew.md": ["python", "console", "console", "python", "python"],
    "disk.md": ["python", "python", "console", "python", "console", "console"],
}
"""The kinds of the snippets of each page."""
IN_A_STORE = "object-store.md"
ON_PAPER = ("run-on-a-cluster.md", "kubernetes.md", "yarn.md")
"""These need more than one machine: `test_docs.py` looks at the names that they use."""


def test_every_page_is_known() -> None:
    pages = {each.name for each in (ROOT / "docs" / "how-to").iterdir()}
    assert pages == {*PAGES, IN_A_STORE, *ON_PAPER}
    assert [each for each in ON_PAPER if steps_of(f"how-to/{each}")] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    steps = steps_of(f"how-to/{page}")
    assert [step.kind for step in steps] == PAGES[page]
    assert_prints_what_the_page_shows(run_program(steps, tmp_path), steps)


def test_the_page_on_object_stores_prints_what_it_shows(tmp_path: Path) -> None:
    steps = steps_of(f"how-to/{IN_A_STORE}")
    with running_s3_server() as server:
        printed = run_program(steps, tmp_path, **server.environment)
    assert_prints_what_the_page_shows(printed, steps)
