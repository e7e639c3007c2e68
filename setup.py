"""What `pyproject.toml` cannot say: a wheel and an sdist hold the shuffle manager's jar.

``tools/jar`` builds it from the Java sources beside it. Installing compiles nothing, so an archive without
the jar is refused when it is made, and so is one of a clone in which a source is newer than the jar. An
editable install works without it: frames and RDDs do not need it.
"""

import glob
import os

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

JAR = "sortshuffle/spark/manager/sortshuffle-manager.jar"
SOURCES = "sortshuffle/spark/manager/java/**/*.java"


def check_jar() -> None:
    if not os.path.isfile(JAR):
        raise SystemExit(
            f"{JAR} is not there, and a wheel or an sdist of sortshuffle holds it. Build it first, with a JDK"
            " of version 17 or later: tools/jar"
        )
    newer = newer_sources()
    if newer:
        raise SystemExit(
            f"{JAR} is older than {newer[0]}. Build it again, with a JDK of version 17 or later: tools/jar"
        )


def newer_sources() -> list[str]:
    """Of the jar, in a clone. In an sdist, whose jar was checked when it was made, times say nothing."""
    if not os.path.exists(".git"):
        return []
    built = os.path.getmtime(JAR)
    return [path for path in sorted(glob.glob(SOURCES, recursive=True)) if os.path.getmtime(path) > built]


class BuildPython(build_py):
    def run(self) -> None:
        if not self.editable_mode:
            check_jar()
        super().run()


class SourceArchive(sdist):
    def run(self) -> None:
        check_jar()
        super().run()


setup(cmdclass={"build_py": BuildPython, "sdist": SourceArchive})
