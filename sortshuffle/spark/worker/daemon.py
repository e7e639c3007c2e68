"""The process from which Spark forks its Python workers, in place of `pyspark.daemon`.

The shuffle manager names it in ``spark.python.daemon.module`` where all tasks run on the driver's host (the
plugin decides), in the driver's Python (`activation` decides). Workers start sooner, for two reasons:

* Spark puts ``python/lib/pyspark.zip`` of its home first on their path. An archive has no compiled modules,
  so each worker would compile what it imports. This process takes the archive off the path if it is the
  installed PySpark's own.
* This process imports `pyspark.worker` once, before it forks. From PySpark 4.3 on, `pyspark.daemon` leaves
  that to each worker, so that no import can start a thread in the daemon.

No thread may run here when a worker is forked: a lock that it holds would stay locked in the worker for
ever. So nothing is imported here that starts one, as NumPy, pyarrow and pandas do. The user's
``sitecustomize`` or a later PySpark may start one nevertheless. Then this process becomes `pyspark.daemon`.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec, PathFinder

from sortshuffle import calls

ARCHIVES = ("*/python/lib/pyspark.zip", "*/python/lib/py4j-*-src.zip")
WORKER = "pyspark.worker"
"""The module of workers, unless the user has named another in ``spark.python.worker.module``."""


def main() -> None:
    """Fork workers of the module that the first argument names, until Spark closes the standard input."""
    leave_threads_to_spark()
    sys.path[:] = without_archives(sys.path)
    if sys.argv[1:] == [WORKER]:
        import pyspark.worker  # noqa: F401  workers that are forked have it

        leave_threads_to_spark()
    forget_this_package()
    from pyspark.daemon import manager

    manager()


def without_archives(path: list[str]) -> list[str]:
    """Return ``path`` without the archives of a Spark's home if PySpark is installed in that home, with Py4J
    beside it. Otherwise return ``path``."""
    archives = [entry for entry in path if any(fnmatch(entry, each) for each in ARCHIVES)]
    rest = [entry for entry in path if entry not in archives]
    home, py4j = (_directory(PathFinder.find_spec(name, rest)) for name in ("pyspark", "py4j"))
    if not home or not py4j or os.path.dirname(home) != os.path.dirname(py4j):
        return path
    homes = {calls.realpath(entry.rsplit("/", 3)[0]) for entry in archives}
    return rest if homes <= {home} else path


def _directory(package: ModuleSpec | None) -> str:
    """Return where a package is; empty if it is not found."""
    return calls.realpath(os.path.dirname(package.origin)) if package and package.origin else ""


def leave_threads_to_spark() -> None:
    """Become `pyspark.daemon` if this process has a second thread, of Python's or of a library's."""
    if len(calls.listdir("/proc/self/task")) > 1:
        calls.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])


def forget_this_package() -> None:
    """Let workers import this package from their own path, where a job's own files (``--py-files``) come
    before what is installed."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "sortshuffle":
            del sys.modules[name]


if __name__ == "__main__":
    main()
