"""A driver that does what it is told: requests are lines on standard input, answers lines on standard output.

    python driver.py SETTINGS        SETTINGS: Spark's, as JSON

    {"id": 1, "job": "exchange", "directory": "...", "settings": {...}, "arguments": {...}}
    {"id": 1, "value": ...}   or   {"id": 1, "error": "ServiceUnavailableError ..."}

Jobs run side by side, each in a session of its own with its settings. The first line that it prints tells the
application's id. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from cluster_jobs import jobs
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import sortshuffle


def main(settings: dict[str, str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what jobs print is no answer
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = sortshuffle.configure(builder).getOrCreate()
    lock = threading.Lock()

    def say(fields: dict[str, Any]) -> None:
        with lock:
            print(json.dumps(fields), file=answers, flush=True)

    def run(request: dict[str, Any]) -> None:
        session = spark.newSession()
        for name, value in request["settings"].items():
            session.conf.set(name, value)
        try:
            value = jobs[request["job"]](session, request["directory"], **request["arguments"])
        except Exception as error:
            say({"id": request["id"], "error": f"{type(error).__name__} {error}"})
        else:
            say({"id": request["id"], "value": value})

    say({"application": spark.sparkContext.applicationId})
    for line in sys.stdin:
        InheritableThread(target=run, args=(json.loads(line),), daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
