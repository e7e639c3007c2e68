"""A home of Spark for tests. Its Python workers import the installed PySpark.

Spark puts ``python/lib/pyspark.zip`` of its home first on its Python workers' path. The archive has no
compiled modules, so each worker compiles the modules of PySpark that it imports. To start a worker takes
2.6 s of CPU on a slow machine, and compiling is 0.8 s of that. The home of tests has no such archive. The
tests of the demo, of spark-submit and of workers without packages have Spark's own home
(`users_environment`). The workers of a `local-cluster` write into ``work`` of the home.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / ".classes"
NEEDED = ("bin", "jars")


def spark_home() -> Path:
    """Return the home. Make it if it is missing. Several processes may do so at once."""
    package = Path(pyspark.__file__).parent
    # Another installation at the same place has another home, and other archives of classes.
    identity = f"{package} {pyspark.__version__} {(package / 'jars').stat().st_mtime_ns}"
    home = DIRECTORY / f"home-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not home.exists():
        make_home(home, package)
    return home


def users_environment() -> dict[str, str]:
    """Return this process's environment without what tests tell PySpark. Spark's home is its own then. A
    ``python3`` that has no PySpark finds it in the archive there."""
    left_out = ("PYSPARK_", "SPARK_HOME")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def make_home(home: Path, package: Path) -> None:
    """Link what Spark needs of the package. A home that is there stays as it is."""
    DIRECTORY.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=DIRECTORY, prefix="draft-"))
    try:
        for name in NEEDED:
            (draft / name).symlink_to(package / name)
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft)
        if not home.is_dir():  # else another process was quicker
            raise
