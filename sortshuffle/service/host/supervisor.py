"""The supervisor: one small process per application and host that keeps the shuffle service running.

    python -m sortshuffle.service.host.supervisor RENDEZVOUS TCP UNIX  < one line: the service's configuration

The first task that writes on a host starts it (`service.host.rendezvous`), and gives it the listening
sockets. The supervisor passes them to the service process (`service.host.process`), and to the next one when
that dies. It accepts no connections itself: clients connect and wait until a service runs.

    new         --starter killed before it wrote service.json---------------------> ended
    keeping up  --application over, and not live for `QUIET` seconds--------------> dissolved --> ended
    keeping up  --it may get executors again, but was not live for `LINGER` s-----> dissolved --> ended
    any         --SIGTERM; rendezvous gone, or it names another supervisor or none--> ended

Rules
* A service that dies is started again: at once if it ran for `STEADY`, else after a delay that doubles.
* The supervisor ends with the application, however that ends. It checks the executors' processes every
  second, even while it waits to restart the service.
* An application is live while it has an executor here, or while Spark serves here what an ended executor left
  (`ApplicationPhase`). The second case has no time limit of ours: it ends, at the latest, when Spark removes
  its directories.
* The service ends with the supervisor, even if that is killed: the pipe, which only they have, ends then.

Standard library only, about 15 MB: a service takes more and may be killed for it, a supervisor should not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.registration import ApplicationPhase

TICK = 1.0  # seconds between checks of the executors; the death of the service is noticed at once
# seconds without life until the service of an application that is over ends. Spark replaces a lost executor
# sooner. And all is removed well within 30 s of the application's end
QUIET = 5.0
# seconds without life; an application may lose all its executors and get new ones. After this time it counts
# as over
LINGER = 12 * 3600.0
STEADY = 10.0  # seconds; a service that runs this long has started well
FIRST_DELAY, LAST_DELAY = 0.1, 10.0  # seconds before a service that did not start well is started again
STOPPING = 5.0  # seconds in which a service can end in good order


@dataclass(slots=True)
class RestartDelay:
    """The delay before the service is started again."""

    delay: float = 0.0

    def after(self, lived: float) -> float:
        """Return the seconds to wait after a service that ran for ``lived`` seconds."""
        self.delay = 0.0 if lived >= STEADY else min(LAST_DELAY, max(FIRST_DELAY, 2 * self.delay))
        return self.delay


class RecurringProblem:
    """An error that may recur in each tick. It is logged when it begins and when its text changes: else the
    log would fill the disk."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._logged = ""

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Log and suppress the errors that the rendezvous raises in the block."""
        try:
            yield
            self._logged = ""
        except (OSError, UsageError) as error:
            problem = f"{self._what}: {error}"
            if problem != self._logged:
                log(problem)
            self._logged = problem


_unreadable = RecurringProblem("the rendezvous cannot be read")
_uncounted = RecurringProblem("the registrations cannot be read or dropped")
_undissolved = RecurringProblem("the rendezvous cannot be removed")


class ServiceProcess:
    """The process of the service, which is replaced when it dies."""

    def __init__(self, directory: str, listening: Sequence[int], config: bytes) -> None:
        self._directory = directory
        self._listening = listening
        self._config = config
        self._restart_delay = RestartDelay()
        # when to start the next process, by the monotonic clock; None while one runs
        self._due: float | None = None
        self._start()

    def keep_up(self, seconds: float) -> None:
        """Watch the service for ``seconds`` at most, and start the next process when it is due."""
        until = time.monotonic() + seconds
        if self._due is None and not self._wait_for_end(seconds):
            return
        assert self._due is not None
        time.sleep(max(0.0, min(until, self._due) - time.monotonic()))
        if self._due <= time.monotonic():
            self._start_again()

    def _wait_for_end(self, seconds: float) -> bool:
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        lived = time.monotonic() - self._since
        delay = self._restart_delay.after(lived)
        log(f"the service ended after {lived:.1f} s ({_ended_by(status)}); starting it again in {delay:g} s")
        self._close_pipe()
        self._due = time.monotonic() + delay
        return True

    def _start_again(self) -> None:
        try:
            self._start()
            self._due = None
        except OSError as error:  # the machine is short of memory or processes
            log(f"the service cannot be started: {error}")
            self._due = time.monotonic() + self._restart_delay.after(0.0)

    def stop(self) -> None:
        """End the service in good order, or else by force."""
        self._close_pipe()
        self._process.terminate()
        try:
            self._process.wait(STOPPING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._since = time.monotonic()
        descriptors = map(str, self._listening)
        self._process = calls.Popen(
            [sys.executable, "-m", "sortshuffle.service.host.process", self._directory, *descriptors],
            stdin=subprocess.PIPE,
            pass_fds=tuple(self._listening),
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self._config)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, and is started again

    def _close_pipe(self) -> None:
        """Close the pipe; a service that still runs ends then."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass


def main(directory: str, listening: Sequence[int]) -> None:
    """Run until the application has ended."""
    signal.signal(signal.SIGTERM, _end)
    config = sys.stdin.buffer.readline()
    if not rendezvous.is_recorded_by_its_starter(directory, os.getpid()):
        log("ends: the task that started it was killed before it recorded this service")
        return
    service = ServiceProcess(directory, listening, config)
    try:
        last_live = time.monotonic()
        while _is_recorded(directory):
            service.keep_up(TICK)
            now = time.monotonic()
            phase = _phase(directory)
            if phase is ApplicationPhase.LIVE:
                last_live = now
            patience = QUIET if phase is ApplicationPhase.OVER else LINGER
            if now - last_live >= patience and _is_dissolved(directory, phase):
                break
    finally:
        service.stop()


def _is_recorded(directory: str) -> bool:
    """Return whether tasks find this process. A system error counts as yes: clients depend on the service."""
    with _unreadable.logged():
        return rendezvous.is_recorded(directory, os.getpid())
    return True


def _phase(directory: str) -> ApplicationPhase:
    """Return what is known of the application. If that cannot be told, it counts as live: a job may run."""
    with _uncounted.logged():
        return rendezvous.forget_ended(directory)
    return ApplicationPhase.LIVE


def _is_dissolved(directory: str, phase: ApplicationPhase) -> bool:
    with _undissolved.logged():
        return rendezvous.dissolve(directory, phase)
    return False


def log(what: str) -> None:
    """Write to the log of the rendezvous, which is this process's standard error. If that cannot be written,
    because the temporary disk is full, the line is lost: the service must be kept up all the same."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with suppress(OSError, ValueError):
        print(f"{stamp} supervisor {os.getpid()}: {what}", file=sys.stderr, flush=True)


def _ended_by(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1], tuple(map(int, sys.argv[2:])))
