"""The driver of an application: requests are lines on standard input, answers lines on standard output.

    python -m soak.driver SETTINGS        SETTINGS: Spark's, as JSON; "ours": whether jobs use this package

    {"id": 1, "work": "frame_sort", "shape": "small", "settings": {...}}    a job
    {"id": 2, "ask": "stages"}       what the stages of the last job have done
    {"id": 3, "ask": "hosts"}        the hosts that have executors
    {"id": 4, "ask": "collect"}      has Spark notice what is garbage
    {"id": 5, "ask": "decisions"}    what the shuffle manager has decided: how often, by decision

    {"id": 1, "value": ...}   or   {"id": 1, "error": "..."}

A job runs in a thread and a session of its own; questions are answered meanwhile. The first line that is
printed tells the application's id. The driver ends with its input.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession

import sortshuffle
from soak.work import SHAPES, works


class Driver:
    def __init__(self, settings: dict[str, str], is_ours: bool) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what jobs print is no answer
        self._is_ours = is_ours
        self._lock = threading.Lock()
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.spark = (sortshuffle.configure(builder) if is_ours else builder).getOrCreate()
        self._first_stage = 0
        self._say({"application": self.spark.sparkContext.applicationId})

    def serve(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            if "work" in request:
                self._first_stage = 1 + max((each["stage"] for each in self._stages()), default=-1)
                InheritableThread(target=self._answer, args=(request, self._run), daemon=True).start()
            else:
                self._answer(request, self._ask)
        self.spark.stop()

    def _answer(self, request: dict[str, Any], do: Any) -> None:
        try:
            answer = {"value": do(request)}
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            java = getattr(error, "java_exception", None)
            if java is not None:
                text += f"\n{java.toString()}"
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            answer = {"error": text}
        self._say({"id": request["id"], **answer})

    def _say(self, fields: dict[str, Any]) -> None:
        with self._lock:
            print(json.dumps(fields), file=self._answers, flush=True)

    def _run(self, request: dict[str, Any]) -> Any:
        session = self.spark.newSession()
        for name, value in request["settings"].items():
            session.conf.set(name, value)
        _, function = works[request["work"]]
        return function(session, self._is_ours, SHAPES[request["shape"]])

    def _ask(self, request: dict[str, Any]) -> Any:
        answers = {
            "stages": self._new_stages,
            "hosts": self._hosts,
            "collect": self._collect,
            "decisions": self._decisions,
        }
        return answers[request["ask"]]()

    def _new_stages(self) -> list[dict[str, Any]]:
        return [each for each in self._stages() if each["stage"] >= self._first_stage]

    def _stages(self) -> list[dict[str, Any]]:
        """The attempts of stages that have run tasks."""
        gateway: Any = self.spark.sparkContext._gateway
        context: Any = self.spark.sparkContext._jsc.sc()
        found = context.statusStore().stageList(
            None, False, False, gateway.new_array(gateway.jvm.double, 0), None
        )
        stages = [found.apply(at) for at in range(found.size())]
        return [
            {
                "stage": each.stageId(),
                "rdds": each.rddIds().mkString(","),
                "attempt": each.attemptId(),
                "tasks": each.numTasks(),
                "complete": each.numCompleteTasks(),
                "failed": each.numFailedTasks(),
                "killed": each.numKilledTasks(),
                "written": each.shuffleWriteRecords(),
            }
            for each in reversed(stages)
            if each.status().toString() != "SKIPPED"
        ]

    def _hosts(self) -> list[str]:
        tracker = self.spark.sparkContext._jsc.sc().statusTracker()
        own = self.spark.conf.get("spark.driver.host")
        return sorted({each.host() for each in tracker.getExecutorInfos()} - {own})

    def _collect(self) -> None:
        gc.collect()
        self.spark.sparkContext._jvm.System.gc()

    def _decisions(self) -> dict[str, int]:
        jvm: Any = self.spark.sparkContext._jvm
        return dict(jvm.org.sortshuffle.SortMergeShuffleManager.decisions())


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    Driver(chosen["settings"], chosen["ours"]).serve()
