"""Pages whose snippets are one program: their Python and their commands run from top to bottom, and what each
prints is compared with what the page shows below it. `...` stands for what differs from run to run."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine import ENVIRONMENT, ROOT
from java_options import submit_arguments

END = "=== the end of a block ==="
PATIENCE = 400  # seconds; the longest takes about 40
COMMANDS = """
import shlex, subprocess, sys


def run_commands(text):
    for line in text.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
        assert program == "sortshuffle", line
        print(line, flush=True)
        subprocess.run([sys.executable, "-m", "sortshuffle.cli.main", *arguments], check=False)
    sys.stdout.flush()
"""


@dataclass(frozen=True)
class Step:
    """A snippet, and what the page shows that it prints. A page shows its commands together with that."""

    kind: str
    code: str
    shown: str

    @property
    def program(self) -> str:
        return self.code if self.kind == "python" else f"run_commands({self.code!r})"


def steps_of(page: str) -> list[Step]:
    """The Python and the commands of a page below docs/, in their order."""
    text = (ROOT / "docs" / page).read_text()
    blocks: list[tuple[str, str]] = re.findall(
        r"^```(python|text|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    steps = []
    for number, (kind, code) in enumerate(blocks):
        if kind == "python":
            after, shown = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            steps.append(Step(kind, code, shown if after == "text" else ""))
        elif kind == "console":
            called = "".join(line for line in code.splitlines(keepends=True) if line.startswith("$ "))
            steps.append(Step(kind, called, code))
    return steps


def pattern(shown: str) -> re.Pattern[str]:
    """What the page shows. `...` stands for anything, further lines included."""
    return re.compile(re.escape(shown.strip()).replace(re.escape("..."), ".*?"), re.DOTALL)


def run_program(steps: list[Step], directory: Path, **variables: str) -> list[str]:
    """What each step prints. Commands after the last Python run when its process has ended."""
    last = max(number for number, step in enumerate(steps) if step.kind == "python")
    printed = []
    for name, part in (("program.py", steps[: last + 1]), ("after.py", steps[last + 1 :])):
        lines = [COMMANDS, *(f"{step.program}\nprint({END!r}, flush=True)" for step in part)]
        (directory / name).write_text("\n".join(lines))
        printed += _run([sys.executable, name], directory, variables).split(f"{END}\n")[:-1]
    return [each.strip() for each in printed]


def _run(command: list[str], directory: Path, variables: dict[str, str]) -> str:
    """What a command prints, which must succeed."""
    environment = {**ENVIRONMENT, "PYSPARK_SUBMIT_ARGS": submit_arguments("auto"), **variables}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_prints_what_the_page_shows(printed: list[str], steps: list[Step]) -> None:
    for found, step in zip(printed, steps, strict=True):
        assert pattern(step.shown).fullmatch(found), f"{found}\n--- the page shows\n{step.shown}"
