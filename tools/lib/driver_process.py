"""`DriverProcess`: a driver of Spark in a process of its own, which is asked by lines of JSON and answers so.

Its first line says what it is: ``{"application": id, ...}``, with whatever else its users look up in `about`.
A request is ``{"id": number, ...}``; the answer to it ``{"id": number, "value": ...}`` or ``{"id": number,
"error": text}``, in any order. It ends when its standard input does.

A thread takes the answers. Whatever ends it wakes all who wait.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from process_group import wait_until_ended

START_PATIENCE = 180.0  # seconds; a driver takes about 6
STOP_PATIENCE = 60.0
LISTENER_PATIENCE = 10.0


class JobError(Exception):
    """A job raised, or its driver has ended; the text says which."""


class DriverProcess:
    """``command``: the driver's. ``log``: to which it writes on. The caller ends or kills it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._about: Future[dict[str, Any]] = Future()
        self._killed = False
        self._answers: dict[int, Future[Any]] = {}
        self._ended = ""  # why no more answers come
        self._lock = threading.Lock()  # of the two above
        with open(log, "ab") as opened:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                env=dict(environment),
                text=True,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def about(self) -> dict[str, Any]:
        """What it said of itself; waits until it has."""
        return self._about.result(START_PATIENCE)

    @property
    def application(self) -> str:
        return str(self.about["application"])

    def started(self) -> str:
        """Its application, as soon as there is one. A driver that does not start is killed: whoever makes it
        knows of none."""
        try:
            return self.application
        except BaseException:
            self.kill()
            raise

    def request(self, **what: Any) -> Future[Any]:
        """Its answer. Raises `JobError` where the driver has ended."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended:
                raise JobError(self._ended)
            number = len(self._answers)
            self._answers[number] = answer
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({"id": number, **what}) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise JobError(f"the driver has ended; its log: {self.log}") from None
        return answer

    def stop(self) -> None:
        """End the application as its user would: the driver ends well, and then its JVM. Raises
        TimeoutExpired."""
        status = self.end(STOP_PATIENCE)
        assert status == 0, f"status {status}; its log: {self.log}"

    def end(self, patience: float) -> int:
        """End the application as its user would; returns the status of the driver's process. Raises
        TimeoutExpired where driver, JVM and executors have not ended within so many seconds."""
        until = time.monotonic() + patience
        try:
            _close(self._process.stdin)
            status = self._process.wait(patience)
            # its JVM removes Spark's directories when the driver has ended
            if not wait_until_ended(self._process.pid, until - time.monotonic()):
                raise subprocess.TimeoutExpired(self._process.args, patience)
            return status
        finally:
            self.kill()

    def kill(self) -> None:
        """End the driver, its JVM included, with SIGKILL. May be called again."""
        if self._killed:
            return  # its number may be another process's by now
        with suppress(ProcessLookupError):  # its group may go on without it, and hold what it writes to
            os.killpg(self._process.pid, signal.SIGKILL)
        self._killed = True
        self._process.wait()
        _close(self._process.stdin)
        self._listener.join(LISTENER_PATIENCE)
        if self._listener.is_alive():
            what = "something that the driver has left holds its output"
            warnings.warn(f"{what}; its log: {self.log}", stacklevel=2)
        else:
            _close(self._process.stdout)

    def _value(self, answer: dict[str, Any]) -> Any:
        """Of a request that succeeded."""
        return answer["value"]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        end = "the driver has ended"
        try:
            for line in self._process.stdout:
                self._take(json.loads(line))
        except Exception as error:
            end = f"the driver has answered what cannot be read: {error!r}"
            raise
        finally:
            with self._lock:
                self._ended = f"{end}; its log: {self.log}"
                waiting = [each for each in (self._about, *self._answers.values()) if not each.done()]
            for each in waiting:
                each.set_exception(JobError(self._ended))

    def _take(self, answer: dict[str, Any]) -> None:
        if "application" in answer:
            self._about.set_result(answer)
        elif "error" in answer:
            self._answers[answer["id"]].set_exception(JobError(answer["error"]))
        else:
            self._answers[answer["id"]].set_result(self._value(answer))


def _close(pipe: IO[str] | None) -> None:
    assert pipe is not None
    with suppress(BrokenPipeError):  # of what the driver has not read
        pipe.close()
