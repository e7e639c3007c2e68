"""Where the shuffle manager's Java classes are.

The jar is part of the wheel and the sdist. In a clone ``tools/jar`` builds it. It must be a file of its own:
Spark sends it to executors.
"""

from __future__ import annotations

import os

from sortshuffle import calls

JAR_NAME = "sortshuffle-manager.jar"


def jar_path() -> str:
    """The jar of this installation, whether it is there or not."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), JAR_NAME)


def why_no_jar() -> str:
    """Why the jar cannot be used, and what to do; empty where it is there."""
    path = jar_path()
    if calls.isfile(path):
        return ""
    return (
        f"its jar {path} is not there. In a clone, tools/jar builds it with a JDK of version 17 or later; a"
        " wheel has it"
    )
