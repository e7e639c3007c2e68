"""A home of Spark for tests: there Python workers find PySpark where it is installed.

Spark puts ``python/lib/pyspark.zip`` of its home in front of its Python workers' path. The archive has no
compiled modules, so each worker compiles again what it imports of PySpark, which takes 0.8 s of 2.6 s. This
home has all of the installed one but that archive.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / ".classes"
LEFT_OUT = "python"


def spark_home() -> Path:
    """Return the home. Makes it, if the installed PySpark has none yet; other processes may do so, too."""
    installed = _installed_pyspark()
    home = DIRECTORY / f"home-{hashlib.sha256(str(installed).encode()).hexdigest()[:16]}"
    if not home.exists():
        _make_home(home, installed)
    return home


def _installed_pyspark() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found and found.origin
    return Path(found.origin).parent


def _make_home(home: Path, installed: Path) -> None:
    DIRECTORY.mkdir(exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=DIRECTORY, prefix="unfinished-"))
    for entry in installed.iterdir():
        if entry.is_dir() and entry.name != LEFT_OUT:
            (unfinished / entry.name).symlink_to(entry)
    try:
        unfinished.rename(home)
    except OSError:
        shutil.rmtree(unfinished)
        if not home.exists():  # else another process was quicker
            raise
