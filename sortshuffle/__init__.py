"""sortshuffle: a sort-merge blocking shuffle on disk for PySpark jobs.

    import sortshuffle
    spark = sortshuffle.session(SparkSession.builder)    # a job as it is
    spark = sortshuffle.configure(SparkSession.builder).getOrCreate()  # the shuffle manager alone
    frame = sortshuffle.frame(df)                        # from any DataFrame
    frame = sortshuffle.read(spark).parquet("lineitem")  # scanned in Python
    frame.repartition(64, "k").groupBy("k").applyInArrow(score, "k long, s double").toDF()
    sortshuffle.rdd(pairs).partitionBy(64).mapPartitions(fold).toRDD()  # Python objects

The public names are loaded on first use, so that small processes (the janitor, the command line) do not
import Spark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sortshuffle.version import __version__

_system: str = sys.platform  # a name of our own: type checkers on other systems read on
if _system != "linux":
    raise ImportError(
        f"sortshuffle runs on Linux, and this is {_system}: it needs /proc and posix_fallocate(). Run the job"
        " in a Linux container"
    )

if TYPE_CHECKING:
    from sortshuffle.service.server.shuffle_service import serve
    from sortshuffle.spark.data_source import register
    from sortshuffle.spark.frame.frame_reader import read
    from sortshuffle.spark.frame.frames import broadcast, frame
    from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
    from sortshuffle.spark.frame.shuffle_session import session
    from sortshuffle.spark.rdds.rdd import ShuffleRDD, rdd
    from sortshuffle.spark.session.requirements import configure
    from sortshuffle.spark.session.service import files_key

_PUBLIC = {
    "ShuffleFrame": "sortshuffle.spark.frame.shuffle_frame",
    "ShuffleRDD": "sortshuffle.spark.rdds.rdd",
    "broadcast": "sortshuffle.spark.frame.frames",
    "frame": "sortshuffle.spark.frame.frames",
    "rdd": "sortshuffle.spark.rdds.rdd",
    "session": "sortshuffle.spark.frame.shuffle_session",
    "read": "sortshuffle.spark.frame.frame_reader",
    "register": "sortshuffle.spark.data_source",
    "configure": "sortshuffle.spark.session.requirements",
    "files_key": "sortshuffle.spark.session.service",
    "serve": "sortshuffle.service.server.shuffle_service",
}

__all__ = [
    "ShuffleFrame",
    "ShuffleRDD",
    "__version__",
    "broadcast",
    "configure",
    "files_key",
    "frame",
    "rdd",
    "read",
    "register",
    "serve",
    "session",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sortshuffle' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
