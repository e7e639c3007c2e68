"""A Spark session that does what it is told: requests are lines on standard input, answers lines on standard
output.

    python session.py SETTINGS        SETTINGS: Spark's, as JSON; with spark.sortshuffle.manager on or off

    {"id": 1, "job": "aggregate", "directory": "...", "arguments": {...}}
    {"id": 1, "value": ..., "shuffles": ..., "decisions": {...}}   or   {"id": 1, "error": "TypeError ..."}

Jobs run one behind the other, each with the settings that the session began with. The first line that it
prints tells the application's id and where its JVM runs. It ends with its input.

``shuffles``: how many Spark has registered meanwhile. ``decisions``: what the manager decided on them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import control_rows  # noqa: F401 - registers its jobs, as the others do
import fault_jobs  # noqa: F401
import frame_jobs  # noqa: F401
import java_jobs  # noqa: F401
import late_reads  # noqa: F401
import launch_jobs  # noqa: F401
import rdd_jobs  # noqa: F401
import sql_jobs  # noqa: F401
import stored_jobs  # noqa: F401
import tpch_jobs  # noqa: F401
from pyspark.sql import SparkSession
from registry import jobs

import sortshuffle

SWITCH = "spark.sortshuffle.manager"


class Served:
    """The session, and what is told of it beside the jobs' values."""

    def __init__(self, settings: dict[str, str]) -> None:
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.spark = sortshuffle.configure(builder).getOrCreate()
        self._is_ours = settings[SWITCH] == "on"
        self._settings = dict(self.spark.conf.getAll)

    def about(self) -> dict[str, Any]:
        context = self.spark.sparkContext
        jvm = context._jvm.java.lang.ProcessHandle.current().pid()
        return {"application": context.applicationId, "jvm": jvm}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        shuffles, decisions = self._next_shuffle(), self._decisions()
        try:
            value = jobs[request["job"]](self.spark, request["directory"], **request["arguments"])
            answer = {"value": value}
        except Exception as error:
            answer = {"error": f"{type(error).__name__} {error}"}
        finally:
            self._restore()
        made = {each: count - decisions.get(each, 0) for each, count in self._decisions().items()}
        answer["shuffles"] = self._next_shuffle() - shuffles - 1  # one number goes into asking
        answer["decisions"] = {each: count for each, count in made.items() if count}
        return answer

    def _restore(self) -> None:
        """A job may have changed settings."""
        conf: Any = self.spark.conf
        now = dict(conf.getAll)
        for name in now.keys() - self._settings.keys():
            conf.unset(name)
        for name, value in self._settings.items():
            if now.get(name) != value:
                conf.set(name, value)

    def _next_shuffle(self) -> int:
        return int(self.spark.sparkContext._jsc.sc().newShuffleId())

    def _decisions(self) -> dict[str, int]:
        if not self._is_ours:
            return {}
        return dict(self.spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager.decisions())


def main(settings: dict[str, str]) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what jobs print is no answer
    served = Served(settings)
    print(json.dumps(served.about()), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **served.run(request)}), file=answers)
    served.spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
