"""The tutorial's program runs as it stands there, and prints what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from engine import ENVIRONMENT, ROOT
from java_options import submit_arguments

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(python|text|console)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
END = "=== the end of a block ==="
PATIENCE = 400  # seconds; it takes about 40


def pattern(shown: str) -> re.Pattern[str]:
    """What the page shows. `...` stands for anything, further lines included."""
    return re.compile(re.escape(shown.strip()).replace(re.escape("..."), ".*?"), re.DOTALL)


def run(command: list[str], directory: Path) -> str:
    """What a command prints, which must succeed."""
    environment = {**ENVIRONMENT, "PYSPARK_SUBMIT_ARGS": submit_arguments("auto")}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorial")


@pytest.fixture(scope="module")
def printed(directory: Path) -> list[str]:
    """What each block of the program printed."""
    program = [f"{code}\nprint({END!r})" for kind, code in BLOCKS if kind == "python"]
    (directory / "program.py").write_text("\n".join(program))
    return [each.strip() for each in run([sys.executable, "program.py"], directory).split(f"{END}\n")]


def test_the_program_prints_what_the_page_shows(printed: list[str]) -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert all(after == "text" for kind, after in pairwise(kinds) if kind == "python")
    shown = [text for kind, text in BLOCKS if kind == "text"]
    assert len(printed) - 1 == len(shown) == 13
    for found, expected in zip(printed, shown, strict=False):
        assert pattern(expected).fullmatch(found), f"{found}\n--- the page shows\n{expected}"


def test_the_commands_print_what_the_page_shows(printed: list[str], directory: Path) -> None:
    consoles = [text.partition("\n") for kind, text in BLOCKS if kind == "console"]
    assert len(consoles) == 2
    for command, _, shown in consoles:
        program, *arguments = command.removeprefix("$ ").split()
        assert program == "sortshuffle"
        found = run([sys.executable, "-m", "sortshuffle.cli.main", *arguments], directory)
        assert pattern(shown).fullmatch(found.strip()), f"{found}\n--- the page shows\n{shown}"
