"""Python imports this when it starts, in every process of a host that has this directory on its path: tells
which hosts' directories a consumer opens files in.

PySpark's workers are forked from a daemon that has the hook, so nothing they open goes unseen. A line for
each file of a map output that is opened: the host whose directory it lies in, the process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

CLUSTER, HOST = os.environ.get("SORTSHUFFLE_CLUSTER"), os.environ.get("SORTSHUFFLE_CLUSTER_HOST")
SUFFIXES = (".data", ".index")


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str) or not arguments[0].startswith(f"{CLUSTER}/"):
        return
    path = arguments[0]
    if "/sortshuffle/" in path and path.endswith(SUFFIXES):
        host = path[len(f"{CLUSTER}/") :].partition("/")[0]
        log = os.open(f"{CLUSTER}/opened-{HOST}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(log, f"{host} {os.getpid()}\n".encode())
        os.close(log)


if CLUSTER is not None and "pyspark.worker" in sys.orig_argv:
    sys.addaudithook(watch)
