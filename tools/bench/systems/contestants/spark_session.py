"""Builders of Spark sessions for a limit on memory, with the settings that both sides have."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession
from turn import Limits

HEAP = 0.5  # of the limit: Python's workers need room beside the JVM, and so does the page cache
MIB = 1 << 20


def builder(limits: Limits) -> SparkSession.Builder:
    """Return a builder of a local session. Everything that is not set here is Spark's default.

    `sortshuffle.session` turns on Unix sockets to Python's workers, and lets their allocator keep memory for
    some seconds. Both are settings of Spark, so all of Spark's sides have them."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # workers import the jobs' modules
    return (
        SparkSession.builder.master(f"local[{limits.cores}]")
        .appName("compare")
        .config("spark.driver.memory", f"{int(limits.memory * HEAP) // MIB}m")
        .config("spark.local.dir", limits.directory)
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.executorEnv.MIMALLOC_PURGE_DELAY", "3000")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
