"""`tools/jar`: when it builds, and what two builds at once do. In a checkout of its own with one source, and
with a JDK that does nothing but copy: its "jar" is the text of the source.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine import ROOT

MANAGER = Path("sortshuffle", "spark", "manager")
JAVA = """
echo "    java.home = ${0%/bin/java}"
echo "    java.version = 17.0.1"
echo "    java.specification.version = 17"
"""
# javac OPTIONS -d CLASSES -classpath JARS FILES. It reads the files first, as the real one may
JAVAC = """
while [[ $1 != -d ]]; do shift; done
mkdir -- "$2"
cat -- "${@:5}" >"$2/All.class"
eval "${WHILE_IT_COMPILES:-}"
"""
JAR = 'cat -- All.class >"$3"\n'  # jar --create --file FILE
MV = """
meanwhile=${BEFORE_IT_RENAMES:-}
unset BEFORE_IT_RENAMES
eval "$meanwhile"
PATH=${PATH#*:} exec mv "$@"
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """``root``: with the tool and one source. ``programs``: the JDK, and a directory that is first on the
    PATH."""

    root: Path
    programs: Path

    @property
    def tool(self) -> Path:
        return self.root / "tools" / "jar"

    @property
    def source(self) -> Path:
        return self.root / MANAGER / "java" / "All.java"

    @property
    def jar(self) -> Path:
        return self.root / MANAGER / "sortshuffle-manager.jar"

    def build(self, **environment: str) -> bool:
        """Call the tool, and return whether it has built the jar. ``environment``: what happens meanwhile."""
        path = f"{self.programs / 'path'}:{os.environ['PATH']}"
        done = subprocess.run(
            [self.tool],
            env={**os.environ, "JAVA_HOME": str(self.programs), "PATH": path, **environment},
            umask=0o027,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return "Building " in done.stderr

    def left(self) -> list[str]:
        """The names beside the sources."""
        return sorted(path.name for path in self.jar.parent.iterdir() if path.name != "java")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "checkout", tmp_path / "programs")
    for name in ("jar", "lib/environment.sh"):
        (made.root / "tools" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tools" / name, made.root / "tools" / name)
    program(made.root / ".venv" / "bin" / "python", f"exec '{sys.executable}' \"$@\"\n")
    for name, text in (("java", JAVA), ("javac", JAVAC), ("jar", JAR)):
        program(made.programs / "bin" / name, text)
    program(made.programs / "path" / "mv", MV)
    made.source.parent.mkdir(parents=True)
    made.source.write_text("first")
    return made


def test_the_jar_is_built_if_there_is_none_or_a_source_is_newer(checkout: Checkout) -> None:
    assert checkout.build()
    assert checkout.jar.read_text() == "first"
    assert stat.S_IMODE(checkout.jar.stat().st_mode) == 0o640  # as the umask has it
    assert not checkout.build()
    checkout.source.write_text("second")
    assert checkout.build()
    assert checkout.jar.read_text() == "second"
    assert checkout.left() == [checkout.jar.name]


def test_a_source_that_is_saved_while_the_compiler_runs_is_newer_than_the_jar(checkout: Checkout) -> None:
    assert checkout.build(WHILE_IT_COMPILES=f"printf second >'{checkout.source}'")
    assert checkout.jar.read_text() == "first"
    assert checkout.build()
    assert checkout.jar.read_text() == "second"
    assert not checkout.build()


def test_two_builds_at_once_do_not_take_each_others_file(checkout: Checkout) -> None:
    """The second begins and ends when the first is about to rename its jar. The first comes later with the
    older text; then the next call builds again."""
    seen = checkout.root / "seen"
    second = f"printf second >'{checkout.source}'; '{checkout.tool}'; cp '{checkout.jar}' '{seen}'"
    assert checkout.build(BEFORE_IT_RENAMES=second)
    assert seen.read_text() == "second"
    assert checkout.jar.read_text() == "first"
    assert checkout.left() == [checkout.jar.name]
    assert checkout.build()
    assert checkout.jar.read_text() == "second"


def test_a_build_that_fails_leaves_no_file(checkout: Checkout) -> None:
    with pytest.raises(AssertionError, match="wrong source"):
        checkout.build(WHILE_IT_COMPILES="echo wrong source >&2; exit 1")
    assert checkout.left() == []
