"""Jobs that need a Spark of their own: programs that print what they found, as JSON, in their last line.

They run one after another in one process (`job_server.py`), which is started for the first and stays. Those
that need another environment or class path of their JVM, or no JVM, have a process each.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine import short_directory
from java_options import submit_arguments
from process_group import wait_until_ended

PATIENCE = 240.0  # seconds; a job takes about 20
ENDING = 10.0  # seconds for a JVM to end by itself
SERVER = Path(__file__).with_name("job_server.py")


class JobServer:
    """A process that runs jobs. Between jobs this one holds no descriptor of it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sortshuffle-jobs-", dir=short_directory()))
        self._log = self.directory / "log"
        self._is_over = False
        with socket.socket(socket.AF_UNIX) as listening, open(self._log, "wb") as log:
            self._address = str(self.directory / "socket")  # which nobody else may enter
            listening.bind(self._address)
            listening.listen()
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(listening.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listening.fileno()],
                cwd=self.directory,  # where workers do not find the package in the working directory
                env=self._environment(),
                start_new_session=True,
            )
        atexit.register(self.end)

    def _environment(self) -> dict[str, str]:
        """This process's, but for temporary files, which go with the directory however the server ends."""
        java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={self.directory}"
        return {**os.environ, "TMPDIR": str(self.directory), "JDK_JAVA_OPTIONS": java.strip()}

    def run(self, job: Path, arguments: tuple[str, ...], patience: float) -> str:
        """What it printed. If it fails or hangs, the process ends: the next job needs another server."""
        request = {"path": str(job), "arguments": arguments, "environment": self._environment()}
        try:
            answer = self._answer(json.dumps(request), patience)
            assert "printed" in answer, f"{self._log_end()}\n{answer.get('error', 'the server has ended')}"
        except BaseException:
            self.end()
            raise
        return answer["printed"]

    def _answer(self, request: str, patience: float) -> dict[str, str]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(patience)
                connection.connect(self._address)
                with connection.makefile("rw") as stream:
                    print(request, file=stream, flush=True)
                    answer: dict[str, str] = json.loads(stream.readline() or "{}")
        except TimeoutError:
            return {"error": f"the job has not ended in {patience} seconds"}
        except OSError as error:
            return {"error": f"the server has ended: {error}"}
        return answer

    def _log_end(self) -> str:
        return self._log.read_bytes()[-4000:].decode(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """With its JVM, and the executors of that. They may clear away, which SIGKILL would prevent. May be
        called again."""
        if self._is_over:
            return  # its number may be another process's by now
        self._is_over = True
        atexit.unregister(self.end)
        try:
            self._signal(signal.SIGTERM)
            wait_until_ended(self._process.pid, ENDING)
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


_servers: list[JobServer] = []


def job_server() -> JobServer:
    """The one that runs, or a new one."""
    if _servers and not _servers[-1].is_running:
        _servers.pop().end()  # for its directory
    if not _servers:
        _servers.append(JobServer())
    return _servers[-1]


def run_job(
    job: Path,
    *arguments: str,
    patience: float = PATIENCE,
    environment: Mapping[str, str] | None = None,
    has_manager: bool = False,
) -> dict[str, Any]:
    """What a job found, within ``patience`` seconds. ``environment``: None for this process's, as it is now
    for Python, and as it was at the first of these jobs for their JVM. ``has_manager``: its JVM starts with
    the shuffle manager's jar."""
    if environment is None and not has_manager:
        printed = job_server().run(job, arguments, patience)
    else:
        printed = _run_alone(job, arguments, patience, environment, has_manager)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def _run_alone(
    job: Path,
    arguments: tuple[str, ...],
    patience: float,
    environment: Mapping[str, str] | None,
    has_manager: bool,
) -> str:
    environment = dict(os.environ if environment is None else environment)
    if has_manager:
        environment["PYSPARK_SUBMIT_ARGS"] = submit_arguments("on", has_manager=True)
    try:
        done = subprocess.run(
            [sys.executable, str(job), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as late:  # which has bytes, text or not
        logged = (late.stderr or b"")[-4000:].decode(errors="replace")
        raise AssertionError(f"{logged}\nthe job has not ended in {patience} seconds") from late
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
