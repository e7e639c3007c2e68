"""One SparkContext after the other, in one JVM, each with settings of its own: a JVM takes longer to start
than all of them.

    python contexts.py SETTINGS        SETTINGS: those that the JVM starts with, as JSON

It is asked and answers as `driver_process` says. A request has the ``settings`` of the next context. The
value of its answer tells how that went: ``[exit code, what the job printed]``. What the context has logged
by then is on standard error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


def session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def shuffle(settings: dict[str, str]) -> None:
    spark = session(settings)
    assert spark.range(100).repartition(3).count() == 100
    context: Any = spark.sparkContext
    print(context._jsc.sc().shuffleDriverComponents().supportsReliableStorage())
    print(context.getConf().get("spark.dynamicAllocation.shuffleTracking.timeout", "not set"))
    print(dict(context._jvm.org.sortshuffle.SortMergeShuffleManager.decisions()))


def main(settings: dict[str, str]) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the JVM prints is no answer
    session(settings).stop()
    for line in sys.stdin:
        request = json.loads(line)
        code, printed = 0, io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                shuffle(request["settings"])
        except Exception:
            code = 1
            traceback.print_exc()
        finally:
            if SparkContext._active_spark_context is not None:
                SparkSession.builder.getOrCreate().stop()
        print(json.dumps({"id": request["id"], "value": [code, printed.getvalue()]}), file=answers)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
