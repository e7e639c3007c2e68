"""A session with a setting of Spark's shuffle that is refused: what `frame` and `rdd` raise there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle


def raised_by(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.shuffle.useOldFetchProtocol", "true").getOrCreate()
found = {
    "frame": raised_by(lambda: sortshuffle.frame(spark.range(3))),
    "rdd": raised_by(lambda: sortshuffle.rdd(spark.sparkContext.parallelize([1]))),
}
spark.stop()
print(json.dumps(found))
