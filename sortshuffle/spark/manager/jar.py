"""The location of the shuffle manager's Java classes.

The jar is part of the wheel and the sdist. In a clone ``tools/jar`` builds it. It must be a separate file,
because Spark sends it to executors.
"""

from __future__ import annotations

import os

from sortshuffle import calls

JAR_NAME = "sortshuffle-manager.jar"


def jar_path() -> str:
    """Return the path of this installation's jar, whether or not the jar exists."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), JAR_NAME)


def why_no_jar() -> str:
    """Return why the jar cannot be used, and what to do; empty if the jar exists."""
    path = jar_path()
    if calls.isfile(path):
        return ""
    return (
        f"its jar {path} is not there. In a clone, tools/jar builds it with a JDK of version 17 or later; a"
        " wheel has it"
    )
