"""A job of RDDs that makes many exchanges, holds one, and forgets the others. Prints the map outputs as JSON:
those of the one that is held, those there were, and those left once the driver had collected garbage.

    python forget_rdd.py DIRECTORY SECONDS

There is a SparkContext and no session, as in jobs of nothing but RDDs.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from typing import Any

from pyspark import SparkConf, SparkContext

import sortshuffle

ACTIONS = 20


def main(directory: str, seconds: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf().setMaster("local[2]").setAppName("forget").set("spark.ui.enabled", "false")
    conf.set("spark.sortshuffle.dir", directory).set("spark.sortshuffle.grace", "5s")
    context: Any = SparkContext(conf=conf)
    context.setLogLevel("OFF")

    def outputs() -> list[str]:
        return sorted(name for _, _, names in os.walk(directory) for name in names if name.endswith(".data"))

    pairs = context.parallelize([(n, n) for n in range(1000)], 2)
    held = sortshuffle.rdd(pairs).partitionBy(2)
    assert held.count() == 1000
    kept = outputs()
    made = set(kept)
    for _ in range(ACTIONS):
        derived = held.map(lambda pair: pair).partitionBy(2)
        assert derived.count() == 1000
        made.update(outputs())  # the first ones may go before the last ones come
    del derived
    deadline = time.monotonic() + float(seconds)
    while outputs() != kept and time.monotonic() < deadline:
        gc.collect()
        context._jvm.System.gc()
        threading.Event().wait(1.0)
    assert held.count() == 1000
    print(json.dumps({"kept": kept, "made": sorted(made), "left": outputs()}))
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
