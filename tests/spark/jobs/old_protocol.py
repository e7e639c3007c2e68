"""SparkContexts with and without a setting of Spark's shuffle that is refused: what `frame` and `rdd` raise
there, and in a session beside that says the opposite."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle


def session(old_protocol: str) -> SparkSession:
    """Made anew only where no SparkContext runs."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.config("spark.shuffle.useOldFetchProtocol", old_protocol).getOrCreate()


def raised_by(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def raised_in(spark: SparkSession) -> list[str]:
    return [
        raised_by(lambda: sortshuffle.frame(spark.range(3))),
        raised_by(lambda: sortshuffle.rdd(spark.sparkContext.parallelize([1]))),
    ]


found = {}
for of_context, of_session in (("true", "false"), ("false", "true")):
    spark = session(of_context)
    alone = raised_in(spark)
    beside = session(of_session)
    assert beside.conf.get("spark.shuffle.useOldFetchProtocol") == of_session
    found[of_context] = {"alone": alone, "beside": raised_in(beside)}
    spark.stop()
print(json.dumps(found))
