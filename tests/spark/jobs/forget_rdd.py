"""A job of RDDs that makes many exchanges, holds one, and forgets the others. Prints the map outputs as JSON:
those of the one that is held, those there were, and those left once the driver had collected garbage.

    python forget_rdd.py DIRECTORY SECONDS

There is a SparkContext and no session, as in jobs of nothing but RDDs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from forget import collect_until, outputs
from pyspark import SparkConf, SparkContext

import sortshuffle

ACTIONS = 20


def main(directory: str, seconds: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf().setMaster("local[2]").setAppName("forget").set("spark.ui.enabled", "false")
    conf.set("spark.sortshuffle.dir", directory).set("spark.sortshuffle.grace", "5s")
    context: Any = SparkContext(conf=conf)
    context.setLogLevel("OFF")

    pairs = context.parallelize([(n, n) for n in range(1000)], 2)
    held = sortshuffle.rdd(pairs).partitionBy(2)
    assert held.count() == 1000
    kept = outputs(directory)
    made = set(kept)
    for _ in range(ACTIONS):
        derived = held.map(lambda pair: pair).partitionBy(2)
        assert derived.count() == 1000
        made.update(outputs(directory))  # the first ones may go before the last ones come
    del derived
    collect_until(context._jvm, lambda: outputs(directory) == kept, float(seconds))
    assert held.count() == 1000
    print(json.dumps({"kept": kept, "made": sorted(made), "left": outputs(directory)}))
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
