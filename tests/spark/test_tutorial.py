"""The tutorial's program runs as it stands there, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

from page_programs import assert_prints_what_the_page_shows, run_program, steps_of


def test_the_program_and_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    steps = steps_of("tutorial.md")
    assert [step.kind for step in steps].count("console") == 2
    assert sum(bool(step.shown) for step in steps if step.kind == "python") == 13
    assert_prints_what_the_page_shows(run_program(steps, tmp_path), steps)
