"""The process from which Spark forks its Python workers, in place of `pyspark.daemon`.

The shuffle manager names it in ``spark.python.daemon.module`` where all tasks run on the driver's host, in
the driver's Python. Workers start sooner, for two reasons:

* Spark puts ``python/lib/pyspark.zip`` of its home first on their path. An archive has no compiled modules,
  so each worker would compile what it imports. This process takes the archive off the path if it is the
  installed PySpark's own.
* This process imports `pyspark.worker` once, before it forks. From PySpark 4.3 on, `pyspark.daemon` leaves
  that to each worker.

No thread may run here when a worker is forked: a lock that it holds would stay locked in the worker for
ever. So nothing else is imported here. NumPy, pyarrow and pandas start threads.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatch
from importlib.machinery import PathFinder

from sortshuffle import calls

ARCHIVES = ("*/python/lib/pyspark.zip", "*/python/lib/py4j-*-src.zip")
WORKER = "pyspark.worker"
"""The module of workers, unless the user has named another in ``spark.python.worker.module``."""


def main() -> None:
    """Fork workers of the module that the first argument names, until Spark closes the standard input."""
    sys.path[:] = without_archives(sys.path)
    if sys.argv[1:] == [WORKER]:
        import pyspark.worker  # noqa: F401  workers that are forked have it
    from pyspark.daemon import manager

    manager()


def without_archives(path: list[str]) -> list[str]:
    """Return ``path`` without the archives of a Spark's home if PySpark is installed in that home, with Py4J
    beside it. Otherwise return ``path``."""
    archives = [entry for entry in path if any(fnmatch(entry, each) for each in ARCHIVES)]
    rest = [entry for entry in path if entry not in archives]
    pyspark, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if pyspark is None or pyspark.origin is None or py4j is None:
        return path
    home = calls.realpath(os.path.dirname(pyspark.origin))
    homes = {calls.realpath(entry.rsplit("/", 3)[0]) for entry in archives}
    return rest if homes <= {home} else path


if __name__ == "__main__":
    main()
