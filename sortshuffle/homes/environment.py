"""The environment of our own processes: janitors, services, their supervisors, and the processes that remove
what an application has at a URL. Spark's workers have a part of it too."""

from __future__ import annotations

import os

# Milliseconds for which pyarrow's allocator keeps freed memory. A task frees and allocates a region's memory
# again and again; with the default of 10 ms every page is faulted in anew. Measured with the engine, 1 GB, 64
# subpartitions, two warm runs each: 40,000 to 55,000 page faults against 600 to 4,400, 0.2 s of encoding
# against 0.1 s; in all 1.8 to 2.0 s against 1.8 s, because writing takes most of the time.
ALLOCATOR_VARIABLE, ALLOCATOR_DELAY = "MIMALLOC_PURGE_DELAY", "3000"


def environment() -> dict[str, str]:
    """Return the environment for a Python process that imports this package from the same place."""
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # above sortshuffle/homes/
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    return {ALLOCATOR_VARIABLE: ALLOCATOR_DELAY, **os.environ, "PYTHONPATH": path}
