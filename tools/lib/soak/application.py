"""A driver as the soak sees it: a process that is asked to run jobs, and is watched meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

START_PATIENCE = 120.0  # seconds; a driver takes about 6
ASK_PATIENCE = 60.0  # seconds until a question is answered; takes milliseconds
STOP_PATIENCE = 90.0  # seconds; Spark may wait 60 s for the removal of what is at a URL


class JobError(Exception):
    """A job raised; the text is its error's."""


class Driver:
    """``environment``: of its process. ``is_ours``: whether its jobs use this package."""

    def __init__(
        self, log: Path, settings: Mapping[str, str], environment: Mapping[str, str], is_ours: bool
    ) -> None:
        self.log = log
        self._answers: dict[int, Future[Any]] = {}
        self._id: Future[str] = Future()
        self._ended = False
        self._lock = threading.Lock()
        with open(log, "ab") as opened:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "soak.driver", json.dumps({"settings": settings, "ours": is_ours})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                env=dict(environment),
                text=True,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.id = self._id.result(START_PATIENCE)
        except BaseException:
            self.kill()  # nobody else knows of it
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, work: str, shape: str, settings: Mapping[str, str] = {}) -> Future[Any]:
        """Ask for a job."""
        return self._request({"work": work, "shape": shape, "settings": dict(settings)})

    def ask(self, what: str) -> Any:
        return self._request({"ask": what}).result(ASK_PATIENCE)

    def stop(self) -> int:
        """End the application as its user would; returns the status of its process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(STOP_PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the driver, its JVM included, with SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _request(self, request: dict[str, Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended:
                raise JobError(f"the driver has ended; its log: {self.log}")
            number = len(self._answers)
            self._answers[number] = answer
        assert self._process.stdin is not None
        try:
            print(json.dumps({"id": number, **request}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise JobError(f"the driver has ended; its log: {self.log}") from None
        return answer

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "application" in answer:
                self._id.set_result(answer["application"])
            elif "error" in answer:
                self._answers[answer["id"]].set_exception(JobError(answer["error"]))
            else:
                self._answers[answer["id"]].set_result(answer["value"])
        with self._lock:
            self._ended = True
            waiting = [each for each in (self._id, *self._answers.values()) if not each.done()]
        for each in waiting:
            each.set_exception(JobError(f"the driver has ended; its log: {self.log}"))
