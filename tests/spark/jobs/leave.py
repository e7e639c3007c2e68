"""A job that writes a map output and then ends in a given way. Prints "ready" when its files are there.

    python leave.py DIRECTORY stop|exit|exception|wait

wait: until it is killed or interrupted.
"""

from __future__ import annotations

import os
import sys
import threading

from pyspark.sql import SparkSession

import sortshuffle


def main(directory: str, how: str) -> None:
    spark = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .config("spark.sortshuffle.dir", os.path.join(directory, "own"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = sortshuffle.frame(spark.range(0, 1000, 1, 2)).repartition(4, "id")
    assert frame.count() == 1000
    print("ready", flush=True)
    if how == "wait":
        threading.Event().wait()
    if how == "exception":
        raise RuntimeError("the user's own")
    if how == "stop":
        spark.stop()
        print("stopped", flush=True)
        sys.stdin.read()  # the process goes on after the session has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
